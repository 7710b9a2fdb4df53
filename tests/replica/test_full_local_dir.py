"""A local_dir that is full, or goes away: an error in words, or a replica somewhere else; never a signal."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from replica_workers import after, folded, records, replicated, wrong
from small_drivers import WHOLE, Lanes, driver_of

import millpond as mp
from millpond.replica import lmdb_store as local
from millpond.replica.lmdb_store import LOCK_BYTES, close_below
from millpond.storage import open_storage


def total(key: str, row: dict[str, Any], state: int) -> tuple[None, int]:
    return None, state + row["value"]


def an_app(rows: list[Any], store: str = "lmdb") -> mp.App:
    app = mp.App("full", partitions=1, store=store)
    app.stream("rows", Lanes({"0": rows}, width=1000)).key_by("key").stateful_map("total", total, initial=0)
    return app


PROGRAM = """
import random, sys
from pathlib import Path
import millpond as mp
from millpond.storage import open_storage
from test_full_local_dir import an_app, driver_of, fill, WHOLE

place, state, when, store = Path(sys.argv[1]), *sys.argv[2:]
rows = [{"key": f"k{n:05d}" + random.Random(n).randbytes(100).hex(), "value": 1} for n in range(1000)]
driver = driver_of(an_app(rows, store), open_storage(state), place / "local")
try:
    if when == "before":
        fill(place)
    driver.batch(WHOLE)
    if when == "between":
        fill(place)
    rows += [{"key": f"m{n:05d}" + random.Random(n).randbytes(100).hex(), "value": 1} for n in range(5000)]
    while driver.batch(WHOLE):
        pass
except mp.errors.Unavailable as error:
    print(error)
else:
    print("no error")
"""


def fill(place: Path) -> None:
    with open(place / "filled", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of half a megabyte."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "millpond", str(place)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"mounting a file system takes rights that this user lacks: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def run_program(program: str, small: Path, *args: str) -> Any:
    paths = {"PYTHONPATH": os.pathsep.join(sys.path), "MILLPOND_MEMORY_DIR": str(small)}
    return subprocess.run(
        [sys.executable, "-c", program, str(small), *args],
        capture_output=True, text=True, check=False, env={**os.environ, **paths},
    )  # fmt: skip


@pytest.mark.parametrize("store", ["lmdb", "rocksdb", "memory"])
@pytest.mark.parametrize("when", ["before", "between", "growing"])
def test_a_full_disk_is_an_error_in_words(small: Path, tmp_path: Path, when: str, store: str) -> None:
    found = run_program(PROGRAM, small, str(tmp_path / "state"), when, store)
    assert (found.returncode, found.stderr) == (0, ""), "not killed by a signal"
    assert str(small) in found.stdout
    if (store, when) != ("memory", "before"):
        assert "local replica" in found.stdout
        assert "Its disk is full" in found.stdout and "choose another local_dir" in found.stdout
    else:
        assert "No space left on device" in found.stdout and "another tmpfs in MILLPOND_MEMORY_DIR" in found.stdout
    shutil.rmtree(small, ignore_errors=True)
    app = an_app([])
    app.state_dir, app.local_dir = str(tmp_path / "state"), str(tmp_path / "elsewhere")
    held = dict(app.state("total").items())
    assert set(held.values()) <= {1, 2}, "and the state is safe"


GOES_ON = """
import sys
from pathlib import Path
import millpond as mp
from millpond.storage import open_storage
from test_full_local_dir import an_app, driver_of, fill, WHOLE

place, state, store = Path(sys.argv[1]), *sys.argv[2:]
rows = [{"key": f"k{n}", "value": 1} for n in range(30)]
driver = driver_of(an_app(rows, store), open_storage(state), place / "local")
driver.batch(WHOLE)
for n in range(3):
    rows += [{"key": f"k{n}", "value": 1} for n in range(30)]
    fill(place)
    try:
        while driver.batch(WHOLE):  # a store may have the room for a record already
            rows += [{"key": f"k{n}", "value": 0} for n in range(30)]
    except mp.errors.Unavailable as error:
        assert "disk is full" in str(error), error
    else:
        sys.exit("no error")
    (place / "filled").unlink()
    while driver.batch(WHOLE):
        pass
driver.close()
app = an_app([], store)
app.state_dir, app.local_dir = state, str(place / "local")
print(sorted(set(dict(app.state("total").items()).values())))
"""


@pytest.mark.parametrize("store", ["lmdb", "rocksdb", "memory"])
def test_an_app_goes_on_when_there_is_room_again(small: Path, tmp_path: Path, store: str) -> None:
    found = run_program(GOES_ON, small, str(tmp_path / "state"), store)
    assert (found.returncode, found.stderr, found.stdout) == (0, "", "[4]\n")


def test_the_lock_file_has_all_its_blocks(tmp_path: Path) -> None:
    """LMDB maps it, and a block that cannot be had when it is first touched is a SIGBUS."""
    replicated(tmp_path / "p", after(records(4, 1)), lambda view: None)
    close_below(str(tmp_path))
    (lock,) = tmp_path.rglob("lock.mdb")
    found = lock.stat()
    assert found.st_size >= LOCK_BYTES >= 512 * 64
    assert found.st_blocks * 512 >= found.st_size


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="this system reserves no blocks")
def test_no_room_for_the_lock_file_is_said_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(mp.errors.Unavailable, match=r"local replica .*No space left.*disk is full.*another local_dir"):
        replicated(tmp_path / "p", after(records(4, 1)), lambda view: None)


@pytest.mark.parametrize("gone", ["generation", "folder", "all of it"])
def test_a_local_dir_that_vanishes_while_a_record_is_applied_is_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    rows = [{"key": "a", "value": 1}]
    home = tmp_path / "home"
    driver = driver_of(an_app(rows), open_storage(str(tmp_path / "state")), home)
    assert driver.batch(WHOLE)
    put = local._put

    def put_and_remove(*args: Any) -> None:
        put(*args)
        monkeypatch.setattr(local, "_put", put)
        (generation,) = home.rglob("g00*")
        shutil.rmtree({"generation": generation, "folder": generation.parent, "all of it": home}[gone])

    monkeypatch.setattr(local, "_put", put_and_remove)
    rows += [{"key": "a", "value": 2}]
    assert driver.batch(WHOLE)
    assert local._put is put, "the record was applied"
    driver.close()
    app = an_app([])
    app.state_dir, app.local_dir = str(tmp_path / "state"), str(home)
    assert dict(app.state("total").items()) == {"a": 3}
    close_below(str(tmp_path))


def test_a_replica_in_use_may_vanish(tmp_path: Path) -> None:
    log = records(40, 4)

    def use(view: Any) -> str:
        shutil.rmtree(tmp_path / "p", ignore_errors=True)
        return wrong(view, folded(log), 40)

    for _ in range(2):
        assert replicated(tmp_path / "p", after(log), use) == ""
    close_below(str(tmp_path))
