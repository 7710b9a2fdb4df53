"""The format of a cell in a local store: its key in the store, its bytes, and their checksum.

The store's key is `key NUL cell`; both are JSON text or plain names and hold no NUL themselves, so
the cells of one key are neighbours, in order. LMDB takes keys of up to 511 bytes: a longer part is
replaced by its beginning and a hash, and the whole of it is kept with the value.

The store notices no flipped byte by itself, so every value begins with a checksum over key, flags and value.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from struct import Struct
from zlib import crc32

IS_LONG = 1  # the value holds the whole key and cell
HAS_DUE = 2  # the value holds an event time
HAS_WALL = 4  # the value holds a time of the clock

CELL_HEAD = Struct("<IB")
_sizes = Struct("<II")
_due = Struct("<q")
pack_time, unpack_time = _due.pack, _due.unpack_from
KEY_ROOM, _CELL_ROOM, _KEPT = 240, 240, 200


class Damaged(BaseException):
    """A store contains bytes that no writer put there. It is thrown away and rebuilt from the log.

    Not an `Exception`: state is read inside the user's functions, and neither their `except Exception` nor the error
    policy of a row may take damage of the store for an error of the row.

    >>> import millpond as mp
    >>> issubclass(mp.lowlevel.Damaged, Exception)
    False
    """


def _fit(part: bytes, room: int) -> bytes:
    if len(part) <= room:
        return part
    return part[:_KEPT] + b"\x01" + blake2b(part, digest_size=16).hexdigest().encode()


def store_key(key: bytes, cell: bytes = b"") -> bytes:
    """Return the key of a cell in the store."""
    if len(key) + len(cell) < KEY_ROOM:
        return key + b"\x00" + cell
    return _fit(key, KEY_ROOM) + b"\x00" + _fit(cell, _CELL_ROOM)


def store_prefix(key: bytes, cell: bytes = b"") -> bytes:
    """Return the common prefix of the store keys of a key's cells whose names begin with `cell`.

    If `cell` is longer than what is kept of a long name, other cells may have the same prefix.
    """
    return _fit(key, KEY_ROOM) + b"\x00" + cell[:_KEPT]


def store_beginning(beginning: bytes) -> bytes:
    """Return the common prefix of the store keys of all keys that begin so; others may have the same prefix."""
    return beginning[:_KEPT]


def pack_cell(
    at: bytes, key: bytes, cell: bytes, value: bytes, due: int | None = None, wall: int | None = None
) -> bytes:
    """Return the bytes of a cell, as they are stored."""
    flags = 0
    if wall is not None:
        flags, value = HAS_WALL, _due.pack(wall) + value
    if due is not None:
        flags, value = flags | HAS_DUE, _due.pack(due) + value
    if len(key) + len(cell) >= KEY_ROOM:
        flags, value = flags | IS_LONG, _sizes.pack(len(key), len(cell)) + key + cell + value
    return CELL_HEAD.pack(crc32(value, crc32(at, flags)), flags) + value


def single_store_keys(keys: Iterable[bytes]) -> list[bytes]:
    """Return the store keys of the unnamed cells of many keys."""
    return [key + b"\x00" if len(key) < KEY_ROOM else store_key(key) for key in keys]


def pack_short_cells(ats: Iterable[bytes], values: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
    """Return store keys and the bytes there, for cells without times whose key and cell are not too long."""
    head = CELL_HEAD.pack
    return [(at, head(crc32(value, crc32(at)), 0) + value) for at, value in zip(ats, values, strict=True)]


def pack_short_single_cells(keys: Iterable[bytes], values: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
    """Do the same for the unnamed cells of keys that are not too long."""
    return pack_short_cells([key + b"\x00" for key in keys], values)


def unpack_cell(at: bytes, data: bytes) -> bytes:
    """Return the value in the bytes at a store key; raise `Damaged` if their checksum is wrong."""
    if len(data) < 5:
        raise Damaged(f"a value of {len(data)} bytes")
    check, flags = CELL_HEAD.unpack_from(data)
    value = data[5:]
    if crc32(value, crc32(at, flags)) != check:
        raise Damaged(f"checksum of {at[:80]!r}")
    if flags:
        if flags & IS_LONG:
            key, cell = _sizes.unpack_from(value)
            value = value[8 + key + cell :]
        value = value[8 * ((flags & HAS_DUE > 0) + (flags & HAS_WALL > 0)) :]
    return value


def cell_times(data: bytes) -> tuple[int | None, int | None]:
    """Return the event time and the time of the clock in the bytes of a cell, None for each that it does not have."""
    flags, start = data[4], 5
    if flags == HAS_DUE:  # as most have that have any
        return _due.unpack_from(data, 5)[0], None
    if not flags & (HAS_DUE | HAS_WALL):
        return None, None
    if flags & IS_LONG:
        start += 8 + sum(_sizes.unpack_from(data, 5))
    due = wall = None
    if flags & HAS_DUE:
        due, start = _due.unpack_from(data, start)[0], start + 8
    if flags & HAS_WALL:
        wall = _due.unpack_from(data, start)[0]
    return due, wall


_ordered = Struct(">Q")


def time_entry(time: int, at: bytes) -> bytes:
    """Return the entry of the cell at a store key in an index by time. Entries sort by time."""
    return _ordered.pack(time + (1 << 63)) + at


def split_time_entry(entry: bytes) -> tuple[int, bytes]:
    """Return the time of an entry of such an index, and the store key of its cell."""
    return _ordered.unpack_from(entry)[0] - (1 << 63), entry[8:]


def cell_address(at: bytes, data: bytes) -> tuple[bytes, bytes]:
    """Return key and cell of the bytes at a store key; `unpack_cell` has checked them."""
    if data[4] & IS_LONG:
        key, cell = _sizes.unpack_from(data, 5)
        return data[13 : 13 + key], data[13 + key : 13 + key + cell]
    found, _, cell_bytes = at.partition(b"\x00")
    return found, cell_bytes


def read_cell(at: bytes, data: bytes) -> tuple[bytes, bytes, bytes, int | None, int | None]:
    """Return key, cell, value and times in the bytes at a store key, in one go; raise `Damaged` if they are wrong."""
    if len(data) < 5:
        raise Damaged(f"a value of {len(data)} bytes")
    check, flags = CELL_HEAD.unpack_from(data)
    value = data[5:]
    if crc32(value, crc32(at, flags)) != check:
        raise Damaged(f"checksum of {at[:80]!r}")
    if flags == HAS_DUE:  # as most have that are read so
        key, _, cell = at.partition(b"\x00")
        return key, cell, value[8:], _due.unpack_from(value)[0], None
    key, cell = cell_address(at, data)
    return key, cell, unpack_cell(at, data), *cell_times(data)
