"""Rows without a key on their way to another stage: they are spread over the partitions, by their order."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from millpond.codec import encode_key, partition_of
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
