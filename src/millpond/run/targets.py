"""What a driver does about the targets of its sinks before it delivers to them.

A target is the folder, topic or table that a sink writes to. It can disagree with the ledger in two ways:

- It is ahead: it names a claim or a batch that the ledger does not contain. An older copy of `state_dir` was put
  back, or a copy runs beside the original. The driver stops before it claims the app, and a person decides.
- It is behind: deliveries that the ledger knows to be complete are gone. They are delivered again from the log.

Only sinks that are `RegisteredSink`s can be asked. For the others the driver makes sure, right before each delivery,
that it still owns the app.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence

from millpond.errors import Fenced, Incompatible, InvalidUse, Unavailable
from millpond.flow import Delivery, RegisteredSink, Registration
from millpond.log.checked import checksum
from millpond.log.ledger import Ledger
from millpond.log.record import Record
from millpond.pipeline.graph import Program

log = logging.getLogger("millpond")

TAIL = 64  # records that are looked at, from the newest back, for deliveries that a target has lost


def deliveries_of(record: Record, sink: str) -> list[Delivery]:
    """The deliveries of one sink in one record, one per partition that has outputs for it."""
    return [
        Delivery(record.app, record.incarnation, sink, record.number, partition, record.delivery_attempt)
        for partition in sorted(record.outputs.get(sink, {}))
    ]


def _with_rows(record: Record, sink: str) -> list[Delivery]:
    parts = record.outputs.get(sink, {})
    return [
        delivery for delivery in deliveries_of(record, sink) if sum(file.rows for file in parts[delivery.partition])
    ]


class Targets:
    """The targets of a program's sinks, as one driver sees them from its start to its end."""

    def __init__(
        self, program: Program, ledger: Ledger, accept: Sequence[str] = (), take_back: Sequence[str] = ()
    ) -> None:
        self._ledger = ledger
        self._sinks = {name: sink for name, sink in program.sinks.items() if isinstance(sink, RegisteredSink)}
        self._accept, self._take_back = set(accept), set(take_back)
        self._claim: Record | None = None
        self._seen: dict[str, Registration | None] = {}  # what each target said before this driver registered
        self._found: dict[str, Registration | None] = {}  # the same, where the ledger contains it
        self._known: dict[str, Registration] = {}  # what this driver wrote last
        self._lost: dict[str, list[Record]] = {}
        for name in self._accept | self._take_back:
            if name not in self._sinks:
                able = ", ".join(sorted(self._sinks)) or "none"
                raise InvalidUse(
                    f"run(accept=, take_back=): expected sinks of app {program.app!r} whose targets remember who "
                    f"delivers to them ({able}), got {name!r}"
                )
        if self._accept & self._take_back:
            both = ", ".join(sorted(self._accept & self._take_back))
            raise InvalidUse(f"run(accept=, take_back=): expected each sink in one of them, got {both} in both")

    @property
    def places(self) -> dict[str, str]:
        """A fingerprint of each sink's target, for the record: it tells whether the target is still the same one."""
        return {name: checksum(sink.target.encode())[:16] for name, sink in self._sinks.items()}

    def check(self, last: Record | None) -> None:
        """Stop before the claim if a target names what the ledger does not contain. Nothing has been changed then."""
        if last is None:
            return
        for name, sink in self._sinks.items():
            found = sink.registration(last.app, last.incarnation, name)
            if found is not None and name not in self._accept | self._take_back and not self._contains(found):
                raise self._ahead(name, found, last.number)

    def begin(self, claim: Record, check_ownership: Callable[[], None]) -> None:
        """Register the new claim with every target, after taking back what `take_back` names.

        A target that has lost deliveries is registered with once it has them again, so that a driver that dies before
        that leaves the loss as it found it.
        """
        self._claim = claim
        ahead: set[str] = set()
        for name, sink in self._sinks.items():
            found = self._found[name] = self._seen[name] = sink.registration(claim.app, claim.incarnation, name)
            if found is not None and not self._contains(found):
                if name in self._take_back:
                    make_void = sink.take_back(found, self._contains_delivery)
                    check_ownership()  # a successor delivers after its claim, so none of its files was found
                    amount = len(make_void())
                    log.warning("%s: sink %r: took back %d deliveries of another copy", claim.app, name, amount)
                elif name not in self._accept:
                    raise self._ahead(name, found, claim.number)
                self._found[name] = None
                ahead.add(name)
            elif found is not None:
                self._check_order(name, found)
        self._lost = self._find_lost(claim, set(self._sinks) - self._accept | ahead)
        self._free_ids(claim, check_ownership)
        for name, sink in self._sinks.items():
            if name not in self._lost:
                with contextlib.suppress(Unavailable):  # then it is told before the first delivery, which waits for it
                    self._write(name, sink, claim)

    def _free_ids(self, last: Record, check_ownership: Callable[[], None]) -> None:
        """Let what is still to be delivered be so, although another copy of the app has made it void."""
        for name, sink in self._sinks.items():
            records = [*self._lost.get(name, []), *self._open(name, last)]
            deliveries = [delivery for record in records for delivery in _with_rows(record, name)]
            if deliveries:
                free_ids = sink.revive(deliveries)
                check_ownership()
                if freed := free_ids():
                    what = "that another copy of the app rolled back are delivered again"
                    log.warning("%s: sink %r: %d deliveries %s", last.app, name, len(freed), what)

    def _open(self, name: str, last: Record) -> Iterator[Record]:
        for record in self._lineage(last):
            if record.number <= last.deliveries.get(name, last.number):
                return
            yield record

    def note(self, record: Record, incarnation: str) -> None:
        """Tell every target of a record that makes deliveries of an incarnation void, before they are.

        If an older copy of `state_dir` is put back later, the target then names a record that the copy does not
        contain. A target that is ahead already stays so.
        """
        for name, sink in self._sinks.items():
            found = sink.registration(record.app, incarnation, name)
            if found is not None and self._contains(found):
                claim, attempt = record.number, record.attempt
                sink.register(Registration(record.app, incarnation, name, claim, attempt, claim, attempt))

    @property
    def lost(self) -> list[tuple[str, Record]]:
        """The sinks, and the records delivered to them, oldest first, whose outputs are gone from the target."""
        return [(name, record) for name, records in sorted(self._lost.items()) for record in records]

    def restored(self) -> None:
        """Register with the targets that had lost something and have it again."""
        for name in self._lost:
            assert self._claim is not None
            self._write(name, self._sinks[name], self._claim)
        self._lost = {}

    def announce(self, name: str, record: Record) -> None:
        """Tell a target which record comes next; stop if another driver, or another copy of the app, has registered."""
        sink = self._sinks.get(name)
        if sink is None:
            return
        found = sink.registration(record.app, record.incarnation, name)
        if found is not None and found != self._known.get(name, self._seen.get(name)):
            self._check_order(name, found)
        if name not in self._lost:
            self._write(name, sink, record)

    def _find_lost(self, last: Record, looking: set[str]) -> dict[str, list[Record]]:
        """What is gone from the end of each target, or was made void by another copy of the app.

        A target is told of a record before it is delivered: what is newer than the last that it was told of is gone
        for certain, if it was put back from a copy. Else a file that is gone while newer ones are there, or all of
        them, were removed by somebody who had read them, and are not written again.
        """
        emptied = {
            n for n in looking if self._seen[n] is None and n not in self._take_back and self._is_same_target(n, last)
        }
        told = {name: found.batch for name, found in self._found.items() if found} | dict.fromkeys(emptied, -1)
        gone: dict[str, list[Record]] = {name: [] for name in looking}
        void: dict[str, list[tuple[int, int]]] = {}  # by `drop_outputs`, of this ledger
        for seen, record in enumerate(self._lineage(last)):
            still = [n for n in looking if seen < TAIL or gone[n] or record.number > told.get(n, record.number)]
            if not still:
                break
            for name in still:
                void.setdefault(name, []).extend(record.void_ranges.get(name, ()))
                if any(first <= record.number <= end for first, end in void[name]):
                    continue
                deliveries = self._delivered(record, name, last)
                held = [delivery for delivery in deliveries if self._sinks[name].holds(delivery)]
                if len(held) < len(deliveries):
                    gone[name].append(record)
                if held and record.number <= told.get(name, record.number):
                    looking.discard(name)
        for name in looking:  # nothing that the target was told of is there
            if name in emptied:
                self._check_reach(name, gone[name], last)
            else:
                gone[name] = [record for record in gone[name] if record.number > told.get(name, record.number)]
        for name in [name for name, records in gone.items() if not records]:
            del gone[name]
        for name, records in gone.items():
            log.warning(
                "%s: sink %r: %s has lost what was delivered of batches %d to %d; it is delivered again",
                last.app,
                name,
                self._sinks[name].target,
                records[-1].number,
                records[0].number,
            )
        return {name: records[::-1] for name, records in gone.items()}

    def _is_same_target(self, name: str, last: Record) -> bool:
        return last.targets.get(name) == self.places[name]

    def _lineage(self, last: Record) -> Iterator[Record]:
        """The records that still count, newest first: what a rollback set aside is left out."""
        first = max(last.born, self._ledger.floor())
        number = last.number
        while number >= first:
            [record] = self._ledger.between(number - 1, number)
            yield record
            number = number - 1 if record.back is None else record.back

    def _delivered(self, record: Record, name: str, last: Record) -> list[Delivery]:
        return [] if record.number > last.deliveries.get(name, -1) else _with_rows(record, name)

    def _check_reach(self, name: str, gone: list[Record], last: Record) -> None:
        floor = self._ledger.floor()
        if gone and floor > last.born:
            raise Incompatible(
                f"sink {name!r}: {self._sinks[name].target} holds nothing of app {last.app!r}, and the ledger says "
                f"that all outputs up to batch {last.deliveries[name]} were delivered there. The log still has those "
                f"from batch {gone[-1].number} on; those of batches {last.born} to {floor - 1} are gone. Put the "
                f"target back, or go on with it as it is: run(accept=[{name!r}])."
            )

    def _contains(self, found: Registration) -> bool:
        """Whether the ledger contains the records that a target names. Of records that were removed, nothing is
        known."""
        floor = self._ledger.floor()
        for number, attempt in ((found.claim, found.claim_attempt), (found.batch, found.attempt)):
            if number >= floor:
                record = self._ledger.read(number)
                if record is None or record.attempt != attempt:
                    return False
        return True

    def _contains_delivery(self, batch: int, attempt: str) -> bool:
        record = self._ledger.read(batch)
        return batch < self._ledger.floor() if record is None else record.delivery_attempt == attempt

    def _check_order(self, name: str, found: Registration) -> None:
        assert self._claim is not None
        if not self._contains(found):
            raise self._ahead(name, found, self._claim.number)
        if found.claim > self._claim.number:
            raise Fenced(
                f"app {self._claim.app!r}: sink {name!r}: a newer driver, whose claim is record {found.claim}, "
                f"delivers to {self._sinks[name].target} now. This driver has stopped; nothing is lost."
            )

    def _write(self, name: str, sink: RegisteredSink, record: Record) -> None:
        claim = self._claim
        assert claim is not None
        self._known[name] = Registration(
            record.app, record.incarnation, name, claim.number, claim.attempt, record.number, record.attempt
        )
        sink.register(self._known[name])

    def _ahead(self, name: str, found: Registration, newest: int) -> Incompatible:
        return Incompatible(
            f"sink {name!r}: {self._sinks[name].target} has taken deliveries up to batch {found.batch} of app "
            f"{found.app!r} from a driver whose claim is record {found.claim}, and the ledger in "
            f"{self._ledger.storage.url}, which ends at record {newest}, does not contain them: an older copy of the "
            "state directory was put back, or another copy of it is running. Stop the other one. Then "
            f"run(take_back=[{name!r}]) empties the deliveries that this ledger does not contain, and "
            f"run(accept=[{name!r}]) leaves them there, beside what comes. Nothing was changed."
        )
