"""Where outputs go. Each function makes a small object that takes deliveries.

Anyone can write another: a class with what `millpond.sinks.base.Sink` says, held to `millpond.testing.sink_suite`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Literal

from millpond.sinks.base import Delivery
from millpond.sinks.console import ConsoleSink
from millpond.sinks.dataframe import DataFrameSink
from millpond.sinks.discard import DiscardSink
from millpond.sinks.files import FileSink, Format
from millpond.sinks.function import FunctionSink
from millpond.sinks.memory import MemorySink

__all__ = ["console", "dataframe", "discard", "files", "function", "memory"]


def __dir__() -> list[str]:
    return __all__


def console() -> ConsoleSink:
    """Print every row on the driver's standard output, as `name: row`. A crash may print a row again.

    >>> from millpond import sinks
    >>> from millpond.sinks.base import Delivery
    >>> sinks.console().deliver([{"customer": "a", "total": 3}], Delivery("orders", "5e1f", "totals", 42, 0))
    totals: {"customer": "a", "total": 3}
    """
    return ConsoleSink()


def discard() -> DiscardSink:
    """Take rows nowhere: they are in the log with the batch that made them, and nobody reads them from there.

    >>> from millpond import sinks
    >>> sinks.discard()
    discard()
    """
    return DiscardSink()


def memory() -> MemorySink:
    """Keep the rows in the driver: `.rows` in the order of delivery, each delivery once.

    >>> from millpond import sinks
    >>> from millpond.sinks.base import Delivery
    >>> sink = sinks.memory()
    >>> sink.deliver([1, 2], Delivery("orders", "5e1f", "totals", 42, 0))
    >>> sink.rows, [delivery.batch for delivery in sink.deliveries]
    ([1, 2], [42])
    """
    return MemorySink()


def files(path: str | os.PathLike[str], format: Format = "jsonl") -> FileSink:
    """Write each delivery to a file of its own in the folder `path`, exactly once through any crash.

    `"jsonl"` takes any row that JSON can say: datetimes are written as ISO-8601, Decimals and UUIDs as
    strings, bytes as base64, sets and tuples as lists, nan and the infinities as null. `"parquet"` takes
    dicts, dataclasses and Structs, and wants one type per field; a type that changes from delivery to
    delivery makes files that differ. Files sort by batch and partition. The folder is made when the first
    row comes, and every worker must see it under the same path.

    >>> import pathlib, tempfile
    >>> from millpond import sinks
    >>> from millpond.sinks.base import Delivery
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> sinks.files(folder).deliver([{"n": 1}, {"n": 2}], Delivery("orders", "5e1f", "totals", 42, 0))
    >>> [file.name for file in folder.iterdir()]
    ['00000000000000000042-00000-5e1f-totals.jsonl']
    >>> print(next(folder.iterdir()).read_text(), end="")
    {"n":1}
    {"n":2}
    """
    return FileSink(path, format)


def function(
    f: Callable[[list[Any], Delivery], object], where: Literal["driver", "workers"] = "driver"
) -> FunctionSink:
    """Call `f(rows, delivery)` for each delivery, in the driver or in the workers.

    A delivery may come again after a crash, with the same rows and the same `delivery.id`: a function that
    writes somewhere should write the id with the rows, or overwrite by it. It raises `Unavailable` to be
    called again later.

    >>> from millpond import sinks
    >>> from millpond.sinks.base import Delivery
    >>> seen = {}
    >>> sink = sinks.function(lambda rows, delivery: seen.update({delivery.id: rows}))
    >>> sink.deliver([{"n": 1}], Delivery("orders", "5e1f", "totals", 42, 0))
    >>> seen
    {'orders/5e1f/totals/42/0': [{'n': 1}]}
    """
    return FunctionSink(f, where)


def dataframe(f: Callable[[Any, Delivery], Any], schema: Any = None) -> DataFrameSink:
    """Call `f(df, delivery)` on the driver with each batch's outputs as a Spark DataFrame.

    The rows are read as JSON: `schema` names the columns and their types, and without it Spark infers them
    from each batch. All partitions come in one frame, so the delivery's partition is that of the first. A
    crash may call `f` again with the same delivery and the same rows: write so that the second time counts for
    nothing, for example with `mode("overwrite")` to a path that holds `delivery.batch`, or Delta's `txnVersion`.

    >>> from millpond import sinks
    >>> def write(df, delivery):
    ...     df.write.mode("overwrite").parquet(f"totals/batch={delivery.batch}")
    >>> sink = sinks.dataframe(write, schema="customer string, total double")
    """
    return DataFrameSink(f, schema)
