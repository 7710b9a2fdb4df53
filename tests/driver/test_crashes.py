"""The crash is part of the input: an app of two keyed stages dies at every point of the commit protocol."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from ledger_reader import commits, ledger, named_files, paths
from small_drivers import WHOLE, Lanes, driver_of

import millpond as mp
from millpond.clock import ManualClock
from millpond.driver.commit import Driver
from millpond.driver.settings import DriverSettings
from millpond.messages import EventTime, StageResults
from millpond.runtimes.local import LocalRuntime
from millpond.storage import open_storage
from millpond.task.keyed_task import KeyedTask
from millpond.task.tools import Tools
from millpond.testing import Crashed, TestDriver

STEPS = ["plan", "compute", "commit", "deliver", "acknowledge", "tidy"]
WHENS = ["before", "during", "after"]
EVERYWHERE = [(at, when) for at in STEPS for when in WHENS]
COMMITTED = [(at, when) for at, when in EVERYWHERE if STEPS.index(at) > 2 or (at == "commit" and when != "before")]


def payments(partitions: int, store: str = "lmdb", sizes_store: str | None = None) -> mp.App:
    """Totals per card, then counts per size of the total; one sink for each, and one for the rows that fail."""
    app = mp.App("payments", partitions=partitions, store=store)
    rows = app.stream("payments", mp.sources.rows([]), on_error="dead-letter")

    def add_up(card, row, total):
        total += row["amount"]
        return {"card": card, "total": total}, total

    def number(row, state):
        state.list("cards").append(row["card"])
        state.map("per card")[row["card"]] = state.map("per card").get(row["card"], 0) + 1
        return {"size": state.key, "nth": len(state.list("cards"))}

    checked = rows.map(lambda row: {**row, "amount": int(row["amount"])})
    totals = checked.key_by("card").stateful_map("total", add_up, initial=0).to("totals", mp.sinks.memory())
    sizes = totals.key_by(size=lambda row: row["total"] // 100).apply("sizes", number, store=sizes_store)
    sizes.to("sizes out", mp.sinks.memory())
    app.dead_letters.map(lambda letter: letter["row"]).to("dead", mp.sinks.memory())
    return app


def folded(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The same in plain Python."""
    totals: Counter[str] = Counter()
    cards: dict[int, list[str]] = {}
    out: dict[str, list[Any]] = {"totals": [], "sizes out": [], "dead": []}
    for row in rows:
        if row["amount"] == "bad":
            out["dead"].append(row)
            continue
        totals[row["card"]] += int(row["amount"])
        out["totals"].append({"card": row["card"], "total": totals[row["card"]]})
        size = totals[row["card"]] // 100
        cards.setdefault(size, []).append(row["card"])
        out["sizes out"].append({"size": size, "nth": len(cards[size])})
    sizes = {size: {"cards": found, "per card": dict(Counter(found))} for size, found in cards.items()}
    return {"total": dict(totals), "sizes": sizes, **out}


def held(driver: TestDriver) -> dict[str, Any]:
    """All that the app holds: its state and what is in its sinks."""
    state = {step: dict(driver.state(step).items()) for step in ("total", "sizes")}
    return {**state, **{sink: driver.output(sink) for sink in ("totals", "sizes out", "dead")}}


def batch(n: int) -> list[dict[str, Any]]:
    return [{"card": f"c{(n * 7 + i) % 5}", "amount": "bad" if i % 4 == 3 else str(10 * n + i)} for i in range(8)]


@pytest.mark.parametrize("lose_replicas", [False, True], ids=["replicas kept", "replicas lost"])
@pytest.mark.parametrize("at, when", EVERYWHERE)
@pytest.mark.parametrize("partitions", [1, 3])
def test_after_a_crash_anywhere_state_and_sinks_are_those_of_the_plain_fold(partitions, at, when, lose_replicas):
    rows = [*batch(1), *batch(2), *batch(3), *batch(4)]
    with TestDriver(payments(partitions)) as driver:
        driver.send("payments", batch(1))
        driver.crash(at=at, when=when)
        with pytest.raises(Crashed, match=f"crashed {when} {at}"):
            driver.send("payments", batch(2))
        driver.restart(lose_replicas=lose_replicas)
        assert held(driver) == folded(rows[:16]), "right after the restart"
        driver.send("payments", batch(3))
        driver.crash(at=at, when=when)
        with pytest.raises(Crashed):
            driver.send("payments", batch(4))
        driver.restart(lose_replicas=lose_replicas)
        assert held(driver) == folded(rows)


