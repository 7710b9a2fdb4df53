"""A storage that fails on demand, for tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from threading import Lock
from typing import Literal

from millpond.errors import InvalidUse, Unavailable
from millpond.storage import Item, Storage
from millpond.storage.base import check_listing

Fault = Literal["before", "after", "conflict", "full"]


@dataclass(frozen=True)
class Call:
    """One recorded call of a `FaultyStorage`; a delete of several paths is recorded as a call for each.

    >>> from millpond.testing.faults import Call
    >>> Call("put", "orders/a").verb
    'put'
    """

    verb: Literal["get", "get_range", "put", "put_new", "list", "delete"]
    path: str


@dataclass
class _PlannedFault:
    match: str
    how: Fault
    puts_before: int


@dataclass(frozen=True)
class Copy:
    """The files of a storage as they were when `FaultyStorage.copy` was called.

    >>> from millpond.testing.faults import Copy
    >>> Copy({"orders/a": b"one"}).files["orders/a"]
    b'one'
    """

    files: Mapping[str, bytes]


class FaultyStorage:
    """Wraps a storage: puts fail on demand, files can be damaged, lost or put back, listings can be out of date, and
    calls are recorded.

    It has the URL of the inner storage; a storage that is opened by that URL has no faults.

    >>> from millpond.storage import open_storage
    >>> from millpond.testing.faults import FaultyStorage
    >>> storage = FaultyStorage(open_storage("memory://"))
    >>> storage.fail_put("*/ledger/*", how="after")
    >>> storage.put_new("orders/ledger/1", b"one")
    Traceback (most recent call last):
    ...
    millpond.errors.Unavailable: orders/ledger/1: the reply was lost, as the test asked for
    >>> storage.put_new("orders/ledger/1", b"one")
    False
    >>> [call.verb for call in storage.calls]
    ['put_new', 'put_new']
    """

    def __init__(self, inner: Storage) -> None:
        self.inner = inner
        self.url = inner.url
        self.calls: list[Call] = []
        self._plans: list[_PlannedFault] = []
        self._flips: list[tuple[str, int]] = []
        self._listed: list[Item] | None = None
        self._lock = Lock()

    def fail_put(self, match: str = "*", *, nth: int = 1, how: Fault = "before") -> None:
        """Make the nth `put` or `put_new` from now on, of the paths that match, fail once.

        `match` is a shell pattern whose `*` also takes "/". `how` is one of

        - "before": nothing is written, and `Unavailable` is raised;
        - "after": the file is written, the reply is lost, and `Unavailable` is raised;
        - "conflict": the file is written, and `put_new` returns False although this put has written it (a plain `put`
          has no such result, and behaves as "after");
        - "full": nothing is written, and `Unavailable` says that the disk is full.

        Several faults may be planned at once. Each counts every put that matches it; if two are due, the older one
        acts.

        >>> from millpond.storage import open_storage
        >>> from millpond.testing.faults import FaultyStorage
        >>> storage = FaultyStorage(open_storage("memory://"))
        >>> storage.fail_put(nth=2, how="conflict")
        >>> storage.put_new("a", b"1"), storage.put_new("b", b"2"), storage.get("b")
        (True, False, b'2')
        """
        if nth < 1:
            raise InvalidUse(f"fail_put(nth): expected 1 for the next put, or more, got {nth}")
        self._plans.append(_PlannedFault(match, how, nth - 1))

    def damage(self, path: str, how: Literal["flip", "truncate", "empty"] = "flip", *, at: int | None = None) -> None:
        """Damage a stored file: "flip" one byte, "truncate" it, or "empty" it, as a power loss may.

        `at` is the byte that changes, or the first that goes; without it, the one in the middle.

        >>> from millpond.storage import open_storage
        >>> from millpond.testing.faults import FaultyStorage
        >>> storage = FaultyStorage(open_storage("memory://"))
        >>> storage.put("a", b"abcd")
        >>> storage.damage("a", at=1)
        >>> storage.get("a")
        b'a\\x9dcd'
        """
        data = self.inner.get(path)
        if not data:
            raise InvalidUse(f"damage({path!r}): expected a file that is not empty, got {data!r}")
        place = len(data) // 2 if at is None else at
        if not 0 <= place < len(data):
            raise InvalidUse(f"damage({path!r}): expected at to be from 0 to {len(data) - 1}, got {at}")
        if how == "flip":
            changed = data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :]
        else:
            changed = data[:place] if how == "truncate" else b""
        self.inner.put(path, changed)

    def flip(self, path: str, bit: int) -> None:
        """Flip one bit of a stored file: bit 0 is the lowest of the first byte, -1 the highest of the last.

        >>> from millpond.storage import open_storage
        >>> from millpond.testing.faults import FaultyStorage
        >>> storage = FaultyStorage(open_storage("memory://"))
        >>> storage.put("a", b"abcd")
        >>> storage.flip("a", 8 + 5)
        >>> storage.get("a")
        b'aBcd'
        """
        data = self.inner.get(path)
        if not data or not -8 * len(data) <= bit < 8 * len(data):
            raise InvalidUse(f"flip({path!r}, {bit}): expected a bit of the file, which is {data!r:.100}")
        self.inner.put(path, _flip_bit(data, bit))

    def flip_reads(self, match: str, bit: int) -> None:
        """Flip one bit of every file that matches, whenever it is read from now on; the stored file stays intact.

        >>> from millpond.storage import open_storage
        >>> from millpond.testing.faults import FaultyStorage
        >>> storage = FaultyStorage(open_storage("memory://"))
        >>> storage.put("a", b"abcd")
        >>> storage.flip_reads("a", 5)
        >>> storage.get("a"), storage.inner.get("a")
        (b'Abcd', b'abcd')
        """
        self._flips.append((match, bit))

    def stop_listings(self) -> None:
        """Make every listing from now on return the files that exist now, as an object store that lags behind may.

        >>> from millpond.storage import open_storage
        >>> from millpond.testing.faults import FaultyStorage
        >>> storage = FaultyStorage(open_storage("memory://"))
        >>> storage.stop_listings()
        >>> storage.put("a", b"one")
        >>> list(storage.list("")), storage.get("a")
        ([], b'one')
        >>> storage.resume_listings()
        >>> [item.path for item in storage.list("")]
        ['a']
        """
        self._listed = list(self.inner.list(""))

    def resume_listings(self) -> None:
        """Make listings return the present files again.

        >>> from millpond.storage import open_storage
        >>> from millpond.testing.faults import FaultyStorage
        >>> FaultyStorage(open_storage("memory://")).resume_listings()
        """
        self._listed = None

    def copy(self) -> Copy:
        """Return all files as they are now, to put them back later.

        >>> from millpond.storage import open_storage
        >>> from millpond.testing.faults import FaultyStorage
        >>> storage = FaultyStorage(open_storage("memory://"))
        >>> storage.put("a", b"one")
        >>> copy = storage.copy()
        >>> storage.put("a", b"two"); storage.put("b", b"new")
        >>> storage.put_back(copy)
        >>> storage.get("a"), storage.get("b")
        (b'one', None)
        """
        return Copy({item.path: self.inner.get(item.path) or b"" for item in self.inner.list("")})

    def put_back(self, copy: Copy) -> None:
        """Replace all files by those of a copy, as after a disaster.

        >>> from millpond.storage import open_storage
        >>> from millpond.testing.faults import Copy, FaultyStorage
        >>> storage = FaultyStorage(open_storage("memory://"))
        >>> storage.put_back(Copy({"a": b"one"}))
        >>> storage.get("a")
        b'one'
        """
        self.inner.delete([item.path for item in self.inner.list("") if item.path not in copy.files])
        for path, data in copy.files.items():
            self.inner.put(path, data)

    def lose_tail(self, prefix: str, count: int) -> list[str]:
        """Remove the last files of a folder, in the order of their names, and return their paths.

        In the ledger's folder these are the newest records, as after a disk that reported syncs it had not done.

        >>> from millpond.storage import open_storage
        >>> from millpond.testing.faults import FaultyStorage
        >>> storage = FaultyStorage(open_storage("memory://"))
        >>> for name in "abc":
        ...     storage.put(f"orders/ledger/{name}", b"{}")
        >>> storage.lose_tail("orders/ledger", 2)
        ['orders/ledger/b', 'orders/ledger/c']
        """
        lost = [item.path for item in self.inner.list(prefix)][-count:] if count else []
        self.inner.delete(lost)
        return lost

    def get(self, path: str) -> bytes | None:
        self.calls.append(Call("get", path))
        return self._as_read(path, self.inner.get(path))

    def get_range(self, path: str, start: int, length: int) -> bytes | None:
        self.calls.append(Call("get_range", path))
        if not any(fnmatchcase(path, match) for match, _ in self._flips):
            return self.inner.get_range(path, start, length)
        data = self._as_read(path, self.inner.get(path))
        return None if data is None else data[start : start + length]

    def put(self, path: str, data: bytes | memoryview) -> None:
        self.calls.append(Call("put", path))
        how = self._due(path)
        _raise_before(path, how)
        self.inner.put(path, data)
        if how is not None:
            raise _lost_reply(path)

    def put_new(self, path: str, data: bytes | memoryview) -> bool:
        self.calls.append(Call("put_new", path))
        how = self._due(path)
        _raise_before(path, how)
        created = self.inner.put_new(path, data)
        if how == "after":
            raise _lost_reply(path)
        return created and how != "conflict"

    def list(self, prefix: str, after: str | None = None) -> Iterator[Item]:
        self.calls.append(Call("list", prefix))
        if self._listed is None:
            return self.inner.list(prefix, after)
        check_listing(prefix, after)
        folder = f"{prefix}/" if prefix else ""
        return iter([i for i in self._listed if i.path.startswith(folder) and (after is None or i.path > after)])

    def delete(self, paths: Iterable[str]) -> None:
        gone = paths if isinstance(paths, str) else [*paths]
        self.calls.extend(Call("delete", path) for path in gone)
        self.inner.delete(gone)

    def _as_read(self, path: str, data: bytes | None) -> bytes | None:
        for match, bit in self._flips:
            if data and fnmatchcase(path, match):
                data = _flip_bit(data, bit % (8 * len(data)))
        return data

    def _due(self, path: str) -> Fault | None:
        """Return the fault that is due for this put, and count the put for every planned fault that matches."""
        due: _PlannedFault | None = None
        with self._lock:
            for plan in [plan for plan in self._plans if fnmatchcase(path, plan.match)]:
                if plan.puts_before > 0:
                    plan.puts_before -= 1
                elif due is None:
                    due = plan
            if due is not None:
                self._plans.remove(due)
        return due.how if due else None


def _flip_bit(data: bytes, bit: int) -> bytes:
    place, within = divmod(bit % (8 * len(data)), 8)
    return data[:place] + bytes([data[place] ^ (1 << within)]) + data[place + 1 :]


def _raise_before(path: str, how: Fault | None) -> None:
    if how == "before":
        raise Unavailable(f"{path}: no answer, as the test asked for; nothing was written")
    if how == "full":
        raise Unavailable(f"{path}: the disk is full, as the test asked for; nothing was written")


def _lost_reply(path: str) -> Unavailable:
    return Unavailable(f"{path}: the reply was lost, as the test asked for")
