"""What functions return and tests send by mistake, and values that cannot be stored on the way to several readers."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
from small_programs import piped

import millpond as mp
from millpond.errors import Incompatible, InvalidUse, StepFailed
from millpond.testing import TestDriver


class Both(NamedTuple):
    output: int
    state: int


NO_PAIRS: dict[str, Any] = {
    "a dict of two": {"total": 1, "n": 2},
    "a text of two": "ab",
    "bytes of two": b"ab",
    "a list of two": [1, 2],
    "a set of two": {1, 2},
    "a namedtuple of two": Both(1, 2),
    "a tuple of three": (1, 2, 3),
    "a tuple of one": (1,),
    "an empty tuple": (),
    "a number": 7,
    "nothing": None,
}


def stepped(value: Any, initial: Any, ttl: str | None = None, on_error: Any = "stop") -> mp.App:
    app = mp.App("pairs")
    rows = app.stream("rows", mp.sources.rows([])).key_by(k=lambda n: 0)
    step = rows.stateful_map("step", lambda k, n, s: value, initial=initial, ttl=ttl, on_error=on_error)
    step.to("out", mp.sinks.memory())
    app.dead_letters.to("dead", mp.sinks.memory())
    return app


@pytest.mark.parametrize("what", NO_PAIRS)
@pytest.mark.parametrize("initial", [0, None, []], ids=["a number", "nothing", "a list"])
@pytest.mark.parametrize("ttl", [None, "1h"])
def test_a_stateful_map_takes_nothing_but_a_tuple_of_two(what: str, initial: Any, ttl: str | None) -> None:
    with TestDriver(stepped(NO_PAIRS[what], initial, ttl)) as driver:
        with pytest.raises(
            StepFailed, match=r"expected \(output, state\), a tuple of two, and the function ret"
        ) as caught:
            driver.send("rows", [1])
        assert (caught.value.step, caught.value.key, caught.value.row) == ("step", 0, 1)
        assert str(caught.value).startswith("step 'step', batch 1: expected (output, state)")  # no function raised
        assert driver.state("step").get(0) is None


@pytest.mark.parametrize("what", NO_PAIRS)
def test_a_key_that_has_state_takes_nothing_but_a_tuple_of_two_either(what: str) -> None:
    app = mp.App("pairs")
    rows = app.stream("rows", mp.sources.rows([])).key_by(k=lambda n: 0)
    rows.stateful_map("step", lambda k, n, s: (n, n) if n < 3 else NO_PAIRS[what], initial=0).to(
        "out", mp.sinks.memory()
    )
    with TestDriver(app) as driver:
        driver.send("rows", [1, 2])
        with pytest.raises(StepFailed, match=r"expected \(output, state\), a tuple of two, ") as caught:
            driver.send("rows", [2, 3])
        assert (caught.value.row, driver.state("step").get(0), driver.output("out")) == (3, 2, [1, 2])


def test_a_result_that_is_no_pair_becomes_a_dead_letter_where_that_is_said() -> None:
    with TestDriver(stepped({"a": 1, "b": 2}, 0, on_error="dead-letter")) as driver:
        driver.send("rows", [1])
        assert driver.output("out") == []
        assert [letter["row"] for letter in driver.output("dead")] == [1]
        assert driver.state("step").get(0) is None


@pytest.mark.parametrize("what", [what for what in NO_PAIRS if what != "nothing"])
def test_a_migration_of_keys_takes_nothing_but_a_tuple_of_two(what: str) -> None:
    def app(version: int, **how: Any) -> mp.App:
        made = mp.App("keys")
        rows = made.stream("rows", mp.sources.rows([])).key_by(k=lambda n: "ann")
        rows.stateful_map("step", lambda k, n, s: (None, n), initial=0, version=version, **how)
        return made

    with TestDriver(app(1)) as driver:
        driver.send("rows", [5])
        with pytest.raises(Incompatible, match=r"'step': .*expected \(key, value\), a tuple of two.*'ann' and "):
            driver.restart(app(2, migrate={1: lambda key, value: NO_PAIRS[what]}))


@pytest.mark.parametrize("result", [{"a": 1}, OrderedDict(a=1), "ab", b"ab"])
@pytest.mark.parametrize("verb", ["flat_map", "flat_apply"])
def test_one_row_is_not_taken_for_several(verb: str, result: Any) -> None:
    def build(s: Any) -> Any:
        if verb == "flat_map":
            return s.flat_map(lambda n: result)
        return s.key_by(k=lambda n: 0).flat_apply("step", lambda n, state: result)

    with pytest.raises(StepFailed, match=r"expected several rows, as in a list, .*; return \[row\]"):
        piped(build, [1])


@pytest.mark.parametrize("make", [list, tuple, iter, set])
def test_several_rows_may_be_any_other_iterable(make: Any) -> None:
    assert sorted(piped(lambda s: s.flat_map(lambda n: make([n, n + 1])), [1])) == [1, 2]


class Processor:
    def __init__(self, result: Any) -> None:
        self.result = result

    def on_row(self, key: Any, row: Any, state: Any, timers: Any) -> Any:
        timers.set("later", after=1)
        return self.result

    def on_timer(self, key: Any, timer: Any, state: Any, timers: Any) -> Any:
        return self.result


@pytest.mark.parametrize("result", [(), [], None])
def test_a_processor_that_returns_nothing_emits_nothing(result: Any) -> None:
    def build(s: Any) -> Any:
        return s.key_by(k=lambda row: 0).process("p", Processor(result))

    assert piped(build, [{"at": 1}, {"at": 9}], timestamp="at") == []


@pytest.mark.parametrize("rows", [{"a": 1}, {}, "ab", b"ab", 7, object()])
@pytest.mark.parametrize("several", [False, True])
def test_a_test_sends_lists_of_rows(rows: Any, several: bool) -> None:
    app = mp.App("sent")
    app.stream("s", mp.sources.rows([])).to("out", mp.sinks.memory())
    app.stream("t", mp.sources.rows([]))
    with TestDriver(app) as driver:
        with pytest.raises(InvalidUse, match=r"send\('s'\): expected a list of rows, got .*; send \[row\] "):
            driver.send({"t": [1], "s": rows}) if several else driver.send("s", rows)
        driver.send("s", (n for n in [1, 2]))  # type: ignore[arg-type]
        driver.send("s")
        assert driver.output("out") == [1, 2]


# --- a value that cannot be stored, and two branches ---


class Odd:
    """It cannot be stored. It can be copied."""

    def __init__(self, n: int) -> None:
        self.n = n


class Locked(Odd):
    """It can neither be stored nor copied."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.lock = threading.Lock()


