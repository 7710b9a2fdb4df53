"""The merge of one partition, as a plain function that a task or the calling process runs."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from millpond.clock import new_id
from millpond.log import checked, segment
from millpond.log import merge_runs as merge
from millpond.log.checked import Pointer
from millpond.log.manifest import Part, Run
from millpond.log.paths import Attempt, Paths
from millpond.log.segment import SegmentOrigin
from millpond.storage import Storage


@dataclass(frozen=True)
class MergeJob:
    """What to merge in one partition: per step, the runs, oldest first, and the segments that came after them."""

    app: str
    partition: int
    attempt: Attempt
    steps: dict[str, tuple[bool, list[Run], list[Pointer]]]  # True: the oldest run is among them, and deletions can go


def merge_partition(storage: Storage, work: MergeJob) -> dict[str, Run]:
    """Merge the files of every step into one run. Runs in a task; writes files under new names."""
    return {
        step: list(_merge_step(storage, work, step, lowest, runs, fresh))
        for step, (lowest, runs, fresh) in work.steps.items()
    }


def _merge_step(
    storage: Storage, work: MergeJob, step: str, lowest: bool, runs: list[Run], fresh: list[Pointer]
) -> list[Part]:
    def table(file: Pointer) -> pa.Table:
        return segment.state_table(checked.read_file(storage, file))

    def write_parts(found: pa.Table) -> list[Part]:
        parts = []
        for piece in merge.split_table(merge.drop_deleted(found) if lowest else found):
            origin = SegmentOrigin(work.app, step, work.partition, work.attempt.batch)
            attempt = Attempt(work.attempt.batch, work.attempt.driver, new_id())
            path = Paths(work.app).state(step, work.partition, attempt)
            file = checked.write_file(storage, path, segment.pack_table(piece, origin), len(piece))
            parts.append(Part(file, piece.column("key")[0].as_py()))
        return parts

    above = merge.newest_cells([table(part.file) for run in runs[1:] for part in run] + [table(file) for file in fresh])
    if not runs:
        return write_parts(above)
    parts = []
    for part, first, end in merge.part_bounds(runs[0]):  # a part of the oldest run that nothing touches stays as it is
        over = merge.rows_between(above, first, end)
        parts += [part] if len(over) == 0 else write_parts(merge.newest_cells([table(part.file), over]))
    return parts
