"""An app on simulated hosts, without Spark: each has a folder of replicas of its own, and can die."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import millpond as mp
from millpond.clock import ManualClock
from millpond.driver.commit import Driver
from millpond.driver.settings import DriverSettings
from millpond.log.paths import Paths
from millpond.runtimes.local import LocalHosts, LocalRuntime
from millpond.sources.base import Chunk, Limit, Split
from millpond.state_view import StateView
from millpond.storage import Storage, open_storage

ANY = Limit(1 << 40, 1 << 60)


class Feed:
    """A source to which a test appends rows."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def plan(self, position: Any, limit: Limit, now: float) -> list[Split]:
        done = position.get("0", 0)
        return [Split("0", done, len(self.rows))] if len(self.rows) > done else []

    def read(self, split: Split) -> Any:
        yield Chunk(self.rows[split.start : split.stop], split.stop)


class CountingStorage:
    """A storage that remembers what was read."""

    def __init__(self, inner: Storage) -> None:
        self._inner, self.read_paths = inner, list[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def get(self, path: str) -> bytes | None:
        self.read_paths.append(path)
        return self._inner.get(path)

    def segments_read(self, app: str) -> list[str]:
        """The segments of state that were read since the last call."""
        found = [path for path in self.read_paths if path.startswith(f"{Paths(app).root}/steps/")]
        self.read_paths.clear()
        return found


def add_up(key: str, row: dict[str, Any], total: int) -> tuple[dict[str, Any], int]:
    total += row["value"]
    return {"key": key, "total": total}, total


class World:
    """An app that adds up values, its input, and the hosts that it runs on."""

    def __init__(self, folder: Path, hosts: int = 3, partitions: int = 6, standbys: int = 1, **how: Any) -> None:
        self.hosts = LocalHosts(folder / "hosts", [f"host-{number}" for number in range(hosts)])
        self.storage = CountingStorage(open_storage("memory://"))
        self.feed, self.clock, self.standbys, self.partitions = Feed(), ManualClock(), standbys, partitions
        self.how = how
        self.sink = mp.sinks.memory()
        self.between: Callable[[int], None] = lambda partition: None
        self.driver = self.start()

    def start(self) -> Driver:
        app = mp.App("sums", "memory://", self.partitions, standbys=self.standbys, **self.how)
        rows = app.stream("rows", self.feed)
        rows.key_by("key").stateful_map("total", add_up, initial=0).to("out", self.sink)
        runtime = LocalRuntime(self.storage, self.clock, lambda p: self.between(p), hosts=self.hosts)
        settings = DriverSettings(
            partitions=self.partitions,
            standbys=self.standbys,
            threaded=False,
            keep=app.keep,
            compact_every=app.compact_every,
        )
        return Driver.start(mp.lowlevel.program(app), runtime, self.storage, self.clock, settings)

    def send(self, count: int = 30) -> None:
        """Run one batch with rows of 20 keys."""
        first = len(self.feed.rows)
        self.feed.rows += [{"key": f"k{n % 20}", "value": n} for n in range(first, first + count)]
        while self.driver.batch(ANY):
            pass

    def restart(self, *, release: bool = True) -> None:
        if release:
            self.driver.release()
        self.driver.close()
        self.driver = self.start()

    def check(self) -> None:
        """State and outputs are those of a fold over the input."""
        totals: dict[str, int] = {}
        outputs = []
        for row in self.feed.rows:
            totals[row["key"]] = totals.get(row["key"], 0) + row["value"]
            outputs.append((row["key"], totals[row["key"]]))
        self.driver.delivery.wait()
        assert sorted((row["key"], row["total"]) for row in self.sink.rows) == sorted(outputs)
        home = str(self.hosts.root / "reader")
        assert dict(StateView(self.storage, "sums", "total", self.clock, home=home).items()) == totals

    @property
    def primary(self) -> dict[int, str]:
        return {partition: copies.host for partition, copies in self.driver.placement.status().items()}

    @property
    def standby(self) -> dict[int, list[str]]:
        found = self.driver.placement.status()
        return {partition: [copy.host for copy in copies.standbys] for partition, copies in found.items()}

    @property
    def ready(self) -> dict[int, list[str]]:
        found = self.driver.placement.status()
        return {p: [copy.host for copy in copies.standbys if copy.ready] for p, copies in found.items()}
