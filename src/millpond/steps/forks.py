"""A user's function must not fork the process that runs it: the child would go on with the same batch."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

_OURS = ("millpond.task.", "millpond.steps.", "millpond.driver.", "millpond.maintenance.", "millpond.parcels")


def refuse_forks() -> None:
    """From now on `os.fork` raises where a function of a program calls it; called once per process, and again at will.

    A child that returns from the function would write segments and answers of its own, beside its parent's.
    multiprocessing may fork: it ends its children itself. subprocess does not use `os.fork`.
    """
    for name in ("fork", "forkpty"):
        real = getattr(os, name, None)
        if real is not None and not hasattr(real, "__wrapped__"):
            setattr(os, name, _guard_fork(real))


def _guard_fork(real: Callable[[], Any]) -> Callable[[], Any]:
    @functools.wraps(real)
    def fork() -> Any:
        caller = sys._getframe(1)
        if not _module(caller).startswith("multiprocessing.") and _is_in_task(caller):
            raise RuntimeError(
                f"os.{real.__name__}() in a function of a program: the child would run the rest of the batch, too. "
                "Start other programs with subprocess, and functions with multiprocessing"
            )
        return real()

    return fork


def _is_in_task(frame: FrameType | None) -> bool:
    while frame is not None:
        if _module(frame).startswith(_OURS):
            return True
        frame = frame.f_back
    return False


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
