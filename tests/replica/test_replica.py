"""The local replica: whatever happens to its files, what is read is what the log says."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest
import replica_workers
from replica_workers import after, catch_up, die_while_applying, die_while_reading, folded, records, replicated, wrong

from millpond.clock import boot
from millpond.errors import Unavailable
from millpond.log.segment import Change
from millpond.replica import View
from millpond.replica import cell_format as cells
from millpond.replica.lmdb_store import MOST_OPEN, RecordChanges, Replica, close_below
from millpond.replica.lmdb_view import LmdbView

KEYS = 400


@pytest.fixture
def folder(tmp_path):
    yield tmp_path / "p"
    close_below(str(tmp_path))


def checked(folder, log, asked=None, keys=KEYS):
    """Read all of a replica of this log; what is wrong with it."""
    return replicated(folder, after(log, asked), lambda view: wrong(view, folded(log), keys))


# --- catching up ---


def test_a_replica_applies_each_record_once_and_goes_on_from_where_it_is(folder):
    log, asked = records(KEYS, 6), []
    assert checked(folder, log[:2], asked) == ""
    assert checked(folder, log[:2], asked) == ""
    assert checked(folder, log[:5], asked) == ""
    assert checked(folder, log, asked) == ""
    assert asked == [-1, 1, 1, 4]


def test_a_new_process_goes_on_with_the_replica_that_is_there(folder, tmp_path):
    """It is read again and again, and never built anew."""
    log, asked = records(KEYS, 6), []
    assert checked(folder, log[:4]) == ""
    for upto in (4, 4, 5, 5, 6):
        close_below(str(tmp_path))  # as a process does when it ends
        for _ in range(3):
            assert checked(folder, log[:upto], asked) == ""
    assert -1 not in asked
    assert [path.name for path in folder.glob("[!t]*")] == [f"g000001-{boot()}"]


def test_a_step_that_another_process_added_is_seen(folder, tmp_path):
    log = [
        RecordChanges(0, {"old": [Change(b"1", b"", b"10")]}),
        RecordChanges(1, {"new": [Change(b"1", b"", b"20")]}),
    ]
    read = lambda view: reading(view, ["old", "new"])  # noqa: E731
    assert replicated(folder, after(log[:1]), read) == [b"10", None]
    code = (
        "import sys; from pathlib import Path; from millpond.replica.catch_up import open_replica; "
        "from millpond.replica.lmdb_store import RecordChanges; from millpond.log.segment import Change; "
        "records = [RecordChanges(1, {'new': [Change(b'1', b'', b'20')]})]; "
        "opened = open_replica(Path(sys.argv[1]), lambda position: records); opened.__enter__()"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True)
    assert replicated(folder, lambda position: (), read) == [b"10", b"20"]


def reading(view: View, steps: list[str]) -> list[bytes | None]:
    return [view.get(step, b"1") for step in steps]


def test_a_view_stays_as_it_is_while_others_write(folder):
    log = [RecordChanges(n, {"s": [Change(b"1", b"", b"%d" % n)]}) for n in range(3)]

    def found(view):
        return view.position, view.get("s", b"1")

    def use(view):
        assert replicated(folder, after(log), found) == (2, b"2")
        return found(view)

    assert replicated(folder, after(log[:1]), use) == (0, b"0")


def test_records_that_were_applied_already_are_passed_over(folder):
    log = [RecordChanges(n, {"s": [Change(b"1", b"", b"%d" % n)]}) for n in range(3)]

    replica = Replica(folder)
    assert [replica.apply(record) for record in log] == [0, 1, 2]
    assert [replica.apply(record) for record in log[:2]] == [2, 2]
    with replica.view() as view:
        assert (view.position, view.get("s", b"1")) == (2, b"2")
    replica.close()


def test_a_gap_in_the_records_is_no_reason_to_believe_what_is_there(folder):
    log = [RecordChanges(n, {"s": [Change(b"1", b"", b"%d" % n)]}) for n in range(5)]
    replicated(folder, after(log[:2]), lambda view: None)
    asked = []

    def missing(position):
        asked.append(position)
        return log[3:] if position == 1 else log  # record 2 is left out at first

    assert replicated(folder, missing, lambda view: reading(view, ["s"])) == [b"4"]
    assert asked == [1, -1]


def test_more_replicas_than_a_process_may_have_open(tmp_path):
    log = records(20, 3)
    folders = [tmp_path / str(n) for n in range(MOST_OPEN + 10)]
    asked: list[int] = []
    for upto in (1, 2, 3):
        for folder in folders:
            assert checked(folder, log[:upto], asked, keys=20) == ""
    assert asked.count(-1) == len(folders), "those that were closed meanwhile are opened again, not built anew"
    close_below(str(tmp_path))


# --- damage ---


def test_bytes_flipped_anywhere_are_never_believed(tmp_path):
    """In keys, values, page heads, branches; in a process of its own, because a broken store may take it down."""
    script = Path(replica_workers.__file__)
    found = subprocess.run(
        [sys.executable, str(script), str(tmp_path), "2000", "60"], capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, "right after 60 flips\n", "")


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize(
    "damage",
    ["truncated", "cut to a page", "empty", "garbage", "zeros in the middle", "data gone", "folder gone",
     "signature gone", "signature garbled", "everything gone", "an older copy"],
)  # fmt: skip
def test_a_damaged_replica_is_built_anew_without_being_asked(folder, tmp_path, damage, is_open):
    log = records(KEYS, 6)
    assert checked(folder, log[:3]) == ""
    (generation,) = folder.glob("g*")
    older = (generation / "data.mdb").read_bytes()
    assert checked(folder, log) == ""
    data = generation / "data.mdb"
    size = data.stat().st_size
    if not is_open:
        close_below(str(tmp_path))
    if damage == "truncated":
        os.truncate(data, size // 2 + 100)
    elif damage == "cut to a page":
        os.truncate(data, size - 4096)
    elif damage == "empty":
        os.truncate(data, 0)
    elif damage == "garbage":
        data.write_bytes(os.urandom(size))
    elif damage == "zeros in the middle":
        with open(data, "r+b") as opened:
            opened.seek(size // 2)
            opened.write(bytes(8192))
    elif damage == "data gone":
        data.unlink()
    elif damage == "folder gone":
        shutil.rmtree(generation)
    elif damage == "signature gone":
        (generation / "signature").unlink()
    elif damage == "signature garbled":
        (generation / "signature").write_bytes(b"1 2 3\n")
    elif damage == "everything gone":
        shutil.rmtree(folder)
    else:
        data.write_bytes(older)
    asked: list[int] = []
    for _ in range(2):
        assert checked(folder, log, asked) == ""
    if not (damage == "signature gone" and is_open):  # the handle that is open knows its own signature
        assert asked.count(-1) == 1, "built anew, and once"


def test_another_boots_generation_is_not_used_and_is_removed(folder, tmp_path):
    """Replicas are not synced: after a power loss they may hold anything."""
    log, asked = records(KEYS, 3), []
    assert checked(folder, log) == ""
    close_below(str(tmp_path))
    (generation,) = folder.glob("g*")
    generation.rename(folder / "g000001-anothrbt")
    assert checked(folder, log, asked) == ""
    assert asked == [-1]
    assert [path.name for path in folder.glob("[!t]*")] == [f"g000001-{boot()}"]


def test_a_newer_generation_is_taken_and_an_older_one_removed(folder, tmp_path):
    log, asked = records(KEYS, 3), []
    assert checked(folder, log) == ""
    replicated(folder, after(log, asked), lambda view: None, rebuild=True)
    assert asked == [-1]
    assert [path.name for path in folder.glob("[!t]*")] == [f"g000002-{boot()}"]
    close_below(str(tmp_path))
    assert checked(folder, log, asked) == ""
    assert asked == [-1, 2]


def test_a_place_that_cannot_be_written_is_said_in_words(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(Unavailable, match=r"local replica .* cannot be kept there: .*choose another local_dir"):
        replicated(tmp_path / "file" / "p", after(records(4, 1)), lambda view: None)


# --- several processes ---


def test_processes_that_catch_one_replica_up_at_the_same_time_all_read_what_the_log_says(tmp_path):
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()
    processes = [spawn.Process(target=catch_up, args=(str(tmp_path), KEYS, 12, results)) for _ in range(3)]
    for process in processes:
        process.start()
    found = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert [text for text, _ in found] == ["", "", ""]
    assert [path.name for path in (tmp_path / "p").glob("[!t]*")] == [f"g000001-{boot()}"], "and it was not built again"


def test_a_process_killed_while_it_catches_up_leaves_a_replica_at_some_record(folder, tmp_path):
    process = multiprocessing.get_context("spawn").Process(target=die_while_applying, args=(str(tmp_path), KEYS, 8, 5))
    process.start()
    process.join()
    assert process.exitcode == -9
    log, asked = records(KEYS, 8), []
    assert checked(folder, log, asked) == ""
    assert asked == [4]


def test_readers_that_were_killed_do_not_make_the_store_grow_for_ever(folder, tmp_path):
    log = [RecordChanges(n, {"s": [Change(b"%d" % i, b"", b"%d" % n * 50) for i in range(300)]}) for n in range(40)]
    replicated(folder, after(log[:2]), lambda view: None)
    process = multiprocessing.get_context("spawn").Process(target=die_while_reading, args=(str(tmp_path),))
    process.start()
    process.join()
    assert process.exitcode == -9
    replicated(folder, after(log[:6]), lambda view: None)
    (generation,) = folder.glob("g*")
    size = (generation / "data.mdb").stat().st_size
    replicated(folder, after(log), lambda view: None)
    assert (generation / "data.mdb").stat().st_size <= size * 1.2


# --- cells, as pure functions ---

LONG = b"k" * 5000
CELLS = [
    (b'"a"', b"", b"1", None),
    (b'"a"', b"v:total", b'{"n":1}', None),
    (b"", b"", b"", None),
    (b'"a"', b"l:x:0000000000000001", b"[1]", 1_700_000_000_000),
    (LONG, b"", b"1", None),
    (b'"a"', b"m:seen:" + LONG, b"1", 5),
    (LONG, b"m:" + LONG, b"null", -1),
    (b"k" * 239, b"", b"1", None),
    (b"k" * 240, b"", b"1", None),
    (b"k" * 120, b"c" * 120, b"1", None),
]


@pytest.mark.parametrize("key, cell, value, due", CELLS)
def test_a_cell_comes_back_whole(key, cell, value, due):
    at = cells.store_key(key, cell)
    data = cells.pack_cell(at, key, cell, value, due)
    assert len(at) <= 511, "LMDB takes no longer key"
    assert cells.unpack_cell(at, data) == value
    assert cells.cell_address(at, data) == (key, cell)
    assert at.startswith(cells.store_prefix(key, cell[:5]))


@pytest.mark.parametrize("key, cell, value, due", CELLS)
def test_any_flipped_bit_of_a_cell_is_noticed(key, cell, value, due):
    at = cells.store_key(key, cell)
    data = cells.pack_cell(at, key, cell, value, due)
    for i in range(0, len(data), 1 if len(data) < 100 else 13):
        for bit in range(8):
            changed = data[:i] + bytes([data[i] ^ 1 << bit]) + data[i + 1 :]
            with pytest.raises(cells.Damaged):
                cells.unpack_cell(at, changed)
    for i in range(len(at)):
        with pytest.raises(cells.Damaged):
            cells.unpack_cell(at[:i] + bytes([at[i] ^ 1]) + at[i + 1 :], data)
    for size in range(min(len(data), 40)):
        with pytest.raises(cells.Damaged):
            cells.unpack_cell(at, data[:size])


def test_cells_of_different_keys_have_different_places():
    parts = [b"", b"a", b"aa", b"k" * 199, b"k" * 200, b"k" * 240, b"k" * 241, LONG, LONG + b"l", LONG[:-1] + b"l"]
    places = {cells.store_key(key, cell) for key in parts for cell in parts}
    assert len(places) == len(parts) ** 2


@pytest.mark.parametrize("error", [OverflowError("no"), UnicodeDecodeError("ascii", b"\xff", 0, 1, "no"), struct.error])
def test_what_a_user_of_a_replica_raises_is_not_taken_for_damage(folder, error):
    calls = []

    def use(view):
        calls.append(view.position)
        raise error

    with pytest.raises(type(error) if isinstance(error, Exception) else error):
        replicated(folder, after(records(KEYS, 2)), use)
    assert calls == [1] and checked(folder, records(KEYS, 2), asked := []) == "" and asked == [1]


READS = {
    "get": lambda view: view.get("s", b"1"),
    "get_many": lambda view: view.get_many("s", [b"1"]),
    "entries": lambda view: list(view.entries("s")),
    "due": lambda view: list(view.due("s", 9)),
    "all_due": lambda view: view.all_due("s", 9),
}


@pytest.mark.parametrize("read", READS)
def test_a_value_that_is_too_short_to_be_read_is_damage(tmp_path, read):
    with lmdb.open(str(tmp_path), max_dbs=2) as store:
        databases = {name: store.open_db(name.encode()) for name in ("step:s", "due:s")}
        with store.begin(write=True) as txn:
            txn.put(cells.store_key(b"1"), b"123", db=databases["step:s"])
            txn.put(cells.time_entry(5, cells.store_key(b"1")), b"", db=databases["due:s"])
            with pytest.raises(cells.Damaged, match="a value of 3 bytes"):
                READS[read](LmdbView(txn, databases, 0, {}))
