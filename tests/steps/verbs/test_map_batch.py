"""`map_batch`: a function over many rows at once, as a table of pyarrow, polars or pandas."""

from __future__ import annotations

import datetime as dt
import enum
import functools
import subprocess
import sys
import uuid
from collections import OrderedDict
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from ledger_reader import commits
from outside import Calls
from small_drivers import driver_of, run_to_end
from small_programs import PARTITIONS, nth, piped

import millpond as mp
from millpond.errors import InvalidUse, StepFailed
from millpond.storage import MemoryStorage
from millpond.testing import TestDriver

if TYPE_CHECKING:
    import polars as only_for_checkers

ROWS = [{"k": "ab"[n % 2], "n": n} for n in range(6)]


def doubled(table: pa.Table) -> pa.Table:
    return table.set_column(table.column_names.index("n"), "n", pc.multiply(table["n"], 2))


def doubled_in_polars(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(n=pl.col("n") * 2)


def doubled_in_pandas(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(n=frame["n"] * 2)


EVERY_KIND = pytest.mark.parametrize("f", [doubled, doubled_in_polars, doubled_in_pandas])
TWICE = [{"k": row["k"], "n": int(str(row["n"])) * 2} for row in ROWS]


# --- rows in and out ---


@EVERY_KIND
def test_each_kind_of_frame_does_the_same(f):
    assert piped(lambda s: s.map_batch(f), ROWS) == TWICE


@EVERY_KIND
@PARTITIONS
def test_rows_keep_their_keys_and_their_order(f, partitions):
    made = piped(lambda s: s.key_by("k").map_batch(f).stateful_map("nth", nth, initial=0), ROWS, partitions=partitions)
    assert made == [{"row": row, "nth": i // 2 + 1} for i, row in enumerate(TWICE)]


@EVERY_KIND
def test_a_batch_verb_before_the_key_changes_what_rows_are_keyed_by(f):
    made = piped(lambda s: s.map_batch(f).key_by("n").stateful_map("nth", nth, initial=0), ROWS)
    assert [row["row"] for row in made] == TWICE


def test_a_changed_column_is_seen_although_it_held_the_key():
    def shout(table: pa.Table) -> pa.Table:
        return table.set_column(0, "k", pc.utf8_upper(table["k"]))

    made = piped(lambda s: s.key_by("k").map_batch(shout).stateful_map("nth", nth, initial=0), ROWS)
    assert [(row["row"]["k"], row["nth"]) for row in made] == [
        ("A", 1),
        ("B", 1),
        ("A", 2),
        ("B", 2),
        ("A", 3),
        ("B", 3),
    ]


def parquet(folder: Path, table: pa.Table) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / "a.parquet")
    return mp.sources.files(folder, format="parquet")


def test_columns_reach_the_function_and_the_next_step_without_becoming_python_objects(tmp_path, monkeypatch):
    def refuse(*args: Any) -> Any:
        raise AssertionError("rows have become Python objects")

    monkeypatch.setattr("millpond.rows.rows.table_to_dicts", refuse)
    table = pa.table({"k": ["a", "b", "a"], "n": [1, 2, 3], "at": [1, 2, 30]})
    app = mp.App("columns", partitions=1)
    rows = app.stream("rows", parquet(tmp_path / "in", table), timestamp="at").map_batch(doubled).key_by("k")
    keyed = rows.map_batch(doubled)
    keyed.window("w", mp.tumbling(10), grace=0).aggregate(total=mp.sum("n")).to("out", out := mp.sinks.memory())
    run_to_end(driver_of(app, MemoryStorage(), tmp_path / "replicas"))
    assert [(row["k"], row["total"]) for row in out.rows] == [("a", 4), ("b", 8)]


def test_json_lines_are_made_a_table(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"k": "a", "n": 1}\n{"k": "b", "n": 2}\n')
    app = mp.App("lines")
    keyed = app.stream("rows", mp.sources.files(tmp_path / "in")).key_by("k")
    keyed.map_batch(doubled).to("out", out := mp.sinks.memory())
    run_to_end(driver_of(app, MemoryStorage(), tmp_path / "replicas"))
    assert sorted(row["n"] for row in out.rows) == [2, 4]


def test_rows_of_several_consumers_are_not_shared(tmp_path):
    app = mp.App("shared")
    rows = app.stream("rows", mp.sources.rows([]))
    rows.map_batch(doubled).to("batch", mp.sinks.memory())

    def spoil(row: Any) -> Any:
        row["n"] = "spoiled"
        return row

    rows.map(spoil).to("spoiled", mp.sinks.memory())
    rows.map_batch(doubled).to("again", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", ROWS)
        assert driver.output("batch") == driver.output("again") == TWICE


# --- how many rows come back ---


@pytest.mark.parametrize("keep", [0, 1, 3])
def test_a_plain_stream_may_come_back_shorter(keep):
    assert piped(lambda s: s.map_batch(lambda table: table.slice(0, keep)), ROWS) == ROWS[:keep]


@PARTITIONS
def test_a_plain_stream_may_come_back_longer_and_keeps_its_order_behind_a_key(partitions):
    def twice(table: pa.Table) -> pa.Table:
        return table.take([i for i in range(len(table)) for _ in (1, 2)])

    keyed = piped(
        lambda s: s.map_batch(twice).key_by("k").stateful_map("nth", nth, initial=0), ROWS, partitions=partitions
    )
    assert [row["row"] for row in keyed] == [row for row in ROWS for _ in (1, 2)]


KEYED = r"a row for each of the 6 rows that it was given, in their order, because each of them has its key; got 5 rows"
TIMED = (
    r"because each of them has its event time; got 5 rows\. Return a column that says which rows to leave out, and use"
)


@pytest.mark.parametrize(
    ("build", "how", "text"),
    [
        (lambda s, f: s.key_by("k").map_batch(f), {"partitions": 1}, KEYED),
        (lambda s, f: s.map_batch(f), {"timestamp": "n"}, TIMED),
    ],
    ids=["key", "time"],
)
def test_rows_with_a_key_or_a_time_must_come_back_in_the_same_number(build, how, text):
    with pytest.raises(StepFailed, match=f": expected .*{text}"):
        piped(lambda s: build(s, lambda table: table.slice(1)), ROWS, **how)


def test_times_stay_with_their_rows():
    def build(stream: Any) -> Any:
        return stream.map_batch(doubled).key_by("k").window("w", mp.tumbling(2), grace=0).aggregate(total=mp.sum("n"))

    app = mp.App("times")
    build(app.stream("rows", mp.sources.rows([]), timestamp="n")).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", ROWS)
        driver.send("rows", [{"k": "a", "n": 100}])
        assert sorted(row["total"] for row in driver.output("out")) == [0, 2, 4, 6, 8, 10]


# --- what a table can hold ---


MOMENT = dt.datetime(2030, 1, 2, 3, 4, 5, 678901, dt.UTC)
VALUES: dict[str, list[Any]] = {
    "integers": [2**63 - 1, None, -(2**63)],
    "floats": [1.5, None, 0.1],
    "text": ["naïve ☂", None, ""],
    "bytes": [b"\x00\xff", None, b""],
    "flags": [True, None, False],
    "times": [MOMENT, None, MOMENT],
    "dates": [dt.date(2030, 1, 2), None, dt.date(1, 1, 1)],
    "nothing": [None, None, None],
    "lists": [[1, None], None, []],
    "structs": [{"x": 1, "y": ["z"]}, None, {"x": None, "y": []}],
}


def as_they_are(table: pa.Table) -> pa.Table:
    return table


def as_they_are_in_polars(frame: pl.DataFrame) -> pl.DataFrame:
    return frame


def as_they_are_in_pandas(frame: pd.DataFrame) -> pd.DataFrame:
    return frame


@pytest.mark.parametrize("f", [as_they_are, as_they_are_in_polars, as_they_are_in_pandas])
@pytest.mark.parametrize("kind", VALUES)
def test_values_of_every_type_come_back_as_they_were(f, kind):
    rows = [{"v": value, "i": i} for i, value in enumerate(VALUES[kind])]
    found = piped(lambda s: s.map_batch(f), rows)
    assert found == rows
    assert [type(row["v"]) for row in found] == [type(row["v"]) for row in rows]


def test_nan_stays_nan_in_pandas_and_missing_values_become_null():
    def divide(frame: pd.DataFrame) -> pd.DataFrame:
        plain = pd.DataFrame({"nan": [float("nan"), 1.0], "na": pd.array([pd.NA, 1], dtype="Int64")})
        plain["object"] = pd.Series([pd.NaT, dt.date(2030, 1, 1)], dtype=object)
        return plain.set_index(pd.Index(["lost", "too"]))

    first, second = piped(lambda s: s.map_batch(divide), ROWS[:2])
    assert first["nan"] != first["nan"] and (first["na"], first["object"]) == (None, None)
    assert second == {"nan": 1.0, "na": 1, "object": dt.date(2030, 1, 1)}


def test_the_metadata_of_a_schema_is_no_part_of_the_rows():
    def marked(table: pa.Table) -> pa.Table:
        return table.replace_schema_metadata({"n": str(table["n"][0].as_py())})

    made = piped(lambda s: s.map_batch(marked).key_by("k").stateful_map("nth", nth, initial=0), ROWS)
    assert [row["row"] for row in made] == ROWS


def test_a_row_that_cannot_become_python_objects_fails_alone():
    def nanoseconds(table: pa.Table) -> pa.Table:
        return table.append_column("at", pa.array([1000, 1, *[0] * (len(table) - 2)], pa.timestamp("ns")))

    app = mp.App("letters")
    app.stream("rows", mp.sources.rows([]), on_error="dead-letter").map_batch(nanoseconds).to("out", mp.sinks.memory())
    app.dead_letters.to("dead", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", ROWS)
        assert [row["n"] for row in driver.output("out")] == [0, 2, 3, 4, 5]
        (letter,) = driver.output("dead")
        assert letter["step"] == "map_batch" and letter["row"] == {"k": "b", "n": 1, "at": "1"}
        assert letter["error"].startswith("map_batch returned a row with column 'at': expected a time between")


# --- what cannot be ---


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (
            [1, 2],
            r"map_batch needs rows with fields \(dicts, dataclasses or Structs\), got int: 1\. Map the rows to dicts",
        ),
        (
            [{}, {}],
            r"map_batch needs rows with fields, got rows without any\. Call map\(\) instead of map_batch\(\)\.",
        ),
        ([{1: 2}], "a column needs a string as its name, got 1"),
        ([{"a": 1}, {"a": "x"}], "field 'a': expected one type in a column, got int and str"),
        ([{"a": 2**70}], "field 'a' cannot be a column: .*Convert it with map"),
    ],
    ids=["scalars", "empty", "names", "mixed", "large"],
)
def test_rows_that_make_no_table_are_refused(rows, text):
    with pytest.raises(StepFailed, match=f"batch 1: {text}"):
        piped(lambda s: s.map_batch(as_they_are), rows)


def test_rows_may_lack_fields():
    assert piped(lambda s: s.map_batch(as_they_are), [{"a": 1}, {"b": "x"}]) == [
        {"a": 1, "b": None},
        {"a": None, "b": "x"},
    ]


def test_a_column_without_values_has_the_type_null_and_can_be_cast():
    def doubled(table):
        assert table["n"].type == pa.null()
        return table.append_column("twice", pc.multiply(table["n"].cast(pa.float64()), 2.0))

    assert piped(lambda s: s.map_batch(doubled), [{"n": None}, {}]) == [{"n": None, "twice": None}] * 2


def return_(value: Any, kind: Any) -> Any:
    def f(table):
        return value

    f.__annotations__["table"] = kind
    return f


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (None, pa.Table, r"expected the function to return a pyarrow\.Table, got builtins\.NoneType"),
        ([1], pa.Table, r"a pyarrow\.Table, got builtins\.list\. Its first parameter's annotation says"),
        (pd.DataFrame({"a": [1]}), pa.Table, r"a pyarrow\.Table, got pandas\.core\.frame\.DataFrame"),
        (pa.table({"a": [1]}), pl.DataFrame, r"a polars\.DataFrame, got pyarrow\.lib\.Table"),
        (pl.LazyFrame({"a": [1]}), pl.DataFrame, r"a polars\.DataFrame, got polars\.lazyframe\.frame\.LazyFrame"),
        (pa.table({"a": [1]}), pd.DataFrame, r"a pandas\.DataFrame, got pyarrow\.lib\.Table"),
        (pa.table({}), pa.Table, "to return a table with columns, got one without any"),
        (pl.DataFrame(), pl.DataFrame, "to return a table with columns, got one without any"),
        (pd.DataFrame(), pd.DataFrame, "to return a table with columns, got one without any"),
        (pa.table([[1], [2]], names=["a", "a"]), pa.Table, "columns with different names, got 'a' more than once"),
        (
            pd.DataFrame([[1, 2]], columns=["a", "a"]),
            pd.DataFrame,
            "columns with different names, got 'a' more than once",
        ),
        (pd.DataFrame([[1]]), pd.DataFrame, "expected columns with strings as names, got 0: rename it"),
        (pd.DataFrame({"a": [1, "x"]}), pd.DataFrame, "field 'a': expected one type in a column, got int and str"),
    ],
)
def test_what_a_function_returns_is_checked(value, kind, text):
    with pytest.raises(StepFailed, match=f"batch 1: .*{text}"):
        piped(lambda s: s.map_batch(return_(value, kind)), ROWS[:1])


# --- which kind of frame ---


class Caller:
    def __call__(self, frame: pl.DataFrame) -> pl.DataFrame:
        return doubled_in_polars(frame)

    def method(self, frame: pd.DataFrame) -> pd.DataFrame:
        return doubled_in_pandas(frame)


def with_factor(factor: int, frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(n=pl.col("n") * factor)


@functools.wraps(doubled_in_pandas)
def wrapped(*args: Any) -> Any:
    return doubled_in_pandas(*args)


def unknown_here(frame: only_for_checkers.DataFrame) -> Any:
    return doubled_in_polars(frame)


def by_an_alias(frame: "pd.DataFrame") -> Any:  # noqa: UP037
    return doubled_in_pandas(frame)


def anything(table: Any) -> Any:
    return doubled(table)


@pytest.mark.parametrize(
    "f",
    [
        Caller(),
        Caller().method,
        functools.partial(with_factor, 2),
        wrapped,
        by_an_alias,
        anything,
        lambda table: doubled(table),
    ],
    ids=["object", "method", "partial", "wrapped", "text", "any", "lambda"],
)
def test_the_first_parameter_says_which_kind_a_function_takes(f):
    assert piped(lambda s: s.map_batch(f), ROWS) == TWICE


@pytest.mark.parametrize(
    ("annotation", "label"),
    [
        ("pl.DataFrame", "DataFrame"),
        ("polars.DataFrame", "DataFrame"),
        ("'pd.DataFrame'", "DataFrame"),
        ("pyarrow.Table", "Table"),
    ],
)
def test_a_name_that_only_type_checkers_know_is_understood(annotation, label):
    space: dict[str, Any] = {}
    exec("def f(frame):\n    seen.append(type(frame).__name__)\n    return frame", space)
    seen = space["seen"] = Calls()
    space["f"].__annotations__["frame"] = annotation
    piped(lambda s: s.map_batch(space["f"]), ROWS)
    assert set(seen) == {label}


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (int, r"builtins\.int"),
        (pa.RecordBatch, r"pyarrow\.RecordBatch"),
        (pl.LazyFrame, r"polars\.LazyFrame"),
        ("DataFrame", "DataFrame"),
        (dict[str, int], r"dict\[str, int\]"),
    ],
)
def test_other_annotations_are_refused_when_the_program_is_built(annotation, text):
    with pytest.raises(InvalidUse, match=rf"map_batch: expected a function whose first parameter .* got {text}$"):
        piped(lambda s: s.map_batch(return_(None, annotation)), [])


