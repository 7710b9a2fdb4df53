"""Wherever the state is kept, however much of it is compacted, and into whatever partitions it moves: it is the same.

And what is damaged is either done without, or refused in words that help.
"""

from __future__ import annotations

import shutil
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from golden.program import NAME, app, feed, run, shown
from s3_server import s3_server

import millpond as mp
from millpond.clock import SystemClock, new_id
from millpond.log.ledger import Ledger
from millpond.log.manifest import read_manifest
from millpond.log.record import Record
from millpond.storage import Storage, open_storage

BATCHES = 4  # before the change, and as many after it


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    with s3_server() as address:
        yield address


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """A state_dir on a disk, or in a bucket of its own."""

    def made(kind: str) -> str:
        if kind == "disk":
            return str(tmp_path / "state")
        server = request.getfixturevalue("s3_endpoint")
        for name, value in {
            "AWS_ENDPOINT_URL": server,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        bucket = f"bucket-{new_id()}"
        urllib.request.urlopen(urllib.request.Request(f"{server}/{bucket}", method="PUT")).close()
        return f"s3://{bucket}/state"

    return made


def shop(folder: Path, state_dir: str, partitions: int | None, **how: Any) -> mp.App:
    made = app(folder, partitions, **how)
    made.state_dir = state_dir
    return made


def outputs(folder: Path) -> list[str]:
    return sorted(
        f"{file.parent.name}: {line}" for file in folder.rglob("*.jsonl") for line in file.read_text().splitlines()
    )


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, list[str]]:
    """What an app holds and has put out to which nothing happens."""
    folder = tmp_path_factory.mktemp("straight")
    made = app(folder, 3, compact_every=1000)
    for batches in (range(BATCHES), range(BATCHES, 2 * BATCHES)):
        feed(folder, batches)
        run(made)
    return shown(made), outputs(folder / "out")


SNAPSHOT = {"compact_every": 2, "keep": 1}
CHANGELOG = {"compact_every": 1000}


WAYS = [
    pytest.param(after, storage, lose, id=f"{name}, {storage}, replicas {'deleted' if lose else 'kept'}")
    for name, after in (("same", 3), ("up", 5), ("down", 2))
    for storage, lose in (("disk", False), ("disk", True), ("s3", False), ("s3", True))
    if (storage, lose) != ("s3", False) or name == "same"  # what moves has no replica that could be kept
]


@pytest.mark.parametrize("log", [SNAPSHOT, CHANGELOG], ids=["snapshot", "changelog only"])
@pytest.mark.parametrize(("after", "storage", "lose"), WAYS)
def test_state_and_outputs_are_those_of_an_app_to_which_nothing_happened(
    tmp_path: Path,
    place: Callable[[str], str],
    straight: tuple[Any, list[str]],
    after: int,
    log: dict[str, int],
    storage: str,
    lose: bool,
) -> None:
    state_dir = place(storage)
    feed(tmp_path, range(BATCHES))
    run(shop(tmp_path, state_dir, 3, **log))
    newest = newest_of(open_storage(state_dir))
    assert (newest.manifest is not None) == (log is SNAPSHOT)
    if lose:
        shutil.rmtree(tmp_path / "local")
    feed(tmp_path, range(BATCHES, 2 * BATCHES))
    made = shop(tmp_path, state_dir, after, **log)
    run(made)
    if lose:
        shutil.rmtree(tmp_path / "local")
    assert shown(made) == straight[0]
    assert outputs(tmp_path / "out") == straight[1]
    assert newest_of(open_storage(state_dir)).partitions == after
    verdict = made.verify()
    assert (verdict.damaged, verdict.orphans) == ([], [])


def ledger_of(storage: Storage) -> Ledger:
    return Ledger(storage, NAME, SystemClock())


def newest_of(storage: Storage) -> Record:
    found = ledger_of(storage).newest()
    assert found is not None
    return found


# --- damage ---


@pytest.fixture
def kept(tmp_path: Path) -> mp.App:
    """An app whose log was compacted several times, with much of the past within reach, and no replicas."""
    feed(tmp_path, range(BATCHES))
    made = app(tmp_path, 2, compact_every=2, keep=1000)
    run(made)
    shutil.rmtree(tmp_path / "local")
    return made


def flip(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :])


@pytest.mark.parametrize("how", ["flipped", "missing"])
@pytest.mark.parametrize("what", ["manifest", "a file of it"])
def test_the_newest_manifest_is_done_without(
    tmp_path: Path, kept: mp.App, straight: tuple[Any, list[str]], what: str, how: str
) -> None:
    pointer = newest_of(mp.lowlevel.storage(kept)).manifest
    assert pointer is not None
    path = pointer.path
    if what != "manifest":
        manifest = read_manifest(mp.lowlevel.storage(kept), pointer)
        path = next(part.file.path for runs in manifest.runs["accounts"].values() for part in runs[-1])
    flip(tmp_path / "state" / path) if how == "flipped" else (tmp_path / "state" / path).unlink()
    verdict = kept.verify()
    assert not verdict.ok and any(path in text for text in verdict.damaged)
    feed(tmp_path, range(BATCHES, 2 * BATCHES))
    run(kept)
    shutil.rmtree(tmp_path / "local")
    assert shown(kept) == straight[0]
    assert outputs(tmp_path / "out") == straight[1]


