"""What a folder promises beyond the common contract: durability, and words for what goes wrong."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millpond.errors import InvalidUse, Unavailable
from millpond.storage import LocalStorage, open_storage
from millpond.testing.storage_suite import paths


class Syncs:
    """What was synced, in order, and whether the final file stood there in full at that moment."""

    def __init__(self, final: Path, data: bytes) -> None:
        self.final, self.data = final, data
        self.seen: list[tuple[str, str]] = []
        self.folders: list[int] = []

    def record(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        done = self.final.is_file() and self.final.read_bytes() == self.data
        is_folder = stat.S_ISDIR(found.st_mode)
        self.seen.append(("folder" if is_folder else "file", "after" if done else "before"))
        if is_folder:
            self.folders.append(found.st_ino)

    def of(self, folder: Path) -> int:
        return self.folders.count(folder.stat().st_ino)


@pytest.fixture
def syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Syncs:
    """No test can cut the power, so this one listens at the call that would survive it."""
    syncs = Syncs(tmp_path / "state" / "a" / "b" / "file", b"new")
    fsync, control = os.fsync, fcntl.fcntl

    def listening_fsync(descriptor: int) -> None:
        syncs.record(descriptor)
        fsync(descriptor)

    def listening_control(descriptor: int, command: int, *rest: int) -> int:
        if command == getattr(fcntl, "F_FULLFSYNC", None):
            syncs.record(descriptor)
        return control(descriptor, command, *rest)

    monkeypatch.setattr(os, "fsync", listening_fsync)
    monkeypatch.setattr(fcntl, "fcntl", listening_control)
    return syncs


def test_put_syncs_the_file_before_it_gets_its_name_and_the_folder_after(tmp_path: Path, syncs: Syncs) -> None:
    storage = LocalStorage(tmp_path / "state")
    storage.put("a/b/file", b"old")
    syncs.seen.clear()
    storage.put("a/b/file", b"new")
    assert syncs.seen == [("file", "before"), ("folder", "after")]


def test_put_new_syncs_the_file_before_it_gets_its_name_and_the_folder_after(tmp_path: Path, syncs: Syncs) -> None:
    storage = LocalStorage(tmp_path / "state")
    storage.put("a/b/other", b"")
    syncs.seen.clear()
    assert storage.put_new("a/b/file", b"new")
    assert syncs.seen == [("file", "before"), ("folder", "after")]


def test_what_put_new_found_there_is_synced_before_it_says_so(tmp_path: Path, syncs: Syncs) -> None:
    syncs.final.parent.mkdir(parents=True)
    syncs.final.write_bytes(b"new")
    storage = LocalStorage(tmp_path / "state")
    assert not storage.put_new("a/b/file", b"newer")
    assert syncs.seen[-1] == ("folder", "after")
    assert syncs.of(syncs.final.parent) == 1


def test_folders_that_are_made_on_the_way_are_synced_in_their_parents(tmp_path: Path, syncs: Syncs) -> None:
    LocalStorage(tmp_path / "state").put("a/b/file", b"new")
    for folder in (tmp_path, tmp_path / "state", tmp_path / "state" / "a", tmp_path / "state" / "a" / "b"):
        assert syncs.of(folder) == 1


def test_folders_that_another_process_may_not_have_synced_are_synced_once(tmp_path: Path, syncs: Syncs) -> None:
    syncs.final.parent.mkdir(parents=True)
    storage = LocalStorage(tmp_path / "state")
    storage.put("a/b/file", b"new")
    assert syncs.of(tmp_path / "state") == syncs.of(tmp_path / "state" / "a") == 1
    storage.put("a/b/other", b"new")
    assert syncs.of(tmp_path / "state") == syncs.of(tmp_path / "state" / "a") == 1


def test_a_disk_that_fails_to_sync_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = LocalStorage(tmp_path)
    storage.put("a", b"old")

    def fail(descriptor: int, *rest: int) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    monkeypatch.setattr(fcntl, "fcntl", fail)
    for write in (storage.put, storage.put_new):
        with pytest.raises(Unavailable, match=r"cannot be written just now \(Input/output error\)"):
            write("a", b"new")
    assert storage.get("a") == b"old"
    assert os.listdir(tmp_path) == ["a"]


@contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    """The one way to run out of room that every machine has, without rights and without a small disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_said_in_words_and_leaves_nothing_behind(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.put("a", b"old")
    for write, path in ((storage.put, "a"), (storage.put_new, "b")):
        with (
            pytest.raises(Unavailable, match=r"state_dir .*: cannot be written: the disk is full .* Free some"),
            no_file_longer_than(4096),
        ):
            write(path, b"x" * 10_000)
    assert storage.get("a") == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_a_folder_that_cannot_be_made_is_said_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    storage = open_storage(str(tmp_path / "file" / "state"))
    assert storage.get("a") is None
    assert [*storage.list("")] == []
    for write in (storage.put, storage.put_new):
        with pytest.raises(InvalidUse, match=r"state_dir .*file/state: cannot be written .*Choose another"):
            write("a", b"1")


def test_a_file_does_not_take_the_place_of_a_folder(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.put("a/b", b"1")
    for write in (storage.put, storage.put_new):
        with pytest.raises(InvalidUse, match="a folder has this name"):
            write("a", b"2")
    assert os.listdir(tmp_path) == ["a"]


def test_a_folder_does_not_take_the_place_of_a_file(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.put("a", b"1")
    with pytest.raises(InvalidUse, match="A parent of this path is a file"):
        storage.put("a/b", b"2")
    assert storage.get("a") == b"1"


def test_a_name_that_is_too_long_is_said_in_words(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    with pytest.raises(InvalidUse, match="Choose a shorter one"):
        storage.put("a" * 300, b"1")
    assert os.listdir(tmp_path) == []


def test_a_folder_that_cannot_be_read_is_said_in_words(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    storage = LocalStorage(tmp_path / "circle")
    with pytest.raises(InvalidUse, match=r"cannot be read .*lead in a circle"):
        storage.get("a")
    with pytest.raises(InvalidUse, match=r"cannot be read .*lead in a circle"):
        storage.get_range("a", 0, 1)
    with pytest.raises(InvalidUse, match=r"cannot be listed .*lead in a circle"):
        [*storage.list("")]
    with pytest.raises(InvalidUse, match=r"cannot be deleted .*lead in a circle"):
        storage.delete(["a"])


ALTERNATE = """
import sys
from millpond.storage import open_storage

storage = open_storage(sys.argv[1])
versions = [bytes([letter]) * 1_000_000 for letter in b"ab"]
while True:
    for version in versions:
        storage.put("a", version)
        print(flush=True)
"""


@pytest.mark.parametrize("puts", [1, 2, 5, 6])
def test_a_killed_writer_leaves_a_whole_file(tmp_path: Path, puts: int) -> None:
    with subprocess.Popen([sys.executable, "-c", ALTERNATE, str(tmp_path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        for _ in range(puts):
            writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
    storage = LocalStorage(tmp_path)
    assert storage.get("a") in (b"a" * 1_000_000, b"b" * 1_000_000)
    assert paths(storage.list("")) == ["a"]


def test_what_a_killed_writer_left_is_not_listed(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.put("ledger/1", b"1")
    (tmp_path / "ledger" / ".tmp-0123456789abcdef").write_bytes(b"half")
    assert paths(storage.list("")) == ["ledger/1"]


def test_a_folder_that_was_removed_is_made_again(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "state")
    storage.put("a/b", b"1")
    shutil.rmtree(tmp_path / "state")
    assert storage.get("a/b") is None
    assert storage.put_new("a/b", b"2")
    assert storage.get("a/b") == b"2"


def refuse(source: str, target: str) -> None:
    raise PermissionError(errno.EPERM, "Operation not permitted", source)


@pytest.mark.parametrize("renames", [True, False])
def test_a_file_system_without_hard_links_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: bool
) -> None:
    monkeypatch.setattr(os, "link", refuse)
    if not renames:
        monkeypatch.setattr("millpond.storage.durable.rename_exclusively", refuse)
    storage = LocalStorage(tmp_path)
    assert storage.put_new("a", b"one") is True
    assert storage.put_new("a", b"two") is False
    assert storage.get("a") == b"one"
    assert os.listdir(tmp_path) == ["a"]


CREATE_WITHOUT_LINKS = """
import os, signal, sys
from millpond.storage import LocalStorage

def die(source, target):
    os.kill(os.getpid(), signal.SIGKILL)

os.replace = die
LocalStorage(sys.argv[1], hard_links=False).put_new("ledger/1", b"one")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="file systems of macOS may have no exclusive rename")
def test_a_new_file_without_hard_links_has_its_name_only_when_it_is_whole(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", CREATE_WITHOUT_LINKS, str(tmp_path)], check=False)
    assert LocalStorage(tmp_path).get("ledger/1") in (None, b"one")


def test_without_hard_links_a_folder_is_not_replaced_by_a_new_file(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(InvalidUse, match="Expected a file, but a folder has this name"):
        LocalStorage(tmp_path, hard_links=False).put_new("a", b"one")
    assert os.listdir(tmp_path) == ["a"]


def test_with_and_without_hard_links_they_agree_who_was_first(tmp_path: Path) -> None:
    with_links, without = LocalStorage(tmp_path), LocalStorage(tmp_path, hard_links=False)
    assert with_links.put_new("a", b"1") and not without.put_new("a", b"2")
    assert without.put_new("b", b"2") and not with_links.put_new("b", b"1")
    assert (with_links.get("a"), with_links.get("b")) == (b"1", b"2")


def test_files_get_the_rights_that_the_user_gives_to_files(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    storage = LocalStorage(tmp_path)
    storage.put("put", b"1")
    storage.put_new("new", b"1")
    modes = {(tmp_path / name).stat().st_mode for name in ("plain", "put", "new")}
    assert len(modes) == 1


def test_empty_folders_are_swept_away_and_made_again_for_whoever_puts_something_there(tmp_path):
    storage = LocalStorage(tmp_path)
    for path in ("app/exchange/1-a/x", "app/exchange/2-a/x", "app/exchange/3-a/x", "app/exchange/file"):
        storage.put(path, b"data")
    storage.delete(["app/exchange/1-a/x", "app/exchange/3-a/x"])
    storage.sweep("app/exchange", lambda path: not path.startswith("app/exchange/3"))
    assert sorted(path.name for path in (tmp_path / "app" / "exchange").iterdir()) == ["2-a", "3-a", "file"]
    storage.put("app/exchange/1-a/y", b"more")  # by one who has put something there before
    storage.sweep("app/exchange", lambda path: True)
    storage.sweep("app/nowhere", lambda path: True)
    assert [item.path for item in storage.list("app")] == [
        "app/exchange/1-a/y",
        "app/exchange/2-a/x",
        "app/exchange/file",
    ]
    assert not (tmp_path / "app" / "exchange" / "3-a").exists()
