"""Rows without a key on their way to another stage: they are spread over the partitions, by their order."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from millpond.codec import encode_key, partition_of
from millpond.rows.rows import Keys, Rows


def spread(rows: Rows, partitions: int) -> Rows:
    """The rows with a key for the way: what one input row has caused stays together, the rest is dealt out."""
    index = np.asarray(rows.order, dtype=np.int64) % partitions
    return Rows(rows.data, rows.order, form=rows.form, times=rows.times, keys=Keys(_one_of_each(partitions), index))


@lru_cache(maxsize=8)
def _one_of_each(partitions: int) -> list[bytes]:
    """A key that each partition owns."""
    found: dict[int, bytes] = {}
    number = 0
    while len(found) < partitions:
        key = encode_key(number)
        found.setdefault(partition_of(key, partitions), key)
        number += 1
    return [found[partition] for partition in range(partitions)]
