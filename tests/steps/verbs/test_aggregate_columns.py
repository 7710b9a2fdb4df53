"""Running aggregates by columns come to the very same as row by row: outputs, failures, and every byte of state."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import UUID

import golden.program
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ledger_reader import changes
from odd_numbers import BY_COLUMN, BY_ROW, VALUES, value
from small_drivers import driver_of, run_to_end

import millpond as mp
from millpond.steps.verbs.aggregate import AggregateStep, RunningAggregate
from millpond.steps.verbs.aggregate_columns import ColumnarAggregate
from millpond.storage import open_storage
from millpond.testing import TestDriver

SOME = settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
Row = dict[str, Any]


def row_by_row() -> Any:
    """While this is entered, no step goes by columns."""
    return patch.object(AggregateStep, "can_use_columns", False)


def never_row_by_row() -> Any:
    """While this is entered, a step that does not go by columns fails."""
    return patch.object(RunningAggregate, "_run_plain", side_effect=AssertionError("row by row"))


def row(v: Any, k: Any = "a") -> Row:
    return {"k": k, "v": v}


def columns_of(rows: list[Row]) -> pa.Table | None:
    """The rows as a table, None if Arrow would change them."""
    try:
        table = pa.table({"k": [each["k"] for each in rows], "v": pa.array([each["v"] for each in rows])})
    except (pa.ArrowException, OverflowError):
        return None
    return table if repr(table.to_pylist()) == repr(rows) else None


def lines_of(rows: list[Row]) -> mp.lowlevel.JsonLines | None:
    try:
        lines = [json.dumps(each).encode() for each in rows]
    except TypeError:
        return None
    is_json = all(json.loads(line) == each for line, each in zip(lines, rows, strict=True))
    return mp.lowlevel.JsonLines(lines) if is_json and b"Infinity" not in b"".join(lines) else None


FORMS: dict[str, Any] = {"objects": lambda rows: rows, "json": lines_of, "arrow": columns_of}


class Chunks:
    """A source with a list of batches; a batch is a list of chunks, each in its form."""

    def __init__(self, batches: list[list[Any]]) -> None:
        self.batches = batches

    def plan(self, position: Mapping[str, Any], limit: Any, now: float) -> list[mp.lowlevel.Split]:
        at = position.get("0", 0)
        return [mp.lowlevel.Split("0", at, at + 1)] if at < len(self.batches) else []

    def read(self, split: mp.lowlevel.Split) -> Iterator[mp.lowlevel.Chunk]:
        chunks = self.batches[split.start]
        for chunk in chunks:
            yield mp.lowlevel.Chunk(chunk, split.stop if chunk is chunks[-1] else split.start)


def traces(
    batches: list[list[Any]], aggregations: dict[str, Any], home: Path | str, on_error: Any = "skip", **how: Any
) -> tuple[list[str], list[Any], list[str]]:
    """Outputs, the changes of the state after each batch, and the dead letters."""
    storage, out, dead, found = open_storage("memory://"), [], [], []
    app = mp.App("running", partitions=how.pop("partitions", 1))
    rows = app.stream("rows", Chunks(batches)).key_by(*how.pop("names", ("k",)))
    made = rows.aggregate("step", on_error=on_error, **aggregations, **how)
    made.to("out", mp.sinks.function(lambda rows, delivery: out.extend(rows)))
    app.dead_letters.to("dead", mp.sinks.function(lambda rows, delivery: dead.extend(rows)))
    driver = driver_of(app, storage, home)
    while driver.batch(mp.lowlevel.Limit(1 << 40, 1 << 60)):
        found.append(changes(storage, "running", "step"))
    driver.close()
    return [repr(each) for each in out], found, [repr(each) for each in dead]


def both_ways(batches: list[list[Any]], tmp: pytest.TempPathFactory, aggregations: Any = BY_COLUMN, **how: Any) -> Any:
    """What comes of the batches by columns, after comparing it with what comes of them row by row."""
    with row_by_row():
        expected = traces(batches, aggregations, tmp.mktemp("rows"), **how)
    found = traces(batches, aggregations, tmp.mktemp("columns"), **how)
    assert found == expected
    return found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("values", VALUES)
@SOME
@given(data=st.data())
def test_columns_and_rows_come_to_the_same(values, form, data, tmp_path_factory):
    each = st.builds(row, VALUES[values], st.sampled_from("aaaabc"))
    chunks = st.lists(st.lists(each, min_size=1, max_size=6), min_size=1, max_size=3)
    batches = data.draw(st.lists(chunks, min_size=1, max_size=4))
    formed = [[FORMS[form](chunk) or chunk for chunk in batch] for batch in batches]
    at_once = data.draw(st.sampled_from([0, 1, 256]), label="keys at once")
    with patch("millpond.aggregations.running_columns.MIN_KEYS_AT_ONCE", at_once):
        both_ways(formed, tmp_path_factory)


@pytest.mark.parametrize("form", FORMS)
def test_numbers_go_by_columns_whatever_their_form(form, tmp_path_factory):
    batches = [
        [[row(1), row(2, "b"), row(4)]],
        [[row(None, "c"), row(8), row(0, "b")], [row(-3, "c"), row(None)]],
        [[row(0.5, "d"), row(-1.25, "d")]],
    ]
    with never_row_by_row():
        traces([[FORMS[form](chunk) for chunk in batch] for batch in batches], BY_COLUMN, tmp_path_factory.mktemp("c"))
    out, _, _ = both_ways([[FORMS[form](chunk) for chunk in batch] for batch in batches], tmp_path_factory)
    assert out[2] == "{'k': 'a', 'n': 2, 'there': 2, 'sum': 5, 'mean': 2.5, 'min': 1, 'max': 4}"
    assert out[3] == "{'k': 'c', 'n': 1, 'there': 0, 'sum': 0, 'mean': None, 'min': None, 'max': None}"


def test_floats_are_added_in_the_order_of_the_rows(tmp_path_factory):
    tenths = [row(0.1 * (i % 7), "abc"[min(i % 5, 2)]) for i in range(400)]
    big = [row(1e16, "a"), row(1.0, "a"), row(-1e16, "a")]
    for at_once in (0, 1, 2, 256):
        with patch("millpond.aggregations.running_columns.MIN_KEYS_AT_ONCE", at_once), never_row_by_row():
            found = traces([[columns_of(tenths)], [columns_of(big)]], BY_COLUMN, tmp_path_factory.mktemp("columns"))
        with row_by_row():
            assert found == traces([[tenths], [big]], BY_COLUMN, tmp_path_factory.mktemp("rows"))


def test_many_keys_of_which_one_has_most_rows(tmp_path_factory):
    tables = []
    for size in (3_000, 2_000):
        keys = [f"k{i}" if i % 3 == 0 else "hot" for i in range(size)]
        tables.append([pa.table({"k": keys, "v": [i % 11 / 7 for i in range(size)]})])
    with never_row_by_row():
        traces(tables, BY_COLUMN, tmp_path_factory.mktemp("columns"), partitions=2)
    both_ways(tables, tmp_path_factory, partitions=2)


def test_both_ways_may_alternate_from_batch_to_batch_and_within_one(tmp_path_factory):
    numbers = columns_of([row(1), row(2, "b"), row(3)])
    texts = columns_of([row("x"), row("y", "b")])
    mixed = [row(5), row(Decimal("0.5"), "c"), row(True)]
    batches: list[Any] = [
        [numbers],
        [texts],
        [numbers, texts, numbers],
        [mixed],
        [numbers],
        [[row(2.5, "b")]],
        [numbers],
    ]
    out, _, _ = both_ways(batches, tmp_path_factory)
    assert out[-1] == "{'k': 'a', 'n': 12, 'there': 12, 'sum': 26, 'mean': 2.1666666666666665, 'min': 1, 'max': 5}"


@pytest.mark.parametrize("number", [int, float])
def test_programs_that_go_either_way_continue_each_other(number, tmp_path):
    storage, seen = open_storage("memory://"), {}
    for last, aggregations in enumerate([BY_COLUMN, BY_ROW, BY_COLUMN, BY_ROW, BY_COLUMN]):
        app = mp.App("either", partitions=1)
        batches = [[[row(number(i + 1)), row(number(2 * i), "b")]] for i in range(last + 1)]
        outputs = app.stream("rows", Chunks(batches)).key_by("k").aggregate("step", **aggregations)
        outputs.to("out", mp.sinks.function(lambda rows, delivery: seen.update({delivery.id: rows})))
        with never_row_by_row() if aggregations is BY_COLUMN else nullcontext():
            driver = driver_of(app, storage, tmp_path / str(last))
            run_to_end(driver)
            driver.close()
    assert [repr(first["sum"]) for first, _ in seen.values()] == [repr(number(total)) for total in (1, 3, 6, 10, 15)]
    assert list(seen.values())[-1][1] == {"k": "b", "n": 5, "there": 5, "sum": 20, "mean": 4.0, "min": 0, "max": 8}


KEYS = {
    "texts": ["a", "", 'say "%d"', "ü\u2028", '{"$tuple":[1]}', "x" * 300],
    "numbers": [0, -1, 2**53, 2**63 - 1],
    "large numbers": [1, 2**70],
    "truth": [True, False],
    "bytes": [b"\x00", b"", b"xy"],
    "dates": [date(2030, 1, 1), date(1, 1, 1), date(9999, 12, 31)],
    "instants": [datetime(2030, 1, 1, tzinfo=UTC), datetime(1999, 12, 31, 23)],
    "instants in UTC": [datetime(2030, 1, 1, tzinfo=UTC), datetime(1999, 12, 31, 23, tzinfo=UTC)],
    "tuples": [(1, "a"), ("a", 1), ("a",)],
    "all sorts": ["1", 1, True, (1,), date(2030, 1, 1), UUID(int=7), b"\x00"],
}
TAKERS: dict[str, Any] = {
    "a sink": lambda rows: rows,
    "a function": lambda rows: rows.map(lambda row: dict(reversed(row.items()))),
    "another step": lambda rows: rows.stateful_map("after", lambda k, row, n: ((k, n, row), n + 1), initial=0),
    "another stage": lambda rows: rows.key_by("sum").stateful_map(
        "after", lambda k, r, n: ((k, n, r), n + 1), initial=0
    ),
}


@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize("keys", KEYS)
def test_whatever_the_keys_are_and_whoever_takes_the_outputs(keys, taker):
    many: Any = KEYS[keys]
    found: list[list[Any]] = []
    for way in (row_by_row(), nullcontext()):
        storage = open_storage("memory://")
        app = mp.App("keys", partitions=2)
        made = app.stream("rows", mp.sources.rows([])).key_by("k").aggregate("step", n=mp.count(), sum=mp.sum("v"))
        TAKERS[taker](made).to("out", mp.sinks.memory())
        with way, TestDriver(app, storage=storage) as driver:
            for batch in range(3):
                driver.send("rows", [row(i + batch, many[i % len(many)]) for i in range(3 * len(many))])
                found.append(changes(storage, "keys", "step"))
            found.append([repr(output) for output in driver.output("out")])
    assert found[:4] == found[4:]
    assert len(found[3]) == 9 * len(many)


def test_keys_of_two_fields_and_of_a_function(tmp_path_factory):
    rows = [{**row(i, "ab"[i % 2]), "j": i % 3} for i in range(9)]
    with never_row_by_row():
        traces([[rows]], BY_COLUMN, tmp_path_factory.mktemp("columns"), names=("k", "j"))
    out, _, _ = both_ways([[rows], [rows]], tmp_path_factory, names=("k", "j"))
    assert out[0].startswith("{'k': 'a', 'j': 0, 'n': 1")


@pytest.mark.parametrize("name", ["50%", "%b", "größe", 'a "b"', "$dict", "$n"])
def test_whatever_the_results_are_called(name, tmp_path_factory):
    batches = [[[row(1), row(2, "b")]], [[row(4)]]]
    out, _, _ = both_ways(batches, tmp_path_factory, {name: mp.sum("v"), "n": mp.count()})
    assert repr(name) in out[0]


@pytest.mark.parametrize("on_error", ["skip", "dead-letter", mp.retry(1, "1ms", then="dead-letter")])
@pytest.mark.parametrize("form", FORMS)
def test_rows_that_fail_meet_their_policy(on_error, form, tmp_path_factory):
    bad = [[row("x", "b")], [row([1]), row([2], "c")], [{"k": "a", "w": 7}]]
    good = [row(1), row(2, "b")]
    batches = [[good], *[[good, chunk, good] for chunk in bad], [[row(5), *bad[0], row(6)]]]
    formed = [[FORMS[form](chunk) or chunk if "v" in chunk[0] else chunk for chunk in batch] for batch in batches]
    out, _, dead = both_ways(formed, tmp_path_factory, on_error=on_error)
    assert len(out) == 16
    assert len(dead) == (0 if on_error == "skip" else 5)


def test_a_row_that_fails_stops_the_run_with_the_same_words(tmp_path):
    app = mp.App("stop", partitions=1)
    table = columns_of([row(1), row(2)])
    stream = app.stream("rows", Chunks([[[row(Decimal("0.5"))]], [table], [[row(0.25)]]]))
    stream.key_by("k").aggregate("step", total=mp.sum("v"))
    driver = driver_of(app, open_storage("memory://"), tmp_path)
    with pytest.raises(mp.errors.StepFailed) as caught:
        run_to_end(driver)
    assert (caught.value.key, caught.value.row) == ("a", {"k": "a", "v": 0.25})
    assert "after Decimal('3.5')" in caught.value.error


OTHERS: dict[str, Any] = {
    "custom": mp.aggregation(initial=0, update=lambda acc, row: acc + 1),
    "last": mp.last("v"),
    "collect": mp.collect("v"),
    "function": mp.sum(value),
    "row": mp.max(),
}


@pytest.mark.parametrize("other", OTHERS)
def test_one_aggregation_that_needs_each_row_sends_all_of_them_row_by_row(other, tmp_path_factory):
    rows = [row(i, "ab"[i % 2]) for i in range(5)] if other != "row" else [7, 8, 9]
    app = mp.App("mixed", partitions=1)
    stream = app.stream("rows", Chunks([[rows]]))
    keyed = stream.key_by("k") if other != "row" else stream.key_by(k=lambda row: row % 2)
    keyed.aggregate("step", n=mp.count(), other=OTHERS[other])
    with patch.object(ColumnarAggregate, "run", side_effect=AssertionError("by columns")):
        run_to_end(driver_of(app, open_storage("memory://"), tmp_path_factory.mktemp("mixed")))


def test_state_that_expires_goes_row_by_row(tmp_path_factory):
    with patch.object(ColumnarAggregate, "run", side_effect=AssertionError("by columns")):
        out, _, _ = traces([[[row(1), row(2)]]], BY_COLUMN, tmp_path_factory.mktemp("ttl"), ttl="1h")
    assert len(out) == 2


def test_rows_that_take_others_back_go_row_by_row():
    app = mp.App("retracting", partitions=1)
    rows = app.stream("rows", mp.sources.rows([]), timestamp="t").key_by("k")
    panes = rows.window("w", mp.tumbling(10), grace=0, trigger=mp.triggers.on_update(), panes="retract")
    totals = panes.aggregate(most=mp.max("v")).key_by("k").aggregate("step", total=mp.sum("most"), n=mp.count())
    totals.to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [{"k": "a", "v": 1, "t": 1}])
        driver.send("rows", [{"k": "a", "v": 5, "t": 2}])
        assert driver.output("out")[-1] == {"k": "a", "total": 5, "n": 1}


def test_accumulators_that_change_places_keep_their_values(tmp_path_factory):
    storage = open_storage("memory://")
    both: dict[str, Any] = {"n": mp.count(), "total": mp.sum("v")}
    for number, aggregations in enumerate([both, dict(reversed(both.items()))]):
        app = mp.App("places", partitions=1)
        keyed = app.stream("rows", Chunks([[[row(3)]]] * (number + 1))).key_by("k")
        keyed.aggregate("step", **aggregations)
        with never_row_by_row():
            run_to_end(driver_of(app, storage, tmp_path_factory.mktemp("places")))
    ((_, _, state, _),) = changes(storage, "places", "step")
    assert json.loads(state or "") == {"n": ["count", 2], "total": ["sum", 6]}


def test_accumulators_that_the_program_does_not_have_are_kept(tmp_path_factory):
    storage = open_storage("memory://")
    programs: list[dict[str, Any]] = [
        {"old": mp.collect("v"), "n": mp.count(), "total": mp.max("v")},
        {"n": mp.count(), "total": mp.sum("v"), "new": mp.mean("v")},
    ]
    for number, aggregations in enumerate(programs):
        app = mp.App("kept", partitions=1)
        keyed = app.stream("rows", Chunks([[[row(3)]]] * (number + 1))).key_by("k")
        keyed.aggregate("step", **aggregations)
        with never_row_by_row() if number else nullcontext():
            run_to_end(driver_of(app, storage, tmp_path_factory.mktemp("kept")))
    ((_, _, state, _),) = changes(storage, "kept", "step")
    assert state == '{"old":["collect",[3]],"n":["count",2],"total":["sum",3],"new":["mean",[1,3]]}'


@pytest.mark.parametrize("version", ["format-1", "format-2"])
def test_state_of_an_earlier_version_continues_by_columns(version, tmp_path):
    """The step "counts" has a count and a list of distinct values per key. The program has only the count left."""
    source = Path(golden.program.__file__).parent / version
    shutil.copytree(source / "state", tmp_path / "state")
    batches = json.loads((source / "expected.json").read_text())["batches"]
    golden.program.feed(tmp_path, range(batches))
    before = dict(golden.program.app(tmp_path).state("counts").items())
    golden.program.feed(tmp_path, range(batches, batches + 1))
    step = AggregateStep.begin

    def begin(self: AggregateStep, context: Any) -> Any:
        counts = AggregateStep(name=self.name, aggregations={"n": mp.count()}, takes_back=False, key_names=("k",))
        return step(counts, context)

    with patch.object(AggregateStep, "begin", begin), never_row_by_row():
        golden.program.run(golden.program.app(tmp_path))
    came = Counter(order["customer"] for order in golden.program.rows_of(batches)["orders"])
    assert len(came) == 7 and came.keys() <= before.keys()
    assert dict(golden.program.app(tmp_path).state("counts").items()) == {
        key: {"n": held["n"] + came[key], "skus": held["skus"]} for key, held in before.items()
    }
