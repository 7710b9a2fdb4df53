"""Columns as Python objects: what Arrow's own way makes of them, in less time."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_drivers import driver_of, run_to_end

import millpond as mp
from millpond.rows.arrow_objects import FIRST, LAST, column_to_list, raw_row, unreadable_rows
from millpond.storage import MemoryStorage

ZONES = [None, "UTC", "Etc/UTC", "Europe/Berlin", "America/Sao_Paulo", "Asia/Kolkata", "+02:00", "-09:30"]
TURN = 1_729_990_800_000_000  # 2024-10-27 01:00 UTC: in Berlin the clock is put back to 02:00

KINDS = [
    *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us") for zone in ZONES),
    pa.date32(),
    pa.date64(),
    pa.time32("s"),
    pa.time64("us"),
    pa.time64("ns"),
    pa.duration("us"),
    *(pa.int8(), pa.int64(), pa.uint32(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.binary()),
    pa.decimal128(20, 2),
    pa.dictionary(pa.int32(), pa.string()),
    pa.dictionary(pa.int32(), pa.timestamp("us", "UTC")),
    pa.list_(pa.timestamp("us", "UTC")),
    pa.struct([("a", pa.int64()), ("at", pa.date32())]),
]


def values_of(kind: Any) -> list[Any]:
    if pa.types.is_dictionary(kind):
        return values_of(kind.value_type)
    if pa.types.is_timestamp(kind):
        moments = [datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC), datetime(1, 1, 3, tzinfo=UTC)]
        moments += [datetime(9999, 12, 29, tzinfo=UTC), datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)]
        moments += [datetime.fromtimestamp(TURN / 1e6, UTC) + timedelta(minutes=m) for m in range(-120, 120, 30)]
        return [moment if kind.tz else moment.replace(tzinfo=None) for moment in moments]
    if pa.types.is_date(kind):
        return [datetime(year, 2, 28).date() for year in (1, 1969, 1970, 2024, 9999)]
    if pa.types.is_time(kind):
        return [datetime(2024, 1, 1, 3, 4, 5).time()]
    if pa.types.is_duration(kind):
        return [timedelta(days=-3, microseconds=7)]
    if pa.types.is_string(kind):
        return ["a", "", "☂"]
    if pa.types.is_binary(kind):
        return [b"a", b""]
    if pa.types.is_decimal(kind):
        return [Decimal("1.10")]
    if pa.types.is_list(kind):
        return [[datetime(2024, 1, 1, tzinfo=UTC)], []]
    if pa.types.is_struct(kind):
        return [{"a": 1, "at": datetime(2024, 1, 1).date()}]
    return [True, False] if pa.types.is_boolean(kind) else [1, 0, 77]


def same(found: list[Any], expected: list[Any]) -> None:
    assert found == expected
    assert [type(value) for value in found] == [type(value) for value in expected]
    for one, other in zip(found, expected, strict=True):
        if isinstance(one, datetime):
            assert (repr(one), one.fold, one.utcoffset()) == (repr(other), other.fold, other.utcoffset())


@pytest.mark.parametrize("nulls", [False, True], ids=["full", "with nulls"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_column_is_what_arrow_makes_of_it(kind: Any, nulls: bool) -> None:
    values = values_of(kind)
    values = [*values, None, *values, None] if nulls else values
    is_coded = pa.types.is_dictionary(kind)
    array = pa.array(values, kind.value_type).dictionary_encode() if is_coded else pa.array(values, kind)
    for column in (
        pa.chunked_array([array]),
        pa.chunked_array([array, array.slice(1), array.slice(0, 0)]),
        pa.chunked_array([array]).slice(1),
        pa.chunked_array([array.slice(0, 0)]),
        pa.chunked_array([], kind),
        pa.chunked_array([pa.nulls(3, kind)]),
    ):
        same(column_to_list(column), column.to_pylist())


@given(st.lists(st.integers(FIRST, LAST), min_size=1), st.sampled_from(ZONES))
def test_any_moment_in_any_zone(ticks: list[int], zone: str | None) -> None:
    column = pa.chunked_array([pa.array(ticks, pa.int64()).cast(pa.timestamp("us", zone))])
    try:
        expected = column.to_pylist()
    except (OverflowError, ValueError) as error:  # the ends of time, in a zone that puts them beyond
        with pytest.raises(type(error)):
            column_to_list(column)
    else:
        same(column_to_list(column), expected)


@pytest.mark.parametrize("tick", [FIRST - 1, LAST + 1, 1 << 62])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_a_time_that_python_cannot_tell_is_no_number_either(tick: int, zone: str | None) -> None:
    column = pa.chunked_array([pa.array([0, tick], pa.int64()).cast(pa.timestamp("us", zone))])
    with pytest.raises((OverflowError, ValueError)):
        column_to_list(column)


# --- rows that cannot be told in Python ---

BAD_TEXT = pa.array([b"a", b"\xff\xfe", b"c"], pa.binary()).view(pa.string())


def long(*ticks: int | None) -> Any:
    return pa.array(ticks, pa.int64())


@pytest.mark.parametrize(
    ("column", "told"),
    [
        (BAD_TEXT, r"expected UTF-8 text, got \xff\xfe"),
        (BAD_TEXT.cast(pa.binary()).cast(pa.large_binary()).view(pa.large_string()), r"got \xff\xfe"),
        (long(0, 1 << 62, None).cast(pa.timestamp("us")), f"between the years 1 and 9999, .*got {1 << 62}"),
        (long(0, FIRST - 1, None).cast(pa.timestamp("us")), f"got {FIRST - 1}"),
        (long(0, 1 << 50, None).cast(pa.timestamp("s", "Europe/Berlin")), f"got {1 << 50}"),
        (long(0, 1_700_000_000_000_000_001, None).cast(pa.timestamp("ns")), "whole microseconds"),
        (long(0, LAST, None).cast(pa.timestamp("us", "Asia/Tokyo")), f"got {LAST}"),
        (pa.array([0, 1 << 30, None], pa.int32()).cast(pa.date32()), "expected a time"),
        (long(0, 1 << 60, None).cast(pa.date64()), "expected a time"),
        (pa.ListArray.from_arrays([0, 1, 2, 3], BAD_TEXT), "UTF-8 text"),
        (pa.StructArray.from_arrays([long(0, 1 << 62, 1).cast(pa.timestamp("us"))], ["at"]), "column 'it'"),
        (pa.MapArray.from_arrays([0, 1, 2, 3], ["k", "k", "k"], BAD_TEXT), "UTF-8 text"),
        (pa.DictionaryArray.from_arrays([0, 1, 2], BAD_TEXT), "UTF-8 text"),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_a_row_of_which_no_object_can_be_made_is_found(column: Any, told: str) -> None:
    table = pa.table({"n": [1, 2, 3], "it": column})
    found = unreadable_rows(table)
    assert list(found) == [1]
    assert re.search(told if ".*" in told else re.escape(told), found[1]), found[1]
    row = raw_row(table, 1)
    assert row["n"] == 2 and isinstance(row["it"], str)
    assert raw_row(table, 0) == table.slice(0, 1).to_pylist()[0]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_what_can_be_told_is_not_looked_at_one_by_one(kind: Any) -> None:
    values = [*values_of(kind), None]
    is_coded = pa.types.is_dictionary(kind)
    array = pa.array(values, kind.value_type).dictionary_encode() if is_coded else pa.array(values, kind)
    assert unreadable_rows(pa.table({"it": array})) == {}


def test_a_column_of_several_kinds_is_looked_at_one_by_one() -> None:
    union = pa.UnionArray.from_sparse(pa.array([0, 1, 0], pa.int8()), [pa.array([1, 2, 3]), BAD_TEXT])
    found = unreadable_rows(pa.table({"it": union}))
    assert list(found) == [1] and "column 'it'" in found[1]


def test_nanoseconds_that_are_whole_microseconds_are_datetimes() -> None:
    column = pa.chunked_array([long(1_700_000_000_000_001_000, None).cast(pa.timestamp("ns", "UTC"))])
    same(column_to_list(column), column.cast(pa.timestamp("us", "UTC")).to_pylist())


@pytest.mark.parametrize("by", ["key", "it"])
def test_bad_rows_of_a_file_are_told_with_their_place_and_the_others_count(by: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    at = long(0, 0, 1 << 62).cast(pa.timestamp("us"))
    pq.write_table(pa.table({"key": ["a", "b", "c"], "it": BAD_TEXT, "at": at}), tmp_path / "in" / "x.parquet")
    dead, out = mp.sinks.memory(), mp.sinks.memory()

    def app(on_error: Any) -> mp.App:
        made = mp.App("bad", state_dir="memory://", partitions=2)
        rows = made.stream("rows", mp.sources.files(tmp_path / "in"), on_error=on_error)
        rows.key_by(by).stateful_map("n", lambda key, row, n: (row, n + 1), initial=0).to("out", out)
        if on_error == "dead-letter":
            made.dead_letters.to("dead", dead)
        return made

    with pytest.raises(mp.errors.StepFailed, match=r"x\.parquet, row 2.*column 'it'.*UTF-8.*xff"):
        run_to_end(driver_of(app("stop"), MemoryStorage(), tmp_path / "one"))
    assert out.rows == []
    run_to_end(driver_of(app("dead-letter"), MemoryStorage(), tmp_path / "two"))
    assert [row["key"] for row in out.rows] == ["a"]
    assert sorted(letter["error"].split(":")[0].rpartition(", ")[2] for letter in dead.rows) == ["row 2", "row 3"]
