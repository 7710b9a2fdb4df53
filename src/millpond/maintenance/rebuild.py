"""Rebuild a step's state from the input in a shadow of the app, compare it, and switch to it.

A shadow is an app that runs the batches of the original again, on a ledger of its own. Every rebuild makes a new one
and removes it: the program may have changed since the last rebuild.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from millpond.clock import Clock, ManualClock, new_id
from millpond.codec import Codec, NotEncodable, decode_key, encode_key
from millpond.driver.heartbeat_thread import HeartbeatThread
from millpond.driver.settings import DriverSettings
from millpond.errors import InvalidUse
from millpond.log import checked
from millpond.log.checked import Pointer
from millpond.log.heartbeat import seems_running
from millpond.log.ledger import Ledger
from millpond.log.manifest import MANIFEST_FORMAT, Manifest, Part, Run, read_manifest, write_manifest
from millpond.log.paths import Attempt, Paths, shadow_of
from millpond.log.published import after_rewrite
from millpond.log.record import Record
from millpond.log.rewrite import rewrite_fields
from millpond.maintenance.replay import Replay, find_history
from millpond.maintenance.stopped_app import At, StoppedApp
from millpond.pipeline.graph import Deliver, Program
from millpond.runtimes.base import Runtime
from millpond.sinks.base import Sink
from millpond.sources.base import Limit
from millpond.storage import Storage

log = logging.getLogger("millpond")

UNBOUNDED_ROWS, UNBOUNDED_BYTES = 100_000, 256 << 20  # limits of a batch whose bounds are not known


@dataclass(frozen=True)
class Difference:
    """A key whose live state differs from the rebuilt one; None means that there is no state.

    >>> import millpond as mp
    >>> mp.Difference("ann", live=3, rebuilt=4).rebuilt
    4
    """

    key: Any
    live: Any
    rebuilt: Any


class Rebuilt(list[Difference]):
    """The keys whose live state differs from the rebuilt one, and the batch that the rebuilt state is of.

    >>> import millpond as mp
    >>> mp.Rebuilt([mp.Difference("ann", live=3, rebuilt=4)], batch=7).batch
    7
    """

    def __init__(self, found: Iterable[Difference], batch: int, unknown: int | None = None) -> None:
        super().__init__(found)
        self.batch = batch
        """The batch of the app up to which the state was rebuilt."""
        self.unknown = unknown
        """The newest batch whose bounds are no longer kept; None if every batch was run again with its own bounds."""


class Rebuild:
    """One rebuild of a step, up to the newest record at its start; `forget` removes its shadow."""

    def __init__(
        self, program: Program, step: str, storage: Storage, clock: Clock, settings: DriverSettings, sink: Sink
    ) -> None:
        if step not in program.steps:
            raise InvalidUse(
                f"rebuild({step!r}): app {program.app!r} has no step of that name; it has: {', '.join(program.steps)}"
            )
        self.app, self.step, self.storage, self.clock, self.settings = program.app, step, storage, clock, settings
        self.ledger = Ledger(storage, program.app, clock)
        target = self.ledger.newest()
        if target is None:
            raise InvalidUse(f"rebuild({step!r}): app {program.app!r} has never run, so there is nothing to rebuild")
        self.target = target
        self.unknown: int | None = None
        self._running = ExitStack()  # the heartbeat of the shadow: other rebuilds remove shadows without one
        self.shadow = shadow_of(program.app, new_id())
        self.program = with_silent_sinks(program, self.shadow, sink)

    def run(self, runtime: Runtime) -> None:
        """Run all batches of the app up to the one that was its newest when the rebuild began."""
        base, commits = find_history(self.ledger, self.target)
        settings = replace(self.settings, partitions=self.target.partitions)
        driver = Replay.start(self.program, runtime, self.storage, self.clock, settings)
        self._running.enter_context(HeartbeatThread(self.storage, driver.owner, self.clock))
        try:
            if base is not None:
                self.unknown = base.number
                log.warning(
                    "%s: rebuild of %r: the bounds of the batches up to %d are no longer kept (App(keep=)). Their "
                    "input is read in batches of other sizes, which may make other rows late.",
                    self.app,
                    self.step,
                    base.number,
                )
                driver.catch_up(base, Limit(UNBOUNDED_ROWS, UNBOUNDED_BYTES))
            for number in commits:
                driver.run_again(self._record(number), self._record(number - 1))
            driver.release()
        finally:
            driver.close()

    def _record(self, number: int) -> Record:
        [found] = self.ledger.between(number - 1, number)
        return found

    def differences(self, view: Callable[[str, int | None, Clock], Any]) -> Rebuilt:
        """Compare the two states. `view(app, batch, clock)` returns the step's state; batch None means the newest."""
        then = ManualClock(self.target.time)  # so that state with a ttl has the same age in both
        live, made = (
            {encode_key(key): value for key, value in view(app, batch, then).items()}
            for app, batch in ((self.app, self.target.number), (self.shadow, None))
        )
        return Rebuilt(find_differences(live, made), self.target.number, self.unknown)

    def switch_to_rebuilt(self, at: At | None = None, force: bool = False) -> None:
        """Replace the live state by the rebuilt one, in one commit; `InvalidUse` if the app has run on since."""
        app = StoppedApp(self.storage, self.app, self.clock, at or (lambda when: None), force=force)
        shadow = Ledger(self.storage, self.shadow, self.clock).newest()
        assert shadow is not None
        last = app.claim("rebuild")
        for record in self.ledger.between(self.target.number, last.number):
            if record.kind not in ("claim", "release") or record.incarnation != self.target.incarnation:
                app.write("release", last)
                raise InvalidUse(
                    f"rebuild({self.step!r}): app {self.app!r} has gone on while its state was rebuilt: the rebuilt "
                    f"state is that of batch {self.target.number}, and the newest is {record.number}. Stop the app and "
                    "call rebuild again; nothing was changed."
                )
        jobs = app.rewriter.plan_jobs(last, last)
        for job in jobs:
            job.steps.pop(self.step, None)
        manifest = read_manifest(self.storage, app.rewriter.rewrite(jobs, last))
        copied = self._copy_segments(app, shadow, last.number + 1)
        runs = {**manifest.runs, self.step: copied}
        path = Paths(self.app).manifest(Attempt(last.number + 1, app.id, new_id()))
        made = Manifest(MANIFEST_FORMAT, self.app, last.number, last.checksum, runs)
        taken = {name: {**getattr(last, name)} for name in ("reached", "due", "steps")}
        for name, held in taken.items():
            held.pop(self.step, None)
            if self.step in getattr(shadow, name):
                held[self.step] = getattr(shadow, name)[self.step]
        arrivals = max(last.arrivals, shadow.arrival - last.number)
        taken["published"] = after_rewrite(self.ledger, last, {self.step})
        text = f"rebuild {self.step}"
        own = rewrite_fields(write_manifest(self.storage, path, made), last, text, arrivals=arrivals, **taken)
        app.write("release", app.write("rewrite", last, **own))

    def _copy_segments(self, app: StoppedApp, shadow: Record, number: int) -> dict[int, list[Run]]:
        """Copy the shadow's segments of the step to the app."""
        shadow_app = StoppedApp(self.storage, self.shadow, self.clock)
        found: dict[int, list[Run]] = {}

        def copy(partition: int, file: Pointer) -> Pointer:
            path = Paths(self.app).state(self.step, partition, Attempt(number, app.id, new_id()))
            return checked.write_file(self.storage, path, checked.read_file(self.storage, file), file.rows)

        for job in shadow_app.rewriter.plan_jobs(shadow, shadow):
            if self.step in job.steps:
                _, runs, fresh = job.steps[self.step]
                parts = [[Part(copy(job.partition, part.file), part.first) for part in run] for run in runs]
                found[job.partition] = parts + [[Part(copy(job.partition, file), "")] for file in fresh]
        return found

    def forget(self) -> None:
        """Remove the shadow."""
        self._running.close()
        remove_shadow(self.storage, self.shadow)


