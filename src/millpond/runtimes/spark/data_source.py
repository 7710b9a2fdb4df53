"""The data source `millpond`: a step's state, or its changes, as a Spark DataFrame.

The driver finds the record that is read, once, and every task reads one partition of the app's state from the log, up
to exactly that record. No replica is built, and the running app is not disturbed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from typing import Any, NoReturn

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import (
    BooleanType,
    DataType,
    LongType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from millpond.clock import SystemClock, as_datetime
from millpond.codec import Codec, decode_key
from millpond.errors import Corrupt, InvalidUse, Unavailable
from millpond.log import segment
from millpond.log.apps import check_app_exists, list_apps
from millpond.log.checked import Pointer
from millpond.log.manifest import Run
from millpond.log.reach import oldest_within_reach, within_reach
from millpond.log.record import Record
from millpond.log.rewrite import read_living_cells
from millpond.maintenance.record_changes import changes_in
from millpond.maintenance.stopped_app import StoppedApp
from millpond.replica import Entry
from millpond.steps.shown_step import ShownStep
from millpond.steps.state.migration import MARK
from millpond.storage import open_storage

SAMPLE = 1000  # keys or changes from which the types of the columns are found
ROWS_AT_ONCE = 10_000  # in one Arrow batch
JSON = {"millpond": "json"}  # the metadata of a column whose values are all JSON text
OPTIONS = ("path", "app", "step", "batch", "changes_from", "changes_to", "values")
HOW = 'spark.read.format("millpond").options(app="orders", step="total").load(state_dir)'


@dataclass(frozen=True)
class Query:
    """What the options of a read ask for."""

    url: str
    app: str
    step: str
    batch: int | None = None
    changes: tuple[int | None, int | None] | None = None  # the first and the last batch; None: the oldest, the newest
    is_json: bool = False  # values are JSON text even if they have a common type

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Query:
        """Return the query of some options; `InvalidUse` says what is wrong with them."""
        options = {name.lower(): value for name, value in given.items()}
        for name in options:
            if name not in OPTIONS:
                raise InvalidUse(f"option {name!r} of the data source millpond: expected one of {', '.join(OPTIONS)}")
        if not options.get("path"):
            raise InvalidUse(f"the data source millpond needs the app's state_dir, as in {HOW}")
        storage = open_storage(options["path"])
        if not options.get("app"):
            there = ", ".join(map(repr, list_apps(storage))) or "none"
            raise InvalidUse(f"the data source millpond needs an app, as in {HOW}; {storage.url} holds: {there}")
        if not options.get("step"):
            raise InvalidUse(f"the data source millpond needs a step, as in {HOW}")
        values = options.get("values", "auto")
        if values not in ("auto", "json"):
            raise InvalidUse(f"option 'values' of the data source millpond: expected auto or json, got {values!r}")
        first, last, batch = (_number(options, name) for name in ("changes_from", "changes_to", "batch"))
        has_changes = "changes_from" in options or "changes_to" in options
        if has_changes and batch is not None:
            raise InvalidUse("the data source millpond reads state at a 'batch', or changes: expected one, got both")
        changes = (first, last) if has_changes else None
        return cls(storage.url, options["app"], options["step"], batch, changes, values == "json")

    @property
    def log(self) -> StoppedApp:
        return StoppedApp(open_storage(self.url), self.app, SystemClock())

    @property
    def shown(self) -> ShownStep:
        return ShownStep(self.app, self.step)

    def newest(self) -> Record:
        """Return the newest record; `InvalidUse` if there is no such app or step."""
        ledger = self.log.ledger
        check_app_exists(ledger)
        newest = ledger.newest()
        assert newest is not None
        self.shown.kind(newest)
        return newest


def _number(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.isdigit():
        raise InvalidUse(f"option {name!r} of the data source millpond: expected the number of a batch, got {text!r}")
    return int(text)


# --- what one task reads ---


@dataclass
class StatePart(InputPartition):
    """The state of a step in one partition at one record: the files that it is in."""

    query: Query
    record: Record
    now: float
    runs: list[Run]
    fresh: list[Pointer]

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each key."""
        tables = read_living_cells(open_storage(self.query.url), self.runs, self.fresh)
        changes = chain.from_iterable(segment.read_changes(table) for table in tables)
        entries = (Entry(c.key, c.cell, c.value, c.due, c.wall) for c in changes if c.value is not None)
        shown = self.query.shown
        for key, value in shown.items(shown.rows(entries, self.record, self.now), self.record):
            yield {"key": key, "value": value, "batch": self.record.number}


