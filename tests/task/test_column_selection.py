"""Rows that travel to windows as columns of numbers: outputs, state and counts are those of whole rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ledger_reader import changes
from odd_numbers import BY_COLUMN, BY_ROW, VALUES, value
from small_drivers import driver_of, run_to_end
from small_windows import row, rows

import millpond as mp
from millpond.rows.rows import Rows
from millpond.rows.wire import pack_rows
from millpond.runtimes.local import LocalRuntime
from millpond.storage import open_storage
from millpond.task.column_selection import to_columns
from millpond.testing import Crashed, TestDriver

FEW = settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
WINDOWS = [mp.tumbling(10), mp.tumbling(7, offset=3), mp.hopping(10, 5), mp.hopping(10, 4)]

Split, Chunk = mp.lowlevel.Split, mp.lowlevel.Chunk


class Batches:
    """A source whose batches are lists of splits, and whose splits are lists of chunks, lists of rows or tables."""

    def __init__(self, batches: list[list[list[Any]]], as_text: bool) -> None:
        self.batches, self.as_text = batches, as_text

    def plan(self, position: Mapping[str, Any], limit: mp.lowlevel.Limit, now: float) -> list[mp.lowlevel.Split]:
        done = max(position.values(), default=0)
        splits = self.batches[done] if done < len(self.batches) else []
        return [Split(str(place), done, done + 1, weight=1 << 20) for place in range(len(splits))]

    def read(self, split: mp.lowlevel.Split) -> Iterator[mp.lowlevel.Chunk]:
        for chunk in self.batches[split.start][int(split.place)]:
            yield Chunk(mp.lowlevel.JsonLines(as_lines(chunk)) if self.as_text else chunk, split.stop)


def as_lines(rows: list[Any]) -> list[bytes]:
    return [json.dumps(row).encode() for row in rows]


def program(source: Any, aggregations: dict[str, Any], window: Any = None, **how: Any) -> mp.App:
    app = mp.App("narrow", partitions=2)
    keyed = app.stream("rows", source, timestamp="t").key_by("k")
    windows = keyed.window("w", window or mp.tumbling(10), **{"grace": 3, "on_error": "skip", **how})
    windows.aggregate(**aggregations).to("out", mp.sinks.memory())
    return app


def traces(source: Any, aggregations: dict[str, Any], window: Any, home: Any) -> list[Any]:
    """What each batch changed, counted as late and skipped, and all outputs."""
    out: list[Any] = []
    app = mp.App("narrow", partitions=2)
    windows = app.stream("rows", source, timestamp="t").key_by("k").window("w", window, grace=3, on_error="skip")
    windows.aggregate(**aggregations).to("out", mp.sinks.function(lambda rows, delivery: out.extend(map(repr, rows))))
    storage = open_storage("memory://")
    driver = driver_of(app, storage, home)
    found: list[Any] = []
    while driver.batch(mp.lowlevel.Limit(1 << 40, 1 << 60)):
        found.append((changes(storage, "narrow", "w"), driver.last.late, driver.last.skipped))
    driver.batch(mp.lowlevel.Limit(1 << 40, 1 << 60), final=True)
    return [*found, out]


def as_json_number(number: Any) -> Any:
    """The number, or 1 in the place of one that JSON has not: a filter would leave nothing of Decimals."""
    is_json = number is None or type(number) in (int, str, bool) or (type(number) is float and isfinite(number))
    return number if is_json else 1


@pytest.mark.parametrize("as_text", [False, True], ids=["dicts", "lines of JSON"])
@pytest.mark.parametrize("values", VALUES)
@given(data=st.data())
def test_numbers_stay_what_they_are(values, as_text, data):
    number = VALUES[values].map(as_json_number) if as_text else VALUES[values]
    chunk = data.draw(st.lists(st.builds(row, number, st.integers(0, 9)), min_size=1, max_size=6))
    before = Rows(as_lines(chunk) if as_text else chunk, range(len(chunk)), form="json" if as_text else "objects")
    after = to_columns(before, ("v", "t"))
    assert after is before or repr(after.objects()) == repr([{"v": each["v"], "t": each["t"]} for each in chunk])
    types = {type(each["v"]) for each in chunk} - {type(None)}
    is_whole = types <= {int} and all(-(2**63) <= (each["v"] or 0) < 2**63 for each in chunk)
    assert (after.form == "arrow") == (is_whole or types == {float})


@pytest.mark.parametrize("as_text", [False, True], ids=["dicts", "lines of JSON"])
@pytest.mark.parametrize("values", VALUES)
@FEW
@given(data=st.data())
def test_columns_and_whole_rows_come_to_the_same(values, as_text, data, tmp_path_factory, monkeypatch):
    """Chunks of numbers and of other values take turns, in up to three reading tasks, with late rows among them."""
    monkeypatch.setattr(LocalRuntime, "slots", 3)
    number = VALUES[values].map(as_json_number) if as_text else VALUES[values]
    each = st.builds(row, st.one_of(number, VALUES["whole numbers"]), st.integers(-20, 40), st.sampled_from("abc"))
    uniform = st.builds(row, VALUES["whole numbers"], st.integers(-20, 40), st.sampled_from("abc"))
    chunk = st.one_of(st.lists(each, min_size=1, max_size=6), st.lists(uniform, min_size=1, max_size=6))
    split = st.lists(chunk, min_size=1, max_size=3)
    batches = data.draw(st.lists(st.lists(split, min_size=1, max_size=3), min_size=1, max_size=3))
    window, source = data.draw(st.sampled_from(WINDOWS)), Batches(batches, as_text)
    by_column, by_row = (traces(source, a, window, tmp_path_factory.mktemp("home")) for a in (BY_COLUMN, BY_ROW))
    assert by_column == by_row
    assert len(by_column) == len(batches) + 1


@pytest.mark.parametrize("at", ["compute", "commit", "deliver"])
@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_a_batch_that_crashed_is_the_same_when_it_is_run_again(at, when):
    batches = [rows((0.1, 1), (0.2, 2), (1e16, 3)), rows((0.3, 4), (-1e16, 5)), rows((7, 30), ("x", 31))]
    found = []
    for crash in (False, True):
        storage = open_storage("memory://")
        with TestDriver(program(mp.sources.rows([]), BY_COLUMN), storage=storage) as driver:
            for batch in batches:
                if crash:
                    driver.crash(at, when)
                    with pytest.raises(Crashed):
                        driver.send("rows", batch)
                    driver.restart(lose_replicas=True)
                else:
                    driver.send("rows", batch)
            driver.finish()
            found.append(driver.output("out"))
    assert found[0] == found[1]
    assert len(found[0]) == 2


# --- what travels ---

NUMBERS = rows((1, 1), (2, 2, "b"), (4, 3))
PANES = [("a", 5), ("b", 2)]


def sent_forms(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The form of all blobs that are packed from now on, or their columns."""
    seen: list[Any] = []

    def packed(rows: Rows, codec: Any, left_out: Any) -> bytes:
        seen.append(rows.data.column_names if rows.form == "arrow" else rows.form)
        return pack_rows(rows, codec, left_out)

    monkeypatch.setattr("millpond.rows.wire.pack_rows", packed)
    return seen


