from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millpond import sources
from millpond.errors import Incompatible, InvalidUse
from millpond.sources import parquet
from millpond.sources.base import Limit
from millpond.sources.listing import File
from millpond.sources.parquet import Footer
from millpond.sources.ranges import SplitRequest, SplitSizes
from millpond.testing.source_suite import batches

ALL = Limit(rows=10**6, bytes=1 << 30)
MB = 1 << 20


def planned(groups, position=None, limit=ALL, **sizes):
    """The row ranges that a plan makes of one file with these row groups (rows, bytes)."""
    file = File("f", "/f", 1)
    splits = parquet.plan_parquet(
        [file], SplitRequest(position or {}, limit), lambda file: Footer(tuple(groups)), SplitSizes(**sizes)
    )
    return [(split.start, split.stop) for split in splits]


def test_small_row_groups_are_joined_to_splits_of_a_megabyte():
    assert planned([(10, MB // 2)] * 4) == [(0, 20), (20, 40)]


def test_a_large_row_group_is_cut():
    assert planned([(1_000, 8 * MB)]) == [(0, 250), (250, 500), (500, 750), (750, 1_000)]


def test_no_split_is_much_larger_than_64_mb():
    assert planned([(1_024, 512 * MB)]) == [(i, i + 128) for i in range(0, 1_024, 128)]


def test_a_plan_ends_at_the_row_that_the_limit_says():
    assert planned([(100, 10), (100, 10)], limit=Limit(rows=150, bytes=1 << 30)) == [(0, 150)]
    assert planned([(100, 10), (100, 10)], {"f": {"rows": 150}}) == [(150, 200)]


def test_a_plan_ends_at_about_the_bytes_that_the_limit_says():
    assert planned([(100, 1_000)] * 9, limit=Limit(rows=10**6, bytes=2_500)) == [(0, 250)]


def test_a_row_larger_than_the_bytes_allowed_is_read_alone():
    assert planned([(2, 2_000)], limit=Limit(rows=10**6, bytes=10)) == [(0, 1)]


@pytest.mark.parametrize(
    "groups, limit",
    [
        ([(100, 880), (100, 880)], Limit(rows=50, bytes=300)),  # 4 bytes are left, less than a row
        ([(100, 10)] * 50, Limit(rows=100, bytes=5)),  # less than a byte per row
        ([(36_000, 36_000 * 2_805)] * 9, Limit(rows=100_000, bytes=256 * MB)),
        ([(50_000, 50_000 * 36)] * 4, Limit(rows=10_000, bytes=100_000)),
    ],
)
def test_a_plan_that_ends_inside_a_row_group_has_nothing_of_the_next_one(groups, limit):
    ranges = planned(groups, limit=limit)
    first, size = groups[0]
    assert ranges[-1][1] <= limit.rows
    assert ranges[-1][1] * size / first <= limit.bytes + size / first
    assert ranges[0][0] == 0 and all(a[1] == b[0] for a, b in pairwise(ranges))


def test_a_plan_that_ends_inside_a_row_group_has_nothing_of_the_next_file():
    files = [File("f", "/f", 1), File("g", "/g", 1)]
    request = SplitRequest({}, Limit(rows=1_000, bytes=300))
    splits = parquet.plan_parquet(files, request, lambda file: Footer(((100, 880),)), SplitSizes())
    assert [(split.place, split.start, split.stop) for split in splits] == [("f", 0, 34)]


def test_row_groups_without_rows_are_passed_over():
    assert planned([(0, 0), (5, 10), (0, 0), (5, 10)]) == [(0, 10)]


@pytest.mark.parametrize("smallest", [1, 30, 100, 1_000])
def test_a_file_cut_in_any_way_gives_every_row_once(tmp_path, smallest):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": list(range(100))}), path, row_group_size=9)
    file = File("f", str(path), path.stat().st_size)
    splits = parquet.plan_parquet(
        [file],
        SplitRequest({}, ALL),
        lambda file: parquet.read_footer(file.path),
        SplitSizes(smallest, smallest),
    )
    chunks = [chunk for split in splits for chunk in parquet.read_parquet(split)]
    assert [n for chunk in chunks for n in chunk.rows["n"].to_pylist()] == list(range(100))  # type: ignore[call-overload, index]
    assert chunks[-1].position == {"rows": 100, "seen": file.size}
    assert all(split.may_join for split in splits)
    [*_, last] = joined = list(parquet.read_parquet(replace(splits[0], stop=splits[-1].stop)))
    assert [n for chunk in joined for n in chunk.rows["n"].to_pylist()] == list(range(100))  # type: ignore[call-overload, index]
    assert last.position == chunks[-1].position


def test_rows_come_as_columns_of_plain_types(tmp_path):
    words = pa.array(["a", "b", "a"]).dictionary_encode()
    lists = pa.ListArray.from_arrays([0, 1, 2, 3], words)
    table = pa.table({"word": words, "in_list": lists, "in_struct": pa.StructArray.from_arrays([words], ["w"])})
    pq.write_table(table, tmp_path / "a.parquet")
    source = sources.files(tmp_path)
    [split] = source.plan({}, ALL, 0.0)
    [chunk] = source.read(split)
    assert "dictionary" not in str(chunk.rows.schema)
    assert chunk.rows.to_pylist() == table.to_pylist()


def test_wide_rows_come_in_chunks_of_a_few_megabytes(tmp_path):
    table = pa.table({"n": [f"{i:0100000d}" for i in range(300)]})
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=False)
    file = File("f", str(tmp_path / "a.parquet"), 1)
    footer = parquet.read_footer(file.path)
    [split] = parquet.plan_parquet([file], SplitRequest({}, ALL), lambda file: footer, SplitSizes(1 << 40, 1 << 40))
    sizes = [chunk.rows.nbytes for chunk in parquet.read_parquet(split)]
    assert sum(sizes) > 25 * MB
    assert max(sizes) < 9 * MB


def test_a_split_reads_only_the_row_groups_that_it_needs(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": list(range(300))}), path, row_group_size=100, compression="none")
    group = pq.read_metadata(path).row_group(1).column(0)
    with open(path, "r+b") as file:  # whoever reads the group in the middle, fails
        file.seek(group.dictionary_page_offset)
        file.write(b"\xff" * group.total_compressed_size)
    source = sources.files(path)
    for start, stop in [(0, 100), (200, 300), (250, 270)]:
        [split] = source.plan({"a.parquet": {"rows": start}}, Limit(rows=stop - start, bytes=1 << 30), 0.0)
        assert [n for c in source.read(split) for n in c.rows["n"].to_pylist()] == list(range(start, stop))  # type: ignore[call-overload, index]
    [split] = source.plan({"a.parquet": {"rows": 50}}, Limit(rows=100, bytes=1 << 30), 0.0)
    with pytest.raises(OSError):
        list(source.read(split))


def read_range(source, place, start, stop):
    """The values of a range of rows, as a batch of its own reads them."""
    [split] = source.plan({place: {"rows": start}}, Limit(rows=stop - start, bytes=1 << 30), 0.0)
    return [n for chunk in source.read(split) for n in chunk.rows["n"].to_pylist()]


@pytest.fixture
def decoded(monkeypatch):
    """The ranges of row groups that readers begin to decode."""
    found = []
    iter_batches = pq.ParquetFile.iter_batches

    def counted(file, *args, row_groups, **kwargs):
        found.append(list(row_groups))
        return iter_batches(file, *args, row_groups=row_groups, **kwargs)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counted)
    return found


def test_a_row_group_that_several_batches_read_is_decoded_once(tmp_path, decoded):
    pq.write_table(pa.table({"n": list(range(5_000))}), tmp_path / "a.parquet", row_group_size=4_000)
    source = sources.files(tmp_path)
    found = [read_range(source, "a.parquet", start, start + 1_000) for start in range(0, 5_000, 1_000)]
    assert found == [list(range(start, start + 1_000)) for start in range(0, 5_000, 1_000)]
    assert decoded == [[0], [1]]


def test_a_reader_goes_forward_within_a_row_group_but_not_back(tmp_path, decoded):
    pq.write_table(pa.table({"n": list(range(9_000))}), tmp_path / "a.parquet", row_group_size=3_000)
    source = sources.files(tmp_path)
    for start, stop in [(0, 1_000), (2_000, 2_500), (2_700, 4_000), (1_000, 2_000), (8_000, 9_000), (0, 3_000)]:
        assert read_range(source, "a.parquet", start, stop) == list(range(start, stop))
    assert decoded == [[0], [1], [0], [2], [0]]


def test_a_file_that_is_replaced_inside_a_row_group_is_read_anew(tmp_path):
    path = tmp_path / "a.parquet"
    source = sources.files(tmp_path)
    pq.write_table(pa.table({"n": list(range(4_000))}), path)
    assert read_range(source, "a.parquet", 0, 1_000) == list(range(1_000))
    pq.write_table(pa.table({"n": [-n for n in range(4_000)]}), path)
    assert read_range(source, "a.parquet", 1_000, 2_000) == [-n for n in range(1_000, 2_000)]


def test_readers_that_are_kept_hold_no_more_than_they_may(tmp_path, decoded, monkeypatch):
    monkeypatch.setattr(parquet, "_MOST_KEPT_BYTES", 80_000)
    for name in ("a", "b", "c"):
        pq.write_table(pa.table({"n": list(range(4_000))}), tmp_path / f"{name}.parquet", use_dictionary=False)
    assert parquet.read_footer(str(tmp_path / "a.parquet")).groups[0][1] in range(30_000, 40_000)
    for name in ("a", "b", "c"):
        read_range(sources.files(tmp_path / f"{name}.parquet"), f"{name}.parquet", 0, 1_000)
    for name in ("c", "b", "a"):  # no room was left for a
        read_range(sources.files(tmp_path / f"{name}.parquet"), f"{name}.parquet", 1_000, 2_000)
    assert len(decoded) == 4
    monkeypatch.setattr(parquet, "_MOST_KEPT_BYTES", 10)
    assert read_range(sources.files(tmp_path / "b.parquet"), "b.parquet", 2_000, 3_000) == list(range(2_000, 3_000))
    read_range(sources.files(tmp_path / "b.parquet"), "b.parquet", 3_000, 4_000)
    assert len(decoded) == 5


def test_a_row_group_that_is_too_large_to_be_kept_leaves_the_others(tmp_path, decoded, monkeypatch):
    monkeypatch.setattr(parquet, "_MOST_KEPT_BYTES", 80_000)
    for name, rows in (("a", 4_000), ("b", 20_000)):
        pq.write_table(pa.table({"n": list(range(rows))}), tmp_path / f"{name}.parquet", use_dictionary=False)
    for name, start in (("a", 0), ("b", 0), ("a", 1_000), ("b", 1_000)):
        source = sources.files(tmp_path / f"{name}.parquet")
        assert read_range(source, f"{name}.parquet", start, start + 1_000) == list(range(start, start + 1_000))
    assert len(decoded) == 3


def test_a_reader_that_is_left_in_the_middle_is_not_kept(tmp_path, decoded):
    pq.write_table(pa.table({"n": list(range(4_000))}), tmp_path / "a.parquet")
    source = sources.files(tmp_path)
    [split] = source.plan({"a.parquet": {"rows": 0}}, Limit(rows=2_000, bytes=1 << 30), 0.0)
    next(iter(source.read(split)))
    assert read_range(source, "a.parquet", 2_000, 3_000) == list(range(2_000, 3_000))
    assert len(decoded) == 2


def test_a_row_tells_its_file_and_number(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": list(range(100))}), path, row_group_size=9)
    source = sources.files(path)
    [split] = source.plan({"a.parquet": {"rows": 20}}, ALL, 0.0)
    [chunk] = source.read(split)
    assert chunk.rows["n"][3].as_py() == 23  # type: ignore[call-overload, index]
    assert chunk.where(3) == f"{path}, row 24"  # type: ignore[misc]


def test_a_file_without_rows_is_done_at_once(tmp_path):
    pq.write_table(pa.table({"n": pa.array([], pa.int64())}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"n": [1]}), tmp_path / "b.parquet")
    found = list(batches(sources.files(tmp_path), 1, 0.0))
    assert [batch.rows for batch in found] == [[{"n": 1}]]
    assert sources.files(tmp_path).plan(found[-1].position, ALL, 0.0) == []


@pytest.mark.parametrize("content", [b"", b"PAR1", b'{"n": 1}\n' * 10])
def test_a_file_that_is_no_parquet_is_an_error_with_its_path(tmp_path, content):
    (tmp_path / "a.parquet").write_bytes(content)
    with pytest.raises(InvalidUse, match=r"/a.parquet: expected a Parquet file, got: .* Remove it, or give its format"):
        sources.files(tmp_path).plan({}, ALL, 0.0)


def test_a_file_that_is_gone_when_the_task_reads_it_is_an_error(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": [1]}), path)
    source = sources.files(path)
    [split] = source.plan({}, ALL, 0.0)
    path.unlink()
    with pytest.raises(InvalidUse, match=r"a.parquet: expected a Parquet file, but it is gone. Put it back."):
        list(source.read(split))


def test_a_file_that_lost_rows_is_an_error(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": [1, 2, 3]}), path)
    source = sources.files(path)
    [split] = source.plan({}, ALL, 0.0)
    pq.write_table(pa.table({"n": [1]}), path)
    expected = "expected at least 3 rows, which were read before, but the file has 1"
    with pytest.raises(InvalidUse, match=expected):
        list(source.read(split))
    with pytest.raises(InvalidUse, match=expected):
        source.plan({"a.parquet": {"rows": 3}}, ALL, 0.0)


def test_a_position_of_another_format_is_refused(tmp_path):
    pq.write_table(pa.table({"n": [1]}), tmp_path / "a.parquet")
    with pytest.raises(Incompatible, match="expected a position of a Parquet file such as"):
        sources.files(tmp_path).plan({"a.parquet": {"offset": 1}}, ALL, 0.0)


def test_the_footers_of_finished_files_are_not_opened_again(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": [1]}), path)
    [batch] = batches(sources.files(path), 10, 0.0)
    path.write_bytes(b"x" * path.stat().st_size)  # whoever opens it now, fails
    assert sources.files(path).plan(batch.position, ALL, 0.0) == []
