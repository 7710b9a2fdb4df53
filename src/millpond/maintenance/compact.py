"""Compact the whole log of an app at once, and remove the files that no record names."""

from __future__ import annotations

import logging

from millpond.errors import Corrupt
from millpond.log.compaction import CompactionSettings, Compactor
from millpond.log.compaction_job import MergeJob, merge_partition
from millpond.log.manifest import Run
from millpond.log.paths import Paths
from millpond.log.retention import CarriedFiles, Keep, find_orphans, next_floor, prune, remove_empty_dirs
from millpond.maintenance.stopped_app import StoppedApp, detect_fencing

log = logging.getLogger("millpond")


@detect_fencing
def compact_log(app: StoppedApp, keep: Keep | None, *, dry_run: bool = False) -> str:
    """Merge the whole log into runs, and remove the files of attempts that failed.

    If `keep` is given, records before the past that it keeps are removed, too, with the files that only they name.
    """
    if dry_run:
        last = app.newest("compact")
        jobs = app.rewriter.plan_jobs(last, last)
        fresh = [file for job in jobs for _, _, files in job.steps.values() for file in files]
        left = len(find_orphans(app.storage, app.ledger, last.number + 1))
        amount = f"{len(fresh)} segments of {sum(file.bytes for file in fresh)} bytes to merge"
        return f"{amount}, {left} files of failed attempts to remove"
    last = app.claim("compact")
    before = _stored_bytes(app)

    def merge_here(jobs: list[MergeJob]) -> list[dict[str, Run]]:
        return [merge_partition(app.storage, job) for job in app.with_progress(jobs)]

    settings = CompactionSettings(keep or Keep(), threaded=False)
    compactor = Compactor(app.id, app.ledger, merge_here, settings, app.at)
    compactor.begin(last)
    compactor.compact(last)
    assert compactor.ready is not None
    last = app.write("release", last, manifest=compactor.ready)
    stayed = ""
    try:
        floor = last.floor if keep is None else next_floor(app.ledger, last, keep)
        if floor > last.floor:
            last = app.write("release", last, floor=floor)  # stated first, and only then are files removed
        prune(app.storage, app.ledger, last, CarriedFiles(app.ledger))
        app.storage.delete(find_orphans(app.storage, app.ledger, last.number))
        remove_empty_dirs(app.ledger, last.number)
    except Corrupt as error:  # what is damaged may name any file: the log is merged, and old files stay
        log.warning("%s: compact: files that nothing needs were not removed: %s", app.name, error)
        stayed = "; files that nothing needs were not removed, for some that name others are damaged: see verify"
    return f"{before} bytes before, {_stored_bytes(app)} after{stayed}"


def _stored_bytes(app: StoppedApp) -> int:
    return sum(item.size for item in app.storage.list(Paths(app.name).root))
