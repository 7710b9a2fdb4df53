"""The heartbeat: a file that says which process seems to run an app, so that maintenance does not begin beside it.

It is no lock. A driver writes it every few seconds, from a thread, for as long as it owns the app; a heartbeat that is
not fresh is ignored. Each says when the next one is due: sooner while a standby driver waits (`standby_drivers.py`). On
the machine that wrote it, a dead process is noticed at once, by its id and its start time: the id alone is not enough,
because the first process of a container always has the same one.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from pathlib import Path

import msgspec

from millpond.clock import Clock, boot
from millpond.errors import Corrupt, InvalidUse
from millpond.log.checked import read_checked, write_checked
from millpond.log.paths import Paths
from millpond.storage import Storage

FRESH_SECONDS = 30.0  # an older heartbeat, or one so far in the future, is ignored
BEAT_SECONDS = 5.0
WATCHED_BEAT_SECONDS = 1.0  # between beats while a standby driver waits
_OLD = b'{"driver"'  # how a file of an earlier version begins, without a checksum


class StandbyCopy(msgspec.Struct, omit_defaults=True):
    """A standby of a partition: its host, the records that it lacks (None: there is no copy), and if it is ready."""

    host: str
    lag: int | None = None
    ready: bool = False


class PartitionCopies(msgspec.Struct, omit_defaults=True):
    """The host that computes a partition, and its standbys."""

    host: str
    standbys: list[StandbyCopy] = msgspec.field(default_factory=list)


class Beat(msgspec.Struct, omit_defaults=True):
    """The contents of the heartbeat: which process ran the app, and when it last wrote this."""

    driver: str
    host: str
    pid: int
    time: float
    number: int
    machine: str = ""  # process ids can be compared within one of these
    started: str = ""  # the start time of the process, as the operating system formats it
    every: float = BEAT_SECONDS  # seconds after which the next one is due
    partitions: dict[int, PartitionCopies] = msgspec.field(default_factory=dict)  # empty if there is only one host

    @property
    def is_dead(self) -> bool:
        """Whether the process is known to be gone: only if it ran on this machine."""
        if not self.started or self.machine != _machine():
            return False
        found = _start_time(self.pid)
        return found != self.started and not (found is None and _is_hidden(self.pid))


def make_beat(driver: str, time: float, number: int, every: float) -> Beat:
    """Return a beat of this process."""
    pid = os.getpid()
    return Beat(driver, socket.gethostname(), pid, time, number, _machine(), _start_time(pid) or "", every)


class Heartbeat:
    """Writes an app's heartbeat."""

    def __init__(self, storage: Storage, app: str, driver: str, clock: Clock) -> None:
        self._storage, self._path, self._driver, self._clock = storage, Paths(app).heartbeat, driver, clock

    def beat(
        self, number: int, every: float = BEAT_SECONDS, partitions: dict[int, PartitionCopies] | None = None
    ) -> None:
        """Write that the driver runs, its newest record, when the next beat is due, and where its partitions are."""
        beat = make_beat(self._driver, self._clock.now(), number, every)
        beat.partitions = partitions or {}
        write_checked(self._storage, self._path, beat)

    def stop(self) -> None:
        """Remove the heartbeat, unless another driver has written it."""
        beat = read_beat(self._storage, self._path)
        if beat is not None and beat.driver == self._driver:
            self._storage.delete([self._path])


def seems_running(storage: Storage, app: str, clock: Clock) -> Beat | None:
    """Return the heartbeat of the process that seems to run the app.

    None if the last heartbeat is not fresh, or if its process is known to be gone.
    """
    beat = read_beat(storage, Paths(app).heartbeat)
    return beat if beat is not None and is_fresh(beat, clock) else None


def is_fresh(beat: Beat, clock: Clock) -> bool:
    """Return whether a beat is recent by the clocks of both machines, and its process is not known to be gone."""
    # One that is far in the future was written by a clock that was wrong, and is not now.
    return abs(clock.now() - beat.time) < FRESH_SECONDS and not beat.is_dead


def check_stopped(storage: Storage, app: str, clock: Clock, what: str, *, force: bool = False) -> None:
    """Raise `InvalidUse` if the app seems to run, unless `force` states that it does not."""
    beat = None if force else seems_running(storage, app, clock)
    if beat is not None:
        age = max(0, round(clock.now() - beat.time))
        raise InvalidUse(
            f"{what}: app {app!r} is running on {beat.host}, process {beat.pid}: its last heartbeat is {age} s old. "
            f"Stop it first. If that process is gone, wait {round(FRESH_SECONDS)} s, or say --force (force=True in "
            "Python): a driver that runs after all is then fenced, and loses nothing. Nothing was changed."
        )


def read_beat(storage: Storage, path: str) -> Beat | None:
    """Return the beat in a file; None if there is none, or if it is damaged."""
    try:
        data = read_checked(storage, path, old=_OLD)
        return None if data is None else msgspec.json.decode(data, type=Beat)
    except (Corrupt, msgspec.MsgspecError):  # it is no lock
        return None


def _machine() -> str:
    """Identify the space of process ids: the machine since its last boot, and the container."""
    with contextlib.suppress(OSError):
        return f"{boot()} {os.readlink('/proc/self/ns/pid')}"
    return f"{boot()} {socket.gethostname()}"


def _is_hidden(pid: int) -> bool:
    """Return whether a process is there that this user may not see, as with `hidepid` on Linux."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        pass
    return False


def _start_time(pid: int) -> str | None:
    """Return the start time of a process, as text to compare; None if there is no such process."""
    if Path("/proc/self/stat").exists():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            return None if fields[0] in "ZX" else fields[19]  # dead, though its parent has not noticed
        except (OSError, IndexError):
            return None
    found = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return found.stdout.strip() or None
