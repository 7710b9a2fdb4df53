"""`apply_batch`: a function over the rows of a partition's batch and the states of their keys, as tables."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ledger_reader import changes, commits
from outside import Calls
from small_drivers import driver_of, run_to_end
from small_lives import Life
from small_programs import PARTITIONS, nth, piped

import millpond as mp
from millpond.errors import Incompatible, InvalidUse, StepFailed
from millpond.storage import MemoryStorage, open_storage
from millpond.testing import Crashed, TestDriver

ROWS = [{"k": "ab"[n % 2], "n": n} for n in range(6)]

# --- the same running total, in each kind of frame: a total per key after each row ---


def add_up(rows: pa.Table, states: pa.Table) -> tuple[pa.Table, pa.Table]:
    place = pc.index_in(rows["k"], states["k"]).to_numpy()
    before = pc.fill_null(states["total"], 0).to_numpy()
    order = np.argsort(place, kind="stable")
    sums = np.cumsum(rows["n"].to_numpy()[order])
    place = place[order]
    starts = np.flatnonzero(np.diff(place, prepend=-1))
    lengths = np.diff(starts, append=len(place))
    sums += np.repeat(before[place[starts]] - sums[starts] + rows["n"].to_numpy()[order[starts]], lengths)
    totals = np.empty_like(sums)
    totals[order] = sums
    after = np.empty(len(states), np.int64)
    after[place] = sums  # the last one of each key stays
    return rows.append_column("total", pa.array(totals)), pa.table({"k": states["k"], "total": after})


def add_up_in_polars(rows: pl.DataFrame, states: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    both = rows.join(states, on="k", how="left", maintain_order="left")
    out = both.with_columns(total=pl.col("total").fill_null(0) + pl.col("n").cum_sum().over("k"))
    return out, out.group_by("k").agg(pl.col("total").last())


def add_up_in_pandas(rows: pd.DataFrame, states: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    before = rows["k"].map(states.set_index("k")["total"].fillna(0)).astype("int64[pyarrow]")
    out = rows.assign(total=before + rows.groupby("k")["n"].cumsum())
    return out, out.groupby("k", as_index=False)["total"].last()


EVERY_KIND = pytest.mark.parametrize("f", [add_up, add_up_in_polars, add_up_in_pandas])
TOTALS: list[dict[str, Any]] = [{"k": "ab"[n % 2], "n": n, "total": sum(range(n % 2, n + 1, 2))} for n in range(6)]


def totals_app(f: Any = add_up, partitions: int | None = None, **how: Any) -> mp.App:
    app = mp.App("totals", partitions=partitions)
    on_error = how.pop("stream_on_error", "stop")
    keyed = app.stream("rows", mp.sources.rows([]), on_error=on_error).key_by("k")
    keyed.apply_batch("total", f, **{"state": {"total": int}, **how}).to("out", mp.sinks.memory())
    app.dead_letters.to("dead", mp.sinks.memory())
    return app


@EVERY_KIND
@PARTITIONS
def test_each_kind_of_frame_does_the_same(f, partitions):
    with TestDriver(totals_app(f, partitions)) as driver:
        driver.send("rows", ROWS[:3])
        driver.send("rows", [])
        driver.restart(lose_replicas=True)
        driver.send("rows", ROWS[3:])
        assert driver.output("out") == TOTALS
        assert dict(driver.state("total").items()) == {"a": {"total": 6}, "b": {"total": 9}}
        assert [moment.value for moment in driver.state("total").history("b")] == [{"total": 1}, {"total": 9}]


def seen_by(calls: Calls, result: Any = (None, None)) -> Callable[[pa.Table, pa.Table], Any]:
    def f(rows: pa.Table, states: pa.Table) -> Any:
        calls.append((rows.to_pylist(), states.to_pylist()))
        return result

    return f


def test_the_function_is_called_once_for_a_batch_of_a_partition_with_all_its_rows_in_order(monkeypatch, tmp_path):
    monkeypatch.setattr("millpond.rows.wire.MAX_ROWS_JOINED", 4)
    for name, rows in (("a", ROWS[:3]), ("b", ROWS[3:]), ("c", [{"k": "a", "more": 1.5}])):
        (tmp_path / "in").mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in" / f"{name}.parquet")
    app, calls = mp.App("calls", partitions=2), Calls()
    keyed = app.stream("rows", mp.sources.files(tmp_path / "in")).key_by("k")
    keyed.apply_batch("seen", seen_by(calls), state={"n": int, "t": str}).to("out", out := mp.sinks.memory())
    run_to_end(driver_of(app, MemoryStorage(), tmp_path / "replicas"))
    found = [row for rows, _ in calls for row in rows]
    assert sorted(row["k"] for row in found) == ["a"] * 4 + ["b"] * 3
    assert [row.get("n") for row in found if row["k"] == "a"] == [0, 2, 4, None]
    assert [state for _, states in calls for state in states] in (
        [{"k": "a", "n": None, "t": None}, {"k": "b", "n": None, "t": None}],
        [{"k": "b", "n": None, "t": None}, {"k": "a", "n": None, "t": None}],
    )
    assert len(calls) == len({tuple(sorted({row["k"] for row in rows})) for rows, _ in calls}), "once per partition"
    assert out.rows == []


def test_a_partition_without_rows_calls_nothing():
    calls = Calls()
    with TestDriver(totals_app(seen_by(calls), partitions=7)) as driver:
        driver.send("rows", [])
        assert calls == []
        driver.send("rows", ROWS[:1])
        assert len(calls) == 1


# --- the key as columns ---

MOMENT = dt.datetime(2030, 1, 2, 3, 4, 5, 678901, dt.UTC)
ZONED = MOMENT.replace(tzinfo=ZoneInfo("UTC"))  # as Arrow gives it back
KEYS: dict[str, list[Any]] = {
    "text": ["a", "naïve ☂", ""],
    "numbers": [1, -(2**63), 2**63 - 1],
    "flags": [True, False, True],
    "bytes": [b"\x00", b"", b"\xff"],
    "dates": [dt.date(1, 1, 1), dt.date(2030, 1, 1), dt.date(9999, 12, 31)],
    "instants": [MOMENT, MOMENT + dt.timedelta(microseconds=1), MOMENT],
    "naive times": [dt.datetime(2030, 1, 1), dt.datetime(2030, 1, 2), dt.datetime(1, 1, 1)],
}


def count(rows: pa.Table, states: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Number the rows of each key, whatever the key is, and return the states in another order."""
    names = [name for name in states.column_names if name != "n"]
    known = {tuple(state[name] for name in names): state["n"] or 0 for state in states.to_pylist()}
    numbers = []
    for row in rows.to_pylist():
        key = tuple(row[name] for name in names)
        known[key] += 1
        numbers.append(known[key])
    parts = {name: [key[i] for key in reversed(known)] for i, name in enumerate(names)}
    types = {name: states.schema.field(name).type for name in names}
    columns: dict[str, Any] = {name: pa.array(part, types[name]) for name, part in parts.items()}
    return rows.append_column("nth", pa.array(numbers)), pa.table({**columns, "n": [*reversed(known.values())]})


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("by", ["field", "fields", "function", "named function"])
def test_keys_of_every_kind_are_columns_with_the_names_of_key_by(kind, by, partitions):
    def keyed(stream: Any) -> Any:
        if by == "field":
            return stream.key_by("v")
        if by == "fields":
            return stream.key_by("v", "w")
        return stream.key_by(lambda row: row["v"]) if by == "function" else stream.key_by(own=lambda row: row["v"])

    rows = [{"v": value, "w": i % 2, "i": i} for i, value in enumerate([*KEYS[kind], *KEYS[kind]])]
    made = piped(lambda s: keyed(s).apply_batch("count", count, state={"n": int}), rows, partitions=partitions)
    key_name = {"field": "v", "function": "key", "named function": "own"}.get(by)
    numbers: dict[Any, int] = {}
    expected = []
    for row in rows:
        key = (row["v"], row["w"]) if by == "fields" else row["v"]
        numbers[key] = numbers.get(key, 0) + 1
        expected.append({**row, **({} if key_name is None else {key_name: row["v"]}), "nth": numbers[key]})
    assert made == expected
    assert [{k: type(v) for k, v in row.items()} for row in made] == [
        {k: type(v) for k, v in row.items()} for row in expected
    ]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, 2, 1], pa.int8()),
        pa.array(["a", "b", "a"], pa.large_string()),
        pa.array(["a", "b", "a"]).dictionary_encode(),
        pa.array([0, 1, 0], pa.timestamp("ms", "Europe/Berlin")),
        pa.array([b"a", b"b", b"a"], pa.large_binary()),
    ],
    ids=lambda column: str(column.type)[:20],
)
def test_a_column_of_another_type_is_the_key_in_both_tables(column, tmp_path):
    app, calls = mp.App("types", partitions=1), Calls()

    def f(rows: pa.Table, states: pa.Table) -> tuple[pa.Table, pa.Table]:
        calls.append((rows.schema.field("v").type, states.schema.field("v").type))
        return count(rows, states)

    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"v": column}), tmp_path / "in" / "a.parquet")
    keyed = app.stream("rows", mp.sources.files(tmp_path / "in")).key_by("v")
    keyed.apply_batch("count", f, state={"n": int}).to("out", out := mp.sinks.memory())
    run_to_end(driver_of(app, MemoryStorage(), tmp_path / "replicas"))
    assert [row["nth"] for row in out.rows] == [1, 1, 2]
    assert calls[0][0] == calls[0][1]


