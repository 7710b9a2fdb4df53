"""`quantile` and `approx_distinct`: estimates over many values from a few kilobytes, by Apache DataSketches.

Both are exact for few values. Both give the same result for the same rows in the same order, whatever the batches;
`approx_distinct` in any order. For this reason the quantile sketch is the t-digest: the other ones of the library are
randomised.
"""

from __future__ import annotations

from bisect import insort
from decimal import Decimal
from math import floor, isfinite, nan
from typing import Any

import numpy as np

from millpond.aggregations.base import Aggregation, Field, make_label, reader, repr_with_type, show
from millpond.aggregations.kinds import AccumulatorKind, register_kind
from millpond.codec import Codec, NotEncodable, encode_key
from millpond.errors import InvalidUse

_EXACT_VALUES = 256  # stored as they are; when there are more, all of them go into the digest
_DIGEST = 400  # centroids, about: with half as many, ranks were off by 2 percent instead of 1
_LG_BUCKETS = 12  # 4,096 buckets of a byte: a standard error of 1.6 percent

_codec = Codec()


def quantile(q: float, field: Field = None) -> Aggregation:
    """An estimate of the value that a share `q` of the values does not exceed: `quantile(0.5)` is the median.

    Exact up to 256 values, interpolated between neighbours. For more, the rank of the result is right to about one
    percent of all values, and closer near 0 and 1. Always a float. Nulls and NaN are skipped.

    >>> import millpond as mp
    >>> median = mp.quantile(0.5, "ms")
    >>> acc = median.initial()
    >>> for ms in (10, 20, 90):
    ...     acc = median.update(acc, {"ms": ms}, None)
    >>> median.result(acc)
    20.0
    """
    if isinstance(q, bool) or not isinstance(q, int | float) or not 0 <= q <= 1:
        raise InvalidUse(f"quantile(q): expected a share from 0 to 1, for example 0.99, got {q!r}")
    shown = "" if field is None else f", {show(field)}"
    label = f"quantile({q!r}{shown})"
    read = reader(label, field)
    _library(label)

    def update(acc: list[Any], row: Any, time: Any) -> list[Any]:
        value = read(row)
        if value is None:
            return acc
        number = _as_number(label, value)
        if number == number:
            insort(acc[2], number)
            _fold(acc)
        acc[0] = q
        return acc

    def merge(a: list[Any], b: list[Any]) -> list[Any]:
        if a[1] and b[1]:
            digest = _library(label).tdigest_double.deserialize(a[1])
            digest.merge(_library(label).tdigest_double.deserialize(b[1]))
            a[1] = digest.serialize()
        a[1] = a[1] or b[1]
        a[2] = sorted(a[2] + b[2])
        return _fold(a)

    def result(acc: list[Any]) -> Any:
        return _quantile_result([q, *acc[1:]])

    return Aggregation("quantile", label, lambda: [q, None, []], update, result, merge, field=field)


def approx_distinct(field: Field = None) -> Aggregation:
    """An estimate of how many different values there are; a whole number.

    Exact for a few hundred values. For more, two results in three are within 1.6 percent, and nearly all within 5. The
    order of the rows makes no difference. 1 equals 1.0, as in Python. Nulls are skipped.

    >>> import millpond as mp
    >>> visitors = mp.approx_distinct("user")
    >>> acc = visitors.initial()
    >>> for user in ("ann", "bob", "ann"):
    ...     acc = visitors.update(acc, {"user": user}, None)
    >>> visitors.result(acc)
    2
    """
    label = make_label("approx_distinct", field)
    read = reader(label, field)
    _library(label)  # if it is missing, fail when the program is written

    def update(acc: bytes | None, row: Any, time: Any) -> bytes | None:
        value = read(row)
        if value is None:
            return acc
        library = _library(label)
        if acc is None:
            sketch = library.hll_sketch(_LG_BUCKETS, library.tgt_hll_type.HLL_8)
        else:
            sketch = library.hll_sketch.deserialize(acc)
        sketch.update(_as_text(label, value))
        return bytes(sketch.serialize_compact())

    def merge(a: bytes | None, b: bytes | None) -> bytes | None:
        if a is None or b is None:
            return a or b
        both = _union(a, b).get_result(_library(label).tgt_hll_type.HLL_8)
        return bytes(both.serialize_compact())

    return Aggregation("approx_distinct", label, lambda: None, update, _distinct_result, merge, field=field)


def _as_number(label: str, value: Any) -> float:
    if isinstance(value, int | float | Decimal):
        try:
            number = float(value)
        except (OverflowError, ValueError):
            number = nan if value != value else float("inf")
        if isfinite(number) or number != number:
            return number
    raise InvalidUse(
        f"{label}: expected a finite number, got {repr_with_type(value)}; name a field that holds numbers, "
        'or give a function, for example lambda row: row["took"].total_seconds()'
    )


def _fold(acc: list[Any]) -> list[Any]:
    """Move the values into the digest if they are too many."""
    if len(acc[2]) > _EXACT_VALUES:
        digests = _library("quantile").tdigest_double
        digest = digests.deserialize(acc[1]) if acc[1] else digests(_DIGEST)
        digest.update(np.array(acc[2], dtype=np.float64))
        acc[1], acc[2] = digest.serialize(), []
    return acc


def _quantile_result(acc: list[Any]) -> float | None:
    q, digest, values = acc
    if digest is None:
        if not values:
            return None
        place = q * (len(values) - 1)
        low = values[floor(place)]
        return float(low + (values[min(floor(place) + 1, len(values) - 1)] - low) * (place - floor(place)))
    whole = _library("quantile").tdigest_double.deserialize(digest)
    if values:
        whole.update(np.array(values, dtype=np.float64))
    return float(whole.get_quantile(q))


def _distinct_result(acc: bytes | None) -> int:
    # A union with itself: its estimate depends on the buckets alone, that of one sketch also on the order of the rows.
    return 0 if acc is None else round(_union(acc, acc).get_estimate())


def _union(*sketches: bytes) -> Any:
    library = _library("approx_distinct")
    union = library.hll_union(_LG_BUCKETS)
    for sketch in sketches:
        union.update(library.hll_sketch.deserialize(sketch))
    return union


def _as_text(label: str, value: Any) -> str:
    """Return a text that is the same for equal values only."""
    if type(value) is bool or (type(value) is float and value.is_integer()):
        value = int(value)
    try:
        return encode_key(value).decode()  # of one instant, whatever its zone, it makes one text
    except InvalidUse:
        pass
    try:
        return _codec.encode(value).decode()
    except NotEncodable as error:
        raise InvalidUse(
            f"{label}: expected values that can be encoded, got {repr_with_type(value)} ({error}); "
            "name a field, or give a function"
        ) from None


def _library(label: str) -> Any:
    try:
        import datasketches
    except ImportError:
        raise InvalidUse(
            f"{label}: expected the package datasketches, which is not installed (it comes with Millpond where "
            "there is a wheel of it); pip install datasketches"
        ) from None
    return datasketches


register_kind(AccumulatorKind(name="quantile", result=_quantile_result, example=lambda: quantile(0.5)))
register_kind(AccumulatorKind(name="approx_distinct", result=_distinct_result, example=lambda: approx_distinct()))
