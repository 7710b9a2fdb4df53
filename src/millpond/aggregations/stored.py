"""Accumulators read by their kind, without the program that made them."""

from __future__ import annotations

from typing import Any

from millpond.aggregations.base import Aggregation
from millpond.aggregations.kinds import KINDS, AccumulatorKind
from millpond.errors import InvalidUse


def result_of(kind: str, acc: Any) -> Any:
    """Return the result of a stored accumulator; one of a user's own aggregation is returned as it is.

    >>> from millpond.aggregations import result_of
    >>> result_of("mean", [4, 10])
    2.5
    """
    return _kind("result_of", kind).result(acc)


def aggregation_of(kind: str) -> Aggregation:
    """Return an aggregation that reads and merges stored accumulators of a kind.

    >>> from millpond.aggregations import aggregation_of
    >>> aggregation_of("sum").merge(3, 4)
    7
    """
    return _kind("aggregation_of", kind).example()


def _kind(where: str, name: str) -> AccumulatorKind:
    try:
        return KINDS[name]
    except KeyError:
        raise InvalidUse(
            f"{where}: expected a kind of aggregation, one of {', '.join(sorted(KINDS))}, got {name!r}; "
            "the state was written by a newer version: upgrade"
        ) from None
