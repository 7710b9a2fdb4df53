"""An app chooses its local stores, for all steps or for some, and may choose others later; nothing else changes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from small_drivers import WHOLE, Lanes, driver_of
from sqlite_store import SqliteStore

import millpond as mp
from millpond.replica import memory_store
from millpond.replica.folders import memory_home
from millpond.replica.lending import close_below, delete_home
from millpond.replica.memory_store import MemoryStore, mounted_kind
from millpond.replica.room import Room, exceeds, parse_bytes, size_below
from millpond.storage import open_storage
from millpond.testing import TestDriver

Stores = dict[str, Any]


def total(key: str, row: dict[str, Any], state: int) -> tuple[None, int]:
    return None, state + row["n"]


def shop(stores: Stores) -> mp.App:
    """Totals, windows, deduplication and a table that every worker holds; `stores` by step, "" for the app."""
    app = mp.App("shop", partitions=2, store=stores.get("", "lmdb"))
    own = {step: {"store": store} for step, store in stores.items() if step}
    rows = app.stream("rows", mp.sources.rows([]), timestamp="at").key_by("key")
    rows.stateful_map("total", total, initial=0, **own.get("total", {}))
    rows.window("window", mp.tumbling(10), grace=0, **own.get("window", {})).aggregate(n=mp.count()).to(
        "windows", mp.sinks.memory()
    )
    rows.deduplicate("once", by="n", within=15, **own.get("once", {})).to("first", mp.sinks.memory())
    names = app.stream("names", mp.sources.rows([])).key_by("key")
    table = app.table("names-of", names, everywhere=True, **own.get("names-of", {}))
    rows.lookup("lookup", table).to("named", mp.sinks.memory())
    return app


CHOICES: list[Stores] = [
    {},
    {"": "rocksdb"},
    {"": "memory"},
    {"total": "rocksdb", "window": "memory"},
    {"": "rocksdb", "once": "lmdb", "names-of": "memory"},
    {"": SqliteStore(), "names-of": "rocksdb"},
]


def send(driver: TestDriver, number: int) -> None:
    rows = [{"key": f"k{i % 5}", "n": i % 3, "at": 7 * number + i % 4} for i in range(12)]
    driver.send({"rows": rows, "names": [{"key": f"k{number % 5}", "name": f"name {number}"}]})


def held(driver: TestDriver) -> dict[str, Any]:
    steps = {step: dict(driver.state(step).items()) for step in ("total", "window", "once", "names-of")}
    return {**steps, **{sink: driver.output(sink) for sink in ("windows", "first", "named")}}


def expected(batches: int) -> dict[str, Any]:
    with TestDriver(shop({})) as driver:
        for number in range(batches):
            send(driver, number)
        return held(driver)


@pytest.mark.parametrize("stores", CHOICES[1:], ids=str)
def test_what_an_app_computes_does_not_depend_on_its_stores(stores: Stores) -> None:
    with TestDriver(shop(stores)) as driver:
        for number in range(6):
            send(driver, number)
            if number == 3:
                driver.restart(lose_replicas=True)
        assert held(driver) == expected(6)


def test_an_app_may_choose_other_stores_at_each_start(tmp_path: Path) -> None:
    with TestDriver(shop({})) as driver:
        for number, stores in enumerate([*CHOICES, *CHOICES[3:5], {}]):
            driver.restart(shop(stores))
            send(driver, number)
        assert held(driver) == expected(len(CHOICES) + 3), "also of a step that comes back to where it has been"


def folders_below(*places: Path) -> set[str]:
    return {path.name for place in places for path in place.rglob("*-of-00001")}


def test_stores_that_are_not_chosen_any_more_are_removed(tmp_path: Path) -> None:
    home, storage, rows = tmp_path / "local", open_storage(str(tmp_path / "state")), [{"key": "a", "n": 1}]

    def run(store: str, own: str | None = None) -> set[str]:
        app = mp.App("switch", str(tmp_path / "state"), partitions=1, store=store)
        keyed = app.stream("rows", Lanes({"0": rows})).key_by("key")
        keyed.stateful_map("total", total, initial=0, store=own)
        keyed.aggregate("count", n=mp.count())
        driver = driver_of(app, storage, home)
        while driver.batch(WHOLE):
            pass
        driver.release()
        driver.close()
        rows.append({"key": "a", "n": 1})
        app.local_dir = str(home)
        assert dict(app.state("total").items()) == {"a": len(rows) - 1}
        return folders_below(home, memory_home(str(home)))

    assert run("lmdb") == {"00000-of-00001"}
    assert run("rocksdb") == {"00000%rocksdb-of-00001"}
    assert run("memory") == {"00000%memory-of-00001"}
    mixed = run("lmdb", "rocksdb")
    assert sorted(name[:8] for name in mixed) == ["00000%lm", "00000%ro"]
    assert run("lmdb") == {"00000-of-00001"}
    delete_home(str(home))
    assert not memory_home(str(home)).exists()


@pytest.mark.parametrize("given", ["rockdb", "LMDB", 7, object])
def test_a_store_that_does_not_exist_is_refused(given: Any) -> None:
    with pytest.raises(mp.errors.InvalidUse, match=r'App\(store\): expected one of "lmdb", "rocksdb", "memory", or a'):
        mp.App("a", store=given)
    keyed = mp.App("a").stream("rows", mp.sources.rows([])).key_by("key")
    with pytest.raises(mp.errors.InvalidUse, match=r"stateful_map\('total', store\): expected one of"):
        keyed.stateful_map("total", total, initial=0, store=given)


@pytest.mark.parametrize("name", ["lmdb", "My Store", "", "x" * 21, "1st"])
def test_a_store_of_your_own_needs_a_name_of_its_own(name: str) -> None:
    with pytest.raises(mp.errors.InvalidUse, match=r"name of a store is 1 to 20 lower-case letters and digits"):
        mp.App("a", store=SqliteStore(name))


def test_rocksdb_that_is_not_installed_is_said_with_the_command(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['rocksdict'] = None; import millpond as mp\n"
        "try: mp.App('a', store='rocksdb')\n"
        "except mp.errors.InvalidUse as error: print(error)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'millpond[rocksdb]'" in found.stdout


def test_a_result_of_an_aggregation_may_be_called_store() -> None:
    app = mp.App("a")
    keyed = app.stream("rows", mp.sources.rows([])).key_by("key")
    keyed.aggregate("count", store=mp.count()).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [{"key": 1}])
        assert driver.output("out") == [{"key": 1, "store": 1}]


# --- memory ---


def test_without_a_file_system_in_memory_the_error_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLPOND_MEMORY_DIR", str(tmp_path / "missing"))
    with (
        TestDriver(shop({"": "memory"})) as driver,
        pytest.raises(
            mp.errors.Unavailable,
            match=r'store="memory" needs a file system .* MILLPOND_MEMORY_DIR, or choose',
        ),
    ):
        send(driver, 0)


def test_the_kind_of_a_file_system_is_that_of_the_innermost_mount() -> None:
    mounts = [
        "/dev/a / ext4 rw 0 0",
        "tmpfs /run tmpfs rw 0 0",
        r"x /my\040disk xfs rw 0 0",
        "overlay /run/b overlay rw 0 0",
    ]
    found = [mounted_kind(mounts, path) for path in ("/", "/run", "/run/a", "/run/b/c", "/runner", "/my disk/a")]
    assert found == ["ext4", "tmpfs", "tmpfs", "overlay", "ext4", "xfs"]


def test_stores_in_memory_go_with_the_local_dir_that_they_belong_to(tmp_path: Path) -> None:
    from millpond.replica.memory_store import MemoryStore

    gone, kept = tmp_path / "gone", tmp_path / "kept"
    left = Path(MemoryStore().home(str(gone)))
    assert left.exists() and left.stat().st_mode & 0o077 == 0, "no other user may read them"
    gone.rmdir()
    there = Path(MemoryStore().home(str(kept)))
    assert there.exists() and not left.exists()
    delete_home(str(kept))


# --- how large it may grow ---


@pytest.mark.parametrize(
    ("given", "expected_bytes"),
    [(5, 5), ("1tb", 10**12), ("7", 7), ("20GB", 20 * 10**9), ("1.5 kb", 1500), ("2 MiB", 2 << 20)],
)
def test_sizes_are_numbers_or_text_with_a_unit(given: Any, expected_bytes: int) -> None:
    assert parse_bytes(given, "App(local_limit)") == expected_bytes


@pytest.mark.parametrize("given", [0, -1, True, 1.5, "", "GB", "20 gigs", "-5MB", "0B", [1]])
def test_other_sizes_are_refused(given: Any) -> None:
    with pytest.raises(mp.errors.InvalidUse, match=r"App\(local_limit\): expected a number of bytes, or text"):
        mp.App("a", local_limit=given)


@pytest.mark.parametrize(
    ("used", "room", "incoming", "is_beyond"),
    [
        (0, Room(0), 100, False),
        (0, Room(0), 101, True),
        (90, Room(50, 5), 15, False),
        (90, Room(50, 5), 16, True),
        (500, Room(400, 300), 300, False),  # what fits into free space does not make it larger
        (500, Room(400, 300), 301, True),
    ],
)
def test_a_limit_counts_what_makes_the_stores_grow(used: int, room: Room, incoming: int, is_beyond: bool) -> None:
    assert exceeds(used, room, incoming, limit=100) is is_beyond


@pytest.mark.parametrize("store", ["lmdb", "rocksdb", "memory"])
def test_an_app_stays_below_its_limit_and_goes_on_when_it_is_raised(tmp_path: Path, store: str) -> None:
    home, state = tmp_path / "local", str(tmp_path / "state")
    rows = [{"key": f"k{n}", "n": n, "text": os.urandom(2000).hex()} for n in range(600)]

    def an_app(limit: Any) -> mp.App:
        app = mp.App("limited", state, partitions=1, store=store, local_limit=limit, local_dir=str(home))
        keyed = app.stream("rows", Lanes({"0": rows}, width=60)).key_by("key")
        keyed.stateful_map("last", lambda key, row, last: (None, row["text"]), initial="")
        return app

    limit = 1_500_000
    driver = driver_of(an_app(limit), open_storage(state), home)
    with pytest.raises(mp.errors.Unavailable, match=r"local replicas below .* beyond local_limit, 1500000 bytes"):
        while driver.batch(WHOLE):
            pass
    driver.close()
    assert 200_000 < size_below(home) + size_below(memory_home(str(home))) <= 1.2 * limit
    driver = driver_of(an_app("1GB"), open_storage(state), home)
    while driver.batch(WHOLE):
        pass
    driver.close()
    assert dict(an_app(None).state("last").items()) == {row["key"]: row["text"] for row in rows}
    with pytest.raises(mp.errors.Unavailable, match="beyond local_limit"):
        close_below(home)
        delete_home(str(home))
        dict(an_app(limit).state("last").items())  # a store that is built anew counts, too
    delete_home(str(home))


def test_apps_that_start_at_the_same_moment_leave_the_stores_in_memory_of_each_other_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_store, "file_system_of", lambda folder: "tmpfs")
    monkeypatch.setenv("MILLPOND_MEMORY_DIR", str(tmp_path / "memory"))
    (tmp_path / "memory").mkdir()
    make = os.makedirs
    interruptions = iter(["second"])

    def make_interrupted(name: str, *args: Any, **how: Any) -> None:
        for other in interruptions:  # the other app does all of its part just before
            MemoryStore().home(str(tmp_path / other))
        make(name, *args, **how)

    monkeypatch.setattr("os.makedirs", make_interrupted)
    first = Path(MemoryStore().home(str(tmp_path / "first")))
    second = Path(MemoryStore().home(str(tmp_path / "second")))
    assert [path.name for path in first.iterdir()] == ["local_dir"]
    assert [path.name for path in second.iterdir()] == ["local_dir"]
    assert (first / "local_dir").read_text() == str(tmp_path / "first")
