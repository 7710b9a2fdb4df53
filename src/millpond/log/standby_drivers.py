"""The files by which standby drivers show that they wait to take an app over.

A standby driver writes its file every few seconds and removes it when it ends or takes over. The owner of the app
writes its heartbeat more often while such a file is fresh; `millpond status` shows them. Like the heartbeat, they are
no lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from millpond.clock import Clock
from millpond.log.checked import write_checked
from millpond.log.heartbeat import BEAT_SECONDS, Beat, is_fresh, make_beat, read_beat
from millpond.log.paths import Paths
from millpond.storage import Storage

STALE_SECONDS = 20.0  # without a change, after which an owner regards a standby driver as gone
LEFT_SECONDS = 600.0  # without a change, after which an owner removes the file


class StandbyFile:
    """The file of one standby driver."""

    def __init__(self, storage: Storage, app: str, id: str, clock: Clock) -> None:
        self._storage, self._clock, self._id = storage, clock, id
        self._path = Paths(app).standby_driver(id)

    def write(self, number: int) -> None:
        """Write that the standby driver waits, and that it has seen this record."""
        write_checked(self._storage, self._path, make_beat(self._id, self._clock.now(), number, BEAT_SECONDS))

    def remove(self) -> None:
        self._storage.delete([self._path])


def standby_drivers(storage: Storage, app: str, clock: Clock) -> list[Beat]:
    """Return the standby drivers that seem to wait for an app, ordered by host and process.

    The clocks of the machines are compared, as for the heartbeat. Files of processes that are known to be gone, and
    damaged ones, are ignored.
    """
    found = [beat for _, beat in _read_files(storage, app) if is_fresh(beat, clock)]
    return sorted(found, key=lambda beat: (beat.host, beat.pid))


def _read_files(storage: Storage, app: str) -> Iterator[tuple[str, Beat]]:
    for item in storage.list(Paths(app).standby_drivers):
        beat = read_beat(storage, item.path)
        if beat is not None:
            yield item.path, beat


@dataclass
class StandbyWatch:
    """What an owner has seen of the standby drivers of its app, by its own monotonic clock.

    A file that was written by another machine is fresh for as long as its contents change: the clocks of two machines
    are not compared.
    """

    storage: Storage
    app: str
    clock: Clock
    _seen: dict[str, tuple[float, float]] = field(default_factory=dict)  # path → time in the file, when that changed

    def look(self) -> bool:
        """Read the files, and return whether a standby driver waits. Removes files that were left long ago."""
        now, files = self.clock.monotonic(), dict(_read_files(self.storage, self.app))
        self._seen = {path: held for path, held in self._seen.items() if path in files}
        for path, beat in files.items():
            if path not in self._seen or self._seen[path][0] != beat.time:
                self._seen[path] = (beat.time, now)
        ages = {path: now - self._seen[path][1] for path in files}
        left = [path for path, age in ages.items() if age >= LEFT_SECONDS]
        if left:
            self.storage.delete(left)
        return any(age < STALE_SECONDS and not files[path].is_dead for path, age in ages.items())
