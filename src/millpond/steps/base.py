"""What a step is given for a batch, and what it offers while it runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from millpond.codec import Codec
from millpond.errors import InvalidUse, short_repr
from millpond.log.segment import Change
from millpond.replica import View
from millpond.rows.rows import Rows
from millpond.steps.failure import Failures
from millpond.steps.state.table_rows import TableRows
from millpond.timing import Time, Unit, as_user


@dataclass(frozen=True, kw_only=True)
class BatchTime:
    """The times of one batch, as one step sees them. Watermarks are in ticks of `unit`, None if there is none yet."""

    now: float  # seconds since the epoch, the same in all tasks of the batch
    unit: Unit | None = None  # of the times of the rows that come; None if none has come yet
    start_watermark: int | None = None  # the one that the batch began with: it decides what is late
    end_watermark: int | None = None  # the one that it ends with: it decides what closes
    expiry_watermark: int | None = None  # the same, not moved by the end of the input: it decides what expires
    is_final: bool = False  # the input has ended: what is open closes

    @property
    def wall(self) -> int:
        """The batch's `now` in microseconds since the epoch."""
        return round(self.now * 1_000_000)

    @property
    def shown_watermark(self) -> Time | None:
        """The watermark that the batch began with, as the user's functions get it."""
        at, unit = self.start_watermark, self.unit
        return None if at is None or unit is None else as_user(at, unit)


@dataclass(frozen=True, kw_only=True)
class StepContext:
    """What a step is given for one batch of one partition."""

    view: View  # the state of the partition as the batch begins
    codec: Codec
    failures: Failures
    time: BatchTime
    arrival: int  # the batch's number among all that the state has seen: orders and names what it adds to the state
    previous_detail: dict[str, Any] | None = None  # the step's detail in the record that the batch builds on
    count_late: Callable[[int], None] = lambda count: None
    tables: Mapping[str, TableRows] = field(default_factory=dict)  # those that the step reads, by name
    may_emit_in_parts: bool = False  # all consumers of the step's outputs take them in parts


class Running(ABC):
    """A step that was started for one batch of one partition.

    The task calls `run` any number of times, then `end` once, then `changes` once. After each `run` and `end` it
    takes the side rows. It calls `end` and `take_side_rows` only if a subclass defines them.
    """

    acts_at_end: ClassVar[bool] = False  # whether a subclass defines `end`
    has_side_rows: ClassVar[bool] = False  # whether a subclass defines `take_side_rows`
    closed_until: int | None = None  # how far the end of the input has closed what no watermark had closed

    def __init_subclass__(cls) -> None:
        cls.acts_at_end = cls.end is not Running.end
        cls.has_side_rows = cls.take_side_rows is not Running.take_side_rows

    @abstractmethod
    def run(self, rows: Rows, side: int = 0) -> Rows | Iterator[Rows]:
        """Process keyed rows, in order, of one of the step's inputs, and return the outputs."""

    def end(self) -> Rows | list[Rows] | None:
        """Do what is due by now, and return its outputs; called also for a batch without rows."""
        return None

    @abstractmethod
    def changes(self) -> Sequence[Change]:
        """Return what has changed in the state, sorted by key and cell."""

    def take_side_rows(self) -> list[Rows]:
        """Return the rows for the step's side stream, such as late ones, that came up since the last call."""
        return []

    def read_rows(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the current row of each key, encoded, for lookups in the same stage. Only tables have rows."""
        raise NotImplementedError(f"{type(self).__name__} is not a table")


def as_row_list(result: Any) -> list[Any]:
    """Return the rows in what a function returned that makes any number of them; a dict or a text is refused."""
    if isinstance(result, (Mapping, str, bytes)):
        raise InvalidUse(
            f"expected several rows, as in a list, but the function returned {short_repr(result)}; return [row]"
        )
    return list(result)