def test_a_field_that_is_no_longer_there_comes_back_as_the_key():
    def build(stream: Any) -> Any:
        return stream.key_by("k").map(lambda row: {"n": row["n"]}).apply_batch("count", count, state={"n": int})

    made = piped(lambda s: build(s), [{"k": "a", "n": 1}, {"k": "a", "n": 2}])
    assert made == [{"n": 1, "k": "a", "nth": 1}, {"n": 2, "k": "a", "nth": 2}]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda row: {**row, "k": row["k"].upper()}, "got other values"),
        (lambda row: {**row, "k": None}, "got a column of type null|got other values"),
        (lambda row: {**row, "k": 1}, "got a column of type int64"),
    ],
)
def test_a_field_that_has_the_name_of_the_key_and_is_not_the_key_is_refused(change, text):
    with pytest.raises(StepFailed, match=f"expected the field 'k' of the rows to hold the key, .*({text})"):
        piped(lambda s: s.key_by("k").map(change).apply_batch("c", count, state={"n": int}), ROWS)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ([2**70], "field 'v' cannot be a key column: "),
        ([1, "1"], "field 'v': expected one type in a key column, got int and str"),
        ([True, 1], "field 'v': expected one type in a key column, got bool and int"),
        ([UUID(int=1)], "field 'v' cannot be a key column: a value of type UUID would come back as another type"),
        ([(1, 2)], "field 'v' cannot be a key column: a value of type tuple would come back as another type"),
    ],
)
def test_a_key_that_cannot_be_a_column_is_refused(keys, text):
    rows = [{"i": i} for i in range(len(keys))]
    with pytest.raises(StepFailed, match=text):
        piped(lambda s: s.key_by(v=lambda row: keys[row["i"]]).apply_batch("c", count, state={"n": int}), rows,
              partitions=1)  # fmt: skip


# --- states ---


def returning(states: Any, outputs: Any = None) -> Any:
    """A function that returns states, given the states it got."""

    def f(rows: pa.Table, given: pa.Table) -> Any:
        return outputs, states(given)

    return f


def one_batch(f: Any, state: Any, rows: list[Any] | None = None, **how: Any) -> dict[Any, Any]:
    app = mp.App("states", partitions=1)
    app.stream("rows", mp.sources.rows([])).key_by("k").apply_batch("s", f, state=state, **how)
    with TestDriver(app) as driver:
        driver.send("rows", ROWS if rows is None else rows)
        found = dict(driver.state("s").items())
        driver.restart(lose_replicas=True)
        assert repr(dict(driver.state("s").items())) == repr(found)
        return found


def test_keys_that_are_left_out_keep_their_state_and_nulls_drop_it():
    app = mp.App("states", partitions=1)

    def f(rows: pa.Table, states: pa.Table) -> Any:
        new = rows.filter(pc.not_equal(rows["do"], "leave"))
        drop = pc.equal(new["do"], "drop")
        return None, pa.table({"k": new["k"], "n": pc.if_else(drop, None, new["n"]), "t": pc.if_else(drop, None, "x")})

    app.stream("rows", mp.sources.rows([])).key_by("k").apply_batch("s", f, state={"n": int, "t": str})
    storage = open_storage("memory://")
    with TestDriver(app, storage=storage) as driver:
        driver.send("rows", [{"k": k, "n": 1, "do": "set"} for k in "abcd"])
        then = [("a", 2, "set"), ("b", 2, "leave"), ("c", 2, "drop"), ("d", 1, "set"), ("e", 2, "drop")]
        driver.send("rows", [{"k": k, "n": n, "do": do} for k, n, do in then])
        assert dict(driver.state("s").items()) == {k: {"n": n, "t": "x"} for k, n in (("a", 2), ("b", 1), ("d", 1))}
        assert [change[0] for change in changes(storage, "states", "s")] == ['"a"', '"c"'], "only what has changed"


