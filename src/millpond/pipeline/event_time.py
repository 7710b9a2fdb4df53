"""Whether rows can have event times at a place of a program: checked when the program is built."""

from __future__ import annotations

from collections.abc import Mapping

from millpond.aggregations import Aggregation
from millpond.errors import InvalidUse
from millpond.pipeline import graph as g


def check_has_times(graph: g.Graph, node: g.Node, where: str) -> None:
    """Raise InvalidUse if no row of a node can have an event time.

    In a union some rows may have one and others not: those that have none fail when they come.
    """
    if not _can_have_times(graph, node):
        raise InvalidUse(
            f"{where}: expected rows with an event time, and they have none. Give the stream one with timestamp=…, or "
            "the rows with with_time(…)"
        )


def check_aggregations(graph: g.Graph, node: g.Node, aggregations: Mapping[str, Aggregation], where: str) -> None:
    """Raise InvalidUse if an aggregation goes by event time, and no row of the node can have one."""
    for name, aggregation in aggregations.items():
        if aggregation.needs_time:
            check_has_times(graph, node, f"{where}, {name}={aggregation!r}")


def _can_have_times(graph: g.Graph, node: g.Node) -> bool:
    to_visit, seen = [node.id], set[int]()
    while to_visit:
        each = graph.nodes[to_visit.pop()]
        if each.op.sets_times or (isinstance(each.op, g.Read) and each.op.timestamp is not None):
            return True
        seen.add(each.id)
        if isinstance(each.op, g.StepChanges):  # its rows have none, whatever those of the step have
            continue
        to_visit.extend(i for i in each.inputs if i not in seen)
    return False