@pytest.mark.parametrize(
    ("store", "sizes_store"), [("rocksdb", None), ("memory", None), ("lmdb", "rocksdb"), ("rocksdb", "memory")]
)
def test_the_same_app_survives_crashes_everywhere_on_every_store(store, sizes_store):
    rows, where = list[dict[str, Any]](), list[Any](EVERYWHERE)
    with TestDriver(payments(2, store, sizes_store)) as driver:
        for number, (at, when) in enumerate(where):
            driver.crash(at=at, when=when)
            rows += batch(number)
            with pytest.raises(Crashed, match=f"crashed {when} {at}"):
                driver.send("payments", batch(number))
            driver.restart(lose_replicas=number % 4 == 3)
            assert held(driver) == folded(rows), f"after a crash {when} {at}"


@pytest.mark.parametrize("at, when", EVERYWHERE)
def test_the_first_batch_of_all_may_die_too(at, when):
    with TestDriver(payments(2)) as driver:
        driver.crash(at=at, when=when)
        with pytest.raises(Crashed):
            driver.send("payments", batch(1))
        driver.restart(lose_replicas=True)
        assert held(driver) == folded(batch(1))


@pytest.mark.parametrize("at, when", EVERYWHERE)
def test_a_batch_that_dies_again_and_again_counts_once(at, when):
    with TestDriver(payments(2)) as driver:
        sent: list[Any] = []
        for n in range(1, 5):
            driver.crash(at=at, when=when)
            sent += batch(n)
            with pytest.raises(Crashed):
                driver.send("payments", batch(n))
            driver.restart(lose_replicas=n % 2 == 0)
        assert held(driver) == folded(sent)


@pytest.mark.parametrize("at, when", EVERYWHERE)
def test_nothing_counts_before_the_commit_and_nothing_is_computed_again_after_it(at, when):
    storage = open_storage("memory://")
    with TestDriver(payments(2), storage=storage) as driver:
        driver.send("payments", batch(1))
        before = ledger(storage, "payments")
        driver.crash(at=at, when=when)
        with pytest.raises(Crashed):
            driver.send("payments", batch(2))
        is_committed = (at, when) in COMMITTED
        assert len(ledger(storage, "payments")) - len(before) == is_committed
        segments = named_files(storage, "payments")
        dead = commits(storage, "payments")[-1]
        driver.restart()
        assert len(commits(storage, "payments")) == 2
        if is_committed:
            assert commits(storage, "payments")[-1] == dead
            assert named_files(storage, "payments") == segments
            assert not [p for p in paths(storage, "payments/steps") if p not in segments], "nothing ran twice"


@pytest.mark.parametrize("at, when", EVERYWHERE)
def test_what_lay_between_the_stages_is_gone_after_the_batch_that_follows(at, when):
    storage = open_storage("memory://")
    with TestDriver(payments(2), storage=storage) as driver:
        driver.send("payments", batch(1))
        assert paths(storage, "payments/exchange") == []
        driver.crash(at=at, when=when)
        with pytest.raises(Crashed):
            driver.send("payments", batch(2))
        driver.restart()
        assert paths(storage, "payments/exchange") == []


def test_folders_that_rows_changed_hands_in_do_not_pile_up_on_a_disk(tmp_path):
    folder = tmp_path / "payments" / "exchange"
    app = payments(2)
    app.compact_every = 3
    with TestDriver(app, storage=str(tmp_path)) as driver:
        for number in range(20):
            driver.send("payments", batch(number))
            assert len(list(folder.iterdir())) <= 6
        driver.restart()
        driver.send("payments", batch(20))
        assert len(list(folder.iterdir())) <= 1


