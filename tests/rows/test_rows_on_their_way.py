"""Rows between tasks: what was packed for a partition comes out as it was, and texts that are keys travel once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_drivers import driver_of, run_to_end

import millpond as mp
from millpond.codec import Codec, encode_keys
from millpond.rows.rows import Keys, Rows, Times
from millpond.rows.wire import drop_key_column, pack_for_partitions, pack_rows, unpack_in_order, unpack_rows
from millpond.steps.verbs.key_by import KeyBy, assign_keys
from millpond.storage import MemoryStorage
from millpond.task.decode import rows_of_chunk

KEYS = ["b", "a", 'with "quotes"', "naïve ☂", "", "b", "\n", "a", "$dict"]


def table(**more: list[Any]) -> pa.Table:
    return pa.table({"n": range(len(KEYS)), "key": KEYS, **more, "x": [i / 2 for i in range(len(KEYS))]})


def on_their_way(data: pa.Table, by: str = "key", first: int = 0) -> list[bytes]:
    rows = assign_keys(KeyBy((by,), (by,)), rows_of_chunk(data, first), failed)
    return list(pack_for_partitions(rows, Codec(), partitions=1).values())


def failed(i: int, row: Any, error: BaseException, again: Callable[[], None] | None = None) -> None:
    raise AssertionError("no row fails here") from error


def arrived(blobs: list[bytes]) -> list[dict[str, Any]]:
    return [row for rows in unpack_in_order(blobs, Codec()) for row in rows.objects()]


def test_rows_arrive_as_they_left_their_columns_in_order() -> None:
    found = arrived(on_their_way(table()))
    assert found == table().to_pylist()
    assert [list(row) for row in found] == [["n", "key", "x"]] * len(KEYS)


def test_the_column_of_the_keys_is_left_out_on_the_way() -> None:
    names = [f"a rather long name of a customer, number {i}" for i in range(100)]
    data = pa.table({"name": [names[i % 100] for i in range(10_000)], "n": range(10_000)})
    whole = data.nbytes
    (blob,) = on_their_way(data, "name")
    assert len(blob) < whole / 2
    assert unpack_rows(blob, Codec()).data.equals(data)


def test_a_table_that_arrives_has_the_column_again_for_whoever_takes_columns() -> None:
    (blob,) = on_their_way(table())
    rows = unpack_rows(blob, Codec())
    assert rows.data.equals(table())
    assert [rows.keys.of(i) for i in range(len(rows))] == KEYS


def test_blobs_that_are_joined_share_their_keys() -> None:
    blobs = on_their_way(table()) + on_their_way(table().slice(3), first=100)
    (rows,) = unpack_in_order(blobs, Codec())
    assert rows.objects() == table().to_pylist() + table().slice(3).to_pylist()
    assert rows.data.to_pylist() == rows.objects()


def test_blobs_with_and_without_the_column_are_not_mixed_up() -> None:
    other = table().rename_columns(["n", "name", "x"])
    blobs = on_their_way(table()) + on_their_way(other, "name", first=100)
    assert arrived(blobs) == table().to_pylist() + other.to_pylist()


def test_blobs_that_arrive_out_of_order_are_put_in_order() -> None:
    blobs = on_their_way(table(), first=100) + on_their_way(table())
    assert arrived(blobs) == table().to_pylist() * 2


@pytest.mark.parametrize(
    "data",
    [
        pa.table({"key": KEYS}),  # one column must stay, to count by
        pa.table({"key": pa.array(KEYS, pa.large_string()), "n": range(len(KEYS))}),
        pa.table({"key": pa.array(KEYS).dictionary_encode(), "n": range(len(KEYS))}),
        pa.table({"key": [i % 3 for i in range(9)], "n": range(9)}),
    ],
    ids=["alone", "large", "dictionary", "numbers"],
)
def test_columns_of_other_kinds_travel_as_they_are(data: pa.Table) -> None:
    rows, left_out = drop_key_column(assign_keys(KeyBy(("key",), ("key",)), rows_of_chunk(data, 0), failed))
    assert left_out is None and rows.data is data
    assert arrived(on_their_way(data)) == data.to_pylist()


def test_some_of_the_rows_have_the_keys_of_those_rows() -> None:
    rows = unpack_rows(on_their_way(table())[0], Codec())
    assert rows.pick([8, 2, 2]).objects() == [table().to_pylist()[i] for i in (8, 2, 2)]
    assert [row for part in rows.parts(2) for row in part.objects()] == table().to_pylist()


def test_rows_that_were_changed_after_their_key_keep_the_change() -> None:
    rows: Rows = assign_keys(KeyBy(("key",), ("key",)), rows_of_chunk(table(), 0), failed)
    changed = rows.with_data([{**row, "key": "other"} for row in rows.objects()])
    blobs = list(pack_for_partitions(changed, Codec(), partitions=1).values())
    assert {row["key"] for row in arrived(blobs)} == {"other"}


def test_a_row_may_be_keyed_again_by_another_field_and_lose_nothing(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    data = table(other=[f"o{i % 2}" for i in range(len(KEYS))])
    pq.write_table(data, tmp_path / "in" / "rows.parquet")
    out, both = mp.sinks.memory(), mp.sinks.memory()
    app = mp.App("again", state_dir="memory://", partitions=3)
    rows = app.stream("rows", mp.sources.files(str(tmp_path / "in" / "*.parquet")))
    counted = rows.key_by("key").stateful_map("seen", lambda key, row, n: ({**row, "seen": n + 1}, n + 1), initial=0)
    counted.key_by("other").stateful_map("again", lambda key, row, n: (row, n + 1), initial=0).to("out", out)
    twice = rows.key_by("key").key_by("other")
    twice.stateful_map("twice", lambda key, row, n: (row, n + 1), initial=0).to("both", both)
    run_to_end(driver_of(app, MemoryStorage(), tmp_path / "replicas"))
    found = sorted(out.rows, key=lambda row: row["n"])
    assert [{name: row[name] for name in data.column_names} for row in found] == data.to_pylist()
    assert sorted(both.rows, key=lambda row: row["n"]) == data.to_pylist()


@pytest.mark.parametrize("form", ["objects", "json", "arrow"])
@pytest.mark.parametrize("unit", [None, "instant", "number"])
@given(texts=st.lists(st.text(max_size=3), min_size=1, max_size=9, unique=True))
def test_a_blob_holds_all_of_its_rows_whatever_their_form(form, unit, texts):
    dicts = [{"k": text, "n": i} for i, text in enumerate(texts)]
    data = {
        "objects": dicts,
        "json": [json.dumps(each).encode() for each in dicts],
        "arrow": pa.Table.from_pylist(dicts),
    }[form]
    times = None if unit is None else Times([7 * i for i in range(len(texts))], unit)
    keys = Keys(encode_keys(texts), list(range(len(texts))))
    before = Rows(data, [2 * i for i in range(len(texts))], form=form, times=times, keys=keys)
    after = unpack_rows(pack_rows(before, Codec()), Codec())
    assert (after.form, after.objects(), list(after.order)) == (form, dicts, list(before.order))
    assert [after.keys.of(i) for i in range(len(after))] == texts
    found = None if after.times is None else (after.times.unit, after.times.values.tolist())
    assert found == (None if times is None else (unit, times.values.tolist()))
    arrays = [after.order, after.keys.array, *([] if after.times is None else [after.times.values])]
    assert all(array.flags.aligned for array in arrays)
