"""The contract of sinks: what a sink has to do with the deliveries that it is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable


@dataclass(frozen=True)
class Delivery:
    """The name of one delivery: the same for ever, and no other delivery has it.

    `attempt` is the attempt id of the commit record whose outputs are delivered. A batch number can come twice, after
    an older copy of `state_dir` was put back; a record's attempt id cannot. It is empty for records of format 1.

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

    @property
    def id(self) -> str:
        """All of it in one text.

        >>> import millpond as mp
        >>> mp.lowlevel.Delivery("orders", "5e1f", "totals", 42, 3, "a7c0").id
        'orders/5e1f/totals/42/3/a7c0'
        """
        text = f"{self.app}/{self.incarnation}/{self.sink}/{self.batch}/{self.partition}"
        return f"{text}/{self.attempt}" if self.attempt else text


@dataclass(frozen=True)
class Registration:
    """What a target knows of the driver that delivers to it, for one app, incarnation and sink.

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
    """Where outputs go.

    `deliver` is called with the outputs of one partition and batch, in order, at least once, and
    never before they are committed. A second call with the same delivery has the same rows: the sink
    must see to it that they count once, by the delivery's id. It raises `Unavailable` to be asked again
    later. `where` says who calls it: the driver, the workers, or, with a DataFrame, the Spark session; nobody
    calls one that is "nowhere".

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
        """Who calls `deliver`."""
        ...

    def deliver(self, rows: list[Any], delivery: Delivery) -> None:
        """Take the outputs of one partition and batch, so that a second call with them counts for nothing."""
        ...


@runtime_checkable
class RollbackSink(Protocol):
    """A sink that can take deliveries back. Optional: a sink without it keeps what it holds when the app is rolled
    back.

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
        comes afterwards, from a driver that was paused, must add no row. `rows(delivery)` reads what was delivered
        from the log; it is empty if the log no longer has it.
        """
        ...


@runtime_checkable
class RegisteredSink(Protocol):
    """A sink whose target remembers who delivers to it. Optional: it lets a driver notice a target that is ahead of its
    ledger (an older copy of `state_dir` was put back, or runs beside the original) or behind it (files were lost).

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
        """The place that is delivered to, as a text that stays the same from run to run."""
        ...

    def registrations(self, app: str, incarnation: str, sink: str) -> Sequence[Registration]:
        """What the target knows of this app's incarnation and sink: one entry for each claim that registered and was
        not forgotten. Called when a driver starts, before it claims the app, and before each delivery."""
        ...

    def register(self, registration: Registration) -> None:
        """Write the entry of one claim, in the place of an older one of the same claim, durably.

        It must change no entry of another claim: a driver that was paused may write its own at any time. Called after a
        claim, and before the outputs of each batch."""
        ...

    def forget(self, registrations: Sequence[Registration]) -> None:
        """Remove the entries of these claims. Called after a newer claim has registered."""
        ...

    def status(self, delivery: Delivery) -> Literal["held", "void", "gone"]:
        """Whether a delivery is there, or was made void, or neither. Called when a driver starts, for the newest
        deliveries."""
        ...

    def take_back(self, registration: Registration, known: Callable[[int, str], bool]) -> Callable[[], list[str]]:
        """Find the deliveries of this incarnation and sink that the ledger does not contain, for
        `run(take_back=[...])`.

        `registration` is one of the entries that the ledger does not contain. `known(batch, attempt)` says whether the
        ledger contains a delivery. Return a function that makes what was found void and returns
        their names. The driver calls that one once it has made sure that it still owns the app."""
        ...

    def revive(self, rows: list[Any], delivery: Delivery) -> None:
        """Deliver what was made void after all, in one step: whoever looks finds it void, or whole.

        Called when a driver starts, for what counts in its ledger: if an older copy of `state_dir` was put back, some
        of that may have been rolled back since."""
        ...
