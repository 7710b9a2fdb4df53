"""The contract of local stores: what keeps the replica of a partition on the disk, or in the memory, of a host.

A store is a replica: it holds the state at one record of the log, knows which record that is, and applies the records
that follow. It can be thrown away at any time, because the log has everything. `Store` says how one is opened, and
travels to the workers with the program; `OpenStore` is one generation of one replica, in one process.

Any process of a host may use any store at any time. Spark may run the task of a partition in one process now and in
another one for the next batch; processes that read state open the same files; any of them may be stopped or killed
between two instructions. `replica/lending.py` keeps generations apart: a store is built in a folder of its own, which
is then renamed. The store itself only has to be right for processes that open the same folder.

`millpond.testing.store_suite.StoreSuite` has the contract as tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

import pyarrow as pa

from millpond.log.segment import Change
from millpond.replica.view import View

StepChangeRows: TypeAlias = "Sequence[Change] | pa.Table"


class RecordChanges(NamedTuple):
    """One record to apply: its number, its changes, its checksum, and the checksum of the record that it follows.

    A step may come several times, in pieces, and as tables: `millpond.log.segment.read_changes` makes changes of one.

    >>> import millpond as mp
    >>> change = mp.lowlevel.Change(b'"ann"', b"", b"3")
    >>> mp.lowlevel.RecordChanges(7, {"total": [change]}).number
    7
    """

    number: int
    changes: Mapping[str, Sequence[Change]] | Iterable[tuple[str, StepChangeRows]]
    record: str = ""
    previous: str = ""


class Room(NamedTuple):
    """The bytes that a store takes up on its disk, and how many of them it can use again without growing.

    >>> import millpond as mp
    >>> mp.lowlevel.Room(size=4096, free=1024).free
    1024
    """

    size: int
    free: int = 0


class Replaced(Exception):
    """The store is not there: it has not been built yet, or another process has built a newer one.

    >>> import millpond as mp
    >>> str(mp.lowlevel.Replaced("g000001 is gone"))
    'g000001 is gone'
    """


class Stuck(Exception):
    """Another process has held the store's lock for too long; it may be stopped.

    >>> import millpond as mp
    >>> str(mp.lowlevel.Stuck("no lock for 10 s"))
    'no lock for 10 s'
    """


class OpenStore(Protocol):
    """One generation of one replica, opened in this process.

    All methods raise `Damaged` if they meet bytes that no writer put there or an error of the disk, `Replaced` if the
    files are gone, and `Stuck` if another process does not let go of a lock. The store is then built again from the
    log, beside this one; nothing is lost. The text of an error of a full disk contains the one of the operating system
    ("No space left on device"): the error says to make room, and nothing is built again.

    >>> import millpond as mp
    >>> def use(store: mp.lowlevel.OpenStore, record: mp.lowlevel.RecordChanges) -> None:
    ...     assert store.usable
    ...     if store.newest_record()[0] < record.number:
    ...         store.apply(record)
    ...     with store.view() as view:
    ...         print(view.get("total", b'"ann"'), store.room().size)
    ...     store.move(store.path.with_name("g000001"))
    ...     store.close()
    """

    path: Path
    """The folder. `move` changes it."""

    users: int
    """How many use the object in this process; 0 when it is made. The caller counts; the store does not look at it."""

    @property
    def usable(self) -> bool:
        """Whether the files at the path are still the ones that were opened, and this is the process that opened them.

        Asked before each use of a store that was kept open: another process may have replaced it. Raises `Damaged` if
        something else has written to the files, as far as the store can know.
        """
        ...

    def newest_record(self) -> tuple[int, str]:
        """Return the number of the record that the store is at, -1 before the first, and its checksum.

        Called once for each use, before `apply`.
        """
        ...

    def apply(self, record: RecordChanges) -> int:
        """Apply the changes of a record and move to it, in one step; return the number of the record it is at then.

        Called for each record in order, and by several processes for the same record: one at or before the position is
        passed over. `Damaged` if the record is not the next one, or does not follow the record that the store is at
        (`record.previous`); a store at -1 takes any. Whenever the process dies, the store is at the record before or at
        this one, whole. It need not survive a crash of the host: stores from before the last boot are not used. An
        error that is raised while the changes are iterated leaves the store as it was.
        """
        ...

    def view(self) -> AbstractContextManager[View]:
        """Return a view of what the store holds now.

        It does not change while others write, in this process or another one, and no writer waits for it: a batch may
        take minutes, and the process that reads may be stopped for ever. Views may be nested.
        """
        ...

    def room(self) -> Room:
        """Return how large the store is. Called rarely, and for each record if the app has a `local_limit`."""
        ...

    def move(self, path: Path) -> None:
        """Rename the folder; the store stays open. OSError if there is a folder of that name that is not empty."""
        ...

    def close(self) -> None:
        """Let go of files and memory. Called once, when the store is not in use; in a forked child it does nothing."""
        ...


@runtime_checkable
class Store(Protocol):
    """A kind of local store. It is a value that is pickled to the workers: settings, and no open file.

    >>> import millpond as mp
    >>> from pathlib import Path
    >>> app = mp.App("orders", store="lmdb")
    >>> def make(store: mp.lowlevel.Store, local_dir: str) -> mp.lowlevel.OpenStore:
    ...     store.check()
    ...     return store.open(Path(store.home(local_dir), store.name), create=True)
    """

    @property
    def name(self) -> str:
        """A short name of lower-case letters and digits, part of the names of folders. "lmdb" and so on are taken.

        Give a changed format another name: the stores are then built again from the log.
        """
        ...

    def check(self) -> None:
        """Raise `InvalidUse` if the store cannot be used here, because a library is missing, say.

        Called in the user's program, when the store is chosen.
        """
        ...

    def home(self, local_dir: str) -> str:
        """Return the folder below which the replicas are; `local_dir` itself, unless the store needs another place.

        Called on the host of the replica, for each use. `Unavailable` if the host has no such place.
        """
        ...

    def open(self, path: Path, *, create: bool) -> OpenStore:
        """Open the store in a folder. With `create`, make the folder and an empty store at position -1 in it.

        Without, `Replaced` if the folder is gone and `Damaged` if it holds no store.
        """
        ...


@runtime_checkable
class ShrinkingStore(Protocol):
    """An `OpenStore` that does not give free space back by itself, and can be copied without it.

    >>> import millpond as mp
    >>> def shrink(store: mp.lowlevel.OpenStore) -> None:
    ...     if isinstance(store, mp.lowlevel.ShrinkingStore):
    ...         store.copy_shrunk(store.path.with_name("copy"))
    """

    def copy_shrunk(self, path: Path) -> None:
        """Write a store with the same content, at the same record, to a folder that does not exist yet.

        Called in a thread of its own, rarely, while other processes read and write: none of them may have to wait.
        """
        ...
