"""The loop: batch after batch, until the app is stopped, all is read, or an error ends it."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from millpond.backoff import Backoff
from millpond.clock import Clock
from millpond.driver.commit import Driver
from millpond.driver.heartbeat_thread import HeartbeatThread
from millpond.driver.patience import Patience, StoppedWaiting
from millpond.errors import Fenced, MillpondError, StepFailed, Unavailable
from millpond.log.record import Record
from millpond.sources.base import Limit

log = logging.getLogger("millpond")
run_log = logging.getLogger("millpond.run")
"""What a person wants to know of a run. `millpond run` prints it."""

RESTARTS = Backoff(first=1.0, longest=60.0)
LONGEST_PATIENCE = 30.0  # seconds that a run which catches up waits for an incomplete row
LOOK_UP = 1.0  # seconds after which a waiting driver checks for requests, and whether it has lost its app
BUSY_LOOK_UP = 0.1  # seconds, while it carries out a request


@dataclass(frozen=True)
class Settings:
    """How an app is to run: the plain values among the arguments of `App.run`.

    >>> import millpond as mp
    >>> mp.lowlevel.Settings(until="caught-up", max_rows=5_000).max_rows
    5000
    """

    until: Literal["caught-up"] | None = None
    every: float = 1.0
    max_rows: int = 100_000
    max_bytes: int = 256 << 20
    restarts: int = 0
    close_at_end: bool = False


@dataclass
class RunTotals:
    """What a run has done so far, through all of its restarts."""

    rows: int = 0
    batches: int = 0

    def add(self, record: Record) -> None:
        self.rows += sum(record.rows.values())
        self.batches += 1

    def __str__(self) -> str:
        rows, batches = "row" if self.rows == 1 else "rows", "batch" if self.batches == 1 else "batches"
        return f"{self.rows:,} {rows} in {self.batches:,} {batches}"


def run_driver(make: Callable[[], Driver], settings: Settings, stop: threading.Event, clock: Clock) -> None:
    """Run an app until it ends. A failed run is restarted at most `restarts` times, after growing pauses."""
    began, totals = clock.monotonic(), RunTotals()
    for attempt in range(settings.restarts + 1):
        try:
            app = _run_once(make, settings, stop, clock, totals)
            if app is not None:
                how = "has stopped" if stop.is_set() else "has caught up"
                run_log.info("app %r %s: %s, %.1f s", app, how, totals, clock.monotonic() - began)
            return
        except (StepFailed, Unavailable) as error:
            if attempt == settings.restarts or stop.is_set():
                raise
            pause = RESTARTS.pause(attempt + 1)
            log.warning("restart %d of %d in %.0f s, after: %s", attempt + 1, settings.restarts, pause, error)
            stop.wait(pause)


def _run_once(
    make: Callable[[], Driver], settings: Settings, stop: threading.Event, clock: Clock, totals: RunTotals
) -> str | None:
    """Run a driver until it ends, and return the name of its app; None if it was stopped before it had started."""
    driver = _start(make, stop)
    if driver is None:
        return None
    with HeartbeatThread(driver.storage, driver.owner, clock, partitions=driver.placement.status) as beating:
        try:
            _run_batches(driver, beating.lost, settings, stop, clock, totals)
            driver.release()
            return driver.program.app
        except Fenced:
            raise
        except MillpondError:
            # What was committed is delivered, and the ledger says so, even though the next batch failed. But no sink
            # that is unavailable may delay the error.
            driver.delivery.hurry()
            with contextlib.suppress(MillpondError):
                driver.release()
            raise
        finally:
            driver.close()


def _start(make: Callable[[], Driver], stop: threading.Event) -> Driver | None:
    """Start a driver, and wait for targets that are unavailable; None if the app is asked to stop meanwhile."""
    patience = Patience("start", stop)
    while True:
        try:
            driver = make()
        except Unavailable as error:
            try:
                patience.wait(error)
            except StoppedWaiting:
                return None
        else:
            patience.end()
            return driver


def _run_batches(
    driver: Driver,
    lost: threading.Event,
    settings: Settings,
    stop: threading.Event,
    clock: Clock,
    totals: RunTotals,
) -> None:
    limit = Limit(settings.max_rows, settings.max_bytes)
    patience = LONGEST_PATIENCE
    while not stop.is_set():
        if lost.is_set():  # a driver without anything to write would not notice that another owns the app
            driver.owner.check()
        began = clock.monotonic()
        worked = driver.batch(limit)
        if worked:
            totals.add(driver.last)
        else:  # a batch would have noticed
            driver.runtime.check()
        if settings.until == "caught-up":
            if not worked and driver.requests.is_busy:
                stop.wait(BUSY_LOOK_UP)
            elif not worked and driver.runtime.exhausted:
                if driver.is_waiting():
                    if patience > 0:
                        stop.wait(min(settings.every, patience))
                        patience -= clock.monotonic() - began
                        continue
                    log.warning("%s: the input ends in a row that is not complete", driver.program.app)
                if settings.close_at_end and driver.batch(limit, final=True):
                    totals.add(driver.last)
                break
        elif sum(driver.last.rows.values()) * 2 < limit.rows or not worked:
            driver.delivery.send_attached()
            _pause(driver, began + settings.every, lost, stop, clock)


def _pause(driver: Driver, until: float, lost: threading.Event, stop: threading.Event, clock: Clock) -> None:
    """Wait for the next batch, or for a request, whichever is first."""
    while not stop.is_set() and not lost.is_set() and (left := until - clock.monotonic()) > 0:
        stop.wait(min(left, BUSY_LOOK_UP if driver.requests.is_busy else LOOK_UP))
        if driver.requests.is_ready:
            return
