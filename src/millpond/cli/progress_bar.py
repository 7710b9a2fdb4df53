"""Progress bars of long actions, if standard error is a terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from millpond.log.jobs import ProgressCallback


@contextlib.contextmanager
def progress_bar(what: str) -> Iterator[ProgressCallback]:
    """Show a bar on standard error while an action runs; yield the function to report progress to."""
    with _bar(Console(stderr=True)) as shown:
        task = shown.add_task(what, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)


def progress_bar_if_needed(what: str, console: Console | None = None) -> ProgressCallback:
    """Return a progress function that shows a bar from its first call to its last, if there is any call."""
    shown: Progress | None = None

    def report(done: int, total: int) -> None:
        nonlocal shown
        if shown is None:
            shown = _bar(console or Console(stderr=True))
            shown.add_task(what, total=total)
            shown.start()
        shown.update(shown.task_ids[0], completed=done, total=total)
        if done == total:
            shown.stop()
            shown = None

    return report


def _bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
