from __future__ import annotations

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond import sources
from millpond.errors import Incompatible, InvalidUse
from millpond.sources import jsonl, line_plan
from millpond.sources.base import Limit
from millpond.sources.listing import File
from millpond.sources.ranges import SplitRequest, SplitSizes
from millpond.testing.source_suite import batches, chunk_rows

ALL = Limit(rows=10**6, bytes=1 << 30)


def lines_of(source, position=None, rows=10**6):
    return [row for batch in batches(source, rows, 0.0, position) for row in batch.rows]


def read_all(source, position, limit=ALL):
    """One batch: the raw lines that it gives and the position after it."""
    at, lines = dict(position), []
    for split in source.plan(position, limit, 0.0):
        for chunk in source.read(split):
            lines += chunk.rows.lines
            at[split.place] = chunk.position
    return lines, at


def read_in_pieces(path, smallest, start=0):
    """All lines of a file that is cut into pieces of about `smallest` bytes; checks that the pieces meet."""
    file = File("f", str(path), path.stat().st_size)
    entry = {"f": {"offset": start}}
    splits = line_plan.plan_lines([file], SplitRequest(entry, ALL), 100.0, "jsonl", SplitSizes(smallest, smallest))
    lines, ends = [], []
    for split in splits:
        chunks = list(jsonl.read_jsonl(split))
        lines += [line for chunk in chunks for line in chunk.rows.lines]
        ends.append(chunks[-1].position)
    return lines, ends, splits


def test_a_file_cut_at_every_byte_gives_every_line_once(tmp_path):
    path = tmp_path / "a.jsonl"
    content = b'{"n":1}\n\n22\r\n"x"\n{"n": "long enough to hold several cuts"}\n5\n'
    path.write_bytes(content)
    whole = [b'{"n":1}', b"22", b'"x"', b'{"n": "long enough to hold several cuts"}', b"5"]
    for size in range(1, len(content) + 1):
        lines, ends, _ = read_in_pieces(path, size)
        assert lines == whole, f"in pieces of {size} bytes"
        assert ends[-1] == {"offset": len(content)}


def test_two_splits_that_meet_anywhere_agree_on_where(tmp_path):
    path = tmp_path / "a.jsonl"
    content = b"1\n22\n333\n4444"
    path.write_bytes(content)
    file = File("f", str(path), len(content))
    [whole] = line_plan.plan_lines([file], SplitRequest({}, ALL), 100.0, "jsonl")
    starts = [0, 2, 5, 9]
    for cut in range(1, len(content)):
        first = type(whole)("f", 0, cut, detail=whole.detail)
        second = type(whole)("f", cut, len(content), detail=whole.detail)
        *_, end = jsonl.read_jsonl(first)
        assert end.position["offset"] == min((s for s in starts if s >= cut), default=9)
        lines = [line for chunk in jsonl.read_jsonl(second) for line in chunk.rows.lines]
        after = content[end.position["offset"] : 9].split(b"\n")[:-1]
        assert lines == after
        assert [*jsonl.read_jsonl(second)][-1].position == {"offset": 9, "seen": len(content)}


@given(
    lines=st.lists(st.sampled_from([b"", b"1", b"22", b"  ", b'"333"', b"\r", b'"' + b"x" * 40 + b'"']), max_size=12),
    tail=st.sampled_from([b"", b"9", b'{"half', b"y" * 50]),
    size=st.integers(1, 30),
)
def test_any_file_in_pieces_of_any_size_gives_every_complete_line_once(tmp_path_factory, lines, tail, size):
    path = tmp_path_factory.mktemp("any") / "a.jsonl"
    complete = b"".join(line + b"\n" for line in lines)
    path.write_bytes(complete + tail)
    found, ends, splits = read_in_pieces(path, size)
    assert found == [line for line in lines if line.strip()]
    if splits:
        expected = {"offset": len(complete), "seen": len(complete + tail)} if tail else {"offset": len(complete)}
        assert ends[-1] == expected


def test_a_large_file_is_shared_out_among_tasks(tmp_path):
    file = File("f", str(tmp_path / "f"), 40 << 20)
    splits = line_plan.plan_lines([file], SplitRequest({}, ALL), 100.0, "jsonl")
    assert [split.weight for split in splits] == [10 << 20] * 4


def test_a_small_file_is_one_split(tmp_path):
    file = File("f", str(tmp_path / "f"), 1 << 20)
    assert len(line_plan.plan_lines([file], SplitRequest({}, ALL), 100.0, "jsonl")) == 1


def test_no_split_is_larger_than_64_mb(tmp_path):
    file = File("f", str(tmp_path / "f"), 1 << 30)
    splits = line_plan.plan_lines([file], SplitRequest({}, Limit(rows=10**9, bytes=1 << 40)), 100.0, "jsonl")
    assert [split.weight for split in splits] == [64 << 20] * 16


