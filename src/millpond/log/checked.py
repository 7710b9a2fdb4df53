"""Small files that carry a checksum of themselves.

Such a file is a JSON object whose first field is the checksum of all bytes behind it. Ledger records, the floor, the
heartbeat and `savepoint.json` are written this way. Larger files carry none: the record or manifest that names them
does, in a `Pointer`.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import msgspec

from millpond.errors import Corrupt
from millpond.storage import Storage

_CHECKSUM_HEAD = b'{"checksum":"'
_BODY_START = len(_CHECKSUM_HEAD) + 32 + len(b'",')


def checksum(data: bytes | memoryview) -> str:
    """Return the checksum of some bytes, as 32 hexadecimal digits."""
    return blake2b(data, digest_size=16).hexdigest()


def pack_checked(value: Any) -> bytes:
    """Encode a struct or a dict as a small file. It has at least one field, and none called `checksum`.

    >>> from millpond.log.checked import pack_checked, unpack_checked
    >>> data = pack_checked({"floor": 7})
    >>> data
    b'{"checksum":"356fe1d0f3e6210821c1384de4640e86","floor":7}'
    >>> unpack_checked(data, "floor")
    b'{"floor":7}'
    """
    rest = msgspec.json.encode(value)[1:]
    return _CHECKSUM_HEAD + checksum(rest).encode() + b'",' + rest


def unpack_checked(data: bytes, where: str, *, old: bytes | None = None, help: str = "") -> bytes:
    """Return the JSON object in a small file, without its checksum; `Corrupt` if any byte of the file has changed.

    `old` is how files of earlier versions begin, which have no checksum: such a file is returned as it is. No single
    flipped bit makes a file with a checksum look like one. `help` says what to do about a damaged file.
    """
    if not data:
        raise Corrupt(f"{where} is empty, as a power loss leaves a file. {help}".strip())
    if data[:_BODY_START] == _CHECKSUM_HEAD + checksum(data[_BODY_START:]).encode() + b'",':
        return b"{" + data[_BODY_START:]
    if old is not None and data.startswith(old):
        return data
    raise Corrupt(f"{where} is damaged: its checksum does not fit its bytes. {help}".strip())


def write_checked(storage: Storage, path: str, value: Any) -> None:
    """Write a small file; it replaces the one that is there."""
    storage.put(path, pack_checked(value))


def read_checked(storage: Storage, path: str, *, old: bytes | None = None, help: str = "") -> bytes | None:
    """Return the JSON object in a small file; None if there is no file, `Corrupt` if it has changed."""
    data = storage.get(path)
    return None if data is None else unpack_checked(data, f"{storage.url}: {path}", old=old, help=help)
