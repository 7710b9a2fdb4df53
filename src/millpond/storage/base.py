"""The contract of storages: whole files under paths, put-if-absent, listing in order."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from millpond.errors import InvalidUse

# Names separated by "/", none of them empty, "." or "..". Control characters are refused because object stores refuse
# some and file systems others, and lone surrogates because no store can encode them.
_NAME = r"(?!\.{1,2}(?:/|$))[^/\x00-\x1f\x7f\ud800-\udfff]+"
_PATH = re.compile(rf"{_NAME}(?:/{_NAME})*")
is_path = _PATH.fullmatch  # of a string; `check_path` says what is wrong with others


@dataclass(frozen=True, slots=True)
class Item:
    """One stored file, as `Storage.list` yields it.

    >>> from millpond.storage import Item
    >>> Item("orders/ledger/1.json", 420).size
    420
    """

    path: str
    size: int


@runtime_checkable
class Storage(Protocol):
    """A store of whole files on a disk, in memory or in an object store.

    It is used on the driver and in the workers: any number of threads and processes may use one store at once. A
    storage can be pickled; the copy is the same store. Paths are relative, separated by "/" and never contain "..":
    `orders/ledger/1.json`. No path is also the folder of another. A name that begins with a dot is hidden: it can be
    put, read and deleted, but `list` leaves it out.

    Every method raises `InvalidUse` for a path of another form, and if a person has to act (permissions, credentials, a
    missing bucket). It raises `Unavailable` if the same call may work later (a full disk, the network); the callers in
    Millpond then try again or end the run, and never take it for "no such file". `millpond.testing.storage_suite`
    checks all of this.

    >>> from millpond.storage import open_storage
    >>> storage = open_storage("memory://")
    >>> storage.put("orders/a", b"one")
    >>> storage.put_new("orders/a", b"two")
    False
    >>> storage.get("orders/a"), storage.get_range("orders/a", 1, 2)
    (b'one', b'ne')
    >>> [item.path for item in storage.list("orders")]
    ['orders/a']
    >>> storage.delete(["orders/a"])
    >>> list(storage.list(""))
    []
    """

    url: str
    """`open_storage(url)` opens the same store, in any process."""

    def get(self, path: str) -> bytes | None:
        """Return the whole file as one put left it, never a mixture of two; None if there is no file."""
        ...

    def get_range(self, path: str, start: int, length: int) -> bytes | None:
        """Return at most `length` bytes from `start` on: fewer at the end of the file, `b""` past it.
        None if there is no file."""
        ...

    def put(self, path: str, data: bytes | memoryview) -> None:
        """Create the file or replace it, whole or not at all. When this returns, the file survives a power
        loss. If it raises `Unavailable`, the file may be the old or the new one."""
        ...

    def put_new(self, path: str, data: bytes | memoryview) -> bool:
        """Create the file unless there is one. Of all callers that try, exactly one gets True.

        The file that is there on return survives a power loss, also if another wrote it. After False or `Unavailable`,
        the file may be this caller's own, put by a request whose reply was lost: the caller reads it back and compares.
        """
        ...

    def list(self, prefix: str, after: str | None = None) -> Iterator[Item]:
        """Yield every file below the folder `prefix` ("" is the root), at any depth, in the order of the paths'
        UTF-8 bytes; with `after`, only those strictly after that path, which need not exist. Files that are put or
        deleted meanwhile may or may not be yielded."""
        ...

    def delete(self, paths: Iterable[str]) -> None:
        """Remove these files; a file that does not exist is no error. A power loss may bring some back."""
        ...


@runtime_checkable
class FolderStorage(Storage, Protocol):
    """A storage whose folders stay when they are empty. Optional: object stores have no folders."""

    def sweep(self, prefix: str, is_over: Callable[[str], bool]) -> None:
        """Remove the empty folders right below the folder `prefix` for whose path `is_over(path)` is true.

        Called on the driver after a compaction. A folder that cannot be removed is left, without an error.
        """
        ...


def check_path(path: str) -> str:
    """Return the path if every storage accepts it; raise `InvalidUse` otherwise.

    >>> from millpond.storage.base import check_path
    >>> check_path("orders/ledger/1.json")
    'orders/ledger/1.json'
    >>> check_path("../other")
    Traceback (most recent call last):
    ...
    millpond.errors.InvalidUse: storage path: expected a relative path such as 'orders/a.json', without '.', \
'..', empty names or control characters, got '../other'
    """
    if not isinstance(path, str) or not _PATH.fullmatch(path):
        raise InvalidUse(
            "storage path: expected a relative path such as 'orders/a.json', without '.', '..', empty names "
            f"or control characters, got {path!r}"
        )
    return path


def check_paths(paths: Iterable[str]) -> list[str]:
    """Return the paths as a list, all checked before the first is used.

    >>> from millpond.storage.base import check_paths
    >>> check_paths(path for path in ["a", "b/c"])
    ['a', 'b/c']
    """
    if isinstance(paths, str):  # it would be taken for one path per letter
        raise InvalidUse(f"storage paths: expected several paths, got the string {paths!r}; put it in a list")
    return [check_path(path) for path in paths]


def check_listing(prefix: str, after: str | None) -> None:
    """Raise `InvalidUse` for arguments that `Storage.list` does not accept.

    >>> from millpond.storage.base import check_listing
    >>> check_listing("", after=None)
    >>> check_listing("orders", after="orders/a")
    """
    if prefix != "":
        check_path(prefix)
    if after is not None:
        check_path(after)


def check_range(start: int, length: int) -> None:
    """Raise `InvalidUse` for a negative start or length.

    >>> from millpond.storage.base import check_range
    >>> check_range(-8, 8)
    Traceback (most recent call last):
    ...
    millpond.errors.InvalidUse: get_range: expected start and length of 0 or more, got start -8 and length 8
    """
    if start < 0 or length < 0:
        raise InvalidUse(f"get_range: expected start and length of 0 or more, got start {start} and length {length}")


def as_view(data: bytes | memoryview) -> memoryview:
    """Return the bytes as one contiguous view, copied only if they are not contiguous.

    >>> from millpond.storage.base import as_view
    >>> bytes(as_view(memoryview(b"abcdef")[::2]))
    b'ace'
    """
    view = memoryview(data)
    return view.cast("B") if view.c_contiguous else memoryview(view.tobytes())


def is_hidden(path: str, prefix: str) -> bool:
    """Return whether a name below the folder `prefix` begins with a dot, so that listing the folder leaves it out.

    >>> from millpond.storage.base import is_hidden
    >>> is_hidden("orders/.probe", "orders"), is_hidden(".spark/offsets/1", ".spark")
    (True, False)
    """
    return "/." in (path[len(prefix) :] if prefix else f"/{path}")
