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
    """How many of the runs, oldest first, stay as they are when `fresh` bytes come on top.

    A run is merged with what is above it once that is half as large: so every byte is written a few times
    at most, and all runs above the oldest come to no more than it.
    """
    stay, above = len(runs), fresh
    while stay and run_bytes(runs[stay - 1]) <= 2 * above:
        stay -= 1
        above += run_bytes(runs[stay])
    return stay


def newest_cells(tables: Sequence[pa.Table]) -> pa.Table:
    """One row per cell, the one of the youngest table that has it; tables oldest first, the result sorted.

    Its strings have large offsets: together they may be more than two gigabytes.
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
    """Whether each value equals the one after it."""
    whole = column.combine_chunks()
    if isinstance(whole, pa.ChunkedArray):
        whole = pa.concat_arrays(whole.chunks)
    return pc.equal(whole.slice(0, len(whole) - 1), whole.slice(1))


def find_doubled_key(tables: Sequence[pa.Table]) -> bytes | None:
    """A key with a cell that is in the tables more than once, if there is one."""
    fields = pa.schema([LARGE_STATE.field("key"), LARGE_STATE.field("cell")])
    together = pa.concat_tables([table.select(fields.names).cast(fields) for table in tables])
    if len(together) < 2:
        return None
    together = together.take(pc.sort_indices(together, [("key", "ascending"), ("cell", "ascending")])).combine_chunks()
    same = pc.and_(_repeats(together.column("key")), _repeats(together.column("cell")))
    found = pc.index(same, True).as_py()
    return None if found < 0 else together.column("key")[found].as_py().encode()


def drop_deleted(table: pa.Table) -> pa.Table:
    """Without the cells that are gone."""
    return table.filter(pc.invert(table.column("deleted")))


def rows_between(table: pa.Table, first: str | None, end: str | None) -> pa.Table:
    """The rows whose key lies from `first` to before `end`, by their bytes."""
    keys = table.column("key")
    mask = pa.array(np.ones(len(table), dtype=bool))
    if first is not None:
        mask = pc.and_(mask, pc.greater_equal(keys, first))
    if end is not None:
        mask = pc.and_(mask, pc.less(keys, end))
    return table.filter(mask)


def split_table(table: pa.Table, most: int = LARGEST_PART_ROWS) -> Iterator[pa.Table]:
    """A sorted table in pieces of about so many rows, and of text; the cells of one key stay together."""
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
    """The parts of a run with the keys from which and before which each is the one to look in."""
    firsts: list[str | None] = [None, *(part.first for part in run[1:])]
    return list(zip(run, firsts, [*firsts[1:], None], strict=True))
