"""Small programs around one verb, for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ledger_reader import changes

import millpond as mp
from millpond.storage import open_storage
from millpond.testing import TestDriver

PARTITIONS = pytest.mark.parametrize("partitions", [1, 2, 3])


def piped(build: Callable[[Any], Any], rows: list[Any], *, sink: str = "out", **how: Any) -> list[Any]:
    """What comes out of `build(stream)` when these rows go in, as one batch."""
    app = mp.App("verbs", partitions=how.pop("partitions", None))
    build(app.stream("rows", mp.sources.rows([]), **how)).to(sink, mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", rows)
        return driver.output(sink)


def nth(key, row, n):
    return {"row": row, "nth": n + 1}, n + 1


def applied(f: Callable[..., Any], *batches: list[Any], key: Any = "k", verb: str = "apply") -> Any:
    """Run `f(row, state)` over batches of rows of one key; the outputs, the state, and the last changelog."""
    app = mp.App("handle")
    getattr(app.stream("rows", mp.sources.rows([])).key_by(k=lambda row: key), verb)("s", f).to(
        "out", mp.sinks.memory()
    )
    storage = open_storage("memory://")
    with TestDriver(app, storage=storage) as driver:
        for batch in batches:
            driver.send("rows", batch)
        outputs, state = driver.output("out"), driver.state("s").get(key)
        last = [(cell, None if gone else value) for _, cell, value, gone in changes(storage, "handle", "s")]
        driver.restart(lose_replicas=True)
        assert driver.state("s").get(key) == state, "as the log says"
        return outputs, state, last