def test_a_plan_holds_about_as_many_bytes_as_rows_allow():
    file = File("f", "/f", 1 << 30)
    splits = line_plan.plan_lines([file], SplitRequest({}, Limit(rows=50_000, bytes=1 << 40)), 200.0, "jsonl")
    assert splits[-1].stop == 9_500_000  # the length of rows is an estimate, and the number of rows is not passed


def test_a_plan_holds_no_more_than_the_bytes_allowed():
    files = [File("a", "/a", 3_000_000), File("b", "/b", 3_000_000), File("c", "/c", 10)]
    splits = line_plan.plan_lines(files, SplitRequest({}, Limit(rows=10**9, bytes=5_000_000)), 100.0, "jsonl")
    assert sum(split.weight for split in splits) == 5_000_000
    assert {split.place for split in splits} == {"a", "b"}


def test_the_next_plan_goes_by_what_a_row_turned_out_to_weigh(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"x" * 19 + b"\n" + (b"x" * 19 + b"\n") * 500_000)
    source = sources.files(tmp_path / "a.jsonl")
    assert source.plan({}, Limit(rows=2_000, bytes=1 << 30), 0.0)[-1].stop == 2_000 * 0.95 * 20
    source.learned(rows=1_000, bytes=2_000)
    assert source.plan({}, Limit(rows=2_000, bytes=1 << 30), 0.0)[-1].stop == 2_000 * 0.95 * 2


@pytest.mark.parametrize("limit", [1, 2, 7, 999])
def test_a_small_limit_is_kept_to_the_row(tmp_path, limit):
    (tmp_path / "a.jsonl").write_bytes(b"".join(b"%d\n\n" % i for i in range(2_500)))
    (tmp_path / "b.jsonl").write_bytes(b"1\n2\n3\n")
    sizes = [len(batch.rows) for batch in batches(sources.files(tmp_path), limit, 0.0)]
    assert max(sizes) == limit
    assert sum(sizes) == 2_503


def test_a_limit_of_few_bytes_still_reads_a_line_that_is_longer(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'"' + b"x" * 5_000 + b'"\n1\n')
    lines, position = read_all(sources.files(tmp_path), {}, Limit(rows=10**6, bytes=10))
    assert [len(line) for line in lines] == [5_002]
    assert position == {"a.jsonl": {"offset": 5_003}}


def test_a_half_written_line_waits_for_its_newline(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"n": 1}\n{"n":')
    source = sources.files(path)
    lines, position = read_all(source, {})
    assert lines == [b'{"n": 1}']
    assert source.plan(position, ALL, 0.0) == []

    with open(path, "ab") as file:
        file.write(b" 2")
    lines, position = read_all(source, position)
    assert lines == []
    assert source.plan(position, ALL, 0.0) == []

    with open(path, "ab") as file:
        file.write(b"}\n")
    lines, position = read_all(source, position)
    assert lines == [b'{"n": 2}']
    assert source.plan(position, ALL, 0.0) == []


def test_a_file_that_holds_only_half_a_line_does_not_hold_up_the_next(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"[1")
    (tmp_path / "b.jsonl").write_bytes(b"2\n")
    assert lines_of(sources.files(tmp_path), rows=1) == [2]


def test_a_half_written_line_is_planned_again_when_the_batch_failed(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"1\n2")
    source = sources.files(tmp_path)
    first = source.plan({}, ALL, 0.0)
    assert source.plan({}, ALL, 0.0) == first != []


def test_what_is_appended_while_a_batch_reads_is_left_to_the_next(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"1\n2\n3")
    source = sources.files(path)
    splits = source.plan({}, ALL, 0.0)
    with open(path, "ab") as file:
        file.write(b"3\n4\n")
    [*chunks] = source.read(splits[0])
    assert [row for chunk in chunks for row in chunk_rows(chunk)] == [1, 2]
    assert lines_of(source, {"a.jsonl": chunks[-1].position}) == [33, 4]


def test_a_file_without_a_final_newline_keeps_its_last_line_waiting(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"1\n2")
    assert lines_of(sources.files(tmp_path)) == [1]


@pytest.mark.parametrize("content", [b"", b"\n", b"\n \r\n\n", b"\xef\xbb\xbf\n"])
def test_a_file_of_nothing_but_blanks_gives_no_row_and_is_done(tmp_path, content):
    (tmp_path / "a.jsonl").write_bytes(content)
    source = sources.files(tmp_path)
    lines, position = read_all(source, {})
    assert lines == []
    assert source.plan(position, ALL, 0.0) == []


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"n": 1}\n{"n": 2}\n')
    assert lines_of(sources.files(tmp_path)) == [{"n": 1}, {"n": 2}]
    assert lines_of(sources.files(tmp_path), rows=1) == [{"n": 1}, {"n": 2}]


def test_lines_may_end_as_on_windows(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"n": 1}\r\n\r\n{"n": 2}\r\n')
    lines, position = read_all(sources.files(tmp_path), {})
    assert lines == [b'{"n": 1}', b'{"n": 2}']
    assert position == {"a.jsonl": {"offset": 22}}


