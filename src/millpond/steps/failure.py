"""What happens to a row whose function raised: stop, skip, retry, or the stream of dead letters."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from millpond.clock import Clock
from millpond.codec import NotEncodable, Unreadable, copy_value
from millpond.errors import Corrupt, Incompatible, InvalidUse, StepFailed
from millpond.rows.rows import BadInput as BadInput
from millpond.rows.rows import Rows
from millpond.timing import seconds


@dataclass(frozen=True)
class Retry:
    """Call the function again, `times` times with growing pauses; then do as `then` says."""

    times: int
    backoff: float
    then: Literal["stop", "skip", "dead-letter"] = "stop"


# What a user's function may raise about the row that it was given. SystemExit is among them because the process also
# runs other partitions: a function must not end it.
FAULTS = (Exception, SystemExit, GeneratorExit, asyncio.CancelledError)

OnError = Literal["stop", "skip", "dead-letter"] | Retry


def retry(times: int, backoff: str | float = "100ms", then: Literal["stop", "skip", "dead-letter"] = "stop") -> Retry:
    """Return an `on_error=` that calls the function again, up to `times` times, before `then` is applied to the row.

    >>> import millpond as mp
    >>> mp.retry(3, "50ms")
    Retry(times=3, backoff=0.05, then='stop')
    """
    if times < 1:
        raise InvalidUse(f"retry(times): expected 1 or more, got {times!r}")
    return Retry(times, seconds(backoff, "retry(backoff)"), check_on_error(then, "retry(then)"))  # type: ignore[arg-type]


def check_on_error(on_error: Any, where: str) -> OnError:
    """Return the policy if it is one, else raise."""
    if isinstance(on_error, Retry) or on_error in ("stop", "skip", "dead-letter"):
        return on_error  # type: ignore[no-any-return]
    raise InvalidUse(f'{where}: expected "stop", "skip", "dead-letter" or mp.retry(times, backoff), got {on_error!r}')


def is_needed_again(policy: OnError) -> bool:
    """Return whether a row that fails is needed as it was: for another attempt, or for a dead letter."""
    return policy not in ("stop", "skip")


def own_copy(row: Any) -> Any:
    """Return a copy of a row for a function that may change it and then fail; a row that cannot be copied, as it is."""
    try:
        return copy_value(row)
    except NotEncodable:
        return row


def any_copy(row: Any) -> Any:
    """Return a copy of a row, storable or not. Raises `NotEncodable` if there is no way to copy it."""
    try:
        return copy_value(row)
    except NotEncodable:
        with contextlib.suppress(Exception):  # a class may raise what it likes when it is copied
            return copy.deepcopy(row)
        raise


class Stop(Exception):
    """Ends a task: its batch is not committed, and the driver raises what is inside."""

    def __init__(self, failure: StepFailed) -> None:
        super().__init__(str(failure))
        self.failure = failure


def stop_for_error(step: str, error: BaseException, batch: int) -> Stop:
    """Return what ends a task whose function raised outside of any row."""
    text, is_raised = error_text(error)
    return Stop(StepFailed(step, batch=batch, error=text, traceback=_user_traceback(error), is_raised=is_raised))


def error_text(error: BaseException) -> tuple[str, bool]:
    """Return the text of an error for `StepFailed`, and whether a function raised it.

    InvalidUse is raised by Millpond, about what a function returned or did: its text says everything.
    """
    return (str(error), False) if isinstance(error, InvalidUse) else (f"{type(error).__name__}: {error}", True)


@dataclass(frozen=True, slots=True)
class FailedRow:
    """A row that failed, for its error policy."""

    key: Any  # None if it has none
    row: Any
    order: int
    again: Callable[[], None] | None = None  # makes another attempt at it; None if there is no point in one
    call: str = ""  # a sentence about the call that failed, if it was given other rows, too


@dataclass
class Failures:
    """Applies error policies to failed rows within one task, and counts the rows that it skips."""

    batch: int
    clock: Clock
    bury: Callable[[dict[str, Any], int], None]  # a dead letter and the order of its row
    origin: Callable[[int], str | None] = lambda order: None  # where the row of that order came from, in words
    skipped: dict[str, int] = field(default_factory=dict)  # step → rows
    partition: int | None = None  # that the task owns; None where sources are read

    def handle(self, policy: OnError, step: str, error: BaseException, failed: FailedRow) -> None:
        """Do with a failed row what the policy says: try again, skip it, bury it as a dead letter, or raise `Stop`.

        State that cannot be read is not the row's fault: it ends the batch, whatever the policy says.
        """
        key, row, order, again = failed.key, failed.row, failed.order, failed.again
        if isinstance(error, Unreadable):
            raise unreadable_state(step, error, key) from error
        if isinstance(error, (Incompatible, Corrupt)):
            raise error
        if isinstance(policy, Retry):
            if again is not None:
                for attempt in range(policy.times):
                    self.clock.sleep(policy.backoff * 2**attempt)  # as the program asked for: without jitter
                    try:
                        return again()
                    except FAULTS as next_error:
                        error = next_error
            policy = policy.then
        is_input, where = isinstance(error, BadInput), None
        message, is_raised = (str(error), False) if is_input else error_text(error)
        if policy == "stop" or (is_input and policy == "dead-letter"):  # it may take another look at the source
            where = (error.where if isinstance(error, BadInput) else None) or self.origin(order)
        if is_input:
            message = message if where is None else f"{where}: {message}"
        elif failed.call:
            message = f"{message.removesuffix('.')}. {failed.call}"
        trace = _user_traceback(error) if is_raised else ""
        if policy == "stop":
            failure = StepFailed(
                step,
                key=key,
                row=row,
                batch=self.batch,
                error=message,
                traceback=trace,
                where=where,
                is_input=is_input,
                is_raised=is_raised,
            )
            raise Stop(failure) from error
        self.skipped[step] = self.skipped.get(step, 0) + 1
        if policy == "dead-letter":
            letter = {
                "row": row,
                "key": key,
                "step": step,
                "error": message,
                "traceback": trace,
                "batch": self.batch,
            }
            self.bury(letter, order)

    def reporter(self, policy: OnError, step: str, rows: Rows) -> Failed:
        """Return a function that applies a policy to single rows of `rows`."""

        def report(i: int, row: Any, error: BaseException, again: Callable[[], None] | None = None) -> None:
            key = None if rows.keys is None else rows.keys.of(i)
            self.handle(policy, step, error, FailedRow(key=key, row=row, order=rows.order[i], again=again))

        return report

    def handle_together(self, policy: OnError, step: str, error: BaseException, rows: Rows) -> None:
        """Apply a policy to all rows that a function was given at once: none of them can be blamed alone.

        All attempts have been made: of a `Retry`, only `then` is left.
        """
        policy = policy.then if isinstance(policy, Retry) else policy
        partition = "" if self.partition is None else f" of partition {self.partition}"
        call = f"The call had {len(rows)} row{'s' if len(rows) > 1 else ''}{partition}."
        if policy == "stop" and not isinstance(error, (Unreadable, Incompatible, Corrupt)):
            failure = stop_for_error(step, error, self.batch).failure
            text = f"{failure.error.removesuffix('.')}. {call}"
            trace = failure.traceback if failure.is_raised else ""
            is_raised = failure.is_raised
            raise Stop(StepFailed(step, batch=self.batch, error=text, traceback=trace, is_raised=is_raised)) from error
        for i, row in enumerate(rows.objects()):
            key = None if rows.keys is None else rows.keys.of(i)
            self.handle(policy, step, error, FailedRow(key, row, rows.order[i], call=call))


def unreadable_state(step: str, error: Unreadable, key: Any = None) -> Incompatible:
    """Return the error for state that this program cannot read, which says what to do about it."""
    whose = f"step {step!r}" if key is None else f"step {step!r}, key {key!r}"
    return Incompatible(
        f"{whose}: its state cannot be read by this program: {error}. Migrate it with version= and migrate=, where the "
        f"step takes them; or make it again from the input with app.rebuild({step!r}, switch=True). No row was lost, "
        "and nothing was changed."
    )


def _user_traceback(error: BaseException) -> str:
    # The frames of this library say nothing to the user: their own begin below them.
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/millpond/" not in frame.filename.replace("\\", "/")]
    lines = traceback.format_list(own or frames) + traceback.format_exception_only(error)
    return "Traceback (most recent call last):\n" + "".join(lines).rstrip()


class Failed(Protocol):
    """Applies the error policy to row `i` of some rows; `again` makes another attempt at it, if that may help."""

    def __call__(self, i: int, row: Any, error: BaseException, again: Callable[[], None] | None = None) -> None: ...
