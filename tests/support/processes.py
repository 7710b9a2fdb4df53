"""Programs in processes of their own: started, watched, stopped, killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

PATIENCE = 240.0  # seconds: a JVM starts slowly on a machine that is busy


def eventually(found: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
    """What `found` finds, as soon as it is something; a failed test if it never is."""
    until = time.monotonic() + patience
    while True:
        result = found()
        if result:
            return result
        assert time.monotonic() < until, f"waited {patience:.0f} s for {what}"
        time.sleep(0.05)


class Program:
    """A running script, at the head of a process group that holds its JVM too.

    The numbers of processes that have ended are given again, to threads of other programs, too. So nothing is sent to a
    process that was waited for, and what it has left is found by a mark in the environment.
    """

    def __init__(
        self,
        script: Path,
        *args: object,
        logs: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self.log = logs / f"{script.stem}-{len(list(logs.iterdir()))}.log"
        left = logs / "left behind"  # by whoever is killed: it goes with the test's folder
        left.mkdir(exist_ok=True)
        self._mark = f"MILLPOND_TEST_PROGRAM={self.log}"
        # Without these a worker finds modules and the Python only if it is told where they are.
        bare = {name: value for name, value in os.environ.items() if name not in ("PYSPARK_PYTHON", "PYTHONPATH")}
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(script), *map(str, args)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={
                    **bare,
                    "TMPDIR": str(left),
                    "SPARK_LOCAL_DIRS": str(left),
                    "PYTHONFAULTHANDLER": "1",
                    "MILLPOND_TEST_PROGRAM": str(self.log),
                    **(env or {}),
                },
                cwd=cwd or logs,
                start_new_session=True,
            )
        self.pid = self.process.pid

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self, patience: float = PATIENCE) -> int:
        """The exit code."""
        try:
            return self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGABRT)  # its last words are what every thread was doing
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
            raise AssertionError(f"still running after {patience:.0f} s:\n{self.output[-4000:]}") from None

    def succeed(self) -> str:
        """Wait for it; its output, if it has ended well."""
        code = self.wait()
        assert code == 0, f"exit code {code}:\n{self.output[-6000:]}"
        return self.output

    def wait_for(self, text: str) -> None:
        """Wait until it has printed a text."""

        def said() -> bool:
            over = self.process.poll() is not None
            if text in self.output:
                return True
            assert not over, f"ended with {self.process.returncode} and without {text!r}:\n{self.output[-6000:]}"
            return False

        eventually(said, repr(text))

    def send(self, which: signal.Signals) -> None:
        os.kill(self.pid, which)

    def kill(self) -> None:
        """kill -9 of the driver and its JVM at once."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()

    def destroy(self) -> None:
        """kill -9 of the process and all that it has started."""
        for _ in range(2):  # what was started by a process that is killed first
            for pid in marked(self._mark):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.wait()


def marked(mark: str) -> list[int]:
    """The processes that were started with an entry of the environment, `NAME=value`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def parents() -> dict[int, tuple[int, str]]:
    """Every process of this machine that is alive: its parent and its command line."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "stat").read_text().rpartition(")")[2].split()
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if status[0] != "Z":
                found[int(entry.name)] = (int(status[1]), command)
    return found


def descendants(pid: int, matching: str = "") -> list[int]:
    """The processes below one, whose command line holds a text."""
    table = parents()
    found, level = [], [pid]
    while level:
        level = [child for child, (parent, _) in table.items() if parent in level]
        found += [child for child in level if matching in table[child][1]]
    return found


def any_alive(pids: list[int]) -> bool:
    return not set(pids).isdisjoint(parents())


def workers(pid: int) -> list[int]:
    """The Python workers of a driver: Spark forks them off a daemon, below its JVM."""
    daemons = descendants(pid, "pyspark.daemon")
    return [one for one in daemons if parents().get(one, (0, ""))[0] in daemons]


def is_asleep(pid: int) -> bool:
    """Whether all threads of a process are stopped. SIGSTOP takes effect when one of them gets to run."""
    with contextlib.suppress(OSError):
        states = [file.read_text().rpartition(")")[2].split()[0] for file in Path(f"/proc/{pid}/task").glob("*/stat")]
        return bool(states) and all(state == "T" for state in states)
    return False
