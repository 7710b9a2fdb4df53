"""The thread that writes a driver's heartbeat."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from millpond.clock import Clock
from millpond.driver.owner import Owner
from millpond.errors import MillpondError
from millpond.log.heartbeat import BEAT_SECONDS, FRESH_SECONDS, Heartbeat, PartitionCopies
from millpond.storage import Storage


class HeartbeatThread:
    """Writes a driver's heartbeat from a thread, until the driver stops or another one owns the app.

    In the latter case `lost` is set and no heartbeat is written any more: the file belongs to the other driver.
    `partitions()` is asked with each heartbeat where the partitions are.
    """

    def __init__(
        self,
        storage: Storage,
        owner: Owner,
        clock: Clock,
        every: float = BEAT_SECONDS,
        *,
        partitions: Callable[[], dict[int, PartitionCopies]] = dict,
    ) -> None:
        self._owner, self._every, self._partitions = owner, every, partitions
        self._heartbeat = Heartbeat(storage, owner.last.app, owner.id, clock)
        self._stopped, self.lost = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="millpond-heartbeat", daemon=True)

    def __enter__(self) -> HeartbeatThread:
        with contextlib.suppress(MillpondError):
            self._heartbeat.beat(self._owner.last.number, self._partitions())
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stopped.set()
        self._thread.join(FRESH_SECONDS)
        with contextlib.suppress(MillpondError):
            self._heartbeat.stop()

    def _run(self) -> None:
        while not self._stopped.wait(self._every):
            with contextlib.suppress(MillpondError):  # the next beat tries again
                if not self._owner.owns():
                    return self.lost.set()
                self._heartbeat.beat(self._owner.last.number, self._partitions())