def test_a_null_in_some_columns_is_a_part_of_the_state():
    f = returning(lambda states: pa.table({"k": states["k"], "n": [None, 2], "t": ["x", None]}))
    assert one_batch(f, {"n": int, "t": str}) == {"a": {"n": None, "t": "x"}, "b": {"n": 2, "t": None}}


@pytest.mark.parametrize("nothing", [None, pa.table({"k": pa.array([], pa.string()), "n": pa.array([], pa.int64())})])
def test_no_states_leave_all_as_they_are(nothing):
    assert one_batch(returning(lambda states: nothing), {"n": int}) == {}


VALUES: dict[str, tuple[Any, list[Any]]] = {
    "bool": (bool, [True, False]),
    "int": (int, [2**63 - 1, -(2**63)]),
    "float": (float, [0.1, float("nan")]),
    "infinite": (float, [float("inf"), -0.0]),
    "str": (str, ["naïve ☂\n", ""]),
    "bytes": (bytes, [b"\x00\xff", b""]),
    "date": (dt.date, [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    "datetime": (dt.datetime, [ZONED, None]),
    "time": (dt.time, [dt.time(23, 59, 59, 999999), dt.time(0)]),
    "timedelta": (dt.timedelta, [dt.timedelta(days=-1, microseconds=1), dt.timedelta(0)]),
    "naive": (pa.timestamp("us"), [dt.datetime(2030, 1, 1), dt.datetime(1, 1, 1)]),
    "list": (pa.list_(pa.float64()), [[1.0, float("nan"), None], []]),
    "struct": (
        pa.struct([("$x", pa.int64()), ("y", pa.list_(pa.string()))]),
        [{"$x": 1, "y": ["z"]}, {"$x": None, "y": None}],
    ),
    "small": (pa.int8(), [-128, 127]),
}  # fmt: skip


def as_they_are(rows: pa.Table, states: pa.Table) -> Any:
    return None, states


def as_they_are_in_polars(rows: pl.DataFrame, states: pl.DataFrame) -> Any:
    return None, states


def as_they_are_in_pandas(rows: pd.DataFrame, states: pd.DataFrame) -> Any:
    return None, states


@pytest.mark.parametrize("again", [as_they_are, as_they_are_in_polars, as_they_are_in_pandas])
@pytest.mark.parametrize("kind", VALUES)
def test_state_of_every_type_comes_back_as_it_was(kind, again):
    declared, values = VALUES[kind]
    kept = {"k": ["a", "b"]}

    def first(rows: pa.Table, states: pa.Table) -> Any:
        return None, pa.table({**kept, "v": pa.array(values, states.schema.field("v").type)})

    def app(f: Any) -> mp.App:
        made = mp.App("types", partitions=1)
        made.stream("rows", mp.sources.rows([])).key_by("k").apply_batch("s", f, state={"v": declared})
        return made

    storage = open_storage("memory://")
    with TestDriver(app(first), storage=storage) as driver:
        driver.send("rows", ROWS)
        expected = {key: {"v": value} for key, value in zip("ab", values, strict=True) if value is not None}
        assert repr(dict(driver.state("s").items())) == repr(expected)
        driver.restart(app(again))
        driver.send("rows", ROWS)
        assert repr(dict(driver.state("s").items())) == repr(expected)
        assert len(commits(storage, "types")[-1].get("segments", {})) == 0, "the same state is not written again"


# --- outputs ---


@pytest.mark.parametrize("nothing", [None, pa.table({}), pa.table({"n": pa.array([], pa.int64())})])
def test_a_function_may_return_no_outputs(nothing):
    assert piped(lambda s: s.key_by("k").apply_batch("s", lambda r, s: (nothing, s), state={"n": int}), ROWS) == []


@PARTITIONS
def test_outputs_keep_keys_and_order_for_the_next_step(partitions):
    def build(stream: Any) -> Any:
        return stream.key_by("k").apply_batch("s", add_up, state={"total": int}).stateful_map("nth", nth, initial=0)

    expected = [{"row": row, "nth": i // 2 + 1} for i, row in enumerate(TOTALS)]
    assert piped(build, ROWS, partitions=partitions) == expected


def test_the_column_of_the_key_may_change_in_the_outputs(tmp_path):
    def shout(rows: pa.Table, states: pa.Table) -> Any:
        return rows.set_column(0, "k", pc.utf8_upper(rows["k"])), None

    (tmp_path / "in").mkdir()
    pq.write_table(pa.Table.from_pylist(ROWS[:3]), tmp_path / "in" / "a.parquet")
    app = mp.App("shout", partitions=1)
    keyed = app.stream("rows", mp.sources.files(tmp_path / "in")).key_by("k")
    shouted = keyed.apply_batch("s", shout, state={"n": int})
    shouted.stateful_map("nth", nth, initial=0).to("out", out := mp.sinks.memory())
    run_to_end(driver_of(app, MemoryStorage(), tmp_path / "replicas"))
    assert [(row["row"]["k"], row["nth"]) for row in out.rows] == [("A", 1), ("B", 1), ("A", 2)]


def test_outputs_keep_their_event_times():
    app = mp.App("times")
    keyed = app.stream("rows", mp.sources.rows([]), timestamp="n").key_by("k")
    windows = keyed.apply_batch("s", add_up, state={"total": int}).window("w", mp.tumbling(2), grace=0)
    windows.aggregate(total=mp.sum("total")).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", ROWS)
        driver.send("rows", [{"k": "a", "n": 100}])
        found = {(row["k"], row["window_start"]): row["total"] for row in driver.output("out")}
        assert found == {(row["k"], row["n"] // 2 * 2): row["total"] for row in TOTALS}


def test_rows_with_and_without_a_time_come_together():
    app = mp.App("union", partitions=1)
    timed = app.stream("timed", mp.sources.rows([]), timestamp="n")
    calls = Calls()

    def f(rows: pa.Table, states: pa.Table) -> Any:
        calls.append(len(rows))
        return rows, None

    both = timed.union(app.stream("others", mp.sources.rows([]))).key_by("k").apply_batch("s", f, state={"n": int})
    both.apply("time", lambda row, state: (row["n"], state.time)).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send({"timed": ROWS[:2], "others": ROWS[2:4]})
        assert calls == [4]
        assert sorted(driver.output("out")) == [(0, 0), (1, 1), (2, None), (3, None)]


def test_rows_stay_columns_from_the_file_to_the_next_step(tmp_path, monkeypatch):
    def refuse(*args: Any) -> Any:
        raise AssertionError("rows have become Python objects")

    monkeypatch.setattr("millpond.rows.rows.Rows.objects", refuse)
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"k": ["a", "b", "a"], "n": [1, 2, 3], "at": [1, 2, 30]}), tmp_path / "in" / "a.parquet")
    app = mp.App("columns", partitions=1)
    keyed = app.stream("rows", mp.sources.files(tmp_path / "in"), timestamp="at").key_by("k")
    windows = keyed.apply_batch("s", add_up, state={"total": int}).window("w", mp.tumbling(10), grace=0)
    windows.aggregate(n=mp.sum("total")).to("out", out := mp.sinks.memory())
    run_to_end(driver_of(app, MemoryStorage(), tmp_path / "replicas"))
    assert [(row["k"], row["n"]) for row in out.rows] == [("a", 1), ("b", 2)]


# --- what a function may not return ---


def states(total: Any, k: Any = ("a", "b")) -> Any:
    """A function that returns these states."""
    return lambda r, s: (None, pa.table({"k": pa.array(k), "total": pa.array(total)}))


NO_PAIR = r"expected \(outputs, states\), a tuple of two, and the function returned"
COLUMNS = "expected the function to return states with the columns 'k', 'total', got"
KEYS_GIVEN = "expected the returned states to have keys of the states that the function was given"
AS_INT = "expected the column 'total' of the returned states as int:"
UNION = pa.UnionArray.from_sparse(pa.array([0] * 6, pa.int8()), [pa.array([1] * 6)])
BAD: dict[str, tuple[Any, str]] = {
    "nothing": (lambda r, s: None, f"{NO_PAIR} None"),
    "one": (lambda r, s: s, rf"{NO_PAIR} pyarrow\.Table"),
    "a list": (lambda r, s: [r, s], rf"{NO_PAIR} \["),
    "outputs of rows": (lambda r, s: (r.to_pylist(), s), r"return a pyarrow\.Table, got builtins\.list"),
    "states of another kind": (lambda r, s: (r, pl.from_arrow(s)), r"return a pyarrow\.Table, got polars\.\S*Frame"),
    "too few outputs": (lambda r, s: (r.slice(1), s), "an output for each of the 6 rows .*got 5"),
    "a time that is none": (
        lambda r, s: (r.append_column("o", [pa.array([1] * 6, pa.timestamp("ns"))]), s),
        "the function returned an output with column 'o': expected a time",
    ),
    "a union": (
        lambda r, s: (pa.table({"o": UNION}), s),
        "expected the function to return columns that can become Python objects, got column 'o'",
    ),
    "one name twice": (
        lambda r, s: (pa.Table.from_arrays([r["n"], r["n"]], ["n", "n"]), s),
        "expected the function to return columns with different names, got 'n' more than once",
    ),
    "no column of the state": (lambda r, s: (None, s.drop(["total"])), f"{COLUMNS} 'k'"),
    "no column of the key": (lambda r, s: (None, s.drop(["k"])), f"{COLUMNS} 'total'"),
    "a column too many": (lambda r, s: (None, s.append_column("x", s["k"])), f"{COLUMNS} 'k', 'total', 'x'"),
    "a null key": (states([1, 2], ["a", None]), "expected keys in the column 'k' of the returned states, got null"),
    "an unknown key": (states([1, 2], ["a", "z"]), f"{KEYS_GIVEN}, got the key 'z'"),
    "a key twice": (states([1, 2], ["a", "a"]), "one row for each key, got several for the key 'a'"),
    "keys of another type": (
        states([1, 2], [1, 2]),
        "expected the key column 'k' of the returned states as it was given: int64 cannot become string",
    ),
    "text as numbers": (states(["1", "2"]), f"{AS_INT} string cannot become int64"),
    "halves as numbers": (states([1.0, 2.5]), f"{AS_INT} double cannot become int64: .*truncated"),
    "NaN as a number": (states([1.0, float("nan")]), f"{AS_INT} double cannot become int64"),
    "flags as numbers": (states([True, False]), f"{AS_INT} bool cannot become int64"),
    "too large": (states(pa.array([1, 2**64 - 1], pa.uint64())), f"{AS_INT} uint64 cannot become int64"),
}


@pytest.mark.parametrize("policy", ["stop", "skip"])
@pytest.mark.parametrize(("f", "text"), BAD.values(), ids=BAD)
def test_a_bad_return_fails_like_an_error_of_the_function(f, text, policy):
    with TestDriver(totals_app(add_up, 1)) as driver:
        driver.send("rows", ROWS)
        driver.restart(totals_app(f, 1, on_error=policy))
        if policy == "stop":
            with pytest.raises(
                StepFailed, match=f"'total', batch 4: .*{text}(?s:.*)[.] The call had 6 rows of partition 0[.]"
            ):
                driver.send("rows", ROWS)
        else:
            driver.send("rows", ROWS)
        assert driver.output("out") == TOTALS
        assert dict(driver.state("total").items()) == {"a": {"total": 6}, "b": {"total": 9}}


def test_a_tuple_key_that_is_unknown_is_shown_whole():
    def f(rows: pa.Table, states: pa.Table) -> Any:
        return None, pa.table({"k": ["z"], "n": [1], "x": [1]})

    with pytest.raises(StepFailed, match=r"got the key \('z', 1\)"):
        piped(lambda s: s.key_by("k", "n").apply_batch("s", f, state={"x": int}), ROWS)


def test_polars_and_pandas_return_their_own_types_and_they_fit():
    def in_polars(rows: pl.DataFrame, states: pl.DataFrame) -> Any:
        return None, states.with_columns(n=pl.lit(1.0), t=pl.lit("x"), at=pl.lit(MOMENT))

    def in_pandas(rows: pd.DataFrame, states: pd.DataFrame) -> Any:
        plain = pd.DataFrame({"k": ["b", "a"], "n": [1.0, 1.0], "t": ["x", "x"]})
        return None, plain.assign(at=pd.Timestamp(MOMENT))

    for f in (in_polars, in_pandas):
        found = one_batch(f, {"n": int, "t": str, "at": dt.datetime})
        assert found == {key: {"n": 1, "t": "x", "at": MOMENT} for key in "ab"}


# --- errors ---


def fails_on_three(rows: pa.Table, states: pa.Table) -> Any:
    if 3 in rows["n"].to_pylist():
        raise ValueError("it is three")
    return add_up(rows, states)


GOOD, POOR = [{"k": "a", "n": 1}, {"k": "b", "n": 2}], [{"k": "a", "n": 2}, {"k": "b", "n": 3}]


def test_an_error_stops_with_the_number_of_rows_and_their_partition_and_blames_no_row():
    with TestDriver(totals_app(fails_on_three, 1)) as driver:
        driver.send("rows", GOOD)
        with pytest.raises(
            StepFailed, match=r"ValueError: it is three[.] The call had 2 rows of partition 0[.]"
        ) as caught:
            driver.send("rows", POOR)
    assert (caught.value.step, caught.value.row, caught.value.key, caught.value.batch) == ("total", None, None, 2)
    assert "fails_on_three" in caught.value.traceback


@pytest.mark.parametrize("partitions", [1, 4])
def test_skip_leaves_out_all_rows_of_the_partition_and_changes_no_state(partitions):
    storage = open_storage("memory://")
    with TestDriver(totals_app(fails_on_three, partitions, stream_on_error="skip"), storage=storage) as driver:
        driver.send("rows", GOOD)
        driver.send("rows", POOR)
        together = partitions == 1
        assert dict(driver.state("total").items()) == {"a": {"total": 1 if together else 3}, "b": {"total": 2}}
        assert commits(storage, "totals")[-1]["skipped"] == {"total": 2 if together else 1}
        assert len(driver.output("out")) == (2 if together else 3)


def test_dead_letters_hold_each_row_with_its_key_and_say_how_many_there_were():
    with TestDriver(totals_app(fails_on_three, 1, on_error="dead-letter")) as driver:
        driver.send("rows", GOOD)
        driver.send("rows", POOR)
        letters = driver.output("dead")
        assert [(letter["row"], letter["key"], letter["step"]) for letter in letters] == [
            (row, row["k"], "total") for row in POOR
        ]
        assert {letter["error"] for letter in letters} == {
            "ValueError: it is three. The call had 2 rows of partition 0."
        }
        driver.send("rows", GOOD)
        assert dict(driver.state("total").items()) == {"a": {"total": 2}, "b": {"total": 4}}


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_retry_calls_again_with_the_same_rows_and_states(failures):
    calls = Calls()

    def flaky(rows: pa.Table, states: pa.Table) -> Any:
        calls.append((rows.to_pylist(), states.to_pylist()))
        if len(calls) <= failures:
            raise ValueError("not yet")
        return add_up(rows, states)

    with TestDriver(totals_app(flaky, 1, on_error=mp.retry(2, "1ms", then="skip"))) as driver:
        driver.send("rows", ROWS)
        assert driver.output("out") == (TOTALS if failures <= 2 else [])
    assert calls == [calls[0]] * min(3, failures + 1)


def test_a_panic_and_an_exit_are_errors_of_the_call():
    class Panic(BaseException):
        pass

    def panic(rows: pa.Table, states: pa.Table) -> Any:
        raise Panic("oh")

    def leave(rows: pa.Table, states: pa.Table) -> Any:
        raise SystemExit("enough")

    def build(stream: Any, f: Any) -> Any:
        return stream.key_by("k").apply_batch("s", f, state={"n": int}, on_error="skip")

    for f in (panic, leave):
        assert piped(partial(build, f=f), ROWS) == []


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([1, 2], r"apply_batch needs rows with fields .*or use stateful_map\(\) instead of apply_batch\(\)"),
        ([{"a": 1}, {"a": "x"}], "field 'a': expected one type in a column, got int and str"),
        ([{"a": 2**70}], "field 'a' cannot be a column: .*Convert it with map"),
        ([{"a": (1, 2)}], "a value of type tuple would come back as another type"),
        ([{"a": bytearray(b"x")}], "a value of type bytearray would come back as another type"),
        ([{"a": {"x": 1}}, {"a": {"y": 1}}], "field 'a' cannot be a column: some of its dicts lack 'x'"),
    ],
)
def test_rows_that_cannot_be_columns_are_refused(rows, text):
    with pytest.raises(StepFailed, match=text):
        piped(lambda s: s.key_by(k=lambda row: 0).apply_batch("s", count, state={"n": int}), rows)


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"f": 7}, "apply_batch\\('s'\\): expected a function, got 7"),
        ({"state": {}}, r"apply_batch\('s'\), state: expected columns and their types, as in \{'n': int\}, got \{\}"),
        ({"state": ["n"]}, "state: expected columns and their types"),
        ({"state": {1: int}}, "state: expected a text as the name of a column, got 1"),
        ({"state": {"k": int}}, "state: expected columns with other names than the key has, got 'k'"),
        ({"state": {"n": dict}}, "state: expected for 'n' one of the types bool, int, float, .* got <class 'dict'>"),
        ({"state": {"n": 0}}, "expected for 'n' one of the types .* got 0"),
        ({"state": {"n": pa.timestamp("ns")}}, r"DataType whose values can become Python objects and back, got"),
        ({"state": {"n": pa.dictionary(pa.int8(), pa.string())}}, "expected for 'n' one of the types"),
        ({"on_error": "ignore"}, "apply_batch\\('s'\\): expected .*got 'ignore'"),
        ({"ttl": "soon"}, "apply_batch\\('s', ttl\\)"),
    ],
)  # fmt: skip
def test_arguments_that_cannot_be_used_are_refused_when_the_program_is_built(how, text):
    how = {"f": count, "state": {"n": int}, **how}
    with pytest.raises(InvalidUse, match=text):
        piped(lambda s: s.key_by("k").apply_batch("s", how.pop("f"), **how), [])


