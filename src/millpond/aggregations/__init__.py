"""Aggregations: many rows to one value, by four small functions.

    initial() -> acc               before any row
    update(acc, row, time) -> acc  after one more row, with its event time
    result(acc) -> value           the value to show
    merge(acc, acc) -> acc         two accumulators as one; the one that began earlier comes first

Accumulators are plain values that can be encoded: they are stored between batches. `update` and `merge` may change
their arguments, so pass an accumulator that is not shared, and use only what they return. If one raises, discard the
accumulator and read it again. Stored rows and returned results are copies: nothing else shares parts of an accumulator.

Nulls: `count(field)` counts what is not null; `sum`, `mean`, `min`, `max`, `quantile` and `approx_distinct` skip
nulls; the others take them like any value. Without rows, `count`, `sum` and `approx_distinct` are 0, `collect`,
`distinct` and `top` are empty, and the rest are None.
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
