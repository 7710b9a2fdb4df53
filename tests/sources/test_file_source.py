from __future__ import annotations

import os
import pickle

import pytest

from millpond import sources
from millpond.errors import InvalidUse
from millpond.sources.base import Limit
from millpond.testing.source_suite import batches

ALL = Limit(rows=10**6, bytes=1 << 30)


def rows_in(source, position=None):
    return [row for batch in batches(source, 10**6, 0.0, position) for row in batch.rows]


def places(source):
    return [split.place for split in source.plan({}, ALL, 0.0)]


def test_files_of_a_folder_come_in_the_order_of_their_names(tmp_path):
    for name in ["b.jsonl", "a.jsonl", "10.jsonl", "9.jsonl"]:
        (tmp_path / name).write_text(f'"{name}"\n')
    assert rows_in(sources.files(tmp_path)) == ["10.jsonl", "9.jsonl", "a.jsonl", "b.jsonl"]


def test_hidden_files_and_subfolders_are_left_out(tmp_path):
    (tmp_path / "below").mkdir()
    for name in ["a.jsonl", ".b.jsonl", "_c.jsonl", "below/d.jsonl"]:
        (tmp_path / name).write_text("1\n")
    assert places(sources.files(tmp_path)) == ["a.jsonl"]


def test_two_stars_in_a_glob_reach_into_subfolders(tmp_path):
    for name in ["a.jsonl", "x/b.jsonl", "x/y/c.jsonl", "_tmp/d.jsonl", ".git/e.jsonl", "x/_f.jsonl"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1\n")
    assert places(sources.files(tmp_path / "**" / "*.jsonl")) == ["a.jsonl", "x/b.jsonl", "x/y/c.jsonl"]


def test_a_glob_that_matches_nothing_yet_waits_and_is_logged_once(tmp_path, caplog):
    source = sources.files(tmp_path / "later" / "*.jsonl")
    assert rows_in(source) == rows_in(source) == []
    assert caplog.messages == [f"files({str(tmp_path / 'later' / '*.jsonl')!r}): there is no file to read yet"]
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "a.jsonl").write_text("1\n")
    assert rows_in(source) == [1]


def test_a_folder_whose_files_were_read_and_removed_is_not_logged(tmp_path, caplog):
    assert sources.files(tmp_path).plan({"a.jsonl": {"offset": 2}}, Limit(10, 100), 0.0) == []
    assert caplog.messages == []


def test_a_folder_may_be_empty_at_first(tmp_path):
    source = sources.files(tmp_path)
    assert rows_in(source) == []
    (tmp_path / "a.jsonl").write_text("1\n")
    assert rows_in(source) == [1]


def test_a_file_whose_name_holds_brackets_is_a_file(tmp_path):
    (tmp_path / "a[1].jsonl").write_text("1\n")
    assert rows_in(sources.files(tmp_path / "a[1].jsonl")) == [1]


@pytest.mark.parametrize("name", ["missing.jsonl", "missing/"])
def test_a_missing_file_or_folder_is_an_error_with_its_path(tmp_path, name):
    source = sources.files(f"{tmp_path}/{name}")
    with pytest.raises(InvalidUse) as error:
        source.plan({}, ALL, 0.0)
    path = str(tmp_path / name)
    assert str(error.value) == (
        f"files({path!r}): expected a file or a folder, but there is none. "
        "Create it, correct the path, or give a glob, which waits for its first file."
    )


def test_a_new_file_is_read_wherever_its_name_sorts(tmp_path):
    (tmp_path / "m.jsonl").write_text("1\n")
    source = sources.files(tmp_path)
    [batch] = batches(source, 10**6, 0.0)
    (tmp_path / "a.jsonl").write_text("2\n")
    (tmp_path / "z.jsonl").write_text("3\n")
    assert rows_in(source, batch.position) == [2, 3]


