"""Accumulators read by their kind, without the program that made them."""

from __future__ import annotations

from typing import Any

from millpond.aggregations import arrivals, extremes, sketches, totals
from millpond.aggregations.base import Results
from millpond.aggregations.custom import CUSTOM
from millpond.codec import copy_value
from millpond.errors import InvalidUse

RESULTS: Results = totals.RESULTS | extremes.RESULTS | arrivals.RESULTS | sketches.RESULTS


def result_of(kind: str, acc: Any) -> Any:
    """The result of a stored accumulator, without the program that made it.

    An accumulator of a user's own aggregation is given as it is.

    >>> from millpond.aggregations import result_of
    >>> result_of("mean", [4, 10])
    2.5
    """
    if kind == CUSTOM:
        return copy_value(acc)
    try:
        result = RESULTS[kind]
    except KeyError:
        raise InvalidUse(
            f"result_of: expected a kind of aggregation, one of {', '.join(RESULTS)}, got {kind!r}; "
            "the state was written by a newer version: upgrade"
        ) from None
    return result(acc)
