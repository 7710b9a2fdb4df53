"""The kinds of accumulators: what is known of stored ones without the program that wrote them.

Each aggregation registers its kind where it is defined; nothing else lists the kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millpond.aggregations.columns import GroupedValues
from millpond.aggregations.gathered import Gathered
from millpond.aggregations.running_columns import KeyGroups, RunningResults
from millpond.rows.number_columns import Column

if TYPE_CHECKING:
    from millpond.aggregations.base import Aggregation

GroupUpdate = Callable[[GroupedValues, Sequence[Any]], Sequence[Any] | None]
"""Takes values by group and the accumulators of the groups, and returns the new ones; None if it must go by row."""

GroupRun = Callable[[KeyGroups, Column | None, Sequence[Any]], RunningResults | None]
"""Takes rows by key, the field that is read (None: rows are counted) and the accumulators of the keys that have rows.

Returns a result per row and the new accumulators; None if it must go by row.
"""


@dataclass(frozen=True, kw_only=True)
class AccumulatorKind:
    """What all accumulators of one kind have in common."""

    name: str  # stored with every accumulator: never change one
    result: Callable[[Any], Any]
    example: Callable[[], Aggregation]  # returns an aggregation that reads and merges accumulators of this kind
    is_pure: bool = False  # `update` and `merge` leave their arguments unchanged
    is_own_result: bool = False  # an accumulator that is not None is its own result
    gathers: type[Gathered] | None = None  # what holds the values of a batch, if rows add values one by one
    update_groups: GroupUpdate | None = None  # `update` for many accumulators at once, by columns
    counts_rows: bool = False  # without a field it reads nothing of a row
    run_groups: GroupRun | None = None  # `update` and `result` for each of many rows, by columns
    needs_time: bool = False  # `update` needs the event time of the row
    merges_by_last: bool = False  # of two accumulators, the one with the earlier last row comes first


KINDS: dict[str, AccumulatorKind] = {}


def register_kind(kind: AccumulatorKind) -> AccumulatorKind:
    """Add a kind, and return it."""
    KINDS[kind.name] = kind
    return kind


def traits_of(a: Aggregation) -> AccumulatorKind:
    """Return the kind of an aggregation's accumulators. A kind that is not registered counts as a custom one."""
    return KINDS.get(a.kind) or KINDS["custom"]


def reads_by_name(a: Aggregation) -> bool:
    """Whether an aggregation reads a field by its name, or nothing of a row, so that columns are enough for it."""
    return type(a.field) is str or (a.field is None and traits_of(a).counts_rows)
