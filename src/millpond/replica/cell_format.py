"""How a cell of state lies in a local store: its key there, its bytes, and the proof that they are whole.

The store's key is `key NUL cell`; both are JSON text or plain names and hold no NUL themselves, so
the cells of one key lie together and in order. LMDB takes keys of up to 511 bytes: a longer part is
replaced by its beginning and a hash, and the whole of it is kept with the value.

The store notices no flipped byte by itself, so every value begins with a checksum over key, flags and value.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from zlib import crc32

LONG = 1  # the value holds the whole key and cell
DUE = 2  # the value holds an event time
WALL = 4  # the value holds a time of the clock

HEAD = Struct("<IB")
_sizes = Struct("<II")
_due = Struct("<q")
as_due, as_time = _due.pack, _due.unpack_from
KEY_ROOM, _CELL_ROOM, _KEPT = 240, 240, 200


class Damaged(Exception):
    """A store holds bytes that nobody wrote there: it is thrown away and built anew."""


def _fit(part: bytes, room: int) -> bytes:
    if len(part) <= room:
        return part
    return part[:_KEPT] + b"\x01" + blake2b(part, digest_size=16).hexdigest().encode()


def place(key: bytes, cell: bytes = b"") -> bytes:
    """Where a cell lies in the store."""
    if len(key) + len(cell) < KEY_ROOM:
        return key + b"\x00" + cell
    return _fit(key, KEY_ROOM) + b"\x00" + _fit(cell, _CELL_ROOM)


def prefix(key: bytes, cell: bytes = b"") -> bytes:
    """What the places of all cells of a key, and of those that begin with `cell`, begin with.

    Where `cell` is longer than what is kept of a long one, other cells may begin so too.
    """
    return _fit(key, KEY_ROOM) + b"\x00" + cell[:_KEPT]


def pack(at: bytes, key: bytes, cell: bytes, value: bytes, due: int | None = None, wall: int | None = None) -> bytes:
    """The bytes that lie at `at`."""
    flags = 0
    if wall is not None:
        flags, value = WALL, _due.pack(wall) + value
    if due is not None:
        flags, value = flags | DUE, _due.pack(due) + value
    if len(key) + len(cell) >= KEY_ROOM:
        flags, value = flags | LONG, _sizes.pack(len(key), len(cell)) + key + cell + value
    return HEAD.pack(crc32(value, crc32(at, flags)), flags) + value


def unpack(at: bytes, data: bytes) -> bytes:
    """The value in the bytes that lie at `at`, or `Damaged`."""
    if len(data) < 5:
        raise Damaged(f"a value of {len(data)} bytes")
    check, flags = HEAD.unpack_from(data)
    value = data[5:]
    if crc32(value, crc32(at, flags)) != check:
        raise Damaged(f"checksum of {at[:80]!r}")
    if flags:
        if flags & LONG:
            key, cell = _sizes.unpack_from(value)
            value = value[8 + key + cell :]
        value = value[8 * ((flags & DUE > 0) + (flags & WALL > 0)) :]
    return value


def times(data: bytes) -> tuple[int | None, int | None]:
    """The event time and the time of the clock that these bytes hold, where they hold one."""
    flags, start = data[4], 5
    if flags == DUE:  # as most have that have any
        return _due.unpack_from(data, 5)[0], None
    if not flags & (DUE | WALL):
        return None, None
    if flags & LONG:
        start += 8 + sum(_sizes.unpack_from(data, 5))
    due = wall = None
    if flags & DUE:
        due, start = _due.unpack_from(data, start)[0], start + 8
    if flags & WALL:
        wall = _due.unpack_from(data, start)[0]
    return due, wall


_ordered = Struct(">Q")


def by_time(time: int, at: bytes) -> bytes:
    """The place in an index by time of the cell that lies at `at`: earlier ones come first."""
    return _ordered.pack(time + (1 << 63)) + at


def of_time(entry: bytes) -> tuple[int, bytes]:
    """The time of an entry of such an index, and where its cell lies."""
    return _ordered.unpack_from(entry)[0] - (1 << 63), entry[8:]


def address(at: bytes, data: bytes) -> tuple[bytes, bytes]:
    """The key and the cell of the bytes that lie at `at`; `unpack` has proved them whole."""
    if data[4] & LONG:
        key, cell = _sizes.unpack_from(data, 5)
        return data[13 : 13 + key], data[13 + key : 13 + key + cell]
    found, _, cell_bytes = at.partition(b"\x00")
    return found, cell_bytes


def read(at: bytes, data: bytes) -> tuple[bytes, bytes, bytes, int | None, int | None]:
    """Key, cell, value and times in the bytes that lie at `at`, in one go; or `Damaged`."""
    if len(data) < 5:
        raise Damaged(f"a value of {len(data)} bytes")
    check, flags = HEAD.unpack_from(data)
    value = data[5:]
    if crc32(value, crc32(at, flags)) != check:
        raise Damaged(f"checksum of {at[:80]!r}")
    if flags == DUE:  # as most have that are read so
        key, _, cell = at.partition(b"\x00")
        return key, cell, value[8:], _due.unpack_from(value)[0], None
    key, cell = address(at, data)
    return key, cell, unpack(at, data), *times(data)
