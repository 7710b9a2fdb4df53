"""Tables whose rows live for a while only, and tables of a program that has changed."""

from __future__ import annotations

from typing import Any

import pytest

import millpond as mp
from millpond.errors import InvalidUse
from millpond.testing import TestDriver

EVERYWHERE = pytest.mark.parametrize("everywhere", [False, True], ids=["partitioned", "everywhere"])


def shop(
    everywhere: bool = False, *, partitions: int | None = None, name: str = "prices", timed: bool = True, **how: Any
) -> mp.App:
    """Prices, timed or not, and orders that look into them."""
    app = mp.App("shop", partitions=partitions)
    updates = app.stream("updates", mp.sources.rows([]), timestamp="at" if timed else None)
    prices = app.table(name, updates.key_by("sku"), everywhere, deleted=lambda row: row["price"] is None, **how)
    orders = app.stream("orders", mp.sources.rows([])).key_by("sku")
    orders.lookup("priced", prices, merge=lambda order, price: price and price["price"]).to("out", mp.sinks.memory())
    return app


def price(sku: str, price: int | None, at: int = 0) -> dict[str, Any]:
    return {"sku": sku, "price": price, "at": at}


TEA, PEN = [{"sku": "tea"}], [{"sku": "pen"}]


@EVERYWHERE
def test_a_row_that_is_not_sent_again_in_time_is_looked_up_in_vain(everywhere):
    with TestDriver(shop(everywhere, ttl=10)) as driver:
        driver.send({"updates": [price("tea", 1, 0), price("pen", 2, 5)], "orders": TEA + PEN})
        driver.send({"updates": [price("cup", 3, 9)], "orders": TEA + PEN})
        driver.send({"updates": [price("cup", 3, 10)], "orders": TEA + PEN})
        assert driver.output("out") == [1, 2, 1, 2, None, 2]
        assert {sku: row["at"] for sku, row in driver.state("prices").items()} == {"pen": 5, "cup": 10}
        driver.restart(lose_replicas=True)
        driver.send({"updates": [price("pen", 4, 14), price("cup", 3, 24)], "orders": TEA + PEN})
        assert driver.output("out")[-2:] == [None, None]


@EVERYWHERE
def test_without_event_time_rows_live_by_the_clock(everywhere):
    with TestDriver(shop(everywhere, timed=False, ttl="5m")) as driver:
        driver.send({"updates": [price("tea", 1), price("pen", 2)], "orders": TEA + PEN})
        driver.advance("4m")
        driver.send({"updates": [price("tea", 1)], "orders": TEA + PEN})
        driver.advance("1m")
        assert {sku: row["price"] for sku, row in driver.state("prices").items()} == {"tea": 1}
        driver.send("orders", TEA + PEN)
        driver.advance("4m")
        driver.send("orders", TEA + PEN)
        assert driver.output("out") == [1, 2, 1, 2, 1, None, None, None]


def test_a_row_that_never_lives_on_is_over_so_long_after_it_came():
    with TestDriver(shop(timed=False, ttl=mp.ttl("5m", refresh="never"))) as driver:
        driver.send("updates", [price("tea", 1)])
        driver.advance("4m")
        driver.send("updates", [price("tea", 2)])
        driver.advance("1m")
        driver.send({"updates": [price("tea", 3)], "orders": TEA})
        driver.advance("4m")
        driver.send("orders", TEA)
        assert driver.output("out") == [3, 3]


def test_the_newest_row_is_the_latest_and_a_deletion_is_remembered_where_rows_live_for_a_while_too():
    with TestDriver(shop(ttl=100)) as driver:
        driver.send({"updates": [price("tea", 1, 10), price("tea", 2, 5), price("pen", 1, 10)], "orders": TEA})
        driver.send({"updates": [price("tea", 3, 9), price("pen", None, 10), price("pen", 2, 9)], "orders": TEA + PEN})
        driver.send({"updates": [price("tea", 4, 10), price("pen", 5, 10)], "orders": TEA + PEN})
        assert driver.output("out") == [1, 1, None, 4, 5]


@EVERYWHERE
def test_a_life_may_be_given_to_a_table_that_is_there_and_be_taken_away(everywhere):
    with TestDriver(shop(everywhere)) as driver:
        driver.send("updates", [price("tea", 1, 0)])
        driver.restart(shop(everywhere, ttl=10))
        driver.send({"updates": [price("pen", 2, 5)], "orders": TEA})
        driver.send({"updates": [price("pen", 2, 10)], "orders": TEA})
        driver.send("updates", [price("tea", 3, 11)])
        driver.restart(shop(everywhere))
        driver.send({"updates": [price("pen", 2, 1000)], "orders": TEA})
        driver.send("orders", TEA)
        assert driver.output("out") == [1, None, 3, 3]


def test_a_life_that_looking_prolongs_is_refused():
    with pytest.raises(
        InvalidUse, match=r"table\('prices', ttl\): expected refresh=\"write\" or \"never\", got \"read\""
    ):
        shop(ttl=mp.ttl("1h", refresh="read"))
    with pytest.raises(InvalidUse, match=r"table\('prices', ttl\): "):
        shop(ttl="soon")


@EVERYWHERE
@pytest.mark.parametrize("partitions", [2, 3], ids=["same partitions", "others"])
@pytest.mark.parametrize("name", ["prices", "cents"], ids=["same name", "another"])
@pytest.mark.parametrize("lose_replicas", [False, True], ids=["replicas kept", "replicas lost"])
def test_a_table_goes_on_in_other_partitions_under_another_name_with_other_rows(
    everywhere, partitions, name, lose_replicas
):
    with TestDriver(shop(everywhere, partitions=2)) as driver:
        driver.send("updates", [price(f"s{n}", n, 10) for n in range(20)])
        driver.send("updates", [price("s3", None, 10)])
        driver.send("orders", [{"sku": f"s{n}"} for n in range(5)])
        changed = shop(
            everywhere,
            partitions=partitions,
            name=name,
            renamed_from=None if name == "prices" else "prices",
            version=2,
            migrate={1: lambda row: {**row, "price": row["price"] * 100}},
        )
        driver.restart(changed, lose_replicas=lose_replicas)
        driver.send({"updates": [price("s1", 7, 9), price("s3", 7, 9)], "orders": [{"sku": f"s{n}"} for n in range(5)]})
        assert driver.output("out") == [0, 1, 2, None, 4, 0, 100, 200, None, 400]
        assert driver.state(name).get("s19")["price"] == 1900
