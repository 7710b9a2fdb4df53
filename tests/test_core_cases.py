"""The conformance cases that need no time, each by its number, and other instances of the same rules."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate, pairwise
from typing import Any

import pytest
from ledger_reader import changes, commits, ledger, paths
from outside import Calls

import millpond as mp
from millpond.storage import open_storage
from millpond.testing import Crashed, TestDriver
from millpond.testing.faults import FaultyStorage

AGES = [21, 12, 3, 64, 53, 52, 24, 35, 49, 37, 15, 22, 83, 60, 35]
STEPS = ["plan", "compute", "commit", "deliver", "acknowledge", "tidy"]


def counted(key, row, n):
    return n + 1, n + 1


def summed(key, row, total):
    return total + row["value"], total + row["value"]


# --- 5 ---


def two_counts(*, second: bool = True, sink: str = "counts", emit: Any = None) -> mp.App:
    app = mp.App("ages")
    ages = app.stream("ages", mp.sources.rows([])).key_by(all=lambda row: "all")
    ages.stateful_map("count", emit or counted, initial=0).to(sink, mp.sinks.memory())
    if second:
        ages.stateful_map("other", counted, initial=0)
    return app


@pytest.mark.parametrize("sink", ["counts", "renamed"])
def test_case_5_a_changed_app_resumes_and_reprocesses_nothing(sink):
    calls = Calls()

    def watched(key, row, n):
        calls.append(row)
        return counted(key, row, n)

    with TestDriver(two_counts()) as driver:
        driver.send("ages", AGES)
        assert driver.state("count").get("all") == 15
        assert driver.state("other").get("all") == 15
        driver.restart(two_counts(second=False, sink=sink, emit=watched))
        assert calls == []
        assert driver.state("count").get("all") == 15
        assert driver.state("other").get("all") == 15, "a step that is gone keeps its state"
        assert driver.output(sink) == (list(range(1, 16)) if sink == "counts" else [])
        driver.send("ages", [1])
        assert calls == [1]
        assert driver.state("count").get("all") == 16
        assert driver.output(sink)[-1:] == [16]
        assert driver.state("other").get("all") == 15, "also after a batch of the program without it"


def test_case_5_a_step_that_comes_back_goes_on_with_the_state_it_had():
    with TestDriver(two_counts()) as driver:
        driver.send("ages", AGES)
        driver.restart(two_counts(second=False))
        driver.send("ages", [1, 2])
        driver.restart(two_counts(), lose_replicas=True)
        driver.send("ages", [3])
        assert driver.state("count").get("all") == 18
        assert driver.state("other").get("all") == 16


# --- 6 ---


def picky(n):
    if n % 2 == 0 or n == 5:
        raise ValueError(f"not {n}")
    return n


GOOD = [1, 3, 7, 9, 11, 13, 15, 17, 19]
BAD = [0, 2, 4, 5, 6, 8, 10, 12, 14, 16, 18]


@pytest.mark.parametrize("batch_rows", [1, 7, 20])
@pytest.mark.parametrize("where", ["before the key", "after the key", "in the step"])
def test_case_6_errors_go_to_the_dead_letters(where, batch_rows):
    app = mp.App("errors")
    numbers = app.stream("numbers", mp.sources.rows([]), on_error="dead-letter")
    if where == "before the key":
        out: Any = numbers.map(picky)
    elif where == "after the key":
        out = numbers.key_by(parity=lambda n: n % 2).map(picky)
    else:
        out = numbers.key_by(parity=lambda n: n % 2).stateful_map("s", lambda k, n, s: (picky(n), n), initial=0)
    out.to("out", mp.sinks.memory())
    app.dead_letters.to("dead", mp.sinks.memory())
    with TestDriver(app) as driver:
        for start in range(0, 20, batch_rows):
            driver.send("numbers", list(range(start, min(20, start + batch_rows))))
        assert driver.output("out") == GOOD
        letters = driver.output("dead")
        assert [letter["row"] for letter in letters] == BAD
        for letter in letters:
            n = letter["row"]
            assert set(letter) == {"row", "key", "step", "error", "traceback", "batch"}
            assert letter["key"] == (None if where == "before the key" else n % 2)
            assert letter["error"] == f"ValueError: not {n}"
            assert letter["step"] == ("s" if where == "in the step" else "map")
            assert letter["batch"] == 1 + n // batch_rows
            assert 'raise ValueError(f"not {n}")' in letter["traceback"]
        if where == "in the step":
            assert dict(driver.state("s").items()) == {1: 19}, "a row that fails changes no state"


# --- 7 ---


@pytest.mark.parametrize("partitions", [1, 2, 3])
def test_case_7_count_per_group(partitions):
    ages = [21, 21, 21, 64, 37, 52, 24, 35, 24, 37, 15, 22, 83, 83, 15]
    app = mp.App("groups", partitions=partitions)
    rows = app.stream("people", mp.sources.rows([])).key_by("age")
    rows.aggregate("count", n=mp.count()).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("people", [{"age": age} for age in ages])
        found = {age: value["n"] for age, value in driver.state("count").items()}
        assert found == {21: 3, 64: 1, 37: 2, 52: 1, 24: 2, 35: 1, 15: 2, 22: 1, 83: 2}
        running: Counter[int] = Counter()
        expected = []
        for age in ages:
            running[age] += 1
            expected.append({"age": age, "n": running[age]})
        assert driver.output("out") == expected


# --- 15 ---


def sums(partitions: int, seen: list[Any] | None = None) -> mp.App:
    def watched(key, row, total):
        if seen is not None:
            seen.append(row)
        return summed(key, row, total)

    app = mp.App("sums", partitions=partitions)
    rows = app.stream("rows", mp.sources.rows([])).key_by("key")
    rows.stateful_map("sum", watched, initial=0).to("sums", mp.sinks.memory())
    return app


@pytest.mark.parametrize("crash", [None, *STEPS])
@pytest.mark.parametrize("partitions", [1, 2, 5])
def test_case_15_recovery_equals_no_crash(partitions, crash):
    seen = Calls()
    rows = [{"key": key, "value": 10} for key in ("p", "p", "q", "p", "q", "p")]
    with TestDriver(sums(partitions, seen)) as driver:
        for row in rows[:-1]:
            driver.send("rows", [row])
        if crash is None:
            driver.send("rows", rows[-1:])
        else:
            driver.crash(at=crash, when="after")
            with pytest.raises(Crashed):
                driver.send("rows", rows[-1:])
        before = len(seen)
        driver.restart(lose_replicas=True)
        # What was committed is not computed again; what was not, is, once.
        assert len(seen) - before == (1 if crash in ("plan", "compute") else 0)
        assert dict(driver.state("sum").items()) == {"p": 40, "q": 20}
        assert driver.output("sums") == [10, 20, 10, 30, 20, 40]


# --- 16 ---


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("how", ["the put fails", "the driver dies before it", "the driver dies after the segments"])
def test_case_16_a_failed_commit_leaves_nothing(how, partitions):
    storage = FaultyStorage(open_storage("memory://"))
    first = [{"key": f"key{n}", "value": n} for n in (1, 2, 3)]
    second = [{"key": f"key{n - 3}", "value": n} for n in (4, 5, 6)]
    with TestDriver(sums(partitions), storage=storage) as driver:
        driver.send("rows", first)
        files = paths(storage, "sums/steps")
        if how == "the put fails":
            for _ in range(5):
                storage.fail_put("*/ledger/*", how="before")
            with pytest.raises(mp.errors.Unavailable, match="nothing was written"):
                driver.send("rows", second)
        else:
            driver.crash(*("commit", "before") if "before" in how else ("compute", "after"))
            with pytest.raises(Crashed):
                driver.send("rows", second)
        assert len(paths(storage, "sums/steps")) > len(files), "the segments of the failed batch were written"
        expected = {"key1": 1, "key2": 2, "key3": 3}
        assert dict(driver.state("sum").items()) == expected
        assert driver.output("sums") == [1, 2, 3]
        # Someone who comes with no replica at all sees the same.
        with TestDriver(sums(partitions), storage=storage) as other:
            assert dict(other.state("sum").items()) == expected


def test_case_16_the_rows_of_a_failed_commit_count_once_when_it_succeeds():
    storage = FaultyStorage(open_storage("memory://"))
    with TestDriver(sums(2), storage=storage) as driver:
        driver.send("rows", [{"key": "a", "value": 1}])
        for _ in range(5):
            storage.fail_put("*/ledger/*", how="full")
        with pytest.raises(mp.errors.Unavailable, match="the disk is full"):
            driver.send("rows", [{"key": "a", "value": 4}])
        driver.send("rows", [{"key": "a", "value": 7}])
        assert driver.state("sum").get("a") == 12
        assert driver.output("sums") == [1, 5, 12]
        driver.restart(lose_replicas=True)
        assert driver.state("sum").get("a") == 12
        assert driver.output("sums") == [1, 5, 12]


# --- 17 ---


@pytest.mark.parametrize("partitions", [1, 2])
def test_case_17_output_once(partitions):
    with TestDriver(sums(partitions)) as driver:
        driver.crash(at="deliver", when="during")
        with pytest.raises(Crashed):
            driver.send("rows", [{"key": "a", "value": 1}, {"key": "a", "value": 2}, {"key": "a", "value": 3}])
        assert driver.output("sums") == [1, 3], "the sink has taken two"
        driver.restart()
        assert driver.output("sums") == [1, 3, 6]


def test_case_17_a_function_sink_sees_one_id_and_the_same_rows_twice_when_it_dies_half_way():
    deliveries: list[tuple[str, list[Any]]] = []

    def dies_once(rows, delivery):
        deliveries.append((delivery.id, list(rows)))
        if len(deliveries) == 1:
            raise Crashed("deliver", "during")

    app = mp.App("ids")
    stamped = app.stream("rows", mp.sources.rows([])).map(lambda n: {"n": n, "luck": object.__hash__(object())})
    stamped.to("out", mp.sinks.function(dies_once))
    with TestDriver(app) as driver:
        with pytest.raises(Crashed):
            driver.send("rows", [1, 2, 3])
        driver.restart(lose_replicas=True)
        driver.send("rows", [4])
    assert len(deliveries) == 3
    assert deliveries[0] == deliveries[1], "the same id and the same rows, though the function is not repeatable"
    assert deliveries[2][0] != deliveries[0][0]


# --- 18 ---


@pytest.mark.parametrize("refusals", [1, 4])
@pytest.mark.parametrize("retry_after", [1, None])
def test_case_18_a_sink_that_is_busy_is_asked_again(refusals, retry_after):
    held: list[int] = []
    asked: list[float] = []

    def busy(rows, delivery):
        asked.append(driver.clock.now())
        if len(asked) <= refusals:
            raise mp.errors.Unavailable("too many rows", retry_after=retry_after)
        held.extend(rows)

    app = mp.App("busy")
    app.stream("rows", mp.sources.rows([])).to("out", mp.sinks.function(busy))
    with TestDriver(app) as driver:
        driver.send("rows", list(range(10)))
        assert held == list(range(10))
        waits = [after - before for before, after in pairwise(asked)]
        assert len(waits) == refusals
        if retry_after is not None:
            assert waits == pytest.approx([retry_after] * refusals), "as long as it asked for"
        else:
            assert all(later > earlier for earlier, later in pairwise(waits)), "longer each time"
        driver.send("rows", [10])
        assert held == list(range(11))


def test_case_18_a_sink_that_is_busy_does_not_get_the_next_batch_first():
    log: list[Any] = []

    def busy(rows, delivery):
        log.append((delivery.batch, len(log) == 0))
        if len(log) == 1:
            raise mp.errors.Unavailable("later", retry_after=1)

    app = mp.App("busy")
    app.stream("rows", mp.sources.rows([])).to("out", mp.sinks.function(busy))
    with TestDriver(app) as driver:
        driver.send("rows", [1])
        driver.send("rows", [2])
    assert [batch for batch, _ in log] == [1, 1, 2]


# --- 22 ---


@pytest.mark.parametrize("batch_rows", [1, 9, 100])
@pytest.mark.parametrize("partitions", [1, 2, 3])
def test_case_22_stateful_map_by_parity(partitions, batch_rows):
    app = mp.App("parity", partitions=partitions)
    numbers = app.stream("numbers", mp.sources.rows([])).key_by(parity=lambda n: n % 2)
    numbers.stateful_map("sum", lambda key, n, total: (total + n, total + n), initial=0).to("sums", mp.sinks.memory())
    with TestDriver(app) as driver:
        for start in range(0, 100, batch_rows):
            driver.send("numbers", list(range(start, min(100, start + batch_rows))))
        expected = [0] * 100
        expected[0::2] = accumulate(range(0, 100, 2))
        expected[1::2] = accumulate(range(1, 100, 2))
        assert driver.output("sums") == expected
        assert expected[:8] == [0, 1, 2, 4, 6, 9, 12, 16]
        assert expected[-2:] == [2450, 2500]


# --- 23 ---


def joined(key, word, text):
    text += word
    return text, None if len(text) >= 6 else text


@pytest.mark.parametrize("batch_rows", [1, 2, 5])
def test_case_23_returning_no_state_drops_it(batch_rows):
    words = ["foo", "bar", "hello", "world", "baz"]
    app = mp.App("words")
    keyed = app.stream("words", mp.sources.rows([])).key_by(length=len)
    keyed.stateful_map("text", joined, initial="").to("out", mp.sinks.memory())
    storage = open_storage("memory://")
    with TestDriver(app, storage=storage) as driver:
        for start in range(0, 5, batch_rows):
            driver.send("words", words[start : start + batch_rows])
        assert driver.output("out") == ["foo", "foobar", "hello", "helloworld", "baz"]
        assert dict(driver.state("text").items()) == {3: "baz"}
        driver.restart(lose_replicas=True)
        assert dict(driver.state("text").items()) == {3: "baz"}
        if batch_rows == 1:
            assert [(m.value, m.deleted) for m in driver.state("text").history(5)] == [("hello", False), (None, True)]


def test_case_23_the_initial_state_of_a_dropped_key_is_made_anew():
    made: list[int] = []

    def fresh():
        made.append(len(made))
        return [len(made)]

    app = mp.App("fresh")
    keyed = app.stream("rows", mp.sources.rows([])).key_by(all=lambda row: 0)
    keyed.stateful_map("s", lambda k, row, s: (list(s), None if row == "drop" else [*s, row]), initial=fresh).to(
        "out", mp.sinks.memory()
    )
    with TestDriver(app) as driver:
        driver.send("rows", ["a", "drop", "b"])
        driver.send("rows", ["drop"])
        driver.send("rows", ["c"])
        assert driver.output("out") == [[1], [1, "a"], [2], [2, "b"], [3]]


# --- 25 ---


@pytest.mark.parametrize("lose_replicas", [False, True])
def test_case_25_source_and_state_are_restored(lose_replicas):
    app = mp.App("count")
    numbers = app.stream("numbers", mp.sources.rows([])).key_by(all=lambda n: 0)
    numbers.stateful_map("seen", lambda k, n, s: (n, [*s, n]), initial=[]).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        for n in range(11):
            driver.send("numbers", [n])
        first = driver.output("out")
        driver.restart(lose_replicas=lose_replicas)
        assert driver.output("out") == first == list(range(11))
        for n in range(11, 16):
            driver.send("numbers", [n])
        assert driver.output("out")[11:] == list(range(11, 16))
        assert driver.state("seen").get(0) == list(range(16))


# --- 26 ---


def set_then_drop(kind: str, app: mp.App) -> None:
    keyed = app.stream("rows", mp.sources.rows([])).key_by(all=lambda row: "k")
    if kind == "stateful_map":
        keyed.stateful_map("s", lambda k, row, s: (None, None if row == "delete" else row), initial=None)
    else:

        def f(row, state):
            if row == "delete":
                state.delete("x")
            elif row == "both":
                state.set("x", 1)
                state.delete("x")
            else:
                state.set("x", row)

        keyed.apply("s", f)


@pytest.mark.parametrize("kind", ["stateful_map", "apply"])
@pytest.mark.parametrize("there_before", [False, True])
def test_case_26_set_and_delete_in_one_batch_is_one_delete(kind, there_before):
    app = mp.App("store")
    set_then_drop(kind, app)
    storage = open_storage("memory://")
    with TestDriver(app, storage=storage) as driver:
        if there_before:
            driver.send("rows", [7])
        driver.send("rows", ["new", "delete"])
        cell = "" if kind == "stateful_map" else "v:x"
        assert changes(storage, "store", "s") == [('"k"', cell, None, True)]
        assert driver.state("s").get("k") is None
        driver.restart(lose_replicas=True)
        assert driver.state("s").get("k") is None


def test_case_26_set_and_delete_in_one_call_is_one_delete():
    app = mp.App("store")
    set_then_drop("apply", app)
    storage = open_storage("memory://")
    with TestDriver(app, storage=storage) as driver:
        driver.send("rows", ["both"])
        assert changes(storage, "store", "s") == [('"k"', "v:x", None, True)]


@pytest.mark.parametrize("value", [object(), lambda: 0, {"deep": [1, {2: object()}]}, "lone \ud800"])
@pytest.mark.parametrize("kind", ["stateful_map", "apply", "list", "map"])
def test_case_26_a_value_that_cannot_be_encoded_stops_the_batch_and_nothing_of_it_is_written(kind, value):
    app = mp.App("store")
    keyed = app.stream("rows", mp.sources.rows([])).key_by("key")
    if kind == "stateful_map":
        keyed.stateful_map("s", lambda k, row, s: (row, value if row["bad"] else 1), initial=0).to(
            "out", mp.sinks.memory()
        )
    else:

        def f(row, state):
            kept = value if row["bad"] else 1
            if kind == "apply":
                state.set("x", kept)
            elif kind == "list":
                state.list("x").append(kept)
            else:
                state.map("x")["a"] = kept
            return row

        keyed.apply("s", f).to("out", mp.sinks.memory())
    storage = open_storage("memory://")
    with TestDriver(app, storage=storage) as driver:
        driver.send("rows", [{"key": "good", "bad": False}])
        before = ledger(storage, "store")
        kept = dict(driver.state("s").items())
        with pytest.raises(mp.errors.StepFailed) as caught:
            driver.send("rows", [{"key": "good", "bad": False}, {"key": "poor", "bad": True}])
        text = str(caught.value)
        assert "step 's', batch 2" in text
        assert "cannot" in text or "surrogate" in text
        assert ledger(storage, "store") == before
        assert len(commits(storage, "store")) == 1
        assert paths(storage, "store/steps") == [
            pointer["path"] for parts in before[-1]["segments"]["s"].values() for pointer in parts
        ], "not even a segment that nobody names"
        assert dict(driver.state("s").items()) == kept
        assert driver.output("out") == [{"key": "good", "bad": False}]
