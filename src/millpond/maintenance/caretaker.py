"""What is done to an app's state while the app does not run: each action claims the app, and is one commit or none."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import msgspec

from millpond.clock import Clock, new_id
from millpond.errors import Corrupt, Fenced, Incompatible, InvalidUse, MillpondError
from millpond.log import checked, pointer, segment
from millpond.log import manifest as manifests
from millpond.log.compaction import Compactor
from millpond.log.compaction_job import Merge, merged
from millpond.log.heartbeat import check_stopped
from millpond.log.jobs import ProgressCallback
from millpond.log.ledger import Ledger
from millpond.log.manifest import Manifest
from millpond.log.paths import SAVEPOINT, Attempt, Paths, kind_of, safe
from millpond.log.pointer import Pointer
from millpond.log.reach import is_kept, oldest_within_reach, read_beside_retention, within_reach
from millpond.log.record import FORMAT, Kind, Record
from millpond.log.retention import Carried, Keep, carried_files, files_of, next_floor, orphans, prune, swept
from millpond.log.rewrite import Rewriter, When, fields
from millpond.log.segment import Change
from millpond.storage import Storage

log = logging.getLogger("millpond")

T = TypeVar("T")
P = ParamSpec("P")
At = Callable[[When | Literal["claimed", "committed"]], None]


def guarded(action: Callable[Concatenate[Caretaker, P], T]) -> Callable[Concatenate[Caretaker, P], T]:
    """`Fenced` instead of `Corrupt`, if there is a newer record: its driver may have removed what is missing."""

    @wraps(action)
    def call(self: Caretaker, /, *args: P.args, **how: P.kwargs) -> T:
        try:
            return action(self, *args, **how)
        except Corrupt as error:
            if self.last is None or self.ledger.is_newest(self.last):
                raise
            raise Fenced(
                f"app {self.app!r} in {self.storage.url}: another driver has gone on with it meanwhile. Call this "
                "again; nothing is lost."
            ) from error

    return call


@dataclass
class Caretaker:
    """Owns an app that nobody runs, from a claim to a release."""

    storage: Storage
    app: str
    clock: Clock
    at: At = field(default=lambda when: None)
    progress: ProgressCallback = field(default=lambda done, total: None)
    force: bool = False  # go on even if a heartbeat says that the app runs: its driver is fenced

    def __post_init__(self) -> None:
        self.id = new_id()
        self.ledger = Ledger(self.storage, self.app, self.clock)
        self.last: Record | None = None  # the newest record that was read or written

    def newest(self, what: str) -> Record:
        """The newest record of an app that is there and does not run."""
        check_stopped(self.storage, self.app, self.clock, what, force=self.force)
        last = self.ledger.newest()
        if last is None:
            raise InvalidUse(f"{what}: {self.storage.url} holds no app {self.app!r}: check state_dir and the name")
        self.last = last
        return last

    def claim(self, what: str) -> Record:
        return self.write("claim", self.newest(what))

    def write(self, kind: Kind, last: Record, **own: Any) -> Record:
        record = last.followed_by(kind, driver=self.id, attempt=new_id(), time=self.clock.now(), **own)
        self.last = self.ledger.append(record, last)
        return self.last

    @property
    def rewriter(self) -> Rewriter:
        def each(task: Any, works: list[Any]) -> list[Any]:
            return [task(self.storage, work) for work in self._told(works)]

        return Rewriter(self.storage, self.ledger, each, self.id, self.at)

    def _told(self, works: list[T]) -> Iterator[T]:
        """The same works, and what is done of them is told as they are taken."""
        for done, work in enumerate(works):
            self.progress(done, len(works))
            yield work
        self.progress(len(works), len(works))

    # --- actions ---

    @guarded
    def rescale(self, partitions: int, *, dry_run: bool = False) -> str:
        """Move all state to another count of partitions."""
        if type(partitions) is not int or not 1 <= partitions <= 10_000:
            raise InvalidUse(f"rescale: expected a whole number of partitions from 1 to 10000, got {partitions!r}")
        last = self.newest("rescale")
        works = self.rewriter.works(last, last, partitions=partitions)
        text = f"{last.partitions} to {partitions} partitions, {_amount(works)}"
        if dry_run or partitions == last.partitions:
            return text
        last = self.write("claim", last)  # right after the record that was looked at, or `Fenced`
        works = self.rewriter.works(last, last, partitions=partitions)
        manifest = self.rewriter.done(works, last)
        own = fields(manifest, last, f"rescale to {partitions} partitions", partitions=partitions)
        self.write("release", self.write("rewrite", last, **own))
        return text

    @guarded
    def drop(self, step: str, *, dry_run: bool = False) -> str:
        """Forget the state of a step that is no longer in the program."""
        last = self.newest("drop_step")
        if step not in last.steps:
            raise InvalidUse(f"drop_step: app {self.app!r} has no state of {step!r}; it has: {', '.join(last.steps)}")
        works = self.rewriter.works(last, last)
        text = f"step {step}: {_amount(works, step)}"
        if dry_run:
            return text
        last = self.write("claim", last)  # right after the record that was looked at, or `Fenced`
        works = self.rewriter.works(last, last)
        for work in works:
            work.steps.pop(step, None)
        manifest = self.rewriter.done(works, last)
        kept = {
            name: {s: v for s, v in getattr(last, name).items() if s != step} for name in ("steps", "reached", "due")
        }
        self.write("release", self.write("rewrite", last, **fields(manifest, last, f"drop {step}", **kept)))
        return text

    @guarded
    def rollback(self, batch: int, *, dry_run: bool = False) -> str:
        """Go back to an earlier batch: state, positions and event time as they were when it had been committed."""
        last = self.newest("rollback")
        of = self._reachable(batch, last)
        for later in self.ledger.between(of.number, last.number):
            if later.back is not None and later.back < of.number:
                # What its sinks were given has been taken back since: its state would be there, and its outputs not.
                raise InvalidUse(
                    f"rollback: batch {batch} was set aside when the app was rolled back to batch {later.back}. Choose "
                    f"that one or an earlier one, or one after record {later.number}; nothing was changed."
                )
        undelivered = sorted(
            sink for sink, upto in last.deliveries.items() if upto < of.number and self._open(sink, upto, of, last)
        )
        if undelivered:
            raise InvalidUse(
                f"rollback: outputs up to batch {batch} were not delivered to {', '.join(undelivered)} yet. Run the "
                "app once, which delivers them; nothing was changed."
            )
        text = f"from batch {last.number} back to batch {of.number}; the records between are kept aside"
        if dry_run:
            return text
        last = self.write("claim", last)  # `Fenced` if anyone, another rollback perhaps, has come in between
        try:
            of = self._reachable(batch, last)  # a fenced driver of an older version may have raised the floor file
        except InvalidUse:
            self.write("release", last)
            raise
        works = self.rewriter.works(of, last)
        manifest = self.rewriter.done(works, last)
        for file in others_of(of):
            pointer.read(self.storage, file)
        self._check_files([*others_of(of), manifest], "rollback: nothing was rolled back")
        own = fields(
            manifest,
            last,
            f"roll back to batch {of.number}",
            back=of.number,
            partitions=of.partitions,
            positions=of.positions,
            watermarks=of.watermarks,
            reached=of.reached,
            due=of.due,
            steps=of.steps,
            spark=of.spark,
            newest_outputs=of.newest_outputs,
            deliveries=dict.fromkeys(last.deliveries, last.number),
            undo={},
            void={
                sink: [*last.void_ranges.get(sink, []), (of.number + 1, last.number)]
                for sink in [*last.deliveries, *last.void_ranges]
            },
        )
        last = self.write("rewrite", last, **own)
        self.at("committed")
        self._check_files(carried_files(last), f"rollback: committed as record {last.number}")
        self.write("release", last)
        return text

    def changes_of(self, record: Record, step: str) -> list[Change]:
        """What a record changed in a step's state. A rollback changes back what was changed since its target."""
        if record.back is None:
            return [change for files in record.segments.get(step, {}).values() for change in self._read(files)]
        before, newest = self.ledger.read(record.number - 1), self.ledger.newest() or record
        if before is None or not all(within_reach(self.ledger, each.number, newest) for each in (before, record)):
            return []
        since = self.ledger.between(max(record.back, record.born - 1, self.ledger.floor() - 1), before.number)
        keys = {c.key for each in since for files in each.segments.get(step, {}).values() for c in self._read(files)}
        old, new = (self._cells(each, step, keys) for each in (before, record))
        gone = [Change(*place, None) for place in old if place not in new]
        return sorted([*gone, *(change for place, change in new.items() if old.get(place) != change)])

    def _read(self, files: list[Pointer]) -> Iterator[Change]:
        for file in files:
            yield from segment.unpack_state(pointer.read(self.storage, file))

    def _cells(self, record: Record, step: str, keys: set[bytes]) -> dict[tuple[bytes, bytes], Change]:
        """The cells of some keys as they were at a record."""
        found: dict[tuple[bytes, bytes], Change] = {}
        for work in self.rewriter.works(record, record):
            _, runs, fresh = work.steps.get(step, ("", [], []))
            for change in self._read([*(part.file for run in runs for part in run), *fresh]):
                if change.key in keys:
                    if change.value is None:
                        found.pop((change.key, change.cell), None)
                    else:
                        found[change.key, change.cell] = change
        return found

    def _reachable(self, batch: int, last: Record) -> Record:
        record = within_reach(self.ledger, batch, last)
        if record is None:
            raise InvalidUse(
                f"app {self.app!r}: batch {batch} is not within reach: expected one from "
                f"{oldest_within_reach(self.ledger, last)} to {last.number}. App(keep=) says how many are kept; "
                "nothing was changed."
            )
        return record

    def _check_files(self, files: Iterable[Pointer], what: str) -> None:
        """`Corrupt` if one of these files, or one that a manifest among them names, is missing or of another size."""
        sizes = {item.path: item.size for item in self.storage.list(Paths(self.app).root)}
        for file in files:
            named = [file]
            if (kind := kind_of(file.path)) is not None and kind.name == "manifest":
                named += manifests.read(self.storage, file).files()
            for found in named:
                if sizes.get(found.path) != found.bytes:
                    came = f"of {sizes[found.path]} bytes" if found.path in sizes else "missing"
                    raise Corrupt(
                        f"{what}: {self.storage.url}: {found.path} is {came}: expected {found.bytes} bytes. Put the "
                        "file back from a copy of the state directory, or roll back to another batch."
                    )

    def _open(self, sink: str, upto: int, of: Record, last: Record) -> bool:
        """Whether a record holds outputs for a sink that were not delivered. Retention removes no such record."""
        after = max(upto, of.born - 1, self.ledger.floor(last) - 1)
        return any(sink in record.outputs for record in self.ledger.between(after, of.number))

    @guarded
    def compact(self, keep: Keep | None, *, dry_run: bool = False) -> str:
        """Merge all of the log into runs, and remove what nothing needs any more: of attempts that failed, and, if
        it is said how much of the past to keep, of what lies before.
        """
        if dry_run:
            last = self.newest("compact")
            fresh = [
                f for work in self.rewriter.works(last, last) for _, _, files in work.steps.values() for f in files
            ]
            left = len(orphans(self.storage, self.ledger, last.number + 1))
            amount = f"{len(fresh)} segments of {sum(file.bytes for file in fresh)} bytes to merge"
            return f"{amount}, {left} files of failed attempts to remove"
        last = self.claim("compact")
        before = _size(self.storage, self.app)
        compactor = Compactor(
            self.app, self.id, self.storage, self.ledger, self._merged, keep or Keep(), threaded=False, at=self.at
        )
        compactor.begin(last)
        compactor.compact(last)
        assert compactor.ready is not None
        last = self.write("release", last, manifest=compactor.ready)
        stayed = ""
        try:
            floor = last.floor if keep is None else next_floor(self.ledger, last, keep)
            if floor > last.floor:
                last = self.write("release", last, floor=floor)  # stated first, and only then are files removed
            prune(self.storage, self.ledger, last, Carried(self.ledger))
            self.storage.delete(orphans(self.storage, self.ledger, last.number))
            swept(self.storage, self.ledger, last.number)
        except Corrupt as error:  # what is damaged may name any file: the log is merged, and old files stay
            log.warning("%s: compact: files that nothing needs were not removed: %s", self.app, error)
            stayed = "; files that nothing needs were not removed, for some that name others are damaged: see verify"
        return f"{before} bytes before, {_size(self.storage, self.app)} after{stayed}"

    def _merged(self, works: list[Merge]) -> list[dict[str, list[manifests.Part]]]:
        return [merged(self.storage, work) for work in self._told(works)]

    # --- savepoints ---

    def savepoint(self, target: Storage, batch: int | None = None, *, dry_run: bool = False) -> str:
        """Write a copy of the state at a batch that needs nothing else; the app may run on meanwhile."""
        return next(
            read_beside_retention(self.ledger, lambda: [self._savepoint(target, batch, dry_run)], "savepoint"),
        )

    def _savepoint(self, target: Storage, batch: int | None, dry_run: bool) -> str:
        last = self.ledger.newest()
        if last is None:
            raise InvalidUse(f"savepoint: {self.storage.url} holds no app {self.app!r}: check state_dir and the name")
        of = last if batch is None else self._reachable(batch, last)
        if target.get(SAVEPOINT) is not None:
            raise InvalidUse(f"savepoint: {target.url} holds a savepoint already; choose another place")
        works = self.rewriter.works(of, of)
        runs: manifests.Runs = {}
        for work in works:
            for name, (_, found, fresh) in work.steps.items():
                mine = runs.setdefault(name, {}).setdefault(work.partition, [])
                mine += found
                mine += [[manifests.Part(file, "")] for file in fresh]
        manifest = Manifest(manifests.FORMAT, self.app, of.number, of.checksum, runs)
        others = others_of(of)
        text = f"batch {of.number}: {len(manifest.files())} files, {sum(f.bytes for f in manifest.files())} bytes"
        if dry_run:
            return text
        self.at("before")
        copied: list[str] = []
        try:
            for file in self._told([*manifest.files(), *others]):
                target.put(file.path, pointer.read(self.storage, file))
                copied.append(file.path)
        except Corrupt:  # there will be no such savepoint: a second attempt may copy other files
            target.delete(copied)
            raise
        self.at("during")
        saved = Saved(1, msgspec.structs.replace(of, segments={}, outputs={}, manifest=None), manifest)
        checked.write(target, SAVEPOINT, saved)
        self.at("after")
        return text

    def restore(self, source: Storage, *, dry_run: bool = False) -> str:
        """Begin an app that never ran, or was cleared, with the state of a savepoint."""
        last = self.ledger.newest()
        if last is not None:  # a claim alone is no state: it is what a restore that died leaves
            if last.steps or last.positions or last.spark or last.manifest is not None:
                raise InvalidUse(
                    f"restore: {self.storage.url} holds state of app {self.app!r} already. Give the app another name "
                    "or state_dir, or clear it first; nothing was changed."
                )
            last = self.newest("restore")
        saved = saved_in(source)
        was = saved.record
        text = f"batch {was.number} of {was.app}: {len(saved.manifest.files())} files"
        if dry_run:
            return text
        attempt = Attempt(1 if last is None else last.number + 2, self.id, "")
        self.at("before")
        copying = self._told([*saved.manifest.files(), *others_of(was)])

        paths = Paths(self.app)

        def copied(file: Pointer, path: Callable[[Attempt], str]) -> Pointer:
            next(copying)
            data = pointer.read(source, file)
            return pointer.write(self.storage, path(Attempt(attempt.batch, self.id, new_id())), data, file.rows)

        runs = {
            step: {
                p: [
                    [manifests.Part(copied(part.file, partial(paths.state, step, p)), part.first) for part in run]
                    for run in found
                ]
                for p, found in parts.items()
            }
            for step, parts in saved.manifest.runs.items()
        }
        positions = {
            stream: held
            if held.base is None
            else msgspec.structs.replace(held, base=copied(held.base, partial(paths.position, stream)))
            for stream, held in was.positions.items()
        }
        spark = {
            stream: msgspec.structs.replace(
                held,
                files={
                    name: copied(file, partial(paths.spark, stream, file=name)) for name, file in held.files.items()
                },
            )
            for stream, held in was.spark.items()
        }
        for _ in copying:  # all is copied
            pass
        self.at("during")
        last = self.write("claim", last) if last is not None else self._begun(was.partitions)
        self.at("claimed")
        made = Manifest(manifests.FORMAT, self.app, last.number, last.checksum, runs)
        path = Paths(self.app).manifest(Attempt(attempt.batch, self.id, new_id()))
        own = fields(
            manifests.write(self.storage, path, made),
            last,
            f"restore batch {was.number} of {was.app}",
            arrivals=was.arrival,
            partitions=was.partitions,
            positions=positions,
            spark=spark,
            watermarks=was.watermarks,
            reached=was.reached,
            due=was.due,
            steps=was.steps,
        )
        self.write("release", self.write("rewrite", last, **own))
        self.at("after")
        return text

    def _begun(self, partitions: int) -> Record:
        """The first record of an app that has none."""
        first = Record(
            format=FORMAT,
            kind="claim",
            app=self.app,
            number=0,
            incarnation=new_id(),
            born=0,
            arrivals=0,
            driver=self.id,
            attempt=new_id(),
            time=self.clock.now(),
            previous="",
            partitions=partitions,
        )
        return self.ledger.append(first, None)


