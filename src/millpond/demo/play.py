"""Runs the demo: feed the app, watch it, kill it, start it again, and check the result."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import millpond
from millpond.clock import SystemClock, elapsed
from millpond.demo.crashes import Crash, rows_released, schedule_crashes
from millpond.demo.feed import Feed
from millpond.demo.payments import expected_totals, payments
from millpond.demo.processes import OsProcess, kill, kill_survivors, list_processes, process_tree, python_workers
from millpond.demo.progress import DemoProgress, Watch
from millpond.demo.screen import Facts, Screen
from millpond.demo.verdict import DemoVerdict, compare, read_sink_rows
from millpond.errors import InvalidUse, Unavailable

BATCHES = 50  # about; small ones, so that a crash can fall between many commits
SMALLEST = 1_000  # rows in a batch
SECONDS = 30.0  # within which all payments are written, without the time of crashes
SLOWEST = 6_000.0  # rows per second
TICK = 0.1
COMMIT_SECONDS = 300.0  # without a commit, after which the demo fails
LONGEST_FOLDER = 56  # characters of Java's temporary folder: Spark puts sockets there, whose paths must be short
STOP_SECONDS = 120.0  # that a driver may take to end after its last batch


@dataclass(frozen=True)
class DemoSettings:
    """The size of the demo and the number of crashes."""

    rows: int = 200_000
    cards: int = 2_000
    seed: int = 1
    kills: int = 2


@dataclass(frozen=True)
class Outcome:
    """The result: the verdict, the number of crashes and the time."""

    verdict: DemoVerdict
    crashes: int
    seconds: float


def play(settings: DemoSettings, folder: Path, screen: Screen) -> Outcome:
    """Run the demo in an empty folder. Every process that it starts has ended when this returns or raises."""
    stage = _Performance(settings, folder, screen)
    with _raise_on_signals():
        try:
            stage.run()
        finally:
            stage.clean_up()
    expected = expected_totals(payments(settings.rows, settings.cards, settings.seed))
    screen.event("comparing state and sink with a loop in plain Python")
    verdict = compare(expected, dict(stage.watch.state.items()), read_sink_rows(folder / "totals"))
    return Outcome(verdict, stage.done, stage.seconds)


class _Performance:
    """One run of the demo: the driver's process, its input and its crashes."""

    def __init__(self, settings: DemoSettings, folder: Path, screen: Screen) -> None:
        self._settings, self._folder, self._screen = settings, folder, screen
        self._began = elapsed()
        rows = payments(settings.rows, settings.cards, settings.seed)
        pace = max(SLOWEST, settings.rows / SECONDS)
        self._feed = Feed(folder / "payments", rows, settings.rows, pace, self._began)
        self.watch = Watch(folder)
        self._crashes = schedule_crashes(settings.rows, settings.kills, settings.seed)
        self._chance = random.Random(settings.seed)
        self._crash_time: float | None = None
        self.done = 0
        self._lives = 0
        self._driver: subprocess.Popen[bytes] | None = None
        self._remembered: set[OsProcess] = set()
        self._moved = (self._began, 0)

    @property
    def seconds(self) -> float:
        return elapsed() - self._began

    def run(self) -> None:
        """Run until every row is committed, every crash has happened and the driver has ended normally."""
        self._start()
        while True:
            now = elapsed()
            self._feed.tick(now, rows_released(self._settings.rows, len(self._crashes) + self.done, self.done))
            progress = self.watch.look(now)
            self._check(progress, now)
            self._show(progress)
            if self._crashes:
                self._crash_if_due(self._crashes[0], progress, now)
            elif progress.rows >= self._settings.rows:
                break
            SystemClock().sleep(TICK)
        self._stop()
        self._show(self.watch.look(elapsed()))

    def clean_up(self) -> None:
        """Kill every process that is left, whatever has happened."""
        if self._driver is not None and self._driver.poll() is None:
            self._kill_driver()
        if self._driver is not None and self._driver.stdin is not None:
            self._driver.stdin.close()  # also of a driver that ended by itself
        kill_survivors(self._remembered)

    # --- the driver ---

    def _start(self) -> None:
        self._lives += 1
        settings, folder = self._settings, self._folder
        arguments = [str(folder), str(max(SMALLEST, settings.rows // BATCHES))]
        with open(self._log, "ab") as log:
            self._driver = subprocess.Popen(
                [sys.executable, "-m", "millpond.demo.program", *arguments],
                stdin=subprocess.PIPE,  # never written to: it closes when this process ends, and then the driver ends
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=_environment(folder),
                start_new_session=True,
            )
        self._screen.event(f"driver {self._lives} started, process {self._driver.pid}")

    def _kill_driver(self) -> None:
        assert self._driver is not None
        # Spark's Python workers have their own process group and outlive this for a moment or, if they hang, longer.
        self._remembered.update(process_tree(list_processes(), self._driver.pid))
        os.killpg(self._driver.pid, signal.SIGKILL)
        self._driver.wait()
        if self._driver.stdin is not None:
            self._driver.stdin.close()

    def _stop(self) -> None:
        assert self._driver is not None
        self._screen.event("all payments are committed; stopping the driver")
        self._remembered.update(process_tree(list_processes(), self._driver.pid))
        self._driver.terminate()
        try:
            code = self._driver.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise Unavailable(f"demo: the driver did not end within {STOP_SECONDS:.0f} s. {self._tail()}") from None
        if code != 0:
            raise Unavailable(f"demo: the driver ended with code {code}, expected 0. {self._tail()}")

    # --- crashes ---

    def _crash_if_due(self, crash: Crash, progress: DemoProgress, now: float) -> None:
        if progress.rows < crash.at:
            return
        if self._crash_time is None:  # wait a random time after the commit, to hit any point of a batch
            self._crash_time = now + self._chance.random()
        if now < self._crash_time or not self._crash(crash):
            return
        self._crash_time = None
        self.done += 1
        self._crashes.pop(0)

    def _crash(self, crash: Crash) -> bool:
        assert self._driver is not None
        if crash.victim == "worker":
            found = python_workers(list_processes(), self._driver.pid)
            if not found:
                return False
            victim = self._chance.choice(found)
            if not kill(victim.pid):
                return False
            self._screen.event(f"kill -9 of a Python worker of Spark, process {victim.pid}")
            return True
        pid = self._driver.pid
        self._kill_driver()
        self._screen.event(f"kill -9 of driver {self._lives} and its JVM, process group {pid}")
        self._start()
        return True

    # --- watching ---

    def _show(self, progress: DemoProgress) -> None:
        doing = f"driver {self._lives}"
        self._screen.show(Facts(self.seconds, self._settings.rows, progress, self.done, doing))

    def _check(self, progress: DemoProgress, now: float) -> None:
        assert self._driver is not None
        code = self._driver.poll()
        if code is not None:
            raise Unavailable(f"demo: the driver ended by itself with code {code}. {self._tail()}")
        if progress.commits != self._moved[1]:
            self._moved = (now, progress.commits)
        elif now - self._moved[0] > COMMIT_SECONDS:
            raise Unavailable(f"demo: there was no commit for {COMMIT_SECONDS:.0f} s. {self._tail()}")

    @property
    def _log(self) -> Path:
        return self._folder / "driver.log"

    def _tail(self, lines: int = 30) -> str:
        text = self._log.read_text(errors="replace").rstrip().splitlines()[-lines:]
        return f"The end of its log, {self._log}:\n" + "\n".join(f"  {line}" for line in text)


def _environment(folder: Path) -> dict[str, str]:
    """Return the driver's environment: it imports this package, and puts temporary files into the folder."""
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    found = {**os.environ, "SPARK_LOCAL_DIRS": str(temporary), "TMPDIR": str(temporary)}
    found["PYTHONPATH"] = os.pathsep.join(_non_empty(str(Path(millpond.__file__).parents[1]), found.get("PYTHONPATH")))
    if len(str(temporary)) < LONGEST_FOLDER:
        option = f"-Djava.io.tmpdir={temporary}"
        found["JDK_JAVA_OPTIONS"] = " ".join(_non_empty(found.get("JDK_JAVA_OPTIONS"), option))
    return found


def _non_empty(*values: str | None) -> list[str]:
    return [value for value in values if value]


def check_java() -> None:
    """Raises InvalidUse, with what to do, where Spark would find no Java."""
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java", path=os.path.join(home, "bin") if home else None) is None:
        where = f"in JAVA_HOME, which is {home}" if home else "on the PATH, and JAVA_HOME is not set"
        raise InvalidUse(
            f"demo: expected a Java runtime, 17 or newer, for Spark, and found none {where}. Install one (Debian: "
            "apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17) or set JAVA_HOME."
        )


@contextlib.contextmanager
def _raise_on_signals() -> Iterator[None]:
    """SIGTERM and a closed terminal end the demo as Ctrl-C does: what it has started goes first."""

    def end(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    before = {which: signal.signal(which, end) for which in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for which, old in before.items():
            signal.signal(which, old)
