"""What the three joins of two streams have in common as steps of a program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Self

from millpond.steps.joins.buffer import shown
from millpond.steps.kind import Step, StoredKey

How = Literal["inner", "left", "right", "outer"]


@dataclass(frozen=True, kw_only=True)
class JoinStep(Step):
    """A join of two keyed streams."""

    how: How = "inner"
    merge: Callable[[Any, Any], Any] | None = None  # None: the output has the fields of both rows

    @property
    def detail(self) -> dict[str, Any]:
        return {"how": self.how}

    @classmethod
    def show(cls, stored: StoredKey, step: Self | None) -> Any:
        return shown(stored.cells, stored.codec)
