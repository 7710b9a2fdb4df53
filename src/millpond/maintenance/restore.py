"""Restore: an app without state begins with the state of a savepoint."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from millpond.clock import new_id
from millpond.errors import InvalidUse
from millpond.log import checked
from millpond.log.checked import Pointer
from millpond.log.manifest import MANIFEST_FORMAT, Manifest, Part, write_manifest
from millpond.log.paths import Attempt, Paths
from millpond.log.record import FORMAT, Record
from millpond.log.rewrite import rewrite_fields
from millpond.maintenance.savepoint import read_savepoint
from millpond.maintenance.stopped_app import StoppedApp, position_files
from millpond.storage import Storage


def restore_savepoint(app: StoppedApp, source: Storage, *, dry_run: bool = False) -> str:
    """Give an app without state the state of a savepoint, and say which batch it was.

    The app never ran or was cleared; it may have another name than the one that the savepoint was made of.
    """
    last = app.ledger.newest()
    if last is not None:  # a claim alone is no state: it is what a restore that died leaves
        if last.steps or last.positions or last.spark or last.manifest is not None:
            raise InvalidUse(
                f"restore: {app.storage.url} holds state of app {app.name!r} already. Give the app another name "
                "or state_dir, or clear it first; nothing was changed."
            )
        last = app.newest("restore")
    saved = read_savepoint(source)
    was = saved.record
    text = f"batch {was.number} of {was.app}: {len(saved.manifest.files())} files"
    if dry_run:
        return text
    attempt = Attempt(1 if last is None else last.number + 2, app.id, "")
    app.at("before")
    copying = app.with_progress([*saved.manifest.files(), *position_files(was)])

    paths = Paths(app.name)

    def copy_file(file: Pointer, path: Callable[[Attempt], str]) -> Pointer:
        next(copying)
        data = checked.read_file(source, file)
        return checked.write_file(app.storage, path(Attempt(attempt.batch, app.id, new_id())), data, file.rows)

    runs = {
        step: {
            p: [
                [Part(copy_file(part.file, partial(paths.state, step, p)), part.first) for part in run] for run in found
            ]
            for p, found in parts.items()
        }
        for step, parts in saved.manifest.runs.items()
    }
    positions = {
        stream: held
        if held.base is None
        else msgspec.structs.replace(held, base=copy_file(held.base, partial(paths.position, stream)))
        for stream, held in was.positions.items()
    }
    spark = {
        stream: msgspec.structs.replace(
            held,
            files={name: copy_file(file, partial(paths.spark, stream, file=name)) for name, file in held.files.items()},
        )
        for stream, held in was.spark.items()
    }
    for _ in copying:  # all is copied
        pass
    app.at("during")
    last = app.write("claim", last) if last is not None else _append_first(app, was.partitions)
    app.at("claimed")
    made = Manifest(MANIFEST_FORMAT, app.name, last.number, last.checksum, runs)
    path = Paths(app.name).manifest(Attempt(attempt.batch, app.id, new_id()))
    own = rewrite_fields(
        write_manifest(app.storage, path, made),
        last,
        f"restore batch {was.number} of {was.app}",
        arrivals=was.arrival,
        partitions=was.partitions,
        positions=positions,
        spark=spark,
        watermarks=was.watermarks,
        reached=was.reached,
        due=was.due,
        steps=was.steps,
    )
    app.write("release", app.write("rewrite", last, **own))
    app.at("after")
    return text


def _append_first(app: StoppedApp, partitions: int) -> Record:
    """Write the first record of an app that has none."""
    first = Record(
        format=FORMAT,
        kind="claim",
        app=app.name,
        number=0,
        incarnation=new_id(),
        born=0,
        arrivals=0,
        driver=app.id,
        attempt=new_id(),
        time=app.clock.now(),
        previous="",
        partitions=partitions,
    )
    return app.ledger.append(first, None)
