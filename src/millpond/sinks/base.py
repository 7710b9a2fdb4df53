"""The contract of sinks: a sink takes the outputs of each batch, one delivery per partition.

A sink is a small class that anyone can write; `millpond.testing.sink_suite` checks one against this contract. `Sink` is
required; `TableSink`, `FrameSink`, `RollbackSink`, `RegisteredSink`, `FencingSink` and
`ChangesSink` are optional.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import pyarrow as pa


@dataclass(frozen=True)
class Delivery:
    """The name of one delivery. It never changes, and no other delivery has it.

    `attempt` is the attempt id of the commit record whose outputs are delivered. A batch number can be used twice,
    after an older copy of `state_dir` was restored; a record's attempt id cannot. It is empty for records of format 1.

    `claim` is the claim of the driver that makes the delivery: its number and attempt id. It is not a part of the name:
    another driver may deliver the same. A `FencingSink` refuses a delivery of any other claim than the newest.

    >>> import millpond as mp
    >>> mp.lowlevel.Delivery("orders", "5e1f", "totals", 42, 3, "a7c0").id
    'orders/5e1f/totals/42/3/a7c0'
    """

    app: str
    incarnation: str
    sink: str
    batch: int
    partition: int
    attempt: str = ""
    claim: tuple[int, str] | None = field(default=None, compare=False, repr=False)

    @property
    def id(self) -> str:
        """All parts of the name in one text, to store beside the rows.

        >>> import millpond as mp
        >>> mp.lowlevel.Delivery("orders", "5e1f", "totals", 42, 3, "a7c0").id
        'orders/5e1f/totals/42/3/a7c0'
        """
        text = f"{self.app}/{self.incarnation}/{self.sink}/{self.batch}/{self.partition}"
        return f"{text}/{self.attempt}" if self.attempt else text


@dataclass(frozen=True)
class Registration:
    """What a target remembers of a driver that delivers to it, for one app, incarnation and sink.

    `claim` and `claim_attempt` name the driver's claim in the ledger, `batch` and `attempt` the newest record that
    the driver has begun to deliver, or the claim itself before the first delivery.

    >>> import millpond as mp
    >>> mp.lowlevel.Registration("orders", "5e1f", "totals", 40, "c1a1", 42, "a7c0").batch
    42
    """

    app: str
    incarnation: str
    sink: str
    claim: int
    claim_attempt: str
    batch: int
    attempt: str


@runtime_checkable
class Sink(Protocol):
    """Takes the outputs of an app, one delivery per partition and batch.

    Deliveries of one sink come batch after batch, at least once each, and never before their batch is committed. A
    repeated delivery has the same id and the same rows, in another process, too; the sink must make it count once, by
    the delivery's id. A sink whose `where` is "workers" is pickled to reach them: it holds no open connection.

    >>> import millpond as mp
    >>> class Latest:
    ...     where = "driver"
    ...     def __init__(self):
    ...         self.held = {}
    ...     def deliver(self, rows, delivery):
    ...         self.held[delivery.id] = rows
    >>> sink = Latest()
    >>> sink.deliver([1, 2], mp.lowlevel.Delivery("orders", "5e1f", "totals", 42, 0, "a7c0"))
    >>> sink.where, sink.held
    ('driver', {'orders/5e1f/totals/42/0/a7c0': [1, 2]})
    """

    @property
    def where(self) -> Literal["driver", "workers", "session", "nowhere"]:
        """Who calls `deliver`: "driver" (a thread of the driver), "workers" (tasks, several partitions at once),
        "session" (the driver, with a Spark DataFrame), or "nowhere" (it is never called). Read when the app starts."""
        ...

    def deliver(self, rows: list[Any], delivery: Delivery) -> None:
        """Take the outputs of one partition and batch; on return they are durable.

        Called after the batch is committed, and again after a crash or a lost reply. Raise `Unavailable` to be called
        again with the same delivery after `retry_after` seconds, for as long as it takes; later batches of this sink
        wait. Any other exception ends the run with `StepFailed`; the delivery stays open and is the first thing that
        the next run does.
        """
        ...


@runtime_checkable
class TableSink(Sink, Protocol):
    """A sink that also takes outputs as columns, without a Python object per row. Optional.

    `deliver_table` is called in the place of `deliver` if all rows of a delivery are uniform: all are dicts, or all of
    one dataclass or Struct, with the same fields in the same order; and the values of each field are of one of the
    types that `deliver_table` names, or None. Any other delivery comes to `deliver`, and so does one without rows. Both
    must leave the same in the target. `RollbackSink` and `RegisteredSink` are always given lists of rows.

    A delivery that is repeated may come to the other method, after an upgrade of Millpond or of the sink. It has the
    same id, and must count once.

    >>> import millpond as mp
    >>> import pyarrow as pa
    >>> import pyarrow.compute as pc
    >>> class Sums:
    ...     where = "driver"
    ...     def __init__(self):
    ...         self.held = {}
    ...     def deliver(self, rows, delivery):
    ...         self.held[delivery.id] = sum(row["n"] for row in rows)
    ...     def deliver_table(self, table, delivery):
    ...         self.held[delivery.id] = pc.sum(table["n"]).as_py()
    >>> sink = Sums()
    >>> sink.deliver_table(pa.table({"n": [1, 2]}), mp.lowlevel.Delivery("orders", "5e1f", "totals", 42, 0, "a7c0"))
    >>> sink.where, sink.held, isinstance(sink, mp.lowlevel.TableSink)
    ('driver', {'orders/5e1f/totals/42/0/a7c0': 3}, True)
    """

    def deliver_table(self, table: pa.Table, delivery: Delivery) -> None:
        """Take the outputs of one partition and batch, at least one; on return they are durable.

        The table has a column per field, in the order of the fields, and a row per output, in the order of the outputs.
        A dataclass or Struct comes as its fields. None is null. The types of the columns are

            str       string                      bytes     binary
            int       int64                       date      date32
            float     double                      datetime  timestamp[us], without a zone or in UTC
            bool      bool                        None      null, if the field is None in all rows

        The fields and their types may differ from delivery to delivery. A nan is not null. The method is called where
        and when `deliver` is, and an exception means the same.
        """
        ...


@runtime_checkable
class FrameSink(Sink, Protocol):
    """A sink with `where = "session"`: it takes the outputs of a whole batch as a Spark DataFrame.

    >>> import millpond as mp
    >>> class Counts:
    ...     where = "session"
    ...     def deliver(self, rows, delivery):
    ...         raise mp.errors.InvalidUse("this sink needs Spark")
    ...     def deliver_frame(self, spark, lines, delivery):
    ...         spark.read.json(lines).groupBy("customer").count().show()
    >>> isinstance(Counts(), mp.lowlevel.FrameSink), Counts().where
    (True, 'session')
    >>> deliver, deliver_frame = Counts().deliver, Counts().deliver_frame
    """

    def deliver_frame(self, spark: Any, lines: Any, delivery: Delivery) -> None:
        """Take the outputs of one batch; `lines` is an RDD with each row as JSON text.

        Called on the driver in the place of `deliver`, once for each batch with outputs, in order, with the delivery of
        its first partition; again after a crash or a lost reply. `Unavailable` and a failed Spark job are tried again;
        any other exception ends the run with `StepFailed`.
        """
        ...


@runtime_checkable
class RollbackSink(Protocol):
    """A sink that can void deliveries. Optional: a sink without it keeps its rows when the app is rolled back.

    >>> import tempfile
    >>> import millpond as mp
    >>> sink = mp.sinks.files(tempfile.mkdtemp())
    >>> delivery = mp.lowlevel.Delivery("orders", "5e1f", "totals", 42, 0, "a7c0")
    >>> isinstance(sink, mp.lowlevel.RollbackSink), isinstance(mp.sinks.console(), mp.lowlevel.RollbackSink)
    (True, False)
    >>> sink.rollback([delivery], lambda delivery: [])
    >>> sink.deliver([{"n": 1}], delivery)  # comes late, from a driver that was paused
    >>> sink.status(delivery)
    'void'
    """

    def rollback(self, deliveries: Sequence[Delivery], rows: Callable[[Delivery], list[Any]]) -> None:
        """Make these deliveries void for ever, whether they have arrived or not, and change nothing else.

        Called on the driver, or in the process that runs an administrative command, after the rollback is committed
        and before anything newer is delivered. It may be called again with the same deliveries, also much later, by a
        process that was paused: so it must not look for "everything after a batch". A `deliver` of one of them that
        comes afterwards, from a driver that was paused, must add no row. `rows(delivery)` reads the rows of a delivery
        from the log; it returns an empty list if the log no longer has them. An exception ends the command or the run;
        the call is repeated at the next start.
        """
        ...


@runtime_checkable
class RegisteredSink(Protocol):
    """A sink whose target remembers which driver delivers to it. Optional.

    It lets a driver notice a target that is ahead of its ledger (an older copy of `state_dir` was restored, or runs
    beside the original) or behind it (files of the target were lost).

    All methods are called on the driver.

    >>> import tempfile
    >>> import millpond as mp
    >>> folder = tempfile.mkdtemp()
    >>> sink = mp.sinks.files(folder)
    >>> isinstance(sink, mp.lowlevel.RegisteredSink), isinstance(mp.sinks.console(), mp.lowlevel.RegisteredSink)
    (True, False)
    >>> sink.target == folder
    True
    >>> entry = mp.lowlevel.Registration("orders", "5e1f", "totals", 40, "c1a1", 42, "a7c0")
    >>> sink.register(entry)
    >>> sink.registrations("orders", "5e1f", "totals") == [entry]
    True
    >>> delivery = mp.lowlevel.Delivery("orders", "5e1f", "totals", 42, 0, "a7c0")
    >>> sink.deliver([{"n": 1}], delivery)
    >>> make_void = sink.take_back(entry, known=lambda batch, attempt: False)
    >>> make_void()
    ['00000000000000000042-00000-5e1f-a7c0-totals.jsonl']
    >>> sink.status(delivery)
    'void'
    >>> sink.revive([{"n": 1}], delivery)
    >>> sink.status(delivery)
    'held'
    >>> sink.forget([entry])
    >>> sink.registrations("orders", "5e1f", "totals")
    []
    """

    @property
    def target(self) -> str:
        """The target as a text that is the same in every run, such as a path or a table's name."""
        ...

    def registrations(self, app: str, incarnation: str, sink: str) -> Sequence[Registration]:
        """Return what the target remembers of this app's incarnation and sink: an entry for each claim that was
        registered and not forgotten. Called when a driver starts, before it claims the app, and before each
        delivery."""
        ...

    def register(self, registration: Registration) -> None:
        """Write the entry of one claim durably, in the place of an older one of the same claim.

        It must change no entry of another claim: a driver that was paused may write its own at any time. Called after a
        claim, and before the outputs of each batch."""
        ...

    def forget(self, registrations: Sequence[Registration]) -> None:
        """Remove the entries of these claims. Called after a newer claim was registered."""
        ...

    def status(self, delivery: Delivery) -> Literal["held", "void", "gone"]:
        """Return "held" if the delivery is there, "void" if it was made void, and "gone" otherwise. Called when a
        driver starts, for the newest deliveries."""
        ...

    def take_back(self, registration: Registration, known: Callable[[int, str], bool]) -> Callable[[], list[str]]:
        """Find the deliveries of this incarnation and sink that the ledger does not contain, for
        `run(take_back=[...])`.

        `registration` is one of the entries that the ledger does not contain. `known(batch, attempt)` says whether the
        ledger contains a delivery. Returns a function that makes these deliveries void and returns their names. The
        driver calls that function after it has made sure that it still owns the app.

        A sink that cannot do that has the attribute `can_take_back = False`, so that no error offers it, and raises
        `InvalidUse`."""
        ...

    def revive(self, rows: list[Any], delivery: Delivery) -> None:
        """Deliver a void delivery after all, in one step: a reader sees it void or whole.

        Called when a driver starts, for deliveries that its ledger contains: after an older copy of `state_dir` was
        restored, the target may hold them as rolled back."""
        ...


