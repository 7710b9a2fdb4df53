"""A store that is mostly free space shrinks, and nobody who reads it notices."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from replica_workers import after

from millpond.log.segment import Change
from millpond.replica import shrink
from millpond.replica.catch_up import open_replica
from millpond.replica.lmdb_store import LMDB, RecordChanges, close_below
from millpond.replica.room import SHRINK_FREE, SHRINK_SIZE, Room, should_shrink, size_below

VALUE = random.Random(1).randbytes(500_000)
CELLS = 150


def the_log() -> list[RecordChanges]:
    """Much state, of which nearly all is deleted, and a record after that."""
    return [
        RecordChanges(0, {"s": [Change(b"%04d" % n, b"", VALUE) for n in range(CELLS)]}, "0"),
        RecordChanges(1, {"s": [Change(b"%04d" % n, b"", None) for n in range(2, CELLS)]}, "1", "0"),
        RecordChanges(2, {"s": [Change(b"new", b"", b"1")]}, "2", "1"),
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "p"
    close_below(str(tmp_path))


def shown(view: Any) -> tuple[int, list[bytes], bool]:
    found = list(view.entries("s"))
    return view.position, [entry.key for entry in found], all(entry.value in (VALUE, b"1") for entry in found)


def wait_for(thread: Any) -> None:
    assert thread is not None, "a thread was started"
    thread.join(120)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("room", "expected"),
    [
        (Room(SHRINK_SIZE, SHRINK_SIZE), False),
        (Room(SHRINK_SIZE + 1, SHRINK_SIZE), True),
        (Room(1 << 40, int(SHRINK_FREE * (1 << 40))), False),
        (Room(1 << 40, int(SHRINK_FREE * (1 << 40)) + 1), True),
    ],
)
def test_only_a_large_store_that_is_mostly_free_is_worth_a_copy(room: Room, expected: bool) -> None:
    assert should_shrink(room) is expected


def test_a_store_shrinks_while_it_is_read_and_goes_on_from_the_log(folder: Path) -> None:
    log = the_log()
    with open_replica(folder, after(log[:2])) as view:
        before = size_below(folder)
        assert before > CELLS * len(VALUE)
        wait_for(shrink.shrink_when_due(LMDB, folder))
        assert shown(view) == (1, [b"0000", b"0001"], True), "who reads it is not disturbed"
    asked: list[int] = []
    with open_replica(folder, after(log, asked)) as view:
        assert shown(view) == (2, [b"0000", b"0001", b"new"], True)
    assert asked == [1], "it was copied, not built again"
    assert size_below(folder) < before / 20
    assert [path.name[:7] for path in folder.glob("g0*")] == ["g000002"]
    assert shrink.shrink_when_due(LMDB, folder) is None, "not soon again"


def test_a_full_store_stays_as_it_is(folder: Path) -> None:
    with open_replica(folder, after(the_log()[:1])):
        wait_for(shrink.shrink_when_due(LMDB, folder))
    assert [path.name[:7] for path in folder.glob("g0*")] == ["g000001"]
    assert not list(folder.glob("building-*"))


KILLED = """
import os, signal, sys
from pathlib import Path
from millpond.replica import shrink
from millpond.replica.lmdb_store import LMDB, Replica

copy = Replica.copy_shrunk
def copy_and_die(store, path):
    copy(store, path)
    os.kill(os.getpid(), signal.SIGKILL)
Replica.copy_shrunk = copy_and_die
shrink.shrink_when_due(LMDB, Path(sys.argv[1])).join()
"""


def test_a_process_that_is_killed_while_it_copies_leaves_the_store_as_it_was(folder: Path) -> None:
    log = the_log()
    with open_replica(folder, after(log[:2])):
        pass
    close_below(folder)
    assert subprocess.run([sys.executable, "-c", KILLED, str(folder)], check=False).returncode == -9
    assert len(list(folder.glob("building-*.lock"))) == 1
    with open_replica(folder, after(log[:2], asked := [])) as view:
        assert shown(view) == (1, [b"0000", b"0001"], True)
        assert asked == [1]
        wait_for(shrink.shrink_when_due(LMDB, folder))
    with open_replica(folder, after(log)) as view:
        assert shown(view) == (2, [b"0000", b"0001", b"new"], True)
    assert not list(folder.glob("building-*")), "what the killed process left is gone"
    assert size_below(folder) < SHRINK_SIZE / 4