def test_states_that_polars_cannot_hold_are_refused_with_the_column():
    kind = pa.timestamp("us", "+05:30")
    with pytest.raises(StepFailed, match=r"cannot become a polars.DataFrame: it cannot hold column 'v'") as caught:
        piped(lambda s: s.key_by("k").apply_batch("s", as_they_are_in_polars, state={"v": kind}), ROWS)
    assert not caught.value.is_raised


def test_both_parameters_take_the_same_kind_of_frame():
    def f(rows: pl.DataFrame, states: pa.Table) -> Any: ...

    with pytest.raises(InvalidUse, match=r"takes frames of one kind, got polars\.DataFrame and pyarrow\.Table"):
        piped(lambda s: s.key_by("k").apply_batch("s", f, state={"n": int}), [])


# --- what happens to an app ---

STEPS = ["plan", "compute", "commit", "deliver", "acknowledge", "tidy"]


@pytest.mark.parametrize("lose_replicas", [False, True])
@pytest.mark.parametrize("when", ["before", "during", "after"])
@pytest.mark.parametrize("at", STEPS)
def test_after_a_crash_anywhere_each_row_counts_once(at, when, lose_replicas):
    with TestDriver(totals_app(partitions=2)) as driver:
        driver.send("rows", ROWS[:2])
        driver.crash(at=at, when=when)
        with pytest.raises(Crashed):
            driver.send("rows", ROWS[2:5])
        driver.restart(lose_replicas=lose_replicas)
        driver.send("rows", ROWS[5:])
        assert driver.output("out") == TOTALS
        assert dict(driver.state("total").items()) == {"a": {"total": 6}, "b": {"total": 9}}