@dataclass
class ChangesPart(InputPartition):
    """The changes of a step in one partition, from one record to another, both included."""

    query: Query
    first: int
    last: int
    partition: int

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each change of a cell."""
        codec, log = Codec((), unknown="plain"), self.query.log
        for record in log.ledger.between(self.first - 1, self.last):
            for change in changes_in(log, record, self.query.step, self.partition):
                if change.cell != MARK:
                    yield {
                        "batch": record.number,
                        "time": as_datetime(record.time),
                        "key": decode_key(change.key),
                        "cell": change.cell.decode(),
                        "value": None if change.value is None else codec.decode(change.value),
                        "deleted": change.value is None,
                    }


def plan_state(query: Query) -> list[StatePart]:
    """Return the partitions of a step's state at the record that a query asks for."""
    newest, log = query.newest(), query.log
    record, now = newest, log.clock.now()
    if query.batch is not None:
        found = within_reach(log.ledger, query.batch, newest) if query.batch <= newest.number else None
        if found is None:
            raise InvalidUse(
                f"option 'batch' of the data source millpond: expected a batch of app {query.app!r} from "
                f"{oldest_within_reach(log.ledger, newest)} to {newest.number}, got {query.batch}"
            )
        query.shown.kind(found)
        record, now = found, found.time
    small = msgspec.structs.replace(record, segments={}, outputs={}, positions={}, spark={})
    parts = []
    for job in log.rewriter.plan_jobs(record, record):
        _, runs, fresh = job.steps.get(query.step, ("", [], []))
        parts.append(StatePart(query, small, now, runs, fresh))
    return parts


def plan_changes(query: Query) -> list[ChangesPart]:
    """Return the partitions of the changes that a query asks for."""
    newest, ledger = query.newest(), query.log.ledger
    assert query.changes is not None
    floor = max(newest.born, ledger.floor(newest))
    first = floor if query.changes[0] is None else query.changes[0]
    last = newest.number if query.changes[1] is None else query.changes[1]
    if not floor <= first <= last <= newest.number:
        raise InvalidUse(
            f"options 'changes_from' and 'changes_to' of the data source millpond: expected batches of app "
            f"{query.app!r} from {floor} to {newest.number}, in order, got {first} and {last}"
        )
    most = max(record.partitions for record in ledger.between(first - 1, last))
    return [ChangesPart(query, first, last, partition) for partition in range(most)]


def plan(query: Query) -> Sequence[StatePart | ChangesPart]:
    """Return the partitions that a query reads."""
    return plan_state(query) if query.changes is None else plan_changes(query)


# --- columns ---


def find_schema(query: Query) -> StructType:
    """Return the columns of a query. The types of keys and values are those of the first of them."""
    rows = list(islice(chain.from_iterable(part.read() for part in plan(query)), SAMPLE))
    key = _column("key", [row["key"] for row in rows], query)
    value = _column("value", [row["value"] for row in rows], query)
    batch = StructField("batch", LongType())
    if query.changes is None:
        return StructType([key, value, batch])
    time, cell = StructField("time", TimestampType()), StructField("cell", StringType())
    return StructType([batch, time, key, cell, value, StructField("deleted", BooleanType())])


def _column(name: str, values: list[Any], query: Query) -> StructField:
    """Return a column of the common type of some values, or of JSON text if they have none that Spark knows."""
    as_json = StructField(name, StringType(), True, JSON)
    if query.is_json and name == "value":
        return as_json
    if len({type(value) for value in values if value is not None}) != 1:
        return as_json
    try:
        found = from_arrow_type(pa.array(values).type)
    except Exception:  # Arrow or Spark has no such type: each has errors of its own for that
        return as_json
    return StructField(name, found) if _is_usable(found) else as_json


def _is_usable(found: DataType) -> bool:
    if isinstance(found, StructType):
        return bool(found.fields) and all(_is_usable(field.dataType) for field in found.fields)
    inner = [each for name in ("elementType", "keyType", "valueType") if (each := getattr(found, name, None))]
    return not isinstance(found, NullType) and all(map(_is_usable, inner))


def check_columns(schema: StructType, query: Query) -> None:
    """Raise `InvalidUse` if a schema that the user gave names a column that there is not."""
    known = ["key", "value", "batch"] if query.changes is None else ["batch", "time", "key", "cell", "value", "deleted"]
    for field in schema.fields:
        if field.name not in known:
            raise InvalidUse(
                f"schema: the data source millpond has no column {field.name!r}; it has: {', '.join(known)}"
            )