def test_what_is_not_a_function_is_refused():
    with pytest.raises(InvalidUse, match="map_batch: expected a function, got 7"):
        piped(lambda s: s.map_batch(7), [])
    with pytest.raises(InvalidUse, match=r"map_batch\(on_error\): expected"):
        piped(lambda s: s.map_batch(doubled, on_error="ignore"), [])


def test_a_library_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(InvalidUse, match=r"takes a frame of polars, which cannot be imported: .*`pip install polars`"):
        piped(lambda s: s.map_batch(doubled_in_polars), [])


def test_polars_is_imported_only_if_a_function_asks_for_it():
    program = (
        "import sys, millpond as mp\n"
        "s = mp.App('a').stream('n', mp.sources.rows([]))\n"
        "s.map_batch(lambda table: table)\n"
        "assert 'polars' not in sys.modules\n"
        "def f(frame: 'polars.DataFrame'): return frame\n"
        "s.map_batch(f)\n"
        "assert 'polars' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


# --- what fails ---


def not_the_first(table: pa.Table) -> pa.Table:
    if table["n"][0].as_py() == 1:
        raise ValueError("it is one")
    return table


def sent(
    on_error: Any, *batches: list[Any], f: Any = not_the_first, own: Any = None
) -> tuple[list[Any], list[Any], Any]:
    app = mp.App("errors")
    app.stream("rows", mp.sources.rows([]), on_error=on_error).map_batch(f, on_error=own).to("out", mp.sinks.memory())
    app.dead_letters.to("dead", mp.sinks.memory())
    storage = MemoryStorage()
    with TestDriver(app, storage=storage) as driver:
        for batch in batches:
            driver.send("rows", batch)
        return driver.output("out"), driver.output("dead"), commits(storage, "errors")[-1].get("skipped")


GOOD, BAD = [{"n": 0}, {"n": 2}], [{"n": 1}, {"n": 2}, {"n": 3}]


def test_a_failed_call_stops_with_the_number_of_its_rows_and_blames_none_of_them():
    with pytest.raises(
        StepFailed, match=r"'map_batch', batch .*: a function raised ValueError: it is one[.] The call had 3 rows[.]"
    ) as caught:
        sent("stop", GOOD, BAD)
    assert (caught.value.step, caught.value.row, caught.value.key) == ("map_batch", None, None)
    assert "not_the_first" in caught.value.traceback


def test_skip_leaves_out_all_rows_of_the_call_and_counts_them():
    out, dead, skipped = sent("skip", GOOD, BAD)
    assert (out, dead) == (GOOD, [])
    assert skipped == {"map_batch": 3}


def test_dead_letters_hold_each_row_of_the_call():
    out, dead, _ = sent("dead-letter", GOOD, BAD)
    assert out == GOOD
    assert [(letter["row"], letter["step"], letter["error"]) for letter in dead] == [
        (row, "map_batch", "ValueError: it is one. The call had 3 rows.") for row in BAD
    ]


def test_dead_letters_of_keyed_rows_have_their_keys():
    app = mp.App("letters", partitions=1)
    rows = app.stream("rows", mp.sources.rows([]), on_error="dead-letter").key_by("n")
    rows.map_batch(not_the_first).to("out", mp.sinks.memory())
    app.dead_letters.to("dead", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", BAD)
        assert [(letter["key"], letter["row"]) for letter in driver.output("dead")] == [(row["n"], row) for row in BAD]


def test_its_own_policy_goes_before_that_of_the_stream():
    assert sent("stop", GOOD, BAD, own="skip")[0] == GOOD


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_retry_calls_again_with_the_same_rows(failures):
    calls = Calls()

    def flaky(table: pa.Table) -> pa.Table:
        calls.append(table.to_pylist())
        if len(calls) <= failures:
            raise ValueError("not yet")
        return doubled(table)

    out, dead, _ = sent(mp.retry(2, "1ms", then="dead-letter"), ROWS, f=flaky)
    assert calls == [ROWS] * min(3, failures + 1)
    assert (out, [letter["row"] for letter in dead]) == (([], ROWS) if failures > 2 else (TWICE, []))


@pytest.mark.parametrize("error", [SystemExit("enough"), GeneratorExit("enough")])
def test_a_function_cannot_end_its_process(error):
    def leave(table: pa.Table) -> pa.Table:
        raise error

    with pytest.raises(StepFailed, match=f"{type(error).__name__}: enough[.] The call had 1 row[.]\n"):
        piped(lambda s: s.map_batch(leave), ROWS[:1])


# --- values and types that a table cannot hold as they are ---


@dataclass
class Record:
    n: int


class Letter(enum.StrEnum):
    A = "a"


class Digit(enum.IntEnum):
    ONE = 1


@pytest.mark.parametrize(
    "value",
    [
        uuid.UUID(int=3),
        (1, 2),
        {1},
        frozenset({1}),
        Record(1),
        [(1,)],
        {"inner": {1}},
        [{"inner": (1,)}],
        Letter.A,
        Digit.ONE,
        bytearray(b"x"),
        [bytearray(b"x")],
        {"inner": Digit.ONE},
        np.float64(1.5),
        OrderedDict(a=1),
        [OrderedDict(a=1)],
    ],
    ids=repr,
)
@pytest.mark.parametrize("other", [[], [None], ["same"]], ids=["alone", "with None", "twice"])
def test_a_value_that_would_come_back_as_another_type_is_refused(value, other):
    rows = [{"v": value if more == "same" else more} for more in other] + [{"v": value}]
    with pytest.raises(StepFailed, match="would come back as another type") as caught:
        piped(lambda s: s.map_batch(as_they_are), rows)
    assert not caught.value.is_raised


@pytest.mark.parametrize("value", [dt.time(1, 2, tzinfo=dt.UTC), [dt.time(1, 2, tzinfo=dt.UTC)]], ids=repr)
def test_a_time_of_day_with_a_zone_is_refused(value):
    with pytest.raises(StepFailed, match=r"field 'v(\[\])?' cannot be a column: a time of day with a time zone would"):
        piped(lambda s: s.map_batch(as_they_are), [{"v": None}, {"v": value}])


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (
            [{"a": 1}, {"b": 2}],
            "field 'v' cannot be a column: some of its dicts lack 'a', which would come back as None",
        ),
        ([{"a": 1}, {}], "lack 'a'"),
        ([[{"a": 1}, {"b": 2}]], r"field 'v\[\]' .* lack 'a'"),
        ([[{"a": 1}], [{"a": 1, "b": 2}]], r"field 'v\[\]' .* lack 'b'"),
        ([{"in": {"a": 1}}, None, {"in": {"a": 1, "b": None}}], "field 'v.in' .* lack 'b'"),
    ],
)
def test_dicts_in_a_field_must_have_the_same_keys(values, text):
    with pytest.raises(StepFailed, match=text):
        piped(lambda s: s.map_batch(as_they_are), [{"v": value} for value in values])


