"""Retention removes nothing that a kept record names, whoever works beside it and however long a driver was paused."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from small_shop import driver_of, feed, flip, fold, run, shop, totals

import millpond as mp
from millpond.clock import ManualClock, SystemClock
from millpond.driver import results
from millpond.driver.commit import Driver
from millpond.driver.settings import DriverSettings
from millpond.log.ledger import Ledger
from millpond.maintenance.rollback import roll_back
from millpond.maintenance.stopped_app import StoppedApp
from millpond.maintenance.verify import verify_app
from millpond.runtimes.local import LocalRuntime
from millpond.sources.base import Limit
from millpond.storage import Item, open_storage
from millpond.storage.disk import LocalStorage

FILES = 24


class Parking(LocalStorage):
    """A storage that lets others work before its nth call: what uses it was paused there."""

    meanwhile: Callable[[], None] | None = None
    left = -1
    calls = 0

    def _call(self) -> None:
        self.calls += 1
        self.left -= 1
        if self.left == 0 and self.meanwhile is not None:
            self.meanwhile()

    def get(self, path: str) -> bytes | None:
        self._call()
        return super().get(path)

    def put(self, path: str, data: bytes | memoryview) -> None:
        self._call()
        super().put(path, data)

    def put_new(self, path: str, data: bytes | memoryview) -> bool:
        self._call()
        return super().put_new(path, data)

    def list(self, prefix: str, after: str | None = None) -> Iterator[Item]:
        self._call()
        return super().list(prefix, after)

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._call()
            super().delete([path])


def whole(app: mp.App, read: int) -> None:
    """All that is within reach is there, the state is right, and the app can go on."""
    assert app.verify().damaged == []
    shutil.rmtree(str(app.local_dir), ignore_errors=True)
    run(app)
    assert totals(app) == fold(range(read))
    assert app.verify().damaged == []


def oldest_target(app: mp.App, *, compacted: bool = False) -> int | None:
    """The oldest batch that a rollback takes; `compacted`: of those with a manifest, whose runs it goes on with."""
    opened, ledger = mp.open(app.state_dir, "shop"), Ledger(open_storage(app.state_dir), "shop", SystemClock())
    admin = mp.admin(app.state_dir, "shop")
    assert opened.newest is not None
    for batch in range(opened.newest.number):
        record = ledger.read(batch)
        if record is None or (compacted and record.manifest is None):
            continue
        try:
            admin.rollback(batch, dry_run=True)
            return batch
        except mp.errors.InvalidUse:
            continue
    return None


@pytest.mark.parametrize("rescaled", [False, True], ids=["", "after a rescale"])
def test_a_driver_paused_anywhere_in_its_retention_removes_nothing_that_a_rollback_needs(
    tmp_path: Path, rescaled: bool
) -> None:
    feed(tmp_path, *range(FILES))
    app = shop(tmp_path, compact_every=4, keep=4, partitions=None)
    run(app, batches=6)
    if rescaled:
        app.rescale(3)
    run(app, batches=4)

    def scene(place: Path, park: int) -> tuple[int, bool]:
        """A driver is paused before a call in a batch; someone rolls back as far as they can and goes."""
        shutil.copytree(tmp_path / "state", place / "state")
        shutil.copytree(tmp_path / "in", place / "in")
        mine = shop(place, compact_every=4, keep=4, partitions=None)
        storage = Parking(str(place / "state"))
        driver = driver_of(mine, storage)
        done: list[int] = []

        def roll_back() -> None:
            storage.left = -1
            batch = oldest_target(mine)
            if batch is not None:
                mp.admin(mine.state_dir, "shop").rollback(batch)
                done.append(batch)

        storage.calls, storage.left, storage.meanwhile = 0, park, roll_back
        try:
            for _ in range(9):
                driver.batch(Limit(10, 1 << 20))
        except (mp.errors.Fenced, mp.errors.Corrupt) as error:
            assert done, error
        driver.close()
        whole(mine, FILES)
        shutil.rmtree(place)
        return storage.calls, bool(done)

    calls, _ = scene(tmp_path / "straight", -1)
    step = max(1, calls // 14)
    rolled_back = [scene(tmp_path / f"at-{park}", park)[1] for park in range(1, calls, step)]
    assert sum(rolled_back) > 7


def test_a_driver_that_sleeps_between_listing_and_deleting_removes_nothing_after_a_rollback(tmp_path: Path) -> None:
    feed(tmp_path, *range(FILES))
    app = shop(tmp_path, compact_every=4, keep=4)
    run(app, batches=7)

    class Sleeping(LocalStorage):
        removals = 0  # of state segments

        def delete(self, paths: Iterable[str]) -> None:
            gone = [*paths]
            self.removals += any("/steps/" in path for path in gone)
            if self.removals == 2:
                self.removals = 3
                batch = oldest_target(app, compacted=True)
                assert batch is not None
                mp.admin(app.state_dir, "shop").rollback(batch)
            super().delete(gone)

    storage = Sleeping(str(tmp_path / "state"))
    driver = driver_of(app, storage)
    with pytest.raises(mp.errors.Fenced):
        for _ in range(15):
            driver.batch(Limit(10, 1 << 20))
    assert storage.removals >= 3
    driver.close()
    whole(app, FILES)


def test_a_rollback_paused_anywhere_is_refused_or_leaves_a_whole_app(tmp_path: Path) -> None:
    feed(tmp_path, *range(FILES))
    app = shop(tmp_path, compact_every=4, keep=4)
    run(app, batches=10)
    target = oldest_target(app, compacted=True)
    assert target is not None

    def scene(place: Path, park: int) -> tuple[int, str]:
        """A rollback is paused before a call; a driver reads on and removes what it need not keep."""
        shutil.copytree(tmp_path / "state", place / "state")
        shutil.copytree(tmp_path / "in", place / "in")
        mine, storage = shop(place, compact_every=4, keep=4), Parking(str(place / "state"))

        def go_on() -> None:
            storage.left = -1
            run(mine, batches=11)

        storage.left, storage.meanwhile = park, go_on
        came = "done"
        try:
            roll_back(StoppedApp(storage, "shop", SystemClock()), target)
        except (mp.errors.InvalidUse, mp.errors.Fenced) as error:
            came = type(error).__name__
        except mp.errors.Corrupt as error:  # a record or file went while it was being read
            assert "is missing" in str(error)
            came = "Corrupt"
        whole(mine, FILES)
        shutil.rmtree(place)
        return storage.calls, came

    calls, came = scene(tmp_path / "straight", -1)
    assert came == "done"
    step = max(1, calls // 14)
    found = [scene(tmp_path / f"at-{park}", park)[1] for park in range(1, calls, step)]
    assert {"InvalidUse", "Fenced"} <= {*found}


class Slow(LocalRuntime):
    """A runtime whose compactions take until they are let go."""

    def __init__(self, storage: Any, clock: Any) -> None:
        super().__init__(storage, clock)
        self.free = threading.Event()

    def each(self, task: Any, works: Any) -> Any:
        assert self.free.wait(30)
        return super().each(task, works)


def test_a_batch_above_the_floor_whose_manifest_is_older_is_refused_in_words(tmp_path: Path) -> None:
    """A compaction that takes several batches: records above the floor carry the manifest from before it."""
    feed(tmp_path, *range(FILES))
    app, clock = shop(tmp_path, compact_every=3, keep=2), ManualClock()
    storage = open_storage(app.state_dir)
    runtime = Slow(storage, clock)
    driver = Driver.start(
        mp.lowlevel.program(app),
        runtime,
        storage,
        clock,
        DriverSettings(partitions=2, home=app.local_dir, keep=app.keep, compact_every=app.compact_every),
    )
    for number in range(22):
        driver.batch(Limit(10, 1 << 20))
        if number % 6 == 5:
            runtime.free.set()
            driver.compactor.wait()
            runtime.free.clear()
    runtime.free.set()
    driver.release()
    driver.close()
    ledger = Ledger(storage, "shop", SystemClock())
    floor, newest = ledger.floor(), driver.last.number
    assert floor > 0 and app.verify().damaged == []
    came = {}
    for batch in range(floor, newest + 1):
        place = tmp_path / f"copy-{batch}"
        shutil.copytree(tmp_path / "state", place / "state")
        shutil.copytree(tmp_path / "in", place / "in")
        mine = shop(place, compact_every=3, keep=2)
        acts: dict[str, Callable[[], Any]] = {
            "at": mine.state("total").at(batch).to_arrow,
            "savepoint": partial(mine.savepoint, place / "saved", batch=batch),
            "rollback": partial(mine.rollback, batch),
        }
        for name, act in acts.items():
            try:
                act()
                came[batch, name] = "done"
            except mp.errors.InvalidUse as error:
                assert "within reach" in str(error)
                came[batch, name] = "refused"
        whole(mine, FILES)
    assert {"done", "refused"} == set(came.values())
    for batch in range(floor, newest + 1):
        assert len({came[batch, name] for name in acts}) == 1, batch


def test_every_rollback_is_refused_in_words_or_leaves_a_whole_app(tmp_path: Path) -> None:
    feed(tmp_path, *range(FILES))
    app = shop(tmp_path, compact_every=4, keep=4)
    newest = run(app, batches=18)
    refused, done = [], []
    for batch in range(newest + 1):
        place = tmp_path / f"copy-{batch}"
        shutil.copytree(tmp_path / "state", place / "state")
        shutil.copytree(tmp_path / "in", place / "in")
        mine = shop(place, compact_every=4, keep=4)
        try:
            expected = dict(mine.state("total").at(batch).items())
            mp.admin(mine.state_dir, "shop").rollback(batch)
        except mp.errors.InvalidUse as error:
            assert "within reach" in str(error)
            with pytest.raises(mp.errors.InvalidUse, match=r"expected one from \d+ to \d+\. App\(keep=\)"):
                mp.admin(mine.state_dir, "shop").rollback(batch)
            refused.append(batch)
            continue
        assert totals(mine) == expected
        whole(mine, FILES)
        done.append(batch)
    assert len(done) >= 4 and done == list(range(refused[-1] + 1, newest + 1))


@pytest.mark.parametrize("how", ["missing", "flipped"])
def test_a_rollback_to_what_is_damaged_commits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(results, "LARGEST_INLINE_POSITION", 3)
    feed(tmp_path, *range(12))
    app = shop(tmp_path)
    run(app)
    before = totals(app)
    file = sorted((tmp_path / "state/shop/positions/rows").iterdir())[0]
    batch = int(file.name[:20])
    file.unlink() if how == "missing" else flip(file, 5)
    with pytest.raises(mp.errors.Corrupt, match=file.name):
        app.rollback(batch)
    assert totals(app) == before
    assert mp.open(app.state_dir, "shop").newest.kind == "claim"


@pytest.mark.parametrize("keep", [1, 4])
def test_rolled_back_records_stay_until_the_sinks_have_gone_back(tmp_path: Path, keep: int) -> None:
    feed(tmp_path, *range(12))
    app = shop(tmp_path)
    run(app)
    before = delivered(tmp_path)
    opened = mp.open(app.state_dir, "shop")
    admin = mp.admin(app.state_dir, "shop")
    admin.rollback(3)
    for _ in range(3):
        admin.compact(keep=keep)
    whole(app, 12)
    assert delivered(tmp_path) == before
    for _ in range(3):
        admin.compact(keep=keep)
    assert opened.newest is not None and admin.verify().records <= keep + 3
    whole(app, 12)
    assert delivered(tmp_path) == before


def delivered(folder: Path) -> list[str]:
    return sorted(line for file in (folder / "out-shop").glob("*.jsonl") for line in file.read_text().splitlines())


def test_verify_beside_retention_finds_no_damage_but_real_damage(tmp_path: Path) -> None:
    feed(tmp_path, *range(FILES))
    run(shop(tmp_path, compact_every=3, keep=3), batches=10)

    def scene(place: Path, park: int, *, damage: bool = False) -> tuple[int, list[str]]:
        """`verify` is paused before a call, and a driver reads on and removes what it need not keep."""
        shutil.copytree(tmp_path / "state", place / "state")
        shutil.copytree(tmp_path / "in", place / "in")
        mine, storage = shop(place, compact_every=3, keep=3), Parking(str(place / "state"))

        def go_on() -> None:
            storage.left = -1
            run(mine, batches=10)

        storage.left, storage.meanwhile = park, go_on
        if damage:
            flip(max((place / "state/shop/manifests").iterdir()), 9)
        found = verify_app(storage, "shop", SystemClock())
        shutil.rmtree(place)
        return storage.calls, found.damaged

    calls, damaged = scene(tmp_path / "straight", -1)
    assert damaged == []
    for park in range(1, calls, max(1, calls // 10)):
        assert scene(tmp_path / f"at-{park}", park)[1] == [], park
    assert len(scene(tmp_path / "damaged", -1, damage=True)[1]) == 1


# --- what every kept record names ---


@pytest.mark.parametrize("keep", [4, 6])
@pytest.mark.parametrize("rolled_back", [False, True], ids=["", "after a rollback"])
def test_position_files_that_kept_records_name_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rolled_back: bool, keep: int
) -> None:
    monkeypatch.setattr(results, "LARGEST_INLINE_POSITION", 3)  # what more than 500 files do
    feed(tmp_path, *range(FILES))
    app = shop(tmp_path, compact_every=3, keep=keep)
    if rolled_back:
        newest = run(app, batches=8)
        app.rollback(newest - 4)
    driver = driver_of(app)
    for _ in range(14):
        driver.batch(Limit(10, 1 << 20))
        assert app.verify().damaged == []
    driver.release()
    newest = driver.last.number
    seen = 0
    for batch in range(newest + 1):
        place = tmp_path / f"copy-{batch}"
        shutil.copytree(tmp_path / "state", place / "state")
        shutil.copytree(tmp_path / "in", place / "in")
        mine = shop(place, compact_every=3, keep=keep)
        try:
            mp.admin(mine.state_dir, "shop").rollback(batch)
        except mp.errors.InvalidUse:
            continue
        whole(mine, FILES)
        seen += 1
    assert seen >= keep


def test_more_than_500_source_files_and_a_rollback(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()

    def more(begin: int, end: int) -> None:
        for number in range(begin, end):
            (tmp_path / "in" / f"{number:05d}.jsonl").write_text('{"k": "a", "v": 1}\n')

    app = shop(tmp_path, compact_every=2, keep=7)
    driver, read = driver_of(app), 0
    for amount in (510, 20, 510, 20):
        more(read, read + amount)
        read += amount
        driver.batch(Limit(1 << 30, 1 << 40))
    driver.release()
    mp.admin(app.state_dir, "shop").rollback(newest_commit(app, rows=530))
    more(read, read + 510)
    read += 510
    driver = driver_of(app)
    for _ in range(7):
        driver.batch(Limit(1 << 30, 1 << 40))
        assert app.verify().damaged == []
        more(read, read + 20)
        read += 20
    driver.release()
    whole_by(app, read)


def whole_by(app: mp.App, read: int) -> None:
    shutil.rmtree(str(app.local_dir))
    driver = driver_of(app)
    while driver.batch(Limit(1 << 30, 1 << 40)):
        pass
    driver.release()
    assert totals(app) == {"a": read}


def newest_commit(app: Any, rows: int) -> int:
    """The batch after which a total of so many rows had been read."""
    history = {moment.value: moment.batch for moment in app.state("total").history("a")}
    return int(history[rows])
