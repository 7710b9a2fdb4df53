"""`lookup`: each row with the row of a table that has its key.

orders.lookup("priced", prices, on="sku", how="left", merge=lambda order, price: …)

All changes that a batch makes to the table come before the lookups of that batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from millpond.codec import Unreadable, copy_value, decode_key, encode_key, encode_keys
from millpond.errors import InvalidUse
from millpond.log.segment import Change
from millpond.rows.rows import Rows
from millpond.steps.base import Running, StepContext
from millpond.steps.failure import (
    FAULTS,
    BadInput,
    Failed,
    OnError,
    is_needed_again,
    own_copy,
    unreadable_state,
)
from millpond.steps.joins.merge import merge_fields
from millpond.steps.kind import Step, StoredKey

LookupKey = Callable[[Any], Any]  # a row to the key that it looks up
Merge = Callable[[Any, Any], Any]

MISSING: Any = object()  # no row of a table


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
        step, table = self._step, self._context.read_table
        assert table is not None
        failed = self._reporter(rows)
        if self._step.on is None:
            assert rows.keys is not None
            distinct, index = rows.keys.encoded, list(rows.keys.index)
        else:
            keys, good = encode_lookup_keys(self._step.on, rows, failed)
            if len(good) < len(rows):
                rows = rows.pick(good)
                failed = self._reporter(rows)
            place = {key: i for i, key in enumerate(dict.fromkeys(key for key in keys if key is not None))}
            distinct, index = list(place), [-1 if key is None else place[key] for key in keys]
        found, decode = table(distinct), self._context.codec.decode
        decoded: dict[int, Any] = {}

        def right(i: int) -> Any:
            k = index[i]
            data = None if k < 0 else found[k]
            if data is None:
                return MISSING
            if k not in decoded:
                try:
                    decoded[k] = decode(data)
                except Unreadable as error:
                    raise unreadable_state(step.table, error, decode_key(distinct[k])) from error
            return copy_value(decoded[k])  # the merge function may change it

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
        found = [on(row) for row in rows.data]
        if not any(map(is_null_key, found)):
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
