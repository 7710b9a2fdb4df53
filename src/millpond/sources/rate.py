"""A source of numbered rows at a steady rate, for demos, load tests and experiments."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import InvalidUse
from millpond.sources.base import Chunk, Limit, Split
from millpond.sources.ranges import CHUNK_ROWS, ONLY_PLACE, cut_range

RATE_SMALLEST_SPLIT = 50_000  # rows
RATE_LARGEST_SPLIT = 1_000_000
SCHEMA = pa.schema([pa.field("timestamp", pa.timestamp("us", tz="UTC")), pa.field("value", pa.int64())])


class RateSource:
    """Made by `millpond.sources.rate`; row n is `{"timestamp": since + n / rate, "value": n}`.

    The position is `{"n": rows given, "since": seconds, "first": row due at since, "rate": rows per second}`.
    Rows fall due while the app is down, too: they come after a restart, as fast as the limit allows. With a new rate
    the rows go on from where the old rate was.

    >>> from millpond.sources import rate
    >>> rate(10)
    rate(10)
    """

    def __init__(self, rows_per_second: float, start: datetime | float | None = None) -> None:
        number = isinstance(rows_per_second, int | float) and not isinstance(rows_per_second, bool)
        if not number or not math.isfinite(rows_per_second) or rows_per_second <= 0:
            raise InvalidUse(f"rate(rows_per_second): expected a number above 0, got {rows_per_second!r}")
        if isinstance(start, datetime):
            if start.tzinfo is None:
                raise InvalidUse(f"rate(start=): expected a datetime with a time zone, got {start!r}")
            start = start.timestamp()
        self._rate = rows_per_second
        self._since = None if start is None else float(start)
        self._until: float | None = None  # the time after which no row is due

    def plan(self, position: Mapping[str, Any], limit: Limit, now: float) -> Sequence[Split]:
        """Plan the rows that are due at `now` and not read yet, at most `limit.rows`."""
        now = now if self._until is None else min(now, self._until)
        if ONLY_PLACE in position:
            n, since, first, rate = (position[ONLY_PLACE][name] for name in ("n", "since", "first", "rate"))
            if rate != self._rate:
                since, first = since + (n - first) / rate, n
        else:
            if self._since is None:
                self._since = now  # nothing is due at the first plan, so no commit stores it
            n, since, first = 0, self._since, 0
        stop = min(first + rows_due(since, now, self._rate), n + max(1, limit.rows))
        detail = {"since": since, "first": first, "rate": self._rate}
        return [
            Split(ONLY_PLACE, begin, end, weight=16 * (end - begin), detail=detail, rows=end - begin)
            for begin, end in cut_range(n, stop, smallest=RATE_SMALLEST_SPLIT, largest=RATE_LARGEST_SPLIT)
        ]

    def as_of(self, now: float) -> RateSource:
        """Return the same source without the rows that fall due from now on."""
        self._since = now if self._since is None else self._since
        made = RateSource(self._rate, self._since)
        made._until = now
        return made

    def plan_to(self, position: Mapping[str, Any], end: Mapping[str, Any], limit: Limit, now: float) -> Sequence[Split]:
        """Plan the rows before `end`, at the rate that is stored in `end`."""
        if ONLY_PLACE not in end:
            return []
        n = position[ONLY_PLACE]["n"] if ONLY_PLACE in position else 0
        stop = min(end[ONLY_PLACE]["n"], n + max(1, limit.rows))
        detail = {name: end[ONLY_PLACE][name] for name in ("since", "first", "rate")}
        return [
            Split(ONLY_PLACE, begin, last, weight=16 * (last - begin), detail=detail, rows=last - begin)
            for begin, last in cut_range(n, stop, smallest=RATE_SMALLEST_SPLIT, largest=RATE_LARGEST_SPLIT)
        ]

    def read(self, split: Split) -> Iterator[Chunk]:
        """Yield the rows of the split, computed from their numbers."""
        since, first, rate = (split.detail[name] for name in ("since", "first", "rate"))
        for begin in range(split.start, split.stop, CHUNK_ROWS):
            end = min(begin + CHUNK_ROWS, split.stop)
            value = pa.array(range(begin, end), pa.int64())
            micros = pc.floor(pc.divide(pc.multiply(pc.subtract(value, first), 1e6), float(rate)))
            timestamp = pc.add(pc.cast(micros, pa.int64()), round(since * 1e6))
            table = pa.table([timestamp.cast(SCHEMA.field(0).type), value], schema=SCHEMA)
            yield Chunk(table, {"n": end, **split.detail}, partial(_describe_rate_row, begin))

    def __repr__(self) -> str:
        return f"rate({self._rate!r})"


def rows_due(since: float, now: float, rate: float) -> int:
    """Return how many rows are due between two times, to the microsecond.

    >>> rows_due(since=100.0, now=100.57, rate=100)
    57
    >>> rows_due(since=100.0, now=99.0, rate=100)
    0
    """
    # whole microseconds, since 0.57 * 100 is less than 57 in floating point
    return max(0, int(round((now - since) * 1e6) * rate // 1_000_000))


def _describe_rate_row(first: int, i: int) -> str:
    return f"rate, row {first + i}"