def test_state_lives_through_rescale_rollback_compaction_and_a_savepoint():
    def build(streams: Any) -> Any:
        return streams["rows"].apply_batch("total", add_up, state={"total": int})

    rows = [{**row, "t": i} for i, row in enumerate(ROWS)]
    with Life(build, partitions=2) as life:
        life.send(*rows[:2])
        life.rescale(5)
        life.send(*rows[2:4])
        life.compact()
        life.rollback()
        life.restart(lose_replicas=True)
        life.move()
        life.send(*rows[4:])
        life.clear_and_restore()
        found = sorted(life.outputs, key=lambda row: row["n"])
        assert found == [{"k": row["k"], "n": row["n"], "t": i, "total": row["total"]} for i, row in enumerate(TOTALS)]
        assert dict(life.app.state("total").items()) == {"a": {"total": 6}, "b": {"total": 9}}


def test_state_can_be_rebuilt_from_the_input():
    with TestDriver(totals_app(partitions=1)) as driver:
        driver.send("rows", ROWS)

        def twice(rows: pa.Table, states: pa.Table) -> Any:
            return add_up(rows.set_column(1, "n", pc.multiply(rows["n"], 2)), states)

        driver.restart(totals_app(twice, 1))
        driver.rebuild("total", switch=True)
        assert dict(driver.state("total").items()) == {"a": {"total": 12}, "b": {"total": 18}}


