"""The life of an app between batches: savepoints restored into other apps, rollbacks, restarts, lost replicas.

A `Life` goes on through all of them. Its streams are lists that can be read again, and its sink holds what a sink
that takes part in rollbacks would hold; so after any history the outputs are those of an uninterrupted run.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import millpond as mp
from millpond.clock import SystemClock
from millpond.driver.commit import Driver
from millpond.driver.settings import DriverSettings
from millpond.replica.lmdb_store import close_below
from millpond.runtimes.local import LocalRuntime
from millpond.storage import open_storage

WHOLE = mp.lowlevel.Limit(1 << 40, 1 << 60)
Streams = Mapping[str, Any]  # name → stream
Build = Callable[[Streams], Any]  # a program: from its streams to the stream that goes to the sink


class Feed:
    """A source whose batches are the lists that were sent."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []

    def plan(self, position: Mapping[str, Any], limit: mp.lowlevel.Limit, now: float) -> list[mp.lowlevel.Split]:
        done = position.get("0", 0)
        return [mp.lowlevel.Split("0", done, done + 1)] if done < len(self.batches) else []

    def read(self, split: mp.lowlevel.Split) -> Iterator[mp.lowlevel.Chunk]:
        yield mp.lowlevel.Chunk([dict(row) for row in self.batches[split.start]], split.stop)


class Held:
    """A sink that holds each delivery under its batch."""

    where = "driver"

    def __init__(self) -> None:
        self.rows: dict[tuple[int, int], list[Any]] = {}

    def deliver(self, rows: list[Any], delivery: mp.lowlevel.Delivery) -> None:
        self.rows[delivery.batch, delivery.partition] = rows

    def take_back(self, batch: int) -> None:
        self.rows = {place: rows for place, rows in self.rows.items() if place[0] <= batch}

    def all(self) -> list[Any]:
        return [row for _, rows in sorted(self.rows.items()) for row in rows]


class Life:
    """An app, its input and its outputs; its steps are what `build` makes of its streams."""

    def __init__(self, build: Build, *streams: str, partitions: int = 1) -> None:
        self._build, self._partitions = build, partitions
        self._feeds = {name: Feed() for name in streams or ("rows",)}
        self._folder = Path(tempfile.mkdtemp(prefix="millpond-life-"))
        self._past: list[Any] = []  # outputs of the apps that this one was restored from
        self._held = Held()
        self._lives = self._saved = 0
        self._driver: Driver | None = None
        self.batches: list[int] = []  # the record of each batch of this app that has not been rolled back

    def __enter__(self) -> Life:
        return self

    def __exit__(self, *_: object) -> None:
        if self._driver is not None:
            self._driver.close()
        close_below(str(self._folder))
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def app(self) -> mp.App:
        where = self._folder / str(self._lives)
        app = mp.App(f"life-{self._lives}", str(where), self._partitions, local_dir=str(self._folder / "local"))
        streams = {name: app.stream(name, feed, timestamp="t").key_by("k") for name, feed in self._feeds.items()}
        self._build(streams).to("out", self._held)
        return app

    def _running(self) -> Driver:
        if self._driver is None:
            app, clock = self.app, SystemClock()
            storage = open_storage(app.state_dir)
            self._driver = Driver.start(
                mp.lowlevel.program(app),
                LocalRuntime(storage, clock),
                storage,
                clock,
                DriverSettings(partitions=self._partitions, home=app.local_dir, threaded=False, bounded=False),
            )
        return self._driver

    def stop(self) -> mp.App:
        """Let the app stop in good order; it goes on with the next batch."""
        if self._driver is not None:
            self._driver.release()
            self._driver.close()
            self._driver = None
        return self.app

    def _savepoint(self, batch: int) -> Path:
        self._saved += 1
        saved = self._folder / f"saved-{self._saved}"
        self.stop().savepoint(saved, batch)
        self._held.take_back(batch)
        self._past += self._held.all()
        self._held, self.batches = Held(), []
        return saved

    # --- what happens ---

    def send(self, *rows: Any, **streams: list[Any]) -> None:
        """One batch, of rows of the only stream or of several."""
        given = {next(iter(self._feeds)): list(rows)} if rows else streams
        for name, feed in self._feeds.items():
            feed.batches.append(given.get(name, []))
        self.go_on()

    def go_on(self) -> None:
        """Run until all that was sent is read."""
        driver = self._running()
        while driver.batch(WHOLE):
            self.batches.append(driver.last.number)

    def restart(self, *, lose_replicas: bool = False) -> None:
        self.stop()
        if lose_replicas:
            close_below(str(self._folder))
            shutil.rmtree(self._folder / "local", ignore_errors=True)
        self.go_on()

    def rescale(self, partitions: int) -> None:
        self.stop().rescale(partitions)
        self._partitions = partitions

    def compact(self) -> None:
        self.stop().compact()

    def rollback(self, batches: int = 1) -> None:
        """Roll the newest batches back; they are read again."""
        batches = min(batches, len(self.batches) - 1)
        if batches > 0:
            back = self.batches[-1 - batches]
            self.stop().rollback(back)
            self._held.take_back(back)
            del self.batches[-batches:]
            self.go_on()

    def undo(self, batches: int) -> None:
        """Roll the newest batches back, and never read their rows again."""
        for feed in self._feeds.values():
            del feed.batches[-batches:]
        self.rollback(batches)

    def move(self, batches: int = 0) -> None:
        """A savepoint, of now or of some batches before, restored into another app elsewhere, which goes on."""
        if self.batches:
            saved = self._savepoint(self.batches[max(-len(self.batches), -1 - batches)])
            self._lives += 1
            self.app.restore(saved)
            self.go_on()

    def clear_and_restore(self) -> None:
        """A savepoint restored into the very app that it is of, after its state was cleared."""
        if self.batches:
            saved = self._savepoint(self.batches[-1])
            self.app.clear_state()
            self.app.restore(saved)
            self.go_on()

    def finish(self) -> list[Any]:
        """The end of the input; all outputs of this life."""
        self._running().batch(WHOLE, final=True)
        return self.outputs

    @property
    def outputs(self) -> list[Any]:
        return [*self._past, *self._held.all()]
