"""A small app under the scheduler: what actors do to it, and what must hold when all of them are over.

The app adds up values by key. Every row has an id of its own and makes one output, so that a lost, doubled or
rolled-back output is visible. The invariants are checked after one more run to the end of the input.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scheduling import Killed, Point, Policy, Schedule, ScheduledStorage, Scheduler, as_text, seeded_ids, watched

import millpond as mp
from millpond.clock import ManualClock
from millpond.driver.commit import Driver
from millpond.driver.settings import DriverSettings
from millpond.errors import Fenced, Incompatible, InvalidUse, MillpondError
from millpond.log.ledger import Ledger
from millpond.log.manifest import read_manifest
from millpond.log.record import Record
from millpond.log.retention import record_files
from millpond.replica.lmdb_store import close_below
from millpond.runtimes.local import LocalRuntime
from millpond.sinks.base import Delivery
from millpond.sources.base import Limit
from millpond.storage import MemoryStorage, Storage

APP = "model"
STEP = "total"

Row = dict[str, Any]
Violations = list[str]


def add(key: str, row: Row, total: int) -> tuple[Row, int]:
    total += row["value"]
    return {"id": row["id"], "key": key, "total": total}, total


def numbered(count: int, first: int = 0) -> list[Row]:
    """Rows with the ids from `first` on, of two keys."""
    return [{"id": i, "key": "ab"[i % 2], "value": i + 1} for i in range(first, first + count)]


def fold(rows: list[Row]) -> tuple[dict[str, int], list[tuple[int, str, int]]]:
    """The state that these rows make, and their outputs."""
    totals: dict[str, int] = {}
    outputs = []
    for row in rows:
        output, totals[row["key"]] = add(row["key"], row, totals.get(row["key"], 0))
        outputs.append((output["id"], output["key"], output["total"]))
    return totals, outputs


_numbers = itertools.count()


def empty_storage() -> MemoryStorage:
    """A place of its own; the name does not come from the seeded ids, which are the same in every run."""
    return MemoryStorage(f"model-{os.getpid()}-{next(_numbers)}")


class KeepsFirst:
    """A sink of a user's that keeps the first delivery of each id, as a table with a unique column does."""

    where = "driver"

    def __init__(self, held: dict[str, list[Row]], scheduler: Scheduler) -> None:
        self._held, self._scheduler = held, scheduler

    def deliver(self, rows: list[Row], delivery: Delivery) -> None:
        self._scheduler.point(f"insert {delivery.id}")
        self._held.setdefault(delivery.id, list(rows))


@dataclass
class Options:
    """How the app of a scenario is set up."""

    rows: int = 6
    limit: int = 1  # rows of a batch
    partitions: int | None = 1
    keep: int = 1000
    compact_every: int = 100
    format: str = "jsonl"
    spilled_positions: bool = False  # positions always go to a file of their own
    time_travel: bool = False  # check the state at every record that is kept, too
    probe_rollback: bool = False  # after all checks, roll back as far as possible and check once more
    reconciled: dict[str, list[str]] = field(default_factory=dict)  # how a driver deals with sinks that are ahead
    shared_home: str | None = None  # where all actors keep their replicas, instead of each in a place of its own
    most: int | None = None  # schedules with one turn in the short form; all, if nothing is said
    readers: tuple[str, ...] = ()  # actors that share replicas: a pause before any of their reads matters, too
    rolls_back: bool = False  # some actor may roll back, so a sink that cannot go back may hold outputs twice


