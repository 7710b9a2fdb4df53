"""Delivery: committed outputs go to their sinks, in order per sink, from the segments that hold them."""

from __future__ import annotations

import logging
import queue
import threading
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from millpond.clock import Clock, elapsed
from millpond.codec import Codec
from millpond.driver.runtime import Gone, Parcel, Runtime
from millpond.driver.targets import deliveries_of
from millpond.errors import MillpondError, StepFailed, Unavailable
from millpond.log import pointer, segment
from millpond.log.jobs import JobLost
from millpond.log.record import Record
from millpond.pipeline.graph import Program
from millpond.sinks.base import Delivery, Sink
from millpond.steps.failure import FAULTS
from millpond.steps.forks import refuse_forks
from millpond.storage import Storage

log = logging.getLogger("millpond")

LONGEST_PAUSE = 60.0
MOST_ATTEMPTS = 8  # at a delivery whose job fails; a sink that says it is unavailable is asked for ever


def parcels(record: Record, sink: str) -> list[Parcel]:
    """The deliveries of one sink in one batch, one per partition that has outputs for it."""
    return [
        Parcel(sink, delivery, tuple(record.outputs[sink][delivery.partition]))
        for delivery in deliveries_of(record, sink)
    ]


def rows_of(storage: Storage, codec: Codec, parcel: Parcel) -> list[Any]:
    """The rows of one parcel, in the order of the rows that caused them."""
    orders, texts = [], []
    for part in parcel.segments:
        order, rows = segment.unpack_outputs(pointer.read(storage, part))
        orders.append(order)
        texts += rows
    place = np.concatenate(orders)
    if len(place) > 1 and (np.diff(place) < 0).any():
        texts = [texts[i] for i in np.argsort(place, kind="stable").tolist()]
    return codec.decode_many(texts)


def delivered_rows(storage: Storage, program: Program, record: Record, delivery: Delivery) -> list[Any]:
    """The rows of one delivery of a record."""
    parcel = Parcel(delivery.sink, delivery, tuple(record.outputs[delivery.sink][delivery.partition]))
    return rows_of(storage, Codec(program.types), parcel)


def hand_over(storage: Storage, codec: Codec, sink: Sink, parcel: Parcel) -> None:
    """Read one parcel's rows and give them to the sink."""
    refuse_forks()
    rows = rows_of(storage, codec, parcel)
    try:
        sink.deliver(rows, parcel.delivery)
    except MillpondError:
        raise
    except FAULTS as error:
        raise failed(parcel, error) from error


def failed(parcel: Parcel, error: BaseException) -> StepFailed:
    """What a sink of the user's raised, with its name and the batch."""
    message = f"{type(error).__name__}: {error}"
    trace = "".join(traceback.format_exception(error))
    return StepFailed(parcel.sink, batch=parcel.delivery.batch, error=message, traceback=trace)


class Courier:
    """Delivers one record after the other, in a thread of its own or where it is called.

    `delivered[sink]` says up to which record everything is there. A sink that is unavailable is asked again, for as
    long as nobody sets `stop`; what is left then is delivered by the next driver. `announce(sink, record)` is called
    right before each delivery, and raises if this driver may not deliver any more.
    """

    def __init__(
        self,
        program: Program,
        runtime: Runtime,
        storage: Storage,
        clock: Clock,
        delivered: dict[str, int],
        during: Callable[[Parcel], None],
        announce: Callable[[str, Record], None],
        *,
        threaded: bool,
        stop: threading.Event,
    ) -> None:
        self._program, self._runtime, self._storage, self._clock = program, runtime, storage, clock
        self._codec = Codec(program.types)
        self._during, self._announce = during, announce
        self.delivered = delivered
        self._queue: queue.Queue[Record | None] = queue.Queue(maxsize=2)  # how far delivery may lag behind
        self._error: BaseException | None = None
        self._stop = stop
        self._hurried = self._closing = False
        self._thread = threading.Thread(target=self._work, name="millpond-delivery", daemon=True)
        self._threaded = threaded

    def start(self) -> None:
        """Start the thread, if there is to be one."""
        if self._threaded:
            self._thread.start()

    def send(self, record: Record) -> None:
        """Deliver a record's outputs: now, or soon and in order."""
        self._raise()
        if self._thread.is_alive():
            self._queue.put(record)
            return
        try:
            self.deliver(record)
        except BaseException as error:
            self._error = error  # what comes after it must not be taken for delivered in its place
            raise

    def wait(self) -> None:
        """Wait until all that was sent has been delivered."""
        if self._thread.is_alive():
            self._queue.join()
        self._raise()

    def hurry(self) -> None:
        """Deliver what can be delivered now, and wait for no sink that is unavailable."""
        self._hurried = True

    def close(self) -> None:
        """Stop after the delivery in hand; what is left is delivered by the next driver. May be called twice."""
        self._hurried = self._closing = True
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def deliver(self, record: Record) -> None:
        """All sinks of one record."""
        for name in self._program.sinks:
            if self.delivered.get(name, -1) >= record.number:
                continue
            self.deliver_to(name, record)
            self.delivered[name] = record.number

    def deliver_to(self, name: str, record: Record) -> None:
        """One sink of one record, whatever is known to be delivered."""
        sink, for_sink = self._program.sinks[name], parcels(record, name)
        if for_sink and sink.where != "nowhere":
            self._patiently(record, sink, for_sink)

    def _patiently(self, record: Record, sink: Sink, for_sink: list[Parcel]) -> None:
        name, pause, attempt = for_sink[0].sink, 0.5, 1
        while True:
            try:
                self._announce(name, record)
                return self._once(sink, for_sink)
            except Gone:
                raise
            except Unavailable as error:
                if self._in_a_hurry:
                    raise
                wait, why = pause if error.retry_after is None else error.retry_after, str(error)
            except JobLost as error:
                if attempt == MOST_ATTEMPTS:
                    where = f"sink {name!r}, batch {record.number}"
                    raise Unavailable(f"{where}: {attempt} deliveries failed: {error}") from error
                wait, why, attempt = pause, str(error), attempt + 1
            log.warning("%s: sink %r is asked again in %.1f s: %s", self._program.app, name, wait, why)
            self._pause(wait)
            pause = min(pause * 2, LONGEST_PAUSE)

    def _once(self, sink: Sink, for_sink: list[Parcel]) -> None:
        if sink.where != "driver":
            return self._runtime.deliver(self._program, self._storage.url, for_sink)
        while for_sink:  # what was taken is not offered again when the next one is refused
            self._during(for_sink[0])
            hand_over(self._storage, self._codec, sink, for_sink[0])
            del for_sink[0]

    @property
    def _in_a_hurry(self) -> bool:
        return self._hurried or self._stop.is_set()

    def _pause(self, seconds: float) -> None:
        if not self._threaded:
            return self._clock.sleep(seconds)
        until = elapsed() + seconds
        while (left := until - elapsed()) > 0 and not self._in_a_hurry:
            self._stop.wait(min(left, 0.2))

    def _work(self) -> None:
        while (record := self._queue.get()) is not None:
            if self._error is None and not self._closing:
                try:
                    self.deliver(record)
                except BaseException as error:
                    self._error = error
            self._queue.task_done()
        self._queue.task_done()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error