def test_a_damaged_segment_that_nothing_replaces_is_refused_with_what_is_lost_and_the_ways_out(
    tmp_path: Path, kept: mp.App
) -> None:
    kept.compact(keep=1)
    manifest = newest_of(mp.lowlevel.storage(kept)).manifest
    assert manifest is not None
    [run_of] = read_manifest(mp.lowlevel.storage(kept), manifest).runs["accounts"][1]
    path = run_of[0].file.path
    whole = (tmp_path / "state" / path).read_bytes()
    flip(tmp_path / "state" / path)
    before = {file: file.read_bytes() for file in (tmp_path / "state").rglob("*") if file.is_file()}
    with pytest.raises(mp.errors.Corrupt) as caught:
        shown(kept)
    said = str(caught.value)
    assert f"{path} is damaged" in said
    batch = int(path.rsplit("/", 1)[1][:20])
    assert f"It holds state of step 'accounts' in partition 1, as of batch {batch}" in said
    for way in ("Put the file back from a copy", "roll app 'shop' back", "restore a savepoint", "rebuild", "clear"):
        assert way in said
    for _ in range(2):
        with pytest.raises(mp.errors.Corrupt, match="is damaged"):
            feed(tmp_path, range(BATCHES, BATCHES + 1))
            run(kept)
    after = {file: file.read_bytes() for file in (tmp_path / "state").rglob("*") if file.is_file()}
    assert {file: after.get(file) for file in before} == before, "nothing is built on it, and nothing is removed"
    (tmp_path / "state" / path).write_bytes(whole)
    run(kept)
    assert kept.verify().ok


@pytest.mark.parametrize("action", ["rescale", "rename", "savepoint", "compact", "rollback"])
def test_no_action_is_built_on_a_damaged_segment(tmp_path: Path, kept: mp.App, action: str) -> None:
    kept.compact(keep=1)
    feed(tmp_path, range(BATCHES, BATCHES + 3))
    run(shop(tmp_path, kept.state_dir, 2, compact_every=1000))
    record = next(
        r
        for r in ledger_of(mp.lowlevel.storage(kept)).between(
            newest_of(mp.lowlevel.storage(kept)).number - 4, newest_of(mp.lowlevel.storage(kept)).number
        )
        if r.segments.get("accounts")
    )
    path = next(iter(record.segments["accounts"].values()))[0].path
    flip(tmp_path / "state" / path)
    admin = mp.admin(kept.state_dir, NAME)
    then = newest_of(mp.lowlevel.storage(kept))
    actions: dict[str, Callable[[], Any]] = {
        "rescale": lambda: admin.rescale(5),
        "rename": lambda: admin.drop_step("once"),
        "savepoint": lambda: admin.savepoint(tmp_path / "saved"),
        "compact": admin.compact,
        "rollback": lambda: admin.rollback(then.number),
    }
    with pytest.raises(mp.errors.Corrupt, match="is damaged"):
        actions[action]()
    now = newest_of(mp.lowlevel.storage(kept))
    assert (now.partitions, now.manifest, now.epoch) == (then.partitions, then.manifest, then.epoch)
    assert not (tmp_path / "saved" / "savepoint.json").exists()


def test_a_rollback_to_before_the_damage_is_a_way_out(tmp_path: Path, kept: mp.App) -> None:
    newest = newest_of(mp.lowlevel.storage(kept))
    feed(tmp_path, range(BATCHES, BATCHES + 2))
    run(shop(tmp_path, kept.state_dir, 2, compact_every=1000))
    shutil.rmtree(tmp_path / "local")
    records = ledger_of(mp.lowlevel.storage(kept)).between(newest.number, newest_of(mp.lowlevel.storage(kept)).number)
    record = next(r for r in records if r.segments.get("accounts"))
    flip(tmp_path / "state" / next(iter(record.segments["accounts"].values()))[0].path)
    with pytest.raises(mp.errors.Corrupt, match=f"step 'accounts' in partition ., as of batch {record.number}"):
        shown(kept)
    kept.rollback(newest.number)
    run(kept)
    assert kept.verify().damaged  # the batch that was taken back is still kept aside
    expected = app(tmp_path / "again", 2)
    feed(tmp_path / "again", range(BATCHES + 2))
    run(expected)
    assert shown(kept) == shown(expected)


def test_a_compaction_that_dies_half_way_leaves_nothing_behind_for_long() -> None:
    storage = open_storage("memory://")
    with mp.testing.TestDriver(counting(), storage) as driver:
        for number in range(10):
            driver.send("rows", [{"k": number % 3}])
        for when in ("before", "during", "after"):
            driver.crash("compact", when)
            with pytest.raises(mp.testing.Crashed):
                for number in range(10):
                    driver.send("rows", [{"k": number % 3}])
            driver.restart(lose_replicas=True)
            assert mp.admin(storage.url, "counting").verify().orphans == []  # the next driver removes them
        driver.send("rows", [{"k": 0}])
        sent = driver.output("out")
        assert sum(value["n"] for _, value in driver.state("n").items()) == len(sent)


def counting() -> mp.App:
    made = mp.App("counting", partitions=2, compact_every=3, keep=2)
    rows = made.stream("rows", mp.sources.rows([])).key_by("k")
    rows.aggregate("n", n=mp.count()).to("out", mp.sinks.memory())
    return made
