"""How large the replicas of an app are on a host, how large they may grow, and when a store is copied to shrink."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from millpond.errors import InvalidUse, Unavailable
from millpond.log.segment import Change, SingleCellChanges
from millpond.replica import folders
from millpond.replica.store import OpenStore, RecordChanges, StepChangeRows
from millpond.replica.store import Room as Room

SHRINK_SIZE = 64 << 20  # smaller stores are left as they are
SHRINK_FREE = 0.75  # of a store that is copied, this much at least is free
CELL_OVERHEAD = 24  # bytes that a store needs for each cell besides key and value

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{letter}B".upper(): 1000**n for n, letter in enumerate("kMGTP", 1)}
_UNITS |= {f"{letter}iB".upper(): 1024**n for n, letter in enumerate("KMGTP", 1)}


def parse_bytes(given: Any, where: str) -> int:
    """Return a number of bytes that is given as such, or as text with a unit.

    >>> parse_bytes("1.5 GB", "App(local_limit)"), parse_bytes("4KiB", "App(local_limit)")
    (1500000000, 4096)
    """
    if type(given) is int and given > 0:
        return given
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", given) if isinstance(given, str) else None
    unit = None if found is None else _UNITS.get(found[2].upper())
    if found is None or unit is None or float(found[1]) * unit < 1:
        raise InvalidUse(f'{where}: expected a number of bytes, or text such as "20GB" or "512MiB", got {given!r}')
    return round(float(found[1]) * unit)


def should_shrink(room: Room) -> bool:
    """Return whether a store is so large, and so much of it free, that a copy without free space is worth its cost.

    >>> should_shrink(Room(size=100 << 20, free=90 << 20)), should_shrink(Room(size=100 << 20, free=50 << 20))
    (True, False)
    """
    return room.size > SHRINK_SIZE and room.free > SHRINK_FREE * room.size


def exceeds(used: int, room: Room, incoming: int, limit: int) -> bool:
    """Return whether a store has to grow by some bytes beyond a limit; `used` is what all stores take up now.

    A store that can take them into its free space may go on, even if the limit was passed before.

    >>> exceeds(used=90, room=Room(size=50, free=5), incoming=20, limit=100)
    True
    >>> exceeds(used=120, room=Room(size=50, free=30), incoming=20, limit=100)
    False
    """
    growth = incoming - room.free
    return growth > 0 and used + growth > limit


@dataclass(frozen=True)
class LocalLimit:
    """How many bytes the replicas of an app may take up on one host, on disk and in memory together."""

    bytes: int
    app: str
    home: str | None

    def guard(self, record: RecordChanges, folder: Path, store: OpenStore | None) -> RecordChanges:
        """Return a record whose changes raise `Unavailable` where the limit would be exceeded, and nothing is applied.

        `store` is the one that applies it, None for one that is being built in `folder`.
        """
        room = Room(0) if store is None else store.room()
        used = self._used(exclude=folder if store is None else None)
        if isinstance(record.changes, Mapping):
            incoming = sum(map(_bytes_of, record.changes.values()))
            self._check(used, room, incoming)
            return record
        return record._replace(changes=self._guard_pieces(record.changes, used, room))

    def _guard_pieces(
        self, changes: Iterable[tuple[str, StepChangeRows]], used: int, room: Room
    ) -> Iterator[tuple[str, StepChangeRows]]:
        incoming = 0
        for step, rows in changes:
            incoming += _bytes_of(rows)
            self._check(used, room, incoming)
            yield step, rows

    def _check(self, used: int, room: Room, incoming: int) -> None:
        if exceeds(used, room, incoming, self.bytes):
            raise Unavailable(
                f"app {self.app!r}: its local replicas below {self.home or folders.default_home()} take up {used} "
                f"bytes on this host, and {incoming} more would be beyond local_limit, {self.bytes} bytes. Raise "
                "App(local_limit=), spread the partitions over more hosts, or keep less state (ttl=). Nothing is lost: "
                "the state is in the log, and the app goes on from the same record when there is room."
            )

    def _used(self, exclude: Path | None) -> int:
        home = self.home or folders.default_home()
        places = [folders.app_folder(place, self.app) for place in (home, str(folders.memory_home(home)))]
        return sum(size_below(place, exclude) for place in places)


def size_below(folder: Path | str, exclude: Path | None = None) -> int:
    """Return the bytes that the files below a folder take up on their disk; files that go meanwhile count as 0."""
    size = 0
    try:
        with os.scandir(folder) as found:
            for entry in found:
                if entry.is_dir(follow_symlinks=False):
                    size += 0 if exclude is not None and entry.path == str(exclude) else size_below(entry.path, exclude)
                else:
                    size += _blocks(entry)
    except OSError:
        pass
    return size


def _blocks(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_blocks * 512
    except OSError:
        return 0


def _bytes_of(rows: StepChangeRows | Sequence[Change]) -> int:
    if isinstance(rows, pa.Table):
        return int(rows.nbytes) + CELL_OVERHEAD * len(rows)
    if isinstance(rows, SingleCellChanges):
        return sum(map(len, rows.keys)) + sum(len(value) for value in rows.values if value) + CELL_OVERHEAD * len(rows)
    return sum(len(c.key) + len(c.cell) + len(c.value or b"") + CELL_OVERHEAD for c in rows)
