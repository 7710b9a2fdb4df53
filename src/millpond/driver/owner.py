"""Ownership of an app: from the claim, over the records that a driver writes, to the release."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec

from millpond.clock import new_id
from millpond.codec import Codec
from millpond.driver.backlog import find_backlogs, published_at
from millpond.driver.schema_change import Adaptation, check_fits, describe_steps, step_details, wanted_partitions
from millpond.driver.settings import ClaimRules, DeclaredPartitions, DriverSettings
from millpond.driver.targets import Targets
from millpond.driver.void_deliveries import void_deliveries
from millpond.errors import Corrupt, Fenced, Incompatible
from millpond.log.checked import Pointer
from millpond.log.ledger import Ledger, check_writable
from millpond.log.point import LogPoint
from millpond.log.published import after_rewrite
from millpond.log.record import FORMAT, Kind, Record, StepInfo
from millpond.log.requests import Request, remember_request
from millpond.log.rewrite import Rewriter, rewrite_fields
from millpond.messages import Backlog, BatchContext, EventTime
from millpond.parcels import read_parcel
from millpond.pipeline.graph import Program

SENT_RECORDS = 4  # whose segments are sent with a batch, so that replicas need not read the ledger


class ClaimRefused(Fenced):
    """The rules of a run did not allow a claim: another driver owns the app. Nothing was written."""


class Owner:
    """A driver's ownership of its app. `last` is its newest record; a newer one of another driver fences it."""

    last: Record
    _point: LogPoint  # of `last`, with the segments of some records before it
    _details: dict[str, dict[str, Any]]  # what tasks need to know about the stored state of the steps, by `last`
    _void: dict[str, list[tuple[int, int]]]  # deliveries that sinks of other programs have still to make void

    def __init__(self, program: Program, ledger: Ledger, targets: Targets) -> None:
        self.id = new_id()
        self.storage, self.clock = ledger.storage, ledger.clock
        self.ledger, self.targets = ledger, targets
        self._program = program
        self.backlogs: dict[int, Backlog] = {}  # what streams of changes publish with the next batch
        self._publishes = False  # whether the readers of changes have been given the state at `last`
        self._steps: dict[str, StepInfo] = {}  # in the record that this driver wrote last

    @classmethod
    def claim(
        cls,
        program: Program,
        ledger: Ledger,
        settings: DriverSettings,
        default_partitions: int,
        rules: ClaimRules | None = None,
    ) -> Owner:
        """Claim the app, and bring the targets of its sinks in line with the ledger.

        Raises before it has changed anything if the program does not fit the state, if a target has taken deliveries
        that the ledger does not contain, or if `rules` do not allow the claim (`ClaimRefused`).
        """
        storage = ledger.storage
        check_writable(storage, program.app)
        owner = cls(program, ledger, Targets(program, ledger, settings.accept, settings.take_back))
        owner.last = owner._append_claim(settings.partitions, default_partitions, rules)
        if rules is not None:
            rules.claimed(owner)
        with owner.detect_fencing():
            # Registered first: a copy of the ledger from before a rollback then finds its target ahead, not only empty.
            owner.targets.begin(
                owner.last,
                owner.check,
                lambda ranges: void_deliveries(program, ledger, program.app, ranges),
                lambda parcel: read_parcel(storage, Codec(program.types), parcel).objects(),
            )
            void_deliveries(program, ledger, program.app, owner.last.void_ranges)
        owner._point, owner._details = LogPoint.of(owner.last), step_details(program, owner.last)
        owner._void = {s: found for s, found in owner.last.void_ranges.items() if s not in program.sinks}
        return owner

    def _append_claim(
        self, partitions: DeclaredPartitions, default_partitions: int, rules: ClaimRules | None
    ) -> Record:
        while True:
            last = self.ledger.newest()
            if rules is not None and not rules.may_claim(self.storage, self._program.app, last):
                raise ClaimRefused(str(self._fenced_error()))
            if last is None:
                number = partitions if isinstance(partitions, int) else default_partitions
                record = self._first_record(number, partitions)
            else:
                try:
                    check_fits(self._program, last, partitions)
                    self.targets.check(last)
                    deliveries = self._check_deliveries(last)
                except Corrupt:
                    if self.ledger.is_newest(last):
                        raise
                    continue  # the driver that has written the newer record has removed what is missing
                # If the state has to move first, the record that moves it says that the number was followed.
                stays = wanted_partitions(last, partitions) is None
                declared = partitions if stays else last.declared
                record = last.followed_by("claim", **self._signature(), deliveries=deliveries, declared=declared)
            try:
                return self.ledger.append(record, last)
            except Fenced:
                continue  # another claim was first; the newest one owns the app, so ours follows it

    def _signature(self) -> dict[str, Any]:
        return {"driver": self.id, "attempt": new_id(), "time": self.clock.now()}

    def _first_record(self, partitions: int, declared: DeclaredPartitions) -> Record:
        return Record(
            format=FORMAT,
            kind="claim",
            app=self._program.app,
            number=0,
            incarnation=new_id(),
            born=0,
            arrivals=0,
            previous="",
            partitions=partitions,
            declared=declared,
            deliveries=dict.fromkeys(self._program.sinks, 0),
            **self._signature(),
        )

    def _check_deliveries(self, last: Record) -> dict[str, int]:
        """Return up to which record each sink has its outputs.

        A new sink begins here. `Incompatible` if a sink that is gone from the program has undelivered outputs.
        """
        for sink, upto in last.deliveries.items():
            if sink in self._program.sinks:
                continue
            records = self.ledger.between(max(upto, last.born - 1, self.ledger.floor() - 1), last.number)
            open_batches = [record.number for record in records if sink in record.outputs]
            if open_batches:
                raise Incompatible(
                    f"app {self._program.app!r}: sink {sink!r} is gone from the program, and outputs of batches "
                    f"{open_batches[0]} to {open_batches[-1]} were not delivered to it. Put the sink back and "
                    f"run once more, or drop them on purpose with app.drop_outputs({sink!r})."
                )
        return {sink: last.deliveries.get(sink, last.number) for sink in self._program.sinks}

    def open_deliveries(self) -> list[Record]:
        """Return the records whose outputs may not be in every sink yet, oldest first."""
        oldest = min(self.last.deliveries.values(), default=self.last.number)
        oldest = max(
            oldest, self.last.born - 1, self.ledger.floor() - 1
        )  # records below were delivered and may be removed
        return list(self.ledger.between(oldest, self.last.number))

    def find_backlogs(self) -> None:
        """Find out which state the readers of changes lack. Called before the first batch, after all rewrites."""
        if self._program.change_readers or self.last.published:
            self.backlogs = find_backlogs(self._program, self.ledger, self.last)
            self._publishes = True

    def rewrite(self, what: Adaptation, rewriter: Rewriter) -> Record:
        """Move, rename and migrate the state as the program needs it, in one commit."""
        before = self.last
        works = rewriter.plan_jobs(before, before, partitions=what.partitions, names=what.names)
        manifest = rewriter.rewrite(works, before, what.upgrades)
        own = {} if what.partitions is None else {"declared": what.partitions}
        return self.replace_state(what, manifest, dict(before.deliveries), **own)

    def replace_state(self, what: Adaptation, manifest: Pointer, delivered: dict[str, int], **own: Any) -> Record:
        """Write the record that makes the files of a manifest the state; `own` are more fields of it."""
        before = self.last
        steps = {what.names.get(step, step): info for step, info in before.steps.items()}
        for step in self._program.steps.values():
            if step.name in steps:
                info = steps[step.name]
                older = info.oldest if step.state.is_lazy and info.oldest < step.state.version else None
                steps[step.name] = msgspec.structs.replace(info, version=step.state.version, unmarked=older)
        renamed = {name: dict(held) for name, held in (("reached", before.reached), ("due", before.due))}
        for old, new in what.names.items():
            for held in renamed.values():
                if old in held:
                    held[new] = held.pop(old)
        partitions = what.partitions or before.partitions
        published = after_rewrite(self.ledger, before, what.upgrades, what.names)
        fields = rewrite_fields(
            manifest, before, what.why, partitions=partitions, steps=steps, published=published, **renamed
        )
        return self.write("rewrite", delivered, **{**fields, **own})

    def naming(self, request: Request) -> dict[str, Any]:
        """Return the fields by which the next record says that it carries out a request."""
        last = self.last
        return {
            "request": request.id,
            "requests": remember_request(last.requests, request, last.number + 1, self.clock.now()),
        }

    def write(self, kind: Kind, delivered: dict[str, int], **own: Any) -> Record:
        """Write the next record, with what has been delivered by now; `Fenced` if another driver has written it."""
        last = self.last
        if self._publishes and (kind == "commit" or not self.backlogs):
            own["published"] = published_at(self._program, last, last.number + 1)
        record = last.followed_by(
            kind,
            **{
                **self._signature(),
                "deliveries": {sink: delivered[sink] for sink in self._program.sinks},
                # This driver has made deliveries void in its sinks when it started.
                "void": self._void,
                "targets": {**self._targets_of_others(), **self.targets.fingerprints},
                "steps": self._next_steps(),
                **own,
            },
        )
        self.last = self.ledger.append(record, last)
        if kind == "commit":
            self.backlogs = {}
        self._point = self._point.followed_by(self.last, SENT_RECORDS)
        if self.last.steps is not last.steps:
            self._details = step_details(self._program, self.last)
        return self.last

    def _targets_of_others(self) -> dict[str, str]:
        """Return the targets of sinks that are not in this program. A sink without a register has no target."""
        return {sink: target for sink, target in self.last.targets.items() if sink not in self._program.sinks}

    def check_ownership(self) -> None:
        """Raise `Fenced` if another driver has claimed the app. Costs two reads; may be called from any thread."""
        if self.ledger.has_other_driver_after(self.last):
            raise self._fenced_error()

    def announce(self, sink: str, record: Record) -> None:
        """Check the ownership right before a delivery, and register the record with the target."""
        self.check_ownership()
        self.targets.announce(sink, record)

    @contextmanager
    def detect_fencing(self) -> Iterator[None]:
        """Raise `Fenced` instead of `Corrupt` or `Incompatible` if another driver owns the app.

        It may have removed what is missing: files, or the entry of this driver in the register of a target.
        """
        try:
            yield
        except (Corrupt, Incompatible):
            self.check()
            raise

    def check(self) -> None:
        """Raise `Fenced` if there is a newer record than this driver's own."""
        self.ledger.still_has(self.last)
        newest = self.ledger.newest(near=self.last.number)
        if newest is None or newest.checksum != self.last.checksum:
            raise self._fenced_error()

    def _fenced_error(self) -> Fenced:
        return Fenced(
            f"app {self._program.app!r} in {self.storage.url}: another driver owns it now. This one has "
            "stopped; nothing is lost."
        )

    def owns(self) -> bool:
        """Return whether no other driver has claimed the app. May be called from any thread."""
        last = self.last
        try:
            self.ledger.still_has(last)
        except Fenced:
            return False
        newest = self.ledger.newest(near=last.number)
        return newest is not None and newest.driver == self.id

    def context(self, now: float, home: str | None, event_time: EventTime) -> BatchContext:
        """Return the next batch, as its tasks see it."""
        last = self.last
        return BatchContext(
            self._point,
            batch=last.number + 1,
            arrivals=last.arrivals,
            driver=self.id,
            now=now,
            state_url=self.storage.url,
            home=home,
            event_time=replace(event_time, reached=last.reached, details=self._details),
            backlogs=self.backlogs,
        )

    def _next_steps(self) -> dict[str, StepInfo]:
        """Return what the next record says about the steps: the same as the one before, once this driver wrote it."""
        if self.last.steps is not self._steps:
            self._steps = {**self.last.steps, **describe_steps(self._program, self.last)}
        return self._steps
