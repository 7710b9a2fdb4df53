"""Which store each step's state is kept in on a host, and views over all stores of a partition.

The stores of a partition are replicas of their own: each has its own position and catches up by itself with the changes
of its steps. The folder of a store says which steps it holds, so that a step that moves to another store and back never
meets what it left there.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

from millpond.errors import InvalidUse
from millpond.log.point import LogPoint
from millpond.log.recovery import RecoveryFile
from millpond.replica import folders
from millpond.replica.catch_up import PartitionChanges, ReplicaPlace, catch_up, replica_position
from millpond.replica.lending import remove_idle
from millpond.replica.lmdb_store import LMDB
from millpond.replica.memory_store import MemoryStore
from millpond.replica.rocksdb_store import RocksDbStore
from millpond.replica.room import LocalLimit
from millpond.replica.shrink import shrink_when_due
from millpond.replica.store import Store
from millpond.replica.view import Entry, View
from millpond.storage import Storage

_KINDS: dict[str, Store] = {store.name: store for store in (LMDB, RocksDbStore(), MemoryStore())}
_NAME = re.compile("[a-z][a-z0-9]{0,19}")
LOOK_EVERY = 50  # uses of a partition between two looks at what can be tidied up
_uses: dict[tuple[str | None, str, int], tuple[LocalStores | None, int]] = {}  # home, app, partition → stores, uses


def find_store(given: Any, where: str) -> Store:
    """Return the store that the user has chosen by name, or has written; `InvalidUse` if it cannot be used.

    >>> find_store("lmdb", "App(store)").name
    'lmdb'
    """
    store = _KINDS.get(given) if isinstance(given, str) else given
    if not isinstance(store, Store):
        names = ", ".join(f'"{name}"' for name in _KINDS)
        raise InvalidUse(f"{where}: expected one of {names}, or a store of your own (mp.lowlevel.Store), got {given!r}")
    if not isinstance(given, str) and (not _NAME.fullmatch(store.name) or store.name in _KINDS):
        raise InvalidUse(
            f"{where}: the name of a store is 1 to 20 lower-case letters and digits, a letter first, and not one of "
            f"Millpond's own ({', '.join(_KINDS)}); got {store.name!r}"
        )
    store.check()
    return store


@dataclass(frozen=True)
class Slot:
    """One of the stores of a partition: the kind, and the steps in it, or those that are not in it."""

    store: Store = LMDB
    steps: frozenset[str] = frozenset()
    is_default: bool = True  # it holds all steps but those in `steps`, also those that the program does not have

    def holds(self, step: str) -> bool:
        return (step in self.steps) != self.is_default

    @cached_property
    def tag(self) -> str:
        """What tells the folder of the store apart from others of the partition; "" for one LMDB store of all steps."""
        kind = "" if self.store.name == LMDB.name and not self.steps else f"%{self.store.name}"
        if not self.steps:
            return kind
        text = "\0".join((str(self.is_default), *sorted(self.steps)))
        return f"{kind}-{blake2b(text.encode(), digest_size=4).hexdigest()}"


@dataclass(frozen=True)
class LocalStores:
    """The choice of an app: its default store, other stores of some steps, and how large all may grow on a host."""

    default: Store = LMDB
    of_steps: Mapping[str, Store] = field(default_factory=dict)
    limit: int | None = None  # bytes

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """The stores of a partition; the default one comes first."""
        others: dict[str, set[str]] = {}
        for step, store in self.of_steps.items():
            if store.name != self.default.name:
                others.setdefault(store.name, set()).add(step)
        apart = frozenset(step for steps in others.values() for step in steps)
        kinds = {store.name: store for store in self.of_steps.values()}
        return (
            Slot(self.default, apart),
            *(Slot(kinds[name], frozenset(steps), False) for name, steps in sorted(others.items())),
        )

    def slot_of(self, step: str) -> Slot:
        """Return the store that a step is in."""
        return next(slot for slot in self.slots if slot.holds(step))

    def of_step(self, step: str) -> Store:
        return self.slot_of(step).store

    def local_limit(self, app: str, home: str | None) -> LocalLimit | None:
        return None if self.limit is None else LocalLimit(self.limit, app, home)


ONLY_LMDB = LocalStores()


def slot_folder(home: str | None, log_point: LogPoint, partition: int, slot: Slot) -> Path:
    """Return the folder of one of the stores of a partition."""
    return folders.partition_folder(store_home(home, slot.store), log_point, partition, slot.tag)


def table_store_folder(home: str | None, log_point: LogPoint, table: str, store: Store) -> Path:
    """Return the folder of the replica of a whole table, in a kind of store."""
    tag = "" if store.name == LMDB.name else f"%{store.name}"
    return folders.table_folder(store_home(home, store), log_point, table, tag)


def store_home(home: str | None, store: Store) -> str | None:
    """Return the folder of replicas of a kind of store on this host."""
    return home if store is LMDB else store.home(home or folders.default_home())


@dataclass(frozen=True)
class PartitionStores:
    """The stores of a partition on this host. Stores that hold none of the `steps` are not opened; None means all.

    A task of the app `tidies` up after its work. A reader does not: it may keep an LMDB store of its own, and another
    version of the program may have chosen other stores.
    """

    home: str | None
    partition: int
    stores: LocalStores = ONLY_LMDB
    steps: Collection[str] | None = None
    tidies: bool = False
    report: RecoveryFile | None = None  # how a driver learns how much of a replica is loaded

    @contextmanager
    def catch_up(self, storage: Storage, log_point: LogPoint, *, rebuild: bool = False) -> Iterator[View]:
        """Yield a view of the state, when all stores have reached the record of a log point, or a later one.

        With `rebuild` the stores are built from the log. The view's position is that of the log point only if all
        stores are exactly there. Raises what `replica.catch_up.catch_up` raises.
        """
        slots, places = self._slots, self.places(log_point)
        with ExitStack() as stack:
            views: list[View] = []
            for slot, place in zip(slots, places, strict=True):
                holds = None if slot.is_default and not slot.steps else slot.holds
                changes = PartitionChanges(storage, self.partition, holds, self.report)
                views.append(stack.enter_context(catch_up(storage, log_point, place, changes, rebuild=rebuild)))
            yield views[0] if len(views) == 1 else RoutedView(slots, views)
        if self.tidies:
            self._tidy(log_point, [place.folder for place in places])

    @property
    def _slots(self) -> list[Slot]:
        slots = self.stores.slots
        return [slot for slot in slots if self.steps is None or any(map(slot.holds, self.steps))] or [slots[0]]

    def places(self, log_point: LogPoint) -> list[ReplicaPlace]:
        """Return where the stores are at a point of the log."""
        limit = self.stores.local_limit(log_point.app, self.home)
        return [
            ReplicaPlace(slot_folder(self.home, log_point, self.partition, slot), slot.store, limit)
            for slot in self._slots
        ]

    def position(self, log_point: LogPoint) -> int | None:
        """Return the record that all stores have reached, as they are; None if one is missing or cannot be used."""
        found = [replica_position(place) for place in self.places(log_point)]
        positions = [position for position in found if position is not None]
        return min(positions) if len(positions) == len(found) else None

    def folder(self, log_point: LogPoint) -> Path:
        """Return the folder of the store, the first one if there are several, for messages."""
        return slot_folder(self.home, log_point, self.partition, self._slots[0])

    def _tidy(self, log_point: LogPoint, folders_in_use: list[Path]) -> None:
        """Remove what other choices of stores have left of the partition, and shrink stores that are mostly free.

        A process looks rarely, at the end of a task. It never raises.
        """
        name = (self.home, log_point.app, self.partition)
        before, uses = _uses.get(name, (None, 0))
        _uses[name] = (self.stores, uses + 1)
        if before == self.stores and uses % LOOK_EVERY:
            return
        for slot, folder in zip(self._slots, folders_in_use, strict=True):
            shrink_when_due(slot.store, folder)
        chosen = {slot.tag for slot in self.stores.slots}
        in_memory = str(folders.memory_home(self.home or folders.default_home()))
        for home in (self.home, in_memory):
            remove_idle(folders.other_stores(folders.partition_folder(home, log_point, self.partition), chosen))


class RoutedView:
    """A `View` of several stores of one partition, each with steps of its own."""

    def __init__(self, slots: Sequence[Slot], views: Sequence[View]) -> None:
        self._slots, self._views = slots, views
        newest = max(views, key=lambda view: view.position)  # none is before the record that was asked for
        self.position, self.record = newest.position, newest.record
        self._by_step: dict[str, View] = {}

    def _view(self, step: str) -> View:
        found = self._by_step.get(step)
        if found is None:
            held = [view for slot, view in zip(self._slots, self._views, strict=True) if slot.holds(step)]
            if not held:
                raise LookupError(f"step {step!r} is in none of the stores that were opened")
            found = self._by_step[step] = held[0]
        return found

    @property
    def timed_steps(self) -> Set[str]:
        return {step for view in self._views for step in view.timed_steps}

    def get(self, step: str, key: bytes, cell: bytes = b"") -> bytes | None:
        return self._view(step).get(step, key, cell)

    def get_many(self, step: str, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._view(step).get_many(step, keys)

    def get_cells(self, step: str, keys: Sequence[bytes], cells: Sequence[bytes]) -> list[bytes | None]:
        return self._view(step).get_cells(step, keys, cells)

    def entry(self, step: str, key: bytes, cell: bytes = b"") -> Entry | None:
        return self._view(step).entry(step, key, cell)

    def entries(self, step: str, key: bytes | None = None, cell: bytes = b"") -> Iterator[Entry]:
        return self._view(step).entries(step, key, cell)

    def scan(self, step: str, key: bytes | None = None, cell: bytes = b"") -> Iterator[tuple[bytes, bytes, bytes]]:
        return self._view(step).scan(step, key, cell)

    def scan_keys(self, step: str, beginning: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._view(step).scan_keys(step, beginning)

    def range(self, step: str, key: bytes, first: bytes, last: bytes) -> Iterator[Entry]:
        return self._view(step).range(step, key, first, last)

    def last(self, step: str, key: bytes, first: bytes, last: bytes) -> Entry | None:
        return self._view(step).last(step, key, first, last)

    def latest(self, step: str) -> int | None:
        return self._view(step).latest(step)

    def due(
        self, step: str, until: int, *, wall: bool = False, after: int | None = None, exclude: Container[bytes] = ()
    ) -> Iterator[Entry]:
        return self._view(step).due(step, until, wall=wall, after=after, exclude=exclude)

    def all_due(
        self, step: str, until: int, *, exclude: Container[bytes] = ()
    ) -> tuple[list[bytes], list[bytes], list[bytes]]:
        return self._view(step).all_due(step, until, exclude=exclude)

    def count(self, step: str) -> int:
        return self._view(step).count(step)
