"""In which order streams are read when a driver begins: those that feed tables come before who looks into them."""

from __future__ import annotations

from millpond.pipeline.graph import Program, Read, StatefulStep


def phases(program: Program) -> list[frozenset[str]]:
    """The streams to read to their end, first these, then these; then all. Each phase goes on with those before.

    Where tables are made of rows that have looked into other tables, the others come first.
    """
    above = _streams_above(program)
    feeds: dict[int, frozenset[str]] = {
        node.op.table: above[node.op.table]
        for node in program.nodes
        if isinstance(node.op, StatefulStep) and node.op.table is not None
    }
    waits: dict[str, set[str]] = {}  # stream → the streams that must be read before it
    for node in program.nodes:
        if isinstance(node.op, StatefulStep) and node.op.table is not None:
            for stream in above[node.id]:
                waits.setdefault(stream, set()).update(feeds[node.op.table] - {stream})
    left = set().union(*feeds.values())
    found: list[frozenset[str]] = []
    read: frozenset[str] = frozenset()
    while left:
        ready = {stream for stream in left if not waits.get(stream, set()) & left} or left
        read |= ready
        left = left - ready
        found.append(read)
    return [streams for streams in found if streams != program.reads.keys()]


def _streams_above(program: Program) -> list[frozenset[str]]:
    """For every node, the streams that its rows come from."""
    found: list[frozenset[str]] = []
    for node in program.nodes:
        if isinstance(node.op, Read):
            found.append(frozenset([node.op.stream]))
        else:
            found.append(frozenset().union(*(found[i] for i in node.inputs)))
    return found
