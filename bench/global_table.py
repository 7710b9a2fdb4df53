"""A table that is everywhere, with a million entries: lookups against a Python dict, loading, memory, and changes.

The lookups are those of the real step over the real replica, in one process, without reading and writing of rows. The
dict has the same rows and does the same with them.
"""

from __future__ import annotations

import multiprocessing
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from harness import Bench

import millpond as mp
from millpond.clock import SystemClock
from millpond.driver.commit import Driver
from millpond.driver.settings import DriverSettings
from millpond.messages import BatchContext, EventTime
from millpond.replica.lmdb_store import close_below
from millpond.rows.rows import Rows
from millpond.runtimes.local import LocalRuntime
from millpond.sources.base import Limit
from millpond.steps.base import BatchTime, Running, StepContext
from millpond.steps.failure import Failures
from millpond.task.tables import TaskTables

PARTITIONS = 4
WORKERS = 2  # processes that share the replica of the host
SMALL = 200  # rows of a batch beside which the table changes
CHANGES = 100
ROUNDS = 7


class Feed:
    """A source of `total` rows, made by a function of their number; a batch reads up to `most` of them."""

    def __init__(self, make: Callable[[int], Any], total: int, most: int) -> None:
        self.make, self.total, self.most = make, total, most

    def plan(self, position: Mapping[str, Any], limit: mp.lowlevel.Limit, now: float) -> list[mp.lowlevel.Split]:
        start = position.get("rows", 0)
        stop = min(start + self.most, self.total)
        return [mp.lowlevel.Split("rows", start, stop)] if stop > start else []

    def read(self, split: mp.lowlevel.Split) -> Iterator[mp.lowlevel.Chunk]:
        yield mp.lowlevel.Chunk([self.make(n) for n in range(split.start, split.stop)], split.stop)


def entry(n: int) -> dict[str, Any]:
    return {"sku": f"sku-{n:07d}", "price": n % 997, "name": f"article {n}", "group": f"group {n % 50}"}


def order(n: int, item: int) -> dict[str, Any]:
    return {"order": n, "item": f"sku-{item:07d}", "pieces": n % 7}


def shop(folder: Path, entries: Feed, orders: Feed) -> mp.App:
    app = mp.App("bench", str(folder / "state"), partitions=PARTITIONS, local_dir=str(folder / "local"))
    prices = app.table("prices", app.stream("updates", entries).key_by("sku"), everywhere=True)
    looked = app.stream("orders", orders).lookup("priced", prices, on="item")
    looked.to("out", mp.sinks.discard())
    return app


_programs: dict[int, Any] = {}  # one per app: it remembers rows of the table from batch to batch


def program_of(app: mp.App) -> Any:
    if id(app) not in _programs:
        _programs[id(app)] = (app, mp.lowlevel.program(app))
    return _programs[id(app)][1]


def start(app: mp.App) -> Driver:
    storage, clock = mp.lowlevel.storage(app), SystemClock()
    settings = DriverSettings(partitions=app.partitions, home=app.local_dir, threaded=False)
    return Driver.start(program_of(app), LocalRuntime(storage, clock), storage, clock, settings)


def run_batches(driver: Driver) -> list[float]:
    """Run all batches; return the seconds of each."""
    found, began = [], time.perf_counter()
    while driver.batch(Limit(1 << 40, 1 << 60)):
        found.append(time.perf_counter() - began)
        began = time.perf_counter()
    return found


class OpenTable:
    """The table as a task of the next batch opens it, and a lookup step that reads it."""

    def __init__(self, app: mp.App, context: BatchContext) -> None:
        self._program = program_of(app)
        self._tables = TaskTables(mp.lowlevel.storage(app), self._program, context, 0)
        self._stack = ExitStack()

    def __enter__(self) -> OpenTable:
        self._stack.enter_context(self._tables.open_whole(["prices"], set()))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def lookup(self) -> Running:
        step = next(node.op.step for node in self._program.nodes if node.name == "priced" and node.op.has_state)
        failures = Failures(1, SystemClock(), lambda letter, place: None)
        rows: Any = self._tables.rows(None, "prices")  # type: ignore[arg-type]
        return step.start(
            StepContext(
                view=None,  # type: ignore[arg-type]  # a lookup has no state
                codec=self._program.codec,
                failures=failures,
                time=BatchTime(now=0.0),
                arrival=1,
                tables={"prices": rows},
            )
        )


def looked_up(table: OpenTable, orders: list[dict[str, Any]]) -> float:
    """Return the processor time of looking up the entries of some orders."""
    rows = Rows([dict(row) for row in orders], range(len(orders)))
    began = time.process_time()
    running = table.lookup()
    running.run(rows)
    [found] = running.end()  # type: ignore[misc]
    spent = time.process_time() - began
    assert len(found) == len(orders) and "price" in found.data[-1]
    return spent


def looked_up_in_dict(entries: dict[str, dict[str, Any]], orders: list[dict[str, Any]]) -> float:
    rows = [dict(row) for row in orders]
    began = time.process_time()
    found = [{**row, **entries[row["item"]]} for row in rows]
    spent = time.process_time() - began
    assert len(found) == len(orders)
    return spent


def drawn(count: int, rows: int, is_skewed: bool, seed: int) -> list[dict[str, Any]]:
    """Return orders of articles that are all asked for alike, or some of them much more often than others."""
    chance = np.random.default_rng(seed)
    items = chance.zipf(1.2, rows) % count if is_skewed else chance.integers(0, count, rows)
    return [order(n, int(item)) for n, item in enumerate(items)]


