"""Tables: the latest row of every key, as state like any other."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_reader import changes
from small_drivers import WHOLE, Lanes, driver_of, run_to_end

import millpond as mp
from millpond.clock import ManualClock
from millpond.driver.commit import STEPS, Driver
from millpond.driver.settings import DriverSettings
from millpond.errors import Incompatible, InvalidUse, StepFailed
from millpond.runtimes.local import LocalRuntime
from millpond.storage import open_storage
from millpond.testing import Crashed, TestDriver

EVERYWHERE = pytest.mark.parametrize("everywhere", [False, True], ids=["partitioned", "everywhere"])


def is_gone(row: dict[str, Any]) -> bool:
    return row["price"] is None


def shop(
    everywhere: bool = False, partitions: int | None = None, keep: int = 1000, compact_every: int = 50, **time: Any
) -> mp.App:
    """Prices by article, and orders that look into them."""
    app = mp.App("shop", partitions=partitions, keep=keep, compact_every=compact_every)
    prices = app.table(
        "prices", app.stream("updates", mp.sources.rows([]), **time).key_by("sku"), everywhere, deleted=is_gone
    )
    orders = app.stream("orders", mp.sources.rows([])).map(lambda row: row)
    priced = orders.lookup("priced", prices, on="sku") if everywhere else orders.key_by("sku").lookup("priced", prices)
    priced.to("out", mp.sinks.memory())
    return app


def price(sku: str, price: int | None, **more: Any) -> dict[str, Any]:
    return {"sku": sku, "price": price, **more}


@pytest.mark.parametrize("partitions", [1, 2, 3])
def test_a_table_holds_the_row_that_came_last_for_each_key(partitions):
    with TestDriver(shop(partitions=partitions)) as driver:
        driver.send("updates", [price("tea", 1), price("pen", 2), price("tea", 3)])
        driver.send("updates", [price("pen", 4)])
        prices = driver.state("prices")
        assert prices.get("tea") == price("tea", 3)
        assert dict(prices.items()) == {"tea": price("tea", 3), "pen": price("pen", 4)}
        assert prices.get("cup", "none") == "none"


def test_a_row_that_says_so_removes_its_key():
    with TestDriver(shop()) as driver:
        driver.send("updates", [price("tea", 1), price("pen", 2)])
        driver.send("updates", [price("tea", None)])
        assert dict(driver.state("prices").items()) == {"pen": price("pen", 2)}
        driver.send("updates", [price("tea", None), price("tea", 5), price("cup", 1), price("cup", None)])
        assert dict(driver.state("prices").items()) == {"pen": price("pen", 2), "tea": price("tea", 5)}


def test_a_table_has_a_history_and_earlier_states():
    with TestDriver(shop()) as driver:
        for amount in (1, 2, None, 3):
            driver.send("updates", [price("tea", amount)])
        prices = driver.state("prices")
        moments = list(prices.history("tea"))
        assert [(m.value, m.deleted) for m in moments] == [
            (price("tea", 1), False),
            (price("tea", 2), False),
            (None, True),
            (price("tea", 3), False),
        ]
        assert prices.at(moments[1].batch).get("tea") == price("tea", 2)
        assert prices.at(moments[2].batch).get("tea") is None


def test_a_row_that_changes_nothing_is_not_written_again():
    storage = open_storage("memory://")
    with TestDriver(shop(), storage=storage) as driver:
        driver.send("updates", [price("tea", 1), price("pen", 1)])
        driver.send("updates", [price("tea", 1), price("pen", 2)])
        assert [key for key, *_ in changes(storage, "shop", "prices")] == ['"pen"']
        assert len(list(driver.state("prices").history("tea"))) == 1


def test_any_value_can_be_a_row_of_a_table():
    app = mp.App("values")
    app.table("last", app.stream("rows", mp.sources.rows([])).key_by(k=lambda row: row[0]).map(lambda row: row[1]))
    with TestDriver(app) as driver:
        driver.send("rows", [("a", 1), ("b", {1, 2}), ("c", None)])
        assert dict(driver.state("last").items()) == {"a": 1, "b": {1, 2}, "c": None}


# --- event time ---


def test_with_event_time_the_newest_row_is_the_latest_and_of_one_time_the_last_to_arrive():
    with TestDriver(shop(timestamp="at")) as driver:
        driver.send("updates", [price("tea", 1, at=10), price("tea", 2, at=5)])
        assert driver.state("prices").get("tea")["price"] == 1
        driver.send("updates", [price("tea", 3, at=9)])
        assert driver.state("prices").get("tea")["price"] == 1
        driver.send("updates", [price("tea", 4, at=10), price("pen", 7, at=1)])
        assert driver.state("prices").get("tea")["price"] == 4
        assert driver.state("prices").get("pen")["price"] == 7, "late, and still all that is known"


def test_a_row_older_than_the_deletion_does_not_bring_the_key_back():
    with TestDriver(shop(timestamp="at", disorder=5)) as driver:
        driver.send("updates", [price("tea", 1, at=10), price("tea", None, at=12)])
        driver.send("updates", [price("tea", 2, at=11)])
        assert dict(driver.state("prices").items()) == {}
        assert [m.deleted for m in driver.state("prices").history("tea")] == []
        driver.send("updates", [price("tea", 3, at=12)])
        assert driver.state("prices").get("tea")["price"] == 3


def test_a_deletion_leaves_storage_when_the_watermark_has_passed_it():
    storage = open_storage("memory://")
    with TestDriver(shop(timestamp="at", disorder=5), storage=storage) as driver:
        driver.send("updates", [price("tea", 1, at=10)])
        driver.send("updates", [price("tea", None, at=12)])
        assert changes(storage, "shop", "prices") == [('"tea"', "", None, True), ('"tea"', "@", "12", False)]
        driver.restart(lose_replicas=True)
        driver.send("updates", [price("pen", 1, at=17)])
        assert {cell for _, cell, *_ in changes(storage, "shop", "prices")} == {"", "@"}
        driver.send("updates", [price("pen", 2, at=18)])
        assert ('"tea"', "@", None, True) in changes(storage, "shop", "prices")


def test_a_deletion_that_was_taken_back_is_not_forgotten_later():
    with TestDriver(shop(timestamp="at", disorder=5)) as driver:
        driver.send("updates", [price("tea", None, at=12)])
        driver.send("updates", [price("tea", 1, at=12)])
        driver.send("updates", [price("pen", 1, at=100)])
        driver.send("updates", [price("tea", 2, at=11)])
        assert driver.state("prices").get("tea")["price"] == 1


@pytest.mark.parametrize("lose_replicas", [False, True], ids=["replicas kept", "replicas lost"])
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_whatever_comes_in_whatever_order_a_timed_table_is_the_fold_of_it(lose_replicas, data):
    rows = data.draw(
        st.lists(st.tuples(st.sampled_from("abc"), st.one_of(st.none(), st.integers(0, 9)), st.integers(0, 20)))
    )
    cuts = data.draw(st.lists(st.integers(0, len(rows)), max_size=4).map(sorted))
    newest: dict[str, tuple[int, dict[str, Any]]] = {}
    # Disorder is as large as time itself: nothing is ever late, so that no deletion is forgotten.
    with TestDriver(shop(timestamp="at", disorder=20, partitions=2)) as driver:
        for start, stop in itertools.pairwise([0, *cuts, len(rows)]):
            for sku, amount, at in rows[start:stop]:
                if sku not in newest or at >= newest[sku][0]:
                    newest[sku] = at, price(sku, amount, at=at)
            driver.send("updates", [price(sku, amount, at=at) for sku, amount, at in rows[start:stop]])
            if lose_replicas:
                driver.restart(lose_replicas=True)
            expected = {sku: row for sku, (_, row) in newest.items() if row["price"] is not None}
            assert dict(driver.state("prices").items()) == expected


# --- rows that fail ---


def test_a_row_for_which_deleted_raises_changes_nothing_and_meets_on_error():
    def build(on_error):
        app = mp.App("shop")
        updates = app.stream("updates", mp.sources.rows([])).key_by("sku")
        app.table("prices", updates, deleted=lambda row: row["price"] < 0, on_error=on_error)
        app.dead_letters.to("dead", mp.sinks.memory())
        return app

    rows = [price("tea", 1), price("tea", None), price("pen", 2)]
    with TestDriver(build("stop")) as driver, pytest.raises(StepFailed, match="TypeError") as failed:
        driver.send("updates", rows)
    assert (failed.value.step, failed.value.key, failed.value.row) == ("prices", "tea", rows[1])
    with TestDriver(build("dead-letter")) as driver:
        driver.send("updates", rows)
        assert dict(driver.state("prices").items()) == {"tea": rows[0], "pen": rows[2]}
        assert [(x["step"], x["key"], x["row"]) for x in driver.output("dead")] == [("prices", "tea", rows[1])]


def test_what_is_no_table_is_refused():
    app = mp.App("shop")
    rows = app.stream("rows", mp.sources.rows([]))
    keyed = rows.key_by("k")
    with pytest.raises(InvalidUse, match=r"table\('t'\): expected a keyed stream of the same app, got"):
        app.table("t", rows)  # type: ignore[arg-type]
    with pytest.raises(InvalidUse, match="expected a keyed stream of the same app"):
        mp.App("other").table("t", keyed)
    with pytest.raises(InvalidUse, match=r"table\('t', everywhere\): expected True or False, got 'yes'"):
        app.table("t", keyed, everywhere="yes")  # type: ignore[arg-type]
    with pytest.raises(InvalidUse, match=r"table\('t', deleted\): expected a function of a row, got 'gone'"):
        app.table("t", keyed, deleted="gone")  # type: ignore[arg-type]
    app.table("t", keyed)
    with pytest.raises(InvalidUse, match="the name belongs to a step already"):
        app.table("t", keyed)


def test_a_table_cannot_go_on_with_the_state_of_another_kind_of_step():
    def app(build):
        found = mp.App("kinds")
        build(found, found.stream("rows", mp.sources.rows([])).key_by("k"))
        return found

    with TestDriver(app(lambda app, rows: app.table("t", rows))) as driver:
        driver.send("rows", [{"k": 1}])
        with pytest.raises(Incompatible, match="step 't' is of kind aggregate in the program, and its state is of"):
            driver.restart(app(lambda app, rows: rows.aggregate("t", n=mp.count())))


def test_a_table_may_be_moved_everywhere_and_back():
    with TestDriver(shop(False, partitions=2)) as driver:
        driver.send({"updates": [price("tea", 1)], "orders": [{"sku": "tea"}]})
        driver.restart(shop(True, partitions=2))
        driver.send({"updates": [price("pen", 2)], "orders": [{"sku": "tea"}, {"sku": "pen"}]})
        driver.restart(shop(False, partitions=2))
        driver.send("orders", [{"sku": "pen"}])
        assert [row["price"] for row in driver.output("out")] == [1, 1, 2, 2]


# --- crashes ---


@EVERYWHERE
@pytest.mark.parametrize("lose_replicas", [False, True], ids=["replicas kept", "replicas lost"])
@pytest.mark.parametrize("at, when", list(itertools.product(STEPS, ["before", "during", "after"])))
def test_a_crash_anywhere_changes_neither_the_table_nor_what_was_found_in_it(at, when, lose_replicas, everywhere):
    skus = "abcdef"
    held: dict[str, dict[str, Any]] = {}
    expected = []
    with TestDriver(shop(everywhere, partitions=3)) as driver:
        for number in range(4):
            updates = [price(sku, None if (number + i) % 5 == 4 else 10 * number + i) for i, sku in enumerate(skus)]
            updates = updates[number % 2 :: 2]
            orders: list[Any] = [{"sku": sku, "n": number} for sku in reversed(skus)]
            for row in updates:
                held.pop(row["sku"], None) if row["price"] is None else held.update({row["sku"]: row})
            expected += [{**row, **held.get(row["sku"], {})} for row in orders]
            if number == 2:
                driver.crash(at, when)
                with pytest.raises(Crashed):
                    driver.send({"updates": updates, "orders": orders})
                driver.restart(lose_replicas=lose_replicas)
            else:
                driver.send({"updates": updates, "orders": orders})
        assert dict(driver.state("prices").items()) == held
        assert driver.output("out") == expected


# --- compaction ---


@EVERYWHERE
@pytest.mark.parametrize("lose_replicas", [False, True], ids=["replicas kept", "replicas lost"])
def test_a_table_outlives_the_log_that_it_was_read_from(everywhere, lose_replicas):
    held: dict[str, dict[str, Any]] = {}
    app = shop(everywhere, partitions=2, compact_every=3, keep=4, timestamp="at")
    with TestDriver(app) as driver:
        for number in range(40):
            rows = [price(f"s{number % 7}", number if number % 5 else None, at=number), price("tea", 1, at=number)]
            held.update({row["sku"]: row for row in rows})
            driver.send({"updates": rows, "orders": [{"sku": sku} for sku in ("tea", "s3")]})
            if number % 10 == 9:
                driver.restart(lose_replicas=lose_replicas)
            found = {sku: row["price"] for sku, row in held.items() if row["price"] is not None}
            assert [row.get("price") for row in driver.output("out")[-2:]] == [1, found.get("s3")]
        assert {sku: row["price"] for sku, row in driver.state("prices").items()} == found
        assert [moment.value["at"] for moment in driver.state("prices").history("tea")][-1] == 39
        with pytest.raises(InvalidUse, match="no longer within reach"):
            driver.state("prices").at(5).get("tea")


# --- tables are read first ---


def first_program(
    updates: mp.lowlevel.Source, orders: mp.lowlevel.Source, sink: Any, everywhere: bool = False
) -> mp.App:
    app = mp.App("first", partitions=2)
    prices = app.table("prices", app.stream("updates", updates).key_by("sku"), everywhere)
    rows = app.stream("orders", orders)
    priced = rows.lookup("priced", prices, on="sku") if everywhere else rows.key_by("sku").lookup("priced", prices)
    priced.to("out", sink)
    return app


@EVERYWHERE
def test_a_table_is_read_to_its_end_before_any_other_stream(tmp_path, everywhere):
    updates = {"0": [price("tea", n) for n in range(5)]}
    orders = {"0": [{"sku": "tea", "n": n} for n in range(2)]}
    sink, storage = mp.sinks.memory(), open_storage("memory://")
    driver = driver_of(first_program(Lanes(updates), Lanes(orders), sink, everywhere), storage, tmp_path)
    run_to_end(driver)
    assert [row["price"] for row in sink.rows] == [4, 4]

    updates["0"] += [price("tea", n) for n in range(5, 8)]  # while nobody ran it
    orders["0"] += [{"sku": "tea", "n": 2}]
    again = driver_of(first_program(Lanes(updates), Lanes(orders), sink, everywhere), storage, tmp_path)
    run_to_end(again)
    assert [row["price"] for row in sink.rows] == [4, 4, 7]

    updates["0"] += [price("tea", 8), price("tea", 9)]  # it runs: both streams go on side by side
    orders["0"] += [{"sku": "tea", "n": 3}, {"sku": "tea", "n": 4}]
    run_to_end(again)
    assert [row["price"] for row in sink.rows] == [4, 4, 7, 8, 9]


def test_a_stream_that_feeds_a_table_made_of_lookups_waits_for_the_table_that_is_looked_into(tmp_path):
    lanes = {
        "names": Lanes({"0": [{"id": 1, "name": f"n{n}"} for n in range(4)]}),
        "shops": Lanes({"0": [{"shop": "a", "id": 1}]}),
        "orders": Lanes({"0": [{"shop": "a"}]}),
    }
    app = mp.App("levels", partitions=2)
    orders, shops, names = (app.stream(name, lanes[name]) for name in ("orders", "shops", "names"))
    owners = app.table("owners", names.key_by("id"))
    owned = app.table("owned", shops.key_by("id").lookup("owner", owners).key_by("shop"))
    sink = mp.sinks.memory()
    orders.key_by("shop").lookup("of", owned).to("out", sink)
    run_to_end(driver_of(app, open_storage("memory://"), tmp_path))
    assert sink.rows == [{"shop": "a", "id": 1, "name": "n3"}]


class Endless:
    """A source that has a new row whenever the clock is looked at."""

    def plan(self, position: Mapping[str, Any], limit: mp.lowlevel.Limit, now: float) -> list[mp.lowlevel.Split]:
        done = position.get("0", 0)
        return [mp.lowlevel.Split("0", done, done + 1)]

    def read(self, split: mp.lowlevel.Split) -> Iterator[mp.lowlevel.Chunk]:
        yield mp.lowlevel.Chunk([price("tea", n) for n in range(split.start, split.stop)], split.stop)


def test_a_table_that_is_fed_without_an_end_holds_nobody_up_for_ever(tmp_path):
    sink, clock, storage = mp.sinks.memory(), ManualClock(), open_storage("memory://")
    app = first_program(Endless(), Lanes({"0": [{"sku": "tea"}]}), sink)
    driver = Driver.start(
        mp.lowlevel.program(app),
        LocalRuntime(storage, clock),
        storage,
        clock,
        DriverSettings(partitions=2, home=str(tmp_path), threaded=False),
    )
    for _ in range(11):
        assert sink.rows == []
        clock.advance(6)
        driver.batch(WHOLE)
    assert [row["price"] for row in sink.rows] == [10]


class HalfWritten:
    """A source with one row that is never complete, as the last line of a file may be."""

    def plan(self, position: Mapping[str, Any], limit: mp.lowlevel.Limit, now: float) -> list[mp.lowlevel.Split]:
        return [mp.lowlevel.Split("0", 0, 1)]

    def read(self, split: mp.lowlevel.Split) -> Iterator[mp.lowlevel.Chunk]:
        yield mp.lowlevel.Chunk([], 0)


def test_a_row_of_a_table_that_is_not_complete_holds_nobody_up(tmp_path):
    sink = mp.sinks.memory()
    app = first_program(HalfWritten(), Lanes({"0": [{"sku": "tea"}]}), sink)
    run_to_end(driver_of(app, open_storage("memory://"), tmp_path))
    assert sink.rows == [{"sku": "tea"}]


def test_a_stream_that_waits_for_a_table_does_not_count_as_quiet(tmp_path):
    """Time goes on at the pace of the clock where a stream is quiet; while its table is read nobody has looked."""
    clock, storage, sink = ManualClock(), open_storage("memory://"), mp.sinks.memory()
    orders = {"0": [{"sku": "tea", "at": 100}]}

    def app():
        found = mp.App("quiet", partitions=1)
        prices = found.table("prices", found.stream("updates", Slow(clock)).key_by("sku"))
        rows = found.stream("orders", Lanes(orders), timestamp="at", idle_after="1m")
        rows.late.to("late", sink)
        rows.key_by("sku").lookup("priced", prices).to("out", mp.sinks.memory())
        return found

    def driver():
        return Driver.start(
            mp.lowlevel.program(app()),
            LocalRuntime(storage, clock),
            storage,
            clock,
            DriverSettings(partitions=1, home=str(tmp_path), threaded=False),
        )

    run_to_end(driver())
    orders["0"] += [{"sku": "tea", "at": 101}]
    run_to_end(driver())
    assert sink.rows == []


class Slow:
    """Each of its rows takes an hour to read; there are two more at every start."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock, self.left = clock, 2

    def plan(self, position: Mapping[str, Any], limit: mp.lowlevel.Limit, now: float) -> list[mp.lowlevel.Split]:
        done = position.get("0", 0)
        self.left -= 1
        return [mp.lowlevel.Split("0", done, done + 1)] if self.left >= 0 else []

    def read(self, split: mp.lowlevel.Split) -> Iterator[mp.lowlevel.Chunk]:
        self.clock.advance(3600)
        yield mp.lowlevel.Chunk([price("tea", split.start)], split.stop)