@pytest.mark.parametrize("at, when", COMMITTED)
def test_a_delivery_is_made_again_under_its_own_id_with_its_own_rows(at, when):
    seen: list[tuple[str, list[Any]]] = []
    app = mp.App("ids", partitions=2)
    counter = iter(range(1000))
    rows = app.stream("rows", mp.sources.rows([])).map(lambda n: {"n": n, "unrepeatable": next(counter)})
    rows.key_by("n").stateful_map("s", lambda k, row, s: (row, row), initial=None).to(
        "out", mp.sinks.function(lambda rows, delivery: seen.append((delivery.id, rows)))
    )
    with TestDriver(app) as driver:
        driver.send("rows", [1, 2, 3])
        driver.crash(at=at, when=when)
        with pytest.raises(Crashed):
            driver.send("rows", [4, 5, 6])
        driver.restart(lose_replicas=True)
        rows_of: dict[str, list[Any]] = {}
        for name, delivered in seen:
            assert rows_of.setdefault(name, delivered) == delivered
        final = [row for rows in rows_of.values() for row in rows]
        assert sorted(row["n"] for row in final) == [1, 2, 3, 4, 5, 6]
        assert {row["n"]: row for row in final} == dict(driver.state("s").items()), "state and sink agree"


def test_a_driver_that_dies_while_it_recovers_is_followed_by_one_that_does():
    deaths = iter([True, True, False])
    seen: list[Any] = []

    def fragile(rows, delivery):
        if next(deaths, False):
            raise Crashed("deliver", "during")
        seen.extend(rows)

    app = mp.App("fragile")
    rows = app.stream("rows", mp.sources.rows([])).key_by(k=lambda n: 0)
    rows.stateful_map("sum", lambda k, n, s: (s + n, s + n), initial=0).to("out", mp.sinks.function(fragile))
    with TestDriver(app) as driver:
        with pytest.raises(Crashed):
            driver.send("rows", [1, 2])
        with pytest.raises(Crashed):
            driver.restart()
        assert seen == []
        driver.restart()
        assert seen == [1, 3]
        driver.send("rows", [3])
        assert seen == [1, 3, 6]


@pytest.mark.parametrize("restart", [False, True])
def test_a_sink_that_raises_stops_the_app_and_misses_nothing(restart):
    seen: list[Any] = []
    failures = iter([True])

    def fragile(rows, delivery):
        if next(failures, False):
            raise ValueError("the table is locked")
        seen.extend(rows)

    app = mp.App("fragile")
    app.stream("rows", mp.sources.rows([])).to("out", mp.sinks.function(fragile))
    with TestDriver(app) as driver:
        with pytest.raises(mp.errors.StepFailed, match="'out', batch 1: a function raised ValueError: the table"):
            driver.send("rows", [1])
        if not restart:
            with pytest.raises(mp.errors.StepFailed, match="batch 1"):
                driver.send("rows", [2])
            assert seen == [], "the second batch does not take the place of the first"
        driver.restart()
        driver.send("rows", [3])
        assert seen == ([1, 3] if restart else [1, 2, 3])


def test_after_a_crash_only_restart_is_possible():
    with TestDriver(payments(1)) as driver:
        driver.crash(at="plan")
        with pytest.raises(Crashed):
            driver.send("payments", batch(1))
        with pytest.raises(mp.errors.InvalidUse, match=r"the app has crashed: call restart\(\) first"):
            driver.send("payments", batch(2))
        driver.restart()
        assert held(driver) == folded(batch(1))


def test_functions_that_change_their_rows_see_them_unchanged_after_a_crash():
    """A source gives the same rows again; the test's source must do so too."""

    def grown(row):
        row["n"] += 1
        row["tags"].append("seen")
        return row

    app = mp.App("grown")
    app.stream("rows", mp.sources.rows([])).map(grown).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.crash(at="commit", when="before")
        with pytest.raises(Crashed):
            driver.send("rows", [{"n": 1, "tags": []}])
        driver.restart()
        assert driver.output("out") == [{"n": 2, "tags": ["seen"]}]


