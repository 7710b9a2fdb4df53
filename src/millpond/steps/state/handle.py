"""The `State` handle: one key's state, as the functions of `apply` and its relatives get it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any
from urllib.parse import unquote

from millpond.codec import Codec, decode_key, encode_key
from millpond.errors import InvalidUse
from millpond.steps.state.expiring import ExpiringCells
from millpond.steps.state.named import cell_for
from millpond.steps.state.single import is_absent
from millpond.steps.state.state_table import StateTable
from millpond.steps.state.table_rows import TableRows, WholeRows
from millpond.steps.state.ttl import check_ttl
from millpond.timing import Time


class State:
    """One key's state, valid for the length of one call.

    `key` is the key, `time` the event time of the row or timer, and `watermark` the watermark with which the batch
    began; `None` where there is none.

    >>> import millpond as mp
    >>> app = mp.App("visits")
    >>> def visit(row, state):
    ...     state.set("n", state.get("n", 0) + 1)
    ...     state.list("pages").append(row["page"])
    ...     return {"user": state.key, "n": state.get("n"), "pages": list(state.list("pages"))}
    >>> stream = app.stream("visits", mp.sources.rows([{"user": "ann", "page": "/"}]))
    >>> _ = stream.key_by("user").apply("seen", visit).to("out", mp.sinks.memory())
    >>> with mp.testing.TestDriver(app) as driver:
    ...     driver.send("visits", [{"user": "ann", "page": "/a"}, {"user": "ann", "page": "/b"}])
    ...     driver.output("out")[-1]
    {'user': 'ann', 'n': 2, 'pages': ['/a', '/b']}
    """

    __slots__ = ("_cells", "_kinds", "_tables", "key", "time", "watermark")

    def __init__(self, cells: ExpiringCells, tables: Mapping[str, TableRows] | None = None) -> None:
        self._cells = cells
        found = (tables or {}).items()
        self._tables = {name: StateTable(rows) for name, rows in found if isinstance(rows, WholeRows)}
        self._kinds: dict[str, str] = {}
        self.key: Any = None
        self.time: Time | None = None
        self.watermark: Time | None = None

    def _cell(self, kind: str, name: str) -> bytes:
        if self._kinds.setdefault(name, kind) != kind:
            words = {"v": "a value", "l": "a list", "m": "a map"}
            raise InvalidUse(
                f"state {name!r} is {words[self._kinds[name]]} and was used as {words[kind]}: give each its own name"
            )
        return cell_for(kind, name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a copy of the value of that name, or the default. Changing it has no effect until `set`.

        >>> def f(row, state): return state.get("total", 0)
        """
        found = self._cells.value(self._cell("v", name))
        return default if is_absent(found) else found

    def set(self, name: str, value: Any, ttl: Any = None) -> None:
        """Store a value under that name, for as long as `ttl` says, or else as the step's `ttl` does.

        `ttl` is a duration or `mp.ttl(…)`. It is valid for this value only: the next `set` needs its own.

        >>> def f(row, state):
        ...     state.set("last", row)
        ...     state.set("seen", True, ttl="10m")
        """
        if ttl is None:
            self._cells.put(self._cell("v", name), value)
            return
        found = check_ttl(ttl, f"state.set({name!r}, ttl=)")
        if found is not None and found.refresh == "read":
            raise InvalidUse(
                f"state.set({name!r}, ttl=): only the ttl= of a whole step can be refreshed by reading; give the step "
                "one, or set the value again where it is read"
            )
        self._cells.put(self._cell("v", name), value, found)

    def delete(self, name: str) -> None:
        """Drop the value of that name. Nothing happens if there is none.

        >>> def f(row, state): state.delete("last")
        """
        self._cells.drop(self._cell("v", name))

    def exists(self, name: str) -> bool:
        """Return whether there is a value of that name.

        >>> def f(row, state): return row if state.exists("last") else None
        """
        return not is_absent(self._cells.read(self._cell("v", name)))

    def clear(self) -> None:
        """Drop all of this key's state: values, lists and maps.

        >>> def f(row, state): state.clear()
        """
        self._cells.clear()

    def list(self, name: str) -> StateList:
        """Return the list of that name, empty at first. Appending writes one element, not the whole list.

        >>> def f(row, state): state.list("recent").append(row["page"])
        """
        return StateList(self._cells, self._cell("l", name))

    def map(self, name: str) -> StateMap:
        """Return the map of that name, empty at first. Setting a key writes that element, not the whole map.

        >>> def f(row, state): state.map("per-page")[row["page"]] = 1
        """
        return StateMap(self._cells, self._cell("m", name))

    def table(self, name: str) -> StateTable:
        """Return a table of the app, to read, by its name. It must be among the `tables=[…]` of the step.

        >>> def f(row, state): return state.table("rules").get(row["kind"])
        """
        found = self._tables.get(name)
        if found is None:
            known = ", ".join(map(repr, self._tables)) or "none"
            raise InvalidUse(
                f"state.table({name!r}): expected one of the tables that the step was given, which are: {known}. Give "
                "the step tables=[…] with the table itself, as app.table returned it."
            )
        return found


