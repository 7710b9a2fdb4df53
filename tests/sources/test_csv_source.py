from __future__ import annotations

import gzip

import pytest

from millpond import sources
from millpond.errors import InvalidUse
from millpond.sources import line_plan
from millpond.sources.base import BadRow, Limit
from millpond.sources.listing import File
from millpond.sources.ranges import SplitRequest
from millpond.testing.source_suite import batches

ALL = Limit(rows=10**6, bytes=1 << 30)


def one_batch(source, position=None, limit=ALL):
    """The good rows, the bad ones and the position after one batch."""
    at, rows, bad = dict(position or {}), [], []
    for split in source.plan(at, limit, 0.0):
        for chunk in source.read(split):
            rows += chunk.rows
            bad += chunk.bad
            at[split.place] = chunk.position
    return rows, bad, at


def write(tmp_path, content):
    (tmp_path / "a.csv").write_bytes(content)
    return sources.files(tmp_path / "a.csv")


def test_the_header_names_the_fields_and_every_value_is_a_string(tmp_path):
    rows, _, position = one_batch(write(tmp_path, b"id,name,n\n1,a,0.50\n2,,true\n"))
    assert rows == [{"id": "1", "name": "a", "n": "0.50"}, {"id": "2", "name": "", "n": "true"}]
    assert position == {"a.csv": {"offset": 27}}


def test_each_file_has_its_own_header(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "b.csv").write_text("y,z\n3,4\n")
    rows, _, _ = one_batch(sources.files(tmp_path))
    assert rows == [{"x": "1", "y": "2"}, {"y": "3", "z": "4"}]


def test_quoted_values_may_hold_commas_quotes_and_newlines(tmp_path):
    rows, _, _ = one_batch(write(tmp_path, b'a,b\n"x, y","say ""hi"""\n"two\nlines","and\r\nmore"\n'))
    assert rows == [{"a": "x, y", "b": 'say "hi"'}, {"a": "two\nlines", "b": "and\r\nmore"}]


def test_a_byte_order_mark_windows_line_ends_and_blank_lines_are_accepted(tmp_path):
    source = write(tmp_path, b"\xef\xbb\xbfa,b\r\n\r\n1,2\r\n\r\n3,4\r\n")
    assert one_batch(source)[0] == [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]
    assert one_batch(source, limit=Limit(rows=1, bytes=1 << 30))[0] == [{"a": "1", "b": "2"}]


@pytest.mark.parametrize("content", [b"", b"a,b", b"a,b\n", b'a,"b\n', b"\n\n"])
def test_a_file_without_a_record_gives_none_and_is_done(tmp_path, content):
    source = write(tmp_path, content)
    rows, bad, position = one_batch(source)
    assert (rows, bad) == ([], [])
    assert source.plan(position, ALL, 0.0) == []


def test_a_row_with_too_many_or_too_few_fields_is_a_bad_row_with_file_and_line(tmp_path):
    source = write(tmp_path, b'a,b\n1,2\n"3\n3"\n4,5,6\n7,8\n')
    rows, bad, _ = one_batch(source)
    path = tmp_path / "a.csv"
    assert rows == [{"a": "1", "b": "2"}, {"a": "7", "b": "8"}]
    assert bad == [
        BadRow(f"{path}, line 3", '"3\n3"', "expected 2 fields (a, b), got 1"),
        BadRow(f"{path}, line 5", "4,5,6", "expected 2 fields (a, b), got 3"),
    ]


def test_a_quote_out_of_place_is_a_bad_row_and_the_next_row_is_good(tmp_path):
    rows, bad, _ = one_batch(write(tmp_path, b'a,b\n"1"x,2\n3,4\n'))
    assert rows == [{"a": "3", "b": "4"}]
    assert [row.error for row in bad] == ["',' expected after '\"'"]


def test_bytes_that_are_no_text_are_a_bad_row(tmp_path):
    rows, bad, _ = one_batch(write(tmp_path, b"a,b\n1,\xff\n3,\xc3\xa9\n"))
    assert rows == [{"a": "3", "b": "é"}]
    assert bad == [BadRow(f"{tmp_path}/a.csv, line 2", "1,\\xff", "expected UTF-8, got b'\\xff'")]


