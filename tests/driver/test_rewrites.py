"""A changed program goes on with its state: in other partitions, under other names, migrated."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

import millpond as mp
from millpond.storage import open_storage

ROWS = [{"k": f"k{random.Random(i).randrange(20)}", "v": i} for i in range(60)]


def totals(partitions: int | None = 2, **how: Any) -> mp.App:
    app = mp.App("moves", partitions=partitions, compact_every=how.pop("compact_every", 3))
    keyed = app.stream("rows", mp.sources.rows([]), timestamp="v").key_by("k")
    name = how.pop("name", "total")
    keyed.stateful_map(name, how.pop("f", lambda k, row, n: (n + row["v"], n + row["v"])), initial=0, **how).to(
        "out", mp.sinks.memory()
    )
    keyed.window("by ten", mp.tumbling(10), grace=mp.NO_GRACE).aggregate(n=mp.count()).to("windows", mp.sinks.memory())
    return app


def fold(rows: list[dict[str, Any]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in rows:
        found[row["k"]] = found.get(row["k"], 0) + row["v"]
    return found


def windows(rows: list[dict[str, Any]]) -> int:
    return len({(row["k"], row["v"] // 10) for row in rows})


@pytest.mark.parametrize("before", [1, 2, 5])
@pytest.mark.parametrize("after", [1, 3, 4])
@pytest.mark.parametrize("compact_every", [2, 1000])
@pytest.mark.parametrize("lose", [False, True])
def test_state_windows_and_what_is_due_move_to_other_partitions(
    before: int, after: int, compact_every: int, lose: bool
) -> None:
    with mp.testing.TestDriver(totals(before, compact_every=compact_every)) as driver:
        for start in range(0, 30, 5):
            driver.send("rows", ROWS[start : start + 5])
        driver.restart(totals(after, compact_every=compact_every), lose_replicas=lose)
        assert dict(driver.state("total").items()) == fold(ROWS[:30])
        for start in range(30, 60, 5):
            driver.send("rows", ROWS[start : start + 5])
        driver.restart(totals(None, compact_every=compact_every), lose_replicas=lose)
        assert dict(driver.state("total").items()) == fold(ROWS)
        driver.finish()
        assert len(driver.output("windows")) == windows(ROWS)
        assert len(driver.output("out")) == 60
        assert driver.state("total").get("k3") == fold(ROWS)["k3"]


@pytest.mark.parametrize("keep", [1000, 8])
def test_the_history_of_a_key_goes_on_when_it_moves(keep: int) -> None:
    def app(partitions: int) -> mp.App:
        app = mp.App("past", partitions=partitions, keep=keep, compact_every=3)
        keyed = app.stream("rows", mp.sources.rows([])).key_by("k")
        keyed.stateful_map("n", lambda k, row, n: (None, n + 1), initial=0)
        return app

    keys = "abcdefgh"
    with mp.testing.TestDriver(app(2)) as driver:
        for partitions in (2, 7, 3):
            driver.restart(app(partitions))
            for _ in range(5):
                driver.send("rows", [{"k": key} for key in keys])
        for key in keys:
            found = [moment.value for moment in driver.state("n").history(key)]
            assert found == list(range(16 - len(found), 16)), key
            assert len(found) == 15 if keep == 1000 else 15 > len(found) > 5


@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_a_move_that_dies_changes_nothing_and_is_done_again_or_left(when: Any) -> None:
    with mp.testing.TestDriver(totals(2)) as driver:
        driver.send("rows", ROWS[:30])
        driver.crash("rewrite", when)
        with pytest.raises(mp.testing.Crashed):
            driver.restart(totals(5))
        driver.restart(totals(2))
        assert dict(driver.state("total").items()) == fold(ROWS[:30])
        driver.crash("rewrite", when)
        with pytest.raises(mp.testing.Crashed):
            driver.restart(totals(5), lose_replicas=True)
        driver.restart(totals(5))
        driver.send("rows", ROWS[30:])
        assert dict(driver.state("total").items()) == fold(ROWS)


def test_a_renamed_step_keeps_its_state() -> None:
    with mp.testing.TestDriver(totals(2)) as driver:
        driver.send("rows", ROWS[:30])
        driver.restart(totals(2, name="sum", renamed_from="total"))
        driver.send("rows", ROWS[30:])
        assert dict(driver.state("sum").items()) == fold(ROWS)
        driver.restart(totals(2, name="sum", renamed_from="total"), lose_replicas=True)
        assert dict(driver.state("sum").items()) == fold(ROWS)


def test_a_step_that_vanished_keeps_its_state_until_it_comes_back() -> None:
    other = mp.App("moves", partitions=2)
    other.stream("rows", mp.sources.rows([]), timestamp="v").key_by("k").deduplicate("once").to(
        "out", mp.sinks.memory()
    )
    with mp.testing.TestDriver(totals(2)) as driver:
        driver.send("rows", ROWS[:30])
        driver.finish()
        driver.restart(other)
        driver.send("rows", ROWS[30:])
        driver.restart(totals(3), lose_replicas=True)
        assert dict(driver.state("total").items()) == fold(ROWS[:30])


def upgrade(total: int) -> dict[str, int]:
    return {"sum": total}


def by_dict(k: str, row: Any, state: dict[str, int]) -> tuple[Any, dict[str, int]]:
    state = {"sum": state["sum"] + row["v"]}
    return state["sum"], state


@pytest.mark.parametrize("partitions", [2, 3])
@pytest.mark.parametrize("compact_every", [2, 1000])
def test_old_values_are_migrated_once_by_the_users_function(partitions: int, compact_every: int) -> None:
    new = dict(f=by_dict, version=2, migrate={1: upgrade}, compact_every=compact_every)
    with mp.testing.TestDriver(totals(2, compact_every=compact_every)) as driver:
        for start in range(0, 30, 10):
            driver.send("rows", ROWS[start : start + 10])
        driver.restart(totals(partitions, **new))
        assert dict(driver.state("total").items()) == {k: {"sum": v} for k, v in fold(ROWS[:30]).items()}
        driver.restart(totals(partitions, **new), lose_replicas=True)
        assert dict(driver.state("total").items()) == {k: {"sum": v} for k, v in fold(ROWS[:30]).items()}


def test_a_migration_may_give_state_other_keys() -> None:
    def shout(key: str, total: int) -> tuple[str, int]:
        return key.upper(), total

    with mp.testing.TestDriver(totals(3)) as driver:
        driver.send("rows", ROWS[:30])
        driver.restart(totals(3, version=2, migrate={1: shout}))
        expected = {k.upper(): v for k, v in fold(ROWS[:30]).items()}
        assert dict(driver.state("total").items()) == expected
        assert all(driver.state("total").get(k) == v for k, v in expected.items())


def test_a_migration_that_makes_one_key_of_two_is_refused() -> None:
    def one(key: str, total: int) -> tuple[str, int]:
        return "all", total

    with mp.testing.TestDriver(totals(3)) as driver:
        driver.send("rows", ROWS[:30])
        with pytest.raises(mp.errors.Incompatible, match="gives several keys the state of 'all'"):
            driver.restart(totals(3, version=2, migrate={1: one}))
        driver.restart(totals(3), lose_replicas=True)
        assert dict(driver.state("total").items()) == fold(ROWS[:30])


def test_what_cannot_be_migrated_is_refused_and_nothing_is_touched() -> None:
    storage = open_storage("memory://")
    with mp.testing.TestDriver(totals(2), storage) as driver:
        driver.send("rows", ROWS[:30])
        files = {item.path for item in storage.list("")}
        with pytest.raises(mp.errors.Incompatible, match="without a way from 1 to 2"):
            driver.restart(totals(2, version=2))

        def fails(value: Any) -> Any:
            raise ValueError("no")

        with pytest.raises(mp.errors.Incompatible, match="its migration raised ValueError: no, for the key"):
            driver.restart(totals(2, version=2, migrate={1: fails}))
        driver.restart(totals(2), lose_replicas=True)
        assert dict(driver.state("total").items()) == fold(ROWS[:30])
        assert files <= {item.path for item in storage.list("")}
        driver.restart(totals(2, version=2, migrate={1: upgrade}, f=by_dict))
        with pytest.raises(mp.errors.Incompatible, match="version 2, and the program says version=1"):
            driver.restart(totals(2))
    for version, migrate in ((0, None), ("2", None), (2, {2: upgrade}), (2, {1: "x"})):
        with pytest.raises(mp.errors.InvalidUse, match=r"version|migrate"):
            totals(2, version=version, migrate=migrate)


@dataclass
class Account:
    name: str
    total: int


def named(app_class: type, **how: Any) -> mp.App:
    app = mp.App("typed", partitions=1)
    rows = app.stream("rows", mp.sources.rows([])).key_by("k")

    def add(row: Any, state: mp.State) -> Any:
        state.set("n", state.get("n", 0) + 1)
        state.list("all").append(row["v"])
        return None

    rows.apply("seen", add, type=app_class, **how).to("none", mp.sinks.memory())
    return app


def test_named_state_is_migrated_as_a_dict_and_lists_stay() -> None:
    with mp.testing.TestDriver(named(Account)) as driver:
        driver.send("rows", ROWS[:10])
        before = dict(driver.state("seen").items())
        driver.restart(named(Account, version=2, migrate={1: lambda names: {"count": names["n"] * 10}}))
        after = dict(driver.state("seen").items())
        assert after == {k: {"count": v["n"] * 10, "all": v["all"]} for k, v in before.items()}
