"""A pointer: the path of an immutable file, and what its bytes must be."""

from __future__ import annotations

from msgspec import Struct

from millpond.errors import Corrupt
from millpond.log.checked import checksum as checksum
from millpond.log.paths import unquote_name
from millpond.storage import Storage


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