@pytest.mark.parametrize("rows", [1, 10**6])
def test_a_row_of_three_megabytes_is_a_row_like_any_other(tmp_path, rows):
    long = "x" * 3_000_000
    (tmp_path / "a.jsonl").write_text('1\n{"text": "' + long + '"}\n2\n')
    assert lines_of(sources.files(tmp_path), rows=rows) == [1, {"text": long}, 2]


def test_a_row_longer_than_several_splits_comes_once(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'1\n"' + b"x" * 300_000 + b'"\n2\n')
    lines, _, splits = read_in_pieces(path, 70_000)
    assert len(splits) == 5
    assert [len(line) for line in lines] == [1, 300_002, 1]


def test_many_short_rows_come_in_chunks_that_each_know_their_position(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"12\r\n" * 120_000)
    [split] = sources.files(path).plan({}, ALL, 0.0)
    chunks = list(jsonl.read_jsonl(split))
    assert [len(chunk.rows.lines) for chunk in chunks] == [50_000, 50_000, 20_000]
    assert [chunk.position for chunk in chunks] == [{"offset": n} for n in (200_000, 400_000, 480_000)]


def test_a_row_tells_its_file_and_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf\n{"n": 1}\n\n{"n": 2}\n{oops\n')
    source = sources.files(path)
    [split] = source.plan({}, ALL, 0.0)
    [chunk] = source.read(split)
    assert [chunk.where(i) for i in range(3)] == [f"{path}, line {n}" for n in (2, 4, 5)]  # type: ignore[misc]

    position = {"a.jsonl": {"offset": 13}}
    [split] = source.plan(position, ALL, 0.0)
    [chunk] = source.read(split)
    assert chunk.where(1) == f"{path}, line 5"  # type: ignore[misc]


def test_a_row_of_a_packed_file_tells_its_line(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b"1\n\n2\n"))
    source = sources.files(path)
    [split] = source.plan({}, ALL, 0.0)
    chunk = next(source.read(split))
    assert chunk.where(1) == f"{path}, line 3"  # type: ignore[misc]


def test_a_file_that_shrank_is_an_error_that_says_what_to_do(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"1\n")
    with pytest.raises(InvalidUse) as error:
        sources.files(path).plan({"a.jsonl": {"offset": 10}}, ALL, 0.0)
    assert str(error.value) == (
        f"{path}: expected at least 10 bytes, which were read before, but the file has 2. A source file "
        "may grow and must not shrink or be rewritten: put the old content back, or give new content a new "
        "name."
    )


@pytest.mark.parametrize("change", ["shrunk", "gone"])
def test_a_file_that_changed_after_the_plan_is_an_error(tmp_path, change):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"1\n2\n3\n")
    source = sources.files(path)
    [split] = source.plan({}, ALL, 0.0)
    if change == "shrunk":
        path.write_bytes(b"1\n")
        expected = "expected at least 6 bytes, which were read before, but the file has 2"
    else:
        path.unlink()
        expected = "expected a file of 6 bytes, but it is gone. Put it back."
    with pytest.raises(InvalidUse, match=expected):
        list(source.read(split))


def test_a_position_of_another_format_is_refused(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"1\n")
    with pytest.raises(Incompatible, match="expected a position of a file of lines such as"):
        sources.files(tmp_path).plan({"a.jsonl": {"rows": 1}}, ALL, 0.0)


def test_a_packed_file_that_is_cut_off_waits_for_the_rest(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    whole = gzip.compress("".join(f"{i}\n" for i in range(10_000)).encode())
    path.write_bytes(whole[:-20])
    source = sources.files(path)
    lines, position = read_all(source, {})
    assert source.plan(position, ALL, 0.0) == []
    path.write_bytes(whole)
    assert [int(line) for line in lines] + lines_of(source, position) == list(range(10_000))


def test_a_large_packed_file_is_read_in_several_batches(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress("".join(f"{i}\n" for i in range(200_000)).encode()))
    found = list(batches(sources.files(path), 2_000, 0.0))
    assert len(found) > 2
    assert [row for batch in found for row in batch.rows] == list(range(200_000))


def test_a_packed_file_that_may_not_fit_ends_the_plan():
    files = [File(f"{name}.gz", f"/{name}.gz", 1_000_000) for name in "abc"]
    splits = line_plan.plan_lines(files, SplitRequest({}, Limit(rows=10**9, bytes=12_000_000)), 100.0, "jsonl")
    assert [(split.place, split.stop) for split in splits] == [("a.gz", None), ("b.gz", 4_000_000)]


def test_a_file_that_is_named_gz_and_is_none_is_an_error(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(b'{"n": 1}\n')
    source = sources.files(path)
    [split] = source.plan({}, ALL, 0.0)
    with pytest.raises(InvalidUse, match=r"a\.jsonl\.gz: expected a gzip file, as its name says, got Not a gzip"):
        list(source.read(split))
