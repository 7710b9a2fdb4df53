"""Rows into groups: those of each key and window."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from millpond.aggregations.columns import GroupedValues
from millpond.rows.number_columns import Array, Column


class Groups(NamedTuple):
    """Rows by key and window. A row that is in several windows has several places, in the order of the rows."""

    keys: Array  # of each group: which key
    windows: Array  # of each group: the number of its window
    group: Array  # of each place: which group
    row: Array | None  # of each place: which row; None if the places are the rows

    def values_of(self, column: Column | None) -> GroupedValues:
        """Return a column of the rows by group; None stands for the rows themselves."""
        group, size = self.group, len(self.keys)
        if column is None:
            return GroupedValues(group, None, size)
        values, valid = column
        if self.row is not None:
            values = values[self.row]
            valid = None if valid is None else valid[self.row]
        if valid is not None and not valid.all():
            group, values = group[valid], values[valid]
        return GroupedValues(group, values, size)


def group_rows(keys: Array, count: int, numbers: Array, row: Array | None) -> Groups:
    """Group places by key, of which there are `count`, and window number."""
    first = int(numbers.min())
    width = int(numbers.max()) - first + 1
    if count * width < 1 << 62:
        places = keys * width + (numbers - first)
        if count * width <= 8 * len(keys) + 1000:  # few enough for an array with an element for each
            used = np.zeros(count * width, dtype=bool)
            used[places] = True
            found = np.flatnonzero(used)
            room = np.empty(count * width, dtype=np.int64)
            room[found] = np.arange(len(found))
            group = room[places]
        else:
            found, group = np.unique(places, return_inverse=True)
        return Groups(found // width, found % width + first, group, row)
    windows, numbers = np.unique(numbers, return_inverse=True)
    groups = group_rows(keys, count, numbers, row)
    return groups._replace(windows=windows[groups.windows])
