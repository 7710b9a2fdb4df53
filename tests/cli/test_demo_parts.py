"""The parts of `millpond demo`; the demo itself, which needs Spark, is in tests/spark."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from rich.console import Console

import millpond as mp
from millpond.demo.crashes import rows_released, schedule_crashes
from millpond.demo.feed import Feed
from millpond.demo.payments import Expected, expected_totals, payments
from millpond.demo.processes import kill, kill_survivors, list_processes, process_tree
from millpond.demo.program import make_app
from millpond.demo.progress import DemoProgress, Watch
from millpond.demo.screen import Facts, screen_for
from millpond.demo.verdict import compare, read_sink_rows

Millpond = Callable[..., Result]


def test_the_same_seed_gives_the_same_payments_and_another_seed_others() -> None:
    once, again, other = (list(payments(100, 10, seed)) for seed in (1, 1, 2))
    assert once == again != other
    assert [row["id"] for row in once] == list(range(100))
    assert len({row["card"] for row in once}) == 10


def test_the_app_makes_of_payments_what_the_fold_says(tmp_path: Path) -> None:
    rows = list(payments(300, 7, seed=3))
    with mp.testing.TestDriver(make_app(tmp_path), partitions=3) as driver:
        driver.send("payments", rows[:200])
        driver.restart(lose_replicas=True)
        driver.send("payments", rows[200:])
        verdict = compare(expected_totals(rows), dict(driver.state("total").items()), driver.output("totals"))
    assert (verdict.good, verdict.rows) == (True, 300)


EXPECTED = Expected(totals={"a": 7, "b": 1}, after=[3, 7, 1])
RIGHT: list[dict[str, Any]] = [{"id": 0, "total": 3}, {"id": 1, "total": 7}, {"id": 2, "total": 1}]


@pytest.mark.parametrize(
    ("state", "outputs", "found"),
    [
        ({"a": 7, "b": 1}, RIGHT, (0, 0, 0)),
        ({"a": 7, "b": 1}, RIGHT[:2], (1, 0, 0)),
        ({"a": 7, "b": 1}, [*RIGHT, RIGHT[0], RIGHT[0]], (0, 2, 0)),
        ({"a": 8, "b": 1}, RIGHT, (0, 0, 1)),
        ({"a": 7}, RIGHT, (0, 0, 1)),
        ({"a": 7, "b": 1, "c": 1}, RIGHT, (0, 0, 1)),
        ({"a": 7, "b": 1}, [*RIGHT[:2], {"id": 2, "total": 2}], (0, 0, 1)),
        ({"a": 7, "b": 1}, [*RIGHT, {"id": 3, "total": 2}], (0, 0, 1)),
    ],
)
def test_what_is_lost_doubled_or_wrong_is_counted(
    state: dict[str, int], outputs: list[dict[str, Any]], found: tuple[int, int, int]
) -> None:
    verdict = compare(EXPECTED, state, outputs)
    assert (verdict.lost, verdict.doubled, verdict.wrong) == found
    assert verdict.good == (found == (0, 0, 0))


def test_every_crash_falls_into_a_stretch_of_its_own_with_rows_left_on_both_sides() -> None:
    for seed in range(50):
        crashes = schedule_crashes(1000, kills=2, seed=seed)
        for done, crash in enumerate(crashes):
            assert rows_released(1000, 4, done - 1) < crash.at < rows_released(1000, 4, done)
    assert rows_released(1000, 4, 4) == 1000
    assert len({schedule_crashes(1000, kills=2, seed=seed)[0].at for seed in range(50)}) > 10


def test_without_kills_all_rows_are_released_at_once() -> None:
    assert schedule_crashes(1000, kills=0, seed=1) == []
    assert rows_released(1000, 0, 0) == 1000


def test_the_feed_writes_at_its_pace_up_to_what_is_released_and_leaves_nothing_out(tmp_path: Path) -> None:
    rows = list(payments(1000, 10, seed=1))
    feed = Feed(tmp_path / "in", iter(rows), 1000, pace=100.0, now=0.0)
    feed.tick(1.0, most=600)
    assert 100 <= feed.written <= 105
    feed.tick(60.0, most=600)
    assert feed.written == 600
    feed.tick(61.0, most=1000)
    assert 700 <= feed.written <= 705, "time that went by while rows were held back releases nothing later"
    feed.tick(600.0, most=1000)
    assert list(read_sink_rows(tmp_path / "in")) == rows
    assert not list((tmp_path / "in").glob(".*"))


def test_the_watch_counts_rows_commits_keys_and_bytes_from_outside(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    assert watch.look(0.0) == DemoProgress()
    with mp.testing.TestDriver(make_app(tmp_path), storage=str(tmp_path / "state")) as driver:
        driver.send("payments", list(payments(300, 7, seed=3)))
        driver.restart()
        driver.send("payments", list(payments(100, 9, seed=4)))
        found = watch.look(4.0)
    segments = (tmp_path / "state").rglob("steps/**/*.parquet")
    assert found == DemoProgress(400, 2, sum(file.stat().st_size for file in segments), 9, 100.0)
    assert watch.look(60.0).rate == 0.0


def test_a_child_is_found_in_its_family_and_killed_and_a_stranger_is_not() -> None:
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    children = [subprocess.Popen(command) for _ in range(2)]
    try:
        own = {process.pid: process for process in process_tree(list_processes(), os.getpid())}
        assert {child.pid for child in children} <= own.keys()
        kill_survivors([own[children[0].pid]])
        assert children[0].wait(10) == -9
        assert children[1].poll() is None
        assert kill(children[1].pid)
        assert children[1].wait(10) == -9
        assert not {child.pid for child in children} & {process.pid for process in list_processes()}
    finally:
        for child in children:
            child.kill()
            child.wait()


def test_a_process_that_has_ended_is_not_alive_even_if_nobody_has_asked_for_its_code() -> None:
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.read()  # ends when the child does
        end = time.monotonic() + 10
        while child.pid in [process.pid for process in list_processes()]:
            assert time.monotonic() < end
            time.sleep(0.01)


def test_without_a_terminal_there_is_a_line_a_second_and_one_per_event(capsys: pytest.CaptureFixture[str]) -> None:
    with screen_for(Console()) as screen:
        for tenths in range(25):
            screen.show(Facts(tenths / 10, 100, DemoProgress(rows=tenths), crashes=1))
        screen.event("kill -9 of [something]")
    shown = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[2] for line in shown[:3]] == ["rows 0 of 100", "rows 10 of 100", "rows 20 of 100"]
    assert shown[3:] == ["   2.4 s  kill -9 of [something]"]
    assert "crashes 1" in shown[0]


def test_a_terminal_shows_one_view_that_stays_in_place(tmp_path: Path) -> None:
    with open(tmp_path / "screen", "w") as file:
        console = Console(file=file, force_terminal=True, width=100)
        with screen_for(console) as screen:
            screen.show(Facts(1.0, 100, DemoProgress(rows=40, commits=3, keys=7), crashes=2, doing="driver 3"))
            screen.event("kill -9 of [something]")
    shown = (tmp_path / "screen").read_text()
    for words in ("40 of 100", "commits", "crashes", "driver 3", "kill -9 of [something]"):
        assert words in shown


def test_without_java_the_demo_says_how_to_get_it(
    millpond: Millpond, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    result = millpond("demo")
    assert result.exit_code == 1
    assert result.stderr == (
        "error: demo: expected a Java runtime, 17 or newer, for Spark, and found none on the PATH, and JAVA_HOME is "
        "not set. Install one (Debian: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17) or "
        "set JAVA_HOME.\n"
    )
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert "found none in JAVA_HOME, which is /nowhere. Install one" in millpond("demo").stderr
    assert not list(tmp_path.glob("millpond-demo-*"))


def test_a_driver_that_ends_by_itself_is_an_error_with_the_end_of_its_log(
    millpond: Millpond, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho this is no Java >&2\nexit 1\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    result = millpond("demo", "--rows", "1000")
    assert result.exit_code == 1
    assert "error: demo: the driver ended by itself with code 1. The end of its log, " in result.stderr
    assert "this is no Java" in result.stderr
    [kept] = tmp_path.glob("millpond-demo-*")
    assert result.stdout.splitlines()[-1] == f"input, state and output are in {kept}"


def test_too_few_rows_are_wrong_usage(millpond: Millpond) -> None:
    assert millpond("demo", "--rows", "10").exit_code == 2
