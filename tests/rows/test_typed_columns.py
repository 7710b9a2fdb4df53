"""Uniform rows become typed columns, and come back equal and of the same types; other rows do not become columns."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pyarrow as pa
import pytest
from codec_samples import Compact, Pair, Plain, Point, Slotted, same
from hypothesis import given
from hypothesis import strategies as st
from uniform_rows import Parcel, Shipment, any_rows, uniform_rows

from millpond.codec import Codec
from millpond.rows.rows import table_to_dicts
from millpond.rows.typed_columns import RowLayout, columns_of_objects, columns_of_table, merge_columns

DAY = datetime(2024, 1, 1)
ZONE = ZoneInfo("UTC")


@given(uniform_rows())
def test_uniform_rows_are_columns_and_come_back_the_same(rows):
    columns = columns_of_objects(rows)
    assert columns is not None
    assert same(columns.objects(Codec()), rows)


@given(any_rows)
def test_what_becomes_columns_comes_back_the_same(rows):
    columns = columns_of_objects(rows)
    if columns is not None:
        assert same(columns.objects(Codec()), rows)


@pytest.mark.parametrize(
    ("values", "kind", "type"),
    [
        (["a", None], "str", pa.string()),
        ([1, -(2**63), 2**63 - 1], "int", pa.int64()),
        ([1.0, -0.0, float("nan"), float("-inf"), None], "float", pa.float64()),
        ([True, None], "bool", pa.bool_()),
        ([b"\xff", None], "bytes", pa.binary()),
        ([date(1, 1, 1), date(9999, 12, 31), None], "date", pa.date32()),
        ([DAY, datetime.min, datetime.max, None], "datetime", pa.timestamp("us")),
        ([datetime.max.replace(tzinfo=UTC), None], "datetime UTC", pa.timestamp("us", "UTC")),
        ([datetime.min.replace(tzinfo=ZONE), None], "datetime ZoneInfo", pa.timestamp("us", "UTC")),
        ([None, None], "none", pa.null()),
    ],
)
def test_a_field_of_one_kind_is_a_column_of_its_type(values, kind, type):
    rows = [{"a": value} for value in values]
    columns = columns_of_objects(rows)
    assert columns is not None
    assert columns.layout == RowLayout((("a", kind),))
    assert columns.table.schema == pa.schema([("a", type)])
    found = columns.objects(Codec())
    assert same(found, rows)
    assert all(
        one["a"].tzinfo is other["a"].tzinfo
        for one, other in zip(found, rows, strict=True)
        if "time" in kind and one["a"]
    )


class Text(str):
    __slots__ = ()


class Word(enum.StrEnum):
    A = "a"


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [{}],
        [{"a": 1}, {}],
        [{"a": 1}, {"b": 1}],
        [{"a": 1, "b": 2}, {"b": 2, "a": 1}],
        [{"a": 1, "b": 2}, {"a": 1}, {"b": 2}],
        [{"a": 1}, {"a": 1, "b": 2}],
        [{"a": 1}, {"a": 1.0}],
        [{"a": 1}, {"a": True}],
        [{"a": "x"}, {"a": b"x"}],
        [{"a": 2**63}],
        [{"a": -(2**63) - 1}],
        [{"a": Decimal("1.10")}],
        [{"a": (1,)}],
        [{"a": [1]}],
        [{"a": {"b": 1}}],
        [{"a": bytearray(b"x")}],
        [{"a": timedelta(1)}],
        [{"a": Text("x")}],
        [{"a": Word.A}],
        [{"a": 1}, {Word.A: 1}],
        [{"a": 1}, {Text("a"): 1}],
        [{1: 1}],
        [{"a": "\ud800"}],
        [{"\ud800": 1}],
        [{"a": date(2024, 1, 1)}, {"a": DAY}],
        [{"a": DAY}, {"a": DAY.replace(tzinfo=UTC)}],
        [{"a": DAY.replace(tzinfo=UTC)}, {"a": DAY.replace(tzinfo=ZONE)}],
        [{"a": DAY.replace(fold=1)}],
        [{"a": DAY.replace(fold=1, tzinfo=UTC)}],
        [{"a": DAY.replace(tzinfo=timezone(timedelta(0), "named"))}],
        [{"a": DAY.replace(tzinfo=timezone(timedelta(hours=1)))}],
        [{"a": DAY.replace(tzinfo=ZoneInfo("Europe/Berlin"))}],
        [1, 2],
        [{"a": 1}, None],
        [("a", 1)],
        [Pair(1, 2)],
        [Point(1, 2), Slotted(1, 2)],
        [Point(1, (2,))],
        [Plain("a", msgspec.UNSET)],
    ],
    ids=repr,
)
def test_other_rows_are_no_columns(rows):
    assert columns_of_objects(rows) is None


class Open(msgspec.Struct, dict=True):
    a: int


@dataclass(slots=True)
class Half:
    a: int
    b: int

    @classmethod
    def unset(cls) -> Half:
        made = object.__new__(cls)
        made.a = 1
        return made


def with_extra(row: Any) -> Any:
    row.__dict__["extra"] = 1
    return row


def without(row: Any, name: str) -> Any:
    del row.__dict__[name]
    return row


@pytest.mark.parametrize(
    "rows",
    [
        [Open(1)],
        [Half(1, 2), Half.unset()],
        [with_extra(Shipment("a", 1.0))],
        [without(Shipment("a", 1.0), "sent")],
        [with_extra(without(Shipment("a", 1.0), "sent"))],
    ],
)
def test_records_that_have_more_or_less_than_their_fields_are_no_columns(rows):
    assert columns_of_objects(rows) is None


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        ([Shipment("a", 1.5), Shipment("b", None)], ["order", "weight", "sent"]),
        ([Parcel("a", 1.5, DAY), Parcel("b", None)], ["order_id", "weight", "sent"]),
        ([Slotted(1), Slotted(2, "x")], ["left", "right"]),
        ([Compact(1), Compact(2, 3)], ["first_field", "second_field"]),
        ([Half(1, 2)], ["a", "b"]),
    ],
)
def test_dataclasses_and_structs_are_columns_of_their_fields(rows, names):
    columns = columns_of_objects(rows)
    assert columns is not None
    assert columns.table.column_names == names
    assert columns.layout.type == f"{type(rows[0]).__module__}:{type(rows[0]).__qualname__}"
    assert same(columns.objects(Codec()), rows)


def test_a_class_that_is_gone_is_its_fields_to_a_reader_that_asks_for_plain_values():
    columns = columns_of_objects([Point(1, 2)])
    assert columns is not None
    gone = type(columns)(RowLayout(columns.layout.fields, "gone:Point"), columns.table)
    assert gone.objects(Codec(unknown="plain")) == [{"x": 1, "y": 2}]


# --- several parts ---


@given(st.lists(uniform_rows(), min_size=1, max_size=3))
def test_parts_that_fit_come_back_one_after_the_other(parts):
    columns = [columns_of_objects(rows) for rows in parts]
    together = merge_columns([part for part in columns if part is not None])
    if together is not None:
        assert same(together.objects(Codec()), [row for rows in parts for row in rows])


def test_a_field_that_is_always_none_fits_any_kind():
    parts = [columns_of_objects([{"a": value, "b": 1}]) for value in (None, "x", None)]
    together = merge_columns([part for part in parts if part is not None])
    assert together is not None
    assert together.objects(Codec()) == [{"a": None, "b": 1}, {"a": "x", "b": 1}, {"a": None, "b": 1}]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1}, {"a": 1.5}),
        ({"a": 1}, {"b": 1}),
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"x": 1, "y": 2}, Point(1, 2)),
        ({"a": DAY.replace(tzinfo=UTC)}, {"a": DAY.replace(tzinfo=ZONE)}),
    ],
)
def test_layouts_that_differ_do_not_fit(one, other):
    columns = [columns_of_objects([row]) for row in (one, other)]
    assert merge_columns([part for part in columns if part is not None]) is None


# --- tables ---

arrow_columns = st.sampled_from(
    [
        pa.array([1, None], pa.int8()),
        pa.array([1, 2], pa.uint32()),
        pa.array([1, 2], pa.uint64()),
        pa.array([1, 2**64 - 1], pa.uint64()),
        pa.array([1.5, None], pa.float32()),
        pa.array([float("nan"), -0.0], pa.float64()),
        pa.array(["x", None], pa.large_string()),
        pa.array(["x", None], pa.string_view()),
        pa.array(["x", "x"]).dictionary_encode(),
        pa.array([b"x", None], pa.large_binary()),
        pa.array([b"xy", None], pa.binary(2)),
        pa.array([True, None]),
        pa.array([DAY, None], pa.timestamp("s")),
        pa.array([DAY, None], pa.timestamp("ns")),
        pa.array([DAY, None], pa.timestamp("ms", "UTC")),
        pa.array([DAY, None], pa.timestamp("us", "Europe/Berlin")),
        pa.array([DAY, None], pa.timestamp("us", "+00:00")),
        pa.array([DAY.date(), None], pa.date32()),
        pa.array([DAY.date(), None], pa.date64()),
        pa.array([Decimal("1.10"), None]),
        pa.array([[1], None]),
        pa.array([{"a": 1}, None]),
        pa.array([None, None], pa.list_(pa.int64())),
        pa.nulls(2),
        pa.array([timedelta(1), None]),
    ]
)


@given(st.lists(arrow_columns, min_size=1, max_size=3))
def test_a_table_becomes_the_columns_of_its_objects(arrays):
    table = pa.table(dict(zip("abc", arrays, strict=False)))
    found, expected = columns_of_table(table), columns_of_objects(table_to_dicts(table))
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert found.layout == expected.layout
        assert found.table.schema == expected.table.schema
        assert same(found.objects(Codec()), expected.objects(Codec()))


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"a": pa.array([], pa.int64())}),
        pa.table([[1], [2]], ["a", "a"]),
        pa.table({"a": pa.array([2**62], pa.timestamp("us"))}),
        pa.table({"a": pa.array([1], pa.timestamp("ns"))}),
        pa.table({"a": pa.array([2**31 - 1], pa.date32())}),
    ],
)
def test_a_table_whose_objects_are_not_uniform_is_no_columns(table):
    assert columns_of_table(table) is None
