from __future__ import annotations

import errno
import json
import os
import re
import resource
import signal
import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pyarrow.parquet as pq
import pytest

from millpond import sinks
from millpond.errors import Corrupt, InvalidUse, Unavailable
from millpond.sinks.base import Delivery

DELIVERY = Delivery("orders", "5e1f", "totals", 42, 3)
NAME = "00000000000000000042-00003-5e1f-totals"


@dataclass
class Total:
    customer: str
    total: int


class Point(msgspec.Struct):
    x: int
    y: float


def test_a_delivery_is_one_file_named_by_its_id(tmp_path):
    sinks.files(tmp_path).deliver([{"n": 1}, {"n": 2}], DELIVERY)
    assert [file.name for file in tmp_path.iterdir()] == [f"{NAME}.jsonl"]
    assert (tmp_path / f"{NAME}.jsonl").read_text() == '{"n":1}\n{"n":2}\n'


def test_a_folder_is_made_when_the_first_row_comes(tmp_path):
    sink = sinks.files(tmp_path / "a" / "b")
    sink.deliver([], DELIVERY)
    assert not (tmp_path / "a").exists()
    sink.deliver([1], DELIVERY)
    assert len(list((tmp_path / "a" / "b").iterdir())) == 1


def test_a_path_means_the_same_after_the_process_changes_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sink = sinks.files("out")
    monkeypatch.chdir(os.sep)
    sink.deliver([1], DELIVERY)
    assert (tmp_path / "out").is_dir()


def test_a_delivery_that_is_there_is_not_written_again(tmp_path):
    sink = sinks.files(tmp_path)
    sink.deliver([1], DELIVERY)
    before = (tmp_path / f"{NAME}.jsonl").stat()
    sink.deliver([1], DELIVERY)
    after = (tmp_path / f"{NAME}.jsonl").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_name_of_a_sink_that_is_no_file_name_is_spelled_out(tmp_path):
    sinks.files(tmp_path).deliver([1], Delivery("orders", "5e1f", "a/b c", 42, 3))
    assert [file.name for file in tmp_path.iterdir()] == ["00000000000000000042-00003-5e1f-a%2Fb%20c.jsonl"]


def test_json_lines_are_json_that_every_tool_reads(tmp_path):
    row = {
        "at": datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC),
        "on": date(2024, 1, 2),
        "price": Decimal("1.50"),
        "id": uuid.UUID(int=1),
        "raw": b"\x00\xff",
        "tags": {"a"},
        "pair": (1, 2),
        "total": Total("a", 3),
        "point": Point(1, 2.5),
        "nothing": float("nan"),
        "endless": float("inf"),
        "large": 2**70,
        3: "number as key",
    }
    sinks.files(tmp_path).deliver([row], DELIVERY)
    assert json.loads((tmp_path / f"{NAME}.jsonl").read_text()) == {
        "at": "2024-01-02T03:04:05Z",
        "on": "2024-01-02",
        "price": "1.50",
        "id": "00000000-0000-0000-0000-000000000001",
        "raw": "AP8=",
        "tags": ["a"],
        "pair": [1, 2],
        "total": {"customer": "a", "total": 3},
        "point": {"x": 1, "y": 2.5},
        "nothing": None,
        "endless": None,
        "large": 2**70,
        "3": "number as key",
    }


class Visit(msgspec.Struct, rename="camel", omit_defaults=True):
    seen_at: Any
    note: str = ""


