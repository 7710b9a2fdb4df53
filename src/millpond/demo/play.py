"""The demo, all of it together: feed the app, watch it, kill it, start it again, and look at what came of it."""

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
from millpond.demo.crashes import Crash, released, schedule
from millpond.demo.feed import Feed
from millpond.demo.payments import fold, payments
from millpond.demo.processes import Process, family, kill, kill_remains, processes, workers
from millpond.demo.progress import Progress, Watch
from millpond.demo.screen import Facts, Screen
from millpond.demo.verdict import Verdict, compare, rows_in
from millpond.errors import InvalidUse, Unavailable

BATCHES = 50  # about; small ones, so that there are many commits for a crash to fall between
SMALLEST = 1_000  # rows in a batch
SECONDS = 30.0  # in which the payments come in at the latest, crashes not counted
SLOWEST = 6_000.0  # rows per second
TICK = 0.1
PATIENCE = 300.0  # seconds without a commit after which something must be wrong
LONGEST_FOLDER = 56  # characters, for what Java calls temporary: Spark puts sockets there, whose paths must be short
ENDING = 120.0  # seconds that a driver may take to end after its last batch


@dataclass(frozen=True)
class Settings:
    """How large the demo is, and how often it crashes."""

    rows: int = 200_000
    cards: int = 2_000
    seed: int = 1
    kills: int = 2


@dataclass(frozen=True)
class Outcome:
    """What became of it: the verdict, and how many kills it took."""

    verdict: Verdict
    crashes: int
    seconds: float


def play(settings: Settings, folder: Path, screen: Screen) -> Outcome:
    """Run the demo in an empty folder. Every process that it starts is gone when this returns or raises."""
    stage = _Stage(settings, folder, screen)
    with _ended_by_signals():
        try:
            stage.run()
        finally:
            stage.clean_up()
    expected = fold(payments(settings.rows, settings.cards, settings.seed))
    screen.event("comparing state and sink with a fold in plain Python")
    verdict = compare(expected, dict(stage.watch.state.items()), rows_in(folder / "totals"))
    return Outcome(verdict, stage.done, stage.seconds)