def test_dicts_in_a_field_may_have_their_keys_in_another_order():
    rows = [{"v": {"a": 1, "b": 2}}, {"v": {"b": 3, "a": 4}}, {"v": None}]
    assert piped(lambda s: s.map_batch(as_they_are), rows) == rows


def test_objects_of_numpy_and_pandas_may_be_in_a_returned_frame():
    def objects(frame: pd.DataFrame) -> pd.DataFrame:
        values = {"n": np.int64(3), "x": np.float64(1.5), "at": pd.Timestamp("2030-01-01"), "l": np.array([1, 2])}
        return pd.DataFrame({name: pd.Series([value], dtype=object) for name, value in values.items()})

    made = [{"n": 3, "x": 1.5, "at": dt.datetime(2030, 1, 1), "l": [1, 2]}]
    assert piped(lambda s: s.map_batch(objects), [{"v": 1}]) == made


@pytest.mark.parametrize("value", [(1,), Letter.A, bytearray(b"x"), uuid.UUID(int=3), Record(1)], ids=repr)
def test_objects_in_a_returned_frame_that_would_change_are_refused(value):
    def objects(frame: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"o": pd.Series([value], dtype=object)})

    with pytest.raises(
        StepFailed, match=r"field 'o' cannot be a column: a value of type .* would come back as another"
    ):
        piped(lambda s: s.map_batch(objects), [{"v": 1}])


