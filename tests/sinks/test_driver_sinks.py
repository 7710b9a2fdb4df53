"""The sinks that run in the driver: console, memory, function, dataframe."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from millpond import sinks
from millpond.codec import Codec
from millpond.errors import InvalidUse, Unavailable
from millpond.log.checked import write_file
from millpond.log.segment import SegmentOrigin, pack_outputs
from millpond.messages import Parcel
from millpond.runtimes.spark.streaming_frames import json_lines_reader
from millpond.sinks.base import Delivery
from millpond.storage import open_storage

DELIVERY = Delivery("orders", "5e1f", "totals", 42, 3)


@dataclass
class Total:
    customer: str
    total: int


def test_the_console_prints_a_line_per_row_with_the_sinks_name(capsys):
    at = datetime(2024, 1, 2, tzinfo=UTC)
    sinks.console().deliver([{"n": 1, "at": at}, "é", Total("a", 3)], DELIVERY)
    assert capsys.readouterr().out == (
        'totals: {"n": 1, "at": "2024-01-02T00:00:00Z"}\ntotals: "é"\ntotals: {"customer": "a", "total": 3}\n'
    )


def test_the_console_prints_a_row_that_is_no_json_as_python_shows_it(capsys):
    sinks.console().deliver([{(1, 2): 3}], DELIVERY)
    assert capsys.readouterr().out == "totals: {(1, 2): 3}\n"


def test_memory_keeps_rows_and_deliveries_in_their_order():
    sink = sinks.memory()
    other = Delivery("orders", "5e1f", "totals", 42, 1)
    sink.deliver([3, 4], DELIVERY)
    sink.deliver([1, 2], other)
    sink.deliver([3, 4], DELIVERY)
    assert sink.rows == [3, 4, 1, 2]
    assert sink.deliveries == [DELIVERY, other]


def test_memory_travels_without_its_rows():
    sink = sinks.memory()
    sink.deliver(["x" * 1_000] * 1_000, DELIVERY)
    copy = pickle.loads(pickle.dumps(sink))
    assert (copy.rows, copy.deliveries) == ([], [])
    assert len(sink.rows) == 1_000


def test_a_function_gets_the_rows_and_the_delivery():
    calls = []
    sinks.function(lambda rows, delivery: calls.append((rows, delivery))).deliver([1, 2], DELIVERY)
    assert calls == [([1, 2], DELIVERY)]


def test_what_a_function_raises_is_raised():
    def busy(rows, delivery):
        raise Unavailable("busy", retry_after=1.0)

    with pytest.raises(Unavailable, match="busy"):
        sinks.function(busy).deliver([1], DELIVERY)


def test_a_function_runs_in_the_driver_unless_told_otherwise():
    assert sinks.function(print).where == "driver"
    assert sinks.function(print, where="workers").where == "workers"


def test_what_is_no_function_is_an_error():
    with pytest.raises(InvalidUse, match=r"sinks.function\(f\): expected a function of rows and delivery, got 7"):
        sinks.function(7)  # type: ignore[arg-type]


def test_a_place_that_there_is_not_is_an_error():
    with pytest.raises(InvalidUse, match="expected 'driver' or 'workers', got 'moon'"):
        sinks.function(print, where="moon")  # type: ignore[arg-type]


def test_a_frame_is_read_from_json_with_the_seconds_of_offsets(tmp_path):
    storage, codec = open_storage(str(tmp_path)), Codec()
    rows = [{"at": datetime(1890, 1, 1, tzinfo=ZoneInfo("Europe/Berlin"))}, {"at": datetime(2024, 1, 2, tzinfo=UTC)}]
    data = pack_outputs(range(2), [codec.encode_lines(rows)], SegmentOrigin("orders", "totals", 3, 42), codec)
    parcel = Parcel("totals", DELIVERY, (write_file(storage, "out.parquet", data, 2),))
    shipped: Any = SimpleNamespace(program=lambda: SimpleNamespace(types=()))
    assert json_lines_reader(str(tmp_path), shipped)(parcel) == [
        '{"at":"1890-01-01T00:00:00+00:53:28"}',
        '{"at":"2024-01-02T00:00:00Z"}',
    ]
