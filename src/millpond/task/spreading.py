"""Rows without a key on their way to another stage: they are spread over the partitions, by their order."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa

from millpond.codec import encode_key, partition_of, partitions_of
from millpond.rows.rows import Keys, Rows


def spread_rows(rows: Rows, partitions: int) -> Rows:
    """Return the rows with keys that spread them over the partitions; outputs of one input row stay together."""
    index = np.asarray(rows.order, dtype=np.int64) % partitions
    return Rows(rows.data, rows.order, form=rows.form, times=rows.times, keys=Keys(_one_of_each(partitions), index))


@lru_cache(maxsize=8)
def _one_of_each(partitions: int) -> list[bytes]:
    """Return a key of each partition."""
    found: dict[int, bytes] = {}
    number = 0
    while len(found) < partitions:
        key = encode_key(number)
        found.setdefault(partition_of(key, partitions), key)
        number += 1
    return [found[partition] for partition in range(partitions)]


def rows_for_partitions(rows: Rows, partitions: int) -> dict[int, Rows]:
    """Return the keyed rows of each partition that owns any of their keys, in their order."""
    assert rows.keys is not None
    if partitions == 1:
        return {0: rows} if len(rows.order) else {}
    owner = partitions_of(rows.keys.encoded, partitions)
    if len(owner) == 0:
        return {}
    index, order = rows.keys.array, np.asarray(rows.order, dtype=np.int64)
    per_row = np.asarray(owner)[index]
    found: dict[int, Rows] = {}
    for partition in range(partitions):
        mine = np.flatnonzero(per_row == partition)
        if len(mine) == 0:
            continue
        data = rows.data
        data = data.take(pa.array(mine)) if rows.form == "arrow" else [data[i] for i in mine.tolist()]
        times = None if rows.times is None else rows.times.pick(mine)
        found[partition] = Rows(data, order[mine], form=rows.form, times=times, keys=rows.keys.pick(mine))
    return found