def million_entries(bench: Bench) -> None:
    count = 20_000 if bench.is_quick else 1_000_000
    folder = bench.new_folder("table")
    app = shop(folder, Feed(entry, count, 200_000), Feed(entry, 0, 1))
    began = time.perf_counter()
    driver = start(app)
    run_batches(driver)
    driver.close()
    bench.note(f"a table everywhere, {count:,} entries: from the source to the log", seconds_since(began))
    app.compact()
    close_below(folder / "local")
    shutil.rmtree(folder / "local")  # as on a host that has not had it
    driver = start(app)
    context = driver.owner.context(0.0, app.local_dir, EventTime())
    _opening(bench, app, context)
    _memory(bench, folder, context, count)
    entries = {row["sku"]: row for row in map(entry, range(count))}
    for is_skewed in (False, True):
        _against_dict(bench, app, context, entries, is_skewed)
    driver.close()
    _changes(bench, folder, count)


def _opening(bench: Bench, app: mp.App, context: BatchContext) -> None:
    for what in ("loaded from the log, once per host", "opened by a task, when it is there"):
        began = time.perf_counter()
        with OpenTable(app, context):
            bench.note(f"the same: {what}", seconds_since(began))


def _against_dict(
    bench: Bench, app: mp.App, context: BatchContext, entries: dict[str, dict[str, Any]], is_skewed: bool
) -> None:
    ours, theirs = [], []
    size = bench.size // 2
    for number in range(bench.rounds(ROUNDS) + 1):
        orders = drawn(len(entries), size, is_skewed, number)
        with OpenTable(app, context) as table:
            ours.append(looked_up(table, orders))
        theirs.append(looked_up_in_dict(entries, orders))
    one, other = (size / statistics.median(found[1:]) for found in (ours, theirs))
    how = "some much more often than others" if is_skewed else "all alike"
    bench.note_rows(f"lookup of {how} in {len(entries):,} entries / in a dict of the same rows", one, other)


# --- what a batch costs ---


def _changes(bench: Bench, folder: Path, count: int) -> None:
    """Note the time of a batch with a few orders, beside which the table changes, or does not."""
    updates = Feed(lambda n: {**entry(n % count), "price": -n}, count, 200_000)
    orders = Feed(lambda n: order(n, n * 7919 % count), 0, SMALL)
    driver = start(shop(folder, updates, orders))
    run_batches(driver)  # which reads what there is of the table before it reads orders
    found: dict[int, list[float]] = {0: [], CHANGES: []}
    for _ in range(6 if bench.is_quick else 30):
        for changes, spent in found.items():
            updates.total += changes
            orders.total += SMALL
            began = time.process_time()
            driver.batch(Limit(1 << 40, 1 << 60))
            spent.append(time.process_time() - began)
    driver.close()
    none, some = (f"{statistics.median(spent[2:]) * 1e3:.1f} ms" for spent in found.values())
    bench.note(f"a batch of {SMALL} orders beside {count:,} entries: no change / {CHANGES} changes", f"{none} / {some}")


# --- memory ---


def memory() -> tuple[int, int]:
    """Return the bytes of this process in memory: all, and its share, in which what others map counts only in part."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    facts = dict(line.split(":", 1) for line in lines)
    return int(facts["Rss"].split()[0]) << 10, int(facts["Pss"].split()[0]) << 10


def _worker(folder: Path, context: BatchContext | None, count: int, rows: int, number: int, pipe: Any) -> None:
    """Look up orders in a process of its own, in the table or in a dict, and send how its memory has grown."""
    orders = drawn(count, rows, False, number)
    before = memory()
    if context is None:
        entries = {row["sku"]: row for row in map(entry, range(count))}
        looked_up_in_dict(entries, orders)
    else:
        with OpenTable(shop(folder, Feed(entry, 0, 1), Feed(entry, 0, 1)), context) as table:
            looked_up(table, orders)
            pipe.send("ready")
            pipe.recv()  # until all others have read, too
            after = memory()
    if context is None:
        pipe.send("ready")
        pipe.recv()
        after = memory()
    pipe.send((after[0] - before[0], after[1] - before[1]))


def _memory(bench: Bench, folder: Path, context: BatchContext, count: int) -> None:
    size = sum(file.stat().st_blocks * 512 for file in (folder / "local").rglob("table-*/*/data.mdb"))
    bench.note("the same: file of the replica", megabytes(size))
    for what, given in (("lookups in the table", context), ("a dict in each", None)):
        spawn = multiprocessing.get_context("spawn")
        pipes = [spawn.Pipe() for _ in range(WORKERS)]
        workers = [
            spawn.Process(target=_worker, args=(folder, given, count, bench.size, number, theirs))
            for number, (_, theirs) in enumerate(pipes)
        ]
        for worker in workers:
            worker.start()
        for ours, _ in pipes:
            ours.recv()
        for ours, _ in pipes:
            ours.send("go on")
        grown = [ours.recv() for ours, _ in pipes]
        for worker in workers:
            worker.join()
        rss, pss = max(found[0] for found in grown), sum(found[1] for found in grown)
        bench.note(
            f"the same: memory of {WORKERS} workers with {what}: each (RSS) / all together (PSS)",
            f"{megabytes(rss)} / {megabytes(pss)}",
        )


def megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"


def seconds_since(began: float) -> str:
    spent = time.perf_counter() - began
    return f"{spent:.1f} s" if spent > 0.5 else f"{spent * 1e3:.1f} ms"
