"""The examples of event time: small programs that print what their docstrings document."""

from __future__ import annotations

import inspect
import re
import runpy
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

from doc_pages import ROOT

import millpond as mp
from millpond.pipeline.graph import Deliver, Program
from millpond.pipeline.phases import phases
from millpond.sinks.console import format_row

EXAMPLES = sorted((ROOT / "examples").glob("*/*.py"))


def name_of(example: Path) -> str:
    return str(example.relative_to(ROOT / "examples"))


def documented_output(example: Path) -> list[str]:
    """Return the output that an example documents: the lines of its docstring that begin with the name of a sink."""
    doc = inspect.cleandoc(re.findall(r'\A"""(.*?)"""', example.read_text(), re.DOTALL)[0])
    return re.findall(r"^    (\w+: .+)$", doc, re.MULTILINE)


def batches(rows: dict[str, list[Any]], program: Program) -> Iterator[dict[str, list[Any]]]:
    """Yield batches of one row per stream, as `max_rows=1` reads them: streams that feed tables come first."""
    read: set[str] = set()
    for phase in [*phases(program), frozenset(rows)]:
        streams = [stream for stream in rows if stream in phase - read]
        for row in zip_longest(*(rows[stream] for stream in streams), fillvalue=None):
            yield {stream: [one] for stream, one in zip(streams, row, strict=True) if one is not None}
        read |= phase


def run_example(
    example: Path, play: Callable[[mp.testing.TestDriver, Callable[[], None]], None] | None = None
) -> list[str]:
    """Run an example without Spark, return what it prints. `play` sends rows, and calls its argument after a batch."""
    found = runpy.run_path(str(example), run_name="an_example")
    app, lines = found["app"], []
    sinks = [node.op.name for node in mp.lowlevel.program(app).nodes if isinstance(node.op, Deliver)]
    held = dict.fromkeys(sinks, 0)
    with mp.testing.TestDriver(app) as driver:

        def look() -> None:
            for sink in sinks:
                new = driver.output(sink)[held[sink] :]
                held[sink] += len(new)
                lines.extend(f"{sink}: {format_row(row)}" for row in new)

        if play is not None:
            play(driver, look)
            return lines
        for batch in batches(found["ROWS"], mp.lowlevel.program(app)):
            driver.send(batch)
            look()
        if "close_at_end=True" in example.read_text():
            driver.finish()
            look()
    return lines
