"""The thread that writes a driver's heartbeat."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any

from millpond.clock import Clock
from millpond.driver.owner import Owner
from millpond.errors import MillpondError
from millpond.log.heartbeat import BEAT_SECONDS, FRESH_SECONDS, WATCHED_BEAT_SECONDS, Heartbeat, PartitionCopies
from millpond.log.standby_drivers import StandbyWatch
from millpond.storage import Storage

log = logging.getLogger("millpond")


class HeartbeatThread:
    """Writes a driver's heartbeat from a thread, until the driver stops or another one owns the app.

    In the latter case `lost` is set and no heartbeat is written any more: the file belongs to the other driver. While a
    standby driver waits, it is written more often.
    """

    def __init__(self, storage: Storage, owner: Owner, clock: Clock, every: float = BEAT_SECONDS) -> None:
        self._owner, self._clock = owner, clock
        self._seldom, self._often = every, min(every, WATCHED_BEAT_SECONDS)
        self._pause = self._often  # seconds until the next beat; after a failed one, it is tried again soon
        self._heartbeat = Heartbeat(storage, owner.last.app, owner.id, clock)
        self._standbys = StandbyWatch(storage, owner.last.app, clock)
        self._report: Callable[[], None] = lambda: None
        self._partitions: Callable[[], dict[int, PartitionCopies]] = dict
        self._stopped, self.lost = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="millpond-heartbeat", daemon=True)

    def __enter__(self) -> HeartbeatThread:
        self.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    def start(self) -> None:
        """Write the first heartbeat, and start the thread."""
        with contextlib.suppress(MillpondError):
            self._beat()
        self._thread.start()

    def stop(self, *, remove: bool = True) -> None:
        """Stop the thread, and remove the heartbeat if it is still that of this driver."""
        self._stopped.set()
        self._thread.join(FRESH_SECONDS)
        if remove:
            with contextlib.suppress(MillpondError):
                self._heartbeat.stop()

    def follow(self, report: Callable[[], None], partitions: Callable[[], dict[int, PartitionCopies]] = dict) -> None:
        """From now on, ask with each heartbeat where the partitions are, and call `report` after it."""
        self._report, self._partitions = report, partitions

    def _beat(self) -> None:
        """Write a heartbeat that says when the next one is due."""
        every = self._often
        with contextlib.suppress(MillpondError):  # then it is better to beat too often
            every = self._often if self._standbys.look() else self._seldom
        self._heartbeat.beat(self._owner.last.number, every, self._partitions())
        self._pause = every

    def _run(self) -> None:
        while not self._stopped.wait(self._pause):
            began, self._pause = self._clock.monotonic(), self._often
            try:
                if not self._owner.owns():
                    return self.lost.set()
                self._beat()
                self._report()
            except MillpondError:  # the next beat tries again
                pass
            except Exception:  # without a heartbeat a standby driver would take over an app that runs
                log.exception("%s: a heartbeat has failed; the next one follows", self._owner.last.app)
            self._pause = max(self._pause / 2, self._pause - (self._clock.monotonic() - began))
