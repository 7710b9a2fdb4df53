"""Retractions: whether rows that take earlier ones back can reach an aggregation, and aggregations that accept them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from millpond.aggregations import Aggregation
from millpond.errors import InvalidUse
from millpond.pipeline import graph as g


class RetractionOrigin(NamedTuple):
    """The window that retractions come from, and whether no function of the user's in between may remove them."""

    window: str
    is_certain: bool


def with_retractions(
    where: str, graph: g.Graph, node: g.Node, aggregations: dict[str, Aggregation], *, by_rows: bool = False
) -> dict[str, Aggregation] | None:
    """Return the aggregations, changed to take rows back; None where no retraction can come.

    Where retractions are certain to come, an aggregation without an inverse raises here; where a function of the user's
    may remove them, it raises when one comes. The same holds for windows that go by the number of rows.
    """
    origin = _origin(graph, node)
    if origin is None:
        return None
    cannot = [name for name, a in aggregations.items() if by_rows or a.retract is None]
    if cannot and origin.is_certain:
        raise _refusal(where, origin, cannot, by_rows)
    refusals = {name: str(_refusal(where, origin, [name], by_rows)) for name in cannot}
    # What a retraction changes cannot be added to: such accumulators are stored as a whole.
    return {
        name: replace(a, update=_update_or_retract(a, refusals.get(name)), change=None)
        for name, a in aggregations.items()
    }


def _origin(graph: g.Graph, node: g.Node) -> RetractionOrigin | None:
    """Return where retractions among the rows of a node come from; None if there can be none."""
    origins: list[RetractionOrigin | None] = []
    for each in graph.nodes[: node.id + 1]:
        op, found = each.op, None
        if isinstance(op, g.StatefulStep) and op.step.emits_own_rows:
            found = RetractionOrigin(op.step.name, True) if op.step.retracts else None
        elif not isinstance(op, (g.SideOutput, g.StepChanges)):  # which put rows or state of the step inside of others
            coming = [origin for i in each.inputs if (origin := origins[i]) is not None]
            found = max(coming, key=lambda origin: origin.is_certain, default=None)
            if found is not None and not op.passes_rows_unchanged:
                found = found._replace(is_certain=False)
        origins.append(found)
    return origins[node.id]


def _refusal(where: str, origin: RetractionOrigin, names: list[str], by_rows: bool) -> InvalidUse:
    came = f'rows come from window({origin.window!r}) with panes="retract", and some of them take earlier ones back'
    if by_rows:
        return InvalidUse(
            f"{where}: expected windows that go by time, got windows that go by the number of rows: {came}. Use "
            'another kind of window here, or panes="accumulate" there.'
        )
    return InvalidUse(
        f"{where}: expected aggregations that can take a row back (count, sum, mean, or mp.aggregation with retract=), "
        f'got {", ".join(names)}: {came}. Use another aggregation here, or panes="accumulate" there.'
    )


def _update_or_retract(a: Aggregation, refused: str | None) -> Callable[[Any, Any, Any], Any]:
    update, retract = a.update, a.retract

    def add_or_retract(acc: Any, row: Any, time: Any) -> Any:
        if not is_retraction(row):
            return update(acc, row, time)
        if refused is not None:
            raise InvalidUse(refused)
        assert retract is not None
        return retract(acc, row, time)

    return add_or_retract


def is_retraction(row: Any) -> bool:
    """Return whether a row takes an earlier one back: its field `retracted` is True."""
    return (row.get("retracted") if isinstance(row, dict) else getattr(row, "retracted", None)) is True