@pytest.mark.parametrize(
    ("way", "travels"),
    [
        ("a sum", [["v"]] * 2),
        ("a count", [["row"]] * 2),
        ("a function", ["whole"] * 2),
        ("a text among the numbers", ["whole"] * 2),
        ("a missing field", ["whole"] * 2),
        ("late rows", ["whole"] * 2),
        ("dead letters", ["whole"] * 2),
        ("another step beside it", ["whole"] * 2),
    ],
)
@pytest.mark.parametrize("as_text", [False, True], ids=["dicts", "lines of JSON"])
def test_only_numbers_that_are_read_travel_to_windows(way, travels, as_text, tmp_path, monkeypatch):
    seen = sent_forms(monkeypatch)
    odd = {"a text among the numbers": [row("x", 3)], "a missing field": [{"k": "b", "t": 4}]}.get(way, [])
    app = mp.App("narrow", partitions=2)
    keyed = app.stream("rows", Batches([[[[*NUMBERS, *odd]]]], as_text), timestamp="t").key_by("k")
    policy: Literal["dead-letter", "skip"] = "dead-letter" if way == "dead letters" else "skip"
    windows = keyed.window("w", mp.tumbling(10), grace=0, on_error=policy)
    total = {"a count": mp.count(), "a function": mp.sum(value)}.get(way, mp.sum("v"))
    out: list[Any] = []
    windows.aggregate(total=total).to("out", mp.sinks.function(lambda rows, delivery: out.extend(rows)))
    if way == "late rows":
        windows.late.to("late", mp.sinks.memory())
    if way == "dead letters":
        app.dead_letters.to("letters", mp.sinks.memory())
    if way == "another step beside it":
        keyed.stateful_map("seen", lambda k, r, n: (None, n + 1), initial=0)
    driver = driver_of(app, open_storage("memory://"), tmp_path / "home")
    run_to_end(driver)
    driver.batch(mp.lowlevel.Limit(1, 1), final=True)
    whole = "json" if as_text else "objects"
    assert seen == [whole if each == "whole" else each for each in travels]
    assert sorted((pane["k"], pane["total"]) for pane in out) == ([("a", 2), ("b", 1)] if way == "a count" else PANES)


