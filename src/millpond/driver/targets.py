"""Compares the targets of the sinks with the ledger before anything is delivered to them.

A target is the folder, topic or table that a sink writes to. It can disagree with the ledger in two ways:

- It is ahead: it names a claim or a batch that the ledger does not contain. An older copy of `state_dir` was
  restored, or a copy runs beside the original. The driver stops before it claims the app, and a person decides.
- It is behind: deliveries that are complete according to the ledger are gone. They are delivered again from the log.

This works only for a `RegisteredSink`. For other sinks the driver checks, right before each delivery, that it still
owns the app.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from millpond.errors import Fenced, Incompatible, InvalidUse, Unavailable
from millpond.log.checked import checksum
from millpond.log.ledger import Ledger
from millpond.log.record import Record
from millpond.messages import Parcel
from millpond.parcels import parcels_of
from millpond.pipeline.graph import Program
from millpond.sinks.base import Delivery, FencingSink, RegisteredSink, Registration

log = logging.getLogger("millpond")

RecordRanges = list[tuple[int, int]]  # first and last numbers of records

CHECKED_RECORDS = 64  # the newest records, which are checked for deliveries that a target has lost


def _parcels_with_rows(record: Record, sink: str) -> list[Parcel]:
    return [parcel for parcel in parcels_of(record, sink) if parcel.has_rows]


class Targets:
    """The targets of a program's sinks, from the start of a driver to its end."""

    def __init__(
        self, program: Program, ledger: Ledger, accept: Sequence[str] = (), take_back: Sequence[str] = ()
    ) -> None:
        self._ledger = ledger
        self._sinks = {name: sink for name, sink in program.sinks.items() if isinstance(sink, RegisteredSink)}
        # They show, in the record, whether a target is still the same.
        self.fingerprints = {name: checksum(sink.target.encode())[:16] for name, sink in self._sinks.items()}
        self._accept, self._take_back = set(accept), set(take_back)
        self._claim: Record | None = None
        self._announced: dict[str, int] = {}  # the newest record that drivers of this ledger have registered
        self._foreign: dict[
            str, list[Registration]
        ] = {}  # entries that the ledger does not contain and the user accepts
        self._known: dict[str, Registration] = {}  # the entry that this driver wrote last
        self._lost: dict[str, list[Record]] = {}
        self._fenced: dict[str, int] = {}  # the partitions of targets that refuse older claims by themselves
        for name in self._accept | self._take_back:
            if name not in self._sinks:
                able = ", ".join(sorted(self._sinks)) or "none"
                raise InvalidUse(
                    f"run(accept=, take_back=): expected sinks of app {program.app!r} whose targets remember who "
                    f"delivers to them ({able}), got {name!r}"
                )
        for name in sorted(self._take_back):
            if not self._can_take_back(name):
                raise InvalidUse(
                    f"run(take_back=): sink {name!r}: what is in {self._sinks[name].target} cannot be taken back. Use "
                    f"{_accept_option(name)}: it stays beside what comes."
                )
        if self._accept & self._take_back:
            both = ", ".join(sorted(self._accept & self._take_back))
            raise InvalidUse(f"run(accept=, take_back=): expected each sink in one of them, got {both} in both")

    @property
    def claim(self) -> tuple[int, str] | None:
        """The number and attempt id of this driver's claim, which deliveries carry; None before it has begun."""
        return None if self._claim is None else (self._claim.number, self._claim.attempt)

    def check(self, last: Record | None) -> None:
        """Raise `Incompatible` if a target is ahead of the ledger. Called before the claim: nothing is changed."""
        if last is None:
            return
        for name, sink in self._sinks.items():
            entries = sink.registrations(last.app, last.incarnation, name)
            self._check_emptied(name, entries, last)
            foreign = self._foreign_among(entries)
            if foreign and name not in self._accept | self._take_back:
                raise self._ahead_error(name, foreign, last.number)

    def begin(
        self,
        claim: Record,
        check_ownership: Callable[[], None],
        make_void: Callable[[dict[str, RecordRanges]], None],
        read_rows: Callable[[Parcel], list[Any]],
    ) -> None:
        """Register the new claim with every target, and take back what `take_back` names.

        With a target that has lost deliveries the claim is registered once it has them again, so that a driver that
        dies before that leaves the loss visible. If a target was restored from a copy, what was rolled back since is
        made void again.
        """
        self._claim = claim
        again: dict[str, RecordRanges] = {}
        for name, sink in self._sinks.items():
            entries = sink.registrations(claim.app, claim.incarnation, name)
            foreign = self._foreign[name] = self._foreign_among(entries)
            ours = [entry for entry in entries if entry not in foreign]
            if foreign and name in self._take_back:
                give_up = sink.take_back(foreign[0], self._contains_delivery)
                check_ownership()  # a successor delivers after its claim, so none of its deliveries was found
                amount = len(give_up())
                log.warning("%s: sink %r: took back %d deliveries of another copy", claim.app, name, amount)
            elif foreign and name not in self._accept:
                raise self._ahead_error(name, foreign, claim.number)
            self._check_order(name, ours)
            if isinstance(sink, FencingSink):  # first: nothing of an older driver changes any more
                self._check_emptied(name, entries, claim)
                self._fence(name, sink, claim.partitions)
            if ours:
                self._announced[name] = max(entry.batch for entry in ours)
                again[name] = self._rolled_back_since(self._announced[name], claim)
        make_void({name: ranges for name, ranges in again.items() if ranges})
        self._lost = self._find_lost(claim)
        self._revive(claim, check_ownership, read_rows)
        for name in self._sinks:
            if name not in self._lost:
                with contextlib.suppress(
                    Unavailable
                ):  # then it is registered before the first delivery, which waits for the target
                    self._take_over(name)

    def _rolled_back_since(self, announced: int, last: Record) -> RecordRanges:
        """Return the ranges of records that rollbacks have set aside since a record was registered."""
        if announced >= last.epoch:
            return []
        records = self._ledger.between(max(announced, self._ledger.floor() - 1), last.number)
        return [(record.back + 1, record.number - 1) for record in records if record.back is not None]

    def _revive(
        self, last: Record, check_ownership: Callable[[], None], read_rows: Callable[[Parcel], list[Any]]
    ) -> None:
        """Deliver what counts in this ledger although another copy of the app has made it void.

        Each delivery is one step: a driver that dies in between leaves it void, not apparently removed.
        """
        for name, sink in self._sinks.items():
            records = [*self._lost.get(name, []), *self._undelivered_records(name, last)]
            parcels = [parcel for record in records for parcel in _parcels_with_rows(record, name)]
            void = [parcel for parcel in parcels if sink.status(parcel.delivery) == "void"]
            for parcel in void:
                rows = read_rows(parcel)
                check_ownership()
                sink.revive(rows, parcel.delivery)
            if void:
                what = "that another copy of the app rolled back are delivered again"
                log.warning("%s: sink %r: %d deliveries %s", last.app, name, len(void), what)

    def _undelivered_records(self, name: str, last: Record) -> Iterator[Record]:
        for record in self._lineage(last):
            if record.number <= last.deliveries.get(name, last.number):
                return
            yield record

    def register_void(self, record: Record, incarnation: str) -> None:
        """Register a record that makes deliveries of an incarnation void with every target, before they are void.

        If an older copy of `state_dir` is restored later, the target then names a record that the copy does not
        contain.
        """
        for name, sink in self._sinks.items():
            if sink.registrations(record.app, incarnation, name):
                claim, attempt = record.number, record.attempt
                entry = Registration(record.app, incarnation, name, claim, attempt, claim, attempt)
                if isinstance(sink, FencingSink):
                    sink.fence(entry, record.partitions)
                else:
                    sink.register(entry)

    @property
    def lost(self) -> list[tuple[str, Record]]:
        """The records whose outputs are gone from a target, each with its sink, oldest first."""
        return [(name, record) for name, records in sorted(self._lost.items()) for record in records]

    def register_restored(self) -> None:
        """Register with the targets that had lost deliveries and have them again."""
        lost, self._lost = self._lost, {}
        for name in lost:
            self._take_over(name)

    def announce(self, name: str, record: Record) -> None:
        """Register the record that is delivered next.

        Raises if another driver or another copy of the app has registered, or if the target was replaced. A target that
        refuses older claims by itself is only asked whether it was replaced.
        """
        sink, claim = self._sinks.get(name), self._claim
        if sink is None or claim is None:
            return
        if isinstance(sink, FencingSink) and name in self._known:
            if record.partitions > self._fenced.get(name, 0):
                self._fence(name, sink, record.partitions)
            sink.check_target(self._known[name])
            return
        entries = sink.registrations(record.app, record.incarnation, name)
        known = self._known.get(name)
        others = [entry for entry in entries if entry != known and entry not in self._foreign.get(name, ())]
        if foreign := self._foreign_among(others):
            raise self._ahead_error(name, foreign, claim.number)
        self._check_order(name, others)
        if known is not None and known not in entries:
            raise Incompatible(
                f"sink {name!r}: {sink.target} no longer knows the driver that delivers to it, whose claim is record "
                f"{claim.number}: it was deleted or put back from a copy while app {claim.app!r} ran. Run the app "
                "again: what is missing there is delivered again from the log."
            )
        if name not in self._lost:
            self._write(name, sink, record)

    def _find_lost(self, last: Record) -> dict[str, list[Record]]:
        """Return the records that are gone from the end of each target, or were made void by another copy of the app.

        A record is registered before it is delivered: what is newer than the registered one is certainly gone if the
        target was restored from a copy. Otherwise files that are gone while newer ones are there, or that are all
        gone, were removed by a reader of the target, and are not written again.
        """
        ahead = {name for name, foreign in self._foreign.items() if foreign}
        looking = self._sinks_to_check(last, ahead)
        emptied = {n for n in looking - self._announced.keys() - ahead if self._is_same_target(n, last)}
        for name in looking & self._announced.keys():
            self._check_announced(name, last)
        gone: dict[str, list[Record]] = {name: [] for name in looking}
        certain: dict[str, set[int]] = {name: set() for name in looking}
        void: dict[str, list[tuple[int, int]]] = {}  # by `drop_outputs`, of this ledger
        for seen, record in enumerate(self._lineage(last)):
            still = [
                n
                for n in looking
                if seen < CHECKED_RECORDS
                or gone[n]
                or n in ahead
                or record.number > self._announced.get(n, record.number)
            ]
            if not still:
                break
            for name in still:
                void.setdefault(name, []).extend(record.void_ranges.get(name, ()))
                if any(first <= record.number <= end for first, end in void[name]):
                    continue
                is_new = record.number > self._announced.get(name, record.number)
                found = [
                    self._sinks[name].status(delivery) for delivery in self._deliveries_with_rows(record, name, last)
                ]
                if "void" in found or (is_new and "gone" in found):
                    certain[name].add(record.number)
                if "void" in found or "gone" in found:
                    gone[name].append(record)
                if "held" in found and not is_new and name not in ahead:
                    looking.discard(name)
        for name in looking:  # nothing that was registered is there, or another copy has delivered there
            if name in emptied:
                self._check_reach(name, gone[name], last)
            else:
                gone[name] = [record for record in gone[name] if record.number in certain[name]]
        for name in [name for name, records in gone.items() if not records]:
            del gone[name]
        self._log_lost(gone, last)
        return {name: records[::-1] for name, records in gone.items()}

    def _sinks_to_check(self, last: Record, ahead: set[str]) -> set[str]:
        """Return the sinks whose targets may have lost deliveries.

        What a topic has taken since another sink, without a register, delivered to it is not known.
        """
        looking = set(self._sinks) - self._accept | ahead
        return {n for n in looking if self._is_same_target(n, last) or not isinstance(self._sinks[n], FencingSink)}

    def _log_lost(self, gone: dict[str, list[Record]], last: Record) -> None:
        for name, records in gone.items():
            log.warning(
                "%s: sink %r: %s has lost what was delivered of batches %d to %d; it is delivered again",
                last.app,
                name,
                self._sinks[name].target,
                records[-1].number,
                records[0].number,
            )

    def _is_same_target(self, name: str, last: Record) -> bool:
        return last.targets.get(name) == self.fingerprints[name]

    def _lineage(self, last: Record) -> Iterator[Record]:
        """Yield the records that count, newest first: what a rollback set aside is left out."""
        first = max(last.born, self._ledger.floor())
        number = last.number
        while number >= first:
            [record] = self._ledger.between(number - 1, number)
            yield record
            number = number - 1 if record.back is None else record.back

    def _deliveries_with_rows(self, record: Record, name: str, last: Record) -> list[Delivery]:
        if record.number > last.deliveries.get(name, -1):
            return []
        return [parcel.delivery for parcel in _parcels_with_rows(record, name)]

    def _check_reach(self, name: str, gone: list[Record], last: Record) -> None:
        floor = self._ledger.floor()
        if gone and floor > last.born:
            raise self._behind_error(name, last.born, floor - 1, last)

    def _check_announced(self, name: str, last: Record) -> None:
        """Raise `Incompatible` if a target lacks deliveries that the log no longer has."""
        floor, announced = self._ledger.floor(), self._announced[name]
        newest = last.newest_outputs.get(name, -1)
        if announced < newest <= last.deliveries.get(name, -1) and announced + 1 < floor:
            raise self._behind_error(name, announced + 1, floor - 1, last)

    def _check_emptied(self, name: str, entries: Sequence[Registration], last: Record) -> None:
        """Raise `Incompatible` if a target may still hold what it does not remember: it is not delivered twice."""
        sink, newest = self._sinks[name], last.newest_outputs.get(name)
        if entries or newest is None or name in self._accept or not isinstance(sink, FencingSink):
            return
        if not self._is_same_target(name, last) or sink.is_emptied(last.app, last.incarnation, name):
            return
        raise Incompatible(
            f"sink {name!r}: {sink.target} has messages, and its register knows no driver of app {last.app!r}, which "
            f"has delivered batches up to {min(newest, last.deliveries.get(name, newest))}. Perhaps register= or "
            "transactional.id in options= of the sink was changed: put it back as it was. Or the register was deleted, "
            f"or another app of this name has taken it over: put the register back, or go on. {_accept_option(name)}, "
            "delivers what follows; what the last run delivered last may then be there twice."
        )

    def _behind_error(self, name: str, first: int, end: int, last: Record) -> Incompatible:
        return Incompatible(
            f"sink {name!r}: {self._sinks[name].target} does not hold what was delivered to it: the ledger says that "
            f"all outputs of app {last.app!r} up to batch {last.deliveries.get(name)} were, and what the folder, "
            f"topic or table knows ends earlier. The log still has batches from {end + 1} on; those of batches "
            f"{first} to {end} are gone. Put the target back, or go on with it as it is: run(accept=[{name!r}]), or "
            f"--accept {name}."
        )

    def _foreign_among(self, entries: Sequence[Registration]) -> list[Registration]:
        return [entry for entry in entries if not self._contains(entry)]

    def _contains(self, found: Registration) -> bool:
        """Return whether the ledger contains the records that a target names; True for records that were removed."""
        floor = self._ledger.floor()
        for number, attempt in ((found.claim, found.claim_attempt), (found.batch, found.attempt)):
            if number >= floor:
                record = self._ledger.read(number)
                if record is None and number < self._ledger.floor():  # it was removed since the floor was read
                    continue
                if record is None or record.attempt != attempt:
                    return False
        return True

    def _contains_delivery(self, batch: int, attempt: str) -> bool:
        record = self._ledger.read(batch)
        return batch < self._ledger.floor() if record is None else record.delivery_attempt == attempt

    def _check_order(self, name: str, entries: Sequence[Registration]) -> None:
        claim = self._claim
        assert claim is not None
        newer = [entry.claim for entry in entries if entry.claim > claim.number]
        if newer:
            raise Fenced(
                f"app {claim.app!r}: sink {name!r}: a newer driver, whose claim is record {max(newer)}, "
                f"delivers to {self._sinks[name].target} now. This driver has stopped; nothing is lost."
            )

    def _take_over(self, name: str) -> None:
        """Register the claim, and remove the entries of earlier ones."""
        sink, claim = self._sinks[name], self._claim
        assert claim is not None
        self._write(name, sink, claim)
        entries = sink.registrations(claim.app, claim.incarnation, name)
        older = [entry for entry in entries if entry.claim < claim.number and entry not in self._foreign[name]]
        sink.forget([*older, *self._foreign[name]])
        self._foreign[name] = []

    def _fence(self, name: str, sink: FencingSink, partitions: int) -> None:
        """Let the target refuse all older claims."""
        claim = self._claim
        assert claim is not None
        sink.fence(self._entry_of(name, claim), partitions, self._foreign.get(name, ()))
        self._fenced[name] = partitions

    def _write(self, name: str, sink: RegisteredSink, record: Record) -> None:
        entry = self._entry_of(name, record)
        sink.register(entry)
        self._known[name] = entry

    def _entry_of(self, name: str, record: Record) -> Registration:
        claim = self._claim
        assert claim is not None
        return Registration(
            record.app, record.incarnation, name, claim.number, claim.attempt, record.number, record.attempt
        )

    def _ahead_error(self, name: str, foreign: list[Registration], newest: int) -> Incompatible:
        found = max(foreign, key=lambda entry: (entry.batch, entry.claim))
        take_back = ""
        if self._can_take_back(name):
            take_back = (
                f"run(take_back=[{name!r}]), or --take-back {name}, empties the deliveries that this ledger does not "
                "contain, and "
            )
        return Incompatible(
            f"sink {name!r}: {self._sinks[name].target} has taken deliveries up to batch {found.batch} of app "
            f"{found.app!r} from a driver whose claim is record {found.claim}, and the ledger in "
            f"{self._ledger.storage.url}, which ends at record {newest}, does not contain them: an older copy of the "
            "state directory was put back, or another copy of it is running. Stop the other one. Then "
            f"{take_back}{_accept_option(name)}, leaves them there, beside what comes. Nothing was changed."
        )

    def _can_take_back(self, name: str) -> bool:
        return getattr(self._sinks[name], "can_take_back", True)  # an attribute that a sink need not have


def _accept_option(name: str) -> str:
    """Return how a person accepts a target as it is."""
    return f"run(accept=[{name!r}]), or --accept {name}"