def test_a_value_larger_than_a_field_may_be_is_a_bad_row(tmp_path):
    rows, bad, _ = one_batch(write(tmp_path, b"a,b\n1," + b"x" * 200_000 + b"\n3,4\n"))
    assert rows == [{"a": "3", "b": "4"}]
    assert [row.error for row in bad] == ["field larger than field limit (131072)"]


def test_bad_rows_count_against_a_small_limit(tmp_path):
    source = write(tmp_path, b"a,b\n1\n2\n3,4\n")
    rows, bad, position = one_batch(source, limit=Limit(rows=1, bytes=1 << 30))
    assert (rows, len(bad)) == ([], 1)
    assert position == {"a.csv": {"offset": 6}}


@pytest.mark.parametrize(
    ("tail", "is_open"),
    [(b"3", None), (b"3,4", None), (b'"3', None), (b'"3\n', "record"), (b'"3\n3",4', "line")],
)
def test_a_half_written_record_waits(tmp_path, tail, is_open):
    path = tmp_path / "a.csv"
    source = write(tmp_path, b"a,b\n1,2\n" + tail)
    rows, bad, position = one_batch(source)
    assert (rows, bad) == ([{"a": "1", "b": "2"}], [])
    assert position == {"a.csv": {"offset": 8, "seen": 8 + len(tail), "open": is_open}}
    assert source.plan(position, ALL, 0.0) == []

    path.write_bytes(b'a,b\n1,2\n"3\n3",4\n')
    rows, bad, position = one_batch(source, position)
    assert (rows, bad) == ([{"a": "3\n3", "b": "4"}], [])
    assert position == {"a.csv": {"offset": 16}}


def test_a_row_tells_its_file_and_line_also_after_a_resume(tmp_path):
    source = write(tmp_path, b'a\n1\n"2\n2"\n3\n4\n')
    [split] = source.plan({"a.csv": {"offset": 4}}, ALL, 0.0)
    [chunk] = source.read(split)
    assert [row["a"] for row in chunk.rows] == ["2\n2", "3", "4"]
    assert [chunk.where(i) for i in range(3)] == [f"{tmp_path}/a.csv, line {n}" for n in (3, 5, 6)]


def test_a_field_named_twice_is_an_error(tmp_path):
    source = write(tmp_path, b"a,b,a\n1,2,3\n")
    with pytest.raises(InvalidUse) as error:
        one_batch(source)
    assert str(error.value) == (
        f"{tmp_path}/a.csv, line 1: expected each field once in the CSV header, got 'a' twice. Rename one of them."
    )


def test_a_header_that_is_no_csv_is_an_error(tmp_path):
    with pytest.raises(InvalidUse, match=r"a.csv, line 1: expected a CSV header that names the fields, got: .*UTF-8"):
        one_batch(write(tmp_path, b"\xff\xfea,b\n1,2\n"))


def test_a_large_csv_file_is_one_split():
    [split] = line_plan.plan_lines([File("f", "/f", 40 << 20)], SplitRequest({}, ALL), 100.0, "csv")
    assert (split.start, split.stop) == (0, 40 << 20)


def test_a_csv_file_stays_whole_and_is_read_over_several_batches(tmp_path):
    source = write(tmp_path, b"n\n" + b"".join(b"%d\n" % i for i in range(100_000)))
    found = list(batches(source, 2_000, 0.0))
    assert {len(batch.splits) for batch in found} == {1}
    assert max(len(batch.rows) for batch in found) <= 2_200  # by the length of rows; a driver stops at 2,000
    assert len(found) < 80
    assert [int(row["n"]) for batch in found for row in batch.rows] == list(range(100_000))


def test_a_packed_csv_file_is_read_too(tmp_path):
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"a,b\n1,2\n3,4\n"))
    source = sources.files(tmp_path)
    for limit in (1, 10**6):
        found = [row for batch in batches(source, limit, 0.0) for row in batch.rows]
        assert found == [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]
