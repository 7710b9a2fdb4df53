"""What authors of sources, sinks and tools need. Programs rarely do: `import millpond as mp; mp.lowlevel.Split(…)`.

    sources  Source; SnapshotSource, BoundedSource, LearningSource, WaitingSource, TimedSource, CheckedSource,
             AcknowledgedSource, RetainedSource; Split, Chunk, Limit, JsonLines, BadRow, TooMuch
    sinks    Sink, TableSink, FrameSink, RollbackSink, RegisteredSink, FencingSink, ChangesSink; Delivery, Registration
    replicas LogReplica, ReplicaPosition, LogPoint
    stores   Store, OpenStore, ShrinkingStore, RecordChanges, Change, Room, Damaged, Replaced, Stuck; View, Entry; to
             write one over an ordered map of bytes: OrderedReader, ordered_view, WritePlan
    apps     program, storage, run_with, Settings, Storage

The docstrings of the protocols say when each method is called, how often, on which machine, and what a failure means.
`millpond.testing` has a conformance suite for sources, for sinks, for replicas, for storages and for stores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millpond.admin import Admin
from millpond.app import App
from millpond.driver.loop import Settings
from millpond.driver.settings import Hook
from millpond.log.jobs import ProgressCallback
from millpond.log.point import LogPoint
from millpond.log.segment import Change
from millpond.pipeline.graph import Program
from millpond.reader import ReadOnlyApp
from millpond.replica.cell_format import Damaged
from millpond.replica.ordered import OrderedReader, WritePlan, ordered_view
from millpond.replica.protocol import LogReplica, ReplicaPosition
from millpond.replica.store import OpenStore, RecordChanges, Replaced, Room, ShrinkingStore, Store, Stuck
from millpond.replica.view import Entry, View
from millpond.sinks.base import (
    ChangesSink,
    Delivery,
    FencingSink,
    FrameSink,
    RegisteredSink,
    Registration,
    RollbackSink,
    Sink,
    TableSink,
)
from millpond.sources.base import (
    AcknowledgedSource,
    BadRow,
    BoundedSource,
    CheckedSource,
    Chunk,
    JsonLines,
    LearningSource,
    Limit,
    RetainedSource,
    SnapshotSource,
    Source,
    Split,
    TimedSource,
    TooMuch,
    WaitingSource,
)
from millpond.storage import Storage

__all__ = [
    "AcknowledgedSource",
    "BadRow",
    "BoundedSource",
    "Change",
    "ChangesSink",
    "CheckedSource",
    "Chunk",
    "Damaged",
    "Delivery",
    "Entry",
    "FencingSink",
    "FrameSink",
    "JsonLines",
    "LearningSource",
    "Limit",
    "LogPoint",
    "LogReplica",
    "OpenStore",
    "OrderedReader",
    "RecordChanges",
    "RegisteredSink",
    "Registration",
    "Replaced",
    "ReplicaPosition",
    "RetainedSource",
    "RollbackSink",
    "Room",
    "Settings",
    "ShrinkingStore",
    "Sink",
    "SnapshotSource",
    "Source",
    "Split",
    "Storage",
    "Store",
    "Stuck",
    "TableSink",
    "TimedSource",
    "TooMuch",
    "View",
    "WaitingSource",
    "WritePlan",
    "ordered_view",
    "program",
    "run_with",
    "storage",
]


def __dir__() -> list[str]:
    return __all__


def program(app: App) -> Program:
    """Compile what the app does: its streams, steps and sinks, checked, as it is sent to the workers.

    Raises `InvalidUse` if parts of the program do not fit together. The app can be changed afterwards and compiled
    again.

    >>> import millpond as mp
    >>> app = mp.App("orders")
    >>> orders = app.stream("orders", mp.sources.rows([]))
    >>> list(mp.lowlevel.program(app).reads)
    ['orders']
    """
    return app._program()


def storage(app: App | Admin | ReadOnlyApp) -> Storage:
    """Return the storage behind the app's `state_dir`, in which its log is. It is opened on the first call.

    Write nothing below the app's name in it: those files belong to the app's driver.

    >>> import millpond as mp
    >>> app = mp.App("orders", state_dir="memory://")
    >>> mp.lowlevel.storage(app).put("notes/today", b"all well")
    >>> mp.lowlevel.storage(app).get("notes/today")
    b'all well'
    """
    return app._open_storage()


def run_with(
    app: App,
    settings: Settings,
    spark: Any = None,
    hook: Hook | None = None,
    progress: ProgressCallback | None = None,
    take_back: Sequence[str] = (),
    accept: Sequence[str] = (),
) -> None:
    """Run an app as `App.run` does, with a hook that is called at every crash point of the commit protocol.

    `hook(step, when)` is called on the driver, in the thread that runs the step: `step` is "plan", "compute", "commit",
    "deliver", "acknowledge", "tidy", "compact" or "rewrite", and `when` is "before", "during" or "after". An exception
    that it raises ends the run there, as a crash would. The other arguments are those of `App.run`; `settings` holds
    its plain values, and they are not checked again.

    >>> import millpond as mp
    >>> def crash_before_commit(step, when):
    ...     if (step, when) == ("commit", "before"):
    ...         raise SystemExit(1)
    >>> def test_run(app, spark):
    ...     mp.lowlevel.run_with(app, mp.lowlevel.Settings(until="caught-up"), spark, crash_before_commit)
    """
    app._run_with(settings, spark, hook, progress=progress, take_back=take_back, accept=accept)
