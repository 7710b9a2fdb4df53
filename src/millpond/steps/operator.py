"""The operator protocol: what every node of a program offers to the router.

An operator is a frozen dataclass that says what it is (its `verb`, its `name` in errors) and what it can do to rows
(`may_change_rows`, `port`, …). A task starts it once, with `start`, and gives it rows with `run`. A new verb is one
module in `steps/verbs/` and one method of `Stream`:

>>> from dataclasses import dataclass
>>> from millpond.rows.rows import Rows
>>> @dataclass(frozen=True)
... class Reverse(Operator):
...     verb = "reverse"
...     may_change_rows = False
...
...     def start(self, context):
...         return self  # it keeps nothing between two calls, so it can be its own running operator
...
...     def run(self, rows, side=0):
...         return rows.pick(range(len(rows))[::-1])
>>> Reverse().start(None).run(Rows(["a", "b"], [0, 1])).data
['b', 'a']
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from millpond.clock import Clock
from millpond.rows.rows import Rows, Times
from millpond.steps.failure import Failed, Failures, OnError


class RunningOperator(Protocol):
    """A started operator, in one task. One thread calls it."""

    def run(self, rows: Rows, side: int = 0) -> Rows | Iterable[Rows]:
        """Return the outputs of some rows of input number `side`, in their order; called any number of times.

        Rows that are returned keep their order, keys and times unless the verb is there to change them.
        """
        ...


@dataclass(frozen=True)
class OperatorContext:
    """What a task gives to an operator that it starts."""

    name: str  # of the operator, in errors and counters
    on_error: OnError
    failures: Failures
    clock: Clock
    now: float  # the wall-clock time of the batch, in seconds since the epoch
    watermark: int | None  # of the operator's input, as the batch began
    cache: Any  # what `Operator.make_cache` returned in this process
    report_times: Callable[[Times], None] | None  # moves the watermark of a source; None behind the first exchange
    emit: Callable[[str, Rows], None]  # sends rows to the consumers of a named output

    def fail(self, rows: Rows, i: int, row: Any, error: BaseException, again: Callable[[], None] | None = None) -> None:
        """Apply the error policy to row `i` of `rows`; `again` makes another attempt at it, if that may help."""
        self.reporter(rows)(i, row, error, again)

    def reporter(self, rows: Rows) -> Failed:
        """Return `fail` for these rows."""
        return self.failures.reporter(self.on_error, self.name, rows)


class Operator:
    """What a node does to rows. Subclasses are frozen dataclasses: they are pickled and sent to workers."""

    verb: ClassVar[str]
    may_change_rows: ClassVar[bool] = True  # a function of the user may change a row in place, or hands it on
    passes_rows_unchanged: ClassVar[bool] = False  # every row that comes in goes out as it is
    is_exchange: ClassVar[bool] = False  # rows may go on in a task of a later stage
    starts_stage: ClassVar[bool] = False  # rows always go on in a task of the next stage
    sets_times: ClassVar[bool] = False  # rows get another event time
    has_state: ClassVar[bool] = False  # it is a step: `Step.start` starts it, with the state of the partition
    is_sink: ClassVar[bool] = False  # rows leave the program here: it is not started, its rows go to the outbox

    @property
    def name(self) -> str:
        """The name in `StepFailed`, in counters of skipped rows and in dead letters."""
        return self.verb

    @property
    def label(self) -> str:
        """The name in errors about the program itself, such as `sink 'totals'`."""
        return self.verb

    @property
    def exchange_name(self) -> str:
        """The name in errors about rows that cannot be sent to a task of another stage."""
        return self.verb

    @property
    def can_read_json_text(self) -> bool:
        """Whether it takes rows that are still lines of JSON; else they are decoded first."""
        return False

    @property
    def port(self) -> str | None:
        """The named output of its input node whose rows it stands for; None means that it takes the main output."""
        return None

    @property
    def own_policy(self) -> OnError | None:
        """Its own `on_error=`; None means that of the stream."""
        return None

    def make_cache(self) -> Any:
        """Return what the operator remembers from batch to batch in one process. It is lost with the process."""
        return None

    def start(self, context: OperatorContext) -> RunningOperator:
        """Start the operator in one task. Called at most once per task, before its first rows."""
        raise NotImplementedError(f"{self.verb} takes no rows")