def one_column(version: int = 1, migrate: Any = None, state: Any = None, **how: Any) -> mp.App:
    """Counts rows in the first column of the state; other columns are passed through."""
    declared = {"n": int} if state is None else state

    def f(rows: pa.Table, states: pa.Table) -> Any:
        name = next(iter(declared))
        return None, states.set_column(1, name, pc.add(pc.fill_null(states[name], 0), 1))

    app = mp.App("columns", partitions=2)
    keyed = app.stream("rows", mp.sources.rows([])).key_by("k")
    keyed.apply_batch(how.pop("name", "s"), f, state=declared, version=version, migrate=migrate, **how)
    return app


def test_columns_of_the_state_come_and_go():
    with TestDriver(one_column()) as driver:
        driver.send("rows", ROWS)
        driver.restart(one_column(state={"n": int, "more": str}))
        driver.send("rows", ROWS[:1])
        assert dict(driver.state("s").items()) == {"a": {"n": 2, "more": None}, "b": {"n": 1}}
        driver.restart(one_column(state={"m": int}), lose_replicas=True)
        driver.send("rows", ROWS[:1])
        assert dict(driver.state("s").items()) == {"a": {"m": 1}, "b": {"n": 1}}


@pytest.mark.parametrize("way", [dict, mp.lazily])
def test_a_column_of_another_type_needs_a_migration(way):
    with TestDriver(one_column()) as driver:
        driver.send("rows", ROWS)
        with pytest.raises(
            Incompatible,
            match=r"step 's': expected the column 'n' of its state as int, as it is stored, got float\. Say version=2 "
            r"and migrate=\{1: function\}",
        ):
            driver.restart(one_column(state={"n": float}))
        driver.restart(one_column(2, way({1: lambda state: {"n": state["n"] + 0.5}}), {"n": float}))
        driver.send("rows", ROWS[:1])
        assert dict(driver.state("s").items()) == {"a": {"n": 2.5}, "b": {"n": 1.5}}
        driver.restart(one_column(2, way({1: lambda state: {"n": state["n"] + 0.5}}), {"n": float}, name="t",
                                  renamed_from="s"), lose_replicas=True)  # fmt: skip
        driver.send("rows", ROWS[:2])
        assert dict(driver.state("t").items()) == {"a": {"n": 3.5}, "b": {"n": 2.5}}


@pytest.mark.parametrize(
    ("migrated", "text"),
    [
        ({"n": "x"}, "key 'a': its state cannot be read by this program: column 'n': expected float, got 'x'"),
        (7, "expected the columns of a key as a dict, as a migration has to return them, got 7"),
    ],
)
@pytest.mark.parametrize("ttl", [None, "1h"])
def test_a_migration_that_returns_something_else_is_refused(migrated, text, ttl):
    with TestDriver(one_column()) as driver:
        driver.send("rows", ROWS[:1])
        driver.restart(one_column(2, {1: lambda state: migrated}, {"n": float}, ttl=ttl, on_error="skip"))
        with pytest.raises(Incompatible, match=text):
            driver.send("rows", ROWS[:1])


CHANGED_BY_A_COLUMN: dict[str, tuple[Any, Any, Any, Any]] = {
    "a float as an integer": (float, 1.5, int, "expected int, got 1.5"),
    "an instant as a date": (dt.datetime, MOMENT, dt.date, "expected date, got datetime"),
    "bytes as text": (bytes, b"x", str, "expected str, got b'x'"),
    "an integer as an instant": (int, 5, dt.datetime, "expected datetime, got 5"),
    "an integer as a date": (int, 5, dt.date, "expected date, got 5"),
    "an integer as a time": (int, 5, dt.time, "expected time, got 5"),
    "an integer as a duration": (int, 5, dt.timedelta, "expected timedelta, got 5"),
    "a large integer as a float": (int, 2**53 + 1, float, "expected float, got 9007199254740993"),
    "a flag as a float": (bool, True, float, "expected float, got True"),
    "a date as an instant": (dt.date, dt.date(2030, 1, 1), dt.datetime, "expected datetime, got"),
    "a naive time as an instant": (pa.timestamp("us"), dt.datetime(2030, 1, 1), dt.datetime, "expected datetime, got"),
    "an instant as a naive time": (dt.datetime, MOMENT, pa.timestamp("us"), "expected timestamp"),
    "microseconds as seconds": (dt.datetime, MOMENT, pa.timestamp("s", "UTC"), "expected timestamp"),
    "floats in a list": (pa.list_(pa.float64()), [1.0, 1.5], pa.list_(pa.int64()), "expected list"),
    "a field too many": (
        pa.struct([("a", pa.int64()), ("b", pa.int64())]), {"a": 1, "b": 2}, pa.struct([("a", pa.int64())]),
        "expected struct",
    ),
    "a float as a smaller one": (float, 0.1, pa.float32(), "expected float, got 0.1"),
}  # fmt: skip


