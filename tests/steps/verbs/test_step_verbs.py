"""The verbs that keep state: each one by what it lets through and what it keeps."""

from __future__ import annotations

import pytest
from ledger_reader import changes
from small_programs import PARTITIONS, applied, piped

import millpond as mp
from millpond.storage import open_storage
from millpond.testing import TestDriver

# --- stateful_map ---


def test_the_initial_state_is_copied_for_every_key():
    initial = {"rows": []}

    def f(key, row, state):
        state["rows"].append(row)
        return None, state

    app = mp.App("initial")
    app.stream("rows", mp.sources.rows([])).key_by(k=lambda n: n % 2).stateful_map("s", f, initial=initial)
    with TestDriver(app) as driver:
        driver.send("rows", [1, 2, 3])
        assert dict(driver.state("s").items()) == {1: {"rows": [1, 3]}, 0: {"rows": [2]}}
    assert initial == {"rows": []}


def test_an_output_that_is_none_is_not_emitted_and_other_false_values_are():
    outputs = [None, 0, "", [], False, {}]
    assert piped(
        lambda s: s.key_by(k=lambda i: 0).stateful_map("s", lambda k, i, n: (outputs[i], 1)), [0, 1, 2, 3, 4, 5]
    ) == [0, "", [], False, {}]


def test_an_output_does_not_change_when_the_state_does():
    def f(key, row, state):
        state.append(row)
        return state, state

    found = piped(lambda s: s.key_by(k=lambda n: 0).stateful_map("s", f, initial=list), [1, 2])
    assert found == [[1], [1, 2]]


def test_a_function_that_does_not_return_a_pair_is_told_so():
    with pytest.raises(mp.errors.StepFailed, match=r"expected \(output, state\), a tuple of two"):
        piped(lambda s: s.key_by(k=lambda n: 0).stateful_map("s", lambda k, n, s: n, initial=0), [1])


def test_an_error_of_the_users_that_speaks_of_unpacking_is_left_alone():
    class Odd(Exception):
        def __init__(self, one, two):
            super().__init__(f"cannot unpack {one} and {two}")

    def f(key, row, state):
        if row == 2:
            raise Odd(row, state)
        return row, row

    found = piped(lambda s: s.key_by(k=lambda n: 0).stateful_map("s", f, initial=0), [1, 2, 3], on_error="skip")
    assert found == [1, 3]


# --- apply, flat_apply, update, stateful_filter ---


def test_apply_emits_what_it_returns_unless_it_is_none():
    found = piped(lambda s: s.key_by(k=lambda n: 0).apply("a", lambda n, state: n or None), [0, 1, 2])
    assert found == [1, 2]


@pytest.mark.parametrize("give", [list, tuple, iter, lambda rows: (row for row in rows)])
def test_flat_apply_emits_all_of_an_iterable(give):
    found = piped(lambda s: s.key_by(k=lambda n: 0).flat_apply("f", lambda n, state: give([n] * n)), [2, 0, 1])
    assert found == [2, 2, 1]
    assert piped(lambda s: s.key_by(k=lambda n: 0).flat_apply("f", lambda n, state: None), [2]) == []


def test_a_generator_of_flat_apply_reads_and_writes_state_as_it_goes():
    def f(row, state):
        for _ in range(2):
            state.set("n", state.get("n", 0) + 1)
            yield state.get("n")

    assert applied(f, ["a", "b"], ["c"], verb="flat_apply")[0] == [1, 2, 3, 4, 5, 6]


def test_a_generator_that_fails_half_way_has_emitted_and_written_nothing():
    def f(row, state):
        state.set("n", state.get("n", 0) + 1)
        yield state.get("n")
        if row == "bad":
            raise ValueError(row)
        yield "end"

    app = mp.App("half")
    rows = app.stream("rows", mp.sources.rows([]), on_error="skip")
    rows.key_by(k=lambda row: 0).flat_apply("f", f).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", ["a", "bad", "b"])
        assert driver.output("out") == [1, "end", 2, "end"]
        assert driver.state("f").get(0) == {"n": 2}


def test_update_changes_the_row_in_place_whatever_it_returns():
    def f(row, state):
        row["n"] = state.get("n", 0)
        state.set("n", row["n"] + 1)
        return "ignored"

    assert applied(f, [{"a": 1}, {"a": 2}], verb="update")[0] == [{"a": 1, "n": 0}, {"a": 2, "n": 1}]


def test_an_update_that_fails_half_way_leaves_the_row_and_the_state_as_they_were():
    def f(row, state):
        row["seen"].append(1)
        state.set("n", state.get("n", 0) + 1)
        state.list("l").append(row["bad"])
        state.map("m")["x"] = 1
        if row["bad"]:
            raise ValueError("half-way")

    app = mp.App("half")
    rows = app.stream("rows", mp.sources.rows([]), on_error="dead-letter")
    rows.key_by("k").update("u", f).to("out", mp.sinks.memory())
    app.dead_letters.map(lambda letter: letter["row"]).to("dead", mp.sinks.memory())
    storage = open_storage("memory://")
    with TestDriver(app, storage=storage) as driver:
        driver.send("rows", [{"k": 1, "bad": True, "seen": []}])
        assert changes(storage, "half", "u") == []
        driver.send("rows", [{"k": 1, "bad": bad, "seen": []} for bad in (True, False, True)])
        assert driver.output("dead") == [{"k": 1, "bad": True, "seen": []}] * 3
        assert driver.output("out") == [{"k": 1, "bad": False, "seen": [1]}]
        assert driver.state("u").get(1) == {"n": 1, "l": [False], "m": {"x": 1}}


