"""Rescale, roll back, save, restore, compact, verify: each is one commit or none."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from local_drivers import start_driver
from small_rebuilds import rebuild, rebuild_and_switch

import millpond as mp
from millpond.clock import ManualClock, SystemClock
from millpond.driver.commit import Driver
from millpond.driver.settings import DriverSettings
from millpond.log.ledger import Ledger
from millpond.maintenance.compact import compact_log
from millpond.maintenance.drop import drop_step_state
from millpond.maintenance.rescale import rescale_app
from millpond.maintenance.restore import restore_savepoint
from millpond.maintenance.rollback import roll_back
from millpond.maintenance.savepoint import write_savepoint
from millpond.maintenance.stopped_app import StoppedApp
from millpond.runtimes.local import LocalRuntime
from millpond.sources.base import Limit
from millpond.storage import open_storage


def killed(when: str, action: Callable[[Callable[[str], None]], Any]) -> None:
    """Do it in a process of its own, which dies of kill -9 at a moment that has a name."""
    pid = os.fork()
    if pid == 0:
        try:
            action(lambda moment: os.kill(os.getpid(), signal.SIGKILL) if moment == when else None)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, status


def shop(folder: Path, name: str = "shop", state: str = "state", partitions: int | None = 2, **how: Any) -> mp.App:
    app = mp.App(name, str(folder / state), partitions, local_dir=str(folder / "local"), **how)
    rows = app.stream("rows", mp.sources.files(folder / "in"), timestamp="at").key_by("k")
    rows.stateful_map("total", lambda k, row, n: ({"k": k, "n": n + row["v"]}, n + row["v"]), initial=0).to(
        "out", mp.sinks.files(folder / f"out-{name}")
    )
    rows.window("by ten", mp.tumbling(10), grace=mp.NO_GRACE).aggregate(n=mp.count()).to(
        "windows", mp.sinks.files(folder / f"windows-{name}")
    )
    return app


def feed(folder: Path, number: int) -> None:
    (folder / "in").mkdir(exist_ok=True)
    rows = [{"k": f"k{(number * 7 + i) % 11}", "v": i, "at": number * 10 + i} for i in range(10)]
    (folder / "in" / f"{number:04d}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def run(app: mp.App, hook: Any = None, progress: Any = None) -> int:
    """All that is there, in batches of a file; the number of the newest record."""
    driver = start_driver(app, hook=hook, progress=progress)
    while driver.batch(Limit(10, 1 << 20)):
        pass
    driver.release()
    driver.close()
    return driver.last.number


def held(folder: Path) -> list[Any]:
    return [json.loads(line) for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()]


def totals(app: mp.App) -> dict[str, int]:
    return dict(app.state("total").items())


def kept(app: mp.App) -> Ledger:
    return Ledger(open_storage(app.state_dir), app.name, SystemClock())


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for number in range(6):
        feed(tmp_path, number)
    return tmp_path


def test_a_rollback_brings_back_state_positions_and_what_the_sinks_hold(place: Path) -> None:
    app = shop(place)
    run(app)
    then, after = totals(app), held(place / "out-shop")
    windows = held(place / "windows-shop")
    batch = 3
    expected = dict(app.state("total").at(batch).items())
    files = held(place / "out-shop")
    assert "dry" not in app.rollback(batch, dry_run=True) and totals(app) == then
    said = app.rollback(batch)
    assert "every sink goes back" in said
    assert totals(app) == expected
    assert held(place / "out-shop") == files[: len(held(place / "out-shop"))] != files
    run(app)
    assert totals(app) == then
    assert sorted(map(str, held(place / "out-shop"))) == sorted(map(str, after))
    assert sorted(map(str, held(place / "windows-shop"))) == sorted(map(str, windows))


@pytest.mark.parametrize("then", ["start", "roll back", "further back", "rescale"])
def test_a_rollback_that_dies_before_its_sinks_went_back_is_finished_by_whoever_comes_next(
    place: Path, then: str
) -> None:
    app, storage = shop(place), open_storage(str(place / "state"))
    run(app)
    state, outs = totals(app), [held(place / f"{sink}-shop") for sink in ("out", "windows")]
    expected = dict(app.state("total").at(3).items())
    killed("committed", lambda at: roll_back(StoppedApp(storage, "shop", SystemClock(), at), 3))
    assert totals(app) == expected
    assert [held(place / f"{sink}-shop") for sink in ("out", "windows")] == outs
    if then == "roll back":
        app.rollback(newest_number(app))
        assert len(held(place / "out-shop")) == 30
    elif then == "further back":
        app.rollback(2)
        assert len(held(place / "out-shop")) == 20
    elif then == "rescale":
        app.rescale(3)
    run(shop(place, partitions=None))
    assert totals(app) == state
    for sink, before in zip(("out", "windows"), outs, strict=True):
        assert sorted(map(str, held(place / f"{sink}-shop"))) == sorted(map(str, before))
    run(shop(place, partitions=None))  # what came since stays
    assert len(held(place / "out-shop")) == 60


def test_a_rollback_without_the_program_lets_its_sinks_go_back_when_it_starts(place: Path) -> None:
    app = shop(place)
    run(app)
    windows = held(place / "windows-shop")
    said = mp.open(str(place / "state"), "shop").rollback(2)
    assert "out, windows go back when the program next starts, if they can" in said
    other = mp.App("shop", str(place / "state"), local_dir=str(place / "local"))
    other.stream("rows", mp.sources.files(place / "in"), timestamp="at").key_by("k").deduplicate("once").to(
        "out", mp.sinks.files(place / "out-shop")
    )
    run(other)  # the sink "windows" is not in the program just now: it goes back when it is there again
    assert held(place / "windows-shop") == windows
    assert len(held(place / "out-shop")) == 20 + 11
    run(app)
    left = sorted((place / "windows-shop").glob("*.jsonl"))
    assert left and all(int(file.name[:20]) <= 2 for file in left if file.stat().st_size)


def newest_number(app: mp.App) -> int:
    found = kept(app).newest()
    assert found is not None
    return found.number


def test_a_rollback_to_what_is_not_there_is_refused(place: Path) -> None:
    app = shop(place, compact_every=2, keep=2)
    newest = run(app)
    for batch in (-1, newest + 5, 1):
        with pytest.raises(mp.errors.InvalidUse, match="within reach"):
            app.rollback(batch)


def test_a_batch_that_was_set_aside_is_not_gone_back_to(place: Path) -> None:
    app = shop(place)
    run(app)
    app.rollback(2)
    newest = run(app)
    with pytest.raises(mp.errors.InvalidUse, match="batch 4 was set aside when the app was rolled back to batch 2"):
        app.rollback(4)
    app.rollback(newest - 3)
    app.rollback(2)
    run(app)
    assert sum(totals(app).values()) == 6 * 45
    assert len(held(place / "out-shop")) == 60


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("partitions", [1, 5])
def test_a_savepoint_starts_another_app(place: Path, compacted: bool, partitions: int) -> None:
    app = shop(place, compact_every=2 if compacted else 1000)
    run(app)
    app.savepoint(place / "saved")
    then = totals(app)
    feed(place, 6)
    run(app)
    other = shop(place, name="other", state="elsewhere", partitions=partitions)
    other.restore(place / "saved")
    assert totals(other) == then
    run(other)
    assert totals(other) == totals(app)
    assert len(held(place / "out-other")) == 10  # nothing from before is put out again
    with pytest.raises(mp.errors.InvalidUse, match="already"):
        other.restore(place / "saved")
    with pytest.raises(mp.errors.InvalidUse, match="already"):
        app.savepoint(place / "saved")
    with pytest.raises(mp.errors.InvalidUse, match="holds no savepoint"):
        shop(place, name="third").restore(place / "nothing")


def test_a_savepoint_of_an_earlier_batch_has_the_state_of_then(place: Path) -> None:
    app = shop(place)
    run(app)
    app.savepoint(place / "saved", batch=3)
    other = shop(place, name="other")
    other.restore(place / "saved")
    assert totals(other) == dict(app.state("total").at(3).items())
    run(other)
    assert totals(other) == totals(app)


def test_rescale_from_outside_says_what_it_would_do_and_does_it(place: Path) -> None:
    app = shop(place, partitions=None)
    run(app)
    then = totals(app)
    opened = mp.open(app.state_dir, "shop")
    before = kept(app).newest()
    assert before is not None
    assert opened.rescale(7, dry_run=True).startswith(f"{before.partitions} to 7 partitions")
    assert kept(app).newest() == before
    opened.rescale(7)
    newest = kept(app).newest()
    assert newest is not None and newest.partitions == 7
    assert totals(app) == then
    feed(place, 6)
    run(app)
    assert sum(totals(app).values()) == 7 * 45


def shop_without_windows(folder: Path, renamed_from: str | None = None) -> mp.App:
    """A later version of `shop`, whose step may have another name."""
    app = mp.App("shop", str(folder / "state"), 2, local_dir=str(folder / "local"))
    rows = app.stream("rows", mp.sources.files(folder / "in"), timestamp="at").key_by("k")
    name = "total" if renamed_from is None else "sum"
    rows.stateful_map(name, lambda k, row, n: (None, n + row["v"]), initial=0, renamed_from=renamed_from)
    return app


def test_a_step_that_the_program_uses_is_not_dropped(place: Path) -> None:
    app = shop(place)
    run(app)
    then, newest = totals(app), kept(app).newest()
    for dry_run in (False, True):
        with pytest.raises(mp.errors.InvalidUse, match=r"the program of app 'shop' uses the state of 'total'\. Remove"):
            app.drop_step("total", dry_run=dry_run)
    with pytest.raises(mp.errors.InvalidUse, match="'total', as that of step 'sum', which has renamed_from='total'"):
        shop_without_windows(place, renamed_from="total").drop_step("total")
    assert totals(app) == then and kept(app).newest() == newest
    mp.open(app.state_dir, "shop").drop_step("total")  # it does not read the program
    assert kept(app).newest() != newest


@pytest.mark.parametrize("dropped", ["total", "sum"])
def test_of_state_under_an_old_and_a_new_name_either_can_be_dropped(place: Path, dropped: str) -> None:
    renamed = shop_without_windows(place, renamed_from="total")
    run(renamed)  # its state is stored as "sum"
    feed(place, 6)
    run(shop(place))  # an older version of the program makes state of "total" again
    with pytest.raises(mp.errors.Incompatible, match="there is state of both names"):
        run(renamed)
    renamed.drop_step(dropped)
    run(renamed)


def test_a_dropped_step_is_gone_and_the_others_are_not(place: Path) -> None:
    app = shop(place)
    run(app)
    then = totals(app)
    shop_without_windows(place).drop_step("by ten")
    with pytest.raises(mp.errors.InvalidUse, match="no step 'by ten'"):
        list(mp.open(app.state_dir, "shop").state("by ten").items())
    assert totals(app) == then


def test_compact_makes_the_log_small_and_leaves_the_state(place: Path) -> None:
    app = shop(place, keep=1)
    for number in range(6, 30):
        feed(place, number)
    run(app)
    then = totals(app)
    before = len(list((place / "state").rglob("*.parquet")))
    app.compact()
    assert len(list((place / "state").rglob("*.parquet"))) < before / 3
    assert totals(app) == then
    assert app.verify().ok and not app.verify().orphans
    feed(place, 30)
    run(app)
    assert sum(totals(app).values()) == 31 * 45


def test_a_sink_that_nothing_came_to_for_long_hinders_no_compaction(place: Path) -> None:
    app = shop(place, keep=1)
    app.stream("never", mp.sources.rows([])).to("idle", mp.sinks.memory())
    run(app)
    then = totals(app)
    for _ in range(3):
        app.compact()
        ledger = kept(app)
        newest = ledger.newest()
        assert newest is not None and ledger.floor() > newest.number - 3
    assert totals(app) == then and app.verify().ok


def test_what_is_older_than_a_duration_goes_and_the_rest_stays(place: Path) -> None:
    app = shop(place)
    clock = ManualClock()
    storage = open_storage(app.state_dir)
    how: dict[str, Any] = {"partitions": 2, "home": app.local_dir, "threaded": False}
    driver = Driver.start(mp.lowlevel.program(app), LocalRuntime(storage, clock), storage, clock, DriverSettings(**how))
    while driver.batch(Limit(10, 1 << 20)):
        clock.advance(3600)
    driver.release()
    then = totals(app)
    stopped = StoppedApp(storage, "shop", clock)
    compact_log(stopped, mp.App("x", keep="1d").keep)
    assert kept(app).floor() == 0
    for _ in range(20):  # one long pause alone makes nothing old: the clock may have been set
        clock.advance(600)
        compact_log(stopped, mp.App("x", keep="30m").keep)
    assert kept(app).floor() > 6
    assert totals(app) == then and app.verify().ok


def test_verify_finds_every_flipped_byte_and_every_missing_file(place: Path) -> None:
    app = shop(place, compact_every=2)
    run(app)
    assert app.verify().ok
    files = [f for f in (place / "state").rglob("*") if f.is_file() and f.name not in ("floor", "heartbeat.json")]
    newest = max(file for file in files if file.parent.name == "ledger")
    assert len(files) > 10
    for file in files:
        whole = file.read_bytes()
        file.write_bytes(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])
        assert not app.verify().ok, file
        file.unlink()
        # Of the newest record nobody knows but itself, and an earlier manifest may be gone for good reasons.
        assert file == newest or file.parent.name == "manifests" or not app.verify().ok, file
        file.write_bytes(whole)
    assert app.verify().ok


ACTIONS: dict[str, Callable[[StoppedApp, Path], Any]] = {
    "rescale": lambda c, p: rescale_app(c, 5),
    "rollback": lambda c, p: roll_back(c, 3),
    "drop": lambda c, p: drop_step_state(c, "by ten"),
    "compact": lambda c, p: compact_log(c, mp.App("x", keep=1).keep),
    "savepoint": lambda c, p: write_savepoint(c, open_storage(str(p / "saved"))),
    "rebuild": lambda c, p: rebuild_and_switch(shop(p), "total", c.at),
}


@pytest.mark.parametrize("when", ["before", "during", "after"])
@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_that_dies_has_changed_nothing_and_can_be_done_again_or_left(
    place: Path, action: str, when: str
) -> None:
    app = shop(place, partitions=None)
    run(app)
    then = totals(app)
    storage = open_storage(app.state_dir)
    killed(when, lambda at: ACTIONS[action](StoppedApp(storage, "shop", SystemClock(), at), place))
    assert totals(app) == then
    run(app)  # left
    assert totals(app) == then and app.verify().ok
    if action == "savepoint" and when == "after":
        return  # it was there already
    ACTIONS[action](StoppedApp(storage, "shop", SystemClock()), place)
    run(app)
    assert totals(app) == then and app.verify().ok
    feed(place, 6)
    run(app)
    assert sum(totals(app).values()) == 7 * 45


def newer(folder: Path, **how: Any) -> mp.App:
    """The shop with totals of another shape, and the same other outputs."""

    def add(key: str, row: Any, state: dict[str, int]) -> Any:
        total = {"sum": state["sum"] + row["v"]}
        return {"k": key, "n": total["sum"]}, total

    app = mp.App("shop", str(folder / "state"), local_dir=str(folder / "local"), **how)
    rows = app.stream("rows", mp.sources.files(folder / "in"), timestamp="at").key_by("k")
    rows.stateful_map("total", add, initial={"sum": 0}, version=2, migrate={1: lambda n: {"sum": n}}).to(
        "out", mp.sinks.files(folder / "out-shop")
    )
    rows.window("by ten", mp.tumbling(10), grace=mp.NO_GRACE).aggregate(n=mp.count()).to(
        "windows", mp.sinks.files(folder / "windows-shop")
    )
    return app


@pytest.mark.parametrize("partitions", [None, 3], ids=["migrated", "migrated and moved"])
@pytest.mark.parametrize("compact_every", [2, 1000], ids=["snapshot", "changelog only"])
@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_a_migration_that_dies_has_changed_nothing_and_can_be_done_again_or_left(
    place: Path, when: str, compact_every: int, partitions: int | None
) -> None:
    app = shop(place, partitions=None, compact_every=compact_every)
    run(app)
    then = totals(app)
    migrated = newer(place, partitions=partitions, compact_every=compact_every)

    def dying(at: Callable[[str], None]) -> None:
        run(migrated, lambda step, moment: at(moment) if step == "rewrite" else None)

    for lost in (False, True):
        killed(when, dying)
        assert totals(mp.open(str(place / "state"), "shop")) == then  # type: ignore[arg-type]
        if lost:
            shutil.rmtree(place / "local", ignore_errors=True)
        run(app)  # left, for now
        assert totals(app) == then
    killed(when, dying)
    feed(place, 6)
    run(migrated)
    assert {key: value["sum"] for key, value in totals(migrated).items()} == {  # type: ignore[index]
        key: then.get(key, 0) + sum(row["v"] for row in rows_of(place, 6) if row["k"] == key)
        for key in then | dict.fromkeys(row["k"] for row in rows_of(place, 6))
    }
    assert migrated.verify().ok and migrated.verify().orphans == []
    assert len(held(place / "out-shop")) == 70


def rows_of(folder: Path, number: int) -> list[Any]:
    return [json.loads(line) for line in (folder / "in" / f"{number:04d}.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("when", ["before", "during", "claimed"])
def test_a_restore_that_dies_can_be_done_again(place: Path, when: str) -> None:
    app = shop(place)
    run(app)
    app.savepoint(place / "saved")
    other = shop(place, name="other")
    storage, saved = open_storage(other.state_dir), open_storage(str(place / "saved"))
    killed(when, lambda at: restore_savepoint(StoppedApp(storage, "other", SystemClock(), at), saved))
    other.restore(place / "saved")
    assert totals(other) == totals(app)


def test_a_cleared_app_can_begin_again_with_a_savepoint(place: Path) -> None:
    app = shop(place)
    run(app)
    app.savepoint(place / "saved")
    then = totals(app)
    app.clear_state()
    app.restore(place / "saved")
    assert totals(app) == then and app.verify().ok
    feed(place, 6)
    run(app)
    assert sum(totals(app).values()) == 7 * 45


def test_progress_is_told_from_nothing_to_all(place: Path) -> None:
    app = shop(place)
    run(app)
    other = shop(place, name="other")
    for action in (
        lambda told: app.compact(progress=told),
        lambda told: app.rescale(5, progress=told),
        lambda told: app.rollback(4, progress=told),
        lambda told: app.savepoint(place / "saved", progress=told),
        lambda told: other.restore(place / "saved", progress=told),
    ):
        seen: list[tuple[int, int]] = []
        action(lambda done, total, seen=seen: seen.append((done, total)))
        total = seen[-1][1]
        assert total > 1 and seen == [(done, total) for done in range(total + 1)]


def test_an_app_that_moves_or_migrates_its_state_at_its_start_tells_how_far_it_is(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "millpond")
    told: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        told.append((done, total))

    run(shop(place, partitions=3), progress=progress)
    assert told == []
    run(shop(place, partitions=2), progress=progress)
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert any("shop: rescale to 2 partitions: 3 partitions in " in line for line in caplog.messages)
    told.clear()
    run(newer(place), progress=progress)
    assert told == [(0, 2), (1, 2), (2, 2)]
    assert any("shop: migrate total: 2 partitions in " in line for line in caplog.messages)


def test_changes_are_all_of_a_steps_state_changes(place: Path) -> None:
    app = shop(place)
    run(app)
    found: dict[Any, Any] = {}
    for change in app.changes("total"):
        assert change.cell == ""
        found[change.key] = change.value
    assert found == totals(app)
    with pytest.raises(mp.errors.InvalidUse, match="no step"):
        list(app.changes("other"))


def test_nothing_is_done_while_the_app_runs(place: Path) -> None:
    from millpond.log.heartbeat import Heartbeat

    app = shop(place)
    run(app)
    Heartbeat(open_storage(app.state_dir), "shop", "someone", SystemClock()).beat(1)
    for action in (lambda: app.rollback(3), lambda: app.drop_step("total"), app.compact):
        with pytest.raises(mp.errors.InvalidUse, match="is running"):
            action()
    app.savepoint(place / "saved")
    assert app.verify().ok


def spoiled(app: mp.App) -> None:
    """State that its input does not account for, as a mistake of the program that made it leaves it."""
    wrong = mp.App(app.name, app.state_dir, app.partitions, local_dir=app.local_dir)
    rows = wrong.stream("rows", mp.sources.files(Path(app.state_dir).parent / "in"), timestamp="at").key_by("k")
    rows.stateful_map("total", lambda k, row, n: (None, n + 2 * row["v"]), initial=0).to("out", mp.sinks.discard())
    rows.window("by ten", mp.tumbling(10), grace=mp.NO_GRACE).aggregate(n=mp.count()).to("windows", mp.sinks.discard())
    run(wrong)


def test_a_rebuilt_step_is_what_the_input_makes_of_it(place: Path) -> None:
    app = shop(place)
    spoiled(app)
    wrong = totals(app)
    found = rebuild(app, "total")
    assert {d.key: d.live for d in found} == wrong and all(d.rebuilt * 2 == d.live for d in found)
    assert totals(app) == wrong  # compared, not switched
    windows = dict(app.state("by ten").items())
    assert rebuild(app, "total", switch=True) == found
    assert sum(totals(app).values()) == 6 * 45
    assert dict(app.state("by ten").items()) == windows
    assert held(place / "out-shop") == []  # nothing was sent
    feed(place, 6)
    run(app)
    assert sum(totals(app).values()) == 7 * 45 and app.verify().ok