def others_of(record: Record) -> list[Pointer]:
    """What a record names that is neither state nor output: positions, and Spark's own."""
    based = [held.base for held in record.positions.values() if held.base is not None]
    return [*based, *(file for batch in record.spark.values() for file in batch.files.values())]


class Saved(msgspec.Struct):
    """What a savepoint says of itself, beside its files."""

    format: int
    record: Record
    manifest: Manifest


def saved_in(source: Storage) -> Saved:
    """The savepoint in a place."""
    way_out = "Put the file back from a copy of the savepoint, or take another savepoint. Nothing was changed."
    data = checked.read(source, SAVEPOINT, old=b'{"format":', help=way_out)
    if data is None:
        raise InvalidUse(f"restore: {source.url} holds no savepoint")
    try:
        found = msgspec.json.decode(data).get("format")
        if found == 1:
            return msgspec.json.decode(data, type=Saved)
    except (msgspec.MsgspecError, AttributeError) as error:
        raise Corrupt(f"{source.url}: {SAVEPOINT} is damaged: {error}. {way_out}") from error
    raise Incompatible(f"{source.url}: a savepoint of format {found}, and this Millpond reads format 1: upgrade it")


def _amount(works: list[Any], step: str | None = None) -> str:
    files = [
        f
        for work in works
        for name, (_, runs, fresh) in work.steps.items()
        if step in (None, name)
        for f in [*fresh, *(p.file for r in runs for p in r)]
    ]
    return f"{sum(file.rows for file in files)} rows of state in {sum(file.bytes for file in files)} bytes"


