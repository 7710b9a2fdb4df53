"""Output segments: what is uniform is columns, the rest is text, and everything comes back in order and the same."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from codec_samples import same
from hypothesis import given
from hypothesis import strategies as st
from uniform_rows import Shipment, any_rows, uniform_rows

import millpond as mp
from millpond.codec import Codec
from millpond.log import segment
from millpond.log.segment import OutputBlock, SegmentOrigin, pack_outputs, unpack_outputs
from millpond.parcels import ParcelRows
from millpond.rows.typed_columns import Columns, columns_of_objects

ORIGIN = SegmentOrigin("shop", "out", 0, 1)
CODEC = Codec()
GOLDEN = Path(__file__).parent.parent / "golden"


def block_of(rows: list[Any]) -> OutputBlock:
    columns = columns_of_objects(rows)
    return CODEC.encode_lines(rows) if columns is None else columns


def packed(*parts: list[Any], orders: list[int] | None = None) -> bytes:
    places = range(sum(map(len, parts))) if orders is None else orders
    return bytes(pack_outputs(places, list(map(block_of, parts)), ORIGIN, CODEC))


def metadata(data: bytes) -> dict[str, str]:
    found = pq.read_metadata(io.BytesIO(data)).metadata
    return {name.decode(): text.decode() for name, text in found.items() if name.startswith(b"millpond")}


def encodable(rows: list[Any]) -> bool:
    try:
        CODEC.encode_lines(rows)
    except mp.errors.InvalidUse:
        return False
    return True


@given(st.lists(st.one_of(any_rows, uniform_rows()).filter(encodable), min_size=1, max_size=4))
def test_rows_of_any_blocks_come_back_in_order_and_the_same(parts):
    found = unpack_outputs(packed(*parts))
    rows = [row for part in parts for row in part]
    assert same(found.objects(CODEC), CODEC.decode_many(CODEC.encode_many(rows)))
    assert found.orders.tolist() == list(range(len(rows)))
    if found.uniform is not None:
        assert same(found.uniform.objects(CODEC), rows)


def test_a_segment_without_columns_is_written_as_it_always_was():
    data = packed([{"a": (1,)}, 2])
    table = pq.ParquetFile(io.BytesIO(data)).read()
    assert table.to_pylist() == [{"order": 0, "row": '{"a":{"$tuple":[1]}}'}, {"order": 1, "row": "2"}]
    assert [field.nullable for field in table.schema] == [False, False]
    assert metadata(data) == ORIGIN.metadata()
    assert metadata(data)["millpond.format"] == "1"


def test_a_segment_with_columns_says_what_its_rows_have_in_common():
    data = packed([{"order": "x", "row": 1}])
    assert pq.ParquetFile(io.BytesIO(data)).read().to_pylist() == [
        {"order": 0, "row": None, "fields": {"order": "x", "row": 1}}
    ]
    assert metadata(data) == {
        **ORIGIN.metadata(),
        "millpond.format": "2",
        "millpond.rows": '{"fields":[["order","str"],["row","int"]]}',
    }


@pytest.mark.parametrize(
    ("parts", "in_columns"),
    [
        ([[{"a": 1}, {"a": 2}], [{"a": 1.5}]], 2),
        ([[{"a": 1.5}], [{"a": 1}, {"a": 2}]], 2),
        ([[{"a": 1}], [{"a": None}, {"a": None}], [{"a": 1}]], 4),
        ([[{"a": None}], [{"a": 1}, {"a": 2}], [{"a": "x"}]], 3),
        ([[{"a": 1}], [{"a": 1, "b": 2}, {"a": 1, "b": 3}], [{"a": 1}, {"a": 2}]], 3),
        ([[{"a": 1}], [{"a": (1,)}, {"a": 1}], [{"a": 3}]], 2),
        ([[Shipment("a", None)], [{"order": "a", "weight": None, "sent": None}], [Shipment("a", 1.5)]], 2),
        ([[{}], [7]], 0),
    ],
)
def test_the_layout_with_the_most_rows_is_columns_and_the_rest_is_text(parts, in_columns):
    data = packed(*parts)
    found = unpack_outputs(data)
    assert (0 if found.columns is None else len(found.columns)) == in_columns
    assert same(found.objects(CODEC), [row for part in parts for row in part])


def test_more_text_than_an_array_can_hold_is_not_columns(monkeypatch):
    monkeypatch.setattr(segment, "MOST_TEXT", 1000)
    parts = [[{"a": "x" * 100, "b": n} for n in range(4)] for _ in range(5)]
    found = unpack_outputs(packed(*parts))
    assert found.columns is None
    assert found.objects(CODEC) == [row for part in parts for row in part]


def test_a_segment_of_a_newer_format_is_refused():
    table = pa.table({"order": [0], "row": ["1"]})
    data = segment._to_parquet(table, {**ORIGIN.metadata(), "millpond.format": "3"})
    with pytest.raises(mp.errors.Incompatible, match="a segment has format 3, and this version of Millpond reads"):
        unpack_outputs(bytes(data))


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("format-[12]/state/shop/outputs/*/*/*.parquet"))[::5])
def test_segments_of_earlier_versions_are_text_and_open(path):
    table = pq.ParquetFile(path).read()
    found = unpack_outputs(path.read_bytes())
    assert found.columns is None
    assert len(table) and table.column_names == ["order", "row"]
    assert found.objects(CODEC) == [CODEC.decode(text.encode()) for text in table["row"].to_pylist()]


# --- parcels: several segments together ---


@given(st.lists(st.one_of(uniform_rows(), any_rows).filter(encodable), min_size=1, max_size=3), st.randoms())
def test_a_parcel_is_in_the_order_of_its_causes_by_either_road(parts, random):
    count = sum(map(len, parts))
    orders = [random.randrange(count) for _ in range(count)]
    segments, at = [], 0
    for part in parts:
        segments.append(unpack_outputs(packed(part, orders=orders[at : at + len(part)])))
        at += len(part)
    parcel, rows = ParcelRows(segments, CODEC), [row for part in parts for row in part]
    expected = [rows[i] for i in sorted(range(count), key=orders.__getitem__)]
    assert same(parcel.objects(), CODEC.decode_many(CODEC.encode_many(expected)))
    table = parcel.table()
    if table is not None:
        columns = columns_of_objects(expected)
        assert columns is not None
        assert table.schema == columns.table.schema
        assert same(Columns(columns.layout, table).objects(CODEC), expected)


def test_a_parcel_is_a_table_if_all_its_segments_are_uniform_and_fit():
    def table_of(*parts: list[Any]) -> Any:
        table = ParcelRows([unpack_outputs(packed(part, orders=[0] * len(part))) for part in parts], CODEC).table()
        return None if table is None else table.to_pylist()

    assert table_of([{"a": 1}], [], [{"a": None}]) == [{"a": 1}, {"a": None}]
    assert table_of([Shipment("x", 1.5)]) == [{"order": "x", "weight": 1.5, "sent": None}]
    for parts in ([[{"a": 1}], [{"a": 1.5}]], [[{"a": 1}], [7]], [[]], [[{"a": (1,)}]], [[{"a": 1}], [{"b": 1}]]):
        assert table_of(*parts) is None


def test_orders_are_small_and_columns_whose_values_repeat_have_a_dictionary():
    rows = [{"key": f"k{n % 10}", "value": n / 7} for n in range(1000)]
    group = pq.read_metadata(io.BytesIO(packed(rows))).row_group(0)
    encodings = {group.column(i).path_in_schema: group.column(i).encodings for i in range(group.num_columns)}
    assert [name for name, found in encodings.items() if "RLE_DICTIONARY" in found] == ["fields.key"]
    assert "DELTA_BINARY_PACKED" in encodings["order"]
