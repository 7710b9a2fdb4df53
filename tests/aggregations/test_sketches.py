"""`quantile` and `approx_distinct`: a few kilobytes that answer for many values."""

from __future__ import annotations

import random
import statistics
import sys
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millpond as mp
from millpond.aggregations import Aggregation, result_of
from millpond.codec import Codec

pytest.importorskip("datasketches", reason="datasketches has no wheel for this Python")

codec = Codec()


def stored(acc: Any) -> Any:
    return codec.decode(codec.encode(acc))


def fold(aggregation: Aggregation, values: Any, every: int = 1_000_000) -> Any:
    """The accumulator after these values, stored and read again after `every` of them."""
    acc = aggregation.initial()
    for n, value in enumerate(values):
        acc = aggregation.update(acc, value, None)
        if n % every == 0:
            acc = stored(acc)
    return acc


def total(aggregation: Aggregation, values: Any) -> Any:
    return aggregation.result(fold(aggregation, values))


def rank_error(values: list[float], q: float, found: float) -> float:
    """How far the value is from where a share q of all lies."""
    below = sum(value < found for value in values) / len(values)
    up_to = sum(value <= found for value in values) / len(values)
    return max(0.0, below - q, q - up_to)


@given(st.lists(st.integers(-1000, 1000) | st.floats(-1e9, 1e9), min_size=1, max_size=256))
def test_the_median_of_a_few_values_is_exact(values):
    assert total(mp.quantile(0.5), values) == pytest.approx(statistics.median(values))


def test_a_quantile_lies_between_two_values_on_the_straight_line():
    assert [total(mp.quantile(q), [40, 10, 30, 20]) for q in (0, 0.25, 0.5, 0.9, 1)] == [10, 17.5, 25, 37, 40]


@pytest.mark.parametrize("shape", ["even", "steep", "sorted", "two heaps"])
@pytest.mark.parametrize("q", [0.01, 0.25, 0.5, 0.9, 0.99])
def test_the_rank_of_a_quantile_of_many_values_is_right_to_one_percent(shape, q):
    rng = random.Random(5)
    values = {
        "even": [rng.random() for _ in range(20_000)],
        "steep": [rng.lognormvariate(0, 2) for _ in range(20_000)],
        "sorted": [float(n) for n in range(20_000)],
        "two heaps": [rng.gauss(1000 * (n % 2), 1) for n in range(20_000)],
    }[shape]
    assert rank_error(values, q, total(mp.quantile(q), values)) <= 0.01


def test_a_quantile_of_many_values_takes_a_few_kilobytes():
    assert len(codec.encode(fold(mp.quantile(0.5), range(100_000)))) < 20_000


@pytest.mark.parametrize("aggregation", [mp.quantile(0.9), mp.approx_distinct()])
def test_how_rows_are_cut_into_batches_changes_nothing(aggregation):
    rng = random.Random(1)
    values = [rng.randrange(10_000) for _ in range(3_000)]
    assert fold(aggregation, values) == fold(aggregation, values, every=1) == fold(aggregation, values, every=7)


def test_two_quantiles_merge_into_that_of_all_values():
    median = mp.quantile(0.5)
    rng = random.Random(2)
    values = [rng.gauss(100, 20) for _ in range(9_000)]
    for cut in (0, 100, 4_000, 8_950, 9_000):
        merged = median.merge(stored(fold(median, values[:cut])), stored(fold(median, values[cut:])))
        assert rank_error(values, 0.5, median.result(stored(merged))) <= 0.01


@given(st.lists(st.integers(0, 50)), st.lists(st.integers(0, 50)))
def test_a_few_values_merge_exactly(left, right):
    median, different = mp.quantile(0.5), mp.approx_distinct()
    assert median.merge(fold(median, left), fold(median, right)) == fold(median, left + right)
    both = different.merge(fold(different, left), fold(different, right))
    assert different.result(both) == len({*left, *right})


@pytest.mark.parametrize("n", [0, 1, 2, 100, 300])
def test_a_few_different_values_are_counted_exactly(n):
    assert total(mp.approx_distinct(), [*range(n), *range(n)]) == n


def test_many_different_values_are_counted_to_a_few_percent():
    assert total(mp.approx_distinct(), range(50_000)) == pytest.approx(50_000, rel=0.05)