BERLIN_IN_1890 = datetime(1890, 1, 1, tzinfo=ZoneInfo("Europe/Berlin"))
LOCAL_NOON = time(12, tzinfo=timezone(-timedelta(minutes=44, seconds=30)))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (BERLIN_IN_1890, '"1890-01-01T00:00:00+00:53:28"'),
        (LOCAL_NOON, '"12:00:00-00:44:30"'),
        ([{"in": (BERLIN_IN_1890,)}], '[{"in":["1890-01-01T00:00:00+00:53:28"]}]'),
        ({BERLIN_IN_1890: 1}, '{"1890-01-01T00:00:00+00:53:28":1}'),
        (Visit(BERLIN_IN_1890), '{"seenAt":"1890-01-01T00:00:00+00:53:28"}'),
        (datetime(2024, 1, 2, tzinfo=ZoneInfo("Europe/Berlin")), '"2024-01-02T00:00:00+01:00"'),
        (datetime(2024, 1, 2, tzinfo=ZoneInfo("America/St_Johns")), '"2024-01-02T00:00:00-03:30"'),
        (datetime(2024, 1, 2, tzinfo=ZoneInfo("UTC")), '"2024-01-02T00:00:00Z"'),
        ("at +01:00", '"at +01:00"'),
    ],
)
def test_json_has_the_seconds_of_an_offset(value, text, tmp_path, capsys):
    sinks.files(tmp_path).deliver([{"n": 1}, {"x": value, "raw": b"\x00", "nothing": float("nan")}], DELIVERY)
    assert (tmp_path / f"{NAME}.jsonl").read_text() == f'{{"n":1}}\n{{"x":{text},"raw":"AA==","nothing":null}}\n'
    sinks.console().deliver([{"x": value}], DELIVERY)
    assert capsys.readouterr().out.replace(" ", "") == f'totals:{{"x":{text}}}\n'.replace(" ", "")


@pytest.mark.parametrize("bad", [object(), {(1, 2): 3}, "\ud800"])
def test_a_row_that_is_no_json_is_an_error_that_shows_it_and_leaves_nothing(tmp_path, bad):
    with pytest.raises(InvalidUse, match=r"a row cannot be written as JSON: .* Make it of dicts with") as error:
        sinks.files(tmp_path).deliver([{"n": 1}, {"bad": bad}], DELIVERY)
    assert repr({"bad": bad}) in str(error.value)
    assert list(tmp_path.iterdir()) == []


def parquet_rows(tmp_path, rows):
    sinks.files(tmp_path, format="parquet").deliver(rows, DELIVERY)
    return pq.ParquetFile(tmp_path / f"{NAME}.parquet").read().to_pylist()


def test_parquet_keeps_what_has_a_column_type(tmp_path):
    row = {
        "at": datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC),
        "on": date(2024, 1, 2),
        "price": Decimal("1.50"),
        "raw": b"\x00\xff",
        "text": "é",
        "n": 1,
        "x": 2.5,
        "yes": True,
        "none": None,
        "list": [1, 2],
        "inner": {"a": 1, "b": ["x"]},
    }
    assert parquet_rows(tmp_path, [row]) == [row]


def test_only_columns_whose_values_repeat_have_a_dictionary(tmp_path):
    rows = [{"key": f"k{n % 100}", "value": n / 7, "flag": n % 2 == 0, "at": datetime(2030, 1, 1, 0, 0, n % 60, n)}
            for n in range(300)]  # fmt: skip
    assert parquet_rows(tmp_path, rows) == rows
    group = pq.ParquetFile(tmp_path / f"{NAME}.parquet").metadata.row_group(0)
    encoded = {group.column(i).path_in_schema: group.column(i).encodings for i in range(group.num_columns)}
    assert {name for name, encodings in encoded.items() if "RLE_DICTIONARY" in encodings} == {"key"}


def test_parquet_takes_dataclasses_structs_uuids_sets_and_tuples(tmp_path):
    rows = [{"t": Total("a", 3), "p": Point(1, 2.5), "id": uuid.UUID(int=1), "s": {1}, "u": (1, 2)}]
    assert parquet_rows(tmp_path, rows) == [
        {
            "t": {"customer": "a", "total": 3},
            "p": {"x": 1, "y": 2.5},
            "id": str(uuid.UUID(int=1)),
            "s": [1],
            "u": [1, 2],
        }
    ]


@pytest.mark.parametrize("row", [Total("a", 3), {"customer": "a", "total": 3}])
def test_a_row_of_parquet_is_a_dict_or_a_dataclass(tmp_path, row):
    assert parquet_rows(tmp_path, [row]) == [{"customer": "a", "total": 3}]


