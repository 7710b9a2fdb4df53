"""Restore: an app without state begins with the state of a savepoint, or gets that of steps which it lacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from millpond.clock import new_id
from millpond.errors import Incompatible, InvalidUse
from millpond.log import checked
from millpond.log.checked import Pointer
from millpond.log.manifest import MANIFEST_FORMAT, Manifest, Part, Runs, read_manifest, write_manifest
from millpond.log.paths import Attempt, Paths
from millpond.log.published import after_rewrite
from millpond.log.record import FORMAT, Record
from millpond.log.rewrite import RewriteJob, rewrite_fields, rewrite_partition
from millpond.maintenance.savepoint import Savepoint, read_savepoint
from millpond.maintenance.stopped_app import StoppedApp, detect_fencing, position_files
from millpond.pipeline.graph import Program
from millpond.steps.registry import layout_of
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


@detect_fencing
def restore_steps(
    app: StoppedApp, source: Storage, steps: Sequence[str], program: Program | None = None, *, dry_run: bool = False
) -> str:
    """Add the state of some steps of a savepoint to an app that has none of them, and say which batch it was.

    The other steps, the positions and the event time of the app stay as they are. All that is taken of the savepoint
    is read and copied before the app is claimed, so that a damaged one changes nothing.
    """
    last = app.newest("restore")
    saved = read_savepoint(source)
    was = saved.record
    _check_steps(app, last, saved, steps, program)
    steps = list(dict.fromkeys(steps))
    chosen = {step: saved.manifest.runs.get(step, {}) for step in steps}
    files = sum(len(run) for parts in chosen.values() for runs in parts.values() for run in runs)
    text = f"steps {', '.join(steps)} of batch {was.number} of {was.app}: {files} files"
    if dry_run:
        return text
    app.at("before")
    attempt = Attempt(last.number + 2, app.id, "")
    jobs = [
        RewriteJob(app.name, partition, last.partitions, True, attempt, {step: (step, runs, [])})
        for step, parts in chosen.items()
        for partition, runs in parts.items()
    ]
    added: Runs = {}
    for job in app.with_progress(jobs):
        for step, parts in rewrite_partition(app.storage, job, {}, source).items():
            for partition, runs in parts.items():
                added.setdefault(step, {}).setdefault(partition, []).extend(runs)
    app.at("during")
    last = app.write("claim", last)  # right after the record that was looked at, or `Fenced`
    app.at("claimed")
    kept = read_manifest(app.storage, app.rewriter.rewrite(app.rewriter.plan_jobs(last, last), last))
    runs_of = {step: parts for step, parts in kept.runs.items() if step not in added}
    made = Manifest(MANIFEST_FORMAT, app.name, last.number, last.checksum, {**runs_of, **added})
    path = Paths(app.name).manifest(Attempt(last.number + 1, app.id, new_id()))
    carried = {
        name: {**getattr(last, name), **{step: held for step, held in getattr(was, name).items() if step in chosen}}
        for name in ("steps", "reached", "due")
    }
    own = rewrite_fields(
        write_manifest(app.storage, path, made),
        last,
        f"restore {text}",
        # The next batches come after all that the app and the savepoint have seen.
        arrivals=max(last.arrivals, was.arrival - last.number),
        published=after_rewrite(app.ledger, last, chosen),
        **carried,
    )
    last = app.write("rewrite", last, **own)
    app.at("committed")
    app.write("release", last)
    return text


def _check_steps(
    app: StoppedApp, last: Record, saved: Savepoint, steps: Sequence[str], program: Program | None
) -> None:
    """Raise `InvalidUse` or `Incompatible` if the steps cannot be added to the state of an app."""
    was = saved.record
    if isinstance(steps, str) or not steps or not all(isinstance(step, str) for step in steps):
        raise InvalidUse(f"restore(steps=): expected a list of the names of steps, got {steps!r}")
    if missing := [step for step in steps if step not in was.steps]:
        raise InvalidUse(
            f"restore: the savepoint of batch {was.number} of {was.app} has no step {', '.join(map(repr, missing))}; "
            f"it has: {', '.join(sorted(was.steps)) or 'none'}. Nothing was changed."
        )
    if there := [step for step in steps if step in last.steps]:
        raise InvalidUse(
            f"restore: app {app.name!r} has state of step {', '.join(map(repr, there))} already. Drop it first, with "
            f"mp.admin(state_dir, {app.name!r}).drop_step({there[0]!r}), if the savepoint is to replace it. Nothing "
            "was changed."
        )
    for step in steps:
        own = program.steps.get(step) if program is not None else None
        if own is not None and layout_of(own.kind) != layout_of(was.steps[step].kind):
            raise Incompatible(
                f"restore: step {step!r} is of kind {own.kind} in the program, and its state in the savepoint is of "
                f"kind {was.steps[step].kind}. Give the step of the program another name; nothing was changed."
            )
    units, saved_units = ({t.unit for t in each.watermarks.values() if t.unit is not None} for each in (last, was))
    if units and saved_units and not units & saved_units and any(step in was.reached for step in steps):
        raise Incompatible(
            f"restore: the event times of app {app.name!r} are {_UNITS[units.pop()]}, and those of the savepoint are "
            f"{_UNITS[saved_units.pop()]}: its steps would take every row for a late or an early one. Nothing was "
            "changed."
        )


_UNITS = {"instant": "datetimes", "number": "whole numbers"}


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
