"""Rebuilds without Spark, for tests."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import millpond as mp
from millpond.clock import SystemClock
from millpond.life import rebuilt
from millpond.maintenance.rebuild import Rebuild
from millpond.pipeline.graph import Program
from millpond.runtimes.local import LocalRuntime
from millpond.storage import open_storage


def rebuild(app: mp.App, step: str, *, switch: bool = False, between: Callable[[], Any] | None = None) -> mp.Rebuilt:
    """As `app.rebuild` does it; `between` is called once all batches have been run again."""
    storage = open_storage(app.state_dir)

    @contextlib.contextmanager
    def runtime(program: Program) -> Iterator[LocalRuntime]:
        yield LocalRuntime(storage, SystemClock())
        if between is not None:
            between()

    return rebuilt(
        mp.lowlevel.program(app), step, storage, SystemClock(), app.local_dir, runtime, switch=switch, threaded=False
    )


def rebuild_and_switch(app: mp.App, step: str, at: Any) -> None:
    """A rebuild that calls `at` at the named moments of its last act; its shadow stays."""
    storage = open_storage(app.state_dir)
    made = Rebuild(mp.lowlevel.program(app), step, storage, SystemClock(), app.local_dir, mp.sinks.discard())
    made.run(LocalRuntime(storage, SystemClock()), threaded=False)
    made.switch(at)
