"""A bad row is not blamed on a function: the error says what is wrong with it and where it came from."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_drivers import WHOLE, driver_of

import millpond as mp
from millpond.storage import open_storage

GOOD = {"k": "a", "at": 5, "v": 1}


@dataclass
class Typed:
    k: str
    at: int
    v: int


def counted(stream: Any, *by: Any) -> Any:
    return stream.key_by(*(by or ("k",))).aggregate("count", n=mp.count())


Build = Callable[[mp.App, Any, Any], Any]
CASES: dict[str, tuple[Build, Any, str, str]] = {
    "missing key": (
        lambda app, source, policy: counted(app.stream("rows", source, on_error=policy)),
        {"at": 5, "v": 1},
        "key_by(k)",
        "the row has no field 'k'",
    ),
    "missing key behind a function": (
        lambda app, source, policy: counted(app.stream("rows", source, on_error=policy).map(lambda row: row)),
        {"at": 5, "v": 1},
        "key_by(k)",
        "the row has no field 'k'",
    ),
    "key None": (
        lambda app, source, policy: counted(app.stream("rows", source, on_error=policy)),
        {"k": None, "at": 5, "v": 1},
        "key_by(k)",
        "a key cannot be None",
    ),
    "key None of a function": (
        lambda app, source, policy: counted(app.stream("rows", source, on_error=policy), lambda row: row["k"]),
        {"k": None, "at": 5, "v": 1},
        "key_by(key)",
        "a key cannot be None",
    ),
    "key None in a pair": (
        lambda app, source, policy: counted(app.stream("rows", source, on_error=policy), "v", "k"),
        {"k": None, "at": 5, "v": 1},
        "key_by(v, k)",
        "a key cannot be None",
    ),
    "bad time": (
        lambda app, source, policy: counted(app.stream("rows", source, timestamp="at", on_error=policy)),
        {"k": "a", "at": "soon", "v": 1},
        "rows",
        "timestamp: expected an ISO-8601 time, got 'soon'",
    ),
    "no time": (
        lambda app, source, policy: counted(app.stream("rows", source, timestamp="at", on_error=policy)),
        {"k": "a", "v": 1},
        "rows",
        "timestamp: the row has no field 'at'",
    ),
    "bad epoch": (
        lambda app, source, policy: counted(app.stream("rows", source, timestamp=mp.epoch_ms("at"), on_error=policy)),
        {"k": "a", "at": "soon", "v": 1},
        "rows",
        "timestamp: expected 'at' to be a number of milliseconds since 1970",
    ),
    "wrong type": (
        lambda app, source, policy: counted(app.stream("rows", source, type=Typed, on_error=policy)),
        {"k": "a", "at": 5, "v": "x"},
        "rows",
        "expected Typed: ",
    ),
}


def write_lines(path: Path, rows: list[Any]) -> str:
    path.with_suffix(".jsonl").write_text("".join("\n" + json.dumps(row) + "\n" for row in rows))
    return f"{path.with_suffix('.jsonl')}, line {2 * len(rows)}"


def run(app: mp.App, folder: Path) -> None:
    driver = driver_of(app, open_storage("memory://"), folder / "local")
    while driver.batch(WHOLE):
        pass


@pytest.mark.parametrize("case", list(CASES))
def test_the_error_names_the_file_and_the_line(tmp_path: Path, case: str) -> None:
    build, bad, step, says = CASES[case]
    where = write_lines(tmp_path / "a", [GOOD] * 50 + [bad])
    app = mp.App("bad", partitions=1)
    build(app, mp.sources.files(tmp_path / "a.jsonl"), "stop").to("out", mp.sinks.memory())
    with pytest.raises(mp.errors.StepFailed) as failed:
        run(app, tmp_path)
    error = failed.value
    assert (error.step, error.where, error.is_input, error.traceback) == (step, where, True, "")
    assert str(error).startswith(f"{step!r}, batch 1: {where}: ") and says in str(error)
    assert "function raised" not in str(error) and "Fix the function" not in str(error)
    assert "Correct the input" in str(error)


@pytest.mark.parametrize("case", list(CASES))
def test_so_does_a_dead_letter(tmp_path: Path, case: str) -> None:
    build, bad, step, says = CASES[case]
    where = write_lines(tmp_path / "a", [GOOD] * 50 + [bad])
    app, letters = mp.App("bad", partitions=1), mp.sinks.memory()
    build(app, mp.sources.files(tmp_path / "a.jsonl"), "dead-letter").to("out", mp.sinks.memory())
    app.dead_letters.to("letters", letters)
    run(app, tmp_path)
    [letter] = letters.rows
    assert (letter["step"], letter["traceback"]) == (step, "")
    assert letter["error"].startswith(f"{where}: ") and says in letter["error"]


@pytest.mark.parametrize("form", ["csv", "parquet", "rows"])
def test_every_source_says_where(tmp_path: Path, form: str) -> None:
    rows = [{"k": "a", "at": "5"}] * 3 + [{"k": "b", "at": "soon"}]
    source: Any
    if form == "csv":
        with (tmp_path / "a.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, ["k", "at"])
            writer.writeheader()
            writer.writerows(rows)
        source, where = mp.sources.files(tmp_path / "a.csv"), f"{tmp_path}/a.csv, line 2"
    elif form == "parquet":
        pq.write_table(pa.table({"k": [r["k"] for r in rows], "at": [r["at"] for r in rows]}), tmp_path / "a.parquet")
        source, where = mp.sources.files(tmp_path / "a.parquet"), f"{tmp_path}/a.parquet, row 1"
    else:
        source, where = mp.sources.rows(rows), "rows(list), row 1"
    app = mp.App("bad", partitions=1)
    counted(app.stream("rows", source, timestamp="at")).to("out", mp.sinks.memory())
    with pytest.raises(mp.errors.StepFailed) as failed:
        run(app, tmp_path)
    assert failed.value.where == where  # the first of them: "5" is no time either


def test_a_line_that_is_no_json_is_not_blamed_on_a_function(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"k": 1}\n{"k":\n')
    app = mp.App("bad", partitions=1)
    counted(app.stream("rows", mp.sources.files(tmp_path / "a.jsonl"))).to("out", mp.sinks.memory())
    with pytest.raises(mp.errors.StepFailed) as failed:
        run(app, tmp_path)
    assert str(failed.value).startswith(f"'rows', batch 1: {tmp_path}/a.jsonl, line 2: expected a JSON value")
    assert "unction" not in str(failed.value)


def nested(depth: int) -> bytes:
    return b'{"k": "a", "v": ' + b"[" * depth + b"]" * depth + b"}"


UNDECODABLE = {"not UTF-8": b'{"k": "a", "v": "\xff"}', "too deep": nested(5000)}


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("line", UNDECODABLE.values(), ids=UNDECODABLE)
def test_a_line_that_cannot_be_decoded_is_a_bad_row(tmp_path: Path, line: bytes, keyed: bool) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"k": "a"}\n' + line + b'\n{"k": "b"}\n')
    app, dead, out = mp.App("bad", partitions=1), mp.sinks.memory(), mp.sinks.memory()
    rows = app.stream("rows", mp.sources.files(tmp_path / "a.jsonl"), on_error="dead-letter")
    (counted(rows) if keyed else rows).to("out", out)
    app.dead_letters.to("dead", dead)
    run(app, tmp_path)
    assert [row["k"] for row in out.rows] == ["a", "b"]
    [letter] = dead.rows
    assert letter["error"].startswith(f"{tmp_path}/a.jsonl, line 2: expected a JSON value: ")


@pytest.mark.parametrize("depth", range(900, 1000, 7))
def test_a_line_that_one_task_can_decode_can_be_decoded_by_the_next(tmp_path: Path, depth: int) -> None:
    """How deep a value may be nested depends on how many calls are open where it is decoded."""
    (tmp_path / "a.jsonl").write_bytes(b'{"k": "a"}\n' + nested(depth) + b"\n")
    app, out = mp.App("bad", partitions=1), mp.sinks.memory()
    rows = app.stream("rows", mp.sources.files(tmp_path / "a.jsonl"), on_error="skip")
    rows.key_by("k").stateful_map("count", lambda k, row, n: (n + 1, n + 1), initial=0).to("out", out)
    run(app, tmp_path)
    assert out.rows in ([1], [1, 2])


@dataclass
class Picky:
    k: str

    def __post_init__(self) -> None:
        if self.k == "x":
            raise LookupError("no x")


def test_a_line_that_a_type_refuses_is_a_bad_row(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"k": "a"}\n{"k": "x"}\n')
    app, out = mp.App("bad", partitions=1), mp.sinks.memory()
    rows = app.stream("rows", mp.sources.files(tmp_path / "a.jsonl"), on_error="skip", type=Picky)
    rows.map(lambda row: row.k).to("out", out)
    run(app, tmp_path)
    assert out.rows == ["a"]


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda keyed: keyed.aggregate("step", n=mp.sum("x")), "sum('x'): expected a field 'x'"),
        (lambda keyed: keyed.deduplicate("step", by="x", within=5), "the row has no field 'x'"),
        (
            lambda keyed: keyed.window("step", mp.tumbling(5), grace=mp.NO_GRACE).aggregate(n=mp.sum("x")),
            "sum('x'): expected a field 'x'",
        ),
    ],
)
def test_a_step_that_misses_a_field_says_so(build: Any, says: str) -> None:
    app = mp.App("bad", partitions=1)
    build(app.stream("rows", mp.sources.rows([]), timestamp="at").key_by("k")).to("out", mp.sinks.memory())
    with mp.testing.TestDriver(app) as driver, pytest.raises(mp.errors.StepFailed) as failed:
        driver.send("rows", [GOOD])
    assert failed.value.is_input and says in str(failed.value)
    assert "unction raised" not in str(failed.value)


@pytest.mark.parametrize("verb", ["map", "timestamp", "key", "step"])
def test_what_a_function_raised_is_still_its_own(tmp_path: Path, verb: str) -> None:
    def fails(*_: Any) -> Any:
        raise LookupError("not here")

    where = write_lines(tmp_path / "a", [GOOD])
    app = mp.App("bad", partitions=1)
    rows = app.stream("rows", mp.sources.files(tmp_path / "a.jsonl"), timestamp=fails if verb == "timestamp" else None)
    rows = rows.map(fails) if verb == "map" else rows
    keyed = rows.key_by(fails if verb == "key" else "k")
    keyed.apply("step", fails if verb == "step" else lambda row, state: row).to("out", mp.sinks.memory())
    with pytest.raises(mp.errors.StepFailed) as failed:
        run(app, tmp_path)
    text = str(failed.value)
    assert "a function raised LookupError: not here" in text and "Fix the function" in text
    assert not failed.value.is_input and "in fails" in failed.value.traceback
    assert (f"\n  from: {where}\n" in text) is (verb != "step")  # behind key_by nobody knows any more


def test_many_bad_rows_are_found_in_one_look_at_their_file(tmp_path: Path) -> None:
    write_lines(tmp_path / "a", [{"v": n} for n in range(20_000)])
    app, letters = mp.App("bad", partitions=1), mp.sinks.memory()
    counted(app.stream("rows", mp.sources.files(tmp_path / "a.jsonl"), on_error="dead-letter"))
    app.dead_letters.to("letters", letters)
    run(app, tmp_path)  # seconds, and not minutes
    assert letters.rows[12_345]["error"].startswith(f"{tmp_path}/a.jsonl, line {2 * 12_346}: ")
