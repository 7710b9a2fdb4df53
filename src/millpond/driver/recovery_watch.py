"""Log lines of the driver about replicas that workers rebuild from the log, while a batch waits for them."""

from __future__ import annotations

import logging

from millpond.clock import Clock
from millpond.errors import MillpondError
from millpond.log.recovery import Recovery, read_recoveries, remove_old_recoveries
from millpond.storage import Storage

log = logging.getLogger("millpond")

WATCH_AFTER_SECONDS = 5.0  # a batch that takes less is not looked at, and costs nothing
MOST_SHOWN = 8  # partitions in one line


class RecoveryWatch:
    """Looks for the progress of workers while a batch takes long, and logs it. Belongs to one driver."""

    def __init__(self, storage: Storage, app: str, driver: str, clock: Clock) -> None:
        self._storage, self._app, self._driver, self._clock = storage, app, driver, clock
        self.batch: tuple[int, float] | None = None  # that is computed, and since when on the monotonic clock
        self._has_removed_old = False

    def report(self) -> None:
        """Log what is rebuilt, if anything is. Called every few seconds, from the thread of the heartbeat."""
        batch = self.batch
        if batch is None or self._clock.monotonic() - batch[1] < WATCH_AFTER_SECONDS:
            return
        try:
            if not self._has_removed_old:
                remove_old_recoveries(self._storage, self._app, self._driver)
                self._has_removed_old = True
            found = read_recoveries(self._storage, self._app, self._driver, batch[0], self._clock)
        except MillpondError:  # the next call tries again
            return
        if found:
            log.info("%s: batch %d waits: %s", self._app, batch[0], describe_recoveries(found))


def describe_recoveries(found: list[Recovery]) -> str:
    """Return in words which partitions are rebuilt.

    >>> describe_recoveries([Recovery("d", 7, 3, "host-a", 0.0, done=1, cells=4, seconds=10.0)])
    'state is rebuilt from the log: partition 3 on host-a: 1 of 4 cells, about 30 s left'
    """
    shown = "; ".join(each.describe() for each in found[:MOST_SHOWN])
    more = f"; and {len(found) - MOST_SHOWN} more" if len(found) > MOST_SHOWN else ""
    return f"state is rebuilt from the log: {shown}{more}"