@dataclass
class World:
    """Everything that one run shares."""

    folder: Path
    options: Options
    scheduler: Scheduler
    storage: Storage = field(default_factory=empty_storage)
    clock: ManualClock = field(default_factory=ManualClock)

    def __post_init__(self) -> None:
        self.rows = numbered(self.options.rows)
        self.abandoned: set[int] = set()  # ids of rows that only a history read which was replaced by a copy
        self.kept_first: dict[str, list[Row]] = {}
        self.violations: Violations = []
        self.out = self.folder / "out"
        self.twin: World | None = None
        self._begin: Callable[[], None] = lambda: None

    # --- what actors work with ---

    def app(self, home: str, storage: Storage | None = None) -> mp.App:
        options = self.options
        app = mp.App(
            APP,
            self.storage.url,
            options.partitions,
            local_dir=str(self.folder / "local" / (options.shared_home or home)),
            keep=options.keep,
            compact_every=options.compact_every,
        )
        app._storage = storage or ScheduledStorage(self.storage, self.scheduler)
        app._clock = self.clock
        totals = app.stream("rows", mp.sources.rows(self.rows)).key_by("key").stateful_map(STEP, add, initial=0)
        totals.to("out", mp.sinks.files(self.out, format=options.format))  # type: ignore[arg-type]
        totals.to("ids", KeepsFirst(self.kept_first, self.scheduler))  # type: ignore[arg-type]
        return app

    def driver(self, home: str, storage: Storage | None = None, **how: Any) -> Driver:
        app = self.app(home, storage)
        return Driver.start(
            mp.lowlevel.program(app),
            LocalRuntime(mp.lowlevel.storage(app), self.clock),
            mp.lowlevel.storage(app),
            self.clock,
            DriverSettings(
                partitions=app.partitions,
                home=app.local_dir,
                threaded=False,
                keep=app.keep,
                compact_every=app.compact_every,
                **how,
            ),
        )

    def ledger(self, storage: Storage | None = None) -> Ledger:
        """The ledger, to look at without a scheduling point."""
        return Ledger(storage or self.storage, APP, self.clock)

    def records(self) -> list[Record]:
        """Every record that is kept, oldest first."""
        ledger = self.ledger()
        newest = ledger.newest()
        if newest is None:
            return []
        numbers = range(max(ledger.floor(), newest.born), newest.number + 1)
        return [record for record in map(ledger.read, numbers) if record is not None]

    # --- actors ---

    def drives(self, name: str, batches: int | None = None, **how: Any) -> Callable[[], None]:
        """A driver that runs so many batches, or to the end of the input, and stops in good order."""

        def work() -> None:
            self._begin()
            driver = self.driver(name, **how)
            try:
                done = 0
                while (batches is None or done < batches) and driver.batch(Limit(self.options.limit, 1 << 30)):
                    done += 1
                driver.release()
            finally:
                driver.close()

        return work

    def rolls_back(self, commit: int | None = 0) -> Callable[[], None]:
        """A rollback to one of the commits that are there, kept or about to go: 0 is the oldest, -1 the newest, and
        None stands for the first record, before all commits.
        """

        def work() -> None:
            ledger = self.ledger()
            numbers = [ledger.paths.number(item.path) for item in self.storage.list(ledger.paths.ledger)]
            records = [ledger.read(number) for number in numbers if number is not None]
            if commit is None:
                if records and records[0] is not None:
                    self.app("admin").rollback(records[0].number)
                return
            commits = [record.number for record in records if record is not None and record.kind == "commit"]
            if len(commits) > (commit if commit >= 0 else -commit - 1):
                self.app("admin").rollback(commits[commit])

        return work

    def rescales(self, partitions: int) -> Callable[[], None]:
        return lambda: self._admin(lambda app: app.rescale(partitions))

    def compacts(self, keep: int | None = None) -> Callable[[], None]:
        return lambda: self._admin(lambda app: app.compact(keep))

    def _admin(self, action: Callable[[mp.App], object]) -> None:
        if self.ledger().newest() is not None:
            action(self.app("admin"))

    def saves(self) -> Callable[[], None]:
        """A savepoint, restored at once into an app of its own: it holds the state of some prefix of the input."""

        def work() -> None:
            if self.ledger().newest() is None:
                return
            saved = empty_storage().url
            self.app("admin").savepoint(saved)
            with self.scheduler.uninterrupted():
                copy = mp.App("restored", empty_storage().url, 2, local_dir=str(self.folder / "local" / "restored"))
                copy.restore(saved)
                held = dict(copy.state(STEP).items()) if STEP in self._steps(copy) else {}
            self._is_prefix(held, "a restored savepoint")

        return work

    def _steps(self, app: mp.App) -> set[str]:
        newest = Ledger(mp.lowlevel.storage(app), app.name, self.clock).newest()
        return set() if newest is None else set(newest.steps)

    def reads(self, times: int = 1) -> Callable[[], None]:
        """A reader of the state, which must always see the state of some prefix of the input."""

        def work() -> None:
            self._begin()
            for _ in range(times):
                if any(STEP in record.steps for record in self.records()[-1:]):
                    self._is_prefix(dict(self.app("reader").state(STEP).items()), "a reader")

        return work

    def _is_prefix(self, held: dict[str, int], who: str) -> None:
        if all(held != fold(self.rows[:count])[0] for count in range(len(self.rows) + 1)):
            self.violations.append(f"{who} saw {held}, which is the state of no prefix of the input")

    def copies(self, into: list[MemoryStorage]) -> Callable[[], None]:
        """Copy the state directory as the documentation says: the ledger first, the rest after it."""

        def work() -> None:
            copy = empty_storage()
            source = ScheduledStorage(self.storage, self.scheduler)
            for prefix in (f"{APP}/ledger", APP):
                for item in list(source.list(prefix)):
                    if copy.get(item.path) is None and (data := source.get(item.path)) is not None:
                        copy.put(item.path, data)
            into.append(copy)

        return work

    def becomes_twin(self, copies: list[MemoryStorage]) -> World:
        """An app of the same name on the copy, with rows and sinks of its own, whose replicas share our folder."""
        twin = self.twin = World(self.folder, self.options, self.scheduler)
        twin.out = self.folder / "twin"

        def begin() -> None:
            twin._begin = lambda: None  # whoever of its actors comes first
            if copies:
                for item in copies[0].list(""):
                    twin.storage.put(item.path, copies[0].get(item.path) or b"")
                twin._go_on_with_other_rows()

        twin._begin = begin
        return twin

    def puts_back(self, copies: list[MemoryStorage], drivers: list[str]) -> Callable[[], None]:
        """Stop the drivers that run, put the copy back, and let other rows follow those that it had read."""

        def work() -> None:
            if not copies or not any(copies[0].list(f"{APP}/ledger")):
                return
            for name in drivers:
                self.scheduler.kill(name)
            for item in [*self.storage.list("")]:
                self.storage.delete([item.path])
            for item in copies[0].list(""):
                self.storage.put(item.path, copies[0].get(item.path) or b"")
            self._go_on_with_other_rows()

        return work

    def _go_on_with_other_rows(self) -> None:
        newest = self.ledger().newest()
        read = 0 if newest is None else self._read_by(newest)
        self.abandoned |= {row["id"] for row in self.rows[read:]}
        self.rows = self.rows[:read] + numbered(len(self.rows) - read, first=100)

    # --- what must hold ---

    def finish(self) -> Violations:
        """Run to the end once more, undisturbed, and say what does not hold."""
        found = [*self.violations, *self._unexpected()]
        try:
            home = self.options.shared_home or "final"
            self._to_the_end(home)
            found += self.check(home)
            if self.twin is not None and any(self.twin.storage.list("")):
                found += [f"the copy: {each}" for each in self.twin._look(self.options.shared_home or "final")]
            if self.options.probe_rollback:
                found += self._after_a_rollback()
        except Exception as error:
            found.append(f"the run to the end: {type(error).__name__}: {error}")
        return found

    def _unexpected(self) -> Violations:
        allowed = (Fenced, InvalidUse, *([Incompatible] if self.options.reconciled else []))
        return [
            f"{name} ended with {type(error).__name__}: {error}"
            for name, error in self.scheduler.errors.items()
            if not isinstance(error, allowed)
        ]

    def _to_the_end(self, home: str) -> None:
        driver = self.driver(home, self.storage, **self.options.reconciled)
        try:
            while driver.batch(Limit(self.options.limit, 1 << 30)):
                pass
            driver.release()
        finally:
            driver.close()

    def _look(self, home: str) -> Violations:
        """What a reader of the state sees, without another run."""
        newest = self.ledger().newest()
        if newest is None or STEP not in newest.steps:
            return []
        totals = fold(self.rows[: self._read_by(newest)])[0]
        held = dict(self.app(home, self.storage).state(STEP).items())
        return [] if held == totals else [f"state: expected {totals}, found {held}"]

    def check(self, home: str) -> Violations:
        totals, outputs = fold(self.rows)
        found: Violations = []
        held = dict(self.app("fresh", self.storage).state(STEP).items())
        if held != totals:
            found.append(f"state: expected {totals}, found {held}")
        held = dict(self.app(home, self.storage).state(STEP).items())
        if held != totals:
            found.append(f"state in the local replica of {home}: expected {totals}, found {held}")
        out = self._files()
        found += self._compared("out", out, outputs, again=False)
        if "take_back" in self.options.reconciled and any(row["id"] in self.abandoned for row in out):
            found.append("sink out: outputs that were to be taken back are there")
        kept = [row for rows in self.kept_first.values() for row in rows]
        found += self._compared("ids", kept, outputs, again=self.options.rolls_back)
        verdict = self.app(home, self.storage).verify()
        if not verdict.ok:
            found.append(f"verify: {verdict.damaged}")
        found += self._missing_files()
        if self.options.time_travel:
            found += self._at_every_record()
        return found

    def _compared(self, sink: str, rows: list[Row], outputs: list[tuple[int, str, int]], *, again: bool) -> Violations:
        held = Counter((row["id"], row["key"], row["total"]) for row in rows if row["id"] not in self.abandoned)
        old = Counter(row["id"] for row in rows if row["id"] in self.abandoned)
        lost = [output for output in outputs if output not in held]
        extra = [output for output in held if output not in set(outputs)]
        doubled = [output for output, count in held.items() if count > 1 and not again]
        doubled_before = [id for id, count in old.items() if count > 1 and not again]
        found = [f"sink {sink}: lost {lost}"] if lost else []
        found += [f"sink {sink}: outputs that no row of the input makes: {extra}"] if extra else []
        found += [f"sink {sink}: more than once: {doubled}"] if doubled else []
        return found + ([f"sink {sink}: more than once, before: {doubled_before}"] if doubled_before else [])

    def _files(self) -> list[Row]:
        """What a reader of the folder sees."""
        if not self.out.is_dir():
            return []
        names = sorted(name for name in os.listdir(self.out) if not name.startswith((".", "_")))
        if self.options.format == "jsonl":
            return [json.loads(line) for name in names for line in (self.out / name).read_text().splitlines()]
        import pyarrow.parquet as pq

        return [row for name in names for row in pq.read_table(self.out / name).to_pylist()]

    def _missing_files(self) -> Violations:
        """Every file that a kept record names is there, and so is what a manifest within reach names."""
        found = []
        for record in self.records():
            for file in record_files(record):
                if file == record.manifest:
                    continue
                if self.storage.get(file.path) is None:
                    found.append(f"record {record.number} ({record.kind}) names {file.path}, which is missing")
        newest = self.records()[-1]
        if newest.manifest is not None:
            try:
                for file in read_manifest(self.storage, newest.manifest).files():
                    if self.storage.get(file.path) is None:
                        found.append(f"the newest manifest names {file.path}, which is missing")
            except MillpondError as error:
                found.append(str(error))
        return found

    def _at_every_record(self) -> Violations:
        """The state at an earlier record is what its rows made, or the record is said to be out of reach."""
        found = []
        view = self.app("fresh", self.storage).state(STEP)
        for record in self.records():
            if STEP not in record.steps:
                continue
            expected = fold(self.rows[: self._read_by(record)])[0]
            try:
                held = dict(view.at(record.number).items())
            except InvalidUse:
                continue
            except MillpondError as error:
                found.append(f"state at record {record.number}: {type(error).__name__}: {error}")
                continue
            if held != expected:
                found.append(f"state at record {record.number}: expected {expected}, found {held}")
        return found

    def _read_by(self, record: Record) -> int:
        held = record.positions.get("rows")
        if held is None:
            return 0
        if held.base is not None and "0" not in held.entries:
            return int(json.loads(self.storage.get(held.base.path) or b"{}")["0"])
        return int(held.entries["0"])

    def _after_a_rollback(self) -> Violations:
        """Roll back as far as the app lets us, run to the end, and check all of it once more."""
        app = self.app("final", self.storage)
        for record in self.records():
            if record.kind != "commit":
                continue
            try:
                app.rollback(record.number)
            except InvalidUse:
                continue
            try:
                self._to_the_end("final")
                again = self.check("final")
            except Exception as error:
                again = [f"{type(error).__name__}: {error}"]
            return [f"after a rollback to {record.number}: {each}" for each in again if not each.startswith("sink ids")]
        return []