EAST = dt.timezone(dt.timedelta(hours=5, minutes=30))


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (MOMENT.astimezone(EAST), r"timestamp\[us, tz=\+05:30\]"),
        ([MOMENT.astimezone(EAST)], r"list<.*timestamp\[us, tz=\+05:30\]>"),
        (Decimal(10) ** 50, r"decimal256\(.*\)"),
    ],
    ids=["offset", "offset in a list", "large decimal"],
)
def test_rows_that_polars_cannot_hold_are_refused_with_the_column(value, kind):
    rows = [{"n": 1, "v": value}, {"n": 2, "v": None}]
    assert piped(lambda s: s.map_batch(as_they_are), rows) == rows
    text = f"the rows cannot become a polars.DataFrame: it cannot hold column 'v' of type {kind}: .*Convert"
    with pytest.raises(StepFailed, match=text) as caught:
        piped(lambda s: s.map_batch(as_they_are_in_polars), rows)
    assert not caught.value.is_raised
    assert piped(lambda s: s.map_batch(as_they_are_in_polars, on_error="skip"), rows) == []


ODD_COLUMNS = {
    "run-end encoded": lambda: pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), pa.array([7])),
    "an unknown zone": lambda: pa.array([0], pa.timestamp("us", "No/Where")),
    "two fields of one name": lambda: pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]),
    "a duration that is too long": lambda: pa.array([2**50], pa.duration("s")),
    "nanoseconds in a list": lambda: pa.array([[1]], pa.list_(pa.timestamp("ns", "UTC"))),
    "nanoseconds in a large list": lambda: pa.array([[1]], pa.large_list(pa.timestamp("ns"))),
    "nanoseconds in a list of one": lambda: pa.array([[1]], pa.list_(pa.timestamp("ns"), 1)),
    "nanoseconds in a struct": lambda: pa.array([{"at": 1}], pa.struct([("at", pa.timestamp("ns"))])),
    "nanoseconds in a map": lambda: pa.array([[("at", 1)]], pa.map_(pa.string(), pa.timestamp("ns"))),
    "nanoseconds in a dictionary": lambda: pa.array([1], pa.timestamp("ns")).dictionary_encode(),
    "nanoseconds of a time of day": lambda: pa.array([1], pa.time64("ns")),
    "an extension type": lambda: pa.ExtensionArray.from_storage(
        pa.opaque(pa.int32(), "a", "b"), pa.array([1], pa.int32())
    ),
    "a union": lambda: pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])]),
}


