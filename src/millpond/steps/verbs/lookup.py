"""`lookup`: each row with the row of a table that has its key.

orders.lookup("priced", prices, on="sku", how="left", merge=lambda order, price: …)

All changes that a batch makes to the table come before the lookups of that batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, ClassVar, Literal, Self

from millpond.codec import encode_key, encode_keys
from millpond.errors import InvalidUse
from millpond.log.segment import Change
from millpond.rows.fields import FieldReader
from millpond.rows.rows import Rows
from millpond.steps.base import Running, StepContext
from millpond.steps.failure import (
    FAULTS,
    BadInput,
    Failed,
    OnError,
    is_needed_again,
    own_copy,
)
from millpond.steps.joins.merge import merge_fields, merge_flat_rows
from millpond.steps.kind import Step, StoredKey
from millpond.steps.state.table_rows import MISSING as MISSING
from millpond.steps.state.table_rows import own_row

LookupKey = Callable[[Any], Any]  # a row to the key that it looks up
Merge = Callable[[Any, Any], Any]


@dataclass(frozen=True, kw_only=True)
class LookupStep(Step):
    """A lookup into a table of the same app. It keeps no state."""

    kind: ClassVar[str] = "lookup"

    table: str  # the name of its step
    on: LookupKey | None = None  # None: rows look up their own key
    how: Literal["left", "inner"] = "left"
    merge: Merge | None = None

    def begin(self, context: StepContext) -> Running:
        return RunningLookup(self, context)

    @classmethod
    def show(cls, stored: StoredKey, step: Self | None) -> Any:
        raise AssertionError("a lookup has no state")


class RunningLookup(Running):
    """The started step: it keeps its rows until the table has all changes of the batch."""

    def __init__(self, step: LookupStep, context: StepContext) -> None:
        self._step, self._context = step, context
        self._waiting: list[Rows] = []

    def run(self, rows: Rows, side: int = 0) -> Rows:
        self._waiting.append(rows)
        return Rows([], [])

    def end(self) -> list[Rows]:
        waiting, self._waiting = self._waiting, []
        return [self._look_up(rows.as_objects()) for rows in waiting]

    def _look_up(self, rows: Rows) -> Rows:
        step, table = self._step, self._context.tables[self._step.table]
        failed = self._reporter(rows)
        if step.on is None:
            assert rows.keys is not None
            entries = list(map(table.find(rows.keys.encoded).__getitem__, rows.keys.index))
        else:
            keys, good = encode_lookup_keys(step.on, rows, failed)
            if len(good) < len(rows):
                rows = rows.pick(good)
                failed = self._reporter(rows)
            if None in keys:
                found = iter(table.find([key for key in keys if key is not None]))
                entries = [MISSING if key is None else next(found) for key in keys]
            else:
                entries = table.find(keys)  # type: ignore[arg-type]
        if step.merge is None and step.how == "left":
            data = merge_flat_rows(rows.data, entries)
            if data is not None:
                return rows.with_data(data)
        is_shared = step.merge is None  # no function of the user's is given the entry itself

        def right(i: int) -> Any:
            entry = entries[i]
            return entry if entry is MISSING or (is_shared and type(entry) is dict) else own_row(entry)

        return pair_rows(rows, right, step.how, step.merge, step.on_error, failed)

    def _reporter(self, rows: Rows) -> Failed:
        return self._context.failures.reporter(self._step.on_error, self._step.name, rows)

    def changes(self) -> list[Change]:
        return []


def encode_lookup_keys(on: LookupKey, rows: Rows, failed: Failed) -> tuple[list[bytes | None], list[int]]:
    """Return the encoded key of each row, None if it looks up none, and the places of the rows that did not fail.

    A key that is None, or has a part that is None, matches no row of any table.
    """
    try:
        found = _read_keys(on, rows.data)
        if not _MAYBE_NULL.intersection(map(type, found)) or not any(map(is_null_key, found)):
            return list(encode_keys(found)), list(range(len(rows)))
    except FAULTS:
        pass  # the loop below finds out which row it was, and why
    keys: list[bytes | None] = []
    good: list[int] = []

    def once(i: int, row: Any) -> None:
        key = on(row)
        keys.append(None if is_null_key(key) else encode_key(key))
        good.append(i)

    for i, row in enumerate(rows.data):
        try:
            once(i, row)
        except FAULTS as error:
            failed(i, row, without_traceback(error), lambda i=i, row=row: once(i, row))  # type: ignore[misc]
    return keys, good


_MAYBE_NULL = frozenset({NoneType, tuple})


def _read_keys(on: LookupKey, data: Sequence[Any]) -> list[Any]:
    if type(on) is FieldReader:
        try:
            return [row[on.name] for row in data] if set(map(type, data)) == {dict} else list(map(on, data))
        except KeyError:
            pass  # the reader says which fields the row has
    return list(map(on, data))


def is_null_key(key: Any) -> bool:
    return key is None or (type(key) is tuple and None in key)


def without_traceback(error: BaseException) -> BaseException:
    """Return an error whose message is enough, such as a missing field, as one without a traceback."""
    return BadInput(str(error)) if isinstance(error, InvalidUse) else error


def pair_rows(
    rows: Rows, right: Callable[[int], Any], how: str, merge: Merge | None, policy: OnError, failed: Failed
) -> Rows:
    """Return each row merged with `right(i)`, its own copy of the row that was found, or MISSING."""
    merge = merge or merge_fields
    is_kept, is_inner = is_needed_again(policy), how == "inner"
    data: list[Any] = []
    came: list[int] = []

    def once(i: int, row: Any) -> None:
        found = right(i)
        if found is MISSING:
            if is_inner:
                return
            found = None
        data.append(merge(row, found))
        came.append(i)

    for i, row in enumerate(rows.data):
        try:
            once(i, own_copy(row) if is_kept else row)
        except FAULTS as error:
            failed(i, row, error, lambda i=i, row=row: once(i, own_copy(row)))  # type: ignore[misc]
    if len(came) == len(rows):
        return rows.with_data(data)
    picked: Sequence[int] = came
    kept = rows.pick(picked)
    kept.data, kept.form = data, "objects"
    return kept
