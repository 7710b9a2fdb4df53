"""`window(…).aggregate(…)` as a step of a program: its definition, what the ledger stores of it, and what runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Literal, Self

from millpond.aggregations import Aggregation
from millpond.errors import Incompatible
from millpond.steps.base import Running, StepContext
from millpond.steps.kind import Step, StoredKey
from millpond.steps.windows.columnar.choice import fields_as_columns
from millpond.steps.windows.definitions import Window
from millpond.steps.windows.running import RunningWindows
from millpond.steps.windows.state_rows import open_window_rows
from millpond.steps.windows.triggers import Trigger
from millpond.timing import Duration

Panes = Literal["accumulate", "discard", "retract"]
Fires = Literal["this", "all"]
By = Literal["stream", "key"]


@dataclass(frozen=True, kw_only=True)
class WindowStep(Step):
    """Windows over the rows of each key, and the aggregations that are made of them."""

    kind: ClassVar[str] = "window"
    emits_own_rows = True
    shows_results = True

    window: Window
    grace: Duration
    trigger: Trigger
    panes: Panes
    fires: Fires
    clock: By
    aggregations: dict[str, Aggregation]
    takes_back: bool  # some of the rows that come may take earlier ones back
    key_names: tuple[str, ...]

    def begin(self, context: StepContext) -> Running:
        return RunningWindows(self, context)

    @property
    def detail(self) -> dict[str, Any]:
        return {
            "window": repr(self.window),
            "grace": str(self.grace),
            "clock": self.clock,
            "windows": self.window.kind,
            "size": None if self.window.stored_size is None else _as_ticks(self.window.stored_size),
            "early": bool(self.trigger.causes),
            "keys": list(self.key_names),
            "aggregations": {name: a.kind for name, a in self.aggregations.items()},
        }

    @property
    def watermark_lag(self) -> tuple[Duration, ...] | None:
        if self.clock == "key":
            return None
        return (self.window.pause, self.grace) if self.window.is_timed else ()

    @property
    def fields_read(self) -> tuple[str, ...] | None:
        return fields_as_columns(self)

    @property
    def retracts(self) -> bool:
        return self.panes == "retract"

    def check_detail(self, app: str, stored: Mapping[str, Any]) -> None:
        """Refuse state of other windows where the old or the new ones slide: what is stored fits no others."""
        now = self.detail
        if not _slides_otherwise(stored, now):
            return
        raise Incompatible(
            f"app {app!r}: step {self.name!r}: expected the windows that its state was kept for, "
            f"{_shown_windows(stored)}, got {_shown_windows(now)}; what is kept for sliding windows "
            "fits no others. Keep the old definition until its windows have closed and give the new step another "
            f"name, or make its state again with app.rebuild({self.name!r}, switch=True); nothing was changed."
        )

    @classmethod
    def show(cls, stored: StoredKey, step: Self | None) -> list[Any]:
        aggregations = None if step is None else step.aggregations
        return open_window_rows(stored.key, stored.cells, stored.codec, stored.detail, aggregations)


def _as_ticks(size: Duration) -> int:
    return size if isinstance(size, int) else size // timedelta(microseconds=1)


def _slides_otherwise(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether windows become sliding, stop sliding, or slide in a way that stores rows differently.

    State of an older version of Millpond may not say all of it; what it does not say counts as unchanged.
    """
    if "sliding" not in (before.get("windows"), now.get("windows")):
        return False
    return any(before.get(what, now[what]) != now[what] for what in ("windows", "size", "clock", "early"))


def _shown_windows(detail: Mapping[str, Any]) -> str:
    parts = [str(detail.get("window", "windows"))]
    if "clock" in detail:
        parts.append(f"clock={detail['clock']!r}")
    if "early" in detail:
        parts.append("a trigger that fires before they close" if detail["early"] else "no trigger before they close")
    return f"{parts[0]} with {' and '.join(parts[1:])}" if parts[1:] else parts[0]
