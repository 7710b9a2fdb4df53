"""One round of chaos: several drivers of one app, and all that can be done to it, under random signals.

A round has a fresh app and a seed. The seed decides what is started, stopped and killed, and when; how far the
processes have come by then is up to the machine. At its end one driver runs to the end of the input, and then every
sink and the state must be equal to the fold of the input.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from multiprocessing import forkserver
from pathlib import Path
from typing import Any
from unittest import mock

import chaos_actors
import pyarrow.parquet as pq
from chaos_actors import NAME, SINKS, WINDOW, rows_of

import millpond as mp
from millpond.driver.commit import STEPS
from millpond.replica.lmdb_store import close_below

MOST_DRIVERS = 3
MOST_OTHERS = 2
PATIENCE = 90.0  # seconds for a process that nothing disturbs

_forks = multiprocessing.get_context("forkserver")


def start_fork_server() -> None:
    """Start the process that the actors are forked from, with everything imported: they begin within milliseconds."""
    path = os.pathsep.join([*(each for each in sys.path if each), os.environ.get("PYTHONPATH", "")])
    with mock.patch.dict(os.environ, PYTHONPATH=path):  # its search path is not that of this process
        _forks.set_forkserver_preload(["chaos_actors"])
        forkserver.ensure_running()


class Process:
    """An actor in a process of its own: forked from a server that has imported everything, or started as a script."""

    def __init__(self, folder: Path, number: int, role: str, how: dict[str, Any]) -> None:
        self.role, self.how = role, how
        self.log = folder / "logs" / f"{number:03d}-{role}.log"
        self.log.parent.mkdir(exist_ok=True)
        self._is_script = bool(how.get("spark"))
        if self._is_script:
            command = [sys.executable, chaos_actors.__file__, str(folder), str(self.log), role, json.dumps(how)]
            self._started: Any = subprocess.Popen(command, start_new_session=True, stdin=subprocess.DEVNULL, cwd=folder)
        else:
            start_fork_server()
            args = (str(folder), str(self.log), role, how)
            self._started = _forks.Process(target=chaos_actors.act, args=args, daemon=True)
            self._started.start()
        self.pid: int = self._started.pid

    @property
    def is_alive(self) -> bool:
        return self._started.poll() is None if self._is_script else bool(self._started.is_alive())

    def send(self, which: signal.Signals) -> None:
        """A signal to the process; stopping and killing reach the JVM and the workers below it, too."""
        if not self.is_alive:  # its number may be that of another process
            return
        with contextlib.suppress(ProcessLookupError):
            if self._is_script and which != signal.SIGTERM:
                os.killpg(self.pid, which)
            else:
                os.kill(self.pid, which)

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped, by us or by itself, and not continued."""
        with contextlib.suppress(OSError):
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        return False

    def wait(self, patience: float) -> bool:
        until = time.monotonic() + patience
        while self.is_alive and time.monotonic() < until:
            time.sleep(0.01)
        return not self.is_alive

    @property
    def end(self) -> str | None:
        """How it ended; None if it was killed before."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        ends = [line for line in lines if line.startswith("END ")]
        return json.loads(ends[-1][4:]) if ends else None

    def destroy(self) -> None:
        self.send(signal.SIGCONT)
        self.send(signal.SIGKILL)
        self.wait(10)

    def __str__(self) -> str:
        return f"{self.log.stem} {self.how}"


class Round:
    """A fresh app, what is done to it, and what is found to be wrong."""

    def __init__(self, seed: int, folder: Path, *, spark: bool = False) -> None:
        self.seed, self.folder, self.spark = seed, folder, spark
        self.chance = random.Random(seed)
        self.processes: list[Process] = []
        self.did: list[str] = []
        self.wrong: list[str] = []
        self._fed = self._files = 0

    # --- what happens ---

    def play(self, events: int) -> list[str]:
        """The whole round; what is wrong, if anything."""
        try:
            self.feed()
            self.start_driver()
            for _ in range(events):
                self._pause()
                self.chance.choice(self._events())()
            self.settle()
            self.finish()
            self.check()
            if self.wrong == [] and self.chance.random() < 0.5:
                self.put_copy_back()
            if self.wrong == []:
                self.restore_savepoints()
        finally:
            for process in self.processes:
                process.destroy()
            close_below(str(self.folder))
        return self.wrong

    def _pause(self) -> None:
        time.sleep(self.chance.choice([0.0, 0.05, 0.2, 0.5]) * (12 if self.spark else 1))

    def _events(self) -> list[Any]:
        return [
            self.feed, self.feed, self.start_driver, self.start_driver, self.start_driver, self.stop, self.stop,
            self.go_on, self.go_on, self.kill, self.admin, self.admin, self.admin, self.watch,
        ]  # fmt: skip

    def feed(self) -> None:
        rows = []
        for _ in range(self.chance.randrange(20, 120)):
            row = {"id": self._fed, "key": f"k{self.chance.randrange(7)}", "value": self.chance.randrange(1, 9)}
            rows.append({**row, "at": self._fed})
            self._fed += 1
        self._files += 1
        (self.folder / "in").mkdir(parents=True, exist_ok=True)
        hidden = self.folder / "in" / f".{self._files:06d}.jsonl"
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.replace(hidden, hidden.with_name(hidden.name[1:]))
        self.did.append(f"feed {len(rows)}")

    def start(self, role: str, **how: Any) -> Process:
        process = Process(self.folder, len(self.processes), role, how)
        self.processes.append(process)
        self.did.append(str(process))
        return process

    def _alive(self, *, drivers: bool) -> list[Process]:
        return [each for each in self.processes if each.is_alive and (each.role == "drive") == drivers]

    def start_driver(self) -> None:
        if len(self._alive(drivers=True)) < (2 if self.spark else MOST_DRIVERS):
            how: dict[str, Any] = {"spark": True} if self.spark else {"ahead": self.chance.random() < 0.3}
            if self.chance.random() < 0.5:  # at a point where a random signal would seldom meet it
                step, when = self.chance.choice(STEPS), self.chance.choice(["before", "during", "after"])
                name = self.chance.choice(["SIGSTOP", "SIGSTOP", "SIGKILL"])
                how["at"] = (step, when, self.chance.randrange(4), name)
            self.start("drive", **how)

    def admin(self) -> None:
        if len(self._alive(drivers=False)) >= MOST_OTHERS:
            return
        force = self.chance.random() < 0.8  # an admin who is sure that the app does not run
        role = self.chance.choice(["rescale", "compact", "rollback", "rollback", "savepoint"])
        how: dict[str, Any] = {"force": force}
        if role == "rescale":
            how["partitions"] = self.chance.randrange(1, 4)
        elif role == "rollback":
            how["back"] = self.chance.randrange(1, 12)
        elif role == "savepoint":
            how = {"name": f"s{len(self.processes)}"}
        self.start(role, **how)

    def watch(self) -> None:
        if len(self._alive(drivers=False)) < MOST_OTHERS:
            role = self.chance.choice(["read", "read", "verify", "copy"])
            self.start(role, **({"times": 5} if role == "read" else {}))

    def _signal(self, which: signal.Signals, among: list[Process]) -> None:
        if among:
            process = self.chance.choice(among)
            process.send(which)
            self.did.append(f"{which.name} {process.log.stem}")

    def stop(self) -> None:
        self._signal(signal.SIGSTOP, [each for each in self.processes if each.is_alive and not each.is_stopped])

    def go_on(self) -> None:
        self._signal(signal.SIGCONT, [each for each in self.processes if each.is_alive and each.is_stopped])

    def kill(self) -> None:
        self._signal(signal.SIGKILL, [each for each in self.processes if each.is_alive])

    # --- what must hold ---

    def settle(self) -> None:
        """Everyone goes on; drivers are asked to stop, and all of them must end by themselves."""
        stopped = [each for each in self.processes if each.is_alive and each.is_stopped]
        self.chance.shuffle(stopped)
        for process in stopped:
            process.send(signal.SIGCONT)
            self._pause()
        time.sleep(self.chance.uniform(0.0, 0.4))
        for process in self._alive(drivers=True):
            process.send(signal.SIGTERM)
        for process in self.processes:
            until = time.monotonic() + PATIENCE
            while not process.wait(0.5) and time.monotonic() < until:
                if process.is_stopped:  # it has come to the point where it stops itself
                    process.send(signal.SIGCONT)
            if process.is_alive:
                process.send(signal.SIGABRT)  # its log then says what every thread did
                process.wait(5)
                self.wrong.append(f"{process} did not end within {PATIENCE:.0f} s")

    def finish(self, **how: Any) -> None:
        """One driver that nothing disturbs reads to the end of the input."""
        self.feed()
        last = self.start("drive", until="caught-up", **({"spark": True} if self.spark else {}), **how)
        if not last.wait(3 * PATIENCE):
            self.wrong.append(f"{last} did not end")
        elif last.end != "done":
            self.wrong.append(f"{last}: {last.end}")

    def check(self, *, state: str = "state", sinks: str | None = "out") -> None:
        for process in self.processes:
            end = process.end
            if end is not None and end.startswith(("error", "raw error")):
                self.wrong.append(f"{process} ended with {end}")
        rows = rows_of(self.folder)
        app = chaos_actors.make_app(self.folder, state=state, local=f"local-{state}-{len(self.processes)}")
        totals, thirds, windows = folded(rows)
        self._equal("state of total", dict(app.state("total").items()), totals)
        held = {key: value["n"] for key, value in app.state("thirds").items()}
        self._equal("state of thirds", held, {key: max(counts) for key, counts in thirds.items()})
        verdict = app.verify()
        if not verdict.ok:
            self.wrong.append(f"verify: {verdict.damaged}")
        if sinks is None:
            return
        out = self.folder / sinks
        self.wrong += compared_totals(json_rows(out / "totals"), rows)
        counted = Counter((row["third"], row["n"]) for row in parquet_rows(out / "counts"))
        self._equal("sink counts", counted, Counter((third, n) for third in thirds for n in thirds[third]))
        closed = Counter((row["key"], row["window_start"], row["n"]) for row in json_rows(out / "closed"))
        self._equal("sink closed", closed, Counter(windows))

    def _equal(self, what: str, found: Any, expected: Any) -> None:
        if found != expected:
            less = {key: expected[key] for key in expected if found.get(key) != expected[key]}
            more = {key: found[key] for key in found if expected.get(key) != found[key]}
            self.wrong.append(f"{what}: expected {less} and found {more}")

    def put_copy_back(self) -> None:
        """A copy of the state directory that an actor has taken is put back, and its sinks give back what is newer."""
        if not (self.folder / "copy").exists():
            return
        if not mp.admin(str(self.folder / "copy"), NAME).verify().ok:
            return  # files went while it was being taken; whoever puts a copy back is to look
        shutil.rmtree(self.folder / "state")
        os.rename(self.folder / "copy", self.folder / "state")
        self.did.append("the copy was put back")
        self.finish(take_back=list(SINKS))
        self.check()

    def restore_savepoints(self) -> None:
        """A savepoint, restored into another place and run to the end of the input, has the same state."""
        for done in sorted((self.folder / "saved").glob("*.done"))[:1]:
            other = chaos_actors.make_app(self.folder, state="restored", sinks="restored-out", local="restored-local")
            other.restore(done.with_suffix(""))
            self.did.append(f"restored {done.stem}")
            self.finish(state="restored", sinks="restored-out", local="restored-local")
            self.check(state="restored", sinks=None)

    def __str__(self) -> str:
        logs = [f"  {process}: {process.end}" for process in self.processes]
        return "\n".join([f"MILLPOND_CHAOS_SEED={self.seed}", *logs, f"  {self.did}", *self.wrong])


def folded(
    rows: list[dict[str, Any]],
) -> tuple[dict[str, int], dict[int, list[int]], list[tuple[str, int, int]]]:
    """The totals, the counts of every third on their way, and the windows that are closed."""
    totals: dict[str, int] = {}
    thirds: dict[int, list[int]] = {}
    counts: dict[tuple[str, int], int] = {}
    for row in rows:
        totals[row["key"]] = totals.get(row["key"], 0) + row["value"]
        seen = thirds.setdefault(row["id"] % 3, [])
        seen.append(len(seen) + 1)
        window = (row["key"], row["at"] // WINDOW)
        counts[window] = counts.get(window, 0) + 1
    open_from = (len(rows) - 1) // WINDOW
    return totals, thirds, [(key, at * WINDOW, n) for (key, at), n in counts.items() if at < open_from]


def compared_totals(found: list[dict[str, Any]], rows: list[dict[str, Any]]) -> list[str]:
    """Every id once, and totals that add up to the values of the ids."""
    ids = Counter(row["id"] for row in found)
    wrong = []
    lost = [row["id"] for row in rows if row["id"] not in ids]
    doubled = [id for id, count in ids.items() if count > 1]
    if lost or doubled or len(ids) != len(rows):
        wrong.append(f"sink totals: lost {lost}, more than once {doubled}, of {len(rows)}")
    value = {row["id"]: row["value"] for row in rows}
    for key in {row["key"] for row in rows}:
        at = 0
        for row in sorted((row for row in found if row["key"] == key), key=lambda row: row["total"]):
            at += value.get(row["id"], 0)
            if row["total"] != at and not wrong:
                wrong.append(f"sink totals: key {key}, id {row['id']}: expected {at}, found {row['total']}")
    return wrong


def visible(folder: Path, suffix: str) -> list[Path]:
    return [file for file in sorted(folder.glob(f"*{suffix}")) if not file.name.startswith((".", "_"))]


def json_rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in visible(folder, ".jsonl") for line in file.read_text().splitlines()]


def parquet_rows(folder: Path) -> list[dict[str, Any]]:
    return [row for file in visible(folder, ".parquet") for row in pq.ParquetFile(file).read().to_pylist()]


__all__ = ["Process", "Round"]
