"""Rebuilds without Spark, for tests."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import millpond as mp
from millpond.admin import run_rebuild
from millpond.clock import SystemClock
from millpond.driver.settings import DriverSettings
from millpond.maintenance.rebuild import Rebuild
from millpond.pipeline.graph import Program
from millpond.runtimes.local import LocalRuntime
from millpond.storage import Storage, open_storage


def rebuild(app: mp.App, step: str, *, switch: bool = False, between: Callable[[], Any] | None = None) -> mp.Rebuilt:
    """As `app.rebuild` does it; `between` is called once all batches have been run again."""
    storage = open_storage(app.state_dir)

    @contextlib.contextmanager
    def runtime(program: Program) -> Iterator[LocalRuntime]:
        yield LocalRuntime(storage, SystemClock())
        if between is not None:
            between()

    return run_rebuild(_rebuild_of(app, step, storage), runtime, switch=switch)


def _rebuild_of(app: mp.App, step: str, storage: Storage) -> Rebuild:
    settings = DriverSettings(home=app.local_dir, threaded=False)
    return Rebuild(mp.lowlevel.program(app), step, storage, SystemClock(), settings, mp.sinks.discard())


def rebuild_and_switch(app: mp.App, step: str, at: Any) -> None:
    """A rebuild that calls `at` at the named moments of its last act; its shadow stays."""
    storage = open_storage(app.state_dir)
    made = _rebuild_of(app, step, storage)
    made.run(LocalRuntime(storage, SystemClock()))
    made.switch_to_rebuilt(at)
