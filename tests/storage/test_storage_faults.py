"""The storage that fails on demand, and the words for what the operating system says."""

from __future__ import annotations

import errno

import pytest

from millpond.errors import InvalidUse, MillpondError, Unavailable
from millpond.storage import MemoryStorage
from millpond.storage.durable import as_millpond_error
from millpond.testing.faults import Call, FaultyStorage


@pytest.fixture
def storage() -> FaultyStorage:
    return FaultyStorage(MemoryStorage())


def test_the_nth_put_that_matches_fails_and_only_that(storage: FaultyStorage) -> None:
    storage.fail_put("*/ledger/*", nth=2)
    storage.put("app/ledger/1", b"1")
    storage.put("app/steps/1", b"1")
    with pytest.raises(Unavailable, match="app/ledger/2: no answer"):
        storage.put("app/ledger/2", b"2")
    assert storage.get("app/ledger/2") is None
    storage.put("app/ledger/2", b"2")
    assert storage.get("app/ledger/2") == b"2"


def test_put_and_put_new_count_alike(storage: FaultyStorage) -> None:
    storage.fail_put(nth=2)
    storage.put("a", b"1")
    with pytest.raises(Unavailable):
        storage.put_new("b", b"1")


def test_a_reply_is_lost_after_the_write(storage: FaultyStorage) -> None:
    storage.fail_put("a", how="after")
    storage.fail_put("b", how="after")
    with pytest.raises(Unavailable, match="a: the reply was lost"):
        storage.put("a", b"1")
    with pytest.raises(Unavailable, match="b: the reply was lost"):
        storage.put_new("b", b"1")
    assert storage.get("a") == storage.get("b") == b"1"


def test_our_own_success_comes_back_as_a_conflict(storage: FaultyStorage) -> None:
    storage.fail_put(how="conflict")
    assert storage.put_new("a", b"ours") is False
    assert storage.get("a") == b"ours"


def test_a_full_disk_writes_nothing(storage: FaultyStorage) -> None:
    storage.put("a", b"old")
    storage.fail_put(how="full")
    with pytest.raises(Unavailable, match="the disk is full"):
        storage.put("a", b"new")
    assert storage.get("a") == b"old"


def test_faults_wait_in_line(storage: FaultyStorage) -> None:
    storage.fail_put(how="full")
    storage.fail_put(how="before")
    with pytest.raises(Unavailable, match="full"):
        storage.put("a", b"1")
    with pytest.raises(Unavailable, match="no answer"):
        storage.put("a", b"1")
    storage.put("a", b"1")


def test_files_are_damaged_in_three_ways(storage: FaultyStorage) -> None:
    for name in ("flip", "flip-first", "truncate", "truncate-last", "empty"):
        storage.put(name, b"abcd")
    storage.damage("flip")
    storage.damage("flip-first", at=0)
    storage.damage("truncate", how="truncate")
    storage.damage("truncate-last", how="truncate", at=3)
    storage.damage("empty", how="empty")
    assert storage.get("flip") == b"ab\x9cd"
    assert storage.get("flip-first") == b"\x9ebcd"
    assert storage.get("truncate") == b"ab"
    assert storage.get("truncate-last") == b"abc"
    assert storage.get("empty") == b""


def test_only_what_is_there_can_be_damaged(storage: FaultyStorage) -> None:
    with pytest.raises(InvalidUse, match="expected a file that is not empty, got None"):
        storage.damage("a")
    storage.put("a", b"abcd")
    with pytest.raises(InvalidUse, match="expected at to be from 0 to 3, got 4"):
        storage.damage("a", at=4)
    with pytest.raises(InvalidUse, match="expected 1 for the next put, or more, got 0"):
        storage.fail_put(nth=0)


def test_calls_are_recorded_also_those_that_failed(storage: FaultyStorage) -> None:
    storage.fail_put()
    with pytest.raises(Unavailable):
        storage.put("a", b"1")
    storage.put_new("b", b"1")
    storage.get("b")
    storage.get_range("b", 0, 1)
    [*storage.list("")]
    storage.delete(["a", "b"])
    assert storage.calls == [
        Call("put", "a"),
        Call("put_new", "b"),
        Call("get", "b"),
        Call("get_range", "b"),
        Call("list", ""),
        Call("delete", "a"),
        Call("delete", "b"),
    ]


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [
        (errno.ENOSPC, Unavailable, "tries again by itself; run it again if it has ended."),
        (errno.EDQUOT, Unavailable, "the disk is full"),
        (errno.EACCES, InvalidUse, "that this user may read and write"),
        (errno.EPERM, InvalidUse, "that this user may read and write"),
        (errno.EROFS, InvalidUse, "a disk that can be written"),
        (errno.ENOTDIR, InvalidUse, "A parent of this path is a file"),
        (errno.EIO, Unavailable, "just now"),
        (errno.EMFILE, Unavailable, "just now"),
    ],
)
def test_what_the_operating_system_says_is_sorted_by_what_to_do_next(
    number: int, kind: type[MillpondError], words: str
) -> None:
    error = as_millpond_error("state_dir /data", "written", OSError(number, "Its words", "/data/a"))
    assert type(error) is kind
    assert str(error).startswith("state_dir /data: cannot be written")
    assert "Its words: /data/a" in str(error)
    assert words in str(error)