def test_fields_that_a_row_lacks_are_null(tmp_path):
    rows = [{"a": 1}, {"b": "x"}, {"a": 2, "b": None}]
    assert parquet_rows(tmp_path, rows) == [{"a": 1, "b": None}, {"a": None, "b": "x"}, {"a": 2, "b": None}]


def test_whole_numbers_and_fractions_share_a_column(tmp_path):
    assert parquet_rows(tmp_path, [{"a": 1}, {"a": 2.5}]) == [{"a": 1.0}, {"a": 2.5}]


@pytest.mark.parametrize(
    ("one", "other", "text"),
    [
        (1, "x", "field 'a': expected one type in a Parquet column, got int and str"),
        (True, 1, "field 'a': expected one type in a Parquet column, got bool and int"),
        ("x", b"x", "field 'a': expected one type in a Parquet column, got str and bytes"),
        (date(2024, 1, 1), datetime(2024, 1, 1), "got date and naive datetime"),
        (datetime(2024, 1, 1), datetime(2024, 1, 1, tzinfo=UTC), "got naive datetime and aware datetime"),
        (Decimal(1), 1, "got Decimal and int"),
        ([1], ["x"], r"field 'a\[\]': expected one type in a Parquet column, got int and str"),
        ({"b": 1}, {"b": "x"}, r"field 'a\.b': expected one type in a Parquet column, got int and str"),
        ([1], {"b": 1}, "got list and dict"),
    ],
)
def test_two_types_in_a_column_are_an_error_that_names_them(tmp_path, one, other, text):
    with pytest.raises(InvalidUse, match=text + r"\. Convert one of them with map\(\), or use format='jsonl'"):
        parquet_rows(tmp_path, [{"a": one}, {"a": None}, {"a": other}])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "value", [2**63, -(2**63) - 1, 2**70, [2**63], object(), {1: 2}, "\ud800", {}, [{}], {"b": {}}, LOCAL_NOON]
)
def test_a_value_that_no_column_holds_is_an_error_that_names_the_field(tmp_path, value):
    with pytest.raises(InvalidUse, match=r"field 'a' cannot be a Parquet column: .* or use format='jsonl'"):
        parquet_rows(tmp_path, [{"n": 1, "a": value}, {"n": 2, "a": value}])
    assert list(tmp_path.iterdir()) == []


def test_a_refused_delivery_names_its_sink_and_batch_and_the_way_out(tmp_path):
    with pytest.raises(InvalidUse) as caught:
        parquet_rows(tmp_path, [{"a": 1}, {"a": "x"}])
    text = str(caught.value)
    assert re.match(r"sink 'totals', batch \d+: field 'a': expected one type", text)
    assert text.endswith("To deliver them, run the app once with format='jsonl' for this sink.")


def test_a_zone_of_a_time_in_a_list_is_not_dropped(tmp_path):
    with pytest.raises(InvalidUse, match=r"field 'a\[\]' cannot be a Parquet column: .* would lose its zone"):
        parquet_rows(tmp_path, [{"a": [LOCAL_NOON.replace(tzinfo=None), LOCAL_NOON]}])
    assert parquet_rows(tmp_path, [{"a": time(1, 2)}]) == [{"a": time(1, 2)}]


def test_a_dict_that_is_empty_in_some_rows_only_is_a_column(tmp_path):
    assert parquet_rows(tmp_path, [{"a": {}}, {"a": {"b": 1}}]) == [{"a": {"b": None}}, {"a": {"b": 1}}]


@pytest.mark.parametrize("row", [1, "x", [1, 2], None])
def test_a_row_without_fields_is_an_error(tmp_path, row):
    with pytest.raises(InvalidUse, match=r"a Parquet file needs rows with fields .* got .* use format='jsonl'"):
        parquet_rows(tmp_path, [row])


def test_rows_of_no_fields_at_all_are_an_error(tmp_path):
    with pytest.raises(InvalidUse, match="got rows without any"):
        parquet_rows(tmp_path, [{}, {}])


