"""`panes="retract"` into our own aggregations: what is taken back is subtracted, or the program is refused."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import millpond as mp
from millpond.testing import TestDriver

INVERTIBLE: dict[str, Any] = {"n": mp.count(), "total": mp.sum("sum"), "mean": mp.mean("sum")}


def app_of(then: Callable[[Any], Any], window: Any = None, **how: Any) -> mp.App:
    """Rows {k, t, v} in windows that retract; `then` says what becomes of the panes."""
    app = mp.App("taken back", partitions=2)
    rows = app.stream("rows", mp.sources.rows([]), timestamp="t").key_by("k")
    given = {"grace": 0, "trigger": mp.triggers.on_update(), "panes": "retract", **how}
    panes = rows.window("w", window or mp.tumbling(10), **given).aggregate(sum=mp.sum("v"))
    panes.to("panes", mp.sinks.memory())
    then(panes).to("out", mp.sinks.memory())
    return app


def by_window(panes: Any) -> Any:
    return panes.key_by("window_start")


def sent(app: mp.App, *batches: list[tuple[str, int, Any]]) -> TestDriver:
    driver = TestDriver(app)
    for batch in batches:
        driver.send("rows", [{"k": k, "t": t, "v": v} for k, t, v in batch])
    return driver


ROWS = [[("a", 1, 5)], [("a", 2, 5)], [("a", 3, 2), ("b", 4, 7)], [("b", 30, 1)]]


def test_a_running_aggregate_of_panes_is_what_the_last_panes_come_to() -> None:
    app = app_of(lambda panes: by_window(panes).aggregate("sums", **INVERTIBLE))
    with sent(app, *ROWS) as driver:
        driver.restart(lose_replicas=True)
        found = [(o["n"], o["total"]) for o in driver.output("out") if o["window_start"] == 0]
        assert found[0] == (1, 5) and found[-1] == (2, 19)
        assert (1, 10) in found and (1, 12) in found
        last = [o for o in driver.output("out") if o["window_start"] == 0][-1]
        assert last["mean"] == 9.5


@pytest.mark.parametrize("between", ["nothing", "a map", "a union"])
def test_a_window_over_panes_holds_each_window_once(between: str) -> None:
    def then(panes: Any) -> Any:
        if between == "a map":
            panes = panes.map(lambda row: {**row, "double": 2 * row["sum"]})
        elif between == "a union":
            panes = panes.union(panes.filter(lambda row: False))
        keyed = panes.key_by(all=lambda row: 0)
        return keyed.window("hours", mp.tumbling(100), grace=0).aggregate(**INVERTIBLE)

    with sent(app_of(then), *ROWS, [("a", 300, 0)]) as driver:
        first = driver.output("out")[0]
        assert (first["n"], first["total"], first["mean"]) == (3, 20, 20 / 3)


def test_a_pane_is_taken_out_of_the_window_that_it_was_put_into() -> None:
    # The session grows from [8, 8] to [8, 12]: its first pane was counted at 8, and is taken out there.
    app = app_of(
        lambda panes: panes.key_by(all=lambda row: 0).window("tens", mp.tumbling(10), grace=50).aggregate(**INVERTIBLE),
        mp.session(5),
    )
    with sent(app, [("a", 8, 1)], [("a", 12, 1)]) as driver:
        driver.finish()
        assert [(o["window_start"], o["n"], o["total"]) for o in driver.output("out")] == [(0, 0, 0), (10, 1, 2)]


def test_an_aggregation_of_the_users_own_can_have_an_inverse() -> None:
    own = mp.aggregation(
        initial=list, update=lambda acc, row: [*acc, row["sum"]], retract=lambda acc, row: _without(acc, row["sum"])
    )
    with sent(app_of(lambda panes: by_window(panes).aggregate("own", sums=own)), *ROWS[:3]) as driver:
        assert sorted(driver.output("out")[-1]["sums"]) == [7, 12]


def _without(values: list[Any], value: Any) -> list[Any]:
    values.remove(value)
    return values


def test_decimals_are_taken_back_exactly() -> None:
    large = Decimal("1234567890123456789012345678901234567890.5")
    app = app_of(lambda panes: by_window(panes).aggregate("sums", total=mp.sum("sum")))
    with sent(app, [("a", 1, large)], [("a", 2, Decimal("0.25"))]) as driver:
        assert driver.output("out")[-1]["total"] == Decimal("1234567890123456789012345678901234567890.75")


REFUSED: dict[str, Callable[[], mp.Aggregation]] = {
    "max": lambda: mp.max("sum"),
    "min": lambda: mp.min("sum"),
    "first": lambda: mp.first("sum"),
    "last": lambda: mp.last("sum"),
    "earliest": lambda: mp.earliest("sum"),
    "latest": lambda: mp.latest("sum"),
    "collect": lambda: mp.collect("sum"),
    "distinct": lambda: mp.distinct("sum"),
    "top": lambda: mp.top(2, by="sum"),
    "quantile": lambda: mp.quantile(0.5, "sum"),
    "approx_distinct": lambda: mp.approx_distinct("sum"),
    "own": lambda: mp.aggregation(initial=0, update=lambda acc, row: acc + 1),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_an_aggregation_without_an_inverse_is_refused_when_the_program_is_built(kind: str) -> None:
    pattern = r"(?s)expected aggregations that can take a row back.*got it: .*window\('w'\).*panes=\"accumulate\""
    unfit = REFUSED[kind]()
    with pytest.raises(mp.errors.InvalidUse, match=pattern):
        app_of(lambda panes: by_window(panes).aggregate("x", n=mp.count(), it=unfit))
    with pytest.raises(mp.errors.InvalidUse, match=pattern):
        app_of(lambda panes: by_window(panes).window("x", mp.tumbling(50), grace=0).aggregate(it=unfit))


def test_windows_by_rows_are_refused_too() -> None:
    with pytest.raises(mp.errors.InvalidUse, match="go by the number of rows"):
        app_of(lambda panes: by_window(panes).window("x", mp.count_tumbling(5)).aggregate(n=mp.count()))


def test_behind_a_function_that_may_let_go_of_retractions_only_a_retraction_is_refused() -> None:
    def largest(panes: Any) -> Any:
        return by_window(panes).aggregate("x", it=mp.max("sum"))

    with sent(app_of(lambda panes: largest(panes.filter(lambda row: "retracted" not in row))), *ROWS[:2]) as driver:
        assert driver.output("out")[-1]["it"] == 10
    with pytest.raises(mp.errors.StepFailed, match=r"(?s)step 'x'.*expected aggregations that can take a row back"):
        sent(app_of(lambda panes: largest(panes.map(lambda row: row))), *ROWS[:2])


def test_late_rows_and_other_panes_are_not_retractions() -> None:
    app_of(lambda panes: by_window(panes).aggregate("x", it=mp.max("sum")), panes="accumulate")
    app = mp.App("others")
    rows = app.stream("rows", mp.sources.rows([]), timestamp="t").key_by("k")
    windowed = rows.window("w", mp.tumbling(10), grace=0, panes="retract")
    windowed.aggregate(n=mp.count()).to("out", mp.sinks.memory())
    windowed.late.key_by("key").aggregate("late", it=mp.collect()).to("late out", mp.sinks.memory())


@settings(max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 40), st.integers(-9, 9)), min_size=1, max_size=4),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([mp.tumbling(10), mp.hopping(10, 5), mp.session(4), mp.sliding(6), mp.global_window()]),
    st.sampled_from([mp.triggers.on_update(), mp.triggers.every_rows(2)]),
)
def test_however_often_panes_are_shown_their_sum_is_that_of_the_final_ones(
    batches: list[Any], window: Any, trigger: Any
) -> None:
    def app(**how: Any) -> mp.App:
        grace: dict[str, Any] = {} if window == mp.global_window() else {"grace": 100}
        made = mp.App("fuzz", partitions=2)
        rows = made.stream("rows", mp.sources.rows([]), timestamp="t", disorder=100).key_by("k")
        panes = rows.window("w", window, **grace, **how).aggregate(n=mp.count(), sum=mp.sum("v"))
        panes.key_by(all=lambda row: 0).aggregate("all", n=mp.sum("n"), total=mp.sum("sum"), panes=mp.count()).to(
            "out", mp.sinks.memory()
        )
        return made

    found = []
    for how in ({}, {"trigger": trigger, "panes": "retract"}):
        with sent(app(**how), *batches) as driver:
            driver.finish()
            found.append(driver.output("out")[-1])
    assert found[0] == found[1]
