"""A sink that takes columns is given them if the rows are uniform, and leaves what rows would have left."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from codec_samples import same
from hypothesis import given
from hypothesis import strategies as st
from small_drivers import driver_of, run_to_end
from uniform_rows import Parcel, Shipment, any_rows, records, uniform_rows

import millpond as mp
from millpond.codec import Codec
from millpond.log.checked import write_file
from millpond.log.segment import SegmentOrigin, pack_outputs
from millpond.messages import Parcel as Delivered
from millpond.parcels import hand_over
from millpond.rows.typed_columns import columns_of_objects
from millpond.sinks.base import Delivery
from millpond.storage import open_storage

DELIVERY = Delivery("orders", "5e1f", "totals", 42, 3, "a7c0")
ORIGIN = SegmentOrigin("orders", "totals", 3, 42)
CODEC = Codec()


def hand(sink: Any, rows: list[Any], how: str) -> Exception | None:
    """Give rows to a sink from a segment, in which they are columns if they can be, or text; what it has raised."""
    columns = columns_of_objects(rows) if how == "columns" else None
    storage = open_storage("memory://")
    data = pack_outputs(range(len(rows)), [CODEC.encode_lines(rows) if columns is None else columns], ORIGIN, CODEC)
    file = write_file(storage, "out.parquet", data, len(rows))
    try:
        hand_over(storage, CODEC, sink, Delivered("totals", DELIVERY, (file,)))
    except mp.errors.MillpondError as error:
        return error
    return None


def encodable(rows: list[Any]) -> bool:
    try:
        CODEC.encode_lines(rows)
    except mp.errors.InvalidUse:
        return False
    return bool(rows)


@given(st.one_of(uniform_rows(), any_rows, records).filter(encodable))
def test_json_lines_are_the_same_bytes_by_either_road(rows):
    assert left(rows, "jsonl", Path.read_bytes, "columns") == left(rows, "jsonl", Path.read_bytes, "text")


@given(st.one_of(uniform_rows(), any_rows, records).filter(encodable))
def test_parquet_has_the_same_schema_and_values_by_either_road(rows):
    (by_columns, one), (by_text, other) = (left(rows, "parquet", read_parquet, how) for how in ("columns", "text"))
    assert (one is None, str(one)) == (other is None, str(other))
    assert len(by_columns) == len(by_text)
    for columns, text in zip(by_columns, by_text, strict=True):
        assert columns.schema.equals(text.schema, check_metadata=True)
        assert same(columns.to_pylist(), text.to_pylist())


def left(rows: list[Any], format: Any, read: Callable[[Path], Any], how: str) -> tuple[list[Any], str | None]:
    with tempfile.TemporaryDirectory() as folder:
        error = hand(mp.sinks.files(folder, format), rows, how)
        return [read(path) for path in sorted(Path(folder).iterdir())], None if error is None else str(error)


def read_parquet(path: Path) -> pa.Table:
    return pq.ParquetFile(path).read()


class Recording:
    """A sink that keeps how it was called."""

    where = "driver"

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def deliver(self, rows: list[Any], delivery: Delivery) -> None:
        self.calls.append(("rows", rows))

    def deliver_table(self, table: pa.Table, delivery: Delivery) -> None:
        self.calls.append(("table", table.to_pylist()))


@pytest.mark.parametrize(
    ("rows", "called"),
    [
        ([{"a": 1}, {"a": None}], "table"),
        ([Shipment("x", 1.5)], "table"),
        ([{"a": 1}, {"a": "x"}], "rows"),
        ([{"a": 1}, 7], "rows"),
        ([{}], "rows"),
        ([], "rows"),
    ],
)
def test_uniform_rows_come_as_a_table_and_others_as_rows(rows, called):
    sink = Recording()
    assert hand(sink, rows, "columns") is None
    shown = [{"order": "x", "weight": 1.5, "sent": None}] if rows == [Shipment("x", 1.5)] else rows
    assert sink.calls == [(called, shown)]


def test_rows_that_are_text_in_the_log_come_as_rows():
    sink = Recording()
    hand(sink, [{"a": 1}], "text")
    assert sink.calls == [("rows", [{"a": 1}])]


def test_a_sink_without_columns_gets_the_same_objects_as_ever():
    calls: list[Any] = []
    rows = [Parcel("x", 1.5, datetime(2024, 1, 1, tzinfo=UTC)), Parcel("y", None)]
    assert hand(mp.sinks.function(lambda rows, delivery: calls.append(rows)), rows, "columns") is None
    assert same(calls, [rows])


@pytest.mark.parametrize("error", [mp.errors.Unavailable("busy"), ValueError("no")])
def test_what_it_raises_for_a_table_means_what_it_means_for_rows(error):
    class Failing(Recording):
        def deliver(self, rows: Any, delivery: Delivery) -> None:
            raise error

        def deliver_table(self, table: pa.Table, delivery: Delivery) -> None:
            raise error

    by_table, by_rows = hand(Failing(), [{"a": 1}], "columns"), hand(Failing(), [7], "columns")
    assert type(by_table) is type(by_rows)
    assert isinstance(
        by_table, mp.errors.Unavailable if isinstance(error, mp.errors.Unavailable) else mp.errors.StepFailed
    )


@pytest.mark.parametrize("roads", [*itertools.product(["columns", "text"], repeat=2)])
def test_a_parquet_file_that_was_delivered_by_one_road_is_not_written_again_by_the_other(roads, tmp_path):
    for how in roads:
        assert hand(mp.sinks.files(tmp_path, "parquet"), [{"a": 1}], how) is None
    assert [pq.ParquetFile(path).read().to_pylist() for path in tmp_path.iterdir()] == [[{"a": 1}]]


def test_a_table_that_was_delivered_in_another_format_is_not_delivered_again(tmp_path):
    assert hand(mp.sinks.files(tmp_path), [{"a": 1}], "columns") is None
    assert hand(mp.sinks.files(tmp_path, "parquet"), [{"a": 1}], "columns") is None
    assert [path.suffix for path in tmp_path.iterdir()] == [".jsonl"]


def test_a_program_writes_parquet_files_of_columns(tmp_path):
    """From the source to the file, over batches whose fields come and go, and a rollback."""
    batches: list[list[dict[str, Any]]] = [
        [{"k": "a", "n": 1, "x": None}, {"k": "b", "n": 2, "x": 1.5}],
        [{"k": "a", "n": 3}, {"k": "b", "n": 4}],
        [{"k": "a", "n": 5, "x": 2.5}, {"k": "b", "n": 6}],
        [{"k": "a", "n": 7, "x": None}],
    ]
    source = tmp_path / "in.jsonl"
    source.write_text("")

    def app() -> mp.App:
        made = mp.App("shop", str(tmp_path / "state"), partitions=1, local_dir=str(tmp_path / "local"))
        rows = made.stream("rows", mp.sources.files(source))
        rows.key_by("k").stateful_map("last", lambda key, row, state: (row, row["n"])).to(
            "out", mp.sinks.files(tmp_path / "out", format="parquet")
        )
        return made

    numbers = []
    for batch in batches:
        with source.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in batch)
        driver = driver_of(app(), mp.lowlevel.storage(app()), tmp_path / "local")
        run_to_end(driver)
        numbers.append(driver.last.number)
        driver.release()
        driver.close()

    def tables() -> list[pa.Table]:
        return [pq.ParquetFile(path).read() for path in sorted((tmp_path / "out").glob("*.parquet"))]

    with_none = [{"k": "a", "n": 5, "x": 2.5}, {"k": "b", "n": 6, "x": None}]
    assert [table.to_pylist() for table in tables()] == [batches[0], batches[1], with_none, batches[3]]
    schemas = [table.schema for table in tables()]
    assert [str(schema.types[-1]) for schema in schemas] == ["double", "int64", "double", "null"]
    app().admin.rollback(numbers[1])
    assert [table.to_pylist() for table in tables()] == [batches[0], batches[1], [], []]
    assert [table.schema for table in tables()] == schemas
