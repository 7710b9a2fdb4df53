"""How the state of a step is shown to readers: from its cells in a store or in the log to keys and values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import pyarrow as pa

from millpond.codec import Codec, decode_key
from millpond.errors import InvalidUse
from millpond.log.record import Record
from millpond.replica import Entry, View
from millpond.replica.snapshot import CellRow, ReadView
from millpond.steps.kind import Step, StoredKey
from millpond.steps.registry import find_kind
from millpond.steps.state.shown import shown_cells

CellValues = list[tuple[bytes, bytes]]


@dataclass(frozen=True)
class ShownStep:
    """How the state of a step is shown: `step` and `types` are those of the program, if there is one."""

    app: str
    name: str
    step: Step | None = None
    types: tuple[type, ...] = ()

    @cached_property
    def codec(self) -> Codec:
        return Codec(self.types, unknown="plain")

    def kind(self, record: Record) -> type[Step]:
        """Return the kind of the step at a record; `InvalidUse` if there is no such step."""
        if self.step is not None:
            return type(self.step)
        info = record.steps.get(self.name)
        if info is None:
            raise InvalidUse(
                f"app {self.app!r} has no step {self.name!r}; it has: {', '.join(sorted(record.steps)) or 'none yet'}"
            )
        return find_kind(info.kind)

    def value(self, kind: type[Step], key: Any, cells: CellValues, record: Record) -> Any:
        """Return the value of a key at a record, from its cells, which are in order."""
        info = record.steps.get(self.name)
        detail = info.detail if info is not None else self.step.detail if self.step is not None else {}
        return kind.show(StoredKey(key, cells, self.codec, detail), self.step)

    def reader(self, key: bytes | None, record: Record, now: float) -> ReadView:
        """Return what reads the step's rows in a view at a record, of all keys or of one, without what has expired."""
        info = record.steps.get(self.name)

        def read(view: View) -> Iterator[CellRow]:
            if self.step is not None and info is not None and info.oldest < self.step.state.version:
                view = self.step.upgraded_view(view, info.oldest, self.types)
            return self.rows(view.entries(self.name, key), record, now)

        return read

    def rows(self, entries: Iterable[Entry], record: Record, now: float) -> Iterator[CellRow]:
        """Return the rows of entries, in the order of their keys and cells, without what has expired by then."""
        return shown_cells(self.kind(record), entries, round(now * 1_000_000))

    def items(self, rows: Iterable[CellRow], record: Record) -> Iterator[tuple[Any, Any]]:
        """Yield each key and its value at a record. The rows of one key come together."""
        kind = self.kind(record)
        for key, cells in groupby(rows, key=lambda cell: cell[0]):
            known = decode_key(key)
            yield known, self.value(kind, known, sorted((cell, value) for _, cell, value in cells), record)

    def column(self, values: list[Any]) -> pa.Array:
        """Return values as a column: of their common type, or of JSON text if they have none."""
        try:
            if len(set(map(type, values)) - {type(None)}) <= 1:
                return pa.array(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
            pass
        return pa.array([self.codec.encode(value).decode() for value in values], pa.string())

    def table(self, items: Iterable[tuple[Any, Any]]) -> pa.Table:
        """Return keys and values as a table of two columns."""
        pairs = list(items)
        return pa.table({"key": self.column([k for k, _ in pairs]), "value": self.column([v for _, v in pairs])})
