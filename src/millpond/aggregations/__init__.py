"""Aggregations: many rows to one value, by four small functions.

    initial() -> acc               nothing seen yet
    update(acc, row, time) -> acc  one more row, and its event time
    result(acc) -> value           what it comes to
    merge(acc, acc) -> acc         two into one, where sessions join; the one that began earlier comes first

Accumulators are plain values that can be encoded: they are state, stored between batches. `update` and
`merge` may change what they are given, so hand them an accumulator of your own, and use only what they
return. When one raises, throw the accumulator away and read it again. Rows that are kept and results that
are returned are copies: nothing outside shares an accumulator's insides.

Nulls: `count(field)` counts what is not null, `sum`, `mean`, `min`, `max`, `quantile` and `approx_distinct`
pass over nulls, the others take them like any value. Of nothing, `count`, `sum` and `approx_distinct` are 0,
`collect`, `distinct` and `top` are empty, and the rest are `None`.
"""

from millpond.aggregations.arrivals import collect, distinct, earliest, first, last, latest
from millpond.aggregations.base import Aggregation, Field
from millpond.aggregations.custom import CUSTOM, aggregation
from millpond.aggregations.extremes import max, min, top
from millpond.aggregations.sketches import approx_distinct, quantile
from millpond.aggregations.stored import aggregation_of, result_of
from millpond.aggregations.totals import count, mean, sum

__all__ = [
    "CUSTOM",
    "Aggregation",
    "Field",
    "aggregation",
    "aggregation_of",
    "approx_distinct",
    "collect",
    "count",
    "distinct",
    "earliest",
    "first",
    "last",
    "latest",
    "max",
    "mean",
    "min",
    "quantile",
    "result_of",
    "sum",
    "top",
]