def test_stateful_filter_lets_the_row_go_on_when_it_is_true():
    def rising(row, state):
        last = state.get("last")
        state.set("last", row)
        return last is None or row > last

    assert applied(rising, [1, 3, 2], [2, 5], verb="stateful_filter")[0] == [1, 3, 5]


# --- deduplicate ---


@PARTITIONS
def test_deduplicate_lets_the_first_row_of_each_key_through(partitions):
    rows = [{"k": k, "n": n} for n, k in enumerate("abacab")]
    found = piped(lambda s: s.key_by("k").deduplicate("once"), rows, partitions=partitions)
    assert [row["n"] for row in found] == [0, 1, 3]


@pytest.mark.parametrize("by", ["id", lambda row: row["id"]])
def test_deduplicate_by_an_id_remembers_it_over_batches_and_restarts(by):
    app = mp.App("dedup", partitions=2)
    app.stream("rows", mp.sources.rows([])).key_by("card").deduplicate("once", by=by).to("out", mp.sinks.memory())
    rows = [{"card": card, "id": i, "n": n} for n, (card, i) in enumerate([("a", 1), ("a", "1"), ("b", 1), ("a", 1)])]
    with TestDriver(app) as driver:
        driver.send("rows", rows)
        driver.restart(lose_replicas=True)
        driver.send("rows", rows)
        assert [row["n"] for row in driver.output("out")] == [0, 1, 2]


def test_deduplicate_within_a_time_forgets_after_it():
    app = mp.App("dedup")
    rows = app.stream("rows", mp.sources.rows([]), timestamp="at").key_by("k")
    rows.deduplicate("once", within=10).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [{"k": 1, "at": at} for at in (0, 9, 10, 5, 19, 20)])
        assert [row["at"] for row in driver.output("out")] == [0, 10, 20]


def test_deduplicate_within_a_time_goes_by_the_clock_where_rows_have_no_time():
    app = mp.App("dedup")
    app.stream("rows", mp.sources.rows([])).key_by("k").deduplicate("once", within="10s").to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        for n in range(5):
            driver.send("rows", [{"k": 1, "n": n}])
            driver.advance("4s")
        assert [row["n"] for row in driver.output("out")] == [0, 3]


def test_deduplicate_within_a_duration_of_the_wrong_kind_says_so():
    def build(s):
        return s.key_by("k").deduplicate("once", within="10s")

    with pytest.raises(mp.errors.StepFailed, match="the stream's times are whole numbers, so expected a whole number"):
        piped(build, [{"k": 1, "at": 1}, {"k": 1, "at": 2}], timestamp="at")


# --- aggregate ---


@PARTITIONS
def test_aggregate_gives_an_output_per_row_with_the_keys_fields(partitions):
    def build(s):
        return s.key_by("k").aggregate("a", n=mp.count(), total=mp.sum("v"), most=mp.max("v"), all=mp.collect("v"))

    found = piped(build, [{"k": "a", "v": 2}, {"k": "b", "v": 5}, {"k": "a", "v": 1}], partitions=partitions)
    assert found == [
        {"k": "a", "n": 1, "total": 2, "most": 2, "all": [2]},
        {"k": "b", "n": 1, "total": 5, "most": 5, "all": [5]},
        {"k": "a", "n": 2, "total": 3, "most": 2, "all": [2, 1]},
    ]


def test_an_aggregate_that_fails_on_a_row_has_not_counted_it_in_any_part():
    app = mp.App("agg")
    rows = app.stream("rows", mp.sources.rows([]), on_error="skip").key_by("k")
    rows.aggregate("a", n=mp.count(), all=mp.collect("v"), total=mp.sum("v")).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [{"k": 1, "v": 1}, {"k": 1, "v": "x"}, {"k": 1}, {"k": 1, "v": 2}])
        assert driver.output("out")[-1] == {"k": 1, "n": 2, "all": [1, 2], "total": 3}
        assert driver.state("a").get(1) == {"n": 2, "all": [1, 2], "total": 3}


def test_an_aggregation_that_is_new_begins_now_and_leaves_the_others_alone():
    def app_with(**aggregations):
        app = mp.App("agg")
        app.stream("rows", mp.sources.rows([])).key_by("k").aggregate("a", **aggregations)
        return app

    with TestDriver(app_with(n=mp.count(), v=mp.sum("v"))) as driver:
        driver.send("rows", [{"k": 1, "v": 5}])
        driver.restart(app_with(n=mp.count(), v=mp.max("v"), low=mp.min("v")))
        driver.send("rows", [{"k": 1, "v": 3}])
        assert driver.state("a").get(1) == {"n": 2, "v": 3, "low": 3}
