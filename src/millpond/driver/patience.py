"""Waiting for a source or target that does not respond: a broker that is down, or that elects a new leader."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from millpond.backoff import Backoff
from millpond.clock import elapsed
from millpond.errors import Unavailable

log = logging.getLogger("millpond")

SOURCE_RETRIES = Backoff(first=0.2, longest=10.0)
LOG_WAIT_AFTER = 1.0  # seconds: an election of leaders is shorter than that
LOG_WAIT_EVERY = 60.0


class StoppedWaiting(Exception):
    """The app was asked to stop while it waited."""


class Patience:
    """Waits between the attempts at something that is unavailable, for as long as it takes.

    It logs after a second what it waits for, then once a minute, and when it goes on. `check` is called before each
    pause; it raises if there is no sense in waiting, because another driver has claimed the app.
    """

    def __init__(self, app: str, stop: threading.Event, check: Callable[[], None] = lambda: None) -> None:
        self._app, self._check, self._stop = app, check, stop
        self.attempts = 0
        self._began, self._logged = 0.0, -LOG_WAIT_EVERY

    def wait(self, error: Unavailable) -> None:
        """Wait before the next attempt. Raises the error itself if it does not say when to try again."""
        if error.retry_after is None:
            raise error
        now = elapsed()
        if self.attempts == 0:
            self._began, self._logged = now, -LOG_WAIT_EVERY
        self.attempts += 1
        if now - self._began >= LOG_WAIT_AFTER and now - self._logged >= LOG_WAIT_EVERY:
            self._logged = now
            log.warning("%s: waiting since %.0f s: %s", self._app, now - self._began, error)
        self._check()
        pause = max(error.retry_after, SOURCE_RETRIES.pause(self.attempts))
        if self._stop.wait(pause):
            raise StoppedWaiting

    def end(self) -> None:
        """Take note that what was unavailable responds."""
        if self.attempts and self._logged > 0:
            log.warning("%s: it goes on after %.0f s", self._app, elapsed() - self._began)
        self.attempts = 0
