"""Compaction: the segments of a partition are merged into runs, so that the log does not grow without bound.

It writes new files and a manifest that names them, off the critical path, and changes nothing by itself. The next
record that the owner writes names the manifest; from then on the state is the runs of the manifest and the records
after it. A compaction that dies leaves files that no record names; the next driver removes them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from millpond.clock import new_id
from millpond.errors import MillpondError
from millpond.log import merge_runs as merge
from millpond.log.checked import Pointer
from millpond.log.compaction_job import MergeJob
from millpond.log.jobs import JobLost, When
from millpond.log.ledger import Ledger
from millpond.log.manifest import MANIFEST_FORMAT, Manifest, Run, read_manifest, write_manifest
from millpond.log.paths import Attempt, Paths
from millpond.log.reach import readable_manifest
from millpond.log.record import Record
from millpond.log.retention import CarriedFiles, Keep, find_orphans, next_floor, prune, remove_empty_dirs

log = logging.getLogger("millpond")

COMPACT_EVERY = 100  # records
FRESH_BYTES = 64 << 20  # of segments that are not compacted: sooner than after so many records


@dataclass(frozen=True)
class CompactionSettings:
    """When to compact, how much of the past to keep, and whether to do it in a thread."""

    keep: Keep
    every: int = COMPACT_EVERY
    threaded: bool = True


@dataclass
class Compactor:
    """Watches the records of a driver, and compacts the log when there is enough: in a thread, or where it is called.

    `run` merges the partitions of a job, in tasks or in this process. `at` is called at the crash points.
    """

    driver: str
    ledger: Ledger
    run: Callable[[list[MergeJob]], list[dict[str, Run]]]
    settings: CompactionSettings
    at: Callable[[When], None] = lambda when: None
    ready: Pointer | None = None  # the manifest that the next record is to carry
    floor: int = 0  # the floor that the next record is to state
    is_held: bool = False  # start nothing: the state is being moved, and its files must stay
    _held: Manifest | None = None
    _fresh: list[Record] = field(default_factory=list)
    _thread: threading.Thread | None = None
    _pruned: int = 0  # the floor up to which files have been removed

    def __post_init__(self) -> None:
        self._app, self._storage = self.ledger.app, self.ledger.storage
        self._carried = CarriedFiles(self.ledger)

    def begin(self, last: Record) -> None:
        """Read which records are not compacted yet, and remove what the last driver left.

        Called after the claim, and after each rewrite of the state: what was merged before it is of no use then.
        """
        self.ready, self.is_held = None, False
        self.floor = self._pruned = last.floor
        self._held = readable_manifest(self.ledger, last)
        done = last.born - 1 if self._held is None else self._held.upto
        self._fresh = [record for record in self.ledger.between(done, last.number) if record.segments]
        if last.number > last.born:
            self._run_work(lambda: self._clean(last))

    def _clean(self, last: Record) -> None:
        prune(
            self._storage, self.ledger, last, self._carried
        )  # the floor that the last driver stated, if it did not finish
        self._storage.delete(find_orphans(self._storage, self.ledger, last.number + 1, self.driver))
        remove_empty_dirs(self.ledger, last.number + 1)
        self.floor = next_floor(self.ledger, last, self.settings.keep)

    def _prune(self, record: Record) -> None:
        prune(self._storage, self.ledger, record, self._carried)

    def _plan_floor(self, record: Record) -> None:
        remove_empty_dirs(self.ledger, record.number)
        self.floor = next_floor(self.ledger, record, self.settings.keep)

    def note_commit(self, record: Record) -> None:
        """Take note of a record that was written, and start what is due: a merge, or the removal of old files."""
        if record.segments:
            self._fresh.append(record)
        if self.is_held:
            return
        if self.ready is not None and record.manifest == self.ready:
            self._held = read_manifest(self._storage, self.ready)
            self._fresh = [held for held in self._fresh if held.number > self._held.upto]
            self.ready = None
            self._run_work(lambda: self._plan_floor(record))
        elif self.floor > self._pruned and record.floor == self.floor and not self.is_busy:
            self._pruned = self.floor
            self._run_work(lambda: self._prune(record))
        elif self.ready is None and not self.is_busy and self._is_due():
            self._run_work(lambda: self.compact(record))

    @property
    def is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _is_due(self) -> bool:
        fresh = sum(
            file.bytes
            for record in self._fresh
            for parts in record.segments.values()
            for p in parts.values()
            for file in p
        )
        return len(self._fresh) >= self.settings.every or fresh >= FRESH_BYTES

    def _run_work(self, what: Callable[[], None]) -> None:
        def quietly() -> None:
            try:
                what()
            except (MillpondError, JobLost) as error:  # the next compaction tries again; the app is not affected
                log.warning("%s: compaction failed: %s", self._app, error)

        if not self.settings.threaded:
            return quietly()
        self._thread = threading.Thread(target=quietly, name="millpond-compaction", daemon=True)
        self._thread.start()

    def compact(self, until: Record) -> None:
        """Merge the segments up to a record; afterwards `ready` is the manifest for the next record."""
        held = self._held or Manifest(MANIFEST_FORMAT, self._app, until.born - 1, "")
        fresh = [record for record in self._fresh if record.number <= until.number]
        works, kept = self._plan_jobs(held, fresh, until)
        self.at("before")
        done = self.run(works) if works else []
        self.at("during")
        runs = {step: {p: list(found) for p, found in parts.items()} for step, parts in held.runs.items()}
        for work, result in zip(works, done, strict=True):
            for step, run in result.items():
                below = held.runs.get(step, {}).get(work.partition, [])[: kept[step, work.partition]]
                runs.setdefault(step, {})[work.partition] = [*below, *([run] if run else [])]
        path = Paths(self._app).manifest(Attempt(until.number, self.driver, new_id()))
        made = Manifest(MANIFEST_FORMAT, self._app, until.number, until.checksum, runs)
        self.ready = write_manifest(self._storage, path, made)
        self.at("after")

    def _plan_jobs(
        self, held: Manifest, fresh: list[Record], until: Record
    ) -> tuple[list[MergeJob], dict[tuple[str, int], int]]:
        per_partition: dict[int, dict[str, tuple[bool, list[Run], list[Pointer]]]] = {}
        kept: dict[tuple[str, int], int] = {}
        found: dict[tuple[str, int], list[Pointer]] = {}
        for record in fresh:
            for step, parts in record.segments.items():
                for partition, files in parts.items():
                    found.setdefault((step, partition), []).extend(files)
        for (step, partition), files in found.items():
            runs = held.runs.get(step, {}).get(partition, [])
            stay = merge.count_kept_runs(runs, sum(file.bytes for file in files))
            kept[step, partition] = stay
            per_partition.setdefault(partition, {})[step] = (stay == 0, runs[stay:], files)
        attempt = Attempt(until.number, self.driver, "")
        works = [MergeJob(self._app, partition, attempt, steps) for partition, steps in sorted(per_partition.items())]
        return works, kept

    def wait(self) -> None:
        """Wait for the work in the thread, if there is any."""
        if self._thread is not None:
            self._thread.join()
