"""Rows for tests of outputs that are columns: uniform ones, and ones that are nearly so."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
from codec_samples import Account, Compact, Pair, Plain, Point, Slotted, values
from hypothesis import strategies as st

ZONE = ZoneInfo("UTC")


def _unfold(at: datetime) -> datetime:
    return at.replace(fold=0)


names = st.one_of(
    st.sampled_from(["n", "order", "row", "fields", "$tuple", "$x", "", "a.b", "größe", "pane"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
)
kinds: list[st.SearchStrategy[Any]] = [
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.booleans(),
    st.binary(max_size=8),
    st.dates(),
    st.datetimes().map(_unfold),
    st.datetimes(timezones=st.just(UTC)).map(_unfold),
    st.datetimes(timezones=st.just(ZONE)).map(_unfold),
    st.none(),
]
odd_values: st.SearchStrategy[Any] = st.one_of(
    *kinds,
    st.integers(2**63 - 2, 2**63 + 2),
    st.decimals(),
    st.datetimes(timezones=st.timezones()),
    st.datetimes().map(lambda at: at.replace(fold=1)),
    st.lists(st.integers(), max_size=2),
    st.tuples(st.integers()),
    st.text(max_size=3).map("lone ".__add__),
    values,
)


@dataclass
class Shipment:
    """A row of a class: a plain dataclass."""

    order: str
    weight: float | None
    sent: datetime | None = None


class Parcel(msgspec.Struct, rename="camel", tag="p"):
    """A row of a class: a Struct, which JSON shows in another way than its fields."""

    order_id: str
    weight: float | None
    sent: datetime | None = None


@st.composite
def uniform_rows(draw: st.DrawFn, least: int = 1) -> list[Any]:
    """Rows with the same fields in the same order, and one kind of value in each; often with None."""
    fields = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    columns = [draw(st.sampled_from(kinds)) for _ in fields]
    columns = [st.one_of(st.none(), column) if draw(st.booleans()) else column for column in columns]
    return draw(
        st.lists(st.tuples(*columns), min_size=least, max_size=6).map(
            lambda rows: [dict(zip(fields, row, strict=True)) for row in rows]
        )
    )


records = st.one_of(
    st.lists(st.builds(Shipment, st.text(max_size=4), st.one_of(st.none(), st.floats())), min_size=1, max_size=4),
    st.lists(st.builds(Parcel, kinds[0], st.one_of(st.none(), st.floats()), kinds[7]), min_size=1, max_size=4),
    st.lists(st.builds(Slotted, kinds[1], kinds[0]), min_size=1, max_size=4),
    st.lists(st.builds(Plain, kinds[0], odd_values), min_size=1, max_size=4),
    st.lists(st.builds(Compact, kinds[1], kinds[1]), min_size=1, max_size=4),
    st.lists(st.builds(Pair, kinds[1], kinds[1]), min_size=1, max_size=4),
    st.lists(st.builds(Account, st.text(max_size=3), kinds[1]), min_size=1, max_size=3),
    st.lists(st.builds(Point, kinds[2], kinds[3]), min_size=1, max_size=4),
)


@st.composite
def odd_rows(draw: st.DrawFn) -> list[Any]:
    """Uniform rows of which one may be changed: another value, a field more or less, another order, another type."""
    rows: list[Any] = draw(uniform_rows(2))
    i = draw(st.integers(0, len(rows) - 1))
    row, name = rows[i], draw(st.sampled_from(list(rows[0])))
    what = draw(st.sampled_from(["value", "more", "less", "order", "row", "nothing"]))
    if what == "value":
        row[name] = draw(odd_values)
    elif what == "more":
        row[draw(names)] = draw(odd_values)
    elif what == "less":
        del row[name]
    elif what == "order":
        rows[i] = dict(reversed(row.items()))
    elif what == "row":
        rows[i] = draw(values)
    return rows


any_rows = st.one_of(uniform_rows(), odd_rows(), records, st.lists(values, max_size=4))
