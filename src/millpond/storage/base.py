"""What a storage promises: whole files under paths, put-if-absent, listing in order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from millpond.errors import InvalidUse

# "/"-separated names, none of them empty, "." or "..". Control characters are out because object
# stores refuse some and file systems others, and lone surrogates because no store can encode them.
_NAME = r"(?!\.{1,2}(?:/|$))[^/\x00-\x1f\x7f\ud800-\udfff]+"
_PATH = re.compile(rf"{_NAME}(?:/{_NAME})*")


@dataclass(frozen=True, slots=True)
class Item:
    """One stored file, as `Storage.list` tells of it.

    >>> from millpond.storage import Item
    >>> Item("orders/ledger/1.json", 420).size
    420
    """

    path: str
    size: int


@runtime_checkable
class Storage(Protocol):
    """A place for whole files that outlives the process, on disk, in memory or in an object store.

    Paths are relative, "/"-separated and never hold "..": `orders/ledger/1.json`. No path is also the
    folder of another. A name that begins with a dot is hidden: it can be put, read and deleted, but
    `list` leaves it out. Any number of threads and processes may use one place at once, and a storage
    can be pickled: its copy is the same place.

    Every verb raises `InvalidUse` for a path of another form, and where a person has to act
    (permissions, credentials, a missing bucket); `Unavailable` where the same call may work later (a
    full disk, the network). `millpond.testing.storage_suite` checks all that is said here.

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
    """`open_storage(url)`, in another process too, gives the same place."""

    def get(self, path: str) -> bytes | None:
        """The whole file as one put left it, never a mixture of two; None if nothing is there."""
        ...

    def get_range(self, path: str, start: int, length: int) -> bytes | None:
        """The bytes from `start` on, at most `length`: fewer at the end of the file, none behind it.
        None if nothing is there."""
        ...

    def put(self, path: str, data: bytes | memoryview) -> None:
        """Create the file or replace it, whole or not at all. Once this returns a power loss does not
        undo it. If it raises `Unavailable`, the file may be the old or the new one."""
        ...

    def put_new(self, path: str, data: bytes | memoryview) -> bool:
        """Create the file, unless something is there: of all who try, one gets True.

        Whatever the answer, what is there when it comes is durable. False may mean our own put, whose
        reply was lost, and so may `Unavailable`: the caller reads back what is there.
        """
        ...

    def list(self, prefix: str, after: str | None = None) -> Iterator[Item]:
        """Every file below the folder `prefix` ("" is the root), at any depth, in the order of the paths'
        UTF-8 bytes; only those strictly behind the path `after`, which need not exist. What others put or
        delete meanwhile may or may not be seen."""
        ...

    def delete(self, paths: Iterable[str]) -> None:
        """Remove these files; those that are not there are fine. A power loss may bring some back."""
        ...


def check_path(path: str) -> str:
    """The path itself if it is one that every storage takes.

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
    """All of them, checked before anything is done with the first.

    >>> from millpond.storage.base import check_paths
    >>> check_paths(path for path in ["a", "b/c"])
    ['a', 'b/c']
    """
    if isinstance(paths, str):  # would otherwise be taken for one path per letter
        raise InvalidUse(f"storage paths: expected several paths, got the string {paths!r}; put it in a list")
    return [check_path(path) for path in paths]


def check_listing(prefix: str, after: str | None) -> None:
    """Refuse what `Storage.list` does not take.

    >>> from millpond.storage.base import check_listing
    >>> check_listing("", after=None)
    >>> check_listing("orders", after="orders/a")
    """
    if prefix != "":
        check_path(prefix)
    if after is not None:
        check_path(after)


def check_range(start: int, length: int) -> None:
    """Refuse a range that counts from the end or has less than nothing in it.

    >>> from millpond.storage.base import check_range
    >>> check_range(-8, 8)
    Traceback (most recent call last):
    ...
    millpond.errors.InvalidUse: get_range: expected start and length of 0 or more, got start -8 and length 8
    """
    if start < 0 or length < 0:
        raise InvalidUse(f"get_range: expected start and length of 0 or more, got start {start} and length {length}")


def as_view(data: bytes | memoryview) -> memoryview:
    """The bytes as one flat run, without a copy wherever they already are one.

    >>> from millpond.storage.base import as_view
    >>> bytes(as_view(memoryview(b"abcdef")[::2]))
    b'ace'
    """
    view = memoryview(data)
    return view.cast("B") if view.c_contiguous else memoryview(view.tobytes())


def is_hidden(path: str, prefix: str) -> bool:
    """Whether a name below the folder `prefix` begins with a dot, so that listing the folder leaves it out.

    >>> from millpond.storage.base import is_hidden
    >>> is_hidden("orders/.probe", "orders"), is_hidden(".spark/offsets/1", ".spark")
    (True, False)
    """
    return "/." in (path[len(prefix) :] if prefix else f"/{path}")