def make(kind: str, n: int) -> Any:
    return {"odd": Odd(n), "locked": Locked(n)}[kind] if n == 2 else Odd(n)


def branched(kind: str, how: str, on_error: Any) -> mp.App:
    app = mp.App("branches")
    rows = app.stream("rows", mp.sources.rows([]), on_error=on_error)
    if how == "map":
        made = rows.map(lambda n: make(kind, n))
    elif how == "flat_map":
        made = rows.flat_map(lambda n: [make(kind, n)])
    else:
        made = rows.key_by(k=lambda n: 0).stateful_map("step", lambda k, n, s: (make(kind, n), 1))
    made.map(lambda odd: setattr(odd, "n", odd.n * 10) or odd.n).to("one", mp.sinks.memory())
    made.map(lambda odd: odd.n).to("two", mp.sinks.memory())
    app.dead_letters.to("dead", mp.sinks.memory())
    return app


@pytest.mark.parametrize("how", ["map", "flat_map", "step"])
def test_what_cannot_be_stored_goes_to_two_branches_as_copies(how: str) -> None:
    with TestDriver(branched("odd", how, "stop")) as driver:
        driver.send("rows", [1, 2, 3])
        assert (driver.output("one"), driver.output("two")) == ([10, 20, 30], [1, 2, 3])


@pytest.mark.parametrize("how", ["map", "flat_map", "step"])
def test_what_cannot_be_copied_either_fails_alone(how: str) -> None:
    with TestDriver(branched("locked", how, "dead-letter")) as driver:
        driver.send("rows", [1, 2, 3])
        assert (driver.output("one"), driver.output("two")) == ([10, 30], [1, 3])
        [letter] = driver.output("dead")
        assert letter["step"] == how and "cannot store a " in letter["error"] and "Locked" in letter["row"]
    with TestDriver(branched("locked", how, "stop")) as driver:
        with pytest.raises(StepFailed, match="cannot store a ") as caught:
            driver.send("rows", [1, 2, 3])
        assert caught.value.step == how


def test_what_cannot_be_stored_becomes_a_dead_letter_at_the_sinks_of_two_branches() -> None:
    app = mp.App("sinks")
    rows = app.stream("rows", mp.sources.rows([]), on_error="dead-letter").map(lambda n: {"v": Odd(n)} if n == 2 else n)
    rows.filter(lambda row: True).to("one", mp.sinks.memory())
    rows.filter(lambda row: True).to("two", mp.sinks.memory())
    app.dead_letters.to("dead", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [1, 2, 3])
        assert (driver.output("one"), driver.output("two")) == ([1, 3], [1, 3])
        assert sorted(letter["step"] for letter in driver.output("dead")) == ["one", "two"]
