"""The contract of sources: a source plans splits on the driver and reads them in tasks.

A source is a small class that anyone can write; `millpond.testing.source_suite` checks one against this contract.

    position ─ plan(position, limit, now) ─▶ [Split, …]          on the driver, once per batch
    Split    ─ read(split)                ─▶ Chunk, Chunk, …     in a task
    Chunk.position                        ─▶ the position of the next batch, once this one is committed
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from millpond.errors import MillpondError


class TooMuch(MillpondError):
    """A reading task met more than a batch can hold: the batch is planned again with a smaller limit.

    A source may raise it in `read`, if the rows of a split are much larger than those by which it was planned, or are
    no longer there.

    >>> import millpond as mp
    >>> issubclass(mp.lowlevel.TooMuch, mp.errors.MillpondError)
    True
    """


@dataclass(frozen=True)
class Limit:
    """How much one batch may read of a source: at most `rows` rows, and about `bytes` bytes.

    >>> import millpond as mp
    >>> mp.lowlevel.Limit(rows=100_000, bytes=1 << 28).rows
    100000
    """

    rows: int
    bytes: int


@dataclass(frozen=True)
class Split:
    """A piece of a source that one task reads: from `start` to `stop` of one place.

    `place` names the entry of the source's position that reading this split advances. The splits of one place in one
    plan follow each other without a gap, in the order of the plan. `partition` names the ordered lane that the rows
    belong to: rows of one lane keep their order. `weight` is the size in bytes, about; tasks are balanced by it.
    `detail` carries what `read` needs beyond that. `rows` is a number of rows that the split does not exceed, or None
    if the source knows none. All of it must be plain JSON, because it is sent to a task and compared in tests.

    With `may_join`, a task that reads both this split and the one before it, of the same place, partition and detail,
    may read them as one: `read` is called with a split from the `start` of the first to the `stop` of the last.

    >>> import millpond as mp
    >>> mp.lowlevel.Split("a.jsonl", start=0, stop=4096, weight=4096).place
    'a.jsonl'
    """

    place: str
    start: Any
    stop: Any
    partition: str = "0"
    weight: int = 1
    detail: Mapping[str, Any] = field(default_factory=dict)
    rows: int | None = None
    may_join: bool = False


@dataclass(frozen=True)
class JsonLines:
    """Rows that are still JSON text, one per element. They are decoded in the task, and only if a function needs them.

    >>> import millpond as mp
    >>> len(mp.lowlevel.JsonLines([b'{"n": 1}', b'{"n": 2}']).lines)
    2
    """

    lines: list[bytes]


@dataclass(frozen=True)
class BadRow:
    """A piece of input that is not a row: where it is, its raw content, and what is wrong with it.

    It meets the `on_error` of the stream, as a row does on which a function raises.


    >>> import millpond as mp
    >>> mp.lowlevel.BadRow("a.csv, line 3", "1,2,3", "expected 2 fields, got 3").where
    'a.csv, line 3'
    """

    where: str
    raw: Any
    error: str


@dataclass
class Chunk:
    """Some rows of a split in their order: a `pyarrow.Table`, JSON text, or a list of Python values.

    `position` is the position of the split's `place` after these rows. `where(i)` returns in words where row i came
    from ("orders/a.jsonl, line 17"); it is called only for bad rows, so it may be slow. `bad` holds pieces of the input
    that are not rows. `times()` returns the time of each row in microseconds since 1970, or None for a row without one,
    as `timestamp=mp.message_time` takes it; it is called only then. A `TimedSource` sets it. `size` is the number of
    bytes that rows in a list took in the source, if it is known: a `LearningSource` is given it.

    >>> import millpond as mp
    >>> mp.lowlevel.Chunk([{"n": 1}, {"n": 2}], position=2).position
    2
    """

    rows: pa.Table | JsonLines | list[Any]
    position: Any
    where: Callable[[int], str] | None = None
    bad: list[BadRow] = field(default_factory=list)
    times: Callable[[], Sequence[int | None]] | None = None
    size: int = 0


@runtime_checkable
class Source(Protocol):
    """Produces the rows of a stream: `plan` says what to read next, `read` reads it.

    A position maps places to how far each has been read, all of it plain JSON. It starts empty, is stored in the
    ledger with the state that its rows made, and changes only by a commit. So a source keeps no progress of its own:
    after a crash `plan` is called with the position of the last commit, and the same rows are read again.

    The object is pickled to reach the tasks: it holds no open connection. An exception of `plan` or `read` fails the
    batch and ends the run (`restarts=` starts it again); raise `InvalidUse` if a person has to act, and
    `Unavailable` if the same call may work later. After `Unavailable` with `retry_after`, the driver waits and calls
    again, for as long as it takes.

    >>> import millpond as mp
    >>> class Countdown:
    ...     def plan(self, position, limit, now):
    ...         done = position.get("0", 0)
    ...         return [mp.lowlevel.Split("0", done, 10)] if done < 10 else []
    ...     def read(self, split):
    ...         yield mp.lowlevel.Chunk([10 - n for n in range(split.start, split.stop)], split.stop)
    >>> source = Countdown()
    >>> [split] = source.plan({"0": 7}, mp.lowlevel.Limit(rows=100, bytes=1 << 20), now=0.0)
    >>> [chunk.rows for chunk in source.read(split)]
    [[3, 2, 1]]
    """

    def plan(self, position: Mapping[str, Any], limit: Limit, now: float) -> Sequence[Split]:
        """Return the splits to read next; an empty list if all of the input is read for now.

        Called on the driver, once per batch and before any `read`; again with a smaller limit if a task met more rows
        than its share. Reads no row. `now` is the batch's time in seconds since the epoch. The splits must not
        exceed `limit.rows` if the source knows the number of rows; otherwise it plans by an estimate.
        """
        ...

    def read(self, split: Split) -> Iterator[Chunk]:
        """Yield the rows of the split in order, as one or more chunks.

        Called in a task, often on another machine, and again whenever the task or the batch is repeated, perhaps at
        the same time. Two calls with one split should yield the same rows. If they differ, nothing is counted twice:
        a batch whose partitions saw different attempts of a task is run again.
        """
        ...


@runtime_checkable
class SnapshotSource(Source, Protocol):
    """A source that can leave out what arrives from now on. Optional: it lets `run(until="caught-up")` end.

    Without it such a run ends when a plan is empty, which never happens while rows keep arriving.


    >>> import millpond as mp
    >>> rows = ["a", "b"]
    >>> source = mp.sources.rows(rows).as_of(now=0.0)
    >>> rows.append("c")
    >>> [split] = source.plan({}, mp.lowlevel.Limit(rows=100, bytes=1 << 20), now=1.0)
    >>> [chunk.rows for chunk in source.read(split)]
    [['a', 'b']]
    """

    def as_of(self, now: float) -> Source:
        """Return a copy of the source that has only what has arrived by now.

        Called on the driver, once, when such a run begins. The positions of the copy are those of this source: a later
        run goes on from them with what the copy left out.
        """
        ...


@runtime_checkable
class BoundedSource(Source, Protocol):
    """A source that can be read up to a position and no further. Optional: a rebuild uses it.

    Without it a rebuild calls `plan` with the number of rows that each batch had, and is refused if that does not end
    where the batch ended.


    >>> import millpond as mp
    >>> source = mp.sources.rows(["a", "b", "c"])
    >>> [split] = source.plan_to({"0": 0}, {"0": 2}, mp.lowlevel.Limit(rows=100, bytes=1 << 20), now=0.0)
    >>> [chunk.rows for chunk in source.read(split)]
    [['a', 'b']]
    """

    def plan_to(self, position: Mapping[str, Any], end: Mapping[str, Any], limit: Limit, now: float) -> Sequence[Split]:
        """Return the splits to read next, none beyond `end`; an empty list if all up to there is read.

        Called on the driver, in the place of `plan`. `end` is a position that was reached before. Raises `InvalidUse`
        if the input no longer has the rows in between.
        """
        ...


@runtime_checkable
class LearningSource(Source, Protocol):
    """A source that plans by an estimate of its row size and can correct it. Optional.

    Without it the source plans by its own estimate alone: batches may be smaller than `max_rows` allows, and one in
    which a task meets too many rows is planned again with a smaller limit.

    >>> import millpond as mp
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "orders.jsonl")
    >>> size = path.write_text('{"n": 1}\\n' * 1000)
    >>> source = mp.sources.files(path)
    >>> source.learned(rows=1, bytes=100)
    >>> [split] = source.plan({}, mp.lowlevel.Limit(rows=10, bytes=1 << 20), now=0.0)
    >>> split.weight, len(list(source.read(split)))  # 10 rows of 100 bytes
    (1000, 1)
    """

    def learned(self, rows: int, bytes: int) -> None:
        """Take note that `rows` rows of the input took `bytes` bytes; both are 1 or more.

        Called on the driver, after the commit of each batch that has read rows of the source, and before a batch is
        planned again because a task met more rows than its share. It must not change which rows are read, only how
        many a plan contains. What was learned need not be kept: a new process begins without it. An exception ends the
        run; the batch stays committed.
        """
        ...


@runtime_checkable
class WaitingSource(Source, Protocol):
    """A source that can see that its input ends in a row that is not complete. Optional.

    Without it `run(until="caught-up")` ends as soon as a plan is empty, and leaves such a row to the next run.

    >>> import millpond as mp
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "orders.csv")
    >>> size = path.write_text('id,text\\n1,tea\\n')
    >>> source = mp.sources.files(path)
    >>> [split] = source.plan({}, mp.lowlevel.Limit(rows=10, bytes=1 << 20), now=0.0)
    >>> [chunk] = source.read(split)
    >>> source.is_waiting({split.place: chunk.position}, now=path.stat().st_mtime)  # the last line is complete
    False
    """

    def is_waiting(self, position: Mapping[str, Any], now: float) -> bool:
        """Return whether a writer seems to be about to complete the row that the input ends in.

        Called on the driver, only in a run with `until="caught-up"`, when nothing is planned any more: again and again
        while it returns True, for at most 30 seconds, and then the run ends with a warning. `position` is the one of
        the last commit. Reads as little as it can, and changes nothing. Raise `InvalidUse` if a person has to complete
        the row: that ends the run.
        """
        ...


@runtime_checkable
class TimedSource(Protocol):
    """A source whose rows have times beside their fields: `timestamp=mp.message_time` takes them. Optional.

    >>> import millpond as mp
    >>> mp.sources.kafka("orders", servers="localhost:9092").has_times
    True
    >>> isinstance(mp.sources.rows([]), mp.lowlevel.TimedSource)
    False
    """

    @property
    def has_times(self) -> bool:
        """Whether chunks have `times`. Read when the program is built."""
        ...


@runtime_checkable
class CheckedSource(Protocol):
    """A source whose input may be replaced by another one while it is read. Optional: a commit asks it first.

    >>> import millpond as mp
    >>> class Numbered:
    ...     tape = 7
    ...
    ...     def check_read(self, position):
    ...         if position["0"]["tape"] != self.tape:
    ...             raise mp.lowlevel.TooMuch("the tape was changed")
    >>> isinstance(Numbered(), mp.lowlevel.CheckedSource)
    True
    >>> Numbered().check_read({"0": {"tape": 7, "line": 100}})
    """

    def check_read(self, position: Mapping[str, Any]) -> None:
        """Raise `TooMuch` if the rows that a batch has read may be of another input than the one that was planned.

        Called on the driver, after the tasks of a batch have read all of its rows and before it is committed, with the
        places that the batch has moved. After `TooMuch` nothing of the batch counts: it is planned again.
        """
        ...


@runtime_checkable
class AcknowledgedSource(Protocol):
    """A source that others may ask how far an app has read, as a Kafka consumer group is asked. Optional.

    Nothing depends on it: an app resumes from the position in its ledger.

    >>> import millpond as mp
    >>> class Monitored:
    ...     def acknowledge(self, app, position):
    ...         print(app, "has read", position)
    ...
    ...     def finish_acknowledging(self):
    ...         pass
    >>> isinstance(Monitored(), mp.lowlevel.AcknowledgedSource)
    True
    >>> Monitored().acknowledge("orders", {"0": 7})
    orders has read {'0': 7}
    >>> Monitored().finish_acknowledging()
    """

    def acknowledge(self, app: str, position: Mapping[str, Any]) -> None:
        """Take note of the position of the newest commit.

        Called on the driver, after each commit for which the source has planned, and once when a driver starts. It must
        not block: the next batch waits for it. An exception is logged and changes nothing.
        """
        ...

    def finish_acknowledging(self) -> None:
        """Wait until others can see the last position. Called on the driver at the end of a run, perhaps twice.

        It should give up after a few seconds. An exception is logged and changes nothing.
        """
        ...


@runtime_checkable
class RetainedSource(Protocol):
    """A source whose oldest rows are removed after a time. Optional: a rollback asks it first.

    >>> import millpond as mp
    >>> class LastHundred:
    ...     def check_retained(self, position, newest):
    ...         if position["0"] < 900 < newest["0"]:
    ...             raise mp.errors.InvalidUse(f"rows {position['0']} to 899 are gone")
    >>> isinstance(LastHundred(), mp.lowlevel.RetainedSource)
    True
    >>> LastHundred().check_retained({"0": 950}, newest={"0": 1000})
    """

    def check_retained(self, position: Mapping[str, Any], newest: Mapping[str, Any]) -> None:
        """Raise `InvalidUse` if rows after a position, which was reached before, are no longer there.

        `newest` is the position that the app has reached since; it may have places that `position` lacks. Called where
        `app.rollback` is called, before anything is changed.
        """
        ...
