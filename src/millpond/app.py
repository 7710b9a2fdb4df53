"""The app: a named pipeline, whose name owns its state."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Literal, Unpack

from millpond.admin import Admin, AdminVerbs, AppAccess
from millpond.clock import Clock, SystemClock
from millpond.codec import user_types
from millpond.codec.tagging import name_program_module
from millpond.driver.claims import Claims
from millpond.driver.commit import MOST_PARTITIONS, Driver
from millpond.driver.loop import Settings, run_driver
from millpond.driver.planning import with_snapshots
from millpond.driver.settings import Controls, DriverSettings, Hook
from millpond.driver.standby import Standby
from millpond.errors import InvalidUse
from millpond.log.jobs import ProgressCallback
from millpond.log.paths import check_name
from millpond.log.retention import parse_keep
from millpond.maintenance.rebuild import Rebuilt
from millpond.pipeline import graph as g
from millpond.pipeline.changes import Changes
from millpond.pipeline.epoch import MessageTime
from millpond.pipeline.keyed import KeyedStream
from millpond.pipeline.state_options import StateOptions, step_settings
from millpond.pipeline.stream import Stream
from millpond.pipeline.table import Table, check_table
from millpond.replica.folders import check_local_dir
from millpond.replica.local_stores import LocalStores, find_store
from millpond.replica.room import parse_bytes
from millpond.replica.store import Store
from millpond.runtimes.base import Runtime
from millpond.sources.base import Source, TimedSource
from millpond.state_changes import StateChange
from millpond.state_view import StateView
from millpond.steps.failure import OnError, check_on_error
from millpond.steps.verbs.table import TableStep
from millpond.storage import Storage, open_storage
from millpond.timing import duration, seconds
from millpond.user_functions import check_function

MOST_STANDBYS = 8


class App(AdminVerbs):
    """A named pipeline. Its streams, steps and sinks are added to it, and then it runs.

    `state_dir` is a path, an object-store URL or "memory://". `partitions` is the number of parts that the keys are
    divided into. It is stored with the state, and the state moves if the program says another number than before; None
    means one for each task that can run at the same time, when the app first starts. "auto" means that the number
    follows the cores of the session while the app runs: if they have been more or fewer by half for a minute, the app
    rescales itself, at most once in ten minutes. `local_dir` is the folder for each host's replicas; None means
    `MILLPOND_LOCAL_DIR`, or a folder below the temporary files.

    The log is compacted after `compact_every` batches, or sooner if they are large. `keep` is how much of the past
    stays within reach of `history`, `at` and rollback: a number of batches, or a duration such as "7d".

    `store` is the local store in which workers keep replicas: "lmdb", "rocksdb", "memory", or an `mp.lowlevel.Store`;
    a step may have another. `local_limit` is how many bytes the app's replicas may take up on one host, as a number or
    as text such as "20GB"; a batch that needs more fails with `Unavailable`, and None sets no limit.

    `standbys` is the number of further copies of each partition, on other hosts of the cluster, that follow the log.
    When a host is lost, its partitions continue on the hosts of these copies. With too few hosts the app says so once,
    and runs without.

    >>> import millpond as mp
    >>> app = mp.App("hello", state_dir="memory://")
    >>> words = app.stream("words", mp.sources.rows(["a", "b", "a"]))
    >>> counts = words.key_by(word=lambda word: word).aggregate("counts", n=mp.count())
    >>> out = counts.to("out", mp.sinks.memory())
    >>> with mp.testing.TestDriver(app) as driver:
    ...     driver.send("words", ["a", "b", "a"])
    ...     driver.output("out")
    [{'word': 'a', 'n': 1}, {'word': 'b', 'n': 1}, {'word': 'a', 'n': 2}]
    """

    def __init__(
        self,
        name: str,
        state_dir: str = "state",
        partitions: int | Literal["auto"] | None = None,
        *,
        local_dir: str | os.PathLike[str] | None = None,
        keep: int | str | timedelta = 1000,
        compact_every: int = 100,
        store: str | Store = "lmdb",
        local_limit: int | str | None = None,
        standbys: int = 0,
    ) -> None:
        check_name(name, "App(name)")
        is_number = type(partitions) is int and 1 <= partitions <= MOST_PARTITIONS
        if partitions is not None and partitions != "auto" and not is_number:
            raise InvalidUse(
                f'App(partitions): expected a whole number from 1 to {MOST_PARTITIONS}, or "auto", got {partitions!r}'
            )
        if type(compact_every) is not int or compact_every < 1:
            raise InvalidUse(f"App(compact_every): expected a whole number of 1 or more, got {compact_every!r}")
        if type(standbys) is not int or not 0 <= standbys <= MOST_STANDBYS:
            raise InvalidUse(f"App(standbys): expected a whole number from 0 to {MOST_STANDBYS}, got {standbys!r}")
        self.name, self.partitions = name, partitions
        self.local_dir = None if local_dir is None else check_local_dir(local_dir, "App(local_dir)")
        self.compact_every, self.standbys = compact_every, standbys
        self._stores = LocalStores(
            find_store(store, "App(store)"),
            limit=None if local_limit is None else parse_bytes(local_limit, "App(local_limit)"),
        )
        self.keep = parse_keep(keep, "App(keep)")
        self.state_dir = str(state_dir)
        self._graph = g.Graph()
        self._storage: Storage | None = None
        self._clock: Clock = SystemClock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._running = False
        self._failure: BaseException | None = None
        self._letters: Stream[dict[str, Any]] | None = None
        self._module = _program_module(sys._getframe(1).f_globals)

    # --- building ---

    def stream(
        self,
        name: str,
        source: Any,
        *,
        timestamp: str | Callable[[Any], Any] | MessageTime | None = None,
        disorder: str | int | timedelta = 0,
        idle_after: str | float | timedelta | None = None,
        ahead: str | int | timedelta | None = "366d",
        type: Any = None,
        on_error: OnError = "stop",
    ) -> Stream[Any]:
        """Return a stream of the rows of a source, or of any streaming Spark DataFrame.

        `timestamp` is the field or function that gives a row its event time, or `mp.message_time`. The watermark is the
        newest time so far less `disorder`. A source partition that was read to its end and has been quiet for
        `idle_after` of the clock no longer holds the watermark back; when all partitions are quiet, the watermark
        advances with the clock (by one per second if times are whole numbers). A row whose time is more than `ahead`
        after the clock and after all rows so far is refused: it is handled by `on_error`, or, if that is "stop" and the
        program reads the stream's `late` rows, becomes one of those. `type` is the dataclass or Struct that rows
        become. `on_error` says what happens to rows that fail, here and in the steps below.

        >>> import millpond as mp
        >>> app = mp.App("orders")
        >>> orders = app.stream("orders", mp.sources.rows([{"at": 1}]), timestamp="at", on_error="dead-letter")
        """
        if not isinstance(source, Source) and not getattr(source, "isStreaming", False):
            raise InvalidUse(
                f"stream {name!r}: expected a source such as mp.sources.files(path) or a streaming Spark "
                f"DataFrame, got {source!r}"
            )
        if callable(timestamp):
            check_function(timestamp, f"stream({name!r}, timestamp)", "row")
        if isinstance(timestamp, MessageTime) and not (isinstance(source, TimedSource) and source.has_times):
            raise InvalidUse(
                f"stream {name!r}: timestamp=mp.message_time needs a source whose messages have times, such as "
                f"mp.sources.kafka(…), got {source!r}. Give the field or function that has the time."
            )
        self._graph.claim(name, "stream")
        if timestamp is None and (disorder or idle_after is not None):
            raise InvalidUse(
                f"stream {name!r}: disorder= and idle_after= are about event time, so timestamp= is needed"
            )
        read = g.Read(
            name,
            source,
            timestamp,
            type,
            duration(disorder, f"stream({name!r}, disorder)"),
            None if idle_after is None else seconds(idle_after, f"stream({name!r}, idle_after)"),
            None if ahead is None else duration(ahead, f"stream({name!r}, ahead)"),
        )
        return Stream(self._graph, self._graph.add(read, on_error=check_on_error(on_error, f"stream({name!r})")))

    def table(
        self,
        name: str,
        stream: KeyedStream[Any, Any],
        everywhere: bool = False,
        deleted: Callable[[Any], Any] | None = None,
        **how: Unpack[StateOptions],
    ) -> Table:
        """Return a table: the latest row of every key of a stream, for the `lookup` of other streams.

        The latest row is the newest by event time; of rows with the same time, or without one, it is the last to
        arrive. A row for which `deleted` is true removes its key. With event time the deletion is remembered until the
        watermark has passed it, so that an older row does not bring the key back. With a `ttl`, a row that is not sent
        again in time is removed.

        A table is stored in partitions, as all state is, and joins streams with the same keys. With `everywhere=True`
        every worker holds all of it, and any stream can look it up. When an app starts, the streams that feed tables
        are read to their present end before any other. Within a batch, tables change before they are looked up.

        >>> import millpond as mp
        >>> app = mp.App("shop")
        >>> updates = app.stream("updates", mp.sources.rows([]))
        >>> prices = app.table("prices", updates.key_by("sku"), deleted=lambda row: row["price"] is None)
        >>> orders = app.stream("orders", mp.sources.rows([])).key_by("sku")
        >>> out = orders.lookup("priced", prices).to("out", mp.sinks.memory())
        >>> with mp.testing.TestDriver(app) as driver:
        ...     driver.send("updates", [{"sku": "tea", "price": 3}, {"sku": "pen", "price": 1}])
        ...     driver.send({"orders": [{"sku": "tea"}, {"sku": "pen"}], "updates": [{"sku": "pen", "price": None}]})
        ...     driver.output("out")
        ...     driver.state("prices").get("tea")
        [{'sku': 'tea', 'price': 3}, {'sku': 'pen'}]
        {'sku': 'tea', 'price': 3}
        """
        if not isinstance(stream, KeyedStream) or stream._graph is not self._graph:
            raise InvalidUse(f"table({name!r}): expected a keyed stream of the same app, got {stream!r}")
        options = check_table(name, everywhere, deleted, how.get("ttl"))
        step = TableStep(**options, **step_settings(self._graph, stream._node, "table", name, how))
        return Table(self._graph, stream._add_step(step)._node)

    @property
    def dead_letters(self) -> Stream[dict[str, Any]]:
        """The stream of rows that failed with `on_error="dead-letter"`: `{row, key, step, error, traceback, batch}`.

        >>> import millpond as mp
        >>> app = mp.App("orders")
        >>> letters = app.dead_letters.to("dead", mp.sinks.memory())
        """
        if self._letters is None:
            self._letters = Stream(self._graph, self._graph.add(g.DeadLetters()))
        return self._letters

    def _program(self) -> g.Program:
        """Compile what the app does. Offered as `mp.lowlevel.program`."""
        # Classes of the program file are not found by name in a worker: they travel with the program.
        modules = [sys.modules[name] for name in (self._module, "__main__") if name in sys.modules]
        values = [value for module in modules for value in list(vars(module).values())]
        streams = [node.op.type for node in self._graph.nodes if isinstance(node.op, g.Read)]
        types = [value for value in [*values, *streams] if isinstance(value, _CLASS) and user_types.is_storable(value)]
        return g.compile_program(self.name, self._graph, tuple(dict.fromkeys(types)), self._stores)

    def _open_storage(self) -> Storage:
        """Return the storage of `state_dir`, opened once. Offered as `mp.lowlevel.storage`."""
        if self._storage is None:
            self._storage = open_storage(self.state_dir)
        return self._storage

    def _shared_storage(self) -> Storage:
        """Return the storage, in a place that other processes can reach, as workers are."""
        storage = self._open_storage()
        if storage.url.startswith("memory:"):
            # Workers share no memory with us: they use a folder that is removed with the app.
            folder = tempfile.mkdtemp(prefix="millpond-memory-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            self._storage = open_storage(folder)
            for item in storage.list(""):
                self._storage.put(item.path, storage.get(item.path) or b"")
        return self._open_storage()

    # --- state ---

    @property
    def admin(self) -> Admin:
        """What can be done to the app's state as a whole; the verbs of it are on the app, too.

        >>> import millpond as mp
        >>> mp.App("orders", state_dir="memory://").admin.verify().ok
        True
        """
        access = AppAccess(
            keep=self.keep,
            partitions=self.partitions if isinstance(self.partitions, int) else None,
            local_dir=self.local_dir,
            is_running=lambda: self._running,
            has_program=lambda: bool(self._graph.nodes),
            compile_program=self._program,
            share_storage=self._shared_storage,
            open_runtime=self._open_runtime,
        )
        return Admin(self.name, self._open_storage, self._clock, access)

    def state(self, step: str) -> StateView:
        """Return a view of a step's state, as of the newest commit.

        >>> import millpond as mp
        >>> mp.App("orders", state_dir="memory://").state("total").get("ann")
        """
        program = self._program() if self._graph.nodes else None
        return StateView(
            self._open_storage(),
            self.name,
            step,
            self._clock,
            step=None if program is None else program.steps.get(step),
            types=() if program is None else program.types,
            home=self.local_dir,
            stores=self._stores if program is None else program.local_stores,
        )

    def changes(self, step: str, after: int = -1) -> Changes[StateChange]:
        """Return the changes of a step's state: an iterator that reads the log, and a stream of the program.

        Iterating it yields every change within reach, one per cell, after a batch: see `Admin.changes`. Its verbs, such
        as `to`, publish the state: one row per key and batch, `{"key", "value", "batch"}`, with the whole value of the
        key after the batch, and None if the key is gone. The rows are outputs of the batch that made them. A stream
        that is new publishes all state that is there first; after a rollback, a migration or a rebuild it publishes
        the difference. The step must be in the program before.

        >>> import millpond as mp
        >>> app = mp.App("orders", state_dir="memory://")
        >>> list(app.changes("total"))
        []
        >>> counts = app.stream("orders", mp.sources.rows([])).key_by("who").aggregate("count", n=mp.count())
        >>> out = app.changes("count").to("counts", mp.sinks.memory())
        >>> with mp.testing.TestDriver(app) as driver:
        ...     driver.send("orders", [{"who": "ann"}, {"who": "bob"}, {"who": "ann"}])
        ...     driver.send("orders", [{"who": "bob"}])
        ...     for row in driver.output("counts"): print(row)
        {'key': 'ann', 'value': {'n': 2}, 'batch': 1}
        {'key': 'bob', 'value': {'n': 1}, 'batch': 1}
        {'key': 'bob', 'value': {'n': 2}, 'batch': 2}
        """
        return Changes(self._graph, step, after, lambda: self.admin.changes(step, after))

    def rebuild(self, step: str, spark: Any = None, *, switch: bool = False, force: bool = False) -> Rebuilt:
        """Make a step's state again from the input, and compare it with the live one: see `Admin.rebuild`.

        >>> import millpond as mp
        >>> def again(app): print(app.rebuild("total", switch=True))
        """
        return self.admin.rebuild(step, spark, switch=switch, force=force)

    def clear_state(self, *, force: bool = False) -> None:
        """Remove all state, positions and open outputs: see `Admin.clear`.

        >>> import millpond as mp
        >>> mp.App("orders", state_dir="memory://").clear_state()
        """
        self.admin.clear(force=force)

    def drop_outputs(self, sink: str, *, force: bool = False) -> None:
        """Give up the outputs that were not delivered to a sink: see `Admin.drop_outputs`.

        >>> import millpond as mp
        >>> mp.App("orders", state_dir="memory://").drop_outputs("totals")
        """
        self.admin.drop_outputs(sink, force=force)

    # --- running ---

    def run(
        self,
        until: Literal["caught-up"] | None = None,
        spark: Any = None,
        every: str | float = "1s",
        max_rows: int = 100_000,
        max_bytes: int | None = None,
        restarts: int = 0,
        close_at_end: bool = False,
        progress: ProgressCallback | None = None,
        take_back: Sequence[str] = (),
        accept: Sequence[str] = (),
        standby: bool = False,
    ) -> None:
        """Run on Spark until stopped or, with `until="caught-up"`, until all input is read that is there at the start.

        SIGINT and SIGTERM end the run after the current batch. `spark` is the session to run on; None starts a local
        one. A batch reads at most `max_rows` rows and about `max_bytes` bytes of a source. If there is little to read,
        batches start at intervals of `every`. A failed run is restarted at most `restarts` times. Windows and timers
        that are open when every source is read stay open for the next run, unless `close_at_end` is True. Pending
        rescales, renames and migrations run before the first batch and report to `progress(done, total)`.

        If a target has taken deliveries that the ledger does not contain, because an older copy of `state_dir` was
        restored, the run ends before it changes anything. `take_back` names the sinks whose targets give these
        deliveries up, `accept` those whose targets are left as they are.

        With `standby=True` this is a standby driver: it starts Spark, checks that the program fits the state, and waits
        for as long as another driver runs the app. It takes over when that one has stopped, when its process is known
        to be gone, or when it has missed four heartbeats (which come every second while a standby driver waits); one
        that was only paused is then fenced. If no driver runs the app, it begins at once. Stopped while it waits, it
        ends without having written a record.

        >>> import millpond as mp
        >>> app = mp.App("orders")
        >>> app.run(until="tomorrow")
        Traceback (most recent call last):
        ...
        millpond.errors.InvalidUse: run(until): expected "caught-up" or None, got 'tomorrow'
        """
        if until not in (None, "caught-up"):
            raise InvalidUse(f'run(until): expected "caught-up" or None, got {until!r}')
        if type(max_rows) is not int or max_rows < 1:
            raise InvalidUse(f"run(max_rows): expected a whole number of 1 or more, got {max_rows!r}")
        if max_bytes is not None and (type(max_bytes) is not int or max_bytes < 1):
            raise InvalidUse(f"run(max_bytes): expected a whole number of 1 or more, got {max_bytes!r}")
        own = {} if max_bytes is None else {"max_bytes": max_bytes}
        if type(standby) is not bool:
            raise InvalidUse(f"run(standby): expected True or False, got {standby!r}")
        if standby and until is not None:
            raise InvalidUse(
                f"run(standby): a standby driver runs until it is stopped, got until={until!r}. Leave one of them out."
            )
        if standby and self.state_dir.startswith("memory:"):
            raise InvalidUse(
                f"run(standby): no other process reaches state_dir {self.state_dir!r}. Choose a folder or an "
                "object-store URL."
            )
        if close_at_end and until != "caught-up":
            raise InvalidUse('run(close_at_end): an input that has an end is read with until="caught-up"')
        pace = seconds(every, "run(every)")
        settings = Settings(until, pace, max_rows, restarts=restarts, close_at_end=close_at_end, standby=standby, **own)
        for what, names in (("take_back", take_back), ("accept", accept)):
            if isinstance(names, str) or not all(isinstance(name, str) for name in names):
                raise InvalidUse(f"run({what}): expected a list of names of sinks, got {names!r}")
        self._run_with(settings, spark, progress=progress, take_back=take_back, accept=accept)

    def _run_with(
        self,
        settings: Settings,
        spark: Any = None,
        hook: Hook | None = None,
        progress: ProgressCallback | None = None,
        take_back: Sequence[str] = (),
        accept: Sequence[str] = (),
    ) -> None:
        """Run with a hook that is called at every crash point. Offered as `mp.lowlevel.run_with`."""
        from millpond.runtimes.spark import SparkRuntime

        if self._running:
            raise InvalidUse(f"app {self.name!r} is running already in this process")
        program = self._program()
        if settings.until == "caught-up":  # what arrives later is left to the next run
            program = with_snapshots(program, self._clock.now())
        self._stop.clear()
        self._running = True
        try:
            # A new session installs its own SIGINT handler, to cancel its jobs: ours must come after it.
            opened = SparkRuntime.open(program, self._shared_storage().url, spark, checks_workers=not settings.standby)
            with opened as runtime, _handle_signals(self._stop):
                claims, standby = Claims(self._clock), None
                if settings.standby:
                    storage = open_storage(runtime.state_url)
                    standby = Standby(runtime.program, storage, self._clock, self.partitions, runtime.keep_warm)

                def make() -> Driver:
                    runtime.stop_streams()
                    driver = Driver.start(
                        runtime.program,
                        runtime,
                        open_storage(runtime.state_url),
                        self._clock,
                        DriverSettings(
                            partitions=self.partitions,
                            home=self.local_dir,
                            standbys=self.standbys,
                            every=settings.every,
                            keep=self.keep,
                            compact_every=self.compact_every,
                            take_back=take_back,
                            accept=accept,
                        ),
                        Controls(hook=hook, stop=self._stop, progress=progress, claims=claims),
                    )
                    try:
                        runtime.start_streams(driver, caught_up=settings.until == "caught-up")
                    except BaseException:
                        driver.close()
                        raise
                    return driver

                run_driver(make, settings, self._stop, self._clock, claims, standby)
        finally:
            self._running = False

    @contextlib.contextmanager
    def _open_runtime(self, program: g.Program, spark: Any) -> Iterator[Runtime]:
        from millpond.runtimes.spark import SparkRuntime

        with SparkRuntime.open(program, self._shared_storage().url, spark) as runtime:
            yield runtime

    def start(self, **how: Any) -> None:
        """Run as `run` does, in a thread: for notebooks.

        >>> import millpond as mp
        >>> start, stop = mp.App("orders").start, mp.App("orders").stop
        """
        if self._thread is not None and self._thread.is_alive():
            raise InvalidUse(f"app {self.name!r} is running already in this process")
        self._failure = None

        def work() -> None:
            try:
                self.run(**how)
            except BaseException as error:
                self._failure = error

        self._thread = threading.Thread(target=work, name=f"millpond-{self.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End a started app after the current batch, and raise the error that its run has ended with, if any.

        >>> import millpond as mp
        >>> mp.App("orders").stop()
        """
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._failure is not None:
            raise self._failure


_CLASS = type


def _program_module(scope: dict[str, Any]) -> str:
    """Return the module in which an App is made, and remember it as a program file."""
    name = str(scope.get("__name__", "__main__"))
    if name.startswith("millpond."):
        return "__main__"
    name_program_module(name, scope.get("__file__"))
    return name


@contextlib.contextmanager
def _handle_signals(stop: threading.Event) -> Iterator[None]:
    """Let SIGINT and SIGTERM end the run after the current batch; a second signal ends it at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {}

    def handle(number: int, frame: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    for which in (signal.SIGINT, signal.SIGTERM):
        before[which] = signal.signal(which, handle)
    try:
        yield
    finally:
        for which, old in before.items():
            signal.signal(which, old)
