"""Drivers that run an app in this process, without Spark."""

from __future__ import annotations

from typing import Any

import millpond as mp
from millpond.clock import Clock, SystemClock
from millpond.driver.commit import Driver
from millpond.driver.settings import Controls, DriverSettings
from millpond.runtimes.local import LocalRuntime
from millpond.storage import Storage, open_storage


def start_driver(
    app: mp.App,
    storage: Storage | None = None,
    clock: Clock | None = None,
    hook: Any = None,
    progress: Any = None,
) -> Driver:
    """Start a driver with the settings of the app, without threads of its own."""
    storage, clock = storage or open_storage(app.state_dir), clock or SystemClock()
    settings = DriverSettings(
        partitions=app.partitions,
        home=app.local_dir,
        standbys=app.standbys,
        threaded=False,
        keep=app.keep,
        compact_every=app.compact_every,
    )
    runtime = LocalRuntime(storage, clock)
    controls = Controls(hook=hook, progress=progress)
    return Driver.start(mp.lowlevel.program(app), runtime, storage, clock, settings, controls)


def run_locally(app: mp.App) -> None:
    """Run an app until it has read everything, without Spark."""
    driver = start_driver(app)
    try:
        while driver.batch(mp.lowlevel.Limit(1 << 40, 1 << 60)):
            pass
        driver.release()
    finally:
        driver.close()