class StateList:
    """A list in a key's state: `append extend popleft clear`, index, iteration, `len`.

    Where the step has a `ttl`, it applies to the list as a whole: every change refreshes all of it.

    >>> def f(row, state):
    ...     recent = state.list("recent")
    ...     recent.append(row)
    ...     if len(recent) > 10:
    ...         recent.popleft()
    """

    __slots__ = ("_cell", "_cells")

    def __init__(self, cells: ExpiringCells, cell: bytes) -> None:
        self._cells, self._cell = cells, cell

    def _bounds(self) -> tuple[int, int]:
        found = self._cells.value(self._cell)
        return (0, 0) if is_absent(found) else (found[0], found[1])

    def _set_bounds(self, head: int, tail: int) -> None:
        self._cells.put(self._cell, [head, tail])

    def _element_cell(self, index: int) -> bytes:
        return self._cell + b":%016d" % index

    def _place(self, index: int) -> bytes:
        head, tail = self._bounds()
        index = index + tail if index < 0 else index + head
        if not head <= index < tail:
            raise IndexError("list index out of range")
        return self._element_cell(index)

    def append(self, value: Any) -> None:
        """Add a value at the end.

        >>> def f(row, state): state.list("recent").append(row)
        """
        self.extend([value])

    def extend(self, values: Iterable[Any]) -> None:
        """Add values at the end.

        >>> def f(row, state): state.list("recent").extend(row["items"])
        """
        self._cells.drop_expired_list(self._cell)
        head, tail = self._bounds()
        for value in values:
            self._cells.write(self._element_cell(tail), value)
            tail += 1
        self._set_bounds(head, tail)

    def popleft(self) -> Any:
        """Remove and return the first value. Raises IndexError if there is none.

        >>> def f(row, state): return state.list("waiting").popleft()
        """
        head, tail = self._bounds()
        if head == tail:
            raise IndexError("popleft from an empty list")
        value = self._cells.value(self._element_cell(head))
        self._cells.drop(self._element_cell(head))
        self._set_bounds(head + 1, tail)
        return value

    def clear(self) -> None:
        """Remove all values.

        >>> def f(row, state): state.list("recent").clear()
        """
        self._cells.drop_expired_list(self._cell)
        head, tail = self._bounds()
        for index in range(head, tail):
            self._cells.drop(self._element_cell(index))
        self._cells.drop(self._cell)

    def __len__(self) -> int:
        head, tail = self._bounds()
        return tail - head

    def __getitem__(self, index: int) -> Any:
        return self._cells.value(self._place(index))

    def __setitem__(self, index: int, value: Any) -> None:
        self._cells.write(self._place(index), value)
        self._cells.touch(self._cell)

    def __iter__(self) -> Iterator[Any]:
        for index in range(*self._bounds()):
            yield self._cells.value(self._element_cell(index))

    def __repr__(self) -> str:
        return f"StateList({list(self)!r})"


class StateMap(MutableMapping[Any, Any]):
    """A mutable mapping in a key's state. Its keys may be of any type that a stream can be keyed by.

    Where the step has a `ttl`, it applies to each element on its own.

    >>> def f(row, state):
    ...     pages = state.map("pages")
    ...     pages[row["page"]] = pages.get(row["page"], 0) + 1
    """

    __slots__ = ("_cell", "_cells")

    def __init__(self, cells: ExpiringCells, cell: bytes) -> None:
        self._cells, self._cell = cells, cell + b":"

    def __getitem__(self, key: Any) -> Any:
        found = self._cells.value(self._cell + encode_key(key))
        if is_absent(found):
            raise KeyError(key)
        return found

    def __setitem__(self, key: Any, value: Any) -> None:
        self._cells.put(self._cell + encode_key(key), value)

    def __delitem__(self, key: Any) -> None:
        cell = self._cell + encode_key(key)
        if is_absent(self._cells.read(cell)):
            raise KeyError(key)
        self._cells.drop(cell)

    def __iter__(self) -> Iterator[Any]:
        for cell in self._cells.scan(self._cell):
            yield decode_key(cell[len(self._cell) :])

    def __len__(self) -> int:
        return sum(1 for _ in self._cells.scan(self._cell))

    def __repr__(self) -> str:
        return f"StateMap({dict(self)!r})"


_SHOWN = ("v", "l", "m")


def values_by_name(cells: Iterable[tuple[bytes, bytes]], codec: Codec) -> dict[str, Any]:
    """Return the named values, lists and maps in the sorted cells of one key, without timers.

    A map whose keys are equal in Python, such as 0 and False, becomes a list of pairs: no dict can hold both.
    """
    names: dict[str, Any] = {}
    maps: dict[str, list[tuple[Any, Any]]] = {}
    for cell, data in cells:
        kind, _, rest = cell.decode().partition(":")
        if kind not in _SHOWN:
            continue
        quoted, _, inner = rest.partition(":")
        name = unquote(quoted)
        if kind == "v":
            names[name] = codec.decode(data)
        elif kind == "l":
            elements = names.setdefault(name, [])
            if inner:
                elements.append(codec.decode(data))
        else:
            maps.setdefault(name, []).append((decode_key(inner.encode()), codec.decode(data)))
            names.setdefault(name, {})
    for name, pairs in maps.items():
        found = dict(pairs)
        names[name] = found if len(found) == len(pairs) else pairs
    return names
