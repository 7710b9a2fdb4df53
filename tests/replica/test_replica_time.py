"""The replica's index by time: it finds what is due, and nothing else, whatever was written before."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millpond.log.segment import Change
from millpond.replica.lmdb_store import RecordChanges, Replica

KEYS = [b'"a"', b'"b"', b'"' + b"k" * 300 + b'"']
CELLS = [b"", b"v:x", b"v:" + b"y" * 300]
times = st.none() | st.integers(-(2**62), 2**62) | st.integers(-3, 3)
writes = st.builds(Change, st.sampled_from(KEYS), st.sampled_from(CELLS), st.none() | st.just(b"1"), times, times)


def one_each(changes: list[Change]) -> list[Change]:
    return sorted({(change.key, change.cell): change for change in changes}.values(), key=lambda c: c[:2])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(writes, max_size=6).map(one_each), max_size=5), st.integers(-4, 4))
def test_what_is_due_is_found_in_order_and_nothing_else(
    tmp_path_factory: object, history: list[list[Change]], upto: int
) -> None:
    folder: Path = tmp_path_factory.mktemp("replica")  # type: ignore[attr-defined]
    replica = Replica(folder)
    live: dict[tuple[bytes, bytes], Change] = {}
    for number, changes in enumerate(history):
        replica.apply(RecordChanges(number, {"step": changes}))
        for change in changes:
            live.pop((change.key, change.cell), None)
            if change.value is not None:
                live[change.key, change.cell] = change
    with replica.view() as view:
        for wall in (False, True):
            expected = sorted(
                (time, change.key, change.cell)
                for change in live.values()
                if (time := change.wall if wall else change.due) is not None and time <= upto
            )
            found = [
                (entry.wall if wall else entry.due, entry.key, entry.cell)
                for entry in view.due("step", upto, wall=wall)
            ]
            assert sorted(found) == expected
            assert [time for time, *_ in found] == [time for time, *_ in expected]
        entries = {(e.key, e.cell): (e.value, e.due, e.wall) for e in view.entries("step")}
        assert entries == {at: change[2:] for at, change in live.items()}
    replica.close()
