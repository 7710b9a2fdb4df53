"""A running app is rescaled between two batches: no row is lost or doubled, whatever dies on the way."""

from __future__ import annotations

import os
import random
import threading
import time
from typing import Any, Literal

import pytest
from local_drivers import start_driver

import millpond as mp
from millpond.clock import ManualClock, SystemClock
from millpond.driver.commit import Driver
from millpond.driver.settings import DriverSettings
from millpond.log.ledger import Ledger
from millpond.log.paths import Paths
from millpond.log.record import Record
from millpond.log.requests import Request, leave_request
from millpond.runtimes.local import LocalRuntime
from millpond.storage import Storage, open_storage
from millpond.testing import Crashed, TestDriver

SEEDS = int(os.environ.get("MILLPOND_RESCALE_SEEDS", "8"))
ROWS: list[dict[str, Any]] = [{"k": f"k{random.Random(i).randrange(20)}", "v": i} for i in range(60)]


def totals(partitions: int | None = 2, **how: Any) -> mp.App:
    """Totals per key, which are removed when they become large, and windows."""
    app = mp.App("moves", partitions=partitions, **{"compact_every": 3, **how})
    keyed = app.stream("rows", mp.sources.rows([]), timestamp="v").key_by("k")

    def add(k: str, row: Any, n: int) -> tuple[Any, int | None]:
        n += row["v"]
        return {"k": k, "n": n}, None if n > 90 else n

    keyed.stateful_map("total", add, initial=0).to("out", mp.sinks.memory())
    keyed.window("by ten", mp.tumbling(10), grace=mp.NO_GRACE).aggregate(n=mp.count()).to("windows", mp.sinks.memory())
    return app


def fold(rows: list[dict[str, Any]]) -> tuple[dict[str, int], list[Any]]:
    """The state and the outputs of `total`."""
    state: dict[str, int] = {}
    out = []
    for row in rows:
        n = state.pop(row["k"], 0) + row["v"]
        out.append({"k": row["k"], "n": n})
        if n <= 90:
            state[row["k"]] = n
    return state, out


def check(driver: TestDriver, rows: list[dict[str, Any]]) -> None:
    state, out = fold(rows)
    assert dict(driver.state("total").items()) == state
    assert driver.output("out") == out


def newest(storage: Storage) -> Record:
    found = Ledger(storage, "moves", ManualClock()).newest()
    assert found is not None
    return found


def ask(storage: Storage, driver: TestDriver, partitions: int) -> Request:
    """Leave a request, as a command does; the driver finds it when it runs next."""
    return leave_request(Ledger(storage, "moves", driver.clock), "rescale", {"partitions": partitions})


def requests_left(storage: Storage) -> list[str]:
    return [item.path for item in storage.list(Paths("moves").requests)]


