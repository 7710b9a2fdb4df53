"""Every kind of file has a checksum: a flipped bit in any of them is seen, and nothing is built on it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_shop import driver_of, feed, flip, fold, run, shop, totals

import millpond as mp
from millpond.clock import SystemClock
from millpond.driver import results
from millpond.log import checked
from millpond.log import paths as log_paths
from millpond.log.heartbeat import Heartbeat
from millpond.log.ledger import Ledger
from millpond.log.paths import FILE_KINDS, Attempt, Paths, file_kind
from millpond.log.record import SparkBatch
from millpond.log.requests import Answer, leave_request, write_answer
from millpond.sources.base import Limit
from millpond.storage import open_storage
from millpond.storage.disk import LocalStorage


def files(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


@pytest.fixture
def pruned(tmp_path: Path) -> mp.App:
    """An app whose oldest records were removed, so that its ledger has a floor."""
    feed(tmp_path, *range(24))
    app = shop(tmp_path, compact_every=3, keep=3)
    run(app, batches=20)
    assert (tmp_path / "state/shop/ledger/floor").exists()
    return app


def started(app: mp.App) -> None:
    """Start a driver that must rebuild its replicas, and let it read the rest."""
    shutil.rmtree(str(app.local_dir), ignore_errors=True)
    run(app)


def test_a_flipped_bit_in_the_floor_is_seen_and_no_live_file_is_removed(pruned: mp.App, tmp_path: Path) -> None:
    state, floor = tmp_path / "state", tmp_path / "state/shop/ledger/floor"
    whole, before = floor.read_bytes(), files(state)
    for at in range(len(whole)):
        flip(floor, at, at % 8)
        assert not pruned.verify().ok, at
        with pytest.raises(mp.errors.Corrupt, match=r"ledger/floor .* write \d+ into it"):
            driver_of(pruned)
        floor.write_bytes(whole)
        for path in set(files(state)) - set(before):
            (state / path).unlink()  # a claim
    assert files(state) == before
    started(pruned)
    assert totals(pruned) == fold(range(24)) and pruned.verify().ok


class Bounded(LocalStorage):
    """A storage that fails the test if a driver claims again and again."""

    claims = 0

    def put_new(self, path: str, data: bytes | memoryview) -> bool:
        self.claims += 1
        assert self.claims < 20, "the driver claims for ever"
        return super().put_new(path, data)


@pytest.mark.parametrize("said", ["{}7", "9{}", "{}00"])
def test_a_floor_beyond_the_newest_record_stops_a_driver(pruned: mp.App, tmp_path: Path, said: str) -> None:
    floor = tmp_path / "state/shop/ledger/floor"
    floor.write_text(said.format(newest(pruned).number))  # as it was written before it had a checksum
    segments = set((tmp_path / "state").rglob("*.parquet"))
    driver = driver_of(pruned, Bounded(str(tmp_path / "state")))
    while driver.batch(Limit(10, 1 << 20)):
        pass
    driver.release()
    assert totals(pruned) == fold(range(24)) and pruned.verify().ok
    assert len(segments & set((tmp_path / "state").rglob("*.parquet"))) > 5


def newest(app: mp.App) -> Any:
    found = Ledger(open_storage(app.state_dir), app.name, SystemClock()).newest()
    assert found is not None
    return found


def test_a_floor_of_the_old_format_is_read_and_a_flipped_bit_in_it_removes_nothing(tmp_path: Path) -> None:
    feed(tmp_path, *range(24))
    app = shop(tmp_path, compact_every=3, keep=3)
    run(app, batches=20)
    floor = tmp_path / "state/shop/ledger/floor"
    oldest = min(int(f.stem) for f in (tmp_path / "state/shop/ledger").glob("*.json"))
    for number in (oldest, *(oldest ^ 1 << bit for bit in range(4))):
        copy = tmp_path / f"copy-{number}"
        shutil.copytree(tmp_path / "state", copy / "state")
        shutil.copytree(tmp_path / "in", copy / "in")
        (copy / "state" / floor.relative_to(tmp_path / "state")).write_text(str(number))
        other = shop(copy, compact_every=3, keep=3)
        assert other.verify().ok and not other.verify().orphans
        started(other)
        assert totals(other) == fold(range(24)) and other.verify().ok


def test_a_missing_record_keeps_orphans_from_being_removed(pruned: mp.App, tmp_path: Path) -> None:
    records = sorted((tmp_path / "state/shop/ledger").glob("*.json"))
    gone = records[0]
    data = gone.read_bytes()
    gone.unlink()
    before = files(tmp_path / "state")
    assert not pruned.verify().ok
    said = mp.open(pruned.state_dir, "shop").compact()
    assert "files that nothing needs were not removed" in said
    assert before.items() <= files(tmp_path / "state").items()
    gone.write_bytes(data)
    assert pruned.verify().ok


# --- savepoints ---


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> mp.App:
    monkeypatch.setattr(results, "LARGEST_INLINE_POSITION", 3)  # positions are written to a file, too
    feed(tmp_path, *range(8))
    app = shop(tmp_path, compact_every=3)
    run(app, batches=6)
    app.savepoint(tmp_path / "saved")
    return app


def test_a_flipped_bit_in_a_savepoint_is_refused(saved: mp.App, tmp_path: Path) -> None:
    file = tmp_path / "saved/savepoint.json"
    whole = file.read_bytes()
    other = shop(tmp_path, name="other", partitions=3)
    for at in {*range(60), *range(60, len(whole), 7)}:
        flip(file, at, at % 8)
        with pytest.raises(mp.errors.Corrupt, match=r"savepoint\.json is damaged: .* Nothing was changed"):
            other.restore(tmp_path / "saved")
        file.write_bytes(whole)
    assert not (tmp_path / "state/other").exists()
    other.restore(tmp_path / "saved")
    assert totals(other) == fold(range(6)) and other.verify().ok
    run(other)
    assert totals(other) == fold(range(8))


def test_a_truncated_or_empty_savepoint_is_refused(saved: mp.App, tmp_path: Path) -> None:
    file = tmp_path / "saved/savepoint.json"
    whole = file.read_bytes()
    for size in (0, 1, 12, 47, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:size])
        with pytest.raises(mp.errors.Corrupt, match=r"savepoint\.json is (damaged|empty)"):
            shop(tmp_path, name="other").restore(tmp_path / "saved")


def test_a_flipped_bit_in_any_file_of_a_savepoint_is_refused(saved: mp.App, tmp_path: Path) -> None:
    found = [file for file in (tmp_path / "saved").rglob("*") if file.is_file()]
    assert {kind.name for file in found if (kind := file_kind(str(file.relative_to(tmp_path / "saved"))))} == {
        "savepoint",
        "state segment",
        "position",
    }
    for number, file in enumerate(found):
        whole = flip(file, len(file.read_bytes()) // 2, number % 8)
        with pytest.raises(mp.errors.Corrupt, match=file.name):
            shop(tmp_path, name="other").restore(tmp_path / "saved")
        file.write_bytes(whole)


def test_a_savepoint_from_before_it_had_a_checksum_is_restored(saved: mp.App, tmp_path: Path) -> None:
    file = tmp_path / "saved/savepoint.json"
    whole = file.read_bytes()
    file.write_bytes(b"{" + whole[whole.index(b'"format"') :])
    other = shop(tmp_path, name="other")
    other.restore(tmp_path / "saved")
    assert totals(other) == fold(range(6))


# --- all kinds ---


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the state of an app that has written files of every kind, and a savepoint of it."""
    folder = tmp_path_factory.mktemp("written")
    feed(folder, *range(24))
    app = shop(folder, compact_every=3, keep=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "LARGEST_INLINE_POSITION", 3)
        run(app, batches=20)
        driver = driver_of(app)
        driver.batch(Limit(10, 1 << 20))
    storage = open_storage(app.state_dir)
    attempt = Attempt(driver.last.number + 1, driver.owner.id, "one")
    where = Paths("shop").spark("offered", attempt, "offsets/0")
    held = SparkBatch(0, {"offsets/0": checked.write_file(storage, where, b"v1 {}", 0)})
    storage.put(Paths("shop").exchange(attempt), b"rows between two stages")
    driver.owner.write("release", driver.delivery.delivered, spark={"offered": held})
    Heartbeat(storage, "shop", driver.owner.id, SystemClock()).beat(driver.last.number)
    request = leave_request(Ledger(storage, "shop", SystemClock()), "rescale", {"partitions": 3}, expires=0.0)
    write_answer(storage, "shop", Answer(format=1, id=request.id, done=True, text="done", time=request.time))
    app.savepoint(folder / "saved")
    return folder


