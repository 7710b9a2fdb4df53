"""`mp.external`: an external database for lookups, and the cache that a worker process has of it.

orders.lookup("customer", mp.external(fetch_customers, cache=10_000, expire="5m"), on="customer_id")
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from millpond.errors import InvalidUse
from millpond.timing import seconds
from millpond.user_functions import check_function


@dataclass(frozen=True)
class External:
    """How rows are fetched from an external database, and for how long they are cached."""

    fetch: Callable[[list[Any]], Any]
    cache: int
    expire: float | None


def external(
    fetch: Callable[[list[Any]], Any], cache: int = 10_000, expire: str | float | timedelta | None = "5m"
) -> External:
    """Return an external database for `lookup`, in the place of a table of the app.

    `fetch(keys)` gets a list of distinct keys and returns a dict of rows by key, without the keys that have no row. It
    is called in a worker, once for many rows, with the keys that are not in the cache of the worker process; it may be
    a coroutine function. The cache holds the `cache` keys that were used last, also those without a row, for `expire`;
    with None they stay as long as the process runs.

    >>> import millpond as mp
    >>> def customers(ids):  # SELECT … WHERE id = ANY(ids)
    ...     return {id: {"name": f"customer {id}"} for id in ids if id < 100}
    >>> app = mp.App("shop")
    >>> orders = app.stream("orders", mp.sources.rows([]))
    >>> out = orders.lookup("customer", mp.external(customers), on="who").to("out", mp.sinks.memory())
    >>> with mp.testing.TestDriver(app) as driver:
    ...     driver.send("orders", [{"who": 7}, {"who": 700}])
    ...     driver.output("out")
    [{'who': 7, 'name': 'customer 7'}, {'who': 700}]
    """
    if not callable(fetch):
        raise InvalidUse(f"external(fetch): expected a function of a list of keys, got {fetch!r}")
    check_function(fetch, "external(fetch)", "keys")
    if type(cache) is not int or cache < 0:
        raise InvalidUse(f"external(cache): expected a whole number of keys, 0 or more, got {cache!r}")
    return External(fetch, cache, None if expire is None else seconds(expire, "external(expire)"))


class Cache:
    """The rows of an external database that one process has fetched: the keys that were used last."""

    def __init__(self, external: External) -> None:
        self._size, self._life = external.cache, external.expire
        self._held: OrderedDict[Any, tuple[float, Any]] = OrderedDict()

    def get(self, keys: Iterable[Any], now: float) -> dict[Any, Any]:
        """Return the cached rows of these keys."""
        found = {}
        for key in keys:
            until, row = self._held.get(key, (now, None))
            if until > now:
                self._held.move_to_end(key)
                found[key] = row
        return found

    def put(self, rows: Mapping[Any, Any], now: float) -> None:
        """Cache rows; the keys that were not used for longest are removed."""
        until = float("inf") if self._life is None else now + self._life
        for key, row in rows.items():
            self._held[key] = (until, row)
            self._held.move_to_end(key)
        while len(self._held) > self._size:
            self._held.popitem(last=False)
