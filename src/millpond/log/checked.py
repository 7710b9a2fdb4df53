"""Files whose bytes are checked when they are read.

A small file carries a checksum of itself: it is a JSON object whose first field is the checksum of all bytes behind it.
Ledger records, the floor, the heartbeat, the files of standby drivers and `savepoint.json` are written this way. Larger
files are immutable and carry none: the record or manifest that names such a file does, in a `Pointer`.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Struct

from millpond.errors import Corrupt
from millpond.log.paths import unquote_name
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


class Pointer(Struct, frozen=True):
    """Names one immutable file; every read checks that its bytes are those that were written."""

    path: str
    rows: int
    bytes: int
    checksum: str


def write_file(storage: Storage, path: str, data: bytes | memoryview, rows: int) -> Pointer:
    """Write a file under a new name, durably, and return a pointer to it."""
    storage.put(path, data)
    return Pointer(path, rows, len(data), checksum(data))


def read_file(storage: Storage, pointer: Pointer) -> bytes:
    """Return the bytes that were written; `Corrupt` if the file is missing or has changed."""
    data = storage.get(pointer.path)
    if data is None:
        raise Corrupt(f"{storage.url}: {pointer.path} is missing, and the ledger needs it. {_help(pointer.path)}")
    if len(data) != pointer.bytes or checksum(data) != pointer.checksum:
        raise Corrupt(
            f"{storage.url}: {pointer.path} is damaged: expected {pointer.bytes} bytes with checksum "
            f"{pointer.checksum}, found {len(data)} bytes with {checksum(data)}. {_help(pointer.path)}"
        )
    return data


def _help(path: str) -> str:
    """Say what a damaged file held, and what can be done about it."""
    match path.split("/"):
        case [_, "rebuild", *_]:
            return "It belongs to a rebuild of a step: call rebuild again. The app itself has not been changed."
        case [app, "steps", step, partition, name] if name[:20].isdigit():
            batch, step = int(name[:20]), unquote_name(step)
            lost = f"It holds state of step {step!r} in partition {int(partition)}, as of batch {batch}"
            others = (
                f"roll app {unquote_name(app)!r} back to a batch before that one, restore a savepoint, rebuild the "
                "step from its input, or clear the app"
            )
        case [_, "outputs", sink, partition, name] if name[:20].isdigit():
            batch, sink = int(name[:20]), unquote_name(sink)
            lost = f"It holds outputs of batch {batch} for sink {sink!r}, partition {int(partition)}"
            others = "drop what is not delivered with app.drop_outputs"
        case [_, "manifests", *_]:
            lost, others = "It says which files hold the state", "roll back to an earlier batch, or restore a savepoint"
        case _:
            lost, others = "It says how far a source was read", "roll back to an earlier batch, or restore a savepoint"
    return f"{lost}. Put the file back from a copy of the state directory; or else {others}. Nothing has been changed."
