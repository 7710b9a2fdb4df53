"""Bulk load: a store that is built from the log takes whole tables of cells, which come in order."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millpond.replica.cell_format import KEY_ROOM, pack_short_cells


def append_table(txn: Any, database: Any, table: pa.Table) -> bool:
    """Append a table of state to a database; return False, and change nothing, if that is not possible.

    It is possible if no cell has a time or is deleted, none is too long for a key of the store, and all come after
    those in the database. Nearly all cells of most replicas are of this kind, and this way takes half the time.
    """
    if len(table) == 0:
        return True
    if any(table.column(name).null_count < len(table) for name in ("due", "wall")) or table.column("value").null_count:
        return False
    places = pc.binary_join_element_wise(table.column("key"), table.column("cell"), "\0")
    if pc.max(pc.binary_length(places)).as_py() > KEY_ROOM:
        return False
    ats, values = _bytes(places), _bytes(table.column("value"))
    with txn.cursor(db=database) as cursor:
        if cursor.last() and cursor.key() >= ats[0]:
            return False
        _, added = cursor.putmulti(pack_short_cells(ats, values), append=True)
        if added == len(ats):
            return True
        # They were not in order, and LMDB has left out those that should have come earlier.
        cursor.putmulti(pack_short_cells(ats, values))
    return True


def _bytes(column: pa.ChunkedArray) -> list[bytes]:
    found: list[bytes] = column.cast(pa.binary()).to_pylist()
    return found
