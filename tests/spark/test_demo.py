"""`millpond demo`: killed in the middle, and nothing lost."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from millpond.demo.processes import list_processes, process_tree

pytestmark = pytest.mark.slow


def demo(tmp_path: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "millpond", "demo", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )


def test_the_demo_crashes_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    with demo(tmp_path, "--rows", "20000", "--cards", "500", "--kills", "1") as process:
        shown = process.communicate()[0]
    lines = shown.splitlines()
    assert process.returncode == 0, shown
    assert lines[-1] == "rows 20,000, crashes 2, lost 0, doubled 0"
    assert lines[-2].startswith("The state and the sink are what a loop in plain Python over the same 20,000 payments")
    assert "kill -9 of a Python worker of Spark" in shown
    assert "kill -9 of driver 1 and its JVM" in shown
    assert re.search(r"rows 20,000 of 20,000  rows/s [\d,]+  keys 500  state \d+\.\d MB  commits \d+  crashes 2", shown)
    assert not list(tmp_path.glob("millpond-demo-*"))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_however_the_demo_is_ended_it_leaves_no_process_behind(tmp_path: Path, number: int, code: int) -> None:
    with demo(tmp_path) as process:
        assert process.stdout is not None
        started = next(line for line in process.stdout if "driver 1 started" in line)
        driver = int(started.split()[-1])
        until(lambda: any("SparkSubmit" in each.command for each in process_tree(list_processes(), driver)))
        below = {each.pid for each in process_tree(list_processes(), process.pid)} - {process.pid}
        process.send_signal(number)
        assert process.wait(30) == code
        until(lambda: not below & {each.pid for each in list_processes()})
    assert driver in below
    assert bool(list(tmp_path.glob("millpond-demo-*"))) == (number == signal.SIGKILL)


def until(true: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited for too long"
        time.sleep(0.1)
