"""Tables, and the checks of their arguments and of those of a lookup."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict

from millpond.errors import InvalidUse
from millpond.pipeline import graph as g
from millpond.rows.fields import FieldReader, read_field
from millpond.steps.failure import check_on_error
from millpond.steps.state.ttl import TTL
from millpond.steps.verbs.external import External
from millpond.steps.verbs.external_lookup import ExternalLookup
from millpond.steps.verbs.lookup import LookupStep
from millpond.user_functions import check_function

LOOKUP_HOWS = ("left", "inner")


class Table:
    """The latest row of every key of a stream, returned by `app.table`. Other streams `lookup` its rows.

    >>> import millpond as mp
    >>> app = mp.App("shop")
    >>> updates = app.stream("updates", mp.sources.rows([]))
    >>> prices = app.table("prices", updates.key_by("sku"), everywhere=True)
    >>> prices
    table 'prices', by 'sku', everywhere
    """

    def __init__(self, graph: g.Graph, node: g.Node) -> None:
        assert isinstance(node.op, g.StatefulStep) and node.keyed is not None
        self._graph, self._node = graph, node
        self._name, self._keyed, self._everywhere = node.op.step.name, node.keyed, node.op.step.is_everywhere

    def __repr__(self) -> str:
        return f"table {self._name!r}, by {quote_names(self._keyed)}{', everywhere' if self._everywhere else ''}"


class TableOptions(TypedDict):
    everywhere: bool
    deleted: Callable[[Any], Any] | None


def check_table(name: str, everywhere: Any, deleted: Any, ttl: Any) -> TableOptions:
    """Check the arguments of a table."""
    where = f"table({name!r}"
    if not isinstance(everywhere, bool):
        raise InvalidUse(f"{where}, everywhere): expected True or False, got {everywhere!r}")
    if deleted is not None and not callable(deleted):
        raise InvalidUse(f"{where}, deleted): expected a function of a row, got {deleted!r}")
    if deleted is not None:
        check_function(deleted, f"{where}, deleted)", "row")
    if isinstance(ttl, TTL) and ttl.refresh == "read":
        raise InvalidUse(
            f'{where}, ttl): expected refresh="write" or "never", got "read": to look a row up changes nothing, so it '
            "cannot let the row live on"
        )
    return {"everywhere": everywhere, "deleted": deleted}


def check_tables(graph: g.Graph, where: str, tables: Any) -> tuple[int, ...]:
    """Return the nodes of the tables that a step's function is to read; InvalidUse if it cannot read one of them."""
    if not isinstance(tables, (list, tuple)):
        raise InvalidUse(f"{where}: expected a list of tables, as in tables=[rules], got {tables!r}")
    for table in tables:
        if not isinstance(table, Table) or table._graph is not graph:
            raise InvalidUse(f"{where}: expected tables of the same app, made by app.table, got {table!r}")
        if not table._everywhere:
            raise InvalidUse(
                f"{where}: expected tables that every worker has all of, got {table!r}. Make it with everywhere=True, "
                "or use lookup, which gives each row the table's row of its key."
            )
    return tuple(dict.fromkeys(table._node.id for table in tables))


class LookupOptions(TypedDict):
    on: Any
    how: Any
    merge: Any
    on_error: Any


