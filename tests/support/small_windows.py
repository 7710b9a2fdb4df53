"""Small programs around one window, for tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import millpond as mp
from millpond.testing import TestDriver

Rows = Iterable[Any]


def windowed(window: Any, aggregations: dict[str, Any] | None = None, *, stream: dict[str, Any] | None = None, **how):
    """An app with one window step "w" over rows {k, v, t}, keyed by k; sinks "out" and "late"."""
    app = mp.App("windows", partitions=how.pop("partitions", 1))
    rows = app.stream("rows", mp.sources.rows([]), **{"timestamp": "t", **(stream or {})})
    found = rows.key_by("k").window("w", window, **how)
    found.aggregate(**(aggregations or {"sum": mp.sum("v")})).to("out", mp.sinks.memory())
    found.late.to("late", mp.sinks.memory())
    return app


def row(value: Any, time: Any, key: Any = "a") -> dict[str, Any]:
    return {"k": key, "v": value, "t": time}


def rows(*pairs: tuple[Any, ...]) -> list[dict[str, Any]]:
    """Rows from (value, time) or (value, time, key)."""
    return [row(*pair) for pair in pairs]


def sent(app: mp.App, each: Rows, *, finish: bool = False, together: bool = False) -> TestDriver:
    """A driver to which these rows were sent, one by one or together."""
    driver = TestDriver(app)
    if together:
        driver.send("rows", list(each))
    else:
        for one in each:
            driver.send("rows", [one])
    if finish:
        driver.finish()
    return driver


def panes(outputs: Rows, *names: str) -> list[tuple[Any, ...]]:
    """Start, end and aggregates of output rows."""
    return [
        (
            o["window_start"],
            o["window_end"],
            *(o[n] for n in names or [n for n in o if n not in FIELDS]),
        )
        for o in outputs
    ]


FIELDS = {"k", "window_start", "window_end", "pane", "final", "retracted"}
