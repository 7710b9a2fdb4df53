"""Storage in the memory of this process, for tests and experiments. It ends with the process."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from millpond.clock import new_id
from millpond.storage.base import (
    Item,
    check_listing,
    check_path,
    check_paths,
    check_range,
    is_hidden,
)


@dataclass
class _Files:
    """The files of one store. `paths` holds the keys of `files` in order; both change under the lock."""

    files: dict[str, bytes] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)


# Kept until the process ends, because an app may hold nothing but the URL.
_stores: dict[str, _Files] = {}
_stores_lock = Lock()


class MemoryStorage:
    """A store that is shared by all who open its name in this process; without a name, a new one.

    >>> from millpond.storage import MemoryStorage, open_storage
    >>> storage = MemoryStorage()
    >>> storage.put("a", b"one")
    >>> open_storage(storage.url).get("a")
    b'one'
    >>> MemoryStorage().get("a") is None
    True
    """

    def __init__(self, name: str | None = None) -> None:
        name = name or new_id()
        self.url = f"memory://{name}"
        with _stores_lock:
            self._store = _stores.setdefault(name, _Files())

    def __repr__(self) -> str:
        return f"MemoryStorage({self.url.removeprefix('memory://')!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return MemoryStorage, (self.url.removeprefix("memory://"),)

    def get(self, path: str) -> bytes | None:
        return self._store.files.get(check_path(path))

    def get_range(self, path: str, start: int, length: int) -> bytes | None:
        check_range(start, length)
        data = self.get(path)
        return None if data is None else data[start : start + length]

    def put(self, path: str, data: bytes | memoryview) -> None:
        self._write(check_path(path), bytes(data), replace=True)

    def put_new(self, path: str, data: bytes | memoryview) -> bool:
        return self._write(check_path(path), bytes(data), replace=False)

    def list(self, prefix: str, after: str | None = None) -> Iterator[Item]:
        check_listing(prefix, after)
        place = self._store
        with place.lock:
            # "0" is the character behind "/": between the two lie exactly the folder's own paths.
            first = bisect_left(place.paths, f"{prefix}/") if prefix else 0
            last = bisect_left(place.paths, f"{prefix}0") if prefix else len(place.paths)
            if after is not None:
                first = max(first, bisect_right(place.paths, after))
            found = [Item(path, len(place.files[path])) for path in place.paths[first:last]]
        return (item for item in found if not is_hidden(item.path, prefix))

    def delete(self, paths: Iterable[str]) -> None:
        place, gone = self._store, check_paths(paths)
        with place.lock:
            for path in gone:
                if place.files.pop(path, None) is not None:
                    del place.paths[bisect_left(place.paths, path)]

    def _write(self, path: str, data: bytes, *, replace: bool) -> bool:
        place = self._store
        with place.lock:
            if path not in place.files:
                insort(place.paths, path)
            elif not replace:
                return False
            place.files[path] = data
            return True
