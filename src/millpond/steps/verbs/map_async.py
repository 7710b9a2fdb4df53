"""`map_async`: a function over several rows at a time; the results keep the order of the rows.

>>> import millpond as mp
>>> async def with_price(order):
...     return {**order, "price": 3}
>>> app = mp.App("shop")
>>> out = app.stream("orders", mp.sources.rows([])).map_async(with_price).to("out", mp.sinks.memory())
>>> with mp.testing.TestDriver(app) as driver:
...     driver.send("orders", [{"id": 1}, {"id": 2}])
...     driver.output("out")
[{'id': 1, 'price': 3}, {'id': 2, 'price': 3}]
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from millpond.clock import Clock
from millpond.rows.rows import Rows
from millpond.steps.failure import FAULTS, OnError, Retry, is_needed_again, own_copy
from millpond.steps.operator import Operator, OperatorContext


@dataclass(frozen=True)
class MapAsync(Operator):
    """Calls a function for up to `workers` rows at a time."""

    verb = "map_async"
    f: Callable[[Any], Any]
    workers: int
    on_error: OnError

    @property
    def own_policy(self) -> OnError:
        return self.on_error

    def start(self, context: OperatorContext) -> RunningMapAsync:
        return RunningMapAsync(self, context)


@dataclass
class Raised:
    """What a function raised in the end, after all attempts that it had."""

    error: BaseException


class RunningMapAsync:
    """A `map_async`, started in one task."""

    def __init__(self, operator: MapAsync, context: OperatorContext) -> None:
        self._operator, self._context = operator, context

    def run(self, rows: Rows, side: int = 0) -> Rows:
        """Return the results for all rows that did not fail.

        Each worker pauses by itself before it tries again, so a row that waits does not delay others. If a failure ends
        the batch, no more rows are started after it.
        """
        rows = rows.as_objects()
        outcomes = _Outcomes(self._operator, rows.data, self._context.clock).all()
        good: list[int] = []
        data: list[Any] = []
        for i, outcome in enumerate(outcomes):
            if isinstance(outcome, Raised):
                self._context.fail(rows, i, rows.data[i], outcome.error)
            else:
                good.append(i)
                data.append(outcome)
        kept = rows if len(good) == len(rows) else rows.pick(good)
        return kept.with_data(data)


class _Outcomes:
    """Calls a function with workers that take rows from one list, in its order, and store the result of each."""

    def __init__(self, op: MapAsync, rows: list[Any], clock: Clock) -> None:
        self._f, self._rows, self._clock = op.f, rows, clock
        policy = op.on_error
        self._workers = max(1, min(op.workers, len(rows)))
        self._pauses = [policy.backoff * 2**n for n in range(policy.times)] if isinstance(policy, Retry) else []
        self._stops = (policy.then if isinstance(policy, Retry) else policy) == "stop"
        self._is_kept = is_needed_again(policy)
        self._left = iter(range(len(rows)))
        self._found: list[Any] = [None] * len(rows)
        self._over = False

    def all(self) -> list[Any]:
        # The event loop runs in a thread of its own: this one may run a loop already, as in a notebook.
        if is_async(self._f):
            run_in_thread(self._gather())
        else:
            with ThreadPoolExecutor(self._workers, thread_name_prefix="map_async") as pool:
                for done in [pool.submit(self._work) for _ in range(self._workers)]:
                    done.result()
        return self._found

    def _row_for_call(self, i: int) -> Any:
        return own_copy(self._rows[i]) if self._is_kept else self._rows[i]

    def _store_error(self, i: int, error: BaseException) -> None:
        self._found[i] = Raised(error)
        self._over = self._over or self._stops

    def _work(self) -> None:
        for i in self._left:
            if self._over:
                return
            for pause in (*self._pauses, None):
                try:
                    self._found[i] = answer(self._f, self._row_for_call(i))
                    break
                except FAULTS as error:
                    if pause is None:
                        self._store_error(i, error)
                    else:
                        self._clock.sleep(pause)

    async def _gather(self) -> None:
        await asyncio.gather(*(self._work_async() for _ in range(self._workers)))

    async def _work_async(self) -> None:
        for i in self._left:
            if self._over:
                return
            for pause in (*self._pauses, None):
                try:
                    self._found[i] = await self._f(self._row_for_call(i))
                    break
                except (Exception, SystemExit, asyncio.CancelledError) as error:
                    if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                        raise
                    if pause is None:
                        self._store_error(i, error)
                    else:
                        await asyncio.to_thread(self._clock.sleep, pause)


def _is_cancelled() -> bool:
    """Return whether this task was cancelled, and not something that a function waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def is_async(f: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(f) or inspect.iscoroutinefunction(getattr(f, "__call__", None))  # noqa: B004


def answer(f: Callable[..., Any], *given: Any) -> Any:
    """Return what a function returns; a coroutine is run to its end."""
    found = f(*given)
    return run_in_thread(found) if inspect.iscoroutine(found) else found


def run_in_thread(coroutine: Awaitable[Any]) -> Any:
    """Run a coroutine to its end in a new thread, because this one may run an event loop already."""
    found: list[Any] = []

    async def run() -> None:
        found.append(await coroutine)

    trouble: list[BaseException] = []

    def work() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            trouble.append(error)

    thread = threading.Thread(target=work, name="map_async", daemon=True)
    thread.start()
    thread.join()
    if trouble:
        raise trouble[0]
    return found[0]
