"""The ledger: who owns an app, what a lost reply means, and what is damaged is said to be."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest
from ledger_reader import commits, ledger, paths
from small_counts import counting, counts
from small_drivers import WHOLE, Lanes, driver_of, run_to_end

import millpond as mp
from millpond.clock import SystemClock
from millpond.log.heartbeat import Heartbeat
from millpond.storage import LocalStorage, open_storage
from millpond.testing import Crashed, TestDriver
from millpond.testing.faults import FaultyStorage

STEPS = ["plan", "compute", "commit", "deliver", "acknowledge", "tidy"]
WHENS = ["before", "during", "after"]


@pytest.fixture
def storage() -> FaultyStorage:
    return FaultyStorage(open_storage("memory://"))


# --- a reply that was lost ---


@pytest.mark.parametrize("how, times", [("conflict", 1), ("conflict", 5), ("after", 1), ("after", 5), ("before", 4)])
@pytest.mark.parametrize("record", ["the first claim", "a commit", "a claim", "a release"])
def test_a_put_without_a_true_answer_counts_once(storage, record, how, times):
    """The reply is lost, or our own success comes back as "already exists": what stands there is read back."""

    def disturb():
        for _ in range(times):
            storage.fail_put("*/ledger/*", how=how)

    if record == "the first claim":
        disturb()
    with TestDriver(counting(), storage=storage) as driver:
        if record == "a commit":
            disturb()
        driver.send("rows", ["a"])
        if record == "a claim":
            driver.crash("plan")
            with pytest.raises(Crashed):
                driver.send("rows", [])
        if record in ("a claim", "a release"):
            disturb()
        driver.restart()
        driver.send("rows", ["a"])
        assert counts(driver) == {"a": 2}
        assert driver.output("out") == [{"key": "a", "n": 1}, {"key": "a", "n": 2}]
    found = ledger(storage, "counts")
    assert [r["number"] for r in found] == list(range(len(found)))
    middle = ["claim"] if record == "a claim" else ["release", "claim"]
    assert [r["kind"] for r in found] == ["claim", "commit", *middle, "commit"]


def test_a_driver_gives_up_after_a_while_and_says_that_storage_does_not_answer(storage):
    with TestDriver(counting(), storage=storage) as driver:
        for _ in range(5):
            storage.fail_put("*/ledger/*", how="before")
        with pytest.raises(mp.errors.Unavailable, match="no answer"):
            driver.send("rows", ["a"])
        assert commits(storage, "counts") == []
        driver.send("rows", [])
        assert counts(driver) == {"a": 1}


@pytest.mark.parametrize("kind", ["steps", "outputs"])
@pytest.mark.parametrize("how", ["before", "after", "full"])
def test_a_segment_that_could_not_be_written_stops_the_batch_and_nothing_counts(storage, kind, how):
    with TestDriver(counting(), storage=storage) as driver:
        storage.fail_put(f"*/{kind}/*", how=how)
        with pytest.raises(mp.errors.Unavailable, match="as the test asked for"):
            driver.send("rows", ["a"])
        assert commits(storage, "counts") == []
        assert driver.output("out") == []
        driver.send("rows", ["b"])
        assert counts(driver) == {"a": 1, "b": 1}
        assert driver.output("out") == [{"key": "a", "n": 1}, {"key": "b", "n": 1}]


def test_a_state_dir_that_cannot_be_written_is_said_before_anything_runs(storage):
    storage.fail_put("*/.probe")
    with pytest.raises(mp.errors.Unavailable, match=r"counts/\.probe"):
        TestDriver(counting(), storage=storage)
    assert ledger(storage, "counts") == []


# --- who owns an app ---


def test_of_two_drivers_the_newer_owns_the_app_and_the_older_stops_at_its_next_commit(storage):
    with TestDriver(counting(), storage=storage) as older:
        older.send("rows", ["a"])
        with TestDriver(counting(), storage=storage) as newer:
            before = ledger(storage, "counts")
            with pytest.raises(mp.errors.Fenced, match="another driver"):
                older.send("rows", ["b"])
            assert ledger(storage, "counts") == before, "it has written no record"
            assert older.output("out") == [{"key": "a", "n": 1}], "and delivered nothing more"
            with pytest.raises(mp.errors.Fenced):
                older.send("rows", ["c"])
            newer.send("rows", ["x", "y"])
            assert counts(newer) == {"a": 1, "x": 1, "y": 1}


def test_every_driver_begins_with_a_claim_and_numbers_are_never_used_again(storage):
    with TestDriver(counting(), storage=storage) as driver:
        for _ in range(3):
            driver.restart()
        driver.send("rows", ["a"])
    found = ledger(storage, "counts")
    assert [r["kind"] for r in found] == ["claim", "release"] * 3 + ["claim", "commit"]
    assert [r["number"] for r in found] == list(range(8))
    assert len({r["incarnation"] for r in found}) == 1
    assert len({r["driver"] for r in found if r["kind"] == "claim"}) == 4
    assert len({r["attempt"] for r in found}) == 8
    assert [r["previous"] for r in found[1:]] == [r["checksum"] for r in found[:-1]]


# In the middle of "acknowledge" there is nothing: only a streaming DataFrame is told anything.
POINTS = [(at, when) for at in STEPS for when in WHENS if (at, when) != ("acknowledge", "during")]


@pytest.mark.parametrize("at, when", POINTS)
def test_a_driver_that_slept_at_any_point_while_another_worked_does_no_harm(storage, tmp_path, at, when):
    """The older driver stops for a while in the middle of its second batch; a newer one comes, works, and goes on."""
    lanes: dict[str, list[Any]] = {"0": [{"key": "ab"[n % 2], "n": n} for n in range(6)]}
    held: dict[str, list[Any]] = {}

    def build() -> mp.App:
        app = mp.App("sleepy", partitions=2)
        rows = app.stream("rows", Lanes(lanes)).key_by("key")
        totals = rows.stateful_map("total", lambda k, row, s: ({"k": k, "n": s + row["n"]}, s + row["n"]), initial=0)
        again = totals.key_by(all=lambda row: 0).stateful_map("seen", lambda k, row, s: (row, [*s, row]), initial=[])
        again.to("out", mp.sinks.function(lambda rows, delivery: held.update({delivery.id: rows})))
        return app

    newer: list[Any] = []

    def asleep(step, moment):
        if not newer and (step, moment) == (at, when) and older.last.number >= (1 if STEPS.index(at) < 3 else 2):
            newer.append(driver_of(build(), storage, tmp_path))
            assert newer[0].batch(WHOLE)
            assert newer[0].batch(WHOLE)

    older = driver_of(build(), storage, tmp_path, asleep)
    with pytest.raises(mp.errors.Fenced, match=r"another driver|was replaced"):
        run_to_end(older)
    assert newer, "nobody came to that point"
    run_to_end(newer[0])
    total: Counter[str] = Counter()
    expected = []
    for row in lanes["0"]:
        total[row["key"]] += row["n"]
        expected.append({"k": row["key"], "n": total[row["key"]]})
    with TestDriver(build(), storage=storage) as reader:
        assert dict(reader.state("total").items()) == dict(total)
        assert reader.state("seen").get(0) == expected
    assert sorted((row["k"], row["n"]) for rows in held.values() for row in rows) == sorted(
        (row["k"], row["n"]) for row in expected
    )


@pytest.mark.parametrize("begun_anew", [False, True])
def test_a_driver_whose_storage_was_wiped_stops_and_writes_no_record(storage, begun_anew):
    with TestDriver(counting(), storage=storage) as driver:
        driver.send("rows", ["a"])
        storage.delete(paths(storage, ""))
        if begun_anew:
            with TestDriver(counting(), storage=storage) as other:
                other.send("rows", ["z"])
                other.send("rows", ["z"])
        before = paths(storage, "counts/ledger")
        with pytest.raises(mp.errors.Fenced, match="is gone or was replaced"):
            driver.send("rows", ["b"])
        assert paths(storage, "counts/ledger") == before
        assert driver.output("out") == [{"key": "a", "n": 1}]


def test_a_state_dir_wiped_and_begun_anew_beside_an_old_replica(storage, tmp_path):
    """The replica of the wiped history lies in the same place on the same host, and must not be taken for the new."""

    def build(rows):
        app = mp.App("anew", partitions=2)
        keyed = app.stream("rows", Lanes({"0": rows})).key_by("key")
        keyed.stateful_map("total", lambda k, row, s: (None, s + 1), initial=0)
        return app

    first = driver_of(build([{"key": "a"}] * 5), storage, tmp_path)
    assert run_to_end(first) == 5
    storage.delete(paths(storage, ""))
    app = build([{"key": "a"}, {"key": "b"}])
    assert run_to_end(driver_of(app, storage, tmp_path)) == 2
    with TestDriver(app, storage=storage) as reader:
        assert dict(reader.state("total").items()) == {"a": 1, "b": 1}


@pytest.mark.parametrize("batches", [0, 1, 2, 3])
def test_a_state_dir_put_back_from_a_copy_beside_a_newer_replica(storage, tmp_path, batches):
    """The records that come after the copy have the numbers of those that are gone, and another history."""
    lanes = {"0": ["a", "a", "a", "a"]}

    def build() -> mp.App:
        app = mp.App("copy")
        keyed = app.stream("rows", Lanes(lanes)).key_by(key=lambda key: key)
        keyed.stateful_map("n", lambda k, row, n: (None, n + 1), initial=0)
        return app

    driver = driver_of(build(), storage, tmp_path / "here")
    assert driver.batch(WHOLE)
    copy = {path: storage.get(path) for path in paths(storage, "")}
    run_to_end(driver)
    storage.delete(paths(storage, ""))
    for path, data in copy.items():
        storage.put(path, data)
    lanes["0"][1:] = ["b", "b", "b", "c"]
    elsewhere = driver_of(build(), storage, tmp_path / "elsewhere")
    for _ in range(batches):
        elsewhere.batch(WHOLE)
    assert run_to_end(driver_of(build(), storage, tmp_path / "here")) == 4 - batches
    with TestDriver(build(), storage=storage) as reader:
        assert dict(reader.state("n").items()) == {"a": 1, "b": 3, "c": 1}


# --- clearing ---


def on_disk(tmp_path, name="counts", **how) -> tuple[mp.App, LocalStorage]:
    return counting(name, state_dir=str(tmp_path), **how), LocalStorage(tmp_path)


def test_clear_state_begins_a_new_incarnation_and_reads_the_input_again(tmp_path):
    app, storage = on_disk(tmp_path)
    with TestDriver(app, storage=storage) as driver:
        driver.send("rows", ["a", "b"])
        driver.send("rows", ["a"])
        app.clear_state()
        assert [r["kind"] for r in ledger(storage, "counts")][-1] == "clear"
        assert list(driver.state("count").items()) == []
        driver.restart()
        # The old replica is still on this host, and is not used: the input is read again, from the beginning.
        assert counts(driver) == {"a": 2, "b": 1}
        again = [{"key": "a", "n": 1}, {"key": "b", "n": 1}, {"key": "a", "n": 2}]
        assert driver.output("out") == again * 2, "delivered again, under new ids"
    incarnations = [r["incarnation"] for r in ledger(storage, "counts")]
    assert len(set(incarnations)) == 2
    numbers = [r["number"] for r in ledger(storage, "counts")]
    assert numbers == list(range(len(numbers))), "numbers go on"


def test_clear_state_forgets_outputs_that_were_open(tmp_path):
    app, storage = on_disk(tmp_path)
    with TestDriver(app, storage=storage) as driver:
        driver.crash("deliver", "before")
        with pytest.raises(Crashed):
            driver.send("rows", ["a"])
        app.clear_state()
        driver.restart()
        assert driver.output("out") == [{"key": "a", "n": 1}]


def test_an_app_that_never_ran_has_nothing_to_clear(tmp_path):
    app, storage = on_disk(tmp_path)
    app.clear_state()
    assert paths(storage, "") == []


def test_a_driver_of_before_the_clear_is_fenced(tmp_path):
    app, storage = on_disk(tmp_path)
    with TestDriver(app, storage=storage) as driver:
        driver.send("rows", ["a"])
        app.clear_state()
        with pytest.raises(mp.errors.Fenced):
            driver.send("rows", ["b"])


@pytest.mark.parametrize("what", ["clear_state", "drop_outputs"])
def test_what_changes_an_app_is_refused_while_it_runs(tmp_path, what):
    app, storage = on_disk(tmp_path)
    with TestDriver(app, storage=storage) as driver:
        driver.send("rows", ["a"])
    heart = Heartbeat(storage, "counts", "a driver", SystemClock())
    heart.beat(1)
    before = ledger(storage, "counts")
    with pytest.raises(
        mp.errors.InvalidUse, match=f"{what}: app 'counts' is running on .*, process [0-9]+: .* Stop it first"
    ):
        app.clear_state() if what == "clear_state" else app.drop_outputs("out")
    assert ledger(storage, "counts") == before
    heart.stop()
    app.clear_state()


def test_clearing_may_change_the_number_of_partitions(tmp_path):
    app, storage = on_disk(tmp_path, partitions=2)
    with TestDriver(app, storage=storage) as driver:
        driver.send("rows", ["a", "b", "c"])
    wider = counting("counts", state_dir=str(tmp_path), partitions=5)
    wider.clear_state()
    with TestDriver(wider, storage=storage) as driver:
        driver.send("rows", ["a", "b", "c"])
        assert counts(driver) == {"a": 1, "b": 1, "c": 1}
    assert ledger(storage, "counts")[-1]["partitions"] == 5


# --- sinks and steps that come and go ---


def with_sinks(tmp_path, *sinks: str) -> mp.App:
    app = mp.App("sinks", state_dir=str(tmp_path))
    rows = app.stream("rows", mp.sources.rows([]))
    for sink in sinks:
        rows.to(sink, mp.sinks.memory())
    return app


def test_a_sink_that_is_gone_while_outputs_are_open_is_incompatible_until_they_are_dropped(tmp_path):
    storage = LocalStorage(tmp_path)
    with TestDriver(with_sinks(tmp_path, "kept", "gone"), storage=storage) as driver:
        driver.send("rows", [1])
        driver.crash("deliver", "before")
        with pytest.raises(Crashed):
            driver.send("rows", [2])
        smaller = with_sinks(tmp_path, "kept")
        words = r"sink 'gone' is gone from the program, and outputs of batches 2 to 2 were not delivered to it"
        with pytest.raises(mp.errors.Incompatible, match=words):
            driver.restart(smaller)
        assert ledger(storage, "sinks")[-1]["kind"] == "commit", "not even a claim was written"
        smaller.drop_outputs("gone")
        driver.restart(smaller)
        assert driver.output("kept") == [1, 2]
        driver.send("rows", [3])
        driver.restart(with_sinks(tmp_path, "kept", "gone"))
        driver.send("rows", [4])
        assert driver.output("kept") == [1, 2, 3, 4]
        assert driver.output("gone") == [1, 4], "a sink that comes back begins with what comes then"


def test_a_sink_that_is_put_back_gets_what_was_open(tmp_path):
    with TestDriver(with_sinks(tmp_path, "kept", "gone"), storage=LocalStorage(tmp_path)) as driver:
        driver.crash("commit", "after")
        with pytest.raises(Crashed):
            driver.send("rows", [1])
        with pytest.raises(mp.errors.Incompatible, match=r"drop them on purpose with app.drop_outputs\('gone'\)"):
            driver.restart(with_sinks(tmp_path, "kept"))
        driver.restart(with_sinks(tmp_path, "kept", "gone"))
        assert driver.output("gone") == driver.output("kept") == [1]


def test_a_sink_that_has_everything_may_go(tmp_path):
    with TestDriver(with_sinks(tmp_path, "kept", "gone"), storage=LocalStorage(tmp_path)) as driver:
        driver.send("rows", [1])
        driver.restart(with_sinks(tmp_path, "kept"))
        driver.send("rows", [2])
        assert driver.output("kept") == [1, 2]


def test_a_new_sink_begins_with_the_next_batch(tmp_path):
    with TestDriver(with_sinks(tmp_path, "old"), storage=LocalStorage(tmp_path)) as driver:
        driver.send("rows", [1])
        driver.restart(with_sinks(tmp_path, "old", "new"))
        driver.send("rows", [2])
        assert driver.output("old") == [1, 2]
        assert driver.output("new") == [2]


def test_a_step_of_another_kind_under_the_same_name_is_incompatible(storage):
    with TestDriver(counting(), storage=storage) as driver:
        driver.send("rows", ["a"])
    app = mp.App("counts")
    app.stream("rows", mp.sources.rows([])).key_by(key=lambda key: key).apply("count", lambda row, state: None)
    with pytest.raises(
        mp.errors.Incompatible, match="step 'count' is of kind apply in the program, and its state is of kind"
    ):
        TestDriver(app, storage=storage)


# --- positions ---


@pytest.mark.parametrize("lanes", [3, 499, 500, 501, 1300])
def test_positions_of_many_places_go_to_a_file_and_come_back(storage, tmp_path, lanes):
    """More places than a record has room for: the whole position in a file, the newest moves in the record."""
    rows = {f"lane {n}": [{"lane": n}] for n in range(lanes)}

    def build() -> mp.App:
        app = mp.App("lanes")
        app.stream("rows", Lanes(rows)).key_by("lane").aggregate("count", n=mp.count())
        return app

    driver = driver_of(build(), storage, tmp_path)
    assert run_to_end(driver) == 1
    files = paths(storage, "lanes/positions")
    assert len(files) == (lanes > 500)
    for n in range(0, lanes, 100):
        rows[f"lane {n}"].append({"lane": n})
    other = driver_of(build(), storage, tmp_path)
    assert run_to_end(other) == 1, "only what is new is read, by a driver that knows only the ledger"
    assert paths(storage, "lanes/positions") == files, "a few moves do not write all places again"
    record = ledger(storage, "lanes")[-1]
    assert len(record["positions"]["rows"].get("entries", {})) == (lanes if lanes <= 500 else len(range(0, lanes, 100)))
    with TestDriver(build(), storage=storage) as reader:
        found = {key: value["n"] for key, value in reader.state("count").items()}
    assert found == {n: 1 + (n % 100 == 0) for n in range(lanes)}
    assert len(storage.get(paths(storage, "lanes/ledger")[-1])) < 200_000


def test_a_position_file_holds_the_places_of_all_batches_before_it(storage, tmp_path):
    rows = {f"early {n}": [n] for n in range(300)}
    app = mp.App("lanes")
    app.stream("rows", Lanes(rows)).to("out", mp.sinks.memory())
    assert run_to_end(driver_of(app, storage, tmp_path)) == 1
    rows.update({f"late {n}": [n] for n in range(300)})
    assert run_to_end(driver_of(app, storage, tmp_path)) == 1
    (path,) = paths(storage, "lanes/positions")
    assert json.loads(storage.get(path)) == dict.fromkeys(rows, 1)
    assert run_to_end(driver_of(app, storage, tmp_path)) == 0


def test_a_damaged_position_file_is_corrupt_by_its_name(storage, tmp_path):
    rows = {f"lane {n}": [n] for n in range(600)}
    app = mp.App("lanes")
    app.stream("rows", Lanes(rows)).to("out", mp.sinks.memory())
    run_to_end(driver_of(app, storage, tmp_path))
    (path,) = paths(storage, "lanes/positions")
    assert len(json.loads(storage.get(path))) == 600
    storage.damage(path)
    with pytest.raises(mp.errors.Corrupt, match=re.escape(path)):
        driver_of(app, storage, tmp_path)
