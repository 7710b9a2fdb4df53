"""Changes held as columns, and many keys read at once: the same as one by one."""

from __future__ import annotations

import random
from bisect import bisect_left
from pathlib import Path
from typing import Any

import lmdb
import pytest

from millpond.codec import Codec
from millpond.log.segment import (
    Change,
    SegmentOrigin,
    SingleCellChanges,
    changes_table,
    pack_state,
    unpack_state,
)
from millpond.replica import cell_format as cells
from millpond.replica.lmdb_store import RecordChanges, Replica, have_times
from millpond.replica.lmdb_view import LmdbView
from millpond.rows.rows import Keys
from millpond.steps.state.single import SingleValues

SHORT = [b'"%d"' % n for n in range(300)]
LONG = [b'"%s%d"' % (b"x" * length, length) for length in (200, 236, 237, 238, 239, 240, 250, 400, 900)]


def columns(keys: list[bytes], values: list[bytes | None] | None = None) -> SingleCellChanges:
    keys = sorted(keys)
    return SingleCellChanges(keys, values or [b"%d" % len(key) for key in keys])


# --- changes held as columns ---


@pytest.mark.parametrize("values", [[b"1", None, b"3"], [b"1", b"2", b"3"], [None, None, None]])
def test_they_are_the_sequence_of_the_same_changes(values: list[bytes | None]) -> None:
    held = SingleCellChanges([b'"a"', b'"b"', b'"c"'], values)
    plain = [Change(key, b"", value) for key, value in zip(held.keys, values, strict=True)]
    assert list(held) == plain and [held[i] for i in range(3)] == plain and len(held) == 3
    assert list(held[1:]) == plain[1:] and held[-1] == plain[-1]
    assert {type(change) for change in held} == {Change}
    assert [bisect_left(held, (key, b"")) for key in (b'"a"', b'"b"', b'"bb"', b'"d"')] == [0, 1, 2, 3]
    assert held == plain and plain == held and held != plain[1:]
    assert changes_table(held).equals(changes_table(plain))


@pytest.mark.parametrize(
    ("changes", "is_held_as_columns"),
    [
        ([Change(b"1", b"", b"1"), Change(b"2", b"", None)], True),
        ([Change(b"1", b"", b"1"), Change(b"1", b"v:x", b"2")], False),
        ([Change(b"1", b"", b"1"), Change(b"2", b"", b"2", 5)], False),
        ([Change(b"1", b"", b"1", None, 5), Change(b"2", b"", b"2")], False),
        ([], True),
    ],
    ids=["one cell per key", "named cells", "event times", "times of the clock", "none"],
)
def test_a_segment_is_read_as_columns_if_nothing_is_lost(changes: list[Change], is_held_as_columns: bool) -> None:
    read = unpack_state(bytes(pack_state(changes, SegmentOrigin("app", "s", 0, 1))))
    assert read == changes
    assert isinstance(read, SingleCellChanges) is is_held_as_columns


def test_no_changes_make_an_empty_table_of_the_same_types() -> None:
    assert changes_table(SingleCellChanges([], [])).equals(changes_table([]))


def test_changes_have_times_if_one_of_them_has() -> None:
    assert not have_times(columns(SHORT))
    assert not have_times([Change(b"1", b"", b"1")])
    assert have_times([Change(b"1", b"", b"1"), Change(b"2", b"", b"1", 5)])
    assert have_times([Change(b"2", b"", b"1", None, 5)])


@pytest.mark.parametrize("keys", [SHORT, LONG, SHORT + LONG], ids=["short", "long", "both"])
@pytest.mark.parametrize("is_plain", [False, True], ids=["columns", "list"])
def test_a_replica_applies_them_as_it_applies_a_list(tmp_path: Path, keys: list[bytes], is_plain: bool) -> None:
    def form(changes: SingleCellChanges) -> Any:
        return list(changes) if is_plain else changes

    written = columns(keys)
    dropped = columns(keys, [None if i % 3 == 0 else b"new" for i in range(len(keys))])
    replica = Replica(tmp_path / "store")
    try:
        replica.apply(RecordChanges(0, {"s": form(written)}))
        with replica.view() as view:
            assert {(entry.key, entry.value) for entry in view.entries("s")} == {(c.key, c.value) for c in written}
        replica.apply(RecordChanges(1, {"s": form(dropped)}))
        with replica.view() as view:
            assert view.get_many("s", dropped.keys) == dropped.values
            expected = {key: value for key, value in zip(dropped.keys, dropped.values, strict=True) if value}
            assert {entry.key: entry.value for entry in view.entries("s")} == expected
    finally:
        replica.close()