def to_batches(rows: Iterator[dict[str, Any]], schema: StructType, query: Query) -> Iterator[pa.RecordBatch]:
    """Yield rows as Arrow batches with the columns of a schema."""
    codec = Codec((), unknown="plain")
    while some := list(islice(rows, ROWS_AT_ONCE)):
        arrays = [_as_array(field, [row[field.name] for row in some], codec, query) for field in schema.fields]
        names = [field.name for field in schema.fields]
        yield pa.RecordBatch.from_arrays(arrays, names)


def _as_array(field: StructField, values: list[Any], codec: Codec, query: Query) -> pa.Array:
    if field.metadata == JSON:
        return pa.array([_text(value, codec) for value in values], pa.string())
    if isinstance(field.dataType, StringType):
        texts = (value if value is None or isinstance(value, str) else _text(value, codec) for value in values)
        return pa.array(texts, pa.string())
    wanted = to_arrow_type(field.dataType, timezone="UTC")
    try:
        for value in values:
            _check_fits(value, wanted)
        return pa.array(values, wanted)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise InvalidUse(
            f"step {query.step!r} of app {query.app!r}: the column {field.name!r} has type "
            f"{field.dataType.simpleString()}, and one of its values does not fit: {error}. Read the values as JSON "
            'text with option("values", "json"), or give the types with .schema(…).'
        ) from error


def _text(value: Any, codec: Codec) -> str | None:
    return None if value is None else codec.encode(value).decode()


def _check_fits(value: Any, wanted: pa.DataType) -> None:
    """Raise `ValueError` for what Arrow would change silently: more fields, fractions, booleans as numbers."""
    if (pa.types.is_integer(wanted) and isinstance(value, float)) or (
        pa.types.is_floating(wanted) and isinstance(value, bool)
    ):
        raise ValueError(f"{value!r} is not of type {wanted}")
    if pa.types.is_struct(wanted) and isinstance(value, dict):
        types = {field.name: field.type for field in wanted}
        for name, inner in value.items():
            if name not in types:
                raise ValueError(f"field {name!r} is not in the type")
            _check_fits(inner, types[name])
    elif pa.types.is_list(wanted) and isinstance(value, list | tuple):
        for each in value:
            _check_fits(each, wanted.value_type)


# --- what Spark calls ---


class MillpondReader(DataSourceReader):
    """Reads one query: `partitions` is called on the driver, `read` in a task for each partition."""

    def __init__(self, query: Query, schema: StructType) -> None:
        self._query, self._schema = query, schema

    def partitions(self) -> Sequence[InputPartition]:
        return list(plan(self._query)) or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, StatePart | ChangesPart):
            return
        try:
            yield from to_batches(partition.read(), self._schema, self._query)
        except Corrupt as error:
            raise Unavailable(
                f"app {self._query.app!r}: a file that is needed cannot be read. If the app has removed it, because it "
                f"has written many records since, run the query again, or let App(keep=) say that more stay: {error}"
            ) from error


class MillpondSource(DataSource):
    """The data source `millpond` of PySpark. It is found by itself where Millpond is installed."""

    @cached_property
    def _query(self) -> Query:
        return Query.of(self.options)

    @classmethod
    def name(cls) -> str:
        return "millpond"

    def schema(self) -> StructType:
        return find_schema(self._query)

    def reader(self, schema: StructType) -> DataSourceReader:
        check_columns(schema, self._query)
        return MillpondReader(self._query, schema)

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        raise InvalidUse(
            "the data source millpond only reads: the state of an app is written by its own steps. To change it as a "
            "whole, use mp.admin(state_dir, app)."
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:
        self.writer(schema, overwrite)

    def streamReader(self, schema: StructType) -> NoReturn:
        raise InvalidUse(
            "the data source millpond has no stream: use spark.read, with changes_from for the changes since a batch, "
            "or let the app publish the changes of a step with app.changes(step)."
        )


def register(spark: Any) -> None:
    """Register the data source with a session."""
    if not isinstance(spark, SparkSession):
        raise InvalidUse(
            f"register_spark_source: expected a classic SparkSession, got {type(spark).__module__}."
            f"{type(spark).__name__}. A Spark Connect server finds the data source if its Python has Millpond."
        )
    if "PYSPARK_PYTHON" not in os.environ:
        spark.sparkContext.pythonExec = sys.executable  # it has taken the first "python3" of its path
    spark.dataSource.register(MillpondSource)
