"""How far a long action is, for whoever sits at the terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from millpond.log.jobs import ProgressCallback as Told


@contextlib.contextmanager
def waiting(what: str) -> Iterator[Told]:
    """A bar on standard error for as long as an action takes; nothing where nobody looks at it."""
    with _bar(Console(stderr=True)) as shown:
        task = shown.add_task(what, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)


def meanwhile(what: str, console: Console | None = None) -> Told:
    """A bar that comes with the first word of an action and goes with its last, for one that may not be needed."""
    shown: Progress | None = None

    def told(done: int, total: int) -> None:
        nonlocal shown
        if shown is None:
            shown = _bar(console or Console(stderr=True))
            shown.add_task(what, total=total)
            shown.start()
        shown.update(shown.task_ids[0], completed=done, total=total)
        if done == total:
            shown.stop()
            shown = None

    return told


def _bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
