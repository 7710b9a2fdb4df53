"""Typed streams, and values of all kinds: what goes in comes out equal, of the same type."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import msgspec
import pytest
from small_programs import piped

import millpond as mp
from millpond.testing import TestDriver


@dataclass
class Order:
    customer: str
    amount: Decimal
    at: datetime | None = None
    tags: set[str] = field(default_factory=set)


class Item(msgspec.Struct):
    customer: str
    amount: int


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_typed_stream_makes_rows_of_its_type(partitions):
    app = mp.App("typed", partitions=partitions)
    orders = app.stream("orders", mp.sources.rows([]), type=Order)
    kept = orders.key_by("customer").stateful_map("last", lambda k, o, s: (o, o), initial=None)
    kept.to("out", mp.sinks.memory())
    kept.key_by("customer").aggregate("sum", total=mp.sum("amount"))
    with TestDriver(app) as driver:
        driver.send("orders", [{"customer": "a", "amount": "1.10"}, Order("a", Decimal(2), tags={"x"})])
        assert driver.output("out") == [Order("a", Decimal("1.10")), Order("a", Decimal(2), tags={"x"})]
        assert driver.state("last").get("a") == Order("a", Decimal(2), tags={"x"})
        assert driver.state("sum").get("a") == {"total": Decimal("3.10")}
        driver.restart(lose_replicas=True)
        assert driver.state("last").get("a") == Order("a", Decimal(2), tags={"x"})


def test_structs_are_rows_and_state_too():
    found = piped(
        lambda s: s.key_by("customer").stateful_map(
            "s", lambda k, i, n: (Item(k, n.amount + i.amount),) * 2, initial=lambda: Item("", 0), type=Item
        ),
        [Item("a", 1), {"customer": "a", "amount": 2}],
        type=Item,
    )
    assert found == [Item("a", 1), Item("a", 3)]


def test_a_row_that_does_not_fit_its_type_is_bad_input():
    app = mp.App("typed")
    app.stream("orders", mp.sources.rows([]), type=Order, on_error="dead-letter").to("out", mp.sinks.memory())
    app.dead_letters.to("dead", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("orders", [{"customer": "a"}, {"customer": 1, "amount": 1}, 7, {"customer": "b", "amount": 1}])
        assert driver.output("out") == [Order("b", Decimal(1))]
        letters = driver.output("dead")
        assert [letter["row"] for letter in letters] == [{"customer": "a"}, {"customer": 1, "amount": 1}, 7]
        assert {letter["step"] for letter in letters} == {"orders"}
        assert all(letter["error"].startswith("expected Order: ") for letter in letters)


@dataclass
class Picky:
    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise RuntimeError("less than nothing")


def test_a_type_that_refuses_a_row_in_its_own_words():
    app = mp.App("typed")
    app.stream("rows", mp.sources.rows([]), type=Picky, on_error="dead-letter").to("out", mp.sinks.memory())
    app.dead_letters.to("dead", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [{"n": 1}, {"n": -1}])
        assert driver.output("out") == [Picky(1)]
        assert [letter["error"] for letter in driver.output("dead")] == ["expected Picky: less than nothing"]


VALUES = [
    None, True, 0, -(2**80), 1.5, float("inf"), "", "é\n\x00", b"\x00\xff", Decimal("1.10"), UUID(int=5),
    date(2024, 2, 29), datetime(2024, 1, 1, 1, 2, 3, 4), datetime(2024, 1, 1, tzinfo=UTC),
    timedelta(days=-1, microseconds=3), (), (1, "a", (2,)), [1, [2, {"a": (3,)}]], {1, 2}, frozenset({"a"}),
    {1: "a", "$tuple": 2, (1, 2): None}, {},
    Order("a", Decimal("2.50"), datetime(2024, 1, 1, tzinfo=UTC), {"x"}), Item("b", 3),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_what_goes_in_comes_out_equal_and_of_the_same_type(value):
    app = mp.App("values")
    rows = app.stream("rows", mp.sources.rows([])).key_by("k")
    rows.stateful_map("whole", lambda k, row, s: ([row["v"], s], [row["v"]]), initial=None).to("out", mp.sinks.memory())

    def f(row, state):
        state.set("v", row["v"])
        state.list("l").append(row["v"])
        state.map("m")[1] = row["v"]

    rows.apply("parts", f)
    rows.key_by("k").map(lambda row: [row["v"]]).to("later", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [{"k": 1, "v": value}])
        driver.restart(lose_replicas=True)
        driver.send("rows", [{"k": 1, "v": value}])
        found = [
            *driver.output("out")[1],
            driver.output("out")[1][1][0],
            driver.output("later")[0][0],
            driver.state("whole").get(1)[0],
            *(v if name == "v" else v[0] if name == "l" else v[1] for name, v in driver.state("parts").get(1).items()),
        ]
        assert len(found) == 8
        del found[1]
        for one in found:
            assert one == value
            assert type(one) is type(value)