def test_a_file_that_was_read_may_be_removed(tmp_path):
    (tmp_path / "a.jsonl").write_text("1\n")
    (tmp_path / "b.jsonl").write_text("2\n")
    source = sources.files(tmp_path)
    [batch] = batches(source, 10**6, 0.0)
    (tmp_path / "a.jsonl").unlink()
    assert rows_in(source, batch.position) == []


def test_a_folder_that_moved_as_a_whole_goes_on_where_it_was(tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "a.jsonl").write_text("1\n")
    [batch] = batches(sources.files(tmp_path / "old"), 10**6, 0.0)
    (tmp_path / "old").rename(tmp_path / "new")
    (tmp_path / "new" / "b.jsonl").write_text("2\n")
    assert rows_in(sources.files(tmp_path / "new"), batch.position) == [2]
    assert rows_in(sources.files(tmp_path / "new" / "*"), batch.position) == [2]


def test_a_path_means_the_same_after_the_process_changes_folder(tmp_path, monkeypatch):
    (tmp_path / "a.jsonl").write_text("1\n")
    monkeypatch.chdir(tmp_path)
    source = sources.files("a.jsonl")
    monkeypatch.chdir(os.sep)
    assert rows_in(source) == [1]
    assert rows_in(pickle.loads(pickle.dumps(source))) == [1]


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.jsonl").write_text("1\n")
    assert rows_in(sources.files("~/a.jsonl")) == [1]


@pytest.mark.parametrize(
    ("name", "content", "row"),
    [
        ("a.jsonl", '{"n": "1"}\n', {"n": "1"}),
        ("a.ndjson", '{"n": "1"}\n', {"n": "1"}),
        ("A.JSONL", '{"n": "1"}\n', {"n": "1"}),
        ("a.csv", "n\n1\n", {"n": "1"}),
    ],
)
def test_the_name_of_a_file_tells_its_format(tmp_path, name, content, row):
    (tmp_path / name).write_text(content)
    assert rows_in(sources.files(tmp_path)) == [row]


def test_a_name_that_tells_no_format_is_an_error_unless_the_format_is_said(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("1\n")
    with pytest.raises(InvalidUse) as error:
        sources.files(tmp_path).plan({}, ALL, 0.0)
    assert str(error.value) == (
        f"{path}: expected a name that shows its format (.jsonl, .ndjson, .csv, .parquet), got 'a.json'. "
        "Give it, as in files(path, format='jsonl'), or give a glob that leaves the file out."
    )
    assert rows_in(sources.files(tmp_path, format="jsonl")) == [1]


def test_two_formats_in_one_folder_are_an_error(tmp_path):
    (tmp_path / "a.jsonl").write_text("1\n")
    (tmp_path / "b.csv").write_text("n\n1\n")
    with pytest.raises(InvalidUse) as error:
        sources.files(tmp_path).plan({}, ALL, 0.0)
    assert str(error.value) == (
        f"files: expected one format, got {tmp_path}/a.jsonl and {tmp_path}/b.csv. "
        "Give a glob such as '*.jsonl', or make a stream for each format and combine them with union."
    )


def test_an_unknown_format_is_an_error(tmp_path):
    with pytest.raises(InvalidUse, match=r"expected format= one of \('jsonl', 'csv', 'parquet'\), got 'xml'"):
        sources.files(tmp_path, format="xml")  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["", None, 7, b"a"])
def test_a_path_that_is_none_is_an_error(path):
    with pytest.raises(InvalidUse, match=r"expected a file, a folder or a glob, such as 'orders/', got"):
        sources.files(path)


def test_a_url_is_an_error_that_says_what_to_do():
    with pytest.raises(InvalidUse, match=r"expected a path on a disk that every worker sees, got a URL. Mount it"):
        sources.files("s3://bucket/orders/")


def test_a_file_name_that_is_not_utf_8_is_an_error(tmp_path):
    os.close(os.open(os.fsencode(tmp_path) + b"/\xff.jsonl", os.O_CREAT))
    with pytest.raises(InvalidUse, match=r"expected file names in UTF-8, got b'.*\\xff.jsonl'. Rename the file."):
        sources.files(tmp_path).plan({}, ALL, 0.0)
