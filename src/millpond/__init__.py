"""Millpond: stateful stream processing in Python, on Apache Spark.

The log is the truth; everything else is a replica of it.
"""

from millpond import errors, formats, lowlevel, sinks, sources, testing
from millpond.admin import admin
from millpond.aggregations import (
    Aggregation,
    aggregation,
    approx_distinct,
    collect,
    count,
    distinct,
    earliest,
    first,
    last,
    latest,
    max,
    mean,
    min,
    quantile,
    sum,
    top,
)
from millpond.app import App
from millpond.follower import Commit, CommitState, Follower
from millpond.maintenance.rebuild import Difference, Rebuilt
from millpond.maintenance.verify import Verdict
from millpond.pipeline.epoch import epoch_ms, epoch_s, message_time
from millpond.pipeline.keyed import JoinedStream, KeyedStream
from millpond.pipeline.stream import Stream
from millpond.pipeline.table import Table
from millpond.pipeline.windowed import WindowedStream
from millpond.reader import open
from millpond.spark_source import register_spark_source
from millpond.state_changes import StateChange
from millpond.state_view import Moment, StateView
from millpond.steps.failure import retry
from millpond.steps.state.handle import State, StateList, StateMap
from millpond.steps.state.migration import lazily
from millpond.steps.state.state_table import StateTable
from millpond.steps.state.timers import Timer, Timers
from millpond.steps.state.ttl import ttl
from millpond.steps.verbs.external import external
from millpond.steps.windows import triggers
from millpond.steps.windows.definitions import (
    NO_GRACE,
    count_hopping,
    count_sliding,
    count_tumbling,
    global_window,
    hopping,
    session,
    sliding,
    tumbling,
)

__version__ = "0.1.0"

__all__ = [
    "NO_GRACE",
    "Aggregation",
    "App",
    "Commit",
    "CommitState",
    "Difference",
    "Follower",
    "JoinedStream",
    "KeyedStream",
    "Moment",
    "Rebuilt",
    "State",
    "StateChange",
    "StateList",
    "StateMap",
    "StateTable",
    "StateView",
    "Stream",
    "Table",
    "Timer",
    "Timers",
    "Verdict",
    "WindowedStream",
    "admin",
    "aggregation",
    "approx_distinct",
    "collect",
    "count",
    "count_hopping",
    "count_sliding",
    "count_tumbling",
    "distinct",
    "earliest",
    "epoch_ms",
    "epoch_s",
    "errors",
    "external",
    "first",
    "formats",
    "global_window",
    "hopping",
    "last",
    "latest",
    "lazily",
    "lowlevel",
    "max",
    "mean",
    "message_time",
    "min",
    "open",
    "quantile",
    "register_spark_source",
    "retry",
    "session",
    "sinks",
    "sliding",
    "sources",
    "sum",
    "testing",
    "top",
    "triggers",
    "ttl",
    "tumbling",
]


def __dir__() -> list[str]:
    # The import system sets every submodule as an attribute here. They are not the public surface, so they are not
    # shown; `import millpond.codec` and `millpond.codec` go on working.
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