class _Stage:
    """The driver's process, what it is fed with, and what is done to it."""

    def __init__(self, settings: Settings, folder: Path, screen: Screen) -> None:
        self._settings, self._folder, self._screen = settings, folder, screen
        self._began = elapsed()
        rows = payments(settings.rows, settings.cards, settings.seed)
        pace = max(SLOWEST, settings.rows / SECONDS)
        self._feed = Feed(folder / "payments", rows, settings.rows, pace, self._began)
        self.watch = Watch(folder)
        self._crashes = schedule(settings.rows, settings.kills, settings.seed)
        self._chance = random.Random(settings.seed)
        self._strike_at: float | None = None
        self.done = 0
        self._lives = 0
        self._driver: subprocess.Popen[bytes] | None = None
        self._remembered: set[Process] = set()
        self._moved = (self._began, 0)

    @property
    def seconds(self) -> float:
        return elapsed() - self._began

    def run(self) -> None:
        """Until every row is committed, every crash has happened and the driver has ended in peace."""
        self._start()
        while True:
            now = elapsed()
            self._feed.tick(now, released(self._settings.rows, len(self._crashes) + self.done, self.done))
            progress = self.watch.look(now)
            self._check(progress, now)
            self._show(progress)
            if self._crashes:
                self._perhaps_strike(self._crashes[0], progress, now)
            elif progress.rows >= self._settings.rows:
                break
            SystemClock().sleep(TICK)
        self._stop()
        self._show(self.watch.look(elapsed()))

    def clean_up(self) -> None:
        """Leave no process behind, whatever has happened."""
        if self._driver is not None and self._driver.poll() is None:
            self._kill_driver()
        if self._driver is not None and self._driver.stdin is not None:
            self._driver.stdin.close()  # also of a driver that ended by itself
        kill_remains(self._remembered)

    # --- the driver ---

    def _start(self) -> None:
        self._lives += 1
        settings, folder = self._settings, self._folder
        arguments = [str(folder), str(max(SMALLEST, settings.rows // BATCHES))]
        with open(self._log, "ab") as log:
            self._driver = subprocess.Popen(
                [sys.executable, "-m", "millpond.demo.program", *arguments],
                stdin=subprocess.PIPE,  # never written to: it ends when we do, and the driver with it
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=_environment(folder),
                start_new_session=True,
            )
        self._screen.event(f"driver {self._lives} started, process {self._driver.pid}")

    def _kill_driver(self) -> None:
        assert self._driver is not None
        # Spark's Python workers have a group of their own and outlive this, for a moment or, if they hang, longer.
        self._remembered.update(family(processes(), self._driver.pid))
        os.killpg(self._driver.pid, signal.SIGKILL)
        self._driver.wait()
        if self._driver.stdin is not None:
            self._driver.stdin.close()

    def _stop(self) -> None:
        assert self._driver is not None
        self._screen.event("all payments are committed, the driver is asked to end")
        self._remembered.update(family(processes(), self._driver.pid))
        self._driver.terminate()
        try:
            code = self._driver.wait(ENDING)
        except subprocess.TimeoutExpired:
            raise Unavailable(f"demo: the driver did not end within {ENDING:.0f} s. {self._tail()}") from None
        if code != 0:
            raise Unavailable(f"demo: the driver ended with code {code}, expected 0. {self._tail()}")

    # --- what is done to it ---

    def _perhaps_strike(self, crash: Crash, progress: Progress, now: float) -> None:
        if progress.rows < crash.at:
            return
        if self._strike_at is None:  # we have just seen a commit: wait, so that it may hit any moment of a batch
            self._strike_at = now + self._chance.random()
        if now < self._strike_at or not self._struck(crash):
            return
        self._strike_at = None
        self.done += 1
        self._crashes.pop(0)

    def _struck(self, crash: Crash) -> bool:
        assert self._driver is not None
        if crash.victim == "worker":
            found = workers(processes(), self._driver.pid)
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

    def _show(self, progress: Progress) -> None:
        doing = f"driver {self._lives}"
        self._screen.show(Facts(self.seconds, self._settings.rows, progress, self.done, doing))

    def _check(self, progress: Progress, now: float) -> None:
        assert self._driver is not None
        code = self._driver.poll()
        if code is not None:
            raise Unavailable(f"demo: the driver ended by itself with code {code}. {self._tail()}")
        if progress.commits != self._moved[1]:
            self._moved = (now, progress.commits)
        elif now - self._moved[0] > PATIENCE:
            raise Unavailable(f"demo: nothing was committed for {PATIENCE:.0f} s. {self._tail()}")

    @property
    def _log(self) -> Path:
        return self._folder / "driver.log"

    def _tail(self, lines: int = 30) -> str:
        text = self._log.read_text(errors="replace").rstrip().splitlines()[-lines:]
        return f"Its log, {self._log}, ends so:\n" + "\n".join(f"  {line}" for line in text)


def _environment(folder: Path) -> dict[str, str]:
    """The driver's environment: it finds this very package, and leaves its temporary files in the folder."""
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    found = {**os.environ, "SPARK_LOCAL_DIRS": str(temporary), "TMPDIR": str(temporary)}
    found["PYTHONPATH"] = os.pathsep.join(_given(str(Path(millpond.__file__).parents[1]), found.get("PYTHONPATH")))
    if len(str(temporary)) < LONGEST_FOLDER:
        option = f"-Djava.io.tmpdir={temporary}"
        found["JDK_JAVA_OPTIONS"] = " ".join(_given(found.get("JDK_JAVA_OPTIONS"), option))
    return found


def _given(*values: str | None) -> list[str]:
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
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and a closed terminal end the demo as Ctrl-C does: what it has started goes first."""

    def end(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    before = {which: signal.signal(which, end) for which in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for which, old in before.items():
            signal.signal(which, old)