def state_app(state: Any, f: Any, **how: Any) -> mp.App:
    app = mp.App("kinds", partitions=1)
    app.stream("rows", mp.sources.rows([])).key_by("k").apply_batch("s", f, state=state, **how)
    return app


def storing(value: Any) -> Any:
    def f(rows: pa.Table, states: pa.Table) -> Any:
        name = states.column_names[1]
        return None, states.set_column(1, name, pa.array([value], states[name].type))

    return f


@pytest.mark.parametrize("ttl", [None, "1h"])
@pytest.mark.parametrize("case", CHANGED_BY_A_COLUMN)
def test_a_stored_value_that_its_column_would_change_is_refused(case, ttl):
    stored, value, kind, text = CHANGED_BY_A_COLUMN[case]
    row = [{"k": "a"}]
    with TestDriver(state_app({"v": stored}, storing(value))) as driver:
        driver.send("rows", row)
        driver.restart(state_app({"other": int}, as_they_are))
        driver.send("rows", [{"k": "b"}])
        driver.restart(state_app({"other": int, "v": kind}, as_they_are, on_error="skip"))
        with pytest.raises(Incompatible, match=f"step 's', key 'a': .*column 'v': {text}"):
            driver.send("rows", row)
    with TestDriver(state_app({"n": int}, storing(1))) as driver:
        driver.send("rows", row)
        migrate = {1: lambda state: {"v": value}}
        driver.restart(state_app({"v": kind}, as_they_are, version=2, migrate=migrate, ttl=ttl, on_error="skip"))
        with pytest.raises(Incompatible, match=f"step 's', key 'a': .*column 'v': {text}"):
            driver.send("rows", row)


EAST = dt.timezone(dt.timedelta(hours=5, minutes=30))


@pytest.mark.parametrize(
    ("value", "kind", "read"),
    [
        (5, float, 5.0),
        (MOMENT.astimezone(EAST), dt.datetime, MOMENT),
        ({"a": 1}, pa.struct([("a", pa.int64()), ("b", pa.int64())]), {"a": 1, "b": None}),
        ([("a", 1)], pa.map_(pa.string(), pa.int64()), [("a", 1)]),
        ([1, 2.5], pa.list_(pa.float64()), [1.0, 2.5]),
        (float("nan"), pa.float32(), float("nan")),
    ],
)
def test_a_migration_may_return_an_equal_value_of_the_same_kind(value, kind, read):
    seen = Calls()

    def see(rows: pa.Table, states: pa.Table) -> Any:
        seen.append(states["v"].to_pylist())
        return None, None

    with TestDriver(state_app({"n": int}, storing(1))) as driver:
        driver.send("rows", [{"k": "a"}])
        driver.restart(state_app({"v": kind}, see, version=2, migrate={1: lambda state: {"v": value}}))
        driver.send("rows", [{"k": "a"}])
    assert seen == [[read]] or (read != read and seen[0][0] != seen[0][0])


@pytest.mark.parametrize("way", [dict, mp.lazily])
def test_a_migration_that_returns_none_in_all_columns_removes_the_state(way):
    with TestDriver(one_column()) as driver:
        driver.send("rows", ROWS)
        driver.send("rows", ROWS[:1])
        assert dict(driver.state("s").items()) == {"a": {"n": 2}, "b": {"n": 1}}
        migrate = way({1: lambda state: {"m": None, "o": None if state["n"] == 2 else 7}})
        driver.restart(one_column(2, migrate, {"m": int, "o": int}))
        assert dict(driver.state("s").items()) == {"b": {"m": None, "o": 7}}
        driver.send("rows", ROWS)
        assert dict(driver.state("s").items()) == {"a": {"m": 1, "o": None}, "b": {"m": 1, "o": 7}}


# --- time to live ---


def counted(ttl: Any, timestamp: str | None = "t") -> mp.App:
    app = mp.App("ttl", partitions=1)
    keyed = app.stream("rows", mp.sources.rows([]), timestamp=timestamp).key_by("k")
    counts = keyed.apply_batch("n", count, state={"n": int}, ttl=ttl)
    counts.map(lambda row: (row["k"], row["t"], row["nth"])).to("out", mp.sinks.memory())
    return app


def at(key: str, *times: int) -> list[dict[str, Any]]:
    return [{"k": key, "t": time} for time in times]


def test_a_key_that_had_no_row_for_long_starts_without_state():
    with TestDriver(counted(10)) as driver:
        driver.send("rows", at("a", 1, 5))
        driver.send("rows", at("a", 14))  # 5 + 10 is later
        driver.send("rows", at("a", 24, 25))
        driver.send("rows", at("b", 60))
        assert driver.output("out") == [
            ("a", 1, 1),
            ("a", 5, 2),
            ("a", 14, 3),
            ("a", 24, 1),
            ("a", 25, 2),
            ("b", 60, 1),
        ]
        assert dict(driver.state("n").items()) == {"b": {"n": 1}}, "the others were removed"


def test_state_expires_by_the_clock_if_rows_have_no_time():
    with TestDriver(counted("10s", None)) as driver:
        driver.send("rows", at("a", 1))
        driver.advance("9s")
        driver.send("rows", at("a", 2))
        driver.advance("11s")
        assert dict(driver.state("n").items()) == {}
        driver.send("rows", at("a", 3))
        assert driver.output("out") == [("a", 1, 1), ("a", 2, 2), ("a", 3, 1)]


def only_reads(rows: pa.Table, states: pa.Table) -> Any:
    return None, states.filter(pc.is_null(states["n"])).set_column(1, "n", pa.array([1] * states["n"].null_count))


@pytest.mark.parametrize(("refresh", "kept"), [("read", True), ("write", False), ("never", False)])
def test_reading_refreshes_state_only_if_the_ttl_says_so(refresh, kept):
    app = mp.App("ttl", partitions=1)
    keyed = app.stream("rows", mp.sources.rows([]), timestamp="t").key_by("k")
    keyed.apply_batch("n", only_reads, state={"n": int}, ttl=mp.ttl(10, refresh=refresh))
    with TestDriver(app) as driver:
        driver.send("rows", at("a", 1))
        driver.send("rows", at("a", 8))
        driver.send("rows", at("b", 13))
        assert ("a" in dict(driver.state("n").items())) is kept


