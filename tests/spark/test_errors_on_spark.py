"""What goes wrong on Spark: in words, with nothing lost and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from folders import append, held, write
from processes import Program, any_alive, descendants, eventually, workers
from pyspark.sql import SparkSession

import millpond as mp
from millpond.sinks.base import Delivery

GOOD = [{"id": n, "key": f"k{n % 3}", "value": n} for n in range(30)]
GOOD_TOTALS = {f"k{k}": sum(n for n in range(30) if n % 3 == k) for k in range(3)}


def add(key: str, row: dict[str, Any], total: int) -> tuple[dict[str, Any], int]:
    if row["value"] == 666:
        raise ValueError("the step will not have it")
    return {"id": row["id"], "total": total + row["value"]}, total + row["value"]


def an_app(
    folder: Path,
    *,
    source: Any = None,
    sink: Any = None,
    shape: Callable[[Any], Any] = lambda row: row,
    key: Any = "key",
    state_dir: str | None = None,
) -> mp.App:
    app = mp.App("wrong", state_dir or str(folder / "state"), partitions=2, local_dir=str(folder / "local"))
    rows = app.stream("rows", source or mp.sources.files(folder / "in", format="jsonl")).map(shape)
    rows.key_by(key).stateful_map("total", add, initial=0).to("out", sink or mp.sinks.files(folder / "out"))
    return app


def totals(app: mp.App) -> dict[str, int]:
    return dict(app.state("total").items())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "in" / "a.jsonl", GOOD)
    return tmp_path


# --- functions that raise ---


def shape_raises(row: dict[str, Any]) -> dict[str, Any]:
    if row["value"] == 666:
        raise KeyError("the map will not have it")
    return row


def key_raises(row: dict[str, Any]) -> str:
    if row["value"] == 666:
        raise RuntimeError("the key will not have it")
    return str(row["key"])


@pytest.mark.parametrize(
    ("how", "step", "key", "error"),
    [
        ({"shape": shape_raises}, "map", None, "KeyError: 'the map will not have it'"),
        ({"key": key_raises}, "key_by(key)", None, "RuntimeError: the key will not have it"),
        ({}, "total", "k1", "ValueError: the step will not have it"),
    ],
    ids=["map", "key_by", "step"],
)
def test_a_function_that_raises_is_named_with_its_row_and_changes_nothing(
    spark: SparkSession, folder: Path, how: dict[str, Any], step: str, key: str | None, error: str
) -> None:
    an_app(folder, **how).run(until="caught-up", spark=spark)
    bad = {"id": 31, "key": "k1", "value": 666}
    append(folder / "in" / "a.jsonl", [{"id": 30, "key": "k0", "value": 1}, bad])
    app = an_app(folder, **how)
    with pytest.raises(mp.errors.StepFailed) as caught:
        app.run(until="caught-up", spark=spark)
    failed = caught.value
    assert (failed.step, failed.key, failed.row, failed.error) == (step, key, bad, error)
    newest = mp.open(str(folder / "state"), "wrong").newest
    assert newest is not None and failed.batch == newest.number  # which its release has now
    for part in (repr(step), f"batch {failed.batch}", error, repr(bad), "will not have it", "test_errors_on_spark.py"):
        assert part in str(failed)
    assert totals(app) == GOOD_TOTALS
    assert sorted(row["id"] for row in held(folder / "out")) == list(range(30))
    assert newest.kind == "release"


def test_a_row_that_lacks_its_key_is_shown(spark: SparkSession, folder: Path) -> None:
    append(folder / "in" / "a.jsonl", [{"id": 30, "value": 1}])
    with pytest.raises(mp.errors.StepFailed, match="the row has no field 'key'; it has: 'id', 'value'"):
        an_app(folder).run(until="caught-up", spark=spark)


def test_a_malformed_row_is_shown_with_its_file_and_line(spark: SparkSession, folder: Path) -> None:
    with open(folder / "in" / "a.jsonl", "a") as file:
        file.write('{"id": 30, "key": "k0", "value": 1}\n{"id": 31, "key"\n')
    with pytest.raises(mp.errors.StepFailed) as caught:
        an_app(folder).run(until="caught-up", spark=spark)
    assert f"{folder / 'in' / 'a.jsonl'}, line 32" in str(caught.value)
    assert caught.value.row == '{"id": 31, "key"'


# --- programs and places that cannot be ---


def test_a_missing_folder_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(mp.errors.InvalidUse, match="expected a file or a folder, but there is none") as caught:
        an_app(tmp_path).run(until="caught-up", spark=spark)
    assert str(tmp_path / "in") in str(caught.value)


def test_a_function_that_cannot_travel_is_refused(spark: SparkSession, folder: Path) -> None:
    lock = threading.Lock()

    def hold(row: Any) -> Any:
        with lock:
            return row

    with pytest.raises(mp.errors.InvalidUse, match=r"cannot be sent to the workers: .*lock"):
        an_app(folder, shape=hold).run(until="caught-up", spark=spark)
    assert not (folder / "state").exists()


def test_a_session_that_is_none_of_sparks_classic_ones_is_refused(spark: SparkSession, folder: Path) -> None:
    with pytest.raises(mp.errors.InvalidUse, match="Spark Connect"):
        an_app(folder).run(until="caught-up", spark=object())


def test_a_state_dir_that_cannot_be_written_is_named(spark: SparkSession, folder: Path) -> None:
    (folder / "file").write_text("not a folder")
    with pytest.raises(mp.errors.InvalidUse, match=r"state_dir .*file/state.*cannot be written"):
        an_app(folder, state_dir=str(folder / "file" / "state")).run(until="caught-up", spark=spark)


def test_a_dataframe_that_spark_will_not_run_is_refused(spark: SparkSession, folder: Path) -> None:
    frame = spark.readStream.schema("key string").json(str(folder / "in")).groupBy("key").count()
    with pytest.raises(mp.errors.InvalidUse, match="stream 'rows': its streaming DataFrame cannot be run"):
        an_app(folder, source=frame).run(until="caught-up", spark=spark)
    assert_nothing_is_left()


def test_speculation_is_refused(program: Callable[..., Program], folder: Path) -> None:
    said = program("speculating", folder).succeed()
    assert "InvalidUse: run(spark): spark.speculation is on" in said


# --- beginning again ---


def test_a_run_that_failed_is_begun_anew_as_often_as_it_was_told(spark: SparkSession, folder: Path) -> None:
    def shaky(row: Any) -> Any:
        failed = len(list(folder.glob("failed-*")))
        if row["id"] == 29 and failed < 2:
            (folder / f"failed-{failed}").touch()
            raise OSError("not today")
        return row

    with pytest.raises(mp.errors.StepFailed, match="not today"):
        an_app(folder, shape=shaky).run(until="caught-up", spark=spark, restarts=0)
    app = an_app(folder, shape=shaky)
    app.run(until="caught-up", spark=spark, restarts=1)
    assert len(list(folder.glob("failed-*"))) == 2
    assert totals(app) == GOOD_TOTALS
    assert sorted(row["id"] for row in held(folder / "out")) == list(range(30))


def test_state_in_memory_is_there_for_as_long_as_the_app(spark: SparkSession, folder: Path) -> None:
    sink = mp.sinks.memory()
    app = an_app(folder, sink=sink, state_dir="memory://")
    app.run(until="caught-up", spark=spark)
    assert totals(app) == GOOD_TOTALS
    append(folder / "in" / "a.jsonl", [{"id": 30, "key": "k0", "value": 1000}])
    app.run(until="caught-up", spark=spark)
    assert totals(app) == {**GOOD_TOTALS, "k0": GOOD_TOTALS["k0"] + 1000}
    assert sorted(row["id"] for row in sink.rows) == list(range(31))


# --- ends ---


def assert_nothing_is_left() -> None:
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("millpond")]
    assert left == []


def test_after_a_failed_run_no_thread_is_left_and_the_app_can_be_cleared(spark: SparkSession, folder: Path) -> None:
    append(folder / "in" / "a.jsonl", [{"id": 30, "key": "k1", "value": 666}])
    app = an_app(folder)
    with pytest.raises(mp.errors.StepFailed):
        app.run(until="caught-up", spark=spark)
    assert_nothing_is_left()
    app.clear_state()
    assert totals(app) == {}


def test_a_running_app_cannot_be_cleared(spark: SparkSession, folder: Path) -> None:
    app = an_app(folder)
    app.start(spark=spark, every="50ms")
    eventually(lambda: len(held(folder / "out")) == 30, "thirty rows")
    with pytest.raises(mp.errors.InvalidUse, match=r"clear_state: app 'wrong' is running"):
        app.clear_state()
    with pytest.raises(mp.errors.InvalidUse, match=r"clear_state: app 'wrong' is running on .*, process \d+"):
        an_app(folder).clear_state()
    app.stop()
    assert totals(app) == GOOD_TOTALS
    app.clear_state()
    assert totals(app) == {}


def test_the_newer_of_two_drivers_owns_the_app(spark: SparkSession, folder: Path) -> None:
    older = an_app(folder)
    older.start(spark=spark, every="50ms")
    eventually(lambda: len(held(folder / "out")) == 30, "thirty rows")
    newer = an_app(folder)
    newer.start(spark=spark, every="50ms")
    eventually(lambda: (newest := mp.open(str(folder / "state"), "wrong").newest) and newest.number >= 2, "its claim")
    append(folder / "in" / "a.jsonl", [{"id": 30, "key": "k0", "value": 1000}])
    eventually(lambda: len(held(folder / "out")) == 31, "one row more")
    with pytest.raises(mp.errors.Fenced, match="another driver"):
        older.stop()
    newer.stop()
    assert totals(newer) == {**GOOD_TOTALS, "k0": GOOD_TOTALS["k0"] + 1000}
    assert sorted(row["id"] for row in held(folder / "out")) == list(range(31))
    assert_nothing_is_left()


def test_an_app_whose_sink_is_unavailable_can_be_stopped(spark: SparkSession, folder: Path) -> None:
    closed = threading.Event()
    closed.set()
    taken: dict[str, list[Any]] = {}

    def put(rows: list[Any], delivery: Delivery) -> None:
        if closed.is_set():
            raise mp.errors.Unavailable("the shop is closed", retry_after=600)
        taken[delivery.id] = rows

    app = an_app(folder, sink=mp.sinks.function(put))
    app.start(spark=spark, every="50ms", max_rows=5)
    eventually(lambda: totals(app), "a commit")
    began = time.monotonic()
    with pytest.raises(mp.errors.Unavailable, match="the shop is closed"):
        app.stop()
    assert time.monotonic() - began < 60
    assert_nothing_is_left()
    closed.clear()
    app.run(until="caught-up", spark=spark)
    assert sorted(row["id"] for rows in taken.values() for row in rows) == list(range(30))


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_ends_a_run_after_the_batch_in_hand(
    program: Callable[..., Program], tmp_path: Path, which: signal.Signals
) -> None:
    write(tmp_path / "in" / "a.jsonl", GOOD)
    running = program("totals", tmp_path)
    eventually(lambda: held(tmp_path / "out"), "a delivery")
    write(tmp_path / "in" / "b.jsonl", [{"id": 30 + n, "key": "k0", "value": 0} for n in range(5000)])
    eventually(lambda: len(held(tmp_path / "out")) > 30, "more")
    running.send(which)
    below = descendants(running.pid)
    running.succeed()
    app = mp.open(str(tmp_path / "state"), "totals")
    newest = app.newest
    assert newest is not None and newest.kind == "release"
    assert newest.deliveries == {"out": newest.number - 1}  # all that was committed is there
    ids = [row["id"] for row in held(tmp_path / "out")]
    assert sorted(ids) == list(range(len(ids))) and 30 < len(ids) < 5030
    assert not (tmp_path / "state" / "totals" / "heartbeat.json").exists()
    eventually(lambda: not any_alive(below), "the JVM and its workers to end", 60)


def test_a_driver_whose_jvm_was_killed_says_so_and_ends(program: Callable[..., Program], tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.jsonl", GOOD)
    running = program("totals", tmp_path)
    eventually(lambda: held(tmp_path / "out"), "a delivery")
    write(tmp_path / "in" / "b.jsonl", [{"id": 30 + n, "key": "k0", "value": 0} for n in range(20_000)])
    below = workers(running.pid)
    for pid in descendants(running.pid, "java"):
        os.kill(pid, signal.SIGKILL)
    assert running.wait(60) == 1
    assert "app 'totals': Spark is gone" in running.output
    eventually(lambda: not any_alive(below), "its workers to end", 60)
    newest = json.loads(sorted((tmp_path / "state" / "totals" / "ledger").iterdir())[-1].read_text())
    assert newest["kind"] == "release"