@pytest.fixture
def everything(written: Path, tmp_path: Path) -> mp.App:
    """That app, in a copy of its own."""
    for part in ("state", "saved", "in"):
        shutil.copytree(written / part, tmp_path / part)
    return shop(tmp_path, compact_every=3, keep=3)


def test_every_file_is_of_a_kind_that_is_listed(everything: mp.App, tmp_path: Path) -> None:
    places = (tmp_path / "state", tmp_path / "saved")
    found = {path: file_kind(path) for place in places for path in files(place)}
    assert [path for path, kind in found.items() if kind is None] == []
    assert {kind for kind in found.values() if kind is not None} == set(FILE_KINDS), (
        "make one of each kind in the fixture"
    )
    for path in found:
        assert sum(kind.pattern.fullmatch(path) is not None for kind in FILE_KINDS) == 1, path


def test_every_folder_is_one_that_retention_looks_into(everything: mp.App, tmp_path: Path) -> None:
    folders = {path.name for path in (tmp_path / "state/shop").iterdir() if path.is_dir()}
    assert folders - {"ledger", "requests"} == set(log_paths.FOLDERS)


def flips(folder: Path, kind: Any) -> Iterator[tuple[Path, int]]:
    """Some bytes of a few files of one kind."""
    found = [folder / path for path in files(folder) if file_kind(path) == kind]
    for file in {found[0], found[-1]}:
        size = len(file.read_bytes())
        yield from ((file, at) for at in sorted({0, min(5, size - 1), size // 2, size - 1}))


@pytest.mark.parametrize("kind", FILE_KINDS, ids=lambda kind: kind.name)
def test_verify_sees_a_flipped_bit_in_every_kind_of_file(everything: mp.App, tmp_path: Path, kind: Any) -> None:
    opened = mp.open(everything.state_dir, "shop")
    assert opened.verify().ok, opened.verify().damaged
    if kind.name == "savepoint":  # not the app's own; `restore` reads all of it
        return
    seen = 0
    for file, at in flips(tmp_path / "state", kind):
        whole = flip(file, at, at % 8)
        damaged = opened.verify().damaged
        if kind.checksum == "task":  # it is of a batch that never was, and no reader of the log looks at it
            assert damaged == []
        else:
            assert any(file.name in text for text in damaged), (file, at, damaged)
        file.write_bytes(whole)
        seen += 1
    assert seen and opened.verify().ok


@pytest.mark.parametrize("kind", FILE_KINDS, ids=lambda kind: kind.name)
def test_a_driver_and_a_restore_believe_no_flipped_bit(everything: mp.App, tmp_path: Path, kind: Any) -> None:
    place = tmp_path / ("saved" if kind.name == "savepoint" else "state")
    expected = fold(range(24))
    for number, (file, at) in enumerate(flips(place, kind)):
        copy = tmp_path / f"copy-{number}"
        for part in ("state", "saved", "in"):
            shutil.copytree(tmp_path / part, copy / part)
        flip(copy / file.relative_to(tmp_path), at, at % 8)
        app = shop(copy, compact_every=3, keep=3)
        before = files(copy / "state")
        try:
            if kind.name == "savepoint":
                app = shop(copy, name="other")
                app.restore(copy / "saved")
            run(app)
            assert totals(app) == expected, (file, at)
        except mp.errors.Corrupt as error:
            assert file.name in str(error), (file, at, error)
            kept = {path for path in files(copy / "state") if file_kind(path)}
            lost = [path for path in before if path not in kept and "parquet" in path]
            assert lost == [], "what is damaged is no reason to remove the rest"
        shutil.rmtree(copy)


def test_verify_says_what_it_has_checked(everything: mp.App, tmp_path: Path) -> None:
    verdict = mp.open(everything.state_dir, "shop").verify()
    assert set(verdict.kinds) == {kind.name for kind in FILE_KINDS} - {"savepoint", "exchange file"}
    assert verdict.kinds["record"] == verdict.records
    assert (verdict.kinds["floor"], verdict.kinds["heartbeat"], verdict.kinds["spark file"]) == (1, 1, 1)
    small = sum(verdict.kinds[name] for name in ("record", "floor", "heartbeat", "request", "answer"))
    assert sum(verdict.kinds.values()) == verdict.files + small
    there = [path for path in files(tmp_path / "state") if file_kind(path).name == "state segment"]
    orphans = [path for path in verdict.orphans if "/steps/" in path]
    assert verdict.kinds["state segment"] == len(there) - len(orphans)
