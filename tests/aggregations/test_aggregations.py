"""Aggregations are four small functions: initial, update, result, merge."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal, localcontext
from math import nan
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millpond as mp
from millpond.aggregations import Aggregation, result_of
from millpond.codec import Codec, NotEncodable
from millpond.errors import InvalidUse

codec = Codec()


def fold(aggregation: Aggregation, rows: list[Any], times: list[Any] | None = None) -> Any:
    """The accumulator after these rows, stored and read again between any two of them, as a batch does."""
    acc = aggregation.initial()
    for row, time in zip(rows, times or range(len(rows)), strict=True):
        acc = codec.decode(codec.encode(aggregation.update(acc, row, time)))
    return acc


def total(aggregation: Aggregation, values: list[Any], times: list[Any] | None = None) -> Any:
    """The result over rows that have these values in the field v."""
    return aggregation.result(fold(aggregation, [{"v": value} for value in values], times))


@pytest.mark.parametrize(
    ("aggregation", "values", "expected"),
    [
        (mp.sum("v"), [1, None, 2], 3),
        (mp.sum("v"), [], 0),
        (mp.sum("v"), [None], 0),
        (mp.count("v"), [1, "2", None], 2),
        (mp.count(), [1, "2", None], 3),
        (mp.mean("v"), [None], None),
        (mp.mean("v"), [1, None, 2], 1.5),
        (mp.max("v"), [3, None, 2], 3),
        (mp.min("v"), [None, 3, 2], 2),
        (mp.min("v"), [None], None),
        (mp.max("v"), [nan, 1.0, nan], 1.0),
        (mp.first("v"), [None, 2], None),
        (mp.last("v"), [2, None], None),
        (mp.collect("v"), [1, None], [1, None]),
        (mp.distinct("v"), [2, None, 2, None], [2, None]),
        (mp.top(2, "v"), [1, None, 3, nan, 2], [3, 2]),
    ],
)
def test_nulls(aggregation, values, expected):
    assert total(aggregation, values) == expected


@pytest.mark.parametrize(
    ("aggregation", "empty"),
    [
        (mp.count(), 0),
        (mp.sum("v"), 0),
        (mp.mean("v"), None),
        (mp.min("v"), None),
        (mp.max("v"), None),
        (mp.first("v"), None),
        (mp.last("v"), None),
        (mp.earliest("v"), None),
        (mp.latest("v"), None),
        (mp.collect("v"), []),
        (mp.distinct("v"), []),
        (mp.top(3), []),
    ],
)
def test_of_nothing(aggregation, empty):
    assert total(aggregation, []) == empty
    merged = aggregation.merge(aggregation.initial(), aggregation.initial())
    assert aggregation.result(merged) == empty


def test_first_and_last_go_by_arrival_earliest_and_latest_by_time():
    def all_four(values, times):
        return [total(f("v"), values, times) for f in (mp.first, mp.last, mp.earliest, mp.latest)]

    assert all_four([1, 2, 3], [3, 2, 1]) == [1, 3, 3, 1]
    assert all_four([1, 2, 3], [1, 1, 1]) == [1, 3, 1, 3]
    days = [datetime(2024, 1, day, tzinfo=UTC) for day in (2, 3, 1)]
    assert all_four([1, 2, 3], days) == [1, 3, 3, 2]


def test_ages_of_fifteen_people():
    ages = [21, 12, 3, 64, 53, 52, 24, 35, 49, 37, 15, 22, 83, 60, 35]
    assert [total(f("v"), ages) for f in (mp.min, mp.max, mp.mean, mp.count)] == [3, 83, 113 / 3, 15]


def test_sums_are_exact_and_of_the_type_of_their_numbers():
    for values, expected in (
        ([10**30, 1], 10**30 + 1),
        ([True, True], 2),
        ([True], 1),
        ([0.5, 1], 1.5),
        ([Decimal("1.10"), Decimal("2.20")], Decimal("3.30")),
        (
            [Decimal("1e30"), Decimal("1e-30")],
            Decimal("1000000000000000000000000000000.000000000000000000000000000001"),
        ),
        ([10**30, Decimal("0.001"), -(10**30)], Decimal("0.001")),
        ([timedelta(hours=1), timedelta(minutes=1)], timedelta(minutes=61)),
    ):
        found = total(mp.sum("v"), values)
        assert found == expected and type(found) is type(expected)
    with localcontext() as context:
        context.prec = 2
        assert total(mp.sum("v"), [Decimal("1.234"), Decimal("1.234")]) == Decimal("2.468")


def test_the_mean_of_decimals_is_a_decimal():
    assert total(mp.mean("v"), [Decimal("1.10"), Decimal("1.30")]) == Decimal("1.20")
    assert total(mp.mean("v"), [timedelta(hours=1), timedelta(hours=2)]) == timedelta(minutes=90)


@dataclass
class Order:
    amount: int


class OrderStruct(msgspec.Struct):
    amount: int


class OrderTuple(NamedTuple):
    amount: int


def test_rows_of_any_type_have_fields():
    rows = [{"amount": 1}, Order(2), OrderStruct(3), OrderTuple(4)]
    assert fold(mp.sum("amount"), rows) == 10


def test_a_function_of_the_row_serves_as_a_field():
    rows = [{"price": 2, "n": 3}, {"price": 5, "n": 1}]
    spent = mp.sum(lambda row: row["price"] * row["n"])
    assert spent.result(fold(spent, rows)) == 11


def test_without_a_field_the_row_itself_is_taken():
    rows = [{"id": 2}, {"id": 1}]
    for aggregation, expected in (
        (mp.collect(), rows),
        (mp.first(), rows[0]),
        (mp.last(), rows[1]),
        (mp.earliest(), rows[0]),
        (mp.latest(), rows[1]),
        (mp.top(1, by="id"), [rows[0]]),
    ):
        assert aggregation.result(fold(aggregation, rows)) == expected
    cases: list[Any] = [(mp.sum(), 6), (mp.max(), 3), (mp.distinct(), [3, 1, 2]), (mp.top(2), [3, 2])]
    for aggregation, expected in cases:
        assert aggregation.result(fold(aggregation, [3, 1, 2] if expected != 6 else [1, 2, 3])) == expected


def test_top_keeps_the_greatest_and_of_equal_ones_those_that_came_first():
    rows = [{"who": who, "n": n} for who, n in (("a", 1), ("b", 3), ("c", 3), ("d", 2), ("e", 3), ("f", 9))]
    for aggregation, expected in (
        (mp.top(3, "who", by="n"), ["f", "b", "c"]),
        (mp.top(9, "who", by="n"), ["f", "b", "c", "e", "d", "a"]),
        (mp.top(2, "n"), [9, 3]),
        (mp.top(1, "who", by=lambda row: -row["n"]), ["a"]),
    ):
        assert aggregation.result(fold(aggregation, rows)) == expected


def test_top_shrinks_an_accumulator_that_was_kept_with_a_greater_k():
    acc = fold(mp.top(3, "v"), [{"v": v} for v in (1, 2, 3)])
    smaller = mp.top(2, "v")
    assert smaller.result(smaller.update(acc, {"v": 0}, 0)) == [3, 2]


def test_distinct_keeps_the_order_of_first_arrival():
    assert total(mp.distinct("v"), ["b", "a", "b", (1, 2), (1, 2), 1, 1.0]) == ["b", "a", (1, 2), 1]
    assert len(total(mp.distinct("v"), [nan, 1.0, nan, nan])) == 2


numbers = st.one_of(st.none(), st.integers(), st.decimals(allow_nan=False, allow_infinity=False, places=3))
BUILT_IN = [
    mp.count(),
    mp.count("v"),
    mp.sum("v"),
    mp.mean("v"),
    mp.min("v"),
    mp.max("v"),
    mp.first("v"),
    mp.last("v"),
    mp.earliest("v"),
    mp.latest("v"),
    mp.collect("v"),
    mp.collect(),
    mp.distinct("v"),
    mp.top(3, "v"),
    mp.top(2, by="v"),
]


@pytest.mark.parametrize("aggregation", BUILT_IN, ids=repr)
@given(
    values=st.one_of(st.lists(st.integers(-3, 3)), st.lists(numbers)),
    times=st.lists(st.integers(0, 3), min_size=50, max_size=50),
    cut=st.integers(0, 10),
)
def test_merging_two_parts_is_the_same_as_going_through_both(aggregation, values, times, cut):
    rows, times = [{"v": value, "i": i} for i, value in enumerate(values[:50])], times[: len(values[:50])]
    parts = fold(aggregation, rows[:cut], times[:cut]), fold(aggregation, rows[cut:], times[cut:])
    merged = codec.decode(codec.encode(aggregation.merge(*parts)))
    assert aggregation.result(merged) == aggregation.result(fold(aggregation, rows, times))


@pytest.mark.parametrize("aggregation", BUILT_IN, ids=repr)
def test_a_stored_accumulator_can_be_read_without_the_program(aggregation):
    acc = fold(aggregation, [{"v": 1}, {"v": 3}])
    assert result_of(aggregation.kind, acc) == aggregation.result(acc)


def test_a_kind_from_a_newer_version_asks_for_an_upgrade():
    with pytest.raises(
        InvalidUse, match=r"one of approx_distinct, collect, .*, got 'histogram'; .* newer version: upgrade"
    ):
        result_of("histogram", [])


KEEP_VALUES = [mp.min("v"), mp.max("v"), mp.first("v"), mp.last("v"), mp.earliest("v"), mp.latest("v")]
KEEP_MANY = [mp.collect("v"), mp.top(3, "v")]


@pytest.mark.parametrize("aggregation", KEEP_VALUES + KEEP_MANY, ids=repr)
def test_what_an_accumulator_keeps_is_its_own(aggregation):
    row = {"v": [1]}
    acc = aggregation.update(aggregation.initial(), row, 1)
    before = copy.deepcopy(acc)
    row["v"].append(2)
    assert acc == before
    result = aggregation.result(acc)
    (result if aggregation in KEEP_VALUES else result[0]).append(3)
    assert acc == before


@pytest.mark.parametrize("aggregation", [a for a in BUILT_IN if "v" in a.label], ids=repr)
def test_a_row_that_fails_leaves_the_accumulator_as_it_was(aggregation):
    acc = fold(aggregation, [{"v": 1}, {"v": 2}])
    before = copy.deepcopy(acc)
    with pytest.raises(InvalidUse, match=r"expected a field 'v', but the row has none"):
        aggregation.update(acc, {}, 5)
    assert acc == before


def test_a_missing_field_is_named_with_the_fields_that_there_are():
    for row, fields in (
        ({"a": 1, "b": 2}, "'a', 'b'"),
        (Order(1), "'amount'"),
        (OrderStruct(1), "'amount'"),
        (OrderTuple(1), "'amount'"),
        (7, "no fields: it is 7 (int)"),
        ({}, "none"),
    ):
        with pytest.raises(InvalidUse) as e:
            mp.sum("price").update(None, row, None)
        assert str(e.value) == (
            f"sum('price'): expected a field 'price', but the row has {fields}; correct the name, or give a "
            "function that knows what to do without it"
        )


@pytest.mark.parametrize(
    ("aggregation", "values", "text"),
    [
        (
            mp.sum("v"),
            ["3"],
            "sum('v'): expected a number, got '3' (str); name a field that holds numbers, or give a function, for "
            'example lambda row: float(row["amount"])',
        ),
        (mp.mean("v"), [1, [2]], "mean('v'): expected a number, got [2] (list); name a field"),
        (
            mp.sum("v"),
            [1.5, Decimal(1)],
            "sum('v'): expected numbers that can be added up, got Decimal('1') (Decimal) after 1.5 (float); turn all "
            "of them into one type",
        ),
        (
            mp.min("v"),
            [1, "a"],
            "min('v'): expected values that can be compared with each other, got 'a' (str) ('<' not supported "
            "between instances of 'str' and 'int'); name a field of one type, or give a function",
        ),
        (mp.top(2, "v"), [1, "a"], "top(2, 'v'): expected values that can be compared with each other, got 'a' (str)"),
        (
            mp.distinct("v"),
            [[1]],
            "distinct('v'): expected values that can be compared, such as text, numbers or tuples, got [1] (list); "
            "name a field, or give a function that returns a tuple",
        ),
        (
            mp.earliest("v"),
            [1],
            "earliest('v'): expected rows with an event time, but the stream has none; give it one with timestamp=…, "
            "or use first, which goes by arrival",
        ),
        (
            mp.latest("v"),
            [1],
            "latest('v'): expected rows with an event time, but the stream has none; give it one "
            "with timestamp=…, or use last, which goes by arrival",
        ),
    ],
)
def test_values_that_do_not_fit_are_refused_in_words(aggregation, values, text):
    with pytest.raises(InvalidUse) as e:
        total(aggregation, values, [None] * len(values))
    assert str(e.value).startswith(text)


def test_wrong_arguments_are_refused_when_the_aggregation_is_made():
    for make, text in (
        (
            lambda: mp.sum(3),  # type: ignore[arg-type]
            'sum(3): expected the name of a field or a function of the row, got 3; for example sum("amount")',
        ),
        (lambda: mp.top(2, by=3), "top(2, by=3): expected the name of a field or a function of the row, got 3"),  # type: ignore[arg-type]
        (lambda: mp.top(0), "top(k): expected how many to keep, a whole number from 1, got 0"),
        (lambda: mp.top("v"), "top(k): expected how many to keep, a whole number from 1, got 'v'"),  # type: ignore[arg-type]
        (lambda: mp.aggregation(initial=0, update=None), "aggregation(update=): expected a function, got None"),  # type: ignore[arg-type]
        (
            lambda: mp.aggregation(initial=0, update=lambda a, r: a, merge=1),  # type: ignore[arg-type]
            "aggregation(merge=): expected a function, got 1",
        ),
        (
            lambda: mp.aggregation(initial=0, update=lambda a, r: a, result="x"),  # type: ignore[arg-type]
            "aggregation(result=): expected a function, got 'x'",
        ),
    ):
        with pytest.raises(InvalidUse) as e:
            make()
        assert str(e.value).startswith(text)


def test_an_aggregation_of_ones_own():
    span = mp.aggregation(
        initial=lambda: {"low": None, "high": None},
        update=lambda acc, row: {
            "low": row["v"] if acc["low"] is None else min(acc["low"], row["v"]),
            "high": row["v"] if acc["high"] is None else max(acc["high"], row["v"]),
        },
        result=lambda acc: acc["high"] - acc["low"],
        merge=lambda a, b: {"low": min(a["low"], b["low"]), "high": max(a["high"], b["high"])},
    )
    assert total(span, [3, 9, 5]) == 6
    merged = span.merge(fold(span, [{"v": 3}]), fold(span, [{"v": 8}]))
    assert span.result(merged) == 5 and span.can_merge
    assert span.kind == "custom" and result_of("custom", {"low": 1}) == {"low": 1}


def test_an_initial_value_is_copied_each_time_and_a_result_is_not_shared():
    def add(acc, row):
        acc.append(row)
        return acc

    rows = mp.aggregation(initial=[], update=add)
    first, second = rows.initial(), rows.initial()
    first = rows.update(first, 1, None)
    assert (first, second, rows.initial()) == ([1], [], [])
    result = rows.result(first)
    result.append(2)
    assert first == [1]


def test_a_result_that_cannot_be_stored_goes_out_as_it_is():
    marker = object()
    assert mp.aggregation(initial=0, update=lambda a, r: a, result=lambda acc: marker).result(0) is marker


def test_an_initial_value_that_cannot_be_stored_is_refused_at_once():
    with pytest.raises(NotEncodable, match="cannot store a value of type complex"):
        mp.aggregation(initial=1j, update=lambda a, r: a)


def test_without_merge_an_aggregation_cannot_join_sessions():
    rows = mp.aggregation(initial=0, update=lambda acc, row: acc + 1)
    assert not rows.can_merge
    with pytest.raises(InvalidUse, match=r"two sessions are merged here, which needs merge=; give a function of two"):
        rows.merge(1, 2)


def test_an_aggregation_shows_how_it_was_made():
    made = [mp.count(), mp.sum("v"), mp.top(3, "v", by=len), mp.collect(len)]
    assert list(map(repr, made)) == [
        "mp.count()",
        "mp.sum('v')",
        "mp.top(3, 'v', by=<function>)",
        "mp.collect(<function>)",
    ]
