"""Standbys and warm restarts, on a standalone cluster of three hosts on this machine: one core each, a folder each.

The state is a running total per key. The hosts, the driver and the standbys share the cores of one machine, so that
processor time is given apart.
"""

from __future__ import annotations

import itertools
import os
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from harness import Bench, ratio

import millpond as mp
from millpond.clock import SystemClock
from millpond.driver.loop import Settings
from millpond.log.heartbeat import seems_running
from millpond.sources.base import Chunk, Limit, Split
from millpond.storage import open_storage

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))

from processes import descendants, eventually
from spark_cluster import Cluster

HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
PARTITIONS = 6
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.cores.max": "3",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.shuffle.reduceLocality.enabled": "false",
    "spark.log.level": "OFF",
}


class Feed:
    """A row of every key at first, and then batches of so many rows, with keys by chance, whenever it is asked."""

    def __init__(self, keys: int, rows: int) -> None:
        self.keys, self.rows = keys, rows

    def plan(self, position: Mapping[str, Any], limit: Limit, now: float) -> list[Split]:
        done = position.get("0", 0)
        size = min(100_000, self.keys - done) if done < self.keys else self.rows
        third = -(-size // len(HOSTS))
        ends = [*range(done, done + size, third), done + size]
        return [Split("0", start, stop) for start, stop in itertools.pairwise(ends)]

    def read(self, split: Split) -> Iterator[Chunk]:
        keys: Any = range(split.start, split.stop)
        if split.start >= self.keys:
            keys = np.random.default_rng(split.start).integers(0, self.keys, split.stop - split.start).tolist()
        yield Chunk([{"k": f"user-{key:08d}", "v": key % 97} for key in keys], split.stop)


def add_up(key: str, row: dict[str, Any], total: int) -> tuple[None, int]:
    return None, total + row["v"]


@dataclass
class Running:
    """An app that runs in a thread, and when its batches began and were committed."""

    app: mp.App
    began: list[float] = field(default_factory=list)
    commits: list[float] = field(default_factory=list)

    def hook(self, step: str, when: str) -> None:
        if (step, when) == ("compute", "before"):
            self.began.append(time.perf_counter())
        elif (step, when) == ("commit", "after"):
            self.commits.append(time.perf_counter())

    def wait_for(self, commits: int) -> None:
        eventually(lambda: len(self.commits) >= commits, f"{commits} commits", patience=900)

    def wait_for_hosts(self) -> None:
        """Wait until three hosts have partitions, and all standbys are ready."""
        storage = open_storage(self.app.state_dir)

        def is_settled() -> bool:
            beat = seems_running(storage, self.app.name, SystemClock())
            copies = [] if beat is None else list(beat.partitions.values())
            ready = [sum(standby.ready for standby in held.standbys) for held in copies]
            return len({held.host for held in copies}) == 3 and ready == [self.app.standbys] * PARTITIONS

        eventually(is_settled, "all hosts and standbys", patience=300)

    @property
    def batch_seconds(self) -> list[float]:
        return [end - begin for begin, end in zip(self.began, self.commits, strict=False)]


@contextmanager
def running(app: mp.App, cluster: Cluster, every: float) -> Iterator[Running]:
    """Run an app on the cluster, in a session of its own, until the `with` block ends."""
    from pyspark.sql import SparkSession

    settings: dict[str, Any] = dict(SETTINGS)
    spark = SparkSession.builder.master(cluster.url).config(map=settings).getOrCreate()
    found, failures = Running(app), list[BaseException]()

    def run() -> None:
        try:
            mp.lowlevel.run_with(app, Settings(every=every, max_rows=1_000_000), spark, found.hook)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield found
    finally:
        app.stop()
        thread.join()
        spark.stop()
    if failures:
        raise failures[0]


@contextmanager
def new_cluster(bench: Bench) -> Iterator[tuple[Path, Cluster]]:
    folder = bench.new_folder("cluster")
    folder.mkdir(parents=True)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    cluster = Cluster(folder, HOSTS, cores=1, local_dirs=folder / "local")
    try:
        yield folder, cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def make_app(folder: Path, name: str, keys: int, rows: int, standbys: int) -> mp.App:
    app = mp.App(name, str(folder / "state"), PARTITIONS, standbys=standbys, compact_every=10)
    app.stream("rows", Feed(keys, rows)).key_by("k").stateful_map("total", add_up, initial=0)
    return app


def _keys(bench: Bench) -> int:
    return 20_000 if bench.is_quick else 1_000_000


def take_over(bench: Bench) -> None:
    """The longest time between two commits after `kill -9` of a host, with standbys and without."""
    keys = _keys(bench)
    found = []
    for standbys in (1, 0):
        pauses = []
        for number in range(bench.rounds(3)):
            with new_cluster(bench) as (folder, cluster):
                app = make_app(folder, f"take-over-{standbys}-{number}", keys, 1000, standbys)
                with running(app, cluster, every=0.2) as run:
                    run.wait_for(-(-keys // 100_000) + 10)
                    run.wait_for_hosts()
                    run.wait_for(len(run.commits) + 5)
                    before = len(run.commits)
                    cluster.kill(HOSTS[number % 3])
                    run.wait_for(before + 12)
                    around = run.commits[before - 1 : before + 12]
                    pauses.append(max(b - a for a, b in itertools.pairwise(around)))
        found.append(statistics.median(pauses))
    what = f"longest pause after kill -9 of a host, {keys:,} keys: standbys=1 / standbys=0"
    bench.note(what, f"{found[0]:.1f} / {found[1]:.1f} s = {ratio(found[1], found[0])} faster")


def cost_of_standbys(bench: Bench) -> None:
    """The median batch with standbys and without, with input at half of what the app can take, and processor time."""
    keys, rows = _keys(bench) // 10, bench.size // 2
    medians, processor = [], []
    with new_cluster(bench) as (folder, cluster):
        full = 1.0
        for standbys, every in ((0, None), (0, 2.0), (1, 2.0)):
            app = make_app(folder, f"cost-{standbys}-{every is None}", keys, rows, standbys)
            with running(app, cluster, every=0.001 if every is None else every * full) as run:
                first = -(-keys // 100_000) + 10
                run.wait_for(first)
                if every is not None:
                    run.wait_for_hosts()
                first, spent, count = len(run.commits), _processor_seconds(), 5 if bench.is_quick else 60
                run.wait_for(first + count)
                median = statistics.median(run.batch_seconds[first : first + count])
                if every is None:
                    full = median
                    continue
                medians.append(median)
                processor.append((_processor_seconds() - spent) / count)
    what = "median batch with input at half of capacity: standbys=1 / standbys=0"
    bench.note(what, f"{medians[1] * 1000:.0f} / {medians[0] * 1000:.0f} ms = {medians[1] / medians[0]:.2f}x")
    bench.note("processor time per batch, all processes: standbys=1 / standbys=0", _compare(processor[1], processor[0]))


def _compare(one: float, other: float) -> str:
    return f"{one:.2f} / {other:.2f} s = {ratio(one, other)}"


def _processor_seconds() -> float:
    """The processor time of this process and all below it: the driver, its JVM, the hosts and their workers."""
    ticks = 0
    for pid in [os.getpid(), *descendants(os.getpid())]:
        try:
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
        except OSError:  # it has ended, and its parent has its time
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


def warm_restart(bench: Bench) -> None:
    """The first batch of a run in a new session, with the replicas of the last run and without."""
    keys = _keys(bench)
    seconds: dict[str, list[float]] = {"warm": [], "cold": []}
    with new_cluster(bench) as (folder, cluster):
        app = make_app(folder, "restart", keys, 1000, 0)
        with running(app, cluster, every=0.2) as run:
            run.wait_for(-(-keys // 100_000) + 10)
            run.wait_for_hosts()
            run.wait_for(len(run.commits) + 3)
        for _ in range(bench.rounds(3)):
            for kind in seconds:
                if kind == "cold":
                    for host in HOSTS:
                        shutil.rmtree(cluster.local_dir(host), ignore_errors=True)
                with running(app, cluster, every=0.2) as run:
                    run.wait_for(3)
                    seconds[kind].append(run.commits[0] - run.began[0])
    warm, cold = statistics.median(seconds["warm"]), statistics.median(seconds["cold"])
    what = f"first batch after a restart on a cluster, {keys:,} keys: with the replicas / without"
    bench.note(what, f"{warm:.2f} / {cold:.2f} s = {ratio(cold, warm)} faster")
