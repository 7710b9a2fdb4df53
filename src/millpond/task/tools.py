"""What a task works with besides its input, and the errors that end it."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

from millpond.clock import Clock, SystemClock
from millpond.errors import MillpondError, StepFailed
from millpond.messages import BatchContext
from millpond.steps.failure import FAULTS, Stop, stop_for_error
from millpond.steps.forks import refuse_forks
from millpond.storage import Storage, open_storage


@dataclass(frozen=True)
class Tools:
    """The storage and the clock of a task; tests bring their own."""

    storage: Storage
    clock: Clock

    @classmethod
    def of(cls, context: BatchContext) -> Tools:
        """Return the tools of a task in a worker, which must not fork from now on."""
        refuse_forks()
        return cls(open_storage(context.state_url), SystemClock())


# Errors that end a task and go to the driver in its result. Among them are those that end a process, if no row was at
# hand when they were raised: Spark would run the task again in vain. Any other exception is left to the runtime.
TASK_FAILURES = (Stop, MillpondError, *(kind for kind in FAULTS if kind is not Exception))


def failure_of(error: BaseException, batch: int) -> MillpondError:
    """Return what the driver is to raise for an error that ended a task."""
    if isinstance(error, Stop):
        return _portable(error.failure)
    if isinstance(error, MillpondError):
        return error
    return stop_for_error("a function of the program", error, batch).failure


def _portable(failure: StepFailed) -> StepFailed:
    """Return the failure itself if it can be pickled, or else one that shows its row and key as text."""
    try:
        pickle.loads(pickle.dumps(failure))
    except Exception:
        failure = StepFailed(
            failure.step,
            key=repr(failure.key),
            row=repr(failure.row),
            batch=failure.batch,
            error=failure.error,
            traceback=failure.traceback,
            where=failure.where,
            is_input=failure.is_input,
            is_raised=failure.is_raised,
        )
    return failure
