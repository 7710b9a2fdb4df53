"""Lookups: rows meet the rows of a table, in partitions or everywhere."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from outside import Calls
from small_drivers import Lanes, driver_of, run_to_end

import millpond as mp
from millpond.errors import InvalidUse, StepFailed
from millpond.replica.lmdb_store import close_below
from millpond.storage import open_storage
from millpond.testing import TestDriver

EVERYWHERE = pytest.mark.parametrize("everywhere", [False, True], ids=["partitioned", "everywhere"])
PARTITIONS = pytest.mark.parametrize("partitions", [1, 3])


def looked_up(
    updates: list[Any], orders: list[Any], everywhere: bool = False, partitions: int = 2, **how: Any
) -> list[Any]:
    """What orders find when both come in one batch."""
    app = mp.App("shop", partitions=partitions)
    prices = app.table("prices", app.stream("updates", mp.sources.rows([])).key_by("sku"), everywhere)
    rows = app.stream("orders", mp.sources.rows([]))
    if everywhere:
        rows.lookup("priced", prices, **{"on": "sku", **how}).to("out", mp.sinks.memory())
    else:
        rows.key_by("sku").lookup("priced", prices, **how).to("out", mp.sinks.memory())
    app.dead_letters.to("dead", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send({"orders": orders, "updates": updates})
        return driver.output("out") + driver.output("dead")


TEA, PEN = {"sku": "tea", "price": 3}, {"sku": "pen", "price": 1}


@EVERYWHERE
@PARTITIONS
def test_a_row_meets_the_row_of_its_key_and_one_without_any_goes_on_alone(everywhere, partitions):
    orders = [{"sku": "tea", "n": 1}, {"sku": "cup", "n": 2}, {"sku": "pen", "n": 3}]
    assert looked_up([TEA, PEN], orders, everywhere, partitions) == [
        {"sku": "tea", "n": 1, "price": 3},
        {"sku": "cup", "n": 2},
        {"sku": "pen", "n": 3, "price": 1},
    ]


@EVERYWHERE
def test_an_inner_lookup_leaves_out_what_meets_none(everywhere):
    orders = [{"sku": "tea", "n": 1}, {"sku": "cup", "n": 2}]
    assert looked_up([TEA], orders, everywhere, how="inner") == [{"sku": "tea", "n": 1, "price": 3}]


@EVERYWHERE
def test_fields_that_clash_and_differ_keep_the_rows_own_value(everywhere):
    assert looked_up([{**TEA, "n": 9}], [{"sku": "tea", "n": 1}], everywhere) == [
        {"sku": "tea", "n": 1, "price": 3, "n_right": 9}
    ]


@EVERYWHERE
def test_merge_is_given_both_rows_and_none_for_a_missing_one(everywhere):
    def merge(order, price):
        return order["n"], None if price is None else price["price"]

    orders = [{"sku": "tea", "n": 1}, {"sku": "cup", "n": 2}]
    assert looked_up([TEA], orders, everywhere, merge=merge) == [(1, 3), (2, None)]
    assert looked_up([TEA], orders, everywhere, merge=merge, how="inner") == [(1, 3)]


@EVERYWHERE
def test_what_is_found_belongs_to_who_found_it(everywhere):
    def merge(order, price):
        price["tags"].append(order["n"])
        return price["tags"]

    updates = [{"sku": "tea", "tags": []}]
    orders = [{"sku": "tea", "n": 1}, {"sku": "tea", "n": 2}]
    assert looked_up(updates, orders, everywhere, merge=merge) == [[1], [2]]
    app = mp.App("apart")
    table = app.table("t", app.stream("updates", mp.sources.rows([])).key_by("sku"), everywhere)
    found = app.stream("orders", mp.sources.rows([])).key_by("sku").lookup("l", table)

    def spoil(row):
        row["tags"].append(row["n"])
        return row["tags"]

    found.map(spoil).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send({"updates": updates, "orders": orders})
        assert driver.output("out") == [[1], [2]]


@EVERYWHERE
@PARTITIONS
def test_rows_find_what_earlier_batches_and_this_one_have_left(everywhere, partitions):
    app = mp.App("shop", partitions=partitions)
    updates = app.stream("updates", mp.sources.rows([])).key_by("sku")
    prices = app.table("prices", updates, everywhere, deleted=lambda row: row["price"] is None)
    orders = app.stream("orders", mp.sources.rows([])).key_by("sku")
    orders.lookup("priced", prices, merge=lambda order, price: price and price["price"]).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("updates", [TEA, PEN])
        driver.send("orders", [{"sku": "tea"}, {"sku": "pen"}])
        driver.send({"orders": [{"sku": "tea"}, {"sku": "pen"}], "updates": [{"sku": "tea", "price": 4}]})
        driver.restart(lose_replicas=True)
        driver.send({"orders": [{"sku": "tea"}, {"sku": "pen"}], "updates": [{"sku": "tea", "price": None}]})
        assert driver.output("out") == [3, 1, 4, 1, None, 1]


# --- by what ---


def test_on_is_a_field_several_or_a_function():
    def found(keys, on, rows):
        app = mp.App("shop", partitions=2)
        table = app.table("t", app.stream("updates", mp.sources.rows([])).key_by(*keys), everywhere=True)
        looked = app.stream("rows", mp.sources.rows([])).lookup("l", table, on=on, merge=lambda row, found: found)
        looked.to("out", mp.sinks.memory())
        with TestDriver(app) as driver:
            driver.send({"rows": rows, "updates": [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]})
            return driver.output("out")

    one, two = {"a": 1, "b": "x"}, {"a": 2, "b": "y"}
    assert found(["a"], "of", [{"of": 2}, {"of": 3}]) == [two, None]
    assert found(["a"], lambda row: row + 1, [0, 1, 2]) == [one, two, None]
    assert found(["a", "b"], ("c", "d"), [{"c": 1, "d": "x"}, {"c": 1, "d": "y"}]) == [one, None]
    assert found(["a", "b"], ["c", "d"], [{"c": 2, "d": "y"}]) == [two]
    assert found(["a", "b"], lambda row: (row, "x"), [1]) == [one]
    assert found(["a"], "of", [{"of": None}, {"of": 1}]) == [None, one], "nothing is no key, and meets nothing"
    assert found(["a", "b"], ("c", "d"), [{"c": 1, "d": None}]) == [None]
    assert found(["a"], "of", [{"of": "1"}, {"of": True}, {"of": 1}]) == [None, None, one], "keys are what they are"


def test_a_keyed_stream_looks_into_a_table_everywhere_by_anything_and_keeps_its_key():
    app = mp.App("shop", partitions=3)
    prices = app.table("prices", app.stream("updates", mp.sources.rows([])).key_by("sku"), everywhere=True)
    orders = app.stream("orders", mp.sources.rows([])).key_by("who")

    def spend(who, order, total):
        return [who, total + order["price"]], total + order["price"]

    orders.lookup("priced", prices, on="sku").stateful_map("spent", spend, initial=0).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("updates", [TEA, PEN])
        driver.send("orders", [{"who": who, "sku": sku} for who in "ab" for sku in ("tea", "pen", "pen")])
        assert driver.output("out") == [["a", 3], ["a", 4], ["a", 5], ["b", 3], ["b", 4], ["b", 5]]
        assert dict(driver.state("spent").items()) == {"a": 5, "b": 5}


def test_the_name_of_the_key_may_be_said_where_the_table_lies_in_partitions():
    assert looked_up([TEA], [{"sku": "tea"}], on="sku") == [TEA]
    assert looked_up([TEA], [{"sku": "tea"}], on=("sku",)) == [TEA]


@pytest.mark.parametrize(
    "keys, stream, everywhere, how, message",
    [
        (["sku"], lambda s: s, False, {}, r"keyed like the table 'prices', by 'sku', and it is not keyed"),
        (["sku"], lambda s: s.key_by("who"), False, {}, r"it is keyed by 'who'\. Key it by parts of the same names"),
        (["sku"], lambda s: s.key_by("sku"), False, {"on": "who"}, r"on\): expected None or the key 'sku'"),
        (["sku"], lambda s: s, True, {}, r"got nothing, and the stream is not keyed\. Say, for example, on='sku'"),
        (["sku"], lambda s: s.key_by("who"), True, {}, r"and the stream is keyed by 'who'"),
        (["sku"], lambda s: s, True, {"on": 3}, r"on\): expected a field, several fields or a function of the row"),
        (["a", "b"], lambda s: s, True, {"on": "a"}, r"the table's key has 2 parts, expected as many fields, got 'a'"),
        (["sku"], lambda s: s, True, {"on": "sku", "how": "outer"}, r"how\): expected 'left', 'inner', got 'outer'"),
        (["sku"], lambda s: s, True, {"on": "sku", "merge": 1}, r"merge\): expected a function of the row and the"),
        (["sku"], lambda s: s, True, {"on": "sku", "on_error": "no"}, r'expected "stop", "skip"'),
    ],
)
def test_what_cannot_be_looked_up_is_told_where_the_program_is_written(keys, stream, everywhere, how, message):
    app = mp.App("shop")
    prices = app.table("prices", app.stream("updates", mp.sources.rows([])).key_by(*keys), everywhere)
    with pytest.raises(InvalidUse, match=message):
        stream(app.stream("orders", mp.sources.rows([]))).lookup("priced", prices, **how)


def test_only_tables_of_the_same_app_are_looked_into():
    app, other = mp.App("shop"), mp.App("other")
    rows = app.stream("orders", mp.sources.rows([])).key_by("sku")
    table = other.table("prices", other.stream("updates", mp.sources.rows([])).key_by("sku"))
    wrongs: list[Any] = [table, rows, "prices"]
    for wrong in wrongs:
        with pytest.raises(InvalidUse, match=r"lookup\('l'\): expected a table of the same app, made by app\.table"):
            rows.lookup("l", wrong)


# --- rows that fail ---


@EVERYWHERE
def test_a_row_whose_merge_raises_meets_on_error_as_it_was(everywhere):
    def merge(order, price):
        order["spoilt"] = True
        return order["n"] // price["price"]

    orders = [{"sku": "tea", "n": 9}, {"sku": "cup", "n": 1}]
    with pytest.raises(StepFailed, match="not subscriptable") as failed:
        looked_up([TEA], orders, everywhere, merge=merge)
    assert failed.value.step == "priced"
    assert looked_up([TEA], orders, everywhere, merge=merge, on_error="skip") == [3]
    [three, letter] = looked_up([TEA], orders, everywhere, merge=merge, on_error="dead-letter")
    assert (three, letter["row"], letter["step"]) == (3, orders[1], "priced")
    assert letter["key"] == (None if everywhere else "cup")


def test_a_row_without_the_field_that_it_is_looked_up_by_meets_on_error():
    orders = [{"n": 1}, {"sku": "tea", "n": 2}, {"sku": 1.5}]
    with pytest.raises(StepFailed, match="the row has no field 'sku'; it has: 'n'"):
        looked_up([TEA], orders, True)
    found = looked_up([TEA], orders, True, on_error="dead-letter")
    assert found[0] == {**TEA, "n": 2}
    assert [letter["row"] for letter in found[1:]] == [orders[0], orders[2]]


def test_merge_and_on_are_tried_again_as_often_as_retry_says():
    tries = Calls()

    def flaky(what, result):
        def call(*rows):
            tries.append(what)
            if tries.count(what) < 3:
                raise TimeoutError(what)
            return result(*rows)

        return call

    how = {"on": flaky("on", lambda row: row["sku"]), "merge": flaky("merge", lambda row, price: price)}
    assert looked_up([TEA], [{"sku": "tea"}], True, **how, on_error=mp.retry(2)) == [TEA]
    assert (tries.count("on"), tries.count("merge")) == (3, 3)


def test_rows_that_have_no_fields_need_a_merge():
    def build(**how):
        app = mp.App("numbers")
        table = app.table("t", app.stream("updates", mp.sources.rows([])).key_by(k=lambda n: n % 2), everywhere=True)
        app.stream("rows", mp.sources.rows([])).lookup("l", table, on=lambda n: n % 2, **how).to(
            "out", mp.sinks.memory()
        )
        return app

    with TestDriver(build()) as driver, pytest.raises(StepFailed, match="Combine the rows yourself with merge="):
        driver.send({"updates": [7], "rows": [1]})
    with TestDriver(build(merge=lambda n, last: n * last)) as driver:
        driver.send({"updates": [7, 8], "rows": [1, 2]})
        assert driver.output("out") == [7, 16]


def test_a_row_that_cannot_be_sent_to_the_table_fails_as_the_lookup_does():
    app = mp.App("shop")
    prices = app.table("prices", app.stream("updates", mp.sources.rows([])).key_by("sku"), everywhere=True)
    orders = app.stream("orders", mp.sources.rows([])).map(lambda row: {**row, "f": print} if row["bad"] else row)
    orders.lookup("priced", prices, on="sku", on_error="skip").to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("orders", [{"sku": "tea", "bad": True}, {"sku": "pen", "bad": False}])
        assert driver.output("out") == [{"sku": "pen", "bad": False}]


# --- stages of a batch ---


@PARTITIONS
def test_who_looks_into_a_table_of_a_later_stage_waits_for_it(partitions):
    app = mp.App("later", partitions=partitions)
    updates = app.stream("updates", mp.sources.rows([])).key_by("article")
    renamed = updates.stateful_map("nth", lambda key, row, n: ({**row, "nth": n + 1}, n + 1), initial=0)
    prices = app.table("prices", renamed.key_by("sku"))
    orders = app.stream("orders", mp.sources.rows([])).key_by("sku")
    orders.lookup("priced", prices, merge=lambda order, price: price and price["nth"]).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        rows = [{"article": 1, "sku": "tea"}, {"article": 1, "sku": "pen"}]
        driver.send({"orders": [{"sku": "tea"}, {"sku": "cup"}, {"sku": "pen"}], "updates": rows})
        driver.send({"orders": [{"sku": "tea"}, {"sku": "pen"}], "updates": rows[:1]})
        assert driver.output("out") == [1, None, 2, 3, 2]


@EVERYWHERE
@PARTITIONS
def test_rows_may_look_into_the_table_that_they_themselves_become(everywhere, partitions):
    app = mp.App("self", partitions=partitions)
    keyed = app.stream("rows", mp.sources.rows([])).key_by("k")
    newest = app.table("newest", keyed, everywhere)
    keyed.lookup("with newest", newest, merge=lambda row, last: [row["n"], last["n"]]).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [{"k": 1, "n": 1}, {"k": 2, "n": 2}, {"k": 1, "n": 3}])
        driver.send("rows", [{"k": 2, "n": 4}])
        assert driver.output("out") == [[1, 3], [2, 2], [3, 3], [4, 4]]


@PARTITIONS
def test_rows_may_look_into_a_table_of_rows_that_they_have_become_in_a_later_stage(partitions):
    app = mp.App("round", partitions=partitions)
    keyed = app.stream("rows", mp.sources.rows([])).key_by("k")
    table = app.table("t", keyed.map(lambda row: {"k": row["to"], "from": row["k"]}).key_by("k"))
    keyed.lookup("l", table, merge=lambda row, found: [row["k"], found and found["from"]]).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [{"k": 1, "to": 2}, {"k": 2, "to": 3}])
        assert driver.output("out") == [[1, None], [2, 1]]


@PARTITIONS
def test_one_row_looks_into_several_tables_one_after_the_other(partitions):
    app = mp.App("several", partitions=partitions)
    tables = {
        name: app.table(name, app.stream(f"{name} updates", mp.sources.rows([])).key_by("id"), everywhere=name != "c")
        for name in "abc"
    }
    rows = (
        app.stream("rows", mp.sources.rows([])).lookup("in a", tables["a"], on="a").lookup("in b", tables["b"], on="b")
    )
    again = rows.key_by(id=lambda row: row["c"]).lookup("in c", tables["c"]).lookup("in a again", tables["a"], on="d")
    again.map(lambda row: [row[x] for x in ("is a", "is b", "is c", "is a_right")]).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        sent = {f"{name} updates": [{"id": n, f"is {name}": f"{name}{n}"} for n in range(3)] for name in "abc"}
        driver.send({"rows": [{"a": 0, "b": 1, "c": 2, "d": 1}, {"a": 1, "b": 2, "c": 0, "d": 2}], **sent})
        assert driver.output("out") == [["a0", "b1", "c2", "a1"], ["a1", "b2", "c0", "a2"]]


@EVERYWHERE
def test_rows_of_a_union_of_different_stages_all_find_what_the_batch_has_left(everywhere):
    app = mp.App("union", partitions=2)
    prices = app.table("prices", app.stream("updates", mp.sources.rows([])).key_by("sku"), everywhere)
    orders = app.stream("orders", mp.sources.rows([]))
    counted = orders.key_by("sku").stateful_map("n", lambda key, row, n: ({**row, "n": n + 1}, n + 1), initial=0)
    both = orders.union(counted)
    found = both.lookup("l", prices, on="sku") if everywhere else both.key_by("sku").lookup("l", prices)
    found.map(lambda row: [row.get("n"), row["price"]]).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send({"orders": [{"sku": "tea"}], "updates": [TEA]})
        assert sorted(driver.output("out"), key=str) == [[1, 3], [None, 3]]


def test_dead_letters_may_be_a_table_for_those_behind_them_alone():
    def build(stream_of):
        app = mp.App("letters", partitions=2)
        rows = app.stream("rows", mp.sources.rows([]), on_error="dead-letter")
        rows.map(lambda row: 1 // row["n"]).to("out", mp.sinks.memory())
        letters = app.dead_letters.map(lambda letter: letter["row"])
        bad = app.table("bad", letters.key_by("k"), everywhere=True)
        found = stream_of(rows, letters).lookup("l", bad, on="k", merge=lambda row, bad: [row, bad])
        found.to("found", mp.sinks.memory())
        return app

    with TestDriver(build(lambda rows, letters: letters)) as driver:
        driver.send("rows", [{"k": 1, "n": 0}, {"k": 1, "n": 1}])
        assert driver.output("found") == [[{"k": 1, "n": 0}, {"k": 1, "n": 0}]]
    with pytest.raises(InvalidUse, match="looks into table 'bad', which is made of dead letters"):
        mp.lowlevel.program(build(lambda rows, letters: rows))


@PARTITIONS
def test_dead_letters_find_their_row_whoever_sends_them_and_however_late(partitions):
    app = mp.App("letters", partitions=partitions)
    prices = app.table("prices", app.stream("updates", mp.sources.rows([])).key_by("sku"), everywhere=True)
    letters = app.dead_letters.map(lambda letter: letter["row"]).lookup("why", prices, on="sku")
    letters.to("dead", mp.sinks.memory())
    orders = app.stream("orders", mp.sources.rows([]), on_error="dead-letter")
    orders.lookup("priced", prices, on="sku", merge=lambda order, price: 1 // order["n"]).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send({"updates": [TEA], "orders": [{"sku": "tea", "n": 0}, {"sku": "tea", "n": 1}]})
        assert (driver.output("out"), driver.output("dead")) == ([1], [{**TEA, "n": 0}])


def test_rows_that_a_timer_sends_find_what_is_in_the_table_by_then():
    app = mp.App("timers", partitions=2)

    class Later:
        def on_row(self, key, row, state, timers):
            timers.set_wall("later", after="1m", payload=row)

        def on_timer(self, key, timer, state, timers):
            return timer.payload

    prices = app.table("prices", app.stream("updates", mp.sources.rows([])).key_by("sku"))
    orders = app.stream("orders", mp.sources.rows([])).key_by("sku")
    orders.process("later", Later).lookup("priced", prices).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("orders", [{"sku": "tea"}])
        driver.send("updates", [TEA])
        driver.advance("2m")
        assert driver.output("out") == [TEA]


# --- event time ---


@EVERYWHERE
def test_a_table_does_not_hold_back_the_time_of_who_looks_into_it(everywhere):
    app = mp.App("time", partitions=2)
    updates = app.stream("updates", mp.sources.rows([]), timestamp="at").key_by("sku")
    prices = app.table("prices", updates, everywhere)
    orders = app.stream("orders", mp.sources.rows([]), timestamp="at").key_by("sku")
    found = orders.lookup("priced", prices, merge=lambda order, price: {**order, "price": price and price["price"]})
    found.apply("seen", lambda row, state: [state.time, state.watermark, row["price"]]).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("orders", [{"sku": "tea", "at": 100}])
        driver.send({"orders": [{"sku": "tea", "at": 101}], "updates": [{"sku": "tea", "price": 3, "at": 5}]})
        driver.send("orders", [{"sku": "tea", "at": 103}])
        assert driver.output("out") == [[100, None, None], [101, 100, 3], [103, 101, 3]]


# --- state and replicas ---


@EVERYWHERE
def test_a_lookup_owns_no_state(everywhere):
    app = mp.App("shop")
    prices = app.table("prices", app.stream("updates", mp.sources.rows([])).key_by("sku"), everywhere)
    app.stream("orders", mp.sources.rows([])).key_by("sku").lookup("priced", prices).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send({"updates": [TEA], "orders": [{"sku": "tea"}]})
        with pytest.raises(InvalidUse, match="has no step 'priced'; it has: prices"):
            driver.state("priced").get("tea")


def lanes_program(updates: dict[str, list[Any]], orders: dict[str, list[Any]], sink: Any) -> mp.App:
    app = mp.App("shop", partitions=2)
    prices = app.table("prices", app.stream("updates", Lanes(updates)).key_by("sku"), everywhere=True)
    app.stream("orders", Lanes(orders)).lookup("priced", prices, on="sku").to("out", sink)
    return app


def whole_table(home: Path) -> Path:
    [found] = home.glob("shop/*/table-prices-of-00002/g*/data.mdb")
    return found


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    places = [i for i in range(len(data)) if data.startswith(b'"price":', i)]
    for place in places:
        data[place + 1] ^= 1
    path.write_bytes(data)


HURTS = {"flipped": flip_a_byte, "gone": Path.unlink, "cut": lambda path: path.write_bytes(b"")}


@pytest.mark.parametrize("hurt", HURTS.values(), ids=HURTS)
def test_a_whole_table_that_was_damaged_is_built_anew_from_the_log(tmp_path, hurt):
    updates, orders = {"0": [TEA]}, {"0": [{"sku": "tea"}]}
    sink, storage = mp.sinks.memory(), open_storage("memory://")
    run_to_end(driver_of(lanes_program(updates, orders, sink), storage, tmp_path))
    close_below(str(tmp_path))
    hurt(whole_table(tmp_path))
    updates["0"].append(PEN)
    orders["0"] += [{"sku": "tea"}, {"sku": "pen"}]
    run_to_end(driver_of(lanes_program(updates, orders, sink), storage, tmp_path))
    assert sink.rows == [TEA, TEA, PEN]


def test_a_whole_table_that_is_damaged_while_it_is_read_is_built_anew_and_nothing_else_is(tmp_path):
    hurt: list[Path] = []

    def sku(order):
        if order["n"] == 1 and not hurt:
            hurt.append(whole_table(tmp_path))
            data = hurt[0].read_bytes()
            with hurt[0].open("r+b") as file:  # in place: the store is open, and sees it
                for place in (i for i in range(len(data)) if data.startswith(b'"price":', i)):
                    file.seek(place + 1)
                    file.write(b"q")
        return order["sku"]

    app, sink = mp.App("shop", partitions=2), mp.sinks.memory()
    prices = app.table("prices", app.stream("updates", Lanes({"0": [TEA]})).key_by("sku"), everywhere=True)
    orders = app.stream("orders", Lanes({"0": [{"sku": "tea", "n": n} for n in range(3)]}))
    orders.lookup("priced", prices, on=sku).to("out", sink)
    run_to_end(driver_of(app, open_storage("memory://"), tmp_path))
    assert sink.rows == [{**TEA, "n": n} for n in range(3)]
    assert whole_table(tmp_path).parent.name.startswith("g000002") and hurt[0].parent.name.startswith("g000001")
    assert {path.name[:7] for path in tmp_path.glob("shop/*/0000*/g*")} == {"g000001"}


def test_a_whole_table_of_another_history_is_not_believed(tmp_path):
    sink = mp.sinks.memory()
    for price in (1, 2):  # the same app anew, in the same place, on another storage and the same host
        updates = {"0": [{"sku": "tea", "price": price}]}
        app = lanes_program(updates, {"0": [{"sku": "tea"}]}, sink)
        storage = open_storage(str(tmp_path / "state"))
        run_to_end(driver_of(app, storage, tmp_path / "home"))
        close_below(str(tmp_path / "home"))
        for item in list(storage.list("shop/ledger"))[1:]:
            storage.delete([item.path])
    assert [row["price"] for row in sink.rows] == [1, 2]


# --- as a plain fold ---


@EVERYWHERE
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_history_gives_what_a_plain_fold_gives(everywhere, data):
    skus = st.sampled_from("abcd")
    update = st.tuples(skus, st.one_of(st.none(), st.integers(0, 99)))
    batches = data.draw(st.lists(st.tuples(st.lists(update, max_size=5), st.lists(skus, max_size=5)), max_size=5))
    how, partitions = data.draw(st.sampled_from(["left", "inner"])), data.draw(st.integers(1, 3))
    restarts = data.draw(st.sets(st.integers(0, 4)))
    app = mp.App("fold", partitions=partitions)
    stream = app.stream("updates", mp.sources.rows([])).key_by(k=lambda row: row[0])
    table = app.table("t", stream, everywhere, deleted=lambda row: row[1] is None)
    numbers = itertools.count()
    rows = app.stream("rows", mp.sources.rows([]))
    options: dict[str, Any] = {"how": how, "merge": lambda row, found: (row[1], found and found[1])}
    if everywhere:
        found = rows.lookup("l", table, on=lambda row: row[0], **options)
    else:
        found = rows.key_by(k=lambda row: row[0]).lookup("l", table, **options)
    found.to("out", mp.sinks.memory())
    held: dict[str, int] = {}
    expected = []
    with TestDriver(app) as driver:
        for number, (updates, asked) in enumerate(batches):
            for sku, value in updates:
                held.pop(sku, None) if value is None else held.update({sku: value})
            asked_rows = [(sku, next(numbers)) for sku in asked]
            expected += [(n, held.get(sku)) for sku, n in asked_rows if how == "left" or sku in held]
            driver.send({"updates": updates, "rows": asked_rows})
            if number in restarts:
                driver.restart(lose_replicas=number % 2 == 0)
        assert driver.output("out") == expected