def add_lookup(graph: g.Graph, node: g.Node, name: str, table: Any, options: LookupOptions) -> g.Node:
    """Check the arguments of a lookup, and add it to the graph after a node."""
    on, how, merge, on_error = options["on"], options["how"], options["merge"], options["on_error"]
    where = f"lookup({name!r}"
    own_table = isinstance(table, Table) and table._graph is graph
    if not own_table and not isinstance(table, External):
        raise InvalidUse(
            f"{where}): expected a table of the same app, made by app.table, or mp.external(fetch), got {table!r}"
        )
    if how not in LOOKUP_HOWS:
        raise InvalidUse(f"{where}, how): expected {', '.join(map(repr, LOOKUP_HOWS))}, got {how!r}")
    if merge is not None and not callable(merge):
        raise InvalidUse(f"{where}, merge): expected a function of the row and the table's row, got {merge!r}")
    if merge is not None:
        check_function(merge, f"{where}, merge)", "row", "table_row")
    policy = node.on_error if on_error is None else check_on_error(on_error, f"{where})")
    if isinstance(table, External):
        if on is None and node.keyed is None:
            raise InvalidUse(
                f"{where}, on): expected a field or a function that gives a row its key in the external database, got "
                "nothing, and the stream is not keyed"
            )
        reader = None if on is None else key_reader(where, on)
        fetch = ExternalLookup(graph.claim(name, "lookup"), table, reader, how, merge, policy)
        return graph.add(fetch, (node.id,), keyed=node.keyed, on_error=node.on_error)
    looked_into = table._node.op
    assert isinstance(looked_into, g.StatefulStep)
    key = _check_on(where, node, table, on)
    step = LookupStep(
        name=graph.claim(name, "lookup"),
        on_error=policy,
        table=looked_into.step.name,
        on=key,
        how=how,
        merge=merge,
    )
    side = graph.add(g.JoinInput(0, name, policy), (node.id,), keyed=node.keyed, on_error=node.on_error)
    return graph.add(
        g.StatefulStep(step, table._node.id, (table._node.id,)), (side.id,), keyed=node.keyed, on_error=node.on_error
    )


def _check_on(where: str, node: g.Node, table: Table, on: Any) -> Any:
    """Return what gives a row the key that it looks up; None if that is the row's own key."""
    own = node.keyed is not None and node.keyed == table._keyed
    if table._everywhere:
        if on is None:
            if not own:
                raise InvalidUse(
                    f"{where}, on): expected a field or a function that gives a row its key in the {table!r}, got "
                    f"nothing, and the stream is {_describe_keys(node)}. Say, for example, on={table._keyed[0]!r}."
                )
            return None
        return key_reader(where, on, len(table._keyed))
    parts = quote_names(table._keyed)
    if not own:
        raise InvalidUse(
            f"{where}): expected a stream that is keyed like the {table!r}, and it is {_describe_keys(node)}. Key it "
            f"by parts of the same names, with key_by({parts}), or make the table with everywhere=True."
        )
    if on is not None and on != table._keyed and (on,) != table._keyed:
        raise InvalidUse(
            f"{where}, on): expected None or the key {parts}, because a row looks up the row of its own key in the "
            f"{table!r}, got {on!r}. A table with everywhere=True can be looked up by any key."
        )
    return None


def key_reader(where: str, on: Any, parts: int | None = None) -> Any:
    """Return what reads the key that a row looks up: from a field, from several, or by a function."""
    if isinstance(on, str):
        found: Any = FieldReader(on)
    elif isinstance(on, (tuple, list)) and len(on) > 1 and all(isinstance(part, str) for part in on):
        found = Fields(tuple(on))
    elif callable(on):
        return check_function(on, f"{where}, on)", "row")
    else:
        raise InvalidUse(f"{where}, on): expected a field, several fields or a function of the row, got {on!r}")
    given = 1 if isinstance(on, str) else len(on)
    if parts is not None and given != parts:
        raise InvalidUse(f"{where}, on): the table's key has {parts} parts, expected as many fields, got {on!r}")
    return found


class Fields:
    """Reads several fields of a row, as one key."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def __call__(self, row: Any) -> tuple[Any, ...]:
        return tuple(read_field(row, name) for name in self.names)


def _describe_keys(node: g.Node) -> str:
    return "not keyed" if node.keyed is None else f"keyed by {quote_names(node.keyed)}"


def quote_names(keyed: tuple[str, ...]) -> str:
    """Return the names of a key's parts, quoted, for a message."""
    return ", ".join(map(repr, keyed))
