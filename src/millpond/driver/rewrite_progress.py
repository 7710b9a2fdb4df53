"""Progress reporting for state rewrites that run before the first batch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from millpond.clock import elapsed
from millpond.log.jobs import ProgressCallback
from millpond.log.rewrite import RewriteJob
from millpond.replica.fill_progress import REPORT_SECONDS
from millpond.storage import Storage

log = logging.getLogger("millpond")

Each = Callable[[Callable[[Storage, Any], Any], list[Any]], list[Any]]


def with_progress(each: Each, slots: int, what: str, progress: ProgressCallback | None) -> Each:
    """Return a function that runs jobs as `each` does, `slots` at a time, and reports how many are done.

    It calls `progress(done, total)` and logs at level INFO: at the end, and meanwhile every few seconds.
    """

    def run_with_progress(task: Callable[[Storage, Any], Any], works: list[Any]) -> list[Any]:
        if not works or not isinstance(works[0], RewriteJob):  # a check of the result
            return each(task, works)
        found: list[Any] = []
        began = last = elapsed()
        while len(found) < len(works):
            if progress is not None:
                progress(len(found), len(works))
            now = elapsed()
            if found and now - last >= REPORT_SECONDS:
                last = now
                log.info("%s: %s", what, describe_progress(len(found), len(works), now - began))
            found += each(task, works[len(found) : len(found) + max(1, slots)])
        if progress is not None:
            progress(len(works), len(works))
        log.info("%s: %d partitions in %.1f s", what, len(works), elapsed() - began)
        return found

    return run_with_progress


def describe_progress(done: int, total: int, seconds: float) -> str:
    """Describe how many partitions are done, and estimate how long the rest takes.

    >>> describe_progress(2, 8, 10.0)
    '2 of 8 partitions, about 30 s left'
    """
    return f"{done} of {total} partitions, about {seconds * (total - done) / done:.0f} s left"
