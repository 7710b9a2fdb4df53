"""Apps that read Kafka, run in this process without Spark: `run_here` does what `App.run` does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import millpond as mp
from millpond.clock import SystemClock
from millpond.driver.commit import Driver
from millpond.driver.loop import run_driver
from millpond.driver.planning import with_snapshots
from millpond.driver.settings import Controls, DriverSettings
from millpond.runtimes.local import LocalRuntime
from millpond.storage import open_storage


class Copying:
    """An app that copies its stream to a list."""

    def __init__(self, folder: Path, source: Any, name: str = "copy", **stream: Any) -> None:
        self.app = mp.App(name, state_dir=str(folder / "state"), local_dir=str(folder / "replicas"), partitions=2)
        self.sink = mp.sinks.memory()
        self.stream = self.app.stream("orders", source, **stream)
        self.stream.to("out", self.sink)

    @property
    def rows(self) -> list[Any]:
        return self.sink.rows

    def run(self, **how: Any) -> list[Any]:
        """Run until all is read; return the rows of this run."""
        before = len(self.sink.rows)
        run_here(self.app, **how)
        return self.sink.rows[before:]


def run_here(
    app: mp.App,
    *,
    until: Any = "caught-up",
    stop: threading.Event | None = None,
    hook: Callable[[str, str], None] | None = None,
    ahead: bool = False,
    **settings: Any,
) -> None:
    """Run an app as `App.run` does, with tasks in this process."""
    storage, clock, stop = open_storage(app.state_dir), SystemClock(), stop or threading.Event()
    program = mp.lowlevel.program(app)
    if until == "caught-up":
        program = with_snapshots(program, clock.now())

    def make() -> Driver:
        return Driver.start(
            program,
            LocalRuntime(storage, clock, ahead=ahead),
            storage,
            clock,
            DriverSettings(partitions=app.partitions, home=app.local_dir, threaded=False, keep=app.keep),
            Controls(hook=hook, stop=stop),
        )

    run_driver(make, mp.lowlevel.Settings(until=until, **{"every": 0.05, **settings}), stop, clock)


class Background:
    """An app that runs in a thread until the block ends. What ended it early is in `error`."""

    def __init__(self, app: mp.App, **how: Any) -> None:
        self.stop, self.error = threading.Event(), None
        self._thread = threading.Thread(target=self._run, args=(app, how), daemon=True)

    error: BaseException | None

    def _run(self, app: mp.App, how: dict[str, Any]) -> None:
        try:
            run_here(app, **{"until": None, "stop": self.stop, **how})
        except BaseException as error:
            self.error = error

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def __enter__(self) -> Background:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "the app does not stop"


def positions(app: mp.App) -> dict[str, Any]:
    """The position of each partition of the stream `orders`, as the newest commit has it."""
    from millpond.driver.results import positions_of

    newest = mp.open(app.state_dir, app.name).newest
    assert newest is not None
    return positions_of(open_storage(app.state_dir), newest).get("orders", {})