def test_lines_that_travel_whole_are_not_made_objects(tmp_path, monkeypatch):
    app, out, late = mp.App("narrow", partitions=1), [], []
    early = row(9, 0)
    source = Batches([[[NUMBERS]], [[[row(1, 30)]]], [[[early, row(2, 31)]]]], as_text=True)
    windows = app.stream("rows", source, timestamp="t").key_by("k").window("w", mp.tumbling(10), grace=0)
    windows.aggregate(total=mp.sum("v")).to("out", mp.sinks.function(lambda rows, delivery: out.extend(rows)))
    windows.late.to("late", mp.sinks.function(lambda rows, delivery: late.extend(rows)))
    made: list[int] = []
    objects = Rows.objects

    def count_objects(rows: Rows) -> list[Any]:
        made.append(len(rows) if rows.form == "json" else 0)
        return objects(rows)

    monkeypatch.setattr(Rows, "objects", count_objects)
    run_to_end(driver_of(app, open_storage("memory://"), tmp_path / "home"))
    assert sorted((pane["k"], pane["total"]) for pane in out) == PANES
    assert [each["row"] for each in late] == [early]
    assert sum(made) == 1  # the late one


def test_rows_without_a_time_fail_as_they_are(monkeypatch):
    seen = sent_forms(monkeypatch)
    app = mp.App("narrow", partitions=1)
    timed = app.stream("timed", mp.sources.rows([]), timestamp="t")
    untimed = app.stream("untimed", mp.sources.rows([]))
    windows = timed.union(untimed).key_by("k").window("w", mp.tumbling(10), grace=0, on_error="skip")
    windows.aggregate(n=mp.count()).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send({"timed": NUMBERS, "untimed": NUMBERS})
        driver.finish()
        assert [pane["n"] for pane in driver.output("out")] == [2, 1]
    assert seen == [["row"], "objects"]


def test_a_row_that_cannot_be_sent_fails_though_its_numbers_could():
    batch = [*NUMBERS, {**row(8, 4), "more": object()}]
    app = mp.App("narrow", partitions=2)
    stream = app.stream("rows", mp.sources.rows([]), timestamp="t", on_error="skip")
    keyed = stream.map(lambda r: {**r, "more": object()} if r["v"] == 8 else r).key_by("k")
    keyed.window("w", mp.tumbling(10), grace=0).aggregate(sum=mp.sum("v")).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [{k: v for k, v in each.items() if k != "more"} for each in batch])
        driver.finish()
        assert [(pane["k"], pane["sum"]) for pane in driver.output("out")] == PANES


@pytest.mark.parametrize("form", ["dicts", "lines of JSON", "tables"])
@pytest.mark.parametrize("policy", ["dead-letter", mp.retry(1, 0, then="dead-letter")], ids=["at once", "retried"])
def test_a_dead_letter_holds_the_whole_row(form, policy, tmp_path):
    first, second = {**row("a text", 1), "note": "first"}, {**row(1, 2), "note": "second"}
    make = pa.Table.from_pylist if form == "tables" else list
    batches = [[[make([first])]], [[make([second])]]]
    letters: list[Any] = []
    app = mp.App("narrow", partitions=1)
    keyed = app.stream("rows", Batches(batches, form == "lines of JSON"), timestamp="t").key_by("k")
    windows = keyed.window("w", mp.tumbling(10), grace=0, on_error=policy)
    windows.aggregate(least=mp.min("v")).to("out", mp.sinks.memory())
    app.dead_letters.to("letters", mp.sinks.function(lambda rows, delivery: letters.extend(rows)))
    run_to_end(driver_of(app, open_storage("memory://"), tmp_path / "home"))
    assert [letter["row"] for letter in letters] == [second]


def test_windows_over_windows_are_sent_numbers(monkeypatch):
    seen = sent_forms(monkeypatch)
    app = mp.App("narrow", partitions=1)
    keyed = app.stream("rows", mp.sources.rows([]), timestamp="t").key_by("k")
    tens = keyed.window("tens", mp.tumbling(10), grace=0).aggregate(sum=mp.sum("v"))
    all_keys = tens.key_by(all=lambda pane: 0).window("fifties", mp.tumbling(50), grace=0)
    all_keys.aggregate(most=mp.max("sum")).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [*NUMBERS, *rows((8, 12), (16, 70))])
        driver.finish()
        assert [pane["most"] for pane in driver.output("out")] == [8, 16]
    assert ["v"] in seen and ["sum"] in seen
