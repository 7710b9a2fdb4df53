"""The handle of a table that functions with state read: `state.table("rules")`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from millpond.codec import encode_key
from millpond.codec.key_order import sort_key
from millpond.errors import InvalidUse, short_repr
from millpond.steps.state.table_rows import MISSING, Item, WholeRows, own_row


class StateTable:
    """A table of the app, as `state.table(name)` gives it to a function of a step with `tables=[…]`.

    It holds all rows of the table, with all changes of the batch, the same for every row of the batch on every worker.
    It is valid for the length of one call. Rows are copies: to change one changes nothing. Keys come in order: text by
    code points, numbers by size, dates by time, tuples part by part; keys of different types are not mixed.

    >>> import millpond as mp
    >>> app = mp.App("alerts")
    >>> rules = app.table("rules", app.stream("changes", mp.sources.rows([])).key_by("rule"), everywhere=True)
    >>> def check(row, state):
    ...     return [{"rule": name, **row} for name, rule in state.table("rules").items() if row["n"] > rule["above"]]
    >>> rows = app.stream("rows", mp.sources.rows([])).key_by("sensor")
    >>> out = rows.flat_apply("check", check, tables=[rules]).to("out", mp.sinks.memory())
    >>> with mp.testing.TestDriver(app) as driver:
    ...     driver.send("changes", [{"rule": "high", "above": 5}, {"rule": "higher", "above": 9}])
    ...     driver.send("rows", [{"sensor": "a", "n": 7}])
    ...     driver.send({"rows": [{"sensor": "a", "n": 7}], "changes": [{"rule": "high", "above": 8}]})
    ...     driver.output("out")
    [{'rule': 'high', 'sensor': 'a', 'n': 7}]
    """

    __slots__ = ("_rows",)

    def __init__(self, rows: WholeRows) -> None:
        self._rows = rows

    @property
    def batch(self) -> int:
        """The number of the batch whose changes the table includes: it names the version that the function sees.

        A batch that is run again after a crash may have another number, and so may one that `app.rebuild` runs again.

        >>> def f(row, state): return {**row, "rules of": state.table("rules").batch}
        """
        return self._rows.batch

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the row of a key, or the default. There is no row for a key that is None or has a part that is None.

        >>> def f(row, state): return state.table("limits").get(row["country"], {"most": 100})
        """
        if key is None or (type(key) is tuple and None in key):
            return default
        [entry] = self._rows.find([encode_key(key)])
        return default if entry is MISSING else own_row(entry)

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Return all keys and rows, in the order of the keys.

        A process keeps the rows of tables of up to some ten thousand rows decoded and in order, from batch to batch.
        A larger table is read from the replica of the host with every call: use `get` or `prefix` there.

        >>> def f(row, state): return [key for key, rule in state.table("rules").items() if row["n"] > rule["above"]]
        """
        return _pairs(self._rows.items())

    def prefix(self, beginning: str | tuple[Any, ...]) -> Iterator[tuple[Any, Any]]:
        """Return the keys that begin with a text, or the tuples whose first parts are those of a tuple, in order.

        Each comes with its row. What it costs depends on how many there are, not on the size of the table.

        >>> def f(row, state): return list(state.table("rules").prefix("payments/"))
        >>> def g(row, state): return list(state.table("rates").prefix((row["country"],)))
        """
        if type(beginning) not in (str, tuple):
            raise InvalidUse(
                f"state.table({self._rows.table!r}).prefix: expected a text, or a tuple of the first parts of keys, "
                f"got {short_repr(beginning)}"
            )
        return _pairs(self._rows.prefix(beginning))

    def range(self, first: Any, last: Any) -> Iterator[tuple[Any, Any]]:
        """Return the keys from `first` to `last`, both included, in order, each with its row.

        Both are keys of the same type. There are none if `first` comes after `last`.

        >>> def f(row, state): return [rate for _, rate in state.table("rates").range(0, row["amount"])][-1]
        """
        encode_key(first), encode_key(last)  # InvalidUse if one cannot be a key
        if sort_key(first)[0] != sort_key(last)[0]:
            raise InvalidUse(
                f"state.table({self._rows.table!r}).range: expected two keys of the same type, got "
                f"{short_repr(first)} and {short_repr(last)}"
            )
        return _pairs(self._rows.range(first, last))

    def __repr__(self) -> str:
        return f"StateTable({self._rows.table!r}, batch={self.batch})"


def _pairs(items: Iterator[Item]) -> Iterator[tuple[Any, Any]]:
    return ((item[2], item[3]()) for item in items)