def test_the_order_of_the_rows_changes_no_distinct_count():
    values = [f"user-{n}" for n in range(5_000)]
    in_order = total(mp.approx_distinct(), values)
    random.Random(3).shuffle(values)
    assert total(mp.approx_distinct(), values) == in_order


def test_distinct_counts_merge_into_that_of_all_values_whatever_they_share():
    different = mp.approx_distinct()
    whole = total(different, range(20_000))
    left, right = fold(different, range(15_000)), fold(different, range(5_000, 20_000))
    assert different.result(different.merge(left, right)) == different.result(different.merge(right, left)) == whole


@pytest.mark.parametrize(
    ("values", "n"),
    [
        ([1, 1.0, True], 1),
        ([1, "1", (1,), [1], {"a": 1}], 5),
        ([0.1, 0.2, nan, nan], 3),
        ([datetime(2030, 1, 1, tzinfo=UTC), datetime(2030, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))], 1),
        ([None, "a", None], 1),
    ],
)
def test_which_values_are_different(values, n):
    assert total(mp.approx_distinct(), values) == n


def test_nulls_and_nan_are_passed_over():
    assert total(mp.quantile(0.5, "v"), [{"v": v} for v in (None, 1, nan, Decimal("NaN"), 3, None)]) == 2.0
    assert total(mp.approx_distinct("v"), [{"v": None}, {"v": 1}]) == 1


def test_of_nothing():
    assert mp.quantile(0.5).result(mp.quantile(0.5).initial()) is None
    assert mp.approx_distinct().result(mp.approx_distinct().initial()) == 0


@pytest.mark.parametrize("n", [0, 10, 5_000])
def test_they_are_read_without_the_program(n):
    for aggregation in (mp.quantile(0.9), mp.approx_distinct()):
        acc = stored(fold(aggregation, range(n)))
        assert result_of(aggregation.kind, acc) == aggregation.result(acc)


def test_another_quantile_reads_what_was_kept():
    kept = stored(fold(mp.quantile(0.5), range(101)))
    assert mp.quantile(0.99).result(kept) == 99.0


@pytest.mark.parametrize("q", [-0.1, 1.1, nan, "0.5", None, True])
def test_a_share_is_from_0_to_1(q):
    with pytest.raises(mp.errors.InvalidUse, match=r"quantile\(q\): expected a share from 0 to 1"):
        mp.quantile(q)


@pytest.mark.parametrize("value", ["3", inf, -inf, 10**400, timedelta(1), [1]])
def test_a_quantile_is_of_finite_numbers(value):
    with pytest.raises(mp.errors.InvalidUse, match=r"quantile\(0.5\): expected a finite number, got"):
        total(mp.quantile(0.5), [value])


def test_a_value_that_cannot_be_written_down_is_refused():
    with pytest.raises(mp.errors.InvalidUse, match=r"approx_distinct\(\): expected values that can be encoded"):
        total(mp.approx_distinct(), [object()])


def test_without_the_library_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasketches", None)
    for make in (lambda: mp.quantile(0.5), mp.approx_distinct):
        with pytest.raises(mp.errors.InvalidUse, match="pip install datasketches"):
            make()


def test_they_are_named_in_full():
    assert repr(mp.quantile(0.99, "ms")) == "mp.quantile(0.99, 'ms')"
    assert repr(mp.approx_distinct("user")) == "mp.approx_distinct('user')"


def test_a_running_quantile_and_distinct_count_survive_a_crash():
    app = mp.App("calls")
    stream = app.stream("calls", mp.sources.rows([])).key_by("host")
    stream.aggregate("load", p90=mp.quantile(0.9, "ms"), users=mp.approx_distinct("user")).to("out", mp.sinks.memory())
    rows = [{"host": "a", "ms": n, "user": n % 7} for n in range(21)]
    with mp.testing.TestDriver(app) as driver:
        driver.send("calls", rows[:10])
        driver.crash(at="commit", when="before")
        with pytest.raises(mp.testing.Crashed):
            driver.send("calls", rows[10:])
        driver.restart(lose_replicas=True)
        assert driver.state("load").get("a") == {"p90": 18.0, "users": 7}
        assert driver.output("out")[-1] == {"host": "a", "p90": 18.0, "users": 7}
