"""Rollback: state, positions and event time as they were after an earlier batch, in one commit."""

from __future__ import annotations

from collections.abc import Iterable

from millpond.driver.planning import source_of
from millpond.driver.results import positions_of
from millpond.driver.targets import Targets
from millpond.driver.void_deliveries import void_deliveries
from millpond.errors import Corrupt, InvalidUse
from millpond.log import checked
from millpond.log.checked import Pointer
from millpond.log.ledger import Ledger
from millpond.log.manifest import read_manifest
from millpond.log.paths import Paths, file_kind
from millpond.log.published import after_rollback
from millpond.log.record import Record
from millpond.log.retention import carried_files
from millpond.log.rewrite import rewrite_fields
from millpond.maintenance.stopped_app import StoppedApp, detect_fencing, position_files
from millpond.maintenance.void_outputs import with_ranges
from millpond.pipeline.graph import Program
from millpond.sources.base import RetainedSource


@detect_fencing
def roll_back(app: StoppedApp, batch: int, *, dry_run: bool = False, program: Program | None = None) -> str:
    """Go back to an earlier batch: state, positions and event time as they were when it had been committed.

    With the program, its sources are asked first whether they still have the rows after that batch.
    """
    last = app.newest("rollback")
    target = app.find_batch(batch, last)
    _check_target(app, target, last)
    if program is not None:
        _check_sources(app, program, target, last)
    text = f"from batch {last.number} back to batch {target.number}; the records between are kept aside"
    if dry_run:
        return text
    last = app.write("claim", last)  # `Fenced` if anyone, another rollback perhaps, has come in between
    try:
        target = app.find_batch(batch, last)  # a fenced driver of an older version may have raised the floor file
    except InvalidUse:
        app.write("release", last)
        raise
    jobs = app.rewriter.plan_jobs(target, last)
    manifest = app.rewriter.rewrite(jobs, last)
    for file in position_files(target):
        checked.read_file(app.storage, file)
    _check_files(app, [*position_files(target), manifest], "rollback: nothing was rolled back")
    own = rewrite_fields(
        manifest,
        last,
        f"roll back to batch {target.number}",
        back=target.number,
        partitions=target.partitions,
        declared=target.declared,
        positions=target.positions,
        watermarks=target.watermarks,
        reached=target.reached,
        due=target.due,
        steps=target.steps,
        spark=target.spark,
        newest_outputs=target.newest_outputs,
        deliveries=dict.fromkeys(last.deliveries, last.number),
        published=after_rollback(app.ledger, target, last),
        void=with_ranges(
            last.void_ranges,
            {sink: [(target.number + 1, last.number)] for sink in [*last.deliveries, *last.void_ranges]},
        ),
    )
    last = app.write("rewrite", last, **own)
    app.at("committed")
    _check_files(app, carried_files(last), f"rollback: committed as record {last.number}")
    app.write("release", last)
    return text


def roll_back_sinks(program: Program, ledger: Ledger) -> None:
    """Void the deliveries that the newest record names, in the targets of a program, right after a rollback."""
    newest = ledger.newest()
    if newest is None:
        return
    Targets(program, ledger).register_void(newest, newest.incarnation)
    try:
        void_deliveries(program, ledger, newest.app, newest.void_ranges)
    except Corrupt:
        if ledger.is_newest(newest):
            raise
        # Else a driver has started since, which does this before it removes a record.


def _check_target(app: StoppedApp, target: Record, last: Record) -> None:
    """Refuse a batch that an earlier rollback has set aside, or whose outputs were not all delivered."""
    for later in app.ledger.between(target.number, last.number):
        if later.back is not None and later.back < target.number:
            # What its sinks were given has been taken back since: its state would be there, and its outputs not.
            raise InvalidUse(
                f"rollback: batch {target.number} was set aside when the app was rolled back to batch {later.back}. "
                f"Choose that one or an earlier one, or one after record {later.number}; nothing was changed."
            )
    undelivered = sorted(
        sink
        for sink, delivered in last.deliveries.items()
        if delivered < target.number and _has_undelivered(app.ledger, sink, delivered, target, last)
    )
    if undelivered:
        raise InvalidUse(
            f"rollback: outputs up to batch {target.number} were not delivered to {', '.join(undelivered)} yet. Run "
            "the app once, which delivers them; nothing was changed."
        )


def _check_sources(app: StoppedApp, program: Program, target: Record, last: Record) -> None:
    """Raise `InvalidUse` if a source no longer has the rows that came after a batch."""
    found: dict[str, object] = {stream: source_of(program, stream) for stream in program.reads}
    asked = {stream: source for stream, source in found.items() if isinstance(source, RetainedSource)}
    if not asked:
        return
    reached = positions_of(app.storage, target)
    for stream, newest in positions_of(app.storage, last).items():
        if (source := asked.get(stream)) is not None:
            try:
                source.check_retained(reached.get(stream, {}), newest)
            except InvalidUse as error:
                raise InvalidUse(
                    f"rollback to batch {target.number}: stream {stream!r}: {error} Choose a later batch; nothing was "
                    "changed."
                ) from error


def _has_undelivered(ledger: Ledger, sink: str, delivered: int, target: Record, last: Record) -> bool:
    """Return whether a record holds outputs for a sink that were not delivered. Retention removes no such record."""
    after = max(delivered, target.born - 1, ledger.floor(last) - 1)
    return any(sink in record.outputs for record in ledger.between(after, target.number))


def _check_files(app: StoppedApp, files: Iterable[Pointer], what: str) -> None:
    """Raise `Corrupt` if one of these files, or one that a manifest among them names, is missing or of another size."""
    sizes = {item.path: item.size for item in app.storage.list(Paths(app.name).root)}
    for file in files:
        named = [file]
        if (kind := file_kind(file.path)) is not None and kind.name == "manifest":
            named += read_manifest(app.storage, file).files()
        for found in named:
            if sizes.get(found.path) != found.bytes:
                came = f"of {sizes[found.path]} bytes" if found.path in sizes else "missing"
                raise Corrupt(
                    f"{what}: {app.storage.url}: {found.path} is {came}: expected {found.bytes} bytes. Put the "
                    "file back from a copy of the state directory, or roll back to another batch."
                )
