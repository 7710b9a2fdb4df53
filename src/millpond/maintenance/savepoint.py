"""Savepoints: a copy of the state at one batch that needs no other file."""

from __future__ import annotations

import msgspec

from millpond.errors import Corrupt, Incompatible, InvalidUse
from millpond.log import checked
from millpond.log.checked import read_checked, write_checked
from millpond.log.manifest import MANIFEST_FORMAT, Manifest, Part, Runs
from millpond.log.paths import SAVEPOINT
from millpond.log.reach import read_beside_retention
from millpond.log.record import Record
from millpond.maintenance.stopped_app import StoppedApp, position_files
from millpond.storage import Storage


def write_savepoint(app: StoppedApp, target: Storage, batch: int | None = None, *, dry_run: bool = False) -> str:
    """Write a copy of the state at a batch, and say how large it is. The app may run meanwhile.

    `savepoint.json` is written last: a savepoint without it does not exist.
    """
    return next(
        read_beside_retention(app.ledger, lambda: [_copy_state(app, target, batch, dry_run)], "savepoint"),
    )


def _copy_state(app: StoppedApp, target: Storage, batch: int | None, dry_run: bool) -> str:
    last = app.ledger.newest()
    if last is None:
        raise InvalidUse(f"savepoint: {app.storage.url} holds no app {app.name!r}: check state_dir and the name")
    source = last if batch is None else app.find_batch(batch, last)
    if target.get(SAVEPOINT) is not None:
        raise InvalidUse(f"savepoint: {target.url} holds a savepoint already; choose another place")
    jobs = app.rewriter.plan_jobs(source, source)
    runs: Runs = {}
    for job in jobs:
        for name, (_, found, fresh) in job.steps.items():
            mine = runs.setdefault(name, {}).setdefault(job.partition, [])
            mine += found
            mine += [[Part(file, "")] for file in fresh]
    manifest = Manifest(MANIFEST_FORMAT, app.name, source.number, source.checksum, runs)
    others = position_files(source)
    text = f"batch {source.number}: {len(manifest.files())} files, {sum(f.bytes for f in manifest.files())} bytes"
    if dry_run:
        return text
    app.at("before")
    copied: list[str] = []
    try:
        for file in app.with_progress([*manifest.files(), *others]):
            target.put(file.path, checked.read_file(app.storage, file))
            copied.append(file.path)
    except Corrupt:  # there will be no such savepoint: a second attempt may copy other files
        target.delete(copied)
        raise
    app.at("during")
    saved = Savepoint(1, msgspec.structs.replace(source, segments={}, outputs={}, manifest=None), manifest)
    write_checked(target, SAVEPOINT, saved)
    app.at("after")
    return text


class Savepoint(msgspec.Struct):
    """The contents of `savepoint.json`: the record whose state was copied, and the files that hold it."""

    format: int
    record: Record
    manifest: Manifest


def read_savepoint(source: Storage) -> Savepoint:
    """Read and check `savepoint.json` in a storage."""
    way_out = "Put the file back from a copy of the savepoint, or take another savepoint. Nothing was changed."
    data = read_checked(source, SAVEPOINT, old=b'{"format":', help=way_out)
    if data is None:
        raise InvalidUse(f"restore: {source.url} holds no savepoint")
    try:
        found = msgspec.json.decode(data).get("format")
        if found == 1:
            return msgspec.json.decode(data, type=Savepoint)
    except (msgspec.MsgspecError, AttributeError) as error:
        raise Corrupt(f"{source.url}: {SAVEPOINT} is damaged: {error}. {way_out}") from error
    raise Incompatible(f"{source.url}: a savepoint of format {found}, and this Millpond reads format 1: upgrade it")
