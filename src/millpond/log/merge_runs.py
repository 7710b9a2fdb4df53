"""Merging runs of state segments into one, as pure functions over Arrow tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.log.manifest import Part, Run, run_bytes
from millpond.log.segment import LARGE_STATE, text_bytes

LARGEST_PART_ROWS = 1_000_000  # in one file of a run: what a merge holds in memory is a few of these
LARGEST_PART_BYTES = 512 << 20  # of text


def count_kept_runs(runs: Sequence[Run], fresh: int) -> int:
    """Return how many runs, from the oldest on, are left as they are when `fresh` bytes are added.

    A run is merged with the newer ones once they are half as large. So every byte is written a few times at most, and
    all runs above the oldest together are no larger than it.
    """
    stay, above = len(runs), fresh
    while stay and run_bytes(runs[stay - 1]) <= 2 * above:
        stay -= 1
        above += run_bytes(runs[stay])
    return stay


def newest_cells(tables: Sequence[pa.Table]) -> pa.Table:
    """Return one row per cell, sorted: that of the newest table that has the cell. `tables` are oldest first.

    The strings of the result have large offsets: together they may exceed two gigabytes.
    """
    age = np.concatenate([np.full(len(table), i, dtype=np.int32) for i, table in enumerate(tables)])
    wide = [table.select(LARGE_STATE.names).cast(LARGE_STATE) for table in tables]
    together = pa.concat_tables(wide).append_column("age", pa.array(age))
    if len(together) == 0:
        return LARGE_STATE.empty_table()
    order = pc.sort_indices(together, [("key", "ascending"), ("cell", "ascending"), ("age", "ascending")])
    together = together.take(order).combine_chunks()
    last = np.ones(len(together), dtype=bool)
    if len(together) > 1:
        same = pc.and_(_repeats(together.column("key")), _repeats(together.column("cell")))
        last[:-1] = ~np.asarray(same.to_numpy(zero_copy_only=False), dtype=bool)
    return together.filter(pa.array(last)).select(LARGE_STATE.names)


def _repeats(column: pa.ChunkedArray) -> Any:
    """Return for each value but the last whether it equals the next one."""
    whole = column.combine_chunks()
    if isinstance(whole, pa.ChunkedArray):
        whole = pa.concat_arrays(whole.chunks)
    return pc.equal(whole.slice(0, len(whole) - 1), whole.slice(1))


def find_doubled_key(tables: Sequence[pa.Table]) -> bytes | None:
    """Return a key with a cell that is in the tables more than once; None if there is none."""
    fields = pa.schema([LARGE_STATE.field("key"), LARGE_STATE.field("cell")])
    together = pa.concat_tables([table.select(fields.names).cast(fields) for table in tables])
    if len(together) < 2:
        return None
    together = together.take(pc.sort_indices(together, [("key", "ascending"), ("cell", "ascending")])).combine_chunks()
    same = pc.and_(_repeats(together.column("key")), _repeats(together.column("cell")))
    found = pc.index(same, True).as_py()
    return None if found < 0 else together.column("key")[found].as_py().encode()


def drop_deleted(table: pa.Table) -> pa.Table:
    """Return the table without its deletions."""
    return table.filter(pc.invert(table.column("deleted")))


def rows_between(table: pa.Table, first: str | None, end: str | None) -> pa.Table:
    """Return the rows whose key is at or after `first` and before `end`, compared by bytes."""
    keys = table.column("key")
    mask = pa.array(np.ones(len(table), dtype=bool))
    if first is not None:
        mask = pc.and_(mask, pc.greater_equal(keys, first))
    if end is not None:
        mask = pc.and_(mask, pc.less(keys, end))
    return table.filter(mask)


def split_table(table: pa.Table, most: int = LARGEST_PART_ROWS) -> Iterator[pa.Table]:
    """Yield a sorted table in pieces of limited rows and text; the cells of one key stay together."""
    start = 0
    keys, sizes = table.column("key"), np.cumsum(text_bytes(table))
    while start < len(table):
        before = int(sizes[start - 1]) if start else 0
        enough = int(np.searchsorted(sizes, before + LARGEST_PART_BYTES, side="right"))
        end = min(start + most, max(start + 1, enough), len(table))
        while end < len(table) and keys[end].as_py() == keys[end - 1].as_py():
            end += 1
        yield table.slice(start, end - start)
        start = end


def part_bounds(run: Run) -> list[tuple[Part, str | None, str | None]]:
    """Return the parts of a run, each with its first key and the first key of the next; None is no bound."""
    firsts: list[str | None] = [None, *(part.first for part in run[1:])]
    return list(zip(run, firsts, [*firsts[1:], None], strict=True))
