"""The TestDriver: an app's real steps and commit protocol, over rows in memory, in milliseconds."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from millpond import lowlevel
from millpond.admin import run_rebuild
from millpond.app import App
from millpond.clock import ManualClock
from millpond.codec import Codec, NotEncodable, copy_value
from millpond.driver.commit import ACTIONS, STEPS, Driver
from millpond.driver.results import positions_of
from millpond.driver.settings import Controls, DriverSettings, StepName
from millpond.errors import InvalidUse, MillpondError, short_repr
from millpond.log import checked
from millpond.log.jobs import When
from millpond.log.ledger import Ledger
from millpond.log.requests import leave_request, read_answer, remove_answer
from millpond.log.segment import unpack_outputs
from millpond.maintenance.rebuild import Rebuild, Rebuilt
from millpond.pipeline.graph import Deliver, Program, Read
from millpond.replica.lmdb_store import close_below
from millpond.runtimes.local import LocalRuntime
from millpond.sinks.base import Delivery, Sink
from millpond.sinks.discard import DiscardSink
from millpond.sinks.function import FunctionSink
from millpond.sources.base import Chunk, Limit, Split
from millpond.state_view import StateView
from millpond.storage import Storage, open_storage
from millpond.timing import seconds

WHENS: tuple[When, ...] = ("before", "during", "after")


class Crashed(BaseException):
    """The batch crashed at the point that was given to `crash`; `restart` starts the app again.

    It is not an `Exception`: as if the process had died, no handler in the program catches it.

    >>> from millpond.testing import Crashed
    >>> str(Crashed("commit", "before"))
    'crashed before commit'
    """

    def __init__(self, at: str, when: str) -> None:
        super().__init__(f"crashed {when} {at}")
        self.at, self.when = at, when


class _SentRows:
    """A source that survives crashes, as a broker does: the rows that were sent, one batch per `send`.

    On a storage that an earlier driver has used, the first row follows the last one that was read there.
    """

    def __init__(self, first: int, clock: ManualClock) -> None:
        self.rows: list[Any] = []
        self._clock = clock
        self._times: list[int] = []  # when each row was sent: what `mp.message_time` takes
        self.ends: list[int] = []
        self.first = first  # the position of the first row
        self.codec = Codec()  # of the tasks, which have copies of the classes in the program file

    def send(self, rows: Sequence[Any]) -> None:
        self.rows.extend(rows)
        self._times.extend([round(self._clock.now() * 1_000_000)] * len(rows))
        self.ends.append(self.first + len(self.rows))

    def plan(self, position: Mapping[str, Any], limit: Limit, now: float) -> list[Split]:
        done = max(position.get("0", 0), self.first)
        end = next((end for end in self.ends if end > done), done)
        return [] if end == done else [Split("0", done, end)]

    def plan_to(self, position: Mapping[str, Any], end: Mapping[str, Any], limit: Limit, now: float) -> list[Split]:
        done, last = position.get("0", 0), end.get("0", 0)
        if done < min(self.first, last):
            raise InvalidUse(
                f"the rows from {done} to {self.first} were sent to an earlier TestDriver on this storage, and this "
                "one does not have them. Send all rows to one TestDriver, and use its restart()."
            )
        return [] if done >= last else [Split("0", done, last)]

    def read(self, split: Split) -> Iterator[Chunk]:
        # Copies, as from a broker: a function may change its rows.
        part = slice(split.start - self.first, split.stop - self.first)
        yield Chunk([self._fresh(row) for row in self.rows[part]], split.stop, times=lambda: self._times[part])

    def _fresh(self, row: Any) -> Any:
        try:
            text = self.codec.encode(row)
            is_typed = b'"$type"' in text or b'"$enum"' in text
            return self.codec.decode(text) if is_typed else copy_value(row)
        except NotEncodable:
            return row


class _TakenRows:
    """A sink that survives crashes and has each delivery once, as a transactional one."""

    def __init__(self, real: Sink | None, orders: Callable[[Delivery], list[int]]) -> None:
        self.where: Literal["driver", "workers", "session", "nowhere"] = "driver"
        self.real = real
        self.only: int | None = None
        self._orders = orders
        self._held: dict[str, list[tuple[int, int, int, Any]]] = {}
        self._incarnations: dict[str, int] = {}

    def deliver(self, rows: list[Any], delivery: Delivery) -> None:
        half, self.only = self.only, None
        if self.real is not None and half is None:
            self.real.deliver(rows, delivery)
        incarnation = self._incarnations.setdefault(delivery.incarnation, len(self._incarnations))
        placed = zip(self._orders(delivery), rows, strict=True)
        self._held[delivery.id] = [(incarnation, delivery.batch, order, row) for order, row in placed][:half]
        if half is not None:
            raise Crashed("deliver", "during")

    @property
    def rows(self) -> list[Any]:
        """The delivered rows, in the order of the input rows that caused them, of all partitions."""
        placed = [item for items in self._held.values() for item in items]
        return [row for *_, row in sorted(placed, key=lambda item: item[:3])]


class TestDriver:
    """Runs an app without Spark: `send` rows, check outputs and state, crash it and restart it.

    >>> import millpond as mp
    >>> app = mp.App("sums")
    >>> numbers = app.stream("numbers", mp.sources.rows([]))
    >>> def add(key, n, total):
    ...     return total + n, total + n
    >>> sums = numbers.key_by(parity=lambda n: n % 2).stateful_map("sum", add, initial=0)
    >>> out = sums.to("sums", mp.sinks.console())
    >>> with mp.testing.TestDriver(app) as driver:
    ...     driver.send("numbers", [1, 2, 3])
    ...     driver.crash(at="commit", when="before")
    ...     try:
    ...         driver.send("numbers", [5])
    ...     except mp.testing.Crashed as crash:
    ...         print(crash)
    ...     driver.restart(lose_replicas=True)
    ...     driver.output("sums")
    crashed before commit
    [1, 2, 4, 9]
    """

    __test__ = False

    def __init__(self, app: App, storage: Storage | str | None = None, *, partitions: int | None = None) -> None:
        self._app = app
        self._storage = (
            storage if storage is not None and not isinstance(storage, str) else open_storage(storage or "memory://")
        )
        self._partitions = partitions
        self._home = tempfile.mkdtemp(prefix="millpond-test-")
        self.clock = ManualClock()
        self._sources: dict[str, _SentRows] = {}
        self._sinks: dict[str, _TakenRows] = {}
        self._crash: tuple[str, str] | None = None
        self._dead = False
        self._driver: Driver | None = None
        self._begin()

    def __enter__(self) -> TestDriver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the app and remove the files of the driver.

        >>> import millpond as mp
        >>> app = mp.App("a"); stream = app.stream("n", mp.sources.rows([]))
        >>> mp.testing.TestDriver(app).close()
        """
        self._stop()
        shutil.rmtree(self._home, ignore_errors=True)

    # --- for tests ---

    def send(self, stream: str | Mapping[str, Sequence[Any]], rows: Sequence[Any] | None = None) -> None:
        """Feed rows to a stream, or to several at once, as one batch.

        >>> import millpond as mp
        >>> app = mp.App("a"); stream = app.stream("n", mp.sources.rows([])).to("out", mp.sinks.console())
        >>> with mp.testing.TestDriver(app) as driver:
        ...     driver.send({"n": [1, 2]})
        ...     driver.output("out")
        [1, 2]
        """
        self._check_alive()
        feeds = {stream: () if rows is None else rows} if isinstance(stream, str) else stream
        for name, sent in feeds.items():
            if name not in self._sources:
                raise InvalidUse(f"send: the app has no stream {name!r}; it has: {', '.join(self._sources) or 'none'}")
            if isinstance(sent, (Mapping, str, bytes)) or not isinstance(sent, Iterable):
                raise InvalidUse(
                    f"send({name!r}): expected a list of rows, got {short_repr(sent)}; send [row] for a single one"
                )
        for name, sent in feeds.items():
            self._sources[name].send(list(sent))
        self._run()

    def advance(self, time: str | float) -> None:
        """Let processing time pass and run a batch: timers and windows that are due fire.

        >>> import millpond as mp
        >>> app = mp.App("a"); stream = app.stream("n", mp.sources.rows([]))
        >>> with mp.testing.TestDriver(app) as driver:
        ...     driver.advance("5m")
        """
        self._check_alive()
        self.clock.advance(seconds(time, "advance"))
        self._run()

    def finish(self) -> None:
        """End the input: windows and timers that are open close.

        >>> import millpond as mp
        >>> app = mp.App("a"); stream = app.stream("n", mp.sources.rows([]))
        >>> with mp.testing.TestDriver(app) as driver:
        ...     driver.finish()
        """
        self._check_alive()
        self._run()
        self._run(final=True)

    def output(self, sink: str) -> list[Any]:
        """Return the rows of a sink, in the order of the input rows that caused them.

        >>> import millpond as mp
        >>> app = mp.App("a"); stream = app.stream("n", mp.sources.rows([])).to("out", mp.sinks.console())
        >>> with mp.testing.TestDriver(app) as driver:
        ...     driver.output("out")
        []
        """
        if sink not in self._sinks:
            raise InvalidUse(f"output: the app has no sink {sink!r}; it has: {', '.join(self._sinks) or 'none'}")
        return self._sinks[sink].rows

    def state(self, step: str) -> StateView:
        """Return the state of a step, as of the newest commit.

        >>> import millpond as mp
        >>> app = mp.App("a"); stream = app.stream("n", mp.sources.rows([]))
        >>> with mp.testing.TestDriver(app) as driver:
        ...     driver.state("none").get("x")
        Traceback (most recent call last):
        ...
        millpond.errors.InvalidUse: app 'a' has no step 'none'; it has: none yet
        """
        return StateView(
            self._storage,
            self._app.name,
            step,
            self.clock,
            step=self._program.steps.get(step),
            types=self._program.types,
            home=self._home,
        )

    def crash(self, at: StepName = "commit", when: When = "before") -> None:
        """Make the next batch crash at this point: `send` raises `Crashed`, and `restart` starts the app again.

        >>> import millpond as mp
        >>> app = mp.App("a"); stream = app.stream("n", mp.sources.rows([]))
        >>> with mp.testing.TestDriver(app) as driver:
        ...     driver.crash(at="deliver", when="during")
        """
        if at not in (*STEPS, *ACTIONS) or when not in WHENS:
            raise InvalidUse(
                f"crash: expected at= one of {', '.join((*STEPS, *ACTIONS))} and when= one of {', '.join(WHENS)}, "
                f"got at={at!r}, when={when!r}"
            )
        self._crash = (at, when)

    def restart(self, app: App | None = None, *, lose_replicas: bool = False) -> None:
        """Start the app again on the same storage, perhaps changed; the batch that crashed is run again.

        >>> import millpond as mp
        >>> app = mp.App("a"); stream = app.stream("n", mp.sources.rows([])).to("out", mp.sinks.console())
        >>> with mp.testing.TestDriver(app) as driver:
        ...     driver.send("n", [1])
        ...     driver.restart(lose_replicas=True)
        ...     driver.output("out")
        [1]
        """
        if self._driver is not None and not self._dead:  # it has not crashed, so it ends normally
            with contextlib.suppress(MillpondError):
                self._driver.release()
        self._app = app or self._app
        armed = self._crash
        self._stop()
        if lose_replicas:
            shutil.rmtree(self._home, ignore_errors=True)
        if armed is not None and armed[0] in ACTIONS:  # a rewrite before the first batch can crash, too
            self._crash = armed
        try:
            self._begin()
        except Crashed:
            self._dead = True
            raise
        self._run()

    def rescale(self, partitions: int) -> None:
        """Move the state of the running app to another number of partitions, as `millpond rescale` does.

        It leaves a request, as the command does, and runs the app until it is answered. InvalidUse if it is refused.

        >>> import millpond as mp
        >>> app = mp.App("a"); stream = app.stream("n", mp.sources.rows([])).to("out", mp.sinks.console())
        >>> with mp.testing.TestDriver(app) as driver:
        ...     driver.send("n", [1])
        ...     driver.rescale(5)
        ...     driver.send("n", [2])
        ...     driver.output("out")
        [1, 2]
        """
        self._check_alive()
        name, storage = self._app.name, self._storage
        request = leave_request(Ledger(storage, name, self.clock), "rescale", {"partitions": partitions})
        self._run()
        answer = read_answer(storage, name, request.id)
        remove_answer(storage, name, request.id)
        if answer is not None and not answer.done:
            raise InvalidUse(f"rescale({partitions!r}): {answer.text}")

    def rebuild(self, step: str, *, switch: bool = False) -> Rebuilt:
        """Like `App.rebuild`: compute the state of a step again from all rows that were sent, and compare it.

        >>> import millpond as mp
        >>> app = mp.App("a")
        >>> def count(key, row, n): return None, n + 1
        >>> _ = app.stream("n", mp.sources.rows([])).key_by("k").stateful_map("count", count, initial=0)
        >>> with mp.testing.TestDriver(app) as driver:
        ...     driver.send("n", [{"k": "x"}])
        ...     driver.rebuild("count")
        []
        """
        from millpond.runtimes.pickling import pack_program, unpack_program

        self._check_alive()
        program = lowlevel.program(self._app)
        packed = pack_program(program)
        replaced = self._replace_ends(replace(program, types=packed.types))
        if switch and self._driver is not None:  # the app must be stopped
            self._driver.release()
            self._stop()

        @contextlib.contextmanager
        def runtime(program: Program) -> Iterator[LocalRuntime]:
            yield LocalRuntime(self._storage, self.clock, shipped=self._feed_tasks(unpack_program(packed.data)))

        try:
            settings = DriverSettings(home=self._home, threaded=False, bounded=False)
            rebuild = Rebuild(replaced, step, self._storage, self.clock, settings, DiscardSink())
            return run_rebuild(rebuild, runtime, switch=switch)
        finally:
            if switch:
                self._begin()

    # --- internals ---

    def _check_alive(self) -> None:
        if self._dead:
            raise InvalidUse("the app has crashed: call restart() first")

    def _stop(self) -> None:
        self._driver = None
        self._crash = None
        for taken in self._sinks.values():
            taken.only = None
        close_below(self._home)

    def _begin(self) -> None:
        from millpond.runtimes.pickling import pack_program, unpack_program  # imports Spark's pickler

        self._dead = False
        program = lowlevel.program(self._app)
        packed = pack_program(program)
        self._program = replace(program, types=packed.types)
        shipped = unpack_program(packed.data)
        replaced = self._replace_ends(self._program)
        runtime = LocalRuntime(
            self._storage,
            self.clock,
            lambda partition: self._crash_if_here("compute", "during"),
            shipped=self._feed_tasks(shipped),
        )
        self._driver = Driver.start(
            replaced,
            runtime,
            self._storage,
            self.clock,
            DriverSettings(
                partitions=self._partitions or self._app.partitions,
                home=self._home,
                threaded=False,
                bounded=False,
                keep=self._app.keep,
                compact_every=self._app.compact_every,
            ),
            Controls(hook=self._crash_if_here),
        )

    def _replace_ends(self, program: Program) -> Program:
        """Return the program with its sources and sinks replaced by ones that the test controls."""
        newest = Ledger(self._storage, program.app, self.clock).newest()
        reached = {} if newest is None else positions_of(self._storage, newest)
        nodes = []
        for node in program.nodes:
            op = node.op
            if isinstance(op, Read):
                if op.stream not in self._sources:
                    self._sources[op.stream] = _SentRows(reached.get(op.stream, {}).get("0", 0), self.clock)
                op = replace(op, source=self._sources[op.stream])
            elif isinstance(op, Deliver):
                real = op.sink if isinstance(op.sink, FunctionSink) else None
                taken = self._sinks.setdefault(op.name, _TakenRows(real, self._orders))
                taken.real = real
                op = replace(op, sink=taken)
            nodes.append(replace(node, op=op))
        return replace(program, nodes=tuple(nodes))

    def _feed_tasks(self, shipped: Program) -> Program:
        """Return the program of the tasks, with sources that read the rows that were sent."""
        codec, nodes = Codec(shipped.types), []
        for node in shipped.nodes:
            op = node.op
            if isinstance(op, Read):
                self._sources[op.stream].codec = codec
                op = replace(op, source=self._sources[op.stream])
            nodes.append(replace(node, op=op))
        return replace(shipped, nodes=tuple(nodes))

    def _orders(self, delivery: Delivery) -> list[int]:
        """Return the places of the input rows that caused the rows of a delivery, from its segments."""
        record = Ledger(self._storage, self._app.name, self.clock).read(delivery.batch)
        assert record is not None
        files = record.outputs[delivery.sink][delivery.partition]
        return sorted(
            order for file in files for order in unpack_outputs(checked.read_file(self._storage, file)).orders.tolist()
        )

    def _crash_if_here(self, at: StepName, when: When) -> None:
        if self._crash != (at, when):
            return
        self._crash = None
        if (at, when) == ("deliver", "during"):
            for taken in self._sinks.values():  # it takes a part of the rows, and then crashes
                taken.only = 2
            return
        raise Crashed(at, when)

    def _run(self, final: bool = False) -> None:
        assert self._driver is not None
        armed = self._crash
        try:
            self._driver.requests.look()
            while True:
                worked = self._driver.batch(Limit(1 << 40, 1 << 60), final=final)
                if final or not (worked or self._driver.requests.is_busy):
                    break
            for taken in self._sinks.values():
                taken.only = None
            if armed is not None and self._crash == armed and armed[1] == "during":
                # The batch had nothing to do in the middle of that step, so it crashes at its end.
                self._crash = None
                raise Crashed(*armed)
        except Crashed:
            self._dead = True
            raise
