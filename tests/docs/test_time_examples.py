"""The examples of windows, triggers, joins and timers: each is there, and does what the text above it says."""

from __future__ import annotations

import ast
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from doc_pages import ROOT
from time_examples import EXAMPLES, documented_output, name_of, run_example

import millpond as mp
from millpond.steps.windows import definitions as kinds

Look = Callable[[], None]


def a_row_a_second(driver: mp.testing.TestDriver, look: Look) -> None:
    began = datetime.fromtimestamp(driver.clock.now(), UTC)
    for n in range(7):
        driver.send("ticks", [{"timestamp": began + timedelta(seconds=n), "value": n}])
        look()
        driver.advance("1s")
        look()


def baskets_and_pauses(driver: mp.testing.TestDriver, look: Look) -> None:
    clicks = [("ann", "fill"), ("bob", "fill"), ("bob", "pay")]
    driver.send("clicks", [{"customer": customer, "what": what} for customer, what in clicks])
    for _ in range(4):
        driver.advance("10s")
        look()


BY_THE_CLOCK = {"triggers/every.py": a_row_a_second, "timers/basket.py": baskets_and_pauses}


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_an_example_prints_what_it_says(example: Path) -> None:
    said = documented_output(example)
    assert said, "it says nothing of what it prints"
    assert run_example(example, BY_THE_CLOCK.get(name_of(example))) == said


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_an_example_says_how_to_try_it_and_runs_when_it_is_the_program(example: Path) -> None:
    text = example.read_text()
    assert f"    python examples/{name_of(example)}\n" in text
    assert 'if __name__ == "__main__":\n    app.run(' in text


def calls(folder: str) -> set[str]:
    """What the examples of a folder call, as `mp.triggers.every` or `join_asof`."""
    found = set()
    for example in (ROOT / "examples" / folder).glob("*.py"):
        for node in ast.walk(ast.parse(example.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                found.add(called if called.startswith("mp.") else called.rpartition(".")[2])
    return found


def test_there_is_an_example_of_every_kind_of_window() -> None:
    makers = {name for name in mp.__all__ if getattr(getattr(mp, name), "__module__", "") == kinds.__name__}
    assert len(makers) == 8
    assert {f"mp.{name}" for name in makers} - calls("windows") == set()


def test_there_is_an_example_of_every_trigger() -> None:
    makers = {name for name in mp.triggers.__all__ if name[0].islower()}
    assert len(makers) > 10
    assert {f"mp.triggers.{name}" for name in makers} - calls("triggers") == set()


def test_there_is_an_example_of_every_join() -> None:
    verbs = {name for name in dir(mp.KeyedStream) if name.startswith("join_")}
    verbs |= {name for name in ("lookup",) if hasattr(mp.Stream, name)}
    assert len(verbs) > 2
    assert verbs - calls("joins") == set()