def with_silent_sinks(program: Program, app: str, sink: Sink) -> Program:
    """Return the program under another name, with `sink` in the place of each of its sinks."""
    nodes = [
        replace(node, op=replace(node.op, sink=sink)) if isinstance(node.op, Deliver) else node
        for node in program.nodes
    ]
    return replace(program, app=app, nodes=tuple(nodes))


def remove_dead_shadows(storage: Storage, app: str, clock: Clock) -> list[str]:
    """Remove the shadows of rebuilds that have died, and return their names."""
    below = Paths(app).shadows
    ids = sorted({item.path[len(below) + 1 :].split("/")[0] for item in storage.list(below)})
    dead = [shadow_of(app, id) for id in ids if seems_running(storage, shadow_of(app, id), clock) is None]
    for shadow in dead:
        remove_shadow(storage, shadow)
    return dead


def remove_shadow(storage: Storage, shadow: str) -> None:
    """Remove all files of a shadow."""
    storage.delete([item.path for item in storage.list(Paths(shadow).root)])


def find_differences(live: dict[bytes, Any], rebuilt: dict[bytes, Any]) -> Iterator[Difference]:
    """Yield the differences of two states of a step, which map encoded keys to values."""
    for key in sorted(live.keys() | rebuilt.keys()):
        one, other = live.get(key), rebuilt.get(key)
        if (key in live) != (key in rebuilt) or not _are_equal(one, other):
            yield Difference(decode_key(key), one, other)


def _are_equal(one: Any, other: Any) -> bool:
    """Compare values by their stored form: nan equals itself, and 1 is not True."""
    try:
        return Codec().encode(one) == Codec().encode(other)
    except NotEncodable:
        return bool(one == other)