def test_a_step_whose_cells_had_times_takes_them_too(tmp_path: Path) -> None:
    """As where a TTL was taken away: their entries in the index by time go."""
    replica = Replica(tmp_path / "store")
    try:
        timed = [Change(key, b"", b"1", 5) for key in sorted(SHORT)]
        replica.apply(RecordChanges(0, {"s": timed}))
        replica.apply(RecordChanges(1, {"s": columns(SHORT[:200])}))
        with replica.view() as view:
            assert sorted(entry.key for entry in view.due("s", 9)) == sorted(SHORT[200:])
    finally:
        replica.close()


# --- many keys read at once ---


@pytest.mark.parametrize("is_sorted", [False, True])
def test_many_keys_are_found_in_any_order_and_also_where_most_are_absent(tmp_path: Path, is_sorted: bool) -> None:
    there = [*SHORT[::7], *LONG[::2]]
    replica = Replica(tmp_path / "store")
    try:
        replica.apply(RecordChanges(0, {"s": columns(there)}))
        asked = [*SHORT, *LONG, b"!", b"~", b"~~"]
        random.Random(1).shuffle(asked)
        asked = sorted(asked) if is_sorted else asked
        with replica.view() as view:
            expected = [b"%d" % len(key) if key in there else None for key in asked]
            assert view.get_many("s", asked) == expected
            assert [view.get("s", key) for key in asked] == expected
    finally:
        replica.close()


@pytest.mark.parametrize("read", ["get", "get_many"])
@pytest.mark.parametrize("damaged", [b"1", b"3"], ids=["before", "after"])
def test_an_absent_key_beside_a_damaged_cell_is_not_believed_absent(tmp_path: Path, read: str, damaged: bytes) -> None:
    with lmdb.open(str(tmp_path), max_dbs=2) as store:
        database = store.open_db(b"step:s")
        with store.begin(write=True) as txn:
            for key in (b"1", b"3"):
                at = cells.store_key(key)
                data = cells.pack_cell(at, key, b"", b"value")
                txn.put(at, data[:-1] + b"?" if key == damaged else data, db=database)
            view = LmdbView(txn, {"step:s": database}, 0, {})
            with pytest.raises(cells.Damaged, match=f"checksum of b.{damaged.decode()}"):
                view.get("s", b"2") if read == "get" else view.get_many("s", [b"2"])


@pytest.mark.parametrize("absent", [[b"0"], [b"4"], [b"0", b"4"]], ids=["first", "last", "both"])
def test_a_key_before_the_first_or_after_the_last_cell_has_one_neighbour(tmp_path: Path, absent: list[bytes]) -> None:
    with lmdb.open(str(tmp_path), max_dbs=2) as store:
        database = store.open_db(b"step:s")
        with store.begin(write=True) as txn:
            view = LmdbView(txn, {"step:s": database}, 0, {})
            assert view.get_many("s", absent) == [None] * len(absent)
            txn.put(cells.store_key(b"2"), b"\0\0\0\0\0value", db=database)
            with pytest.raises(cells.Damaged, match="checksum of b'2"):
                view.get_many("s", absent)


# --- one value per key within a batch ---


@pytest.mark.parametrize("loads", [1, 2, 3])
def test_changes_are_sorted_by_key_in_whatever_order_and_number_of_loads_keys_came(tmp_path: Path, loads: int) -> None:
    replica = Replica(tmp_path / "store")
    keys = random.Random(2).sample(SHORT, 30)
    try:
        with replica.view() as view:
            values = SingleValues("s", view, Codec())
            for start in range(loads):
                mine = list(dict.fromkeys([*keys[start::loads], *keys[:2]]))  # two of them come each time
                before = values.load(mine)
                after = [int(key[1:-1]) + start for key in mine]
                if keys[5] in mine:
                    after[mine.index(keys[5])] = before[mine.index(keys[5])]
                values.save(mine, before, after)
            changed = values.changes()
    finally:
        replica.close()
    last = {key: loads - 1 if i < 2 else i % loads for i, key in enumerate(keys) if i != 5}
    assert list(changed) == [Change(key, b"", b"%d" % (int(key[1:-1]) + last[key])) for key in sorted(last)]


# --- keys in order ---


def test_keys_in_order_are_the_same_keys_of_the_same_rows() -> None:
    encoded = [b'"b"', b'"a b"', b'"a"', b"12", b"1", '"ü"'.encode(), b'"z"']
    objects = ["b", "a b", "a", 12, 1, "ü", "z"]
    index = [6, 0, 0, 5, 4, 3, 2, 1, 1]
    for known in (None, objects):
        keys = Keys(encoded, index, known, "name").in_order()
        assert keys.encoded == sorted(encoded)
        assert [keys.of(i) for i in range(len(index))] == [objects[k] for k in index]
        assert keys.field == "name"
    assert Keys([], []).in_order().encoded == []