@pytest.mark.parametrize("column", ODD_COLUMNS.values(), ids=ODD_COLUMNS)
def test_a_column_that_cannot_become_python_objects_fails_in_the_call(column):
    def odd(table: pa.Table) -> pa.Table:
        return table.append_column("odd", column())

    assert piped(lambda s: s.map_batch(odd, on_error="skip"), [{"v": 1}]) == []
    with pytest.raises(StepFailed, match="expected the function to return columns that can become Python objects"):
        piped(lambda s: s.map_batch(odd), [{"v": 1}])


def test_durations_and_nested_times_become_those_of_python():
    def timed(frame: pd.DataFrame) -> pd.DataFrame:
        frame["took"] = pd.to_timedelta(["1s"] * len(frame))
        return frame

    assert piped(lambda s: s.map_batch(timed), [{"v": 1}]) == [{"v": 1, "took": dt.timedelta(seconds=1)}]

    def listed(table: pa.Table) -> pa.Table:
        return table.append_column("at", pa.array([[1_714_564_800_000_000_000]], pa.list_(pa.timestamp("ns", "UTC"))))

    (row,) = piped(lambda s: s.map_batch(listed), [{"v": 1}])
    assert row["at"] == [dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)] and type(row["at"][0]) is dt.datetime


def test_uuids_that_a_function_returns_are_those_of_python():
    def with_ids(table: pa.Table) -> pa.Table:
        return table.append_column("id", pa.array([uuid.UUID(int=3).bytes], pa.uuid()))

    assert piped(lambda s: s.map_batch(with_ids), [{"v": 1}]) == [{"v": 1, "id": uuid.UUID(int=3)}]


def test_python_objects_in_a_polars_frame_are_refused():
    def objects(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.with_columns(o=pl.Series([{1, 2}] * len(frame), dtype=pl.Object))

    with pytest.raises(StepFailed, match="expected columns without Python objects, got column 'o'"):
        piped(lambda s: s.map_batch(objects), [{"v": 1}])


def test_a_panic_of_a_library_is_an_error_of_the_call():
    class Panic(BaseException):
        pass

    def panics(table: pa.Table) -> pa.Table:
        raise Panic("oh")

    assert piped(lambda s: s.map_batch(panics, on_error="skip"), [{"v": 1}]) == []


def test_a_function_that_is_interrupted_by_hand_ends_the_run():
    def interrupted(table: pa.Table) -> pa.Table:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        piped(lambda s: s.map_batch(interrupted, on_error="skip"), [{"v": 1}])
