"""The claims of one run: when it may claim its app, and the heartbeat that is written from each claim on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millpond.clock import Clock
from millpond.driver.heartbeat_thread import HeartbeatThread
from millpond.driver.owner import Owner
from millpond.driver.takeover import LONGEST_GAP, TakeOver
from millpond.log.heartbeat import PartitionCopies, seems_running
from millpond.log.record import Record
from millpond.storage import Storage


class Claims:
    """What a run remembers of the drivers that it has started.

    The first claim of a run takes the app from any driver that owns it; that of a standby driver only if the ledger is
    still as it was when it decided to take over. A run that starts its driver again, because it has failed or because a
    target is unavailable, does not take the app from another driver that runs it meanwhile.

    The heartbeat begins with the claim, not with the first batch: state that is rewritten, or a target that does not
    respond, can take long. `with claims:` stops it at the end.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._beating: HeartbeatThread | None = None
        self._owner: Owner | None = None
        self._takeover: TakeOver | None = None
        self._decided = 0.0  # when that was decided
        self.drivers: set[str] = set()  # the ids of all drivers of this run

    def __enter__(self) -> Claims:
        return self

    def __exit__(self, *_: Any) -> None:
        if self._beating is not None:
            self._beating.stop()
        self._beating, self._owner, self._takeover = None, None, None

    def take_over(self, takeover: TakeOver) -> None:
        """Let the next claim follow the record of this decision, made just now, or none."""
        self._takeover, self._decided = takeover, self._clock.monotonic()

    def may_claim(self, storage: Storage, app: str, newest: Record | None) -> bool:
        """Return whether a claim may follow the newest record."""
        if self._takeover is not None:
            if self._clock.monotonic() - self._decided > LONGEST_GAP:  # this process was paused, or has waited
                return False
            expected = self._takeover.newest
            return (newest and newest.checksum) == (expected and expected.checksum)
        if not self.drivers or newest is None or newest.driver in self.drivers:
            return True
        beat = seems_running(storage, app, self._clock)
        return beat is None or beat.driver in self.drivers

    def claimed(self, owner: Owner) -> None:
        """Write the heartbeat of a driver that has just claimed the app; that of the one before it ends."""
        if owner is self._owner:
            return
        if self._beating is not None:
            self._beating.stop(remove=False)
        self.drivers.add(owner.id)
        self._owner, self._takeover = owner, None
        self._beating = HeartbeatThread(owner.storage, owner, self._clock)
        self._beating.start()

    def follow(self, report: Callable[[], None], partitions: Callable[[], dict[int, PartitionCopies]]) -> None:
        """From now on, ask with each heartbeat where the partitions are, and call `report` after it."""
        assert self._beating is not None
        self._beating.follow(report, partitions)

    @property
    def is_lost(self) -> bool:
        """Whether the heartbeat thread has seen that another driver owns the app."""
        return self._beating is not None and self._beating.lost.is_set()

    def check(self) -> None:
        """Raise `Fenced` if the heartbeat thread has seen that another driver owns the app."""
        if self.is_lost and self._owner is not None:
            self._owner.check()
