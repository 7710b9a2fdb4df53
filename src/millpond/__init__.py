"""Millpond: stateful stream processing in Python, on Apache Spark.

The log is the truth; everything else is a replica of it.
"""

from millpond import errors, sinks, sources, testing
from millpond.admin import StateChange
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
from millpond.maintenance.caretaker import Verdict
from millpond.maintenance.rebuild import Difference, Rebuilt
from millpond.opened import open
from millpond.pipeline.fields import epoch_ms, epoch_s
from millpond.pipeline.keyed import JoinedStream, KeyedStream
from millpond.pipeline.stream import Stream
from millpond.pipeline.table import Table
from millpond.pipeline.windowed import WindowedStream
from millpond.sinks.base import Delivery, Sink
from millpond.sources.base import BadRow, Chunk, JsonLines, Limit, Source, Split
from millpond.state_view import Moment, StateView
from millpond.steps.failure import retry
from millpond.steps.state.handle import State, StateList, StateMap
from millpond.steps.state.migration import lazily
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
    "BadRow",
    "Chunk",
    "Delivery",
    "Difference",
    "JoinedStream",
    "JsonLines",
    "KeyedStream",
    "Limit",
    "Moment",
    "Rebuilt",
    "Sink",
    "Source",
    "Split",
    "State",
    "StateChange",
    "StateList",
    "StateMap",
    "StateView",
    "Stream",
    "Table",
    "Timer",
    "Timers",
    "Verdict",
    "WindowedStream",
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
    "global_window",
    "hopping",
    "last",
    "latest",
    "lazily",
    "max",
    "mean",
    "min",
    "open",
    "quantile",
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