def test_a_failed_call_refreshes_nothing():
    app = mp.App("ttl", partitions=1)
    keyed = app.stream("rows", mp.sources.rows([]), timestamp="t").key_by("k")

    def f(rows: pa.Table, states: pa.Table) -> Any:
        if rows["t"][0].as_py() == 8:
            raise ValueError("no")
        return only_reads(rows, states)

    keyed.apply_batch("n", f, state={"n": int}, ttl=mp.ttl(10, refresh="read"), on_error="skip")
    with TestDriver(app) as driver:
        driver.send("rows", at("a", 1))
        driver.send("rows", at("a", 8))
        driver.send("rows", at("b", 13))
        assert dict(driver.state("n").items()) == {"b": {"n": 1}}


@pytest.mark.parametrize("ttl", [None, mp.ttl(10), mp.ttl(10, refresh="read")])
def test_a_state_that_cannot_be_stored_lets_no_state_change(ttl: Any) -> None:
    deep = pa.int64()
    for _ in range(105):
        deep = pa.list_(deep)

    def nested(depth: int) -> Any:
        found: Any = []
        for _ in range(depth):
            found = [found]
        return found

    def f(rows: pa.Table, states: pa.Table) -> Any:
        depth = {"a": 2, "b": 103, "c": 2} if len(rows) > 1 else {"a": 1}  # 103 are too many to be stored
        values = pa.array([nested(depth[key]) for key in states["k"].to_pylist()], deep)
        return None, pa.table({"k": states["k"], "x": values})

    app = mp.App("deep", partitions=1)
    keyed = app.stream("rows", mp.sources.rows([]), timestamp="t").key_by("k")
    keyed.apply_batch("x", f, state={"x": deep}, ttl=ttl, on_error="skip")
    with TestDriver(app) as driver:
        driver.send("rows", at("a", 1))
        driver.send("rows", [*at("a", 2), *at("b", 2), *at("c", 2)])
        assert dict(driver.state("x").items()) == {"a": {"x": [[]]}}


@pytest.mark.parametrize("first", ["timed", "others"])
def test_a_ttl_by_event_time_needs_rows_with_a_time_and_writes_nothing_without(first):
    app = mp.App("ttl", partitions=1)
    times = {"timed": "t", "others": None}
    streams = [
        app.stream(name, mp.sources.rows([]), timestamp=times[name])
        for name in sorted(times, key=lambda name: name != first)
    ]
    streams[0].union(streams[1]).key_by("k").apply_batch(
        "n", count, state={"n": int}, ttl=mp.ttl(10, clock="event"), on_error="dead-letter"
    )
    app.dead_letters.to("dead", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send({"timed": at("a", 1), "others": at("b", 1)})
        assert dict(driver.state("n").items()) == {}
        assert len(driver.output("dead")) == 2
        assert 'ttl with clock="event" needs rows with an event time' in driver.output("dead")[0]["error"]


def test_a_ttl_can_be_added_and_removed():
    with TestDriver(counted(None)) as driver:
        driver.send("rows", at("a", 1))
        driver.restart(counted(10))
        driver.send("rows", at("b", 5))
        driver.send("rows", at("b", 16))
        assert dict(driver.state("n").items()) == {"b": {"n": 1}}
        driver.restart(counted(None))
        driver.send("rows", at("c", 90))
        assert dict(driver.state("n").items()) == {"b": {"n": 1}, "c": {"n": 1}}


# --- against the way by row ---


def by_row(key: Any, row: dict[str, Any], total: Any) -> Any:
    value = row["v"]
    total = {"total": (total or {}).get("total", 0.0) + (0.0 if value is None else value), "seen": value is not None}
    return {**row, **total}, total


def by_column(rows: pa.Table, states: pa.Table) -> Any:
    names = states.column_names[:-2]
    totals = {tuple(s[n] for n in names): (s["total"] or 0.0, s["seen"]) for s in states.to_pylist()}
    outputs = []
    for row in rows.to_pylist():
        key = tuple(row[name] for name in names)
        total = totals[key][0] + (0.0 if row["v"] is None else row["v"])
        totals[key] = (total, row["v"] is not None)
        outputs.append({**row, "total": total, "seen": totals[key][1]})
    made = states.select(names).append_column("total", [[total for total, _ in totals.values()]])
    return (
        pa.Table.from_pylist(outputs, schema=pa.schema([*rows.schema, ("total", pa.float64()), ("seen", pa.bool_())])),
        made.append_column("seen", [[seen for _, seen in totals.values()]]),
    )


key_values = st.sampled_from(
    [["a", "b", "☂"], [1, 2, -(2**63)], [True, False], [dt.date(2030, 1, 1), dt.date(1, 1, 1)], [b"", b"\xff"],
     [ZONED, ZONED + dt.timedelta(seconds=1)]]
)  # fmt: skip
VALUE = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True), st.integers(-5, 5).map(float))


@st.composite
def histories(draw: Any) -> list[list[dict[str, Any]]]:
    keys = draw(key_values)
    weighted = [keys[0]] * draw(st.sampled_from([1, 9])) + keys[1:]  # one key may have most of the rows
    row = st.builds(lambda k, j, v: {"k": k, "j": j, "v": v}, st.sampled_from(weighted), st.sampled_from("xy"), VALUE)
    return draw(st.lists(st.lists(row, max_size=8), min_size=1, max_size=4))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(batches=histories(), by=st.sampled_from([("k",), ("k", "j")]), partitions=st.sampled_from([1, 3]))
def test_a_running_total_is_the_same_by_columns_and_by_rows(batches, by, partitions):
    app = mp.App("both", partitions=partitions)
    keyed = app.stream("rows", mp.sources.rows([])).key_by(*by)
    keyed.stateful_map("plain", by_row).to("by row", mp.sinks.memory())
    columns = {"total": float, "seen": bool}
    keyed.apply_batch("columns", by_column, state=columns).to("by column", mp.sinks.memory())
    with TestDriver(app) as driver:
        for batch in batches:
            driver.send("rows", batch)
        assert repr(driver.output("by column")) == repr(driver.output("by row"))
        states = [sorted(map(repr, driver.state(step).items())) for step in ("columns", "plain")]
        assert states[0] == states[1]


def test_the_command_line_shows_the_state(tmp_path: Path):
    app = totals_app(partitions=2)
    with TestDriver(app, storage=str(tmp_path)) as driver:
        driver.send("rows", ROWS)
    command = [sys.executable, "-m", "millpond", "state", "get", "total", "b", "--format", "json"]
    place = ["--state-dir", str(tmp_path), "--app", "totals"]
    done = subprocess.run([*command, *place], capture_output=True, text=True, timeout=120)
    assert json.loads(done.stdout) == {"key": "b", "value": {"total": 9}}, done.stderr