def _size(storage: Storage, app: str) -> int:
    return sum(item.size for item in storage.list(safe(app)))


@dataclass(frozen=True)
class Verdict:
    """What a look at every file of an app has found.

    `kinds` says what was read: how many files of each kind. Rows on their way between two stages of a batch, and
    files that no record names, are not among them.

    >>> import millpond as mp
    >>> app = mp.App("orders", state_dir="memory://")
    >>> app.verify().ok
    True
    """

    records: int
    files: int
    bytes: int
    damaged: list[str]
    orphans: list[str]
    kinds: dict[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether everything that is needed is there and whole.

        >>> import millpond as mp
        >>> mp.App("orders", state_dir="memory://").verify().ok
        True
        """
        return not self.damaged


def verified(storage: Storage, app: str, clock: Clock) -> Verdict:
    """Read every record that is kept and every file that one names, and compare their checksums.

    The app may run meanwhile. If retention removed files that were about to be read, no record names them in a second
    look: what is found twice is damaged.
    """
    found, floor, after = _Verification(storage, app, clock).run()
    if found.ok or floor == after:
        return found
    again, *_ = _Verification(storage, app, clock).run()
    return replace(again, damaged=[text for text in again.damaged if text in found.damaged])


class _Verification:
    """One pass over the files of an app."""

    def __init__(self, storage: Storage, app: str, clock: Clock) -> None:
        self.storage, self.ledger = storage, Ledger(storage, app, clock)
        self.damaged: list[str] = []
        self.kinds: Counter[str] = Counter()
        self.seen: dict[str, Pointer] = {}

    def run(self) -> tuple[Verdict, int, int]:
        """What was found, and the floor before and after."""
        newest = self._tried(self.ledger.newest)
        floor = 0 if newest is None else self._floor(newest)
        if newest is not None:
            self._records(newest, max(newest.born, floor))
        for file in self.seen.values():
            self._count(file.path)
            self._tried(partial(pointer.read, self.storage, file))
        self._heartbeat()
        left: list[str] = []
        if newest is not None:
            with suppress(MillpondError):  # it is among the damaged already
                left = orphans(self.storage, self.ledger, newest.number + 1)
        size = sum(file.bytes for file in self.seen.values())
        kinds = dict(sorted(self.kinds.items()))
        verdict = Verdict(self.kinds["record"], len(self.seen), size, self.damaged, left, kinds)
        newest = self._tried(self.ledger.newest)
        return verdict, floor, floor if newest is None else max(newest.floor, floor)

    def _tried(self, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except MillpondError as error:
            if str(error) not in self.damaged:
                self.damaged.append(str(error))
            return None

    def _count(self, path: str) -> None:
        kind = kind_of(path)
        self.kinds["other" if kind is None else kind.name] += 1

    def _floor(self, newest: Record) -> int:
        path = self.ledger.paths.floor
        if self.storage.get(path) is not None:
            self._count(path)
        floor = self._tried(partial(self.ledger.floor, newest))
        return newest.floor if floor is None else floor

    def _heartbeat(self) -> None:
        path = self.ledger.paths.heartbeat
        if self._tried(partial(checked.read, self.storage, path, old=b'{"driver":')) is not None:
            self._count(path)

    def _records(self, newest: Record, first: int) -> None:
        before: Record | None = None
        for number in range(first, newest.number + 1):
            path = self.ledger.paths.record(number)
            record = self._tried(lambda number=number: next(self.ledger.between(number - 1, number)))  # type: ignore[misc]
            if record is None:
                before = None
                continue
            self._count(path)
            if before is not None and record.previous != before.checksum:
                self.damaged.append(f"{path} does not follow the record before it")
            before = record
            self.seen.update({file.path: file for file in files_of(record) if file != record.manifest})
            if record.manifest is not None and is_kept(self.ledger, record.manifest, first):
                self._manifest(record.manifest)

    def _manifest(self, file: Pointer) -> None:
        if file.path not in self.seen:
            self.seen[file.path] = file
            found = self._tried(partial(manifests.read, self.storage, file))
            if found is not None:
                self.seen.update({part.path: part for part in found.files()})
