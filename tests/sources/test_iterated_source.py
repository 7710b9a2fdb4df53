"""A source of a generator: what it takes, where it goes on, and what it says of functions that do not fit."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest
from local_drivers import start_driver

import millpond as mp
from millpond import sources
from millpond.clock import ManualClock
from millpond.driver.commit import STEPS
from millpond.errors import InvalidUse, Unavailable
from millpond.sources.base import Split
from millpond.storage import open_storage
from millpond.testing import Crashed

LIMIT = mp.lowlevel.Limit(rows=10, bytes=1 << 30)


def numbers():
    yield from range(25)


def app_over(source, out):
    app = mp.App("iterated", partitions=2)
    keyed = app.stream("rows", source).map(lambda n: {"k": n % 3, "n": n}).key_by("k")
    totals = keyed.stateful_map(
        "sum", lambda k, row, s: ({"n": row["n"], "sum": s + row["n"]}, s + row["n"]), initial=0
    )
    totals.to("out", mp.sinks.function(lambda rows, delivery: out.update({delivery.id: rows})))
    return app


def taken(out):
    return sorted(row["n"] for rows in out.values() for row in rows)


def run(source, out, storage, batches, **how):
    driver = start_driver(app_over(source, out), storage, ManualClock(), **how)
    try:
        for _ in range(batches):
            driver.batch(LIMIT)
        driver.release()
    finally:
        driver.close()


@pytest.fixture
def storage(tmp_path):
    return open_storage(str(tmp_path / "state"))


def test_a_generator_is_read_batch_by_batch_and_opened_once(storage):
    opened, out = [], {}

    def generated():
        opened.append(True)
        yield from range(25)

    run(sources.iterate(generated), out, storage, batches=5)
    assert taken(out) == list(range(25))
    assert len(opened) == 1


def test_a_generator_may_have_no_end(storage):
    made, out = [], {}

    def forever():
        for n in itertools.count():
            made.append(n)
            yield n

    run(sources.iterate(forever), out, storage, batches=3)
    assert taken(out) == made == list(range(30))  # no item is taken that the batch does not have


def test_a_new_process_skips_what_was_read(storage):
    out, made = {}, []

    def generated():
        for n in range(25):
            made.append(n)
            yield n

    for _ in range(3):
        run(sources.iterate(generated), out, storage, batches=1)
    assert taken(out) == list(range(25))
    assert made == [*range(10), *range(20), *range(25)]


def test_a_function_with_a_start_begins_where_the_app_has_come_to(storage):
    out, starts = {}, []

    def generated(start=0):
        starts.append(start)
        yield from range(start, 25)

    for _ in range(4):
        run(sources.iterate(generated), out, storage, batches=1)
    assert taken(out) == list(range(25))
    assert starts == [0, 10, 20, 25]  # the last run asks whether there is more


def test_a_start_may_come_after_other_arguments(storage):
    def counted(end, *, start):
        yield from range(start, end)

    out = {}
    for _ in range(2):
        run(sources.iterate(functools.partial(counted, 13)), out, storage, batches=2)
    assert taken(out) == list(range(13))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_no_item_is_lost_or_doubled_by_a_crash(storage, step, when):
    out: dict[str, list[Any]] = {}
    times = iter([False, True])  # it dies in the second batch

    def hook(at, moment):
        if (at, moment) == (step, when) and next(times, False):
            raise Crashed(step, when)

    with pytest.raises(Crashed):
        run(sources.iterate(numbers), out, storage, batches=5, hook=hook)
    run(sources.iterate(numbers), out, storage, batches=5)
    assert taken(out) == list(range(25))
    with mp.testing.TestDriver(app_over(sources.iterate(numbers), {}), storage=storage) as driver:
        assert dict(driver.state("sum").items()) == {k: sum(range(k, 25, 3)) for k in range(3)}


def test_a_batch_that_is_read_again_has_the_same_items():
    source = sources.iterate(numbers)
    first, second = Split("0", 0, 10), Split("0", 10, 20)
    read = [[chunk.rows for chunk in source.read(split)] for split in (first, second, first, second, second)]
    assert read == [[[*range(10)]], [[*range(10, 20)]], [[*range(10)]], [[*range(10, 20)]], [[*range(10, 20)]]]


def test_an_iterator_that_has_ended_is_asked_again_by_the_next_run(storage):
    items, out = [1, 2], {}
    source = sources.iterate(lambda: iter(list(items)))
    run(source, out, storage, batches=1)
    items += [3]
    run(source, out, storage, batches=1)
    assert taken(out) == [1, 2]
    run(sources.iterate(lambda: iter(list(items))), out, storage, batches=2)
    assert taken(out) == [1, 2, 3]


def test_a_generator_that_is_no_longer_read_is_closed():
    closed = []

    def watched():
        try:
            yield from range(100)
        finally:
            closed.append(True)

    source = sources.iterate(watched)
    list(source.read(Split("0", 0, 10)))
    assert not closed
    list(source.read(Split("0", 50, 60)))  # by a process that has come to another place
    assert closed == [True]


def test_an_exception_ends_the_run_with_the_item_and_the_traceback(storage):
    def broken():
        yield from range(12)
        raise ValueError("no such page")

    out = {}
    with pytest.raises(
        InvalidUse, match="iterate\\(broken\\): after 12 items it raised ValueError: no such page"
    ) as told:
        run(sources.iterate(broken), out, storage, batches=2)
    assert "in broken" in str(told.value)
    assert taken(out) == list(range(10))


def test_a_function_that_raises_ends_the_run(storage):
    def broken():
        raise KeyError("token")

    with pytest.raises(InvalidUse, match="iterate\\(broken\\): the function raised KeyError: 'token'"):
        run(sources.iterate(broken), {}, storage, batches=1)


def test_items_before_an_unavailable_one_are_a_batch():
    is_up = []

    def paged(start):
        for n in range(start, 8):
            if n == 5 and not is_up:
                raise Unavailable("the next page is not there yet", retry_after=1)
            yield n

    source = sources.iterate(paged)
    [chunk] = source.read(Split("0", 0, 10))
    assert (chunk.rows, chunk.position) == ([0, 1, 2, 3, 4], {"n": 5})
    with pytest.raises(Unavailable, match="not there yet"):
        list(source.read(Split("0", 5, 15)))
    is_up.append(True)
    [chunk] = source.read(Split("0", 5, 15))
    assert chunk.rows == [5, 6, 7]
    assert source.plan({"0": chunk.position}, LIMIT, 0.0) == []


def test_fewer_items_than_were_read_are_an_error():
    with pytest.raises(InvalidUse, match="expected the 30 items that were read before, and there are 25"):
        list(sources.iterate(numbers).read(Split("0", 30, 40)))


def test_one_iterator_for_all_calls_is_an_error():
    once = iter(range(25))
    source = sources.iterate(lambda: once)
    list(source.read(Split("0", 0, 10)))
    with pytest.raises(InvalidUse, match="expected the 20 items that were read before, and there are 15"):
        list(source.read(Split("0", 20, 30)))


def test_a_rebuild_of_items_that_are_gone_is_an_error():
    source = sources.iterate(numbers)
    [split] = source.plan_to({"0": {"n": 20}}, {"0": {"n": 30}}, LIMIT, 0.0)
    [chunk] = source.read(split)
    with pytest.raises(InvalidUse, match="expected the 30 items that were read before, and there are 25"):
        source.plan_to({"0": chunk.position}, {"0": {"n": 30}}, LIMIT, 0.0)


@pytest.mark.parametrize(
    ("f", "message"),
    [
        (numbers(), r"expected a function that returns an iterator, got a generator, which can be read only once"),
        ([1, 2], r"iterate\(f\): expected a function, got \[1, 2\]"),
        (lambda page: iter(()), r"expected a function of no arguments, got <lambda>\(page\), which takes 1"),
    ],
)
def test_what_is_no_function_of_an_iterator_is_refused(f, message):
    with pytest.raises(InvalidUse, match=message):
        sources.iterate(f)


@pytest.mark.parametrize("made", [None, 7, "text", {"a": 1}])
def test_a_function_that_returns_no_iterator_is_refused(made):
    with pytest.raises(InvalidUse, match=f"expected a function that returns an iterator, got {type(made).__name__}"):
        list(sources.iterate(lambda: made).read(Split("0", 0, 10)))
