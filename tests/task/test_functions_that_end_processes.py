"""Functions that would end or double the process that runs them: they fail with their row, as any other."""

from __future__ import annotations

import asyncio
import multiprocessing
import operator
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from small_programs import piped

import millpond as mp
from millpond.errors import StepFailed
from millpond.testing import Crashed, TestDriver


def leave(n: Any) -> Any:
    sys.exit("the disk is full")


def close(n: Any) -> Any:
    raise GeneratorExit("enough")


def cancel(n: Any) -> Any:
    raise asyncio.CancelledError("too slow")


def fork(n: Any) -> Any:
    child = os.fork()
    if child == 0:
        os._exit(0)  # it is never to run the rest of a test
    os.waitpid(child, 0)
    return n


ENDS = {
    "sys.exit": (leave, "SystemExit: the disk is full"),
    "GeneratorExit": (close, "GeneratorExit: enough"),
    "CancelledError": (cancel, "CancelledError: too slow"),
    "fork": (fork, r"RuntimeError: os.fork\(\) in a function of a program: the child would run the rest of the batch"),
}
EVERY_END = pytest.mark.parametrize("end", ENDS)


class Processor:
    def __init__(self, f: Callable[[Any], Any]) -> None:
        self.f = f

    def on_row(self, key: Any, row: Any, state: Any, timers: Any) -> Any:
        return self.f(row)


VERBS: dict[str, Callable[[Any, Callable[[Any], Any]], Any]] = {
    "map": lambda s, f: s.map(f),
    "filter": lambda s, f: s.filter(f),
    "branch": lambda s, f: s.branch(all=f)["all"],
    "key_by(k)": lambda s, f: s.key_by(k=f),
    "map_async": lambda s, f: s.map_async(f),
    "person": lambda s, f: s.lookup("person", mp.external(lambda keys: {}), on=f, merge=lambda row, found: row),
    "stateful_map": lambda s, f: s.key_by(k=lambda n: 0).stateful_map("stateful_map", lambda k, n, s: (f(n), n)),
    "expiring": lambda s, f: s.key_by(k=lambda n: 0).stateful_map("expiring", lambda k, n, s: (f(n), n), ttl="1h"),
    "apply": lambda s, f: s.key_by(k=lambda n: 0).apply("apply", lambda n, state: f(n)),
    "aggregate": lambda s, f: s.key_by(k=lambda n: 0).aggregate("aggregate", last=mp.last(f)),
    "process": lambda s, f: s.key_by(k=lambda n: 0).process("process", Processor(f)),
}


@EVERY_END
@pytest.mark.parametrize("verb", VERBS)
def test_it_stops_the_app_with_step_key_and_row(verb: str, end: str) -> None:
    f, text = ENDS[end]
    with pytest.raises(StepFailed, match=text) as caught:
        piped(lambda s: VERBS[verb](s, lambda n: f(n) if n == 2 else n), [1, 2, 3])
    keyed = verb in ("stateful_map", "expiring", "apply", "aggregate", "process")
    assert (caught.value.step, caught.value.key, caught.value.row) == (verb, 0 if keyed else None, 2)
    assert f"in {f.__name__}" in caught.value.traceback


@EVERY_END
def test_it_goes_by_on_error_as_any_other_failure(end: str) -> None:
    app = mp.App("ends")
    rows = app.stream("rows", mp.sources.rows([]), on_error="dead-letter")
    rows.map(lambda n: ENDS[end][0](n) if n == 2 else n).to("out", mp.sinks.memory())
    app.dead_letters.to("dead", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [1, 2, 3])
        assert driver.output("out") == [1, 3]
        assert [letter["row"] for letter in driver.output("dead")] == [2]


@pytest.mark.parametrize("end", ["sys.exit", "CancelledError"])
def test_a_coroutine_function_that_ends_fails_with_its_row(end: str) -> None:
    async def f(n: int) -> int:
        await asyncio.sleep(0)
        return ENDS[end][0](n) if n == 2 else n

    with pytest.raises(StepFailed, match=ENDS[end][1]) as caught:
        piped(lambda s: s.map_async(f), [1, 2, 3])
    assert caught.value.row == 2


@EVERY_END
def test_a_function_that_makes_state_is_no_exception(end: str) -> None:
    f, text = ENDS[end]
    with pytest.raises(StepFailed, match=text):
        piped(lambda s: s.key_by(k=lambda n: 0).process("p", lambda: f(0) or Processor(f)), [1])


@EVERY_END
def test_a_sink_that_ends_is_a_sink_that_failed(end: str) -> None:
    f, text = ENDS[end]
    app = mp.App("sinks")
    app.stream("rows", mp.sources.rows([])).to("out", mp.sinks.function(lambda rows, delivery: f(rows)))
    with TestDriver(app) as driver, pytest.raises(StepFailed, match=text) as caught:
        driver.send("rows", [1])
    assert caught.value.step == "out"


def test_a_crash_and_ctrl_c_are_not_taken_for_failures_of_a_row() -> None:
    def crash(n: int) -> int:
        raise Crashed("compute", "during")

    def interrupt(n: int) -> int:
        raise KeyboardInterrupt

    with pytest.raises(Crashed):
        piped(lambda s: s.map(crash), [1])
    with pytest.raises(KeyboardInterrupt):
        piped(lambda s: s.map(interrupt), [1])


def in_a_pool(n: int) -> int:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(operator.mul, (3, n))


def in_a_program(n: int) -> int:
    return int(subprocess.run([sys.executable, "-c", f"print(3 * {n})"], capture_output=True, check=True).stdout)


@pytest.mark.parametrize("f", [in_a_pool, in_a_program])
def test_other_processes_may_be_started(f: Any) -> None:
    assert piped(lambda s: s.map(f), [2]) == [6]


def test_whoever_forks_outside_of_functions_may() -> None:
    piped(lambda s: s.map(lambda n: n), [1])
    child = os.fork()
    if child == 0:
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
