"""A source of the items of an iterator, which a function of the program makes."""

from __future__ import annotations

import contextlib
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from millpond.clock import new_id
from millpond.errors import InvalidUse, MillpondError, Unavailable
from millpond.sources.base import Chunk, Limit, Split
from millpond.sources.ranges import ONLY_PLACE
from millpond.user_functions import check_function, has_parameter

CHUNK_ITEMS = 10_000
MOST_OPEN = 8  # iterators that one process keeps open between batches, over all sources

_FIRST = "start"  # the parameter by which a function can begin later than at the first item

# Iterators between two batches, by the id of their source: how many items were taken, and the iterator.
_open: OrderedDict[str, tuple[int, Iterator[Any]]] = OrderedDict()


class IteratedSource:
    """Made by `millpond.sources.iterate`; the position counts the items that were taken.

    The position is `{"n": items taken}`, and has an `"end"` once the iterator has ended. That is the id of this object,
    so that a new run, which makes another object, asks once more whether there are further items.

    A process that has read up to some item keeps its iterator open for the next batch. Any other begins a new one.

    >>> from millpond.sources import iterate
    >>> def numbers():
    ...     yield from range(5)
    >>> iterate(numbers)
    iterate(numbers)
    """

    def __init__(self, f: Callable[..., Iterable[Any]]) -> None:
        name = getattr(f, "__name__", None)
        self._name = f"iterate({name if isinstance(name, str) and callable(f) else 'f'})"
        if isinstance(f, Iterator):
            raise InvalidUse(
                f"{self._name}: expected a function that returns an iterator, got a {type(f).__name__}, which can be "
                "read only once. Give the function itself, as in iterate(f), not iterate(f())."
            )
        self._can_seek = callable(f) and has_parameter(f, _FIRST)
        if not self._can_seek:
            check_function(f, self._name)
        self._f, self._id = f, new_id()

    def plan(self, position: Mapping[str, Any], limit: Limit, now: float) -> Sequence[Split]:
        """Plan as many items as a batch may have: only `read` sees how many there are."""
        held = position.get(ONLY_PLACE, {"n": 0})
        if held.get("end") == self._id:
            return []
        rows = max(1, limit.rows)
        return [Split(ONLY_PLACE, held["n"], held["n"] + rows, weight=rows, rows=rows)]

    def plan_to(self, position: Mapping[str, Any], end: Mapping[str, Any], limit: Limit, now: float) -> Sequence[Split]:
        """Plan the next items before `end`."""
        at = position.get(ONLY_PLACE, {"n": 0})
        start, stop = at["n"], end.get(ONLY_PLACE, {"n": 0})["n"]
        if start < stop and at.get("end") == self._id:
            raise self._too_few(stop, start)
        stop = min(stop, start + max(1, limit.rows))
        return [Split(ONLY_PLACE, start, stop, weight=stop - start, rows=stop - start)] if start < stop else []

    def read(self, split: Split) -> Iterator[Chunk]:
        """Yield the items of the split; fewer if the iterator ends, and then the last position says so."""
        taken: int = split.start
        items = self._take_open(taken) or self._begin(taken)
        while taken < split.stop:
            wanted = min(CHUNK_ITEMS, split.stop - taken)
            found, unavailable = self._next_items(items, wanted, taken)
            if unavailable is not None and not found:
                if taken == split.start:
                    raise unavailable
                return  # what came before it is a batch; the next one meets it again
            first, taken = taken, taken + len(found)
            has_ended = len(found) < wanted and unavailable is None
            position = {"n": taken, "end": self._id} if has_ended else {"n": taken}
            yield Chunk(found, position, partial(self._describe_item, first))
            if len(found) < wanted:
                return
        self._keep_open(taken, items)

    def _begin(self, start: int) -> Iterator[Any]:
        """Return a new iterator that gives the items from number `start` on."""
        try:
            made = self._f(**{_FIRST: start}) if self._can_seek else self._f()
        except MillpondError:
            raise
        except Exception as error:
            raise self._failed(error, f"the function raised {type(error).__name__}") from error
        if isinstance(made, str | bytes | Mapping) or not isinstance(made, Iterable):
            raise InvalidUse(f"{self._name}: expected a function that returns an iterator, got {type(made).__name__}")
        items = iter(made)
        skipped = 0
        while not self._can_seek and skipped < start:
            wanted = min(CHUNK_ITEMS, start - skipped)
            found, unavailable = self._next_items(items, wanted, skipped)
            if unavailable is not None:
                raise unavailable
            skipped += len(found)
            if len(found) < wanted:
                raise self._too_few(start, skipped)
        return items

    def _next_items(self, items: Iterator[Any], count: int, taken: int) -> tuple[list[Any], Unavailable | None]:
        """Return the next items, fewer than `count` at the end or if the iterator raises `Unavailable`, and that."""
        found: list[Any] = []
        try:
            for item in islice(items, count):
                found.append(item)
        except Unavailable as error:
            return found, error
        except MillpondError:
            raise
        except Exception as error:
            what = f"after {taken + len(found)} items it raised {type(error).__name__}"
            raise self._failed(error, what) from error
        return found, None

    def _too_few(self, expected: int, came: int) -> InvalidUse:
        return InvalidUse(
            f"{self._name}: expected the {expected} items that were read before, and there are {came}. Each call must "
            "return a new iterator that gives the same items again, new ones only after them. A parameter `start` of "
            "the function gets the number of items to leave out."
        )

    def _failed(self, error: Exception, what: str) -> InvalidUse:
        lines = "".join(traceback.format_exception(error))
        return InvalidUse(
            f"{self._name}: {what}: {error}. Nothing of the batch counts. Correct the function; if it waits for "
            f"something outside, let it raise mp.errors.Unavailable(…, retry_after=…).\n{lines}"
        )

    def _take_open(self, taken: int) -> Iterator[Any] | None:
        """Return the iterator that this process has read up to an item, if there is one. It is no longer kept."""
        held = _open.pop(self._id, None)
        if held is None or held[0] == taken:
            return None if held is None else held[1]
        _close(held[1])
        return None

    def _keep_open(self, taken: int, items: Iterator[Any]) -> None:
        _open[self._id] = (taken, items)
        while len(_open) > MOST_OPEN:
            _close(_open.popitem(last=False)[1][1])

    def _describe_item(self, first: int, i: int) -> str:
        return f"{self._name}, item {first + i + 1}"

    def __repr__(self) -> str:
        return self._name


def _close(items: Iterator[Any]) -> None:
    """Close a generator, so that its `finally` runs now. What it raises then is ignored: it concerns no row."""
    close = getattr(items, "close", None)
    if callable(close):
        with contextlib.suppress(Exception):
            close()
