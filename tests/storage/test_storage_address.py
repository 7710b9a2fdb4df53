"""From what users write to the storage behind it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from millpond.errors import InvalidUse
from millpond.storage import LocalStorage, is_local, open_storage


def test_a_relative_path_is_made_absolute_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    storage = open_storage("state")
    monkeypatch.chdir(tmp_path / "elsewhere")
    storage.put("a", b"1")
    assert (tmp_path / "state" / "a").read_bytes() == b"1"
    assert storage.url == str(tmp_path / "state")


def test_opening_makes_nothing(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "state"))
    assert storage.get("a") is None
    assert [*storage.list("")] == []
    storage.delete(["a"])
    assert os.listdir(tmp_path) == []


def test_a_file_url_is_the_folder_that_it_names(tmp_path: Path) -> None:
    LocalStorage(tmp_path / "with space é").put("a", b"1")
    for url in (
        (tmp_path / "with space é").as_uri(),
        f"file://localhost{tmp_path}/with%20space%20%C3%A9",
        f"FILE://{tmp_path}/with space é/",
    ):
        assert open_storage(url).get("a") == b"1"


def test_the_home_folder_may_be_abbreviated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_storage("~/state").url == str(tmp_path / "state")


def test_a_path_object_is_a_path(tmp_path: Path) -> None:
    assert open_storage(tmp_path).url == str(tmp_path)
    assert is_local(tmp_path)


@pytest.mark.parametrize("url", ["file://state", "file://", "file://host/state", "file:///state?x=1"])
def test_a_file_url_names_an_absolute_path_of_this_machine(url: str) -> None:
    with pytest.raises(InvalidUse, match="expected file:///folder"):
        open_storage(url)


@pytest.mark.parametrize("url", ["ftp://host/state", "hdfs://host/state", "http://host/state"])
def test_other_schemes_are_refused(url: str) -> None:
    with pytest.raises(InvalidUse, match=f"state_dir {url}: expected a path, or a URL that begins with file://"):
        open_storage(url)


def test_nothing_is_no_address() -> None:
    with pytest.raises(InvalidUse, match="got ''"):
        open_storage("")


def test_a_path_may_look_a_little_like_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_storage("s3:bucket").url == str(tmp_path / "s3:bucket")
    assert is_local(f"{tmp_path}/s3://bucket")


def test_memory_is_shared_by_name_and_private_without_one() -> None:
    open_storage("memory://shared-by-name").put("a", b"1")
    assert open_storage("memory://shared-by-name").get("a") == b"1"
    assert open_storage("memory://another-name").get("a") is None
    private = open_storage("memory://")
    private.put("a", b"2")
    assert open_storage("memory://").get("a") is None
    assert open_storage(private.url).get("a") == b"2"
