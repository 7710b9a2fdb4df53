"""Delivery: committed outputs go to their sinks, in order per sink, from the segments that hold them."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from millpond.backoff import Backoff
from millpond.clock import elapsed
from millpond.codec import Codec
from millpond.driver.owner import Owner
from millpond.errors import MillpondError, Unavailable
from millpond.log.jobs import JobLost
from millpond.log.record import Record
from millpond.messages import KeyedResult, Parcel
from millpond.parcels import hand_over, parcels_of
from millpond.pipeline.graph import Program
from millpond.runtimes.base import Runtime, RuntimeGone
from millpond.sinks.base import Sink
from millpond.steps.forks import refuse_forks

log = logging.getLogger("millpond")

RETRIES = Backoff(first=0.5, longest=60.0)
MOST_DELIVERY_ATTEMPTS = 8  # at a delivery whose job fails; a sink that says it is unavailable is asked for ever
SinkErrors = Mapping[str, MillpondError]  # sink → why it did not take a parcel at the first attempt
NO_SINK_ERRORS: SinkErrors = MappingProxyType({})
LONGEST_ATTACHED = 0.1  # seconds that a task delivers, if that is more than half of its time
LONGEST_ANNOUNCEMENT = 0.05  # seconds
SENT_AFTER_SLOW = 50  # records
LOG_EVERY = 60.0  # seconds between two warnings about the same sink
LARGEST_LAG = 2  # records that may wait for delivery before the next commit waits, too


class DeliveryWorker:
    """Delivers one record after the other, in a thread of its own or, if not `threaded`, where it is called.

    `delivered[sink]` is the newest record up to which all outputs are in the sink. A sink that is unavailable is asked
    again until `stop` is set; the next driver delivers what is left. Right before each delivery the owner announces it
    to the target, which raises if this driver may not deliver any more. `during` is called before each parcel that a
    sink takes on the driver.

    A record whose sinks all take their rows in workers may be attached to the next batch in place of being sent: the
    keyed tasks of that batch deliver it first, which saves a job. What they do not deliver is sent. A slow sink would
    delay the batch, whereas a delivery that is sent takes its time beside it: after a slow delivery or announcement the
    next `SENT_AFTER_SLOW` records are sent.
    """

    def __init__(
        self,
        program: Program,
        runtime: Runtime,
        owner: Owner,
        during: Callable[[], Any],
        *,
        threaded: bool,
        stop: threading.Event,
    ) -> None:
        self._program, self._runtime, self._owner, self._during = program, runtime, owner, during
        self._codec, self._claim = Codec(program.types), owner.targets.claim
        self.delivered = dict(owner.last.deliveries)
        self._queue: queue.Queue[tuple[Record, SinkErrors] | None] = queue.Queue(maxsize=LARGEST_LAG)
        self.attached: Record | None = None
        self._sent = -1  # the newest record that was sent
        self._slow_until = 0  # records before this number are sent, because one before them was slow
        self._error: BaseException | None = None
        self._warned: dict[str, float] = {}  # sink → when its last warning was logged
        self._stop = stop
        self._is_hurried = self._is_closing = False
        self._thread = threading.Thread(target=self._work, name="millpond-delivery", daemon=True)
        self._threaded = threaded

    def start(self) -> None:
        """Start the thread, if `threaded` is true. Sinks that run in this process must not fork from now on."""
        refuse_forks()
        if self._threaded:
            self._thread.start()

    def send(self, record: Record) -> None:
        """Deliver a record's outputs: now, or soon and in order. Raises what an earlier delivery has failed with."""
        self.send_attached()
        self._send(record, NO_SINK_ERRORS)

    def _send(self, record: Record, failures: SinkErrors) -> None:
        self._raise_error()
        self._sent = record.number
        if self._thread.is_alive():
            self._queue.put((record, failures))
            return
        try:
            self.deliver(record, failures)
        except BaseException as error:
            self._error = error  # what comes after it must not be taken for delivered in its place
            raise

    def wait(self) -> None:
        """Wait until all that was sent or attached has been delivered."""
        self.send_attached()
        if self._thread.is_alive():
            self._queue.join()
        self._raise_error()

    # --- records that are attached to the next batch ---

    def attach(self, record: Record) -> bool:
        """Let the next batch deliver a record, and return True; False if it must be sent.

        It must be sent if records before it are not delivered yet, if a sink is called anywhere but in workers, or if
        sinks were slow.
        """
        self.send_attached()
        self._raise_error()
        parcels = self._parcels(record)
        if record.number < self._slow_until or not parcels:
            return False
        if any(self.delivered.get(name, -1) < self._sent for name in self._program.sinks):
            return False
        if any(self._program.sinks[parcel.sink].where != "workers" for parcel in parcels):
            return False
        self.attached = record
        return True

    def begin_attached(self) -> tuple[Parcel, ...]:
        """Announce what the batch that begins now has to deliver, and return it."""
        record = self.attached
        assert record is not None
        self._during()
        began, parcels = elapsed(), self._parcels(record)
        for name in dict.fromkeys(parcel.sink for parcel in parcels):
            try:
                self._owner.announce(name, record)
            except Unavailable as error:
                self.send_attached({name: error})
                return ()
        if elapsed() - began > LONGEST_ANNOUNCEMENT:
            self._slow_until = record.number + SENT_AFTER_SLOW
        return tuple(parcels)

    def finish_attached(self, parcels: Iterable[Parcel], results: Iterable[KeyedResult]) -> None:
        """Note what the tasks of a batch have delivered of their parcels, and send the record if that is not all."""
        record = self.attached
        assert record is not None
        delivered: set[str] = set()
        failures: dict[str, MillpondError] = {}
        for result in results:
            delivered.update(result.delivered)
            failures.update(result.delivery_failures)
            if result.delivery_seconds > max(LONGEST_ATTACHED, result.seconds / 2):
                self._slow_until = record.number + SENT_AFTER_SLOW
        left = {parcel.sink for parcel in parcels if parcel.delivery.id not in delivered}
        for name in self._program.sinks:
            if name not in left:
                self.delivered[name] = max(self.delivered.get(name, -1), record.number)
        if left:
            self.send_attached(failures)
        self.attached = None

    def send_attached(self, failures: SinkErrors = NO_SINK_ERRORS) -> None:
        """Send the attached record, if there is one: no batch delivers it, or one has failed to."""
        record, self.attached = self.attached, None
        if record is not None:
            self._send(record, failures)

    def _parcels(self, record: Record) -> list[Parcel]:
        """Return what is left to deliver of a record, to sinks that are called."""
        return [
            parcel
            for name, sink in self._program.sinks.items()
            if sink.where != "nowhere" and self.delivered.get(name, -1) < record.number
            for parcel in parcels_of(record, name, self._claim)
        ]

    # ---

    def hurry(self) -> None:
        """Deliver what can be delivered now, and wait for no sink that is unavailable."""
        self._is_hurried = True

    def close(self) -> None:
        """Stop after the current delivery; the next driver delivers what is left. May be called twice."""
        self._is_hurried = self._is_closing = True
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def deliver(self, record: Record, failures: SinkErrors = NO_SINK_ERRORS) -> None:
        """Deliver one record to all sinks that do not have it yet. `failures` are of a first attempt at it."""
        for name in self._program.sinks:
            if self.delivered.get(name, -1) >= record.number:
                continue
            self.deliver_to(name, record, failures.get(name))
            self.delivered[name] = record.number

    def deliver_to(self, name: str, record: Record, failure: MillpondError | None = None) -> None:
        """Deliver one record to one sink, whatever is known to be delivered."""
        sink, parcels = self._program.sinks[name], parcels_of(record, name, self._claim)
        if parcels and sink.where != "nowhere":
            self._deliver_with_retries(record, sink, parcels, failure)

    def _deliver_with_retries(
        self, record: Record, sink: Sink, parcels: list[Parcel], failure: MillpondError | None
    ) -> None:
        name, attempt, lost_jobs, began = parcels[0].sink, 0, 0, elapsed()
        while True:
            attempt += 1
            try:
                if attempt == 1 and failure is not None:
                    raise failure
                self._owner.announce(name, record)
                self._deliver_once(sink, parcels)
                if elapsed() - began > LOG_EVERY:
                    seconds = elapsed() - began
                    log.warning("%s: sink %r goes on after %.0f s", self._program.app, name, seconds)
                return
            except RuntimeGone:
                raise
            except Unavailable as error:
                if self._is_in_a_hurry:
                    raise
                wait = RETRIES.pause(attempt) if error.retry_after is None else error.retry_after
                why = str(error)
            except JobLost as error:
                lost_jobs += 1
                if lost_jobs == MOST_DELIVERY_ATTEMPTS:
                    where = f"sink {name!r}, batch {record.number}"
                    raise Unavailable(f"{where}: {lost_jobs} deliveries failed: {error}") from error
                wait, why = RETRIES.pause(attempt), str(error)
            self._warn(name, f"is asked again in {wait:.1f} s: {why}")
            self._pause(wait)

    def _warn(self, name: str, text: str) -> None:
        """Log a warning about a sink, at most once a minute."""
        now = elapsed()
        if now - self._warned.get(name, -LOG_EVERY) >= LOG_EVERY:
            self._warned[name] = now
            log.warning("%s: sink %r %s", self._program.app, name, text)

    def _deliver_once(self, sink: Sink, parcels: list[Parcel]) -> None:
        storage = self._owner.storage
        if sink.where != "driver":
            return self._runtime.deliver(self._program, storage.url, parcels)
        while parcels:  # what was taken is not offered again when the next one is refused
            self._during()
            hand_over(storage, self._codec, sink, parcels[0])
            del parcels[0]

    @property
    def _is_in_a_hurry(self) -> bool:
        return self._is_hurried or self._stop.is_set()

    def _pause(self, seconds: float) -> None:
        if not self._threaded:
            return self._owner.clock.sleep(seconds)
        until = elapsed() + seconds
        while (left := until - elapsed()) > 0 and not self._is_in_a_hurry:
            self._stop.wait(min(left, 0.2))

    def _work(self) -> None:
        while (sent := self._queue.get()) is not None:
            if self._error is None and not self._is_closing:
                try:
                    self.deliver(*sent)
                except BaseException as error:
                    self._error = error
            self._queue.task_done()
        self._queue.task_done()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error
