"""A pointer: the path of an immutable file, and what its bytes must be."""

from __future__ import annotations

from hashlib import blake2b

from msgspec import Struct

from millpond.errors import Corrupt
from millpond.storage import Storage


class Pointer(Struct, frozen=True):
    """Names one immutable file; whoever reads it checks that it is still what was written."""

    path: str
    rows: int
    bytes: int
    checksum: str


def checksum(data: bytes | memoryview) -> str:
    return blake2b(data, digest_size=16).hexdigest()


def write(storage: Storage, path: str, data: bytes | memoryview, rows: int) -> Pointer:
    """Write a file under a name that nothing else has, durably, and point to it."""
    storage.put(path, data)
    return Pointer(path, rows, len(data), checksum(data))


def read(storage: Storage, pointer: Pointer) -> bytes:
    """The bytes that were written, or `Corrupt`: never other bytes."""
    data = storage.get(pointer.path)
    if data is None:
        raise Corrupt(
            f"{storage.url}: {pointer.path} is missing, and the ledger needs it. Put it back from a copy "
            "of the state directory; the ledger and all other files are as they were."
        )
    if len(data) != pointer.bytes or checksum(data) != pointer.checksum:
        raise Corrupt(
            f"{storage.url}: {pointer.path} is damaged: expected {pointer.bytes} bytes with checksum "
            f"{pointer.checksum}, found {len(data)} bytes with {checksum(data)}. Put the file back from "
            "a copy of the state directory; nothing has been changed."
        )
    return data