@dataclass(frozen=True)
class Scenario:
    """A set-up, and the actors that meet in it, in the order in which they run if nothing is decided otherwise."""

    name: str
    actors: Callable[[World], dict[str, Callable[[], object]]]
    options: Options = field(default_factory=Options)


@dataclass
class Outcome:
    """What came of one run."""

    scenario: str
    schedule: Schedule
    points: list[Point]
    ends: dict[str, str]
    violations: Violations

    def __str__(self) -> str:
        where = ", ".join(
            f"{point.actor} before {point.call!r}"
            for turn in self.schedule
            for point in self.points
            if point.step == turn.step
        )
        lines = [f"MILLPOND_MODEL_REPLAY='{self.scenario} {as_text(self.schedule)}'", f"  turns: {where or 'none'}"]
        lines += [f"  actors: {self.ends}", *(f"  {violation}" for violation in self.violations)]
        return "\n".join(lines)


def play(scenario: Scenario, policy: Policy, folder: Path) -> Outcome:
    """Run a scenario once; everything it left is removed."""
    scheduler = Scheduler(policy)
    folder.mkdir(parents=True)
    world = World(folder, scenario.options, scheduler)
    try:
        with ExitStack() as stack:
            stack.enter_context(seeded_ids(scheduler))
            if scenario.options.spilled_positions:
                from unittest import mock

                stack.enter_context(mock.patch("millpond.driver.results.LARGEST_INLINE_POSITION", 0))
            stack.enter_context(watched(str(world.out), scheduler))
            scheduler.run(scenario.actors(world))
            violations = world.finish()
    finally:
        close_below(str(folder))
        shutil.rmtree(folder, ignore_errors=True)
        _forget(world.storage)
    return Outcome(scenario.name, scheduler.schedule, scheduler.points, scheduler.ends, violations)


def _forget(storage: Storage) -> None:
    storage.delete([item.path for item in storage.list("")])


__all__ = ["Killed", "Options", "Outcome", "Scenario", "World", "fold", "numbered", "play"]