@runtime_checkable
class FencingSink(Protocol):
    """A registered sink whose target refuses deliveries of older claims by itself, in the transaction of the rows.

    Optional; such a sink is a `RegisteredSink`, too. The driver registers it once, when it starts, and not before every
    batch. All deliveries carry the claim of their driver (`Delivery.claim`). One whose claim is not the newest must
    change nothing in the target and raise `Fenced`.

    >>> import millpond as mp
    >>> class Ledgered:
    ...     claim = (0, "")
    ...     def fence(self, registration, partitions, over=()):
    ...         self.claim = (registration.claim, registration.claim_attempt)
    ...     def check_target(self, registration):
    ...         pass
    ...     def is_emptied(self, app, incarnation, sink):
    ...         return False
    ...     def deliver(self, rows, delivery):
    ...         if delivery.claim != self.claim:
    ...             raise mp.errors.Fenced(f"claim {self.claim[0]} delivers here now")
    >>> sink = Ledgered()
    >>> isinstance(sink, mp.lowlevel.FencingSink), sink.is_emptied("orders", "5e1f", "totals")
    (True, False)
    >>> claim = mp.lowlevel.Registration("orders", "5e1f", "totals", 40, "c1a1", 40, "c1a1")
    >>> sink.fence(claim, partitions=4)
    >>> sink.check_target(claim)
    >>> sink.deliver([], mp.lowlevel.Delivery("orders", "5e1f", "totals", 42, 0, "a7c0", claim=(40, "c1a1")))
    >>> sink.deliver([], mp.lowlevel.Delivery("orders", "5e1f", "totals", 39, 0, "b0b0", claim=(30, "a0a0")))
    Traceback (most recent call last):
    ...
    millpond.errors.Fenced: claim 40 delivers here now
    """

    def fence(self, registration: Registration, partitions: int, over: Sequence[Registration] = ()) -> None:
        """Make the target refuse deliveries of all claims but this one, to these and all earlier partitions.

        Called on the driver, after the claim and before `register`, and again with more partitions if their number
        grows. A transaction that
        an older driver has left open is aborted, also of a partition that a rescale has removed. Raises `Fenced` if a
        newer claim is there, unless it is among `over`: claims of another copy of the app that the user has accepted.
        A target that was replaced since the last claim shows that until `register` is called, which is once it has all
        deliveries again.
        """
        ...

    def check_target(self, registration: Registration) -> None:
        """Raise `Incompatible` if the target was deleted or replaced since `fence`. Called on the driver before each
        record is delivered; it should take a few milliseconds."""
        ...

    def is_emptied(self, app: str, incarnation: str, sink: str) -> bool:
        """Return whether the target certainly holds none of the sink's deliveries.

        Called when a driver starts, if the ledger says that there were deliveries and `registrations` returns none. If
        it returns True they are all delivered again; otherwise the app stops with an error."""
        ...


@runtime_checkable
class ChangesSink(Protocol):
    """A sink that writes a row of `app.changes(step)` whose value is None in another way than other rows. Optional.

    >>> import millpond as mp
    >>> sink = mp.sinks.kafka("totals", servers="localhost:9092", key="key")
    >>> isinstance(sink, mp.lowlevel.ChangesSink), isinstance(mp.sinks.console(), mp.lowlevel.ChangesSink)
    (True, False)
    >>> sink.for_changes()  # writes tombstones
    kafka('totals', servers='localhost:9092')
    """

    def for_changes(self) -> Sink:
        """Return the sink that takes rows of changes in its place. Called when `changes(step).to(name, sink)` is."""
        ...
