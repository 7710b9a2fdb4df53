"""Lists the processes of this machine, and finds the driver's descendants and Spark's Python workers."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
DAEMON = "pyspark.daemon"  # Spark's Python workers are forks of it, with the same command line


@dataclass(frozen=True)
class OsProcess:
    """One running process."""

    pid: int
    parent: int
    command: str


def list_processes() -> list[OsProcess]:
    """Return all processes that are running now.

    >>> import os
    >>> os.getpid() in [process.pid for process in list_processes()]
    True
    """
    return list(_from_proc() if (PROC / "self/stat").exists() else _from_ps())


def _from_proc() -> Iterator[OsProcess]:
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue  # it has ended meanwhile
        if state not in "ZX":
            yield OsProcess(int(entry.name), int(parent), command)


def _from_ps() -> Iterator[OsProcess]:
    # One -o each: some versions of ps take everything after a "=" as a heading.
    command = ["ps", "-A", "-ww", "-o", "pid=", "-o", "ppid=", "-o", "stat=", "-o", "command="]
    out = subprocess.run(command, capture_output=True, text=True, check=True)
    for line in out.stdout.splitlines():
        pid, parent, state, *command = line.split(None, 3)
        if not state.startswith("Z"):
            yield OsProcess(int(pid), int(parent), "".join(command).strip())


def process_tree(found: Iterable[OsProcess], pid: int) -> list[OsProcess]:
    """Return a process and all its descendants.

    >>> init, parent, child = OsProcess(1, 0, "init"), OsProcess(7, 1, "a"), OsProcess(9, 7, "b")
    >>> [p.pid for p in process_tree([init, parent, child], 7)]
    [7, 9]
    """
    found = sorted(found, key=lambda process: process.pid)
    members = {pid}
    while more := {p.pid for p in found if p.parent in members} - members:
        members |= more
    return [process for process in found if process.pid in members]


def python_workers(found: Iterable[OsProcess], pid: int) -> list[OsProcess]:
    """Return the Python workers of Spark among the descendants of a driver.

    >>> daemon = OsProcess(8, 7, "python -m pyspark.daemon")
    >>> worker = OsProcess(9, 8, "python -m pyspark.daemon")
    >>> [p.pid for p in python_workers([OsProcess(7, 1, "java"), daemon, worker], 7)]
    [9]
    """
    own = process_tree(found, pid)
    daemons = {process.pid for process in own if DAEMON in process.command}
    return [process for process in own if process.pid in daemons and process.parent in daemons]


def kill(pid: int) -> bool:
    """Send SIGKILL to a process; return whether it existed."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


def kill_survivors(remembered: Iterable[OsProcess]) -> None:
    """Kill these processes if they still run. The command is compared, too: a pid may have been reused."""
    known = {(process.pid, process.command) for process in remembered}
    for process in list_processes():
        if (process.pid, process.command) in known:
            kill(process.pid)
