"""What happens to a row whose function raises, in every verb; rows that cannot be keyed or written down."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from datetime import datetime, tzinfo
from typing import Any

import msgspec
import pytest
from ledger_reader import changes
from outside import Calls, Outside
from small_programs import PARTITIONS, nth, piped

import millpond as mp
from millpond.storage import open_storage
from millpond.testing import TestDriver

VERBS: dict[str, Callable[[Any, Callable[[Any], Any]], Any]] = {
    "map": lambda s, f: s.map(f),
    "filter": lambda s, f: s.filter(lambda n: f(n) is not None),
    "flat_map": lambda s, f: s.flat_map(lambda n: [f(n)]),
    "inspect": lambda s, f: s.inspect(f),
    "branch": lambda s, f: s.branch(all=lambda n: f(n) is not None)["all"],
    "key_by": lambda s, f: s.key_by(k=f),
    "stateful_map": lambda s, f: s.key_by(k=lambda n: 0).stateful_map("step", lambda k, n, s: (f(n), n)),
    "apply": lambda s, f: s.key_by(k=lambda n: 0).apply("step", lambda n, state: f(n)),
    "flat_apply": lambda s, f: s.key_by(k=lambda n: 0).flat_apply("step", lambda n, state: [f(n)]),
    "update": lambda s, f: s.key_by(k=lambda n: 0).update("step", lambda n, state: f(n)),
    "stateful_filter": lambda s, f: s.key_by(k=lambda n: 0).stateful_filter("step", lambda n, state: f(n) is not None),
    "deduplicate": lambda s, f: s.key_by(k=lambda n: 0).deduplicate("step", by=f),
    "aggregate": lambda s, f: s.key_by(k=lambda n: 0).aggregate("step", last=mp.last(f)).map(lambda row: row["last"]),
}  # fmt: skip
EVERY_VERB = pytest.mark.parametrize("verb", VERBS)
STEPS = {"stateful_map", "apply", "flat_apply", "update", "stateful_filter", "deduplicate", "aggregate"}


def not_two(n):
    if n == 2:
        raise ValueError("it is two")
    return n


@EVERY_VERB
def test_stop_ends_the_run_and_names_step_key_row_and_batch(verb):
    app = mp.App("errors")
    VERBS[verb](app.stream("rows", mp.sources.rows([])), not_two).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [1])
        with pytest.raises(mp.errors.StepFailed) as caught:
            driver.send("rows", [3, 2, 4])
        error = caught.value
        assert (error.row, error.batch, error.error) == (2, 2, "ValueError: it is two")
        assert error.step == ("step" if verb in STEPS else "key_by(k)" if verb == "key_by" else verb)
        assert error.key == (0 if verb in STEPS else None)
        assert "not_two" in error.traceback
        assert "/millpond/" not in error.traceback, "the frames of the library say nothing to the user"
        assert driver.output("out") == [1], "nothing of the batch counts"


@EVERY_VERB
def test_skip_lets_the_row_go(verb):
    assert piped(lambda s: VERBS[verb](s, not_two), [1, 2, 3], on_error="skip") == [1, 3]


@EVERY_VERB
def test_dead_letter_keeps_the_row(verb):
    app = mp.App("errors")
    VERBS[verb](app.stream("rows", mp.sources.rows([]), on_error="dead-letter"), not_two).to("out", mp.sinks.memory())
    app.dead_letters.to("dead", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [1, 2, 3])
        assert driver.output("out") == [1, 3]
        assert [(letter["row"], letter["error"]) for letter in driver.output("dead")] == [(2, "ValueError: it is two")]


@EVERY_VERB
@pytest.mark.parametrize("failures", [1, 2, 3])
def test_retry_calls_again_after_growing_pauses_and_then_gives_up(verb, failures):
    calls = Calls()
    world: Any = Outside()

    def flaky(n):
        if n == 2:
            calls.append(world.clock.now())
            if len(calls) <= failures:
                raise ValueError("not yet")
        return n

    app = mp.App("errors")
    rows = app.stream("rows", mp.sources.rows([]), on_error=mp.retry(2, "1s", then="skip"))
    VERBS[verb](rows, flaky).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        world.clock = driver.clock
        driver.send("rows", [1, 2, 3])
        assert driver.output("out") == ([1, 2, 3] if failures <= 2 else [1, 3])
        pauses = [after - before for before, after in itertools.pairwise(calls)]
        assert pauses == pytest.approx([1.0, 2.0][: min(failures, 2)])


def test_a_step_has_a_policy_of_its_own_or_that_of_its_stream():
    app = mp.App("errors")
    rows = app.stream("rows", mp.sources.rows([]), on_error="dead-letter").key_by(k=lambda n: 0)
    rows.apply("own", lambda n, state: not_two(n), on_error="skip").to("own out", mp.sinks.memory())
    rows.apply("inherited", lambda n, state: not_two(n)).to("inherited out", mp.sinks.memory())
    app.dead_letters.to("dead", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [1, 2])
        assert [letter["step"] for letter in driver.output("dead")] == ["inherited"]


@pytest.mark.parametrize("verb", sorted(STEPS))
def test_a_row_that_fails_changes_no_state(verb):
    app = mp.App("errors")
    VERBS[verb](app.stream("rows", mp.sources.rows([]), on_error="skip"), not_two)
    storage = open_storage("memory://")
    with TestDriver(app, storage=storage) as driver:
        driver.send("rows", [2, 2])
        assert changes(storage, "errors", "step") == []
        assert driver.state("step").get(0) is None


@pytest.mark.parametrize("row", [{"other": 1}, {}, 7, None, "text"])
def test_a_row_without_the_field_that_its_key_needs(row):
    app = mp.App("missing")
    rows = app.stream("rows", mp.sources.rows([]), on_error="dead-letter")
    rows.key_by("customer").stateful_map("n", nth, initial=0)
    app.dead_letters.to("dead", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [{"customer": "a"}, row, {"customer": "b"}])
        assert dict(driver.state("n").items()) == {"a": 1, "b": 1}
        letter = driver.output("dead")[0]
        assert letter["row"] == row
        assert letter["step"] == "key_by(customer)"
        assert letter["error"].startswith("the row has no field 'customer'; it ")


def test_a_missing_field_stops_the_run_in_words():
    with pytest.raises(mp.errors.StepFailed, match=r"the row has no field 'customer'; it has: 'client', 'n'"):
        piped(lambda s: s.key_by("customer").stateful_map("n", nth, initial=0), [{"client": 1, "n": 2}])


@pytest.mark.parametrize(
    "key, words",
    [
        (None, "a key cannot be None"),
        (1.5, "the float 1.5"),
        ([1], r"the list \[1\]; use a tuple"),
        ({"a": 1}, "of the type dict"),
        ((1, None), "a key cannot be None"),
        ("\ud800", "lone surrogate"),
    ],
)
@pytest.mark.parametrize("by", ["field", "function", "two fields"])
def test_what_cannot_be_a_key_is_refused_in_words(by, key, words):
    def keyed(s):
        if by == "field":
            return s.key_by("k")
        return s.key_by("k", "n") if by == "two fields" else s.key_by(key=lambda row: row["k"])

    rows = [{"k": "good", "n": 1}, {"k": key, "n": 2}]
    with pytest.raises(mp.errors.StepFailed, match=words):
        piped(lambda s: keyed(s).stateful_map("n", nth, initial=0), rows)
    found = piped(lambda s: keyed(s).stateful_map("n", lambda k, row, s: (row["n"], 1)), rows, on_error="skip")
    assert found == [1]


@pytest.mark.parametrize("value", [object(), "lone \ud800", {"deep": [lambda: 0]}])
@pytest.mark.parametrize("where", ["to a sink", "to a key", "from a step to a sink", "from a step to a key"])
def test_a_row_that_cannot_be_encoded_fails_alone(where, value):
    app = mp.App("rows", partitions=2)
    rows = app.stream("rows", mp.sources.rows([]), on_error="dead-letter")
    if "from a step" in where:
        rows = rows.key_by(k=lambda n: n).stateful_map(
            "step", lambda k, n, s: ({"k": n, "v": value if n == 2 else n}, 1)
        )
    else:
        rows = rows.map(lambda n: {"k": n, "v": value if n == 2 else n})
    if "key" in where:
        rows = rows.key_by("k").stateful_map("last", lambda k, row, s: (row, 1))
    rows.to("out", mp.sinks.memory())
    app.dead_letters.to("dead", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [1, 2, 3])
        assert driver.output("out") == [{"k": 1, "v": 1}, {"k": 3, "v": 3}]
        letters = driver.output("dead")
        assert len(letters) == 1
        places = r"0x[0-9a-f]+"  # the function has a copy of the value
        assert re.sub(places, "", letters[0]["row"]) == re.sub(places, "", repr({"k": 2, "v": value}))
        assert letters[0]["step"] == ("key_by" if "key" in where else "out")


def test_a_row_that_cannot_be_encoded_stops_the_run_in_words():
    with pytest.raises(mp.errors.StepFailed, match="cannot store") as caught:
        piped(lambda s: s.map(lambda n: {"n": [object()]}), [1])
    assert caught.value.step == "out"


class OddZone(tzinfo):
    def utcoffset(self, when):
        raise ValueError("who knows")


@pytest.mark.parametrize(
    "value",
    [object(), "lone \ud800", {"deep": [lambda: 0]}, datetime(2024, 1, 1, tzinfo=OddZone())],  # type: ignore[abstract]
)
@pytest.mark.parametrize("verb", ["stateful_map", "apply", "list", "map"])
@pytest.mark.parametrize("policy", ["skip", "dead-letter", "stop"])
def test_a_state_that_cannot_be_encoded_fails_with_the_row_that_made_it(policy, verb, value):
    app = mp.App("state")
    rows = app.stream("rows", mp.sources.rows([]), on_error=policy).key_by(k=lambda n: 0)

    def f(n, state):
        kept = value if n == 2 else n
        if verb == "apply":
            state.set("x", kept)
        elif verb == "list":
            state.list("x").append(kept)
        else:
            state.map("x")[n] = kept
        return n

    if verb == "stateful_map":
        rows.stateful_map("s", lambda k, n, s: (n, value if n == 2 else n), initial=0).to("out", mp.sinks.memory())
    else:
        rows.apply("s", f).to("out", mp.sinks.memory())
    app.dead_letters.to("dead", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [7])
        if policy == "stop":
            with pytest.raises(mp.errors.StepFailed) as caught:
                driver.send("rows", [1, 2, 3])
            assert (caught.value.step, caught.value.key, caught.value.row) == ("s", 0, 2)
            return
        driver.send("rows", [1, 2, 3])
        assert driver.output("out") == [7, 1, 3]
        assert [letter["row"] for letter in driver.output("dead")] == ([2] if policy == "dead-letter" else [])
        kept = {"stateful_map": 3, "apply": {"x": 3}, "list": {"x": [7, 1, 3]}, "map": {"x": {7: 7, 1: 1, 3: 3}}}
        assert driver.state("s").get(0) == kept[verb]


# --- dead letters ---


class Item(msgspec.Struct):
    customer: str
    amount: int


@PARTITIONS
def test_dead_letters_of_every_stage_meet_in_one_stream_which_is_a_stream_like_any_other(partitions):
    app = mp.App("letters", partitions=partitions)
    rows = app.stream("rows", mp.sources.rows([]), type=Item, on_error="dead-letter")

    def fail_on(amount):
        def f(row):
            if row.amount == amount:
                raise ValueError(f"amount {amount}")
            return row

        return f

    one = rows.map(fail_on(1)).key_by("customer").map(fail_on(2))
    two = one.stateful_map("two", lambda k, row, s: (fail_on(3)(row), 1))
    three = two.key_by(k=lambda row: fail_on(4)(row).amount).apply("three", lambda row, state: fail_on(5)(row))
    three.to("out", mp.sinks.memory())
    letters = app.dead_letters
    letters.to("dead", mp.sinks.memory())
    letters.key_by("step").aggregate("per step", n=mp.count()).to("counts", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [{"customer": f"c{n}", "amount": n % 7} for n in range(14)] + [{"customer": 1}])
        assert sorted(row.amount for row in driver.output("out")) == [0, 0, 6, 6]
        steps = [letter["step"] for letter in driver.output("dead")]
        assert sorted(steps) == ["key_by(k)"] * 2 + ["map"] * 4 + ["rows"] + ["three"] * 2 + ["two"] * 2
        assert {step: v["n"] for step, v in driver.state("per step").items()} == {
            "map": 4, "two": 2, "key_by(k)": 2, "three": 2, "rows": 1,
        }  # fmt: skip
        assert len(driver.output("counts")) == 11


def test_letters_that_nobody_reads_are_counted_in_the_ledger_alone():
    app = mp.App("letters")
    app.stream("rows", mp.sources.rows([]), on_error="dead-letter").map(not_two).to("out", mp.sinks.memory())
    storage = open_storage("memory://")
    with TestDriver(app, storage=storage) as driver:
        driver.send("rows", [1, 2, 2])
        assert driver.output("out") == [1]
    from ledger_reader import commits

    assert commits(storage, "letters")[0]["skipped"] == {"map": 2}


@pytest.mark.parametrize("where", ["step", "retry", "union"])
def test_what_stands_behind_the_dead_letters_cannot_make_more_of_them(where):
    app = mp.App("letters")
    rows = app.stream("rows", mp.sources.rows([]), on_error="dead-letter")
    if where == "union":
        rows.union(app.dead_letters).map(not_two)
    else:
        policy: Any = "dead-letter" if where == "step" else mp.retry(1, then="dead-letter")
        app.dead_letters.key_by("step").apply("again", lambda row, state: row, on_error=policy)
    with pytest.raises(
        mp.errors.InvalidUse, match=r'what stands behind app\.dead_letters cannot have on_error="dead-letter"'
    ):
        TestDriver(app)


# --- functions that change their row and then fail ---

CHANGERS: dict[str, Callable[[Any, Callable[[Any], Any]], Any]] = {
    "map": lambda s, f: s.map(f),
    "filter": lambda s, f: s.filter(f),
    "flat_map": lambda s, f: s.flat_map(lambda row: [f(row)]),
    "inspect": lambda s, f: s.inspect(f),
    "keyed map": lambda s, f: s.key_by("k").map(f),
    "stateful_map": lambda s, f: s.key_by("k").stateful_map("s", lambda k, row, n: (f(row), n + 1), initial=0),
    "stateful_map of a list": lambda s, f: s.key_by("k").stateful_map("s", lambda k, r, n: (f(r), [*n, 1]), initial=[]),
    "apply": lambda s, f: s.key_by("k").apply("s", lambda row, state: f(row)),
    "update": lambda s, f: s.key_by("k").update("s", lambda row, state: f(row)),
    "stateful_filter": lambda s, f: s.key_by("k").stateful_filter("s", lambda row, state: f(row)),
}


@pytest.mark.parametrize("verb", CHANGERS)
def test_a_dead_letter_holds_the_row_as_it_was(verb):
    def f(row):
        row["n"] += 1
        row["tags"].append("changed")
        if row["bad"]:
            raise ValueError("half-way")
        return row

    app = mp.App("half")
    rows = app.stream("rows", mp.sources.rows([]), on_error="dead-letter")
    CHANGERS[verb](rows, f).to("out", mp.sinks.memory())
    app.dead_letters.to("dead", mp.sinks.memory())
    with TestDriver(app) as driver:
        for _ in range(2):
            driver.send("rows", [{"k": 1, "n": 1, "tags": [], "bad": bad} for bad in (False, True)])
        assert [letter["row"] for letter in driver.output("dead")] == [{"k": 1, "n": 1, "tags": [], "bad": True}] * 2
        assert driver.output("out") == [{"k": 1, "n": 2, "tags": ["changed"], "bad": False}] * 2


@pytest.mark.parametrize("verb", CHANGERS)
def test_a_row_is_tried_again_as_it_was(verb):
    calls = Calls()

    def flaky(row):
        row["n"] += 1
        calls.append(row["n"])
        if len(calls) in (1, 2, 4):
            raise ValueError("not yet")
        return row

    app = mp.App("again")
    rows = app.stream("rows", mp.sources.rows([]), on_error=mp.retry(3, "1s"))
    CHANGERS[verb](rows, flaky).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [{"k": 1, "n": 1}])
        driver.send("rows", [{"k": 1, "n": 1}])
        assert driver.output("out") == [{"k": 1, "n": 2}] * 2
        assert calls == [2, 2, 2, 2, 2]