def test_a_field_whose_name_is_no_string_is_an_error(tmp_path):
    with pytest.raises(InvalidUse, match="a Parquet column needs a string as its name, got 1"):
        parquet_rows(tmp_path, [{1: 2}])


def test_a_folder_that_cannot_be_made_is_an_error_with_its_path(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidUse) as error:
        sinks.files(tmp_path / "file" / "out").deliver([1], DELIVERY)
    assert str(error.value).startswith(f"sinks.files {tmp_path}/file/out: cannot be written (Not a directory: ")
    assert str(error.value).endswith("Choose another folder.")


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ENOSPC])
def test_a_disk_that_does_not_answer_is_asked_again(tmp_path, code, monkeypatch):
    def fail(*args):
        raise OSError(code, os.strerror(code))

    sink = sinks.files(tmp_path)
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fail)
        with pytest.raises(Unavailable, match="cannot be written"):
            sink.deliver([1], DELIVERY)
    sink.deliver([1], DELIVERY)
    assert (tmp_path / f"{NAME}.jsonl").read_text() == "1\n"


def test_a_delivery_that_was_made_in_another_format_is_not_made_again(tmp_path):
    sinks.files(tmp_path).deliver([{"n": 1}], DELIVERY)
    sinks.files(tmp_path, format="parquet").deliver([{"n": 1}], DELIVERY)
    assert [path.name for path in tmp_path.iterdir()] == [f"{NAME}.jsonl"]


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_a_write_that_fails_half_way_leaves_nothing(tmp_path, format):
    sink = sinks.files(tmp_path, format=format)
    rows = [{"text": str(i) * 10} for i in range(20_000)]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))  # the nearest thing to a full disk
    try:
        with pytest.raises(Unavailable, match=os.strerror(errno.EFBIG)):
            sink.deliver(rows, DELIVERY)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert list(tmp_path.iterdir()) == []
    sink.deliver(rows, DELIVERY)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("path", ["", None, 7])
def test_a_path_that_is_none_is_an_error(path):
    with pytest.raises(InvalidUse, match=r"sinks.files\(path\): expected a folder, such as 'out/', got"):
        sinks.files(path)


def test_a_url_is_an_error_that_says_what_to_do():
    with pytest.raises(InvalidUse, match="expected a folder on a disk that every worker sees, got a URL"):
        sinks.files("s3://bucket/out")


def test_an_unknown_format_is_an_error(tmp_path):
    with pytest.raises(InvalidUse, match=r"expected format= one of \('jsonl', 'parquet'\), got 'csv'"):
        sinks.files(tmp_path, format="csv")  # type: ignore[arg-type]


def test_an_empty_parquet_file_that_a_killed_process_left_gets_its_rows(tmp_path):
    file = tmp_path / f"{NAME}.parquet"
    file.write_bytes(b"")
    sink = sinks.files(tmp_path, format="parquet")
    assert sink.status(DELIVERY) == "void"
    sink.revive([{"n": 1}], DELIVERY)
    assert pq.read_table(file).to_pylist() == [{"n": 1}]


@pytest.mark.parametrize("data", [b"", b"PAR1 and no more", b"PAR1" + bytes(20) + b"PAR1"])
def test_a_damaged_parquet_file_can_be_rolled_back(tmp_path, data):
    file = tmp_path / f"{NAME}.parquet"
    file.write_bytes(data)
    sink = sinks.files(tmp_path, format="parquet")
    sink.rollback([DELIVERY], lambda delivery: [{"n": 1}])
    assert pq.read_table(file).to_pydict() == {"n": []} and sink.status(DELIVERY) == "void"


@pytest.mark.parametrize("data", [b"PAR1 and no more", b"PAR1" + bytes(20) + b"PAR1"])
def test_a_damaged_parquet_file_is_named(tmp_path, data):
    (tmp_path / f"{NAME}.parquet").write_bytes(data)
    with pytest.raises(Corrupt, match=rf"{NAME}\.parquet is damaged \(.* Delete that file and run the app again"):
        sinks.files(tmp_path, format="parquet").status(DELIVERY)
