"""The display of the demo: a panel that is redrawn, or a line per second if there is no terminal."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from millpond.demo.progress import DemoProgress

EVENTS = 8  # lines of the panel


@dataclass(frozen=True)
class Facts:
    """What to show at one time."""

    seconds: float
    total: int
    progress: DemoProgress = field(default_factory=DemoProgress)
    crashes: int = 0
    doing: str = ""


class Screen(Protocol):
    """Shows facts often and events once, between `with` and its end."""

    def show(self, facts: Facts) -> None: ...

    def event(self, text: str) -> None: ...

    def __enter__(self) -> Screen: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def screen_for(console: Console) -> Screen:
    """Return a panel for a terminal, and lines for anything else."""
    return LiveScreen(console) if console.is_terminal else PlainScreen(console)


class PlainScreen:
    """Prints a line per second and a line per event."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._facts = Facts(0.0, 0)
        self._shown = float("-inf")

    def show(self, facts: Facts) -> None:
        self._facts = facts
        if facts.seconds - self._shown >= 1.0:
            self._shown = facts.seconds
            self._print("  ".join(f"{name} {value}" for name, value in format_numbers(facts).items()))

    def event(self, text: str) -> None:
        self._print(text)

    def _print(self, text: str) -> None:
        self._console.print(f"{self._facts.seconds:6.1f} s  {text}", soft_wrap=True, markup=False, highlight=False)

    def __enter__(self) -> Screen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return


class LiveScreen:
    """A panel that is redrawn: numbers, a progress bar and the last events."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=8, transient=False)
        self._events: deque[str] = deque(maxlen=EVENTS)
        self._facts = Facts(0.0, 1)

    def show(self, facts: Facts) -> None:
        self._facts = facts
        self._live.update(self._panel())

    def event(self, text: str) -> None:
        self._events.append(f"{self._facts.seconds:6.1f} s  {text}")
        self._live.update(self._panel())

    def _panel(self) -> RenderableType:
        facts = self._facts
        table = Table.grid(padding=(0, 3), expand=True)
        found = format_numbers(facts)
        for _ in found:
            table.add_column(justify="center")
        table.add_row(*(Text(value, "bold cyan" if name != "crashes" else "bold red") for name, value in found.items()))
        table.add_row(*(Text(name, "dim") for name in found))
        bar = ProgressBar(total=max(1, facts.total), completed=min(facts.progress.rows, facts.total))
        events = Text("\n".join(self._events) + "\n" * (EVENTS - len(self._events)))
        head = f"millpond demo: totals per card, {facts.doing}"
        return Panel(Group(table, Text(), bar, Text(), events), title=head, title_align="left", padding=(1, 2))

    def __enter__(self) -> Screen:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


def format_numbers(facts: Facts) -> dict[str, str]:
    """Return the numbers by their names, formatted.

    >>> progress = DemoProgress(rows=100, commits=2, bytes=2_500_000, keys=7, rate=33.4)
    >>> format_numbers(Facts(3.0, 200, progress, crashes=1))
    {'rows': '100 of 200', 'rows/s': '33', 'keys': '7', 'state': '2.5 MB', 'commits': '2', 'crashes': '1'}
    """
    progress = facts.progress
    return {
        "rows": f"{progress.rows:,} of {facts.total:,}",
        "rows/s": f"{progress.rate:,.0f}",
        "keys": f"{progress.keys:,}",
        "state": f"{progress.bytes / 1e6:.1f} MB",
        "commits": f"{progress.commits:,}",
        "crashes": str(facts.crashes),
    }
