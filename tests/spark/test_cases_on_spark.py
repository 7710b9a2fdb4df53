"""The conformance cases that hold on Spark too, through `app.run`."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from folders import append, by_key, held, write
from processes import Program
from pyspark.sql import SparkSession

import millpond as mp
from millpond.clock import SystemClock
from millpond.log.ledger import Ledger

AGES = [21, 12, 3, 64, 53, 52, 24, 35, 49, 37, 15, 22, 83, 60, 35]
MINUTES = [0, 4, 5, 6, 7, 8, 9, 15, 25, 45, 3, 56, 59, 32, 16]
A15 = [{"id": i + 1, "minute": minute, "age": age} for i, (minute, age) in enumerate(zip(MINUTES, AGES, strict=True))]


def an_app(folder: Path, partitions: int | None = 2) -> mp.App:
    return mp.App("case", str(folder / "state"), partitions, local_dir=str(folder / "local"))


def commits(folder: Path) -> int:
    """How many batches the ledger holds."""
    ledger = Ledger(mp.lowlevel.storage(an_app(folder)), "case", SystemClock())
    newest = ledger.newest()
    return 0 if newest is None else sum(r.kind == "commit" for r in ledger.between(-1, newest.number))


def everyone(row: dict[str, Any]) -> str:
    return "all"


def test_case_5_an_app_that_lost_a_step_and_changed_a_sink_goes_on_where_it_was(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(tmp_path / "in" / "a.jsonl", A15)
    first = an_app(tmp_path)
    people = first.stream("people", mp.sources.files(tmp_path / "in")).key_by(everyone)
    people.aggregate("one", n=mp.count()).to("ones", mp.sinks.memory())
    people.aggregate("other", n=mp.count()).to("others", mp.sinks.files(tmp_path / "others"))
    first.run(until="caught-up", spark=spark)
    assert first.state("one").get("all") == {"n": 15}
    assert first.state("other").get("all") == {"n": 15}
    assert len(held(tmp_path / "others")) == 15
    done = commits(tmp_path)

    second = an_app(tmp_path)
    later = mp.sinks.memory()
    people = second.stream("people", mp.sources.files(tmp_path / "in")).key_by(everyone)
    people.aggregate("one", n=mp.count()).to("later", later)
    second.run(until="caught-up", spark=spark)
    assert second.state("one").get("all") == {"n": 15}
    assert mp.open(str(tmp_path / "state"), "case").state("other").get("all") is not None
    assert later.rows == []
    assert commits(tmp_path) == done


def test_case_7_every_group_has_its_own_count(spark: SparkSession, tmp_path: Path) -> None:
    ages = [21, 21, 21, 64, 37, 52, 24, 35, 24, 37, 15, 22, 83, 83, 15]
    write(tmp_path / "in" / "a.jsonl", [{"age": age} for age in ages])
    app = an_app(tmp_path)
    out = mp.sinks.memory()
    app.stream("people", mp.sources.files(tmp_path / "in")).key_by("age").aggregate("count", n=mp.count()).to(
        "out", out
    )
    app.run(until="caught-up", spark=spark)
    expected = {21: 3, 64: 1, 37: 2, 52: 1, 24: 2, 35: 1, 15: 2, 22: 1, 83: 2}
    assert {age: state["n"] for age, state in app.state("count").items()} == expected
    assert by_key(out.rows, "age", "n") == {age: list(range(1, n + 1)) for age, n in expected.items()}


def add(key: str, row: dict[str, Any], total: int) -> tuple[dict[str, Any], int]:
    total += row["value"]
    return {"key": key, "total": total}, total


def summing(folder: Path, sink: Any) -> mp.App:
    app = an_app(folder)
    app.stream("rows", mp.sources.files(folder / "in")).key_by("key").stateful_map("sum", add, initial=0).to(
        "out", sink
    )
    return app


def test_case_15_a_machine_that_lost_its_replicas_goes_on_as_if_nothing_had_been(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(tmp_path / "in" / "a.jsonl", [{"key": key, "value": 10} for key in "aabaab"])
    app = summing(tmp_path, mp.sinks.files(tmp_path / "out"))
    app.run(until="caught-up", spark=spark, max_rows=1)
    assert commits(tmp_path) == 6
    assert list((tmp_path / "local").rglob("data.mdb"))
    shutil.rmtree(tmp_path / "local")

    again = summing(tmp_path, mp.sinks.files(tmp_path / "out"))
    again.run(until="caught-up", spark=spark, max_rows=1)
    assert commits(tmp_path) == 6
    assert dict(again.state("sum").items()) == {"a": 40, "b": 20}
    shutil.rmtree(tmp_path / "local")
    append(tmp_path / "in" / "a.jsonl", [{"key": "b", "value": 1}])
    again.run(until="caught-up", spark=spark)
    assert dict(again.state("sum").items()) == {"a": 40, "b": 21}
    assert by_key(held(tmp_path / "out"), "key", "total") == {"a": [10, 20, 30, 40], "b": [10, 20, 21]}


def keep_last(key: str, row: dict[str, Any], last: int) -> tuple[int, int]:
    return row["value"], row["value"]


def test_case_16_a_batch_whose_commit_fails_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    def build() -> tuple[mp.App, Any]:
        app, out = an_app(tmp_path), mp.sinks.memory()
        rows = app.stream("rows", mp.sources.files(tmp_path / "in"))
        rows.key_by("key").stateful_map("last", keep_last, initial=0).to("out", out)
        return app, out

    write(tmp_path / "in" / "a.jsonl", [{"key": f"key{n}", "value": n} for n in (1, 2, 3)])
    app, out = build()
    app.run(until="caught-up", spark=spark)
    committed = {"key1": 1, "key2": 2, "key3": 3}
    assert dict(app.state("last").items()) == committed

    append(tmp_path / "in" / "a.jsonl", [{"key": f"key{n}", "value": n + 3} for n in (1, 2, 3)])
    newest = mp.open(str(tmp_path / "state"), "case").newest
    assert newest is not None
    segments = set((tmp_path / "state").rglob("*.parquet"))
    in_the_way = tmp_path / "state" / "case" / "ledger" / f"{newest.number + 2:020d}.json"  # behind the claim
    (in_the_way / "x").mkdir(parents=True)
    app, out = build()
    with pytest.raises(mp.errors.MillpondError, match=in_the_way.name):
        app.run(until="caught-up", spark=spark)
    assert set((tmp_path / "state").rglob("*.parquet")) > segments  # the batch got as far as that
    assert out.rows == []
    assert dict(app.state("last").items()) == committed
    shutil.rmtree(tmp_path / "local")
    assert dict(app.state("last").items()) == committed

    shutil.rmtree(in_the_way)
    app, out = build()
    app.run(until="caught-up", spark=spark)
    assert dict(app.state("last").items()) == {"key1": 4, "key2": 5, "key3": 6}
    assert sorted(out.rows) == [4, 5, 6]


def test_case_17_a_sink_that_died_with_two_of_three_rows_ends_with_three(
    program: Callable[..., Program], tmp_path: Path
) -> None:
    write(tmp_path / "in" / "a.jsonl", [{"key": "a", "value": n} for n in (1, 2, 3)])
    dies = program("half_a_delivery", tmp_path, "die")
    assert dies.wait() == -signal.SIGKILL, dies.output
    assert len(held(tmp_path / "out")) == 2
    program("half_a_delivery", tmp_path, "live").succeed()
    assert [row["total"] for row in held(tmp_path / "out")] == [1, 3, 6]


def running_sum(parity: int, n: int, total: int) -> tuple[dict[str, int], int]:
    return {"parity": parity, "sum": total + n}, total + n


def test_case_22_even_and_odd_numbers_are_summed_apart(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.jsonl", range(100))
    app, out = an_app(tmp_path), mp.sinks.memory()
    numbers = app.stream("numbers", mp.sources.files(tmp_path / "in"))
    numbers.key_by(parity=lambda n: n % 2).stateful_map("sum", running_sum, initial=0).to("out", out)
    app.run(until="caught-up", spark=spark, max_rows=30)
    assert commits(tmp_path) == 4
    found = by_key(out.rows, "parity", "sum")
    assert found[0][:5] == [0, 2, 6, 12, 20] and found[1][:4] == [1, 4, 9, 16]
    assert found == {parity: [sum(range(parity, n + 1, 2)) for n in range(parity, 100, 2)] for parity in (0, 1)}
    assert dict(app.state("sum").items()) == {0: 2450, 1: 2500}


def append_word(length: int, word: str, so_far: str) -> tuple[dict[str, Any], str | None]:
    text = so_far + word
    return {"length": length, "text": text}, text if len(text) < 6 else None


def test_case_23_state_that_is_not_returned_is_dropped(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.jsonl", ["foo", "bar", "hello", "world", "baz"])
    app, out = an_app(tmp_path), mp.sinks.memory()
    words = app.stream("words", mp.sources.files(tmp_path / "in"))
    words.key_by(length=len).stateful_map("text", append_word, initial="").to("out", out)
    app.run(until="caught-up", spark=spark, max_rows=1)
    assert by_key(out.rows, "length", "text") == {3: ["foo", "foobar", "baz"], 5: ["hello", "helloworld"]}
    assert dict(app.state("text").items()) == {3: "baz"}
