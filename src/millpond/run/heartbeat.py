"""The heartbeat: a file that says, politely, who seems to be running an app. It locks nothing."""

from __future__ import annotations

import os
import socket

import msgspec

from millpond.clock import Clock
from millpond.log.paths import Paths
from millpond.storage import Storage

FRESH = 30.0  # seconds after which a heartbeat from another host counts for nothing
BEAT = 5.0


class Beat(msgspec.Struct):
    """Who was running, where, and when they last said so."""

    driver: str
    host: str
    pid: int
    time: float
    number: int


class Heartbeat:
    """Writes an app's heartbeat, not more often than every few seconds."""

    def __init__(self, storage: Storage, app: str, driver: str, clock: Clock) -> None:
        self._storage, self._path, self._driver, self._clock = storage, Paths(app).heartbeat, driver, clock
        self._last = float("-inf")

    def beat(self, number: int) -> None:
        now = self._clock.now()
        if now - self._last >= BEAT:
            self._last = now
            beat = Beat(self._driver, socket.gethostname(), os.getpid(), now, number)
            self._storage.put(self._path, msgspec.json.encode(beat))

    def stop(self) -> None:
        """Take the heartbeat away, unless another driver has taken it over."""
        beat = _read(self._storage, self._path)
        if beat is not None and beat.driver == self._driver:
            self._storage.delete([self._path])


def seems_running(storage: Storage, app: str, clock: Clock) -> Beat | None:
    """Who seems to be running the app; nobody if the last heartbeat is old or its process is gone."""
    beat = _read(storage, Paths(app).heartbeat)
    if beat is None:
        return None
    if beat.host == socket.gethostname():
        return beat if _alive(beat.pid) else None
    return beat if clock.now() - beat.time < FRESH else None


def _read(storage: Storage, path: str) -> Beat | None:
    try:
        return msgspec.json.decode(storage.get(path) or b"", type=Beat)
    except msgspec.MsgspecError:
        return None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
