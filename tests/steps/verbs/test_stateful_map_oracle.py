"""`stateful_map` against a plain loop: whatever rows do to the state, and whichever of them fail."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_reader import changes

import millpond as mp
from millpond.codec import Codec
from millpond.steps.verbs.stateful_map import MANY_KEYS
from millpond.storage import open_storage
from millpond.testing import TestDriver

PARTITIONS = 2
STATES = [0, 1, 2.5, True, "plain", "naïve ☂", b"bytes", Decimal("1.10"), [1], {"a": [2]}, (1, "b")]
VERBS = ["set", "keep", "drop", "mute", "grow", "spoil", "raise", "unpack", "flaky", "three", "one", "list", "foreign"]
LIKE_OURS = "not enough values to unpack (expected 2, got 1)"  # as Python says it of a tuple of one

row_strategy = st.tuples(st.integers(0, 3), st.sampled_from(VERBS), st.sampled_from(STATES))
batches_strategy = st.lists(st.lists(row_strategy, max_size=12), max_size=3)


class Function:
    """What the rows say: each names what its call does."""

    def __init__(self) -> None:
        self.tried: set[int] = set()

    def __call__(self, key: int, row: dict[str, Any], state: Any) -> Any:
        n, verb = row["n"], row["do"]
        if verb == "raise":
            raise KeyError(n)
        if verb == "unpack":
            raise ValueError(LIKE_OURS)
        if verb == "flaky" and n not in self.tried:
            self.tried.add(n)
            raise OSError("not yet")
        if verb in ("grow", "spoil") and isinstance(state, list):
            state.append(n)
        if verb == "spoil":
            raise KeyError(n)
        results = {
            "set": (n, row["value"]),
            "drop": (n, None),
            "mute": (None, state),
            "three": (n, state, 1),
            "one": (n,),
            "list": [n, state],
            "foreign": (n, object()),
        }
        return results.get(verb, (n, state))


class Oracle:
    """One row after the other, with copies of everything."""

    def __init__(self, initial: Any, attempts: int) -> None:
        self.initial, self.attempts, self.f = initial, attempts, Function()
        self.states: dict[int, Any] = {}
        self.outputs: list[Any] = []
        self.failed: list[tuple[int, str]] = []
        self.written: set[int] = set()  # the keys that the last batch has set or dropped
        self.before: dict[int, Any] = {}

    def batch(self, rows: list[dict[str, Any]]) -> None:
        self.before, self.written = copy.deepcopy(self.states), set()
        for row in rows:
            for attempt in range(self.attempts):
                try:
                    self._call(row["key"], copy.deepcopy(row))
                    break
                except Exception as error:
                    if attempt == self.attempts - 1:
                        self.failed.append((row["n"], blamed(type(error).__name__)))

    def _call(self, key: int, row: dict[str, Any]) -> None:
        first = self.initial() if callable(self.initial) else self.initial
        result = self.f(key, row, copy.deepcopy(self.states.get(key, first)))
        if type(result) is not tuple or len(result) != 2:
            raise mp.errors.InvalidUse("no pair")
        output, new = result
        if new is not None:
            Codec().encode(new)
            self.states[key] = copy.deepcopy(new)
            self.written.add(key)
        elif key in self.states or key in self.written:
            self.states.pop(key, None)
            self.written.add(key)
        if output is not None:
            self.outputs.append(output)


def blamed(error: str) -> str:
    """Whether the function has raised, and what, or its result was refused."""
    return error if error in ("KeyError", "ValueError", "OSError") else "refused"


def numbered(batches: list[list[tuple[int, str, Any]]]) -> Iterator[list[dict[str, Any]]]:
    n = 0
    for batch in batches:
        rows = []
        for key, verb, value in batch:
            rows.append({"n": n, "key": key, "do": verb, "value": value})
            n += 1
        yield rows


@settings(deadline=None, max_examples=60)
@given(
    batches=batches_strategy,
    initial=st.sampled_from([0, 1.5, "text", None, [], list, lambda: 7]),
    on_error=st.sampled_from(["dead-letter", mp.retry(1, 0, then="dead-letter")]),
)
def test_rows_states_failures_and_changes_are_those_of_a_plain_loop(batches: Any, initial: Any, on_error: Any) -> None:
    app = mp.App("oracle", partitions=PARTITIONS)
    keyed = app.stream("rows", mp.sources.rows([])).key_by("key")
    keyed.stateful_map("step", Function(), initial=initial, on_error=on_error).to("out", mp.sinks.memory())
    app.dead_letters.to("dead", mp.sinks.memory())
    storage, oracle = open_storage("memory://"), Oracle(initial, 1 if on_error == "dead-letter" else 2)
    with TestDriver(app, storage=storage) as driver:
        for rows in numbered(batches):
            if not rows:
                continue
            driver.send("rows", rows)
            oracle.batch(rows)
            assert sorted(driver.output("out")) == sorted(oracle.outputs)
            assert changes_match(changes(storage, "oracle", "step"), oracle)
            found = {key: driver.state("step").get(key) for key in range(4)}
            assert found == {key: oracle.states.get(key) for key in range(4)}
            assert {k: type(v) for k, v in found.items()} == {k: type(oracle.states.get(k)) for k in range(4)}
        letters = [(letter["row"]["n"], blamed(letter["error"].partition(":")[0])) for letter in driver.output("dead")]
        assert sorted(letters) == sorted(oracle.failed)
        driver.restart(lose_replicas=True)
        assert {key: driver.state("step").get(key) for key in range(4)} == {k: oracle.states.get(k) for k in range(4)}


def changes_match(found: list[tuple[str, str, str | None, bool]], oracle: Oracle) -> bool:
    """Whether all keys that differ are written, no others than those that were set or dropped, and each as it is."""
    written = {int(key): (value, is_gone) for key, _, value, is_gone in found}
    differing = {key for key in range(4) if encoded(oracle.before, key) != encoded(oracle.states, key)}
    expected = {key: (encoded(oracle.states, key), key not in oracle.states) for key in written}
    return differing <= set(written) <= oracle.written and written == expected and len(written) == len(found)


def encoded(states: dict[int, Any], key: int) -> str | None:
    return Codec().encode(states[key]).decode() if key in states else None


# --- single cases, spelled out ---


def step_over(storage: Any, f: Any, on_error: Any = "skip", initial: Any = 0) -> TestDriver:
    app = mp.App("one")
    keyed = app.stream("rows", mp.sources.rows([])).key_by(k=lambda row: "k")
    keyed.stateful_map("step", f, initial=initial, on_error=on_error).to("out", mp.sinks.memory())
    return TestDriver(app, storage=storage)


def test_a_new_key_whose_rows_all_fail_has_no_state_even_if_the_initial_state_is_a_plain_value() -> None:
    def f(key: str, row: int, total: int) -> Any:
        raise KeyError(row)

    with step_over(storage := open_storage("memory://"), f) as driver:
        driver.send("rows", [1, 2])
        assert driver.state("step").get("k") is None
        assert changes(storage, "one", "step") == []


def test_a_new_key_that_returns_its_initial_state_unchanged_has_that_state() -> None:
    with step_over(storage := open_storage("memory://"), lambda key, row, total: (row, total)) as driver:
        driver.send("rows", [1])
        assert changes(storage, "one", "step") == [('"k"', "", "0", False)]


def test_a_new_key_that_is_dropped_at_once_is_no_change_and_one_that_had_a_state_is_a_deletion() -> None:
    def f(key: str, row: int | None, total: int) -> Any:
        return row, row

    with step_over(storage := open_storage("memory://"), f) as driver:
        driver.send("rows", [None, None])
        assert changes(storage, "one", "step") == []
        driver.send("rows", [None, 3, None])
        assert changes(storage, "one", "step") == [('"k"', "", None, True)]


def test_a_dropped_key_starts_from_the_initial_state_within_the_same_batch() -> None:
    def f(key: str, row: int, total: int) -> Any:
        return total, None if row == 0 else total + row

    with step_over(open_storage("memory://"), f, initial=10) as driver:
        driver.send("rows", [1, 0, 5])
        assert driver.output("out") == [10, 11, 10]
        assert driver.state("step").get("k") == 15


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ((1,), "expected (output, state), a tuple of two, and the function returned (1,)"),
        ((1, 2, 3), "expected (output, state), a tuple of two, and the function returned (1, 2, 3)"),
        (ValueError(LIKE_OURS), f"ValueError: {LIKE_OURS}"),
    ],
    ids=["one", "three", "the function's own ValueError"],
)
def test_a_tuple_of_another_length_is_told_apart_from_an_error_of_the_function(result: Any, said: str) -> None:
    """Also in the row after one whose result was such a tuple."""

    def f(key: str, row: dict[str, Any], total: int) -> Any:
        if row["n"] == 1:
            return 1, 2, 3, 4
        if row["n"] == 2:
            if isinstance(result, Exception):
                raise result
            return result
        return row["n"], total + 1

    app = mp.App("one")
    keyed = app.stream("rows", mp.sources.rows([])).key_by(k=lambda row: "k")
    keyed.stateful_map("step", f, initial=0, on_error="dead-letter").to("out", mp.sinks.memory())
    app.dead_letters.to("dead", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [{"n": n} for n in range(4)])
        assert driver.output("out") == [0, 3]
        errors = [letter["error"] for letter in driver.output("dead")]
        assert errors[0].startswith("expected (output, state), a tuple of two")
        assert errors[1] == said
        assert driver.state("step").get("k") == 2


def test_states_of_many_types_may_be_mixed_within_a_batch() -> None:
    rows = [{"k": i % 7, "value": STATES[i % len(STATES)]} for i in range(200)]
    app = mp.App("mixed", partitions=PARTITIONS)
    keyed = app.stream("rows", mp.sources.rows([])).key_by("k")
    keyed.stateful_map("step", lambda key, row, old: ({"old": old}, row["value"]), initial=None).to(
        "out", mp.sinks.memory()
    )
    with TestDriver(app) as driver:
        driver.send("rows", rows[:150])
        driver.send("rows", rows[150:])
        found = [output["old"] for output in driver.output("out")]
        expected: list[Any] = [None if i < 7 else rows[i - 7]["value"] for i in range(200)]
        assert found == expected
        assert list(map(type, found)) == list(map(type, expected))


def test_a_state_that_cannot_be_stored_fails_its_own_row() -> None:
    def f(key: str, row: int, total: int) -> Any:
        return row, object() if row == 2 else total + row

    with step_over(open_storage("memory://"), f, on_error="stop") as driver:
        with pytest.raises(mp.errors.StepFailed, match="object") as caught:
            driver.send("rows", [1, 2, 3])
        assert caught.value.row == 2


@pytest.mark.parametrize("count", [MANY_KEYS - 1, MANY_KEYS, 2 * MANY_KEYS])
def test_a_batch_of_many_keys_gives_each_row_the_state_of_its_own_key(count: int) -> None:
    rows = [{"k": (i * 7919) % count, "i": i} for i in range(2 * count)]
    app = mp.App("many")
    keyed = app.stream("rows", mp.sources.rows([])).key_by("k")
    keyed.stateful_map("step", lambda key, row, old: ((key, row["i"], old), row["i"])).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", rows[:count])
        driver.send("rows", rows[count:])
        assert driver.output("out") == [(r["k"], r["i"], None if r["i"] < count else r["i"] - count) for r in rows]
