"""Read replicas: a copy of an app's whole state in this process's own folder, which follows the log of the app.

The copy is one store with all steps of all partitions, and one transaction of it applies one record. So a version of
the store is the state of the whole app at one commit, and reading one holds no lock that the running app would wait
for: the app and its readers share nothing but the log.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Protocol

import pyarrow as pa

from millpond.clock import Clock, as_datetime, elapsed
from millpond.codec import encode_key
from millpond.errors import Corrupt, InvalidUse, Unavailable
from millpond.log.apps import check_app_exists
from millpond.log.ledger import Ledger
from millpond.log.point import LogPoint
from millpond.log.reach import MOST_READ_ATTEMPTS, batch_number
from millpond.log.record import Record
from millpond.replica import View
from millpond.replica.catch_up import MOST_REPLICA_ATTEMPTS
from millpond.replica.cell_format import Damaged
from millpond.replica.lmdb_store import close_below
from millpond.replica.local_replica import LocalReplica
from millpond.replica.reader_home import ReaderHome
from millpond.replica.snapshot import CellRow
from millpond.steps.shown_step import ShownStep
from millpond.storage import Storage
from millpond.timing import seconds

log = logging.getLogger("millpond")

ROWS_AT_ONCE = 1000  # that are read before other threads get their turn
LOOK_SECONDS = 0.05  # between two looks at the ledger of somebody who waits


class _Version:
    """The state of the whole app at one record, open for reading. Several may be open; the last user closes it."""

    def __init__(self, record: Record, view: View, stack: ExitStack) -> None:
        self.record, self._view, self._stack = record, view, stack
        self._users, self._counting = 1, threading.Lock()
        self._reading = threading.Lock()  # one transaction is read by one thread at a time

    def acquire(self) -> _Version:
        with self._counting:
            self._users += 1
        return self

    def release(self) -> None:
        with self._counting:
            self._users -= 1
            is_last = self._users == 0
        if is_last:
            self._stack.close()

    def read_key(self, shown: ShownStep, key: bytes, now: float) -> list[CellRow]:
        read = shown.reader(key, self.record, now)
        with self._reading:
            return list(read(self._view))

    def read_all(self, shown: ShownStep, now: float) -> Iterator[CellRow]:
        rows = iter(shown.reader(None, self.record, now)(self._view))
        while True:
            with self._reading:
                some = list(islice(rows, ROWS_AT_ONCE))
            if not some:
                return
            yield from some


class _Versions(Protocol):
    """What gives a version to read, and what is done if it turns out to be damaged."""

    def _borrow(self) -> _Version: ...

    def _replace_damaged(self, damaged: _Version, damage: Damaged) -> None: ...


class CommitState:
    """A step's state in a read replica: `live.state(step)`, or `commit.state(step)` for several reads of one commit.

    It reads the replica on this host and never the storage, so that thousands of reads per second are possible.

    >>> import millpond as mp
    >>> app = mp.App("orders", state_dir="memory://orders-1")
    >>> orders = app.stream("orders", mp.sources.rows([]))
    >>> totals = orders.key_by("who").stateful_map("total", lambda k, r, n: (None, n + r["n"]), initial=0)
    >>> with mp.testing.TestDriver(app, mp.lowlevel.storage(app)) as driver:
    ...     driver.send("orders", [{"who": "ann", "n": 1}, {"who": "bob", "n": 5}])
    >>> with mp.open("memory://orders-1", "orders").follow(every=None) as live:
    ...     total = live.state("total")
    ...     total.get("ann"), total.get("eve", 0), sorted(total.items())
    (1, 0, [('ann', 1), ('bob', 5)])
    """

    def __init__(self, shown: ShownStep, versions: _Versions, now: Callable[[], float]) -> None:
        self._shown, self._versions, self._now = shown, versions, now

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key, or the default.

        >>> import millpond as mp
        >>> def total(live: mp.Follower, who: str): return live.state("total").get(who, 0)
        """
        encoded = encode_key(key)
        for attempt in range(MOST_REPLICA_ATTEMPTS):
            version = self._versions._borrow()
            try:
                rows = version.read_key(self._shown, encoded, self._now())
                break
            except Damaged as damage:
                if attempt == MOST_REPLICA_ATTEMPTS - 1:
                    raise _damaged(self._shown.app, damage) from damage
                self._versions._replace_damaged(version, damage)
            finally:
                version.release()
        if not rows:
            return default
        cells = [(cell, value) for _, cell, value in rows]
        if len(cells) > 1:
            cells.sort()
        return self._shown.value(self._shown.kind(version.record), key, cells, version.record)

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Yield every key and its value, in no order that a program may rely on, all of them as of one commit.

        That commit stays open until the iterator is exhausted or closed; the replica goes on meanwhile.

        >>> import millpond as mp
        >>> def totals(live: mp.Follower): return dict(live.state("total").items())
        """
        version = self._versions._borrow()
        try:
            yield from self._shown.items(version.read_all(self._shown, self._now()), version.record)
        except Damaged as damage:
            self._versions._replace_damaged(version, damage)
            raise _damaged(self._shown.app, damage) from damage
        finally:
            version.release()

    def to_arrow(self) -> pa.Table:
        """Return all keys and values as a table of two columns; values without a common type are JSON text.

        >>> import millpond as mp
        >>> def table(live: mp.Follower): return live.state("total").to_arrow()
        """
        return self._shown.table(self.items())

    def to_pandas(self) -> Any:
        """Return the same as a pandas DataFrame.

        >>> import millpond as mp
        >>> def frame(live: mp.Follower): return live.state("total").to_pandas()
        """
        return self.to_arrow().to_pandas()


class Commit:
    """The state of a whole app at one commit: all reads of it agree, across steps and partitions.

    `batch` is the number of the commit and `time` its time. Close it, or use it in a `with` block: while it is open,
    the replica keeps what it has replaced since.

    >>> import millpond as mp
    >>> def report(live: mp.Follower):
    ...     with live.at_one_commit() as commit:
    ...         return commit.batch, commit.time, dict(commit.state("total").items())
    """

    def __init__(self, version: _Version, app: str, now: float) -> None:
        self._version, self._app, self._now = version, app, now
        self._close = weakref.finalize(self, version.release)

    @property
    def batch(self) -> int:
        """The number of the commit."""
        return self._version.record.number

    @property
    def time(self) -> datetime:
        """When it was committed, by the clock of its driver."""
        return as_datetime(self._version.record.time)

    def state(self, step: str) -> CommitState:
        """Return a step's state at this commit.

        >>> import millpond as mp
        >>> def total(commit: mp.Commit): return commit.state("total").get("ann")
        """
        shown = ShownStep(self._app, step)
        shown.kind(self._version.record)  # raises if there is no such step
        return CommitState(shown, self, lambda: self._now)

    def close(self) -> None:
        """Let go of the commit. It cannot be read afterwards.

        >>> import millpond as mp
        >>> def done(commit: mp.Commit): commit.close()
        """
        self._close()

    def __enter__(self) -> Commit:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _borrow(self) -> _Version:
        if not self._close.alive:
            raise InvalidUse(f"app {self._app!r}: the commit of batch {self.batch} was closed before it was read")
        return self._version.acquire()

    def _replace_damaged(self, damaged: _Version, damage: Damaged) -> None:
        """Raise `Unavailable`: another version would be another commit."""
        raise _damaged(self._app, damage) from damage


class Follower:
    """A read replica that follows an app: `mp.open(state_dir, name).follow()`.

    `batch` and `time` say which commit it answers from, and `lag` how many commits the app is ahead of that. `error` is
    the reason why the last attempt to catch up has failed, or None; until the next one succeeds, the replica answers
    from the commit that it has.

    >>> import millpond as mp
    >>> app = mp.App("orders", state_dir="memory://orders-2")
    >>> orders = app.stream("orders", mp.sources.rows([]))
    >>> totals = orders.key_by("who").stateful_map("total", lambda k, r, n: (None, n + r["n"]), initial=0)
    >>> with mp.testing.TestDriver(app, mp.lowlevel.storage(app)) as driver:
    ...     driver.send("orders", [{"who": "ann", "n": 1}])
    ...     live = mp.open("memory://orders-2", "orders").follow()
    ...     before = live.batch
    ...     driver.send("orders", [{"who": "ann", "n": 2}])
    ...     reached = live.wait_for(before + 1, timeout="60s")
    ...     live.state("total").get("ann"), live.batch - before, live.lag, live.error, live.time.year
    (3, 1, 0, None, 2023)
    >>> live.close()
    """

    def __init__(
        self, storage: Storage, app: str, clock: Clock, every: float | None = None, local_dir: str | None = None
    ) -> None:
        self._app, self._clock, self._every = app, clock, every
        self._ledger = Ledger(storage, app, clock)
        self._home = ReaderHome() if local_dir is None else None
        home = str(local_dir if self._home is None else self._home.path)
        self._replica = LocalReplica.of_app(storage, app, home)
        self._turn = threading.Lock()  # one thread catches up at a time
        self._changed = threading.Condition()
        self._stop, self._wake = threading.Event(), threading.Event()
        self._version: _Version | None = None
        self.error: Exception | None = None
        self._thread: threading.Thread | None = None
        self._clean_up = weakref.finalize(self, _clean_up, self._home, home)
        try:
            self._catch_up()
        except BaseException:
            self.close()
            raise
        if every is not None:
            follow = weakref.WeakMethod(self._follow_once)
            self._thread = threading.Thread(
                target=_run, args=(follow, self._stop, self._wake, every), name=f"millpond-follow-{app}", daemon=True
            )
            self._thread.start()

    # --- reading ---

    @property
    def batch(self) -> int:
        """The number of the commit that is read now."""
        return self._current().record.number

    @property
    def time(self) -> datetime:
        """When that commit was written, by the clock of its driver."""
        return as_datetime(self._current().record.time)

    @property
    def lag(self) -> int:
        """How many records the app is ahead. Looks at the ledger in storage.

        If the app was deleted and created again since, all records of the new app count.
        """
        newest, read = self._ledger.newest(near=self.batch), self._current().record
        if newest is None:
            return 0
        return max(0, newest.number - (read.number if newest.incarnation == read.incarnation else -1))

    def state(self, step: str) -> CommitState:
        """Return a step's state. Each read of it is of the newest commit that the replica has reached.

        >>> import millpond as mp
        >>> def total(live: mp.Follower): return live.state("total").get("ann")
        """
        shown = ShownStep(self._app, step)
        shown.kind(self._current().record)  # raises if there is no such step
        return CommitState(shown, self, self._clock.now)

    def at_one_commit(self) -> Commit:
        """Return the commit that is read now, for several reads that must agree.

        >>> import millpond as mp
        >>> def report(live: mp.Follower):
        ...     with live.at_one_commit() as commit:
        ...         return commit.state("orders").get("ann"), commit.state("payments").get("ann")
        """
        return Commit(self._borrow(), self._app, self._clock.now())

    # --- following ---

    def refresh(self) -> int:
        """Catch up with the newest commit now, and return its number.

        >>> import millpond as mp
        >>> def newest(live: mp.Follower): return live.refresh()
        """
        self._current()
        return self._catch_up()

    def wait_for(self, batch: int, timeout: str | float | timedelta = "60s") -> int:
        """Wait until the replica has reached a commit, and return the number of the one that it is at.

        `Unavailable` if it has not within `timeout`: the app may not have written it yet.

        >>> import millpond as mp
        >>> def written(live: mp.Follower, batch: int): return live.wait_for(batch, timeout="10s")
        """
        batch = batch_number(batch, "wait_for")
        until = elapsed() + seconds(timeout, "wait_for(timeout)")
        while True:
            with self._changed:
                if self._current().record.number >= batch:
                    return self.batch
                left = until - elapsed()
                if left > 0 and self._thread is not None:
                    self._wake.set()
                self._changed.wait(max(0.0, min(left, LOOK_SECONDS)))
            if left <= 0:
                why = "" if self.error is None else f"; the last attempt to catch up has failed: {self.error}"
                raise Unavailable(
                    f"app {self._app!r}: waited for batch {batch}, and the newest one read is {self.batch}{why}. Wait "
                    "longer, or see whether the app runs."
                )
            if self._thread is None:
                self._catch_up()

    def close(self) -> None:
        """Stop following, and remove the replica, unless `local_dir` was given. Commits that are open stay readable.

        >>> import millpond as mp
        >>> def done(live: mp.Follower): live.close()
        """
        self._stop.set()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self._changed:
            version, self._version = self._version, None
            self._changed.notify_all()
        if version is not None:
            version.release()
        self._clean_up()

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _current(self) -> _Version:
        version = self._version
        if version is None:
            raise InvalidUse(f"app {self._app!r}: this read replica was closed. Call follow() again.")
        return version

    def _borrow(self) -> _Version:
        with self._changed:
            return self._current().acquire()

    def _replace_damaged(self, damaged: _Version, damage: Damaged) -> None:
        """Build the replica again, if no other thread has."""
        log.warning("%s: a read replica is damaged and is built again: %s", self._app, damage)
        self._catch_up(damaged)

    def _follow_once(self) -> None:
        try:
            self._catch_up()
            self.error = None
        except Exception as error:  # whatever it is, the thread goes on, and `error` says it
            if str(error) != str(self.error):
                log.warning("%s: a read replica stays at batch %d: %s", self._app, self.batch, error)
            self.error = error

    def _catch_up(self, damaged: _Version | None = None) -> int:
        """Catch up with the newest record. A damaged version is replaced even if there is no newer record."""
        with self._turn:
            for _ in range(MOST_READ_ATTEMPTS):
                held = self._version
                newest = self._ledger.newest(near=None if held is None else held.record.number)
                if newest is None:
                    check_app_exists(self._ledger)
                    continue
                rebuild = damaged is not None and held is damaged
                if held is not None and held.record.checksum == newest.checksum and not rebuild:
                    return newest.number
                try:
                    version = self._open(newest, rebuild=rebuild)
                except Corrupt:
                    if self._ledger.is_newest(newest):
                        raise
                    continue  # the app has removed the files of that record, because it has written many since
                self._switch(version)
                return version.record.number
        raise Unavailable(
            f"app {self._app!r}: the app has removed files that were about to be read, {MOST_READ_ATTEMPTS} times. "
            "Call this again, or let App(keep=) say that more records stay."
        )

    def _open(self, record: Record, *, rebuild: bool = False) -> _Version:
        with ExitStack() as stack:
            view = stack.enter_context(self._replica.open(LogPoint.of(record), rebuild=rebuild))
            if view.position != record.number:  # another reader has taken the replica further
                found = self._ledger.read(view.position)
                if found is None:
                    raise Corrupt(f"{self._ledger.storage.url}: record {view.position} is missing")
                record = found
            return _Version(record, view, stack.pop_all())

    def _switch(self, version: _Version) -> None:
        with self._changed:
            before, self._version = self._version, version
            self._changed.notify_all()
        if before is not None:
            before.release()
            was, now = before.record, version.record
            if (was.incarnation, was.epoch) != (now.incarnation, now.epoch):
                self._replica.remove_others(LogPoint.of(now))


def _run(follow: Any, stop: threading.Event, wake: threading.Event, every: float) -> None:
    """Catch up at intervals, until the follower is closed or gone."""
    while not stop.is_set():
        wake.wait(every)
        wake.clear()
        once = None if stop.is_set() else follow()
        if once is None:
            return
        once()
        del once


def _clean_up(home: ReaderHome | None, path: str) -> None:
    close_below(path)
    if home is not None:
        home.remove()


def _damaged(app: str, damage: BaseException) -> Unavailable:
    return Unavailable(
        f"app {app!r}: the read replica on this host is damaged: {damage}. Read again: it is built from the log, where "
        "the state is safe."
    )
