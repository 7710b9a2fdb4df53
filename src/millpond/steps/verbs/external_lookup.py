"""`lookup` in an external database: one call for all keys of some rows that are not in the cache.

>>> import millpond as mp
>>> def customers(ids):
...     return {id: {"name": f"customer {id}"} for id in ids}
>>> app = mp.App("shop")
>>> orders = app.stream("orders", mp.sources.rows([]))
>>> out = orders.lookup("customer", mp.external(customers), on="who").to("out", mp.sinks.memory())
>>> with mp.testing.TestDriver(app) as driver:
...     driver.send("orders", [{"who": 7}])
...     driver.output("out")
[{'who': 7, 'name': 'customer 7'}]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from millpond.clock import Clock
from millpond.rows.rows import Rows
from millpond.steps.failure import FAULTS, BadInput, Failed, OnError, Retry, own_copy
from millpond.steps.operator import Operator, OperatorContext
from millpond.steps.verbs.external import Cache, External
from millpond.steps.verbs.lookup import MISSING, is_null_key, pair_rows, without_traceback
from millpond.steps.verbs.map_async import answer

Known = tuple[type, Any]  # a key, with its type: 1 is not True


@dataclass(frozen=True)
class ExternalLookup(Operator):
    """Each row with the row of an external database that has its key."""

    verb = "lookup"
    lookup_name: str
    external: External
    on: Callable[[Any], Any] | None  # returns the key to look up; None means the row's own key
    how: str
    merge: Callable[[Any, Any], Any] | None
    on_error: OnError

    @property
    def name(self) -> str:
        return self.lookup_name

    @property
    def label(self) -> str:
        return f"lookup {self.lookup_name!r}"

    @property
    def own_policy(self) -> OnError:
        return self.on_error

    def make_cache(self) -> Cache:
        return Cache(self.external)

    def start(self, context: OperatorContext) -> RunningExternalLookup:
        return RunningExternalLookup(self, context)


class RunningExternalLookup:
    """A lookup, started in one task."""

    def __init__(self, operator: ExternalLookup, context: OperatorContext) -> None:
        self._operator, self._context = operator, context

    def run(self, rows: Rows, side: int = 0) -> Rows:
        """Return the rows with what was found for them; those that fail are left out.

        If the call of the database fails, it is repeated as `on_error` says; then all rows that needed its answer fail.
        """
        op, cache, now, reporter = self._operator, self._context.cache, self._context.now, self._context.reporter
        rows = rows.as_objects()
        keys, good = _keys(op, rows, reporter(rows))
        rows = rows if len(good) == len(rows) else rows.pick(good)
        failed = reporter(rows)
        wanted = dict.fromkeys(key for key in keys if key is not None)
        found = cache.get(wanted, now)
        missing = [key for key in wanted if key not in found]
        if missing:
            try:
                fresh = _fetch_rows(op, [key for _, key in missing], self._context.clock)
            except FAULTS as error:
                unknown = set(missing)
                left = [i for i, key in enumerate(keys) if key not in unknown]
                for i in (i for i, key in enumerate(keys) if key in unknown):
                    failed(i, rows.data[i], error, None)
                keys, rows = [keys[i] for i in left], rows.pick(left)
                failed = reporter(rows)
            else:
                answers = {key: _row_or_missing(fresh, key[1]) for key in missing}
                cache.put(answers, now)
                found.update(answers)

        def right(i: int) -> Any:
            key = keys[i]
            row = MISSING if key is None else found[key]
            return row if row is MISSING else own_copy(row)  # others may be given the same

        return pair_rows(rows, right, op.how, op.merge, op.on_error, failed)


def _keys(op: ExternalLookup, rows: Rows, failed: Failed) -> tuple[list[Known | None], list[int]]:
    """Return the key that each row looks up, None if it looks up none, and the places of the rows that did not fail."""
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
            kind = type(key).__name__
            raise BadInput(f"expected a key that a dict can have, got a value of type {kind}: {key!r}") from None
        found.append(None if is_null_key(key) else (type(key), key))
        good.append(i)

    for i, row in enumerate(rows.data):
        try:
            once(i, row)
        except FAULTS as error:
            failed(i, row, without_traceback(error), partial(once, i, row))
    return found, good


def _fetch_rows(op: ExternalLookup, keys: list[Any], clock: Clock) -> Mapping[Any, Any]:
    policy = op.on_error
    pauses = [policy.backoff * 2**n for n in range(policy.times)] if isinstance(policy, Retry) else []
    for pause in (*pauses, None):
        try:
            found = answer(op.external.fetch, list(keys))
            if not isinstance(found, Mapping):
                kind = type(found).__name__
                raise BadInput(f"fetch: expected a dict of rows by key, got a value of type {kind}: {found!r}")
            return found
        except FAULTS:
            if pause is None:
                raise
            clock.sleep(pause)
    raise AssertionError("unreachable")


def _row_or_missing(answers: Mapping[Any, Any], key: Any) -> Any:
    row = answers.get(key)
    return MISSING if row is None else row
