"""What the three joins of two streams have in common as steps of a program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Self

from millpond.steps.joins.buffer import rows_by_side
from millpond.steps.kind import Step, StoredKey

How = Literal["inner", "left", "right", "outer"]


@dataclass(frozen=True, kw_only=True)
class JoinStep(Step):
    """A join of two keyed streams."""

    shows_results = True

    how: How = "inner"
    merge: Callable[[Any, Any], Any] | None = None  # None: the output has the fields of both rows

    @property
    def emits_unmatched(self) -> tuple[bool, bool]:
        """Whether rows without a partner are emitted, of the left side and of the right."""
        return self.how in ("left", "outer"), self.how in ("right", "outer")

    @property
    def detail(self) -> dict[str, Any]:
        return {"how": self.how}

    @classmethod
    def show(cls, stored: StoredKey, step: Self | None) -> Any:
        return rows_by_side(stored.cells, stored.codec)
