"""Rows with datetimes are written many at a time: the same text as one by one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from millpond.codec import Codec

ZONES = st.sampled_from([UTC, timezone.utc, timezone(timedelta(hours=2)), ZoneInfo("Europe/Berlin"), None])  # noqa: UP017
times = st.datetimes(datetime(1990, 1, 1), datetime(2040, 1, 1)).flatmap(
    lambda naive: st.builds(lambda zone, fold: naive.replace(tzinfo=zone, fold=fold), ZONES, st.sampled_from([0, 1]))
)
noon = datetime(2024, 5, 1, 12, tzinfo=UTC)
same = st.sampled_from([noon, noon.astimezone(timezone(timedelta(hours=2))), noon.replace(tzinfo=None)])
values = st.one_of(times, same, st.none(), st.booleans(), st.integers(), st.floats(), st.text())
names = st.sampled_from(["a", "b", "c", "$d", "null"])


@given(st.lists(st.dictionaries(names, values), max_size=6))
def test_many_rows_are_the_same_text_as_one_by_one(rows: list[dict[str, object]]) -> None:
    codec = Codec()
    found = codec.encode_many(rows)
    assert found == [codec.encode(row) for row in rows]
    back = codec.decode_many(found)
    assert [repr(row) for row in back] == [repr(row) for row in codec.decode_many([codec.encode(r) for r in rows])]