def test_rows_between_two_stages_that_are_damaged_are_made_again():
    """Whatever lies between the stages is checked; a batch that cannot read it is run again."""

    class Flipping:
        """Damages the first exchange file that is written."""

        def __init__(self, inner):
            self.inner, self.url, self.flipped = inner, inner.url, 0

        def put(self, path, data):
            if "/exchange/" in path and not self.flipped:
                self.flipped += 1
                data = bytearray(data)
                data[len(data) // 2] ^= 0x20
            self.inner.put(path, bytes(data))

        def __getattr__(self, name):
            return getattr(self.inner, name)

    storage = Flipping(open_storage("memory://"))
    with TestDriver(payments(2), storage=storage) as driver:
        driver.send("payments", batch(1))
        assert storage.flipped == 1
        assert held(driver) == folded(batch(1))


def test_a_sink_that_has_a_batch_does_not_get_it_again_because_another_lacks_it():
    seen: list[Any] = []
    failures = iter([True])

    def fragile(rows, delivery):
        if next(failures, False):
            raise ValueError("not now")
        seen.append(("fragile", rows))

    app = mp.App("two")
    rows = app.stream("rows", mp.sources.rows([]))
    rows.to("steady", mp.sinks.function(lambda rows, delivery: seen.append(("steady", rows))))
    rows.to("fragile", mp.sinks.function(fragile))
    with TestDriver(app) as driver:
        with pytest.raises(mp.errors.StepFailed):
            driver.send("rows", [1])
        driver.restart()
        assert seen == [("steady", [1]), ("fragile", [1])]


# --- tasks that run twice and differ ---


class Torn(LocalRuntime):
    """The first time, some partitions see one attempt of the reading tasks and some another, as Spark can do."""

    torn = 0

    def first_stage(self, program, context, tasks, offers, reading=None):
        one = super().first_stage(program, context, tasks, offers, reading)
        if self.torn:
            return one
        self.torn += 1
        other = super().first_stage(program, context, tasks, offers, reading)
        return StageResults([one.results[0], *other.results[1:]], one.tasks)


def test_partitions_that_saw_different_attempts_of_a_reading_task_make_no_batch(tmp_path):
    """With a random key, a mixture of two attempts would lose some rows and double others."""
    chance = random.Random()
    rows = [{"n": n} for n in range(200)]
    app = mp.App("torn", partitions=4)
    read = app.stream("rows", Lanes({"0": rows}, width=1000))
    seen = read.key_by(luck=lambda row: chance.randrange(1000)).stateful_map(
        "seen", lambda k, row, s: (row, [*s, row["n"]]), initial=[]
    )
    out: dict[str, list[Any]] = {}
    seen.to("out", mp.sinks.function(lambda rows, delivery: out.update({delivery.id: rows})))
    storage, clock = open_storage("memory://"), ManualClock()
    runtime = Torn(storage, clock)
    driver = Driver.start(
        mp.lowlevel.program(app),
        runtime,
        storage,
        clock,
        DriverSettings(partitions=4, home=str(tmp_path), threaded=False),
    )
    assert driver.batch(WHOLE)
    assert runtime.torn == 1
    with TestDriver(app, storage=storage) as reader:
        found = [n for _, ns in reader.state("seen").items() for n in ns]
    assert sorted(found) == list(range(200))
    assert sorted(row["n"] for rows in out.values() for row in rows) == list(range(200))


def test_a_task_of_a_batch_that_is_over_does_not_work_on_the_state_that_came_after(tmp_path):
    """It may have slept: its replica has gone on meanwhile, and what it would write must count for nothing."""
    app = mp.App("late")
    app.stream("rows", Lanes({"0": ["a", "a", "a"]})).key_by(k=lambda k: k).aggregate("n", n=mp.count())
    storage = open_storage("memory://")
    driver = driver_of(app, storage, tmp_path)
    driver.batch(WHOLE)
    earlier = driver.owner.context(0.0, str(tmp_path), EventTime())
    driver.batch(WHOLE)
    driver.batch(WHOLE)
    before = paths(storage, "")
    task = KeyedTask(mp.lowlevel.program(app), earlier, 1, 0, Tools(storage, ManualClock()))
    result = task.run([], {})
    assert result.incomplete == f"replica at record 2, batch {earlier.batch} builds on {earlier.log.number}"
    assert paths(storage, "") == before
