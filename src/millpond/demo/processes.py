"""The processes of this machine: the driver's family, and which of them are Spark's Python workers."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
DAEMON = "pyspark.daemon"  # Spark's Python workers are forks of it, and are called as it is


@dataclass(frozen=True)
class Process:
    """One process that is alive."""

    pid: int
    parent: int
    command: str


def processes() -> list[Process]:
    """All processes that are alive now.

    >>> import os
    >>> os.getpid() in [process.pid for process in processes()]
    True
    """
    return list(_from_proc() if (PROC / "self/stat").exists() else _from_ps())


def _from_proc() -> Iterator[Process]:
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue  # it has ended since
        if state not in "ZX":
            yield Process(int(entry.name), int(parent), command)


def _from_ps() -> Iterator[Process]:
    # One -o each: behind a "=", some versions of ps take the rest of the argument for a heading.
    command = ["ps", "-A", "-ww", "-o", "pid=", "-o", "ppid=", "-o", "stat=", "-o", "command="]
    out = subprocess.run(command, capture_output=True, text=True, check=True)
    for line in out.stdout.splitlines():
        pid, parent, state, *command = line.split(None, 3)
        if not state.startswith("Z"):
            yield Process(int(pid), int(parent), "".join(command).strip())


def family(found: Iterable[Process], pid: int) -> list[Process]:
    """A process and all that descend from it.

    >>> [p.pid for p in family([Process(1, 0, "init"), Process(7, 1, "a"), Process(9, 7, "b")], 7)]
    [7, 9]
    """
    found = sorted(found, key=lambda process: process.pid)
    members = {pid}
    while more := {p.pid for p in found if p.parent in members} - members:
        members |= more
    return [process for process in found if process.pid in members]


def workers(found: Iterable[Process], pid: int) -> list[Process]:
    """The Python workers of Spark among the descendants of a driver.

    >>> daemon, worker = Process(8, 7, "python -m pyspark.daemon"), Process(9, 8, "python -m pyspark.daemon")
    >>> [p.pid for p in workers([Process(7, 1, "java"), daemon, worker], 7)]
    [9]
    """
    own = family(found, pid)
    daemons = {process.pid for process in own if DAEMON in process.command}
    return [process for process in own if process.pid in daemons and process.parent in daemons]


def kill(pid: int) -> bool:
    """SIGKILL to one process; whether it was there."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


def kill_remains(remembered: Iterable[Process]) -> None:
    """Kill those of these processes that are still there; a stranger that got such a number is left alone."""
    known = {(process.pid, process.command) for process in remembered}
    for process in processes():
        if (process.pid, process.command) in known:
            kill(process.pid)
