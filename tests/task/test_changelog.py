"""`app.changes(step)` in a program: its rows, kept by key, are the state of the step after every batch."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import millpond as mp
from millpond.testing import Crashed, TestDriver

STEPS = ["plan", "compute", "commit", "deliver", "acknowledge", "tidy"]
EVERYWHERE = [(at, when) for at in STEPS for when in ("before", "during", "after")]


def keep(row: Any, state: mp.State) -> None:
    if row["v"] % 5 == 0:
        state.clear()
        return
    state.set("last", row["v"])
    state.list("all").append(row["v"])
    state.map("seen")[row["v"] % 3] = row["v"]


class Remember:
    def on_row(self, key: Any, row: Any, state: mp.State, timers: mp.Timers) -> None:
        state.set("n", state.get("n", 0) + 1)
        timers.set("forget", at=row["t"] + 20)

    def on_timer(self, key: Any, timer: Any, state: mp.State, timers: mp.Timers) -> None:
        state.clear()


def add(key: Any, row: Any, total: int) -> tuple[None, int | None]:
    total += row["v"]
    return None, None if total % 4 == 0 else total


def add_columns(rows: Any, states: Any) -> tuple[None, Any]:
    return None, rows.group_by("k").aggregate([("v", "max")]).rename_columns(["k", "top"])


def of_join(app: mp.App, verb: str, **how: Any) -> Callable[[Any], Any]:
    def build(keyed: Any) -> Any:
        other = app.stream("others", mp.sources.rows([]), timestamp="t").key_by("k")
        return getattr(keyed, verb)("s", other, **how)

    return build


def program(kind: str, partitions: int = 3, to: str = "table") -> mp.App:
    app = mp.App("published", partitions=partitions, compact_every=3)
    keyed = app.stream("rows", mp.sources.rows([]), timestamp="t").key_by("k")
    kinds: dict[str, Callable[[Any], Any]] = {
        "stateful_map": lambda keyed: keyed.stateful_map("s", add, initial=0),
        "stateful_map with ttl": lambda keyed: keyed.stateful_map("s", add, initial=0, ttl=12),
        "apply": lambda keyed: keyed.apply("s", keep),
        "apply with ttl": lambda keyed: keyed.apply("s", keep, ttl=12),
        "process": lambda keyed: keyed.process("s", Remember),
        "apply_batch": lambda keyed: keyed.apply_batch("s", add_columns, state={"top": int}),
        "aggregate": lambda keyed: keyed.aggregate("s", top=mp.max("v"), mean=mp.mean("v")),
        "deduplicate": lambda keyed: keyed.deduplicate("s", by="v", within=15),
        "tumbling": lambda keyed: keyed.window("s", mp.tumbling(10), grace=2).aggregate(
            n=mp.count(), all=mp.collect("v")
        ),
        "counted": lambda keyed: keyed.window("s", mp.tumbling(10), grace=2).aggregate(n=mp.count()),
        "session": lambda keyed: keyed.window("s", mp.session(4), grace=2).aggregate(n=mp.count()),
        "sliding": lambda keyed: keyed.window("s", mp.sliding(5), grace=2).aggregate(n=mp.sum("v")),
        "table": lambda keyed: app.table("s", keyed, deleted=lambda row: row["v"] % 5 == 0),
        "table with ttl": lambda keyed: app.table("s", keyed, ttl=12),
        "join_interval": of_join(app, "join_interval", after=10, how="left", grace=2),
        "join_asof": of_join(app, "join_asof", how="left", keep=10, wait=True),
        "join_window": of_join(app, "join_window", window=mp.tumbling(10), how="outer", grace=2),
    }
    kinds[kind](keyed)
    if not kind.startswith("join"):
        app.stream("others", mp.sources.rows([]), timestamp="t").key_by("k").aggregate("unused", n=mp.count())
    app.changes("s").to(to, mp.sinks.memory())
    return app


KINDS = [
    "stateful_map",
    "stateful_map with ttl",
    "apply",
    "apply with ttl",
    "process",
    "aggregate",
    "deduplicate",
    "tumbling",
    "counted",
    "session",
    "sliding",
    "table",
    "table with ttl",
    "join_interval",
    "join_asof",
    "join_window",
    "apply_batch",
]


def batches(seed: int = 7, count: int = 12) -> list[list[dict[str, Any]]]:
    dice = random.Random(seed)
    return [
        [{"k": dice.choice("abcdefgh"), "v": dice.randrange(9), "t": 4 * n + dice.randrange(5)} for _ in range(6)]
        for n in range(count)
    ]


def table(rows: list[dict[str, Any]]) -> dict[Any, Any]:
    """What a compacted topic holds."""
    found = {row["key"]: row["value"] for row in rows}
    return {key: value for key, value in found.items() if value is not None}


def send(driver: TestDriver, rows: list[Any]) -> None:
    others = [{**row, "w": row["v"]} for row in rows[::2]]
    driver.send({"rows": rows, "others": others})


def check_against_state(driver: TestDriver, of: str = "table") -> None:
    """The rows make the same table as the state, batch by batch, and no row repeats the one before it."""
    rows = driver.output(of)
    for batch in sorted({row["batch"] for row in rows}):
        until = [row for row in rows if row["batch"] <= batch]
        assert table(until) == dict(driver.state("s").at(batch).items()), f"after batch {batch}"
    assert table(rows) == dict(driver.state("s").items())
    held: dict[Any, Any] = {}
    places = [(row["batch"], row["key"]) for row in rows]
    assert len(set(places)) == len(places), "one row per key and batch"
    for row in rows:
        assert held.get(row["key"]) != row["value"], f"{row} changes nothing"
        held[row["key"]] = row["value"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_rows_kept_by_key_are_the_state_after_every_batch(kind: str) -> None:
    with TestDriver(program(kind)) as driver:
        for rows in batches():
            send(driver, rows)
        assert len(driver.output("table")) > 10
        check_against_state(driver)
        driver.finish()
        check_against_state(driver)


@pytest.mark.parametrize("kind", ["stateful_map", "apply", "counted"])
@pytest.mark.parametrize(("at", "when"), EVERYWHERE)
def test_a_crash_at_any_point_loses_no_row_and_repeats_none(kind: str, at: Any, when: Any) -> None:
    with TestDriver(program(kind)) as calm:
        for rows in batches():
            send(calm, rows)
        expected = [(row["key"], row["value"]) for row in calm.output("table")]
    with TestDriver(program(kind)) as driver:
        for n, rows in enumerate(batches()):
            if n in (0, 4, 9):
                driver.crash(at, when)
                with pytest.raises(Crashed):
                    send(driver, rows)
                driver.restart(lose_replicas=n == 4)
            else:
                send(driver, rows)
        assert [(row["key"], row["value"]) for row in driver.output("table")] == expected
        check_against_state(driver)


def test_a_value_that_expires_by_the_clock_is_published_as_none() -> None:
    app = mp.App("clock")
    rows = app.stream("rows", mp.sources.rows([])).key_by("k")
    rows.apply("s", lambda row, state: state.set("v", row["v"]), ttl="1m")
    app.changes("s").to("table", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [{"k": "a", "v": 1}])
        driver.advance("30s")
        driver.send("rows", [{"k": "b", "v": 1}])
        driver.advance("40s")
        assert table(driver.output("table")) == {"b": {"v": 1}} == dict(driver.state("s").items())
        driver.advance("40s")
        assert [row["value"] for row in driver.output("table")] == [{"v": 1}, {"v": 1}, None, None]


def test_a_batch_that_leaves_a_value_as_it_was_gives_no_row() -> None:
    app = mp.App("same")
    rows = app.stream("rows", mp.sources.rows([])).key_by("k")
    rows.stateful_map("s", lambda key, row, state: (None, row["v"] * 1000), initial=0)
    rows.aggregate("mean", of=mp.mean("v"))
    app.changes("s").to("values", mp.sinks.memory())
    app.changes("mean").to("means", mp.sinks.memory())
    with TestDriver(app) as driver:
        for v in (3, 3, 4, 3):
            driver.send("rows", [{"k": "a", "v": v}])
        driver.send("rows", [{"k": "a", "v": 0}, {"k": "a", "v": 1}, {"k": "a", "v": 3}])
        assert [row["value"] for row in driver.output("values")] == [3000, 4000, 3000]
        means = [row["value"]["of"] for row in driver.output("means")]
        assert means == [3.0, 10 / 3, 3.25, 17 / 7]


@dataclass
class Account:
    balance: int


def test_keys_of_several_fields_and_values_of_classes_arrive_as_they_are() -> None:
    app = mp.App("classes")
    rows = app.stream("rows", mp.sources.rows([])).key_by("country", "city")
    rows.stateful_map("s", lambda key, row, state: (None, Account(state.balance + row["v"])), initial=Account(0))
    app.changes("s").to("table", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [{"country": "it", "city": "rome", "v": 3}])
        assert driver.output("table") == [{"key": ("it", "rome"), "value": Account(3), "batch": 1}]


def test_changes_go_through_verbs_steps_and_later_stages_as_any_stream() -> None:
    app = mp.App("stages", partitions=3)
    rows = app.stream("rows", mp.sources.rows([])).key_by("k")
    rows.stateful_map("s", lambda key, row, n: (None, n + row["v"]), initial=0)
    changes = app.changes("s")
    big = changes.filter(lambda row: row["value"] >= 3).map(lambda row: {**row, "big": True})
    big.to("big", mp.sinks.memory())
    per_parity = changes.key_by(parity=lambda row: row["value"] % 2).aggregate("parities", n=mp.count())
    per_parity.to("parities out", mp.sinks.memory())
    app.changes("parities").to("table", mp.sinks.memory())
    totals = app.table("totals", app.changes("s").key_by("key"), everywhere=True)
    app.changes("parities").lookup("total", totals, on=lambda row: "a", merge=lambda row, found: found["value"]).to(
        "found", mp.sinks.memory()
    )
    with TestDriver(app) as driver:
        driver.send("rows", [{"k": "a", "v": 1}, {"k": "b", "v": 2}])
        driver.send("rows", [{"k": "a", "v": 2}, {"k": "b", "v": 1}])
        assert sorted((row["key"], row["value"], row["big"]) for row in driver.output("big")) == [
            ("a", 3, True),
            ("b", 3, True),
        ]
        assert table(driver.output("table")) == {1: {"n": 3}, 0: {"n": 1}} == dict(driver.state("parities").items())
        assert driver.output("found") == [1, 1, 3]


@pytest.mark.parametrize("how", [{}, {"ttl": "1h"}])
def test_a_table_whose_changes_are_published_is_looked_up_in_the_same_batch(how: Any) -> None:
    app = mp.App("shop")
    prices = app.table("prices", app.stream("updates", mp.sources.rows([])).key_by("sku"), **how)
    app.changes("prices").to("table", mp.sinks.memory())
    orders = app.stream("orders", mp.sources.rows([])).key_by("sku")
    orders.lookup("priced", prices, merge=lambda row, found: found and found["price"]).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send({"updates": [{"sku": "tea", "price": 3}], "orders": [{"sku": "tea"}, {"sku": "pen"}]})
        driver.send({"updates": [{"sku": "tea", "price": 4}], "orders": [{"sku": "tea"}]})
        assert driver.output("out") == [3, None, 4]
        assert table(driver.output("table")) == {"tea": {"sku": "tea", "price": 4}}


def test_two_streams_of_the_same_changes_do_not_share_rows() -> None:
    app = mp.App("copies")
    rows = app.stream("rows", mp.sources.rows([])).key_by("k")
    rows.apply("s", lambda row, state: state.set("v", row["v"]))

    def spoil(row: Any) -> Any:
        row["value"]["v"] = "spoilt"
        return row

    app.changes("s").map(spoil).to("spoilt", mp.sinks.memory())
    app.changes("s").to("table", mp.sinks.memory())
    both = app.changes("s")
    both.map(spoil).to("spoilt too", mp.sinks.memory())
    both.to("table too", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [{"k": "a", "v": 1}])
        for sink in ("table", "table too"):
            assert driver.output(sink) == [{"key": "a", "value": {"v": 1}, "batch": 1}]
        assert driver.output("spoilt too")[0]["value"] == {"v": "spoilt"}


def test_all_state_is_one_stream_of_many_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millpond.task.changelog.ROWS_AT_ONCE", 2)
    with TestDriver(program("stateful_map", partitions=1)) as driver:
        for rows in batches():
            send(driver, rows)
        check_against_state(driver)


def test_changes_can_be_read_and_used_from_one_object(tmp_path: Any) -> None:
    app = mp.App("both", str(tmp_path))
    app.stream("rows", mp.sources.rows([])).key_by("k").aggregate("s", n=mp.count())
    changes = app.changes("s")
    assert list(changes) == [], "the app has not run"
    changes.to("table", mp.sinks.memory())
    with TestDriver(app, str(tmp_path)) as driver:
        driver.send("rows", [{"k": "a"}, {"k": "b"}])
        driver.send("rows", [{"k": "a"}])
        assert [change.key for change in changes] == ["a", "b", "a"]
        assert [change.key for change in changes] == ["a", "b", "a"], "each loop begins at the first change"
        assert next(changes).key == "a" and [change.key for change in changes] == ["b", "a"]
        assert [change.batch for change in app.changes("s", after=1)] == [2]
    old = mp.App("both", str(tmp_path))
    old.stream("rows", mp.sources.rows([]))
    assert len(list(old.changes("s"))) == 3, "a step that is gone from the program can still be read"


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda app: app.changes("totl").to("x", mp.sinks.memory()), "nearest name is 'total'"),
        (lambda app: app.changes("zzz").map(str), "expected the name of a step that the program has so far"),
        (lambda app: app.changes("priced").to("x", mp.sinks.memory()), "got a lookup"),
        (lambda app: app.changes("open").to("x", mp.sinks.memory()), "call .aggregate"),
        (lambda app: app.changes("total", after=3).to("x", mp.sinks.memory()), "after= is for reading the log"),
        (lambda app: app.changes("total").stateful_map("n", print, initial=0), "call key_by first"),
        (
            lambda app: app.changes("total").key_by("key").window("w", mp.tumbling(5), grace=0).aggregate(n=mp.count()),
            "event time",
        ),
    ],
)
def test_changes_that_cannot_be_are_refused_with_advice(use: Any, text: str) -> None:
    app = mp.App("wrong")
    keyed = app.stream("rows", mp.sources.rows([]), timestamp="t").key_by("k")
    keyed.stateful_map("total", add, initial=0)
    prices = app.table("prices", keyed)
    keyed.lookup("priced", prices)
    keyed.window("open", mp.tumbling(5), grace=0)
    with pytest.raises((mp.errors.InvalidUse, AttributeError), match=text):
        use(app)


def test_changes_in_an_app_without_steps_are_refused() -> None:
    app = mp.App("none")
    app.stream("rows", mp.sources.rows([]))
    with pytest.raises(mp.errors.InvalidUse, match="Build the step before"):
        app.changes("total").to("x", mp.sinks.memory())
