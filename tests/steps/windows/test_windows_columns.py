"""Windows that go by columns come to the very same as those that look at each row: outputs, and every byte of state."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ledger_reader import changes
from odd_numbers import BY_COLUMN, BY_ROW, VALUES, value, whole
from small_drivers import driver_of
from small_windows import row, rows, sent, windowed

import millpond as mp
from millpond.rows.rows import Rows
from millpond.rows.wire import pack_rows
from millpond.storage import open_storage
from millpond.testing import TestDriver

FEW = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])

WINDOWS = [mp.tumbling(10), mp.tumbling(7, offset=3), mp.hopping(10, 5), mp.hopping(10, 4)]


def traces(aggregations: dict[str, Any], window: Any, batches: list[list[Any]]) -> tuple[list[str], list[Any], str]:
    storage = open_storage("memory://")
    app = windowed(window, aggregations, grace=3, on_error="skip")
    found = []
    with TestDriver(app, storage=storage) as driver:
        for batch in batches:
            driver.send("rows", batch)
            found.append(changes(storage, "windows", "w"))
        driver.finish()
        return [repr(o) for o in driver.output("out")], found, repr(driver.output("late"))


@pytest.mark.parametrize("values", VALUES)
@FEW
@given(data=st.data())
def test_columns_and_rows_come_to_the_same(values, data):
    each = st.builds(row, VALUES[values], st.integers(-20, 40), st.sampled_from("abc"))
    batches = data.draw(st.lists(st.lists(each, min_size=1, max_size=8), min_size=1, max_size=4))
    window = data.draw(st.sampled_from(WINDOWS))
    assert traces(BY_COLUMN, window, batches) == traces(BY_ROW, window, batches)


PARTS = {
    "numbers": rows((1, 1), (2, 2, "b"), (4, 12)),
    "mixed": rows((8, 2), ("x", 3), (16, 11)),
    "more": rows((32, 1)),
}


@pytest.mark.parametrize("order", [("numbers", "mixed"), ("mixed", "numbers"), ("numbers", "more"), ("more", "mixed")])
@pytest.mark.parametrize("window", WINDOWS)
def test_parts_of_one_batch_may_go_by_columns_and_others_not(order, window):
    found = []
    for aggregations in (BY_COLUMN, BY_ROW):
        app = mp.App("parts", partitions=1)
        one, other = (app.stream(name, mp.sources.rows([]), timestamp="t") for name in ("one", "other"))
        keyed = one.union(other).key_by("k")
        windows = keyed.window("w", window, grace=0, on_error="skip")
        windows.aggregate(**aggregations).to("out", mp.sinks.memory())
        storage = open_storage("memory://")
        with TestDriver(app, storage=storage) as driver:
            for _ in range(2):
                driver.send({"one": PARTS[order[0]], "other": PARTS[order[1]]})
                found.append(changes(storage, "parts", "w"))
            driver.finish()
            found.append(driver.output("out"))
    assert found[:3] == found[3:]
    assert found[2]


def test_rows_of_very_many_windows_are_taken_some_at_a_time(monkeypatch):
    monkeypatch.setattr("millpond.steps.windows.columnar.windows.MAX_PLACES", 7)
    batches = [rows((1, 1), (2, 3), (4, 9, "b"), (8, 2)), rows((16, 30), (32, 5))]
    assert traces(BY_COLUMN, mp.hopping(10, 4), batches) == traces(BY_ROW, mp.hopping(10, 4), batches)


def test_a_row_without_the_field_fails_alone():
    batch = [row(1, 1), {"k": "a", "t": 2}, row(2, 3)]
    app = windowed(mp.tumbling(10), {"sum": mp.sum("v")}, grace=0, on_error="skip")
    with sent(app, batch, together=True, finish=True) as driver:
        assert [o["sum"] for o in driver.output("out")] == [3]


def test_whole_numbers_stay_exact_beyond_64_bits_over_many_batches():
    with sent(windowed(mp.tumbling(10), {"sum": mp.sum("v")}, grace=0), rows(*[(2**61, 1)] * 9), finish=True) as driver:
        assert [o["sum"] for o in driver.output("out")] == [9 * 2**61]


def test_a_sum_of_nothing_but_negative_zeros_is_one():
    with sent(
        windowed(mp.tumbling(10), {"sum": mp.sum("v")}, grace=0), rows((-0.0, 1), (-0.0, 2)), finish=True
    ) as driver:
        assert [repr(o["sum"]) for o in driver.output("out")] == ["-0.0"]


def test_numbers_that_change_their_type_from_batch_to_batch():
    pairs = rows((1, 1), (0.5, 1), (2, 1), (Decimal("0.25"), 1, "b"), (1, 1, "b"))
    with sent(windowed(mp.tumbling(10), {"sum": mp.sum("v")}, grace=0), pairs, finish=True) as driver:
        assert [repr(o["sum"]) for o in driver.output("out")] == ["3.5", "Decimal('1.25')"]


# --- windows that are kept, closed and written down as columns ---

KEYS = {
    "texts": ["a", "b", ""],
    "texts that look like something else": ['say "%d"', "{", '{"$tuple":[1]}', "\n", "ü\u2028", "null", "1"],
    "numbers": [0, -1, 2**53, 2**70],
    "truth": [True, False],
    "instants": [datetime(2030, 1, 1, tzinfo=UTC), datetime(1999, 12, 31, 23, tzinfo=UTC)],
    "tuples": [(1, "a"), ("a", 1), ("a",)],
    "all sorts": ["1", 1, True, (1,), date(2030, 1, 1), UUID(int=7), b"\x00", "x" * 300, "x" * 299 + "y"],
}
TAKERS = {
    "a sink": lambda panes: panes,
    "a function": lambda panes: panes.map(lambda pane: dict(reversed(pane.items()))),
    "another step": lambda panes: panes.key_by("k").stateful_map("after", lambda k, p, n: ((n, p), n + 1), initial=0),
}


def ran(aggregations, window, batches, taker, names=("k",), restarts=()):
    """Outputs and changes; `restarts` are other ways to make the window, from a batch on."""
    storage, found, made = open_storage("memory://"), [], []
    for way in (window, *restarts):
        app = mp.App("windows", partitions=2)
        rows = app.stream("rows", mp.sources.rows([]), timestamp="t")
        windows = rows.key_by(*names).window("w", way[0], grace=way[1])
        TAKERS[taker](windows.aggregate(**aggregations)).to("out", mp.sinks.memory())
        mine = batches[len(found) :] if way is (window, *restarts)[-1] else batches[len(found) : len(found) + 1]
        with TestDriver(app, storage=storage) as driver:
            for batch in mine:
                driver.send("rows", batch)
                found.append(changes(storage, "windows", "w"))
            made.append([repr(output) for output in driver.output("out")])
            if way is (window, *restarts)[-1]:
                driver.finish()
                made.append([repr(output) for output in driver.output("out")])
    return made, found


@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize("keys", KEYS)
def test_whatever_the_keys_are_and_whoever_takes_the_panes(keys, taker):
    many: Any = KEYS[keys]
    batches = [
        [row(n + b, 4 * b + 3 * n % 17, many[(n + b) % len(many)]) for n in range(3 * len(many))] for b in range(4)
    ]
    for window in WINDOWS:
        found = ran(BY_COLUMN, (window, 2), batches, taker)
        assert found == ran(BY_ROW, (window, 2), batches, taker)
        assert any(found[0])


def test_keys_of_two_fields():
    batches = [[{**row(n, 5 * b + n, "ab"[n % 2]), "j": n % 3} for n in range(9)] for b in range(3)]
    by_column, by_row = (ran(a, (mp.tumbling(4), 1), batches, "a sink", ("k", "j")) for a in (BY_COLUMN, BY_ROW))
    assert by_column == by_row
    assert any("'j': 0" in pane for pane in by_column[0][-1])


@pytest.mark.parametrize("name", ["50%", "%b", "n", "größe", 'a "b"'])
def test_whatever_the_results_are_called(name):
    batches = [rows((1, 1), (2, 12, "b")), rows((4, 40))]
    by_column = ran({name: mp.sum("v")}, (mp.tumbling(10), 0), batches, "a sink")
    assert by_column == ran({name: mp.sum(value)}, (mp.tumbling(10), 0), batches, "a sink")
    assert repr(name) in by_column[0][-1][0]


@FEW
@given(data=st.data())
def test_windows_that_are_open_while_the_program_changes(data):
    each = st.builds(row, whole, st.integers(-20, 60), st.sampled_from("abc"))
    batches = data.draw(st.lists(st.lists(each, min_size=1, max_size=8), min_size=3, max_size=4))
    ways = [
        (data.draw(st.sampled_from(WINDOWS)), data.draw(st.sampled_from([0, 3, 20]), label="grace")) for _ in range(3)
    ]
    by_column, by_row = (ran(a, ways[0], batches, "a sink", restarts=ways[1:]) for a in (BY_COLUMN, BY_ROW))
    # Which of two windows that close together is first, if another grace was promised to one of them, is open.
    assert [sorted(panes) for panes in by_column[0]] == [sorted(panes) for panes in by_row[0]]
    assert by_column[1] == by_row[1]


@pytest.fixture
def parquet(tmp_path):
    folder = tmp_path / "rows"
    folder.mkdir()
    for n in range(3):
        times = [10 * n + i for i in range(12)] + [0]
        table = pa.table({"k": ["ab"[i % 2] for i in times], "t": times, "v": times, "note": ["x"] * len(times)})
        pq.write_table(table, folder / f"{n}.parquet")
    return folder


@pytest.mark.parametrize(
    "way, travels",
    [
        ("a sum", ["v"]),
        ("a count", ["k"]),
        ("a sum of texts", ["t", "v", "note"]),
        ("a function", ["t", "v", "note"]),
        ("late rows", ["t", "v", "note"]),
        ("another step beside it", ["t", "v", "note"]),
    ],
)
def test_only_columns_that_are_looked_at_travel_to_the_windows(parquet, tmp_path, monkeypatch, way, travels):
    app = mp.App("trimmed", partitions=2)
    keyed = app.stream("rows", mp.sources.files(parquet), timestamp="t").key_by("k")
    windows = keyed.window("w", mp.tumbling(10), grace=0, on_error="skip")
    total = {
        "a count": mp.count(),
        "a function": mp.sum(value),
        "a sum of texts": mp.sum("note"),
    }.get(way, mp.sum("v"))
    out: list[Any] = []
    windows.aggregate(total=total).to("out", mp.sinks.function(lambda rows, delivery: out.extend(rows)))
    late: list[Any] = []
    if way == "late rows":
        windows.late.to("late", mp.sinks.function(lambda rows, delivery: late.extend(rows)))
    if way == "another step beside it":
        keyed.stateful_map("seen", lambda k, r, n: (None, n + 1), initial=0)
    seen: list[list[str]] = []

    def packed(rows: Rows, codec: Any, left_out: Any) -> bytes:
        seen.append(rows.data.column_names)
        return pack_rows(rows, codec, left_out)

    monkeypatch.setattr("millpond.rows.wire.pack_rows", packed)
    driver = driver_of(app, open_storage("memory://"), tmp_path / "home")
    while driver.batch(mp.lowlevel.Limit(13, 1 << 40)):
        pass
    assert seen and all(names == travels for names in seen)
    assert driver.last.late == {"w": 1}
    if way == "late rows":
        assert [letter["row"]["note"] for letter in late] == ["x"] * 2
    if way not in ("a count", "a sum of texts"):
        first = [(pane["k"], pane["total"]) for pane in out if pane["window_start"] == 0]
        assert sorted(first) == [("a", 20), ("b", 25)]