@pytest.mark.parametrize("compact_every", [2, 1000])
@pytest.mark.parametrize("keep", [1000, 2])
def test_a_running_app_moves_its_state_and_goes_on(compact_every: int, keep: int) -> None:
    storage = open_storage("memory://")
    with TestDriver(totals(2, compact_every=compact_every, keep=keep), storage) as driver:
        sent = 0
        for partitions in (5, 3, 8, 1):
            for _ in range(3):
                driver.send("rows", ROWS[sent : sent + 5])
                sent += 5
            driver.rescale(partitions)
            assert newest(storage).partitions == partitions
            check(driver, ROWS[:sent])
        driver.restart(lose_replicas=True)
        check(driver, ROWS)
        driver.finish()
        assert len(driver.output("windows")) == len({(row["k"], row["v"] // 10) for row in ROWS})
        assert requests_left(storage) == []


@pytest.mark.parametrize("compact_every", [1, 2, 1000])
def test_rows_and_deletions_between_the_preparation_and_the_record_are_moved_too(compact_every: int) -> None:
    storage = open_storage("memory://")
    with TestDriver(totals(2, compact_every=compact_every), storage) as driver:
        driver.send("rows", ROWS[:40])
        ask(storage, driver, 5)
        driver.send("rows", ROWS[40:50])  # the state is prepared before this batch, and switched after it
        assert newest(storage).kind == "rewrite" and newest(storage).partitions == 5
        check(driver, ROWS[:50])
        driver.send("rows", ROWS[50:])
        check(driver, ROWS)
        driver.restart(lose_replicas=True)
        check(driver, ROWS)


def test_the_record_names_the_request_and_says_why() -> None:
    storage = open_storage("memory://")
    with TestDriver(totals(2), storage) as driver:
        driver.send("rows", ROWS[:10])
        request = ask(storage, driver, 4)
        driver.advance("1s")
        record = newest(storage)
        assert (record.request, record.why) == (request.id, "rescale to 4 partitions")
        assert record.requests[request.id][0] == record.number
        driver.send("rows", ROWS[10:20])
        assert newest(storage).request == ""
        assert newest(storage).requests[request.id][0] == record.number


POINTS = [("rewrite", "before"), ("rewrite", "during"), ("rewrite", "after")]
POINTS += [("request", "before"), ("request", "during"), ("request", "after")]


@pytest.mark.parametrize("lose", [False, True])
@pytest.mark.parametrize("point", POINTS)
def test_a_crash_at_any_point_leaves_the_old_or_the_new_number_and_the_request_is_done_once(
    point: Any, lose: bool
) -> None:
    storage = open_storage("memory://")
    with TestDriver(totals(2), storage) as driver:
        driver.send("rows", ROWS[:30])
        ask(storage, driver, 5)
        driver.crash(*point)
        with pytest.raises(Crashed):
            driver.send("rows", ROWS[30:40])
        assert newest(storage).partitions == (5 if point in POINTS[4:] else 2)
        driver.restart(lose_replicas=lose)
        assert newest(storage).partitions == 5
        check(driver, ROWS[:40])
        driver.send("rows", ROWS[40:])
        check(driver, ROWS)
        ledger = Ledger(storage, "moves", driver.clock)
        done = [r for r in ledger.between(ledger.floor() - 1, newest(storage).number) if r.request]
        assert len(done) == 1
        assert [path for path in requests_left(storage) if "answer" not in path] == []


def test_a_number_that_an_operator_chose_stays_until_the_program_says_another() -> None:
    storage = open_storage("memory://")
    with TestDriver(totals(2), storage) as driver:
        driver.send("rows", ROWS[:20])
        driver.rescale(5)
        driver.restart(totals(2))
        assert newest(storage).partitions == 5
        driver.restart(totals(None))
        assert newest(storage).partitions == 5
        driver.restart(totals(3))
        assert newest(storage).partitions == 3
        driver.restart(totals(3), lose_replicas=True)
        check(driver, ROWS[:20])


def test_a_start_that_dies_before_it_has_followed_the_program_follows_it_the_next_time() -> None:
    storage = open_storage("memory://")
    with TestDriver(totals(2), storage) as driver:
        driver.send("rows", ROWS[:20])
        driver.crash("rewrite", "during")
        with pytest.raises(Crashed):
            driver.restart(totals(4))
        driver.restart(totals(4))
        assert newest(storage).partitions == 4


@pytest.mark.parametrize("partitions", [0, -1, 10_001, "8", 2.0, True, None])
def test_a_wrong_number_is_refused_and_the_app_goes_on(partitions: Any) -> None:
    storage = open_storage("memory://")
    with TestDriver(totals(2), storage) as driver:
        driver.send("rows", ROWS[:20])
        with pytest.raises(mp.errors.InvalidUse, match="expected a whole number of partitions from 1 to 10000, got"):
            driver.rescale(partitions)
        driver.send("rows", ROWS[20:])
        check(driver, ROWS)
        assert newest(storage).partitions == 2 and requests_left(storage) == []


def test_the_same_number_again_changes_nothing() -> None:
    storage = open_storage("memory://")
    with TestDriver(totals(2), storage) as driver:
        driver.send("rows", ROWS[:20])
        before = newest(storage).number
        driver.rescale(2)
        assert newest(storage).number == before


def test_published_changes_go_on_over_a_live_rescale() -> None:
    app = mp.App("moves", partitions=2)
    app.stream("rows", mp.sources.rows([])).key_by("k").aggregate("count", n=mp.count())
    app.changes("count").to("changes", mp.sinks.memory())
    with TestDriver(app) as driver:
        for start in range(0, 60, 10):
            driver.send("rows", ROWS[start : start + 10])
            driver.rescale(3 if start % 20 else 7)
        counts: dict[str, int] = {}
        expected = []
        for start in range(0, 60, 10):
            changed = dict.fromkeys(row["k"] for row in ROWS[start : start + 10])
            for row in ROWS[start : start + 10]:
                counts[row["k"]] = counts.get(row["k"], 0) + 1
            expected += [(k, counts[k]) for k in changed]
        found = [(row["key"], row["value"]["n"]) for row in driver.output("changes")]
        assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_rescales_crashes_and_rows_end_where_the_fold_ends(seed: int) -> None:
    chance = random.Random(seed)
    storage = open_storage("memory://")
    steps = ["plan", "compute", "commit", "deliver", "acknowledge", "tidy", "compact", "rewrite", "request"]
    rows: list[dict[str, Any]] = []
    with TestDriver(
        totals(2, compact_every=chance.choice([1, 3, 50]), keep=chance.choice([2, 1000])), storage
    ) as driver:
        for _ in range(25):
            if chance.random() < 0.4:
                ask(storage, driver, chance.randrange(1, 9))
            if chance.random() < 0.3:
                driver.crash(chance.choice(steps), chance.choice(["before", "during", "after"]))  # type: ignore[arg-type]
            sent = [{"k": f"k{chance.randrange(12)}", "v": len(rows)} for _ in range(chance.randrange(5))]
            sent = [{**row, "v": len(rows) + i} for i, row in enumerate(sent)]
            rows += sent
            try:
                driver.send("rows", sent)
            except Crashed:
                driver.restart(lose_replicas=chance.random() < 0.5)
        check(driver, rows)
        driver.restart(lose_replicas=True)
        check(driver, rows)


class FencedTarget:
    """A sink whose target refuses deliveries of older claims, and to partitions that it was not told of."""

    where: Literal["driver"] = "driver"
    target = "somewhere"
    can_take_back = False

    def __init__(self) -> None:
        self.rows: dict[str, list[Any]] = {}
        self.fenced: list[tuple[int, int]] = []  # claim, and the number of partitions
        self.entries: list[mp.lowlevel.Registration] = []

    def deliver(self, rows: list[Any], delivery: mp.lowlevel.Delivery) -> None:
        claim, _ = self.fenced[-1]
        assert delivery.claim is not None and delivery.claim[0] == claim
        assert delivery.partition < max(n for c, n in self.fenced if c == claim), "it was not told of this partition"
        self.rows[delivery.id] = rows

    def fence(self, registration: mp.lowlevel.Registration, partitions: int, over: Any = ()) -> None:
        self.fenced.append((registration.claim, partitions))

    def check_target(self, registration: mp.lowlevel.Registration) -> None:
        return None

    def is_emptied(self, app: str, incarnation: str, sink: str) -> bool:
        return False

    def registrations(self, app: str, incarnation: str, sink: str) -> list[mp.lowlevel.Registration]:
        return list(self.entries)

    def register(self, registration: mp.lowlevel.Registration) -> None:
        self.entries = [*(e for e in self.entries if e.claim != registration.claim), registration]

    def forget(self, registrations: Any) -> None:
        self.entries = [entry for entry in self.entries if entry not in registrations]

    def status(self, delivery: mp.lowlevel.Delivery) -> Any:
        return "held" if delivery.id in self.rows else "gone"

    def take_back(self, registration: Any, known: Any) -> Any:
        raise mp.errors.InvalidUse("no")

    def revive(self, rows: list[Any], delivery: mp.lowlevel.Delivery) -> None:
        raise AssertionError("nothing is void")


def test_a_target_that_fences_by_partition_is_told_of_more_before_they_deliver(tmp_path: Any) -> None:
    target = FencedTarget()
    assert isinstance(target, mp.lowlevel.FencingSink) and isinstance(target, mp.lowlevel.RegisteredSink)
    rows = [{"k": f"k{i % 40}", "v": i} for i in range(400)]
    app = mp.App("moves", "memory://", 2, local_dir=str(tmp_path))
    keyed = app.stream("rows", mp.sources.rows(rows)).key_by("k")
    keyed.stateful_map("n", lambda k, row, n: ((k, n), n + 1), initial=0).to("out", target)
    driver = start_driver(app, storage := open_storage("memory://"))
    for partitions in (5, 3, 8):
        driver.batch(mp.lowlevel.Limit(100, 1 << 40))
        leave_request(Ledger(storage, "moves", driver.clock), "rescale", {"partitions": partitions})
        driver.requests.look()
        while driver.requests.is_busy:
            driver.batch(mp.lowlevel.Limit(20, 1 << 40))
        assert driver.last.partitions == partitions
    while driver.batch(mp.lowlevel.Limit(50, 1 << 40)):
        pass
    driver.release()
    driver.close()
    assert [partitions for _, partitions in target.fenced] == [2, 5, 8]
    assert sorted(row for rows in target.rows.values() for row in rows) == sorted(
        (f"k{i % 40}", i // 40) for i in range(400)
    )


class FailsOnce:
    """A storage with a mistake in it, which shows once, when the state is moved."""

    def __init__(self, inner: Storage) -> None:
        self._inner, self.url, self.is_armed = inner, inner.url, False

    def __getattr__(self, name: str) -> Any:
        if self.is_armed and threading.current_thread().name == "millpond-rescale":
            self.is_armed = False
            raise ZeroDivisionError("a mistake")
        return getattr(self._inner, name)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_mistake_while_the_state_is_prepared_does_not_make_half_of_it_the_state(tmp_path: Any) -> None:
    rows = [{"k": f"k{i % 40}", "v": i} for i in range(400)]
    app = mp.App("moves", str(tmp_path / "state"), 2, local_dir=str(tmp_path))
    keyed = app.stream("rows", mp.sources.rows(rows)).key_by("k")
    keyed.stateful_map("n", lambda k, row, n: (None, n + 1), initial=0).to("out", mp.sinks.discard())
    storage: Any = FailsOnce(open_storage(app.state_dir))

    def start() -> Driver:
        settings = DriverSettings(partitions=2, home=app.local_dir)
        clock = SystemClock()
        return Driver.start(mp.lowlevel.program(app), LocalRuntime(storage, clock), storage, clock, settings)

    def count() -> list[int]:
        return sorted(n for _, n in mp.open(str(tmp_path / "state"), "moves").state("n").items())

    limit = mp.lowlevel.Limit(100, 1 << 40)
    driver = start()
    driver.batch(limit)
    leave_request(Ledger(storage, "moves", driver.clock), "rescale", {"partitions": 5})
    driver.requests.look()
    storage.is_armed = True
    with pytest.raises(ZeroDivisionError):
        for _ in range(100):
            driver.batch(mp.lowlevel.Limit(1, 1 << 40))
            time.sleep(0.05)
    assert driver.last.partitions == 2
    driver.close()
    driver = start()
    while driver.batch(limit) or driver.requests.is_busy:
        pass
    driver.release()
    driver.close()
    assert driver.last.partitions == 5
    assert count() == [10] * 40
