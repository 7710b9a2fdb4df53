"""Lookups in an external database: one question for all keys of some rows that are not remembered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from millpond.clock import Clock
from millpond.rows.rows import Rows
from millpond.steps.failure import FAULTS, BadInput, OnError, Retry, own_copy
from millpond.steps.verbs.external import Cache, External
from millpond.steps.verbs.lookup import MISSING, Failed, is_nothing, paired, plainer
from millpond.steps.verbs.map_async import answer

Known = tuple[type, Any]  # a key, with its type: 1 is not True


def fetched(
    op: ExternalLookup, rows: Rows, cache: Cache, now: float, clock: Clock, failing: Callable[[Rows], Failed]
) -> Rows:
    """The rows with what was found for them; those that fail are told and left out.

    If the question itself fails, it is asked again as `on_error` says; then all rows fail that needed its answer.
    """
    rows = rows.as_objects()
    keys, good = _keys(op, rows, failing(rows))
    rows = rows if len(good) == len(rows) else rows.pick(good)
    failed = failing(rows)
    wanted = dict.fromkeys(key for key in keys if key is not None)
    found = cache.get(wanted, now)
    missing = [key for key in wanted if key not in found]
    if missing:
        try:
            fresh = _asked(op, [key for _, key in missing], clock)
        except FAULTS as error:
            unknown = set(missing)
            left = [i for i, key in enumerate(keys) if key not in unknown]
            for i in (i for i, key in enumerate(keys) if key in unknown):
                failed(i, rows.data[i], error, None)
            keys, rows = [keys[i] for i in left], rows.pick(left)
            failed = failing(rows)
        else:
            answers = {key: _found(fresh, key[1]) for key in missing}
            cache.put(answers, now)
            found.update(answers)

    def right(i: int) -> Any:
        key = keys[i]
        row = MISSING if key is None else found[key]
        return row if row is MISSING else own_copy(row)  # others may be given the same

    return paired(rows, right, op.how, op.merge, op.on_error, failed)


def _keys(op: ExternalLookup, rows: Rows, failed: Failed) -> tuple[list[Known | None], list[int]]:
    """The key that each row looks up, and the places of those that have one; nothing looks nothing up."""
    found: list[Known | None] = []
    good: list[int] = []

    def once(i: int, row: Any) -> None:
        if op.on is None:
            assert rows.keys is not None
            key = rows.keys.of(i)
        else:
            key = op.on(row)
        try:
            hash(key)
        except TypeError:
            raise BadInput(f"expected a key that a dict can have, got a {type(key).__name__}: {key!r}") from None
        found.append(None if is_nothing(key) else (type(key), key))
        good.append(i)

    for i, row in enumerate(rows.data):
        try:
            once(i, row)
        except FAULTS as error:
            failed(i, row, plainer(error), lambda i=i, row=row: once(i, row))  # type: ignore[misc]
    return found, good


def _asked(op: ExternalLookup, keys: list[Any], clock: Clock) -> Mapping[Any, Any]:
    policy = op.on_error
    pauses = [policy.backoff * 2**n for n in range(policy.times)] if isinstance(policy, Retry) else []
    for pause in (*pauses, None):
        try:
            found = answer(op.external.fetch, list(keys))
            if not isinstance(found, Mapping):
                raise BadInput(f"fetch: expected a dict of rows by key, got a {type(found).__name__}: {found!r}")
            return found
        except FAULTS:
            if pause is None:
                raise
            clock.sleep(pause)
    raise AssertionError("unreachable")


def _found(answers: Mapping[Any, Any], key: Any) -> Any:
    row = answers.get(key)
    return MISSING if row is None else row


@dataclass(frozen=True)
class ExternalLookup:
    """Rows meet those of an external database."""

    name: str
    external: External
    on: Callable[[Any], Any] | None  # what gives the key to look up; nothing means the row's own
    how: str
    merge: Callable[[Any, Any], Any] | None
    on_error: OnError
