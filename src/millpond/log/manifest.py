"""Manifests: the state at one record as runs of segments, so that the log need not be read from its beginning.

A run is a list of state segments in the order of their keys, which do not overlap. Runs are in order, the oldest first:
if a cell is in several, the newest run counts. Together with the records after `upto` they are the whole state.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct, field

from millpond.errors import Corrupt, Incompatible
from millpond.log import checked
from millpond.log.checked import Pointer
from millpond.storage import Storage

MANIFEST_FORMAT = 1


class Part(Struct, frozen=True):
    """One segment of a run, and the first key in it."""

    file: Pointer
    first: str


Run = list[Part]
Runs = dict[str, dict[int, list[Run]]]  # step → partition → runs, oldest first


class Manifest(Struct, omit_defaults=True):
    """The state at record `upto`."""

    format: int
    app: str
    upto: int
    checksum: str  # of that record: it tells a replica whether it has the same history
    runs: Runs = field(default_factory=dict)

    def files(self) -> list[Pointer]:
        """Return every segment that it names."""
        return [part.file for parts in self.runs.values() for runs in parts.values() for run in runs for part in run]


def run_bytes(run: Run) -> int:
    """Return the size of a run."""
    return sum(part.file.bytes for part in run)


def write_manifest(storage: Storage, path: str, manifest: Manifest) -> Pointer:
    """Write a manifest under a new name."""
    return checked.write_file(storage, path, msgspec.json.encode(manifest), len(manifest.files()))


def read_manifest(storage: Storage, where: Pointer) -> Manifest:
    """Read and check a manifest."""
    return unpack_manifest(checked.read_file(storage, where), f"{storage.url}: {where.path}")


def unpack_manifest(data: bytes, where: str) -> Manifest:
    """Decode a manifest; `Corrupt` if it is damaged, `Incompatible` if its format is newer."""
    try:
        found: dict[str, Any] = msgspec.json.decode(data)
        if found.get("format") == MANIFEST_FORMAT:
            return msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, AttributeError) as error:
        raise Corrupt(f"{where} is damaged: {error}. Put it back from a copy of the state directory.") from error
    raise Incompatible(
        f"{where} has format {found.get('format')}, and this version of Millpond reads format {MANIFEST_FORMAT}: "
        "upgrade Millpond."
    )
