"""The order in which streams are first read: those that feed tables come before those that look them up."""

from __future__ import annotations

from millpond.pipeline.graph import Program, Read, StatefulStep


def phases(program: Program) -> list[frozenset[str]]:
    """Return the streams to read to their present end, phase by phase; after the last phase, all streams are read.

    Each phase includes the streams of those before it. Where the rows of a table have looked up other tables, those
    tables come first.
    """
    above = _streams_above(program)
    tables = {node.id: node.op.tables for node in program.nodes if isinstance(node.op, StatefulStep)}
    feeds: dict[int, frozenset[str]] = {table: above[table] for read in tables.values() for table in read}
    waits: dict[str, set[str]] = {}  # stream → the streams that must be read before it
    for node, read_here in tables.items():
        for table in read_here:
            for stream in above[node]:
                waits.setdefault(stream, set()).update(feeds[table] - {stream})
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
    """Return, for every node, the streams that its rows come from."""
    found: list[frozenset[str]] = []
    for node in program.nodes:
        if isinstance(node.op, Read):
            found.append(frozenset([node.op.stream]))
        else:
            found.append(frozenset().union(*(found[i] for i in node.inputs)))
    return found
