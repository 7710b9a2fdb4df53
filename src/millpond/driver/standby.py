"""A standby driver: it waits until its app has no owner, and then takes it over.

While it waits it reads the heartbeat and the newest record every second, and writes a file of its own, so that the
owner beats more often. It writes no record. `millpond.driver.takeover` decides; the claim that follows fences the owner
if that one was only paused.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection

from millpond.clock import Clock, new_id
from millpond.driver.patience import Patience, StoppedWaiting
from millpond.driver.run_log import run_log
from millpond.driver.schema_change import check_fits
from millpond.driver.settings import DeclaredPartitions
from millpond.driver.takeover import LONGEST_STEP, Observation, TakeOver, Watch, decide, follow
from millpond.errors import Fenced, InvalidUse, MillpondError, Unavailable
from millpond.log.heartbeat import BEAT_SECONDS, read_beat
from millpond.log.ledger import Ledger
from millpond.log.record import Record
from millpond.log.standby_drivers import StandbyFile
from millpond.pipeline.graph import Program
from millpond.runtimes.base import RuntimeGone
from millpond.storage import Storage

log = logging.getLogger("millpond")

LOOK_SECONDS = 1.0  # between two observations
WARM_SECONDS = 20.0  # Spark ends Python workers that have had nothing to do for a minute
CORES_SECONDS = 30.0  # after which a first job that has not ended is reported
WARM_PATIENCE = 3.0  # for which a take-over waits until what warms up has ended
RETRY_SECONDS = 1.0  # the shortest pause after the storage was unavailable


class Standby:
    """Waits to take an app over, in the process that will run it.

    `keep_warm(partitions)` is called after the first observation and then every `WARM_SECONDS`, unless the owner is
    silent: it lets the runtime do what makes a first batch slow. It is called from a thread: while the owner has all
    cores of a cluster, a job waits for them, and the owner must be watched meanwhile.
    """

    def __init__(
        self,
        program: Program,
        storage: Storage,
        clock: Clock,
        partitions: DeclaredPartitions = None,
        keep_warm: Callable[[int | None], None] = lambda partitions: None,
    ) -> None:
        self._program, self._clock, self._partitions = program, clock, partitions
        self._ledger = Ledger(storage, program.app, clock)
        self._keep_warm, self._warmed = keep_warm, -WARM_SECONDS
        self._warming: threading.Thread | None = None
        self._warming_since = 0.0
        self._is_warm = self._is_reported = False
        self._cannot_run: RuntimeGone | InvalidUse | None = None
        self._file = StandbyFile(storage, program.app, new_id(), clock)
        self._written = -BEAT_SECONDS
        self._took_over = 0.0

    def wait(self, stop: threading.Event, own: Collection[str] = ()) -> TakeOver | None:
        """Wait until the app is to be taken over; None if the run is asked to stop.

        `own` are ids of drivers that this process has run. Raises an error if the program does not fit the state, or if
        the ledger is gone. A storage that is unavailable is waited for.
        """
        patience = Patience(f"standby of {self._program.app}", stop)
        watch: Watch | None = None
        owner = ""
        self._written = -BEAT_SECONDS
        try:
            while not stop.is_set():
                try:
                    watch = self._observe(watch)
                    takeover = decide(watch, own)
                    if takeover is not None:
                        return self._begin(takeover)
                    owner = self._note_owner(watch, owner)
                    self._show(watch)
                    self._warm_up(watch)
                    patience.end()
                    stop.wait(LOOK_SECONDS)
                except RuntimeGone:
                    raise
                except Unavailable as error:  # perhaps for the owner, too: its silence begins again
                    watch = None if watch is None else Watch(watch.seen)
                    patience.wait(Unavailable(str(error), retry_after=error.retry_after or RETRY_SECONDS))
        except StoppedWaiting:
            pass
        finally:
            with contextlib.suppress(MillpondError):
                self._file.remove()
        run_log.info("app %r: the standby driver has stopped; it has written nothing", self._program.app)
        return None

    def _observe(self, watch: Watch | None) -> Watch:
        """Look once, and return the watch that follows."""
        known = None if watch is None else watch.seen.newest
        seen = self._look(known)
        if seen.newest is None and known is not None:
            seen = self._look(None)  # a record that was just removed, or the whole ledger
            if seen.newest is None:
                raise Fenced(
                    f"app {self._program.app!r} in {self._ledger.storage.url}: the ledger that this standby driver has "
                    "watched is gone. It has stopped and has written nothing; start it again to begin without state."
                )
        if known is None and seen.newest is not None:
            check_fits(self._program, seen.newest, self._partitions)
        return follow(watch, seen)

    def _look(self, known: Record | None) -> Observation:
        began = self._clock.monotonic()
        beat = read_beat(self._ledger.storage, self._ledger.paths.heartbeat)
        newest = self._ledger.newest(near=None if known is None else known.number)
        is_dead = beat is not None and beat.is_dead
        return Observation(began, self._clock.monotonic(), newest, beat, is_dead)

    def _note_owner(self, watch: Watch, before: str) -> str:
        """Log who owns the app, if it is another driver than before, and return its id.

        A driver that has just claimed the app is about to write its first heartbeat, which says where it runs.
        """
        newest, beat = watch.seen.newest, watch.seen.beat
        assert newest is not None
        if newest.driver == before or not (watch.seen.owner_beats or watch.silent >= LONGEST_STEP):
            return before
        who = f"process {beat.pid} on {beat.host}" if beat and watch.seen.owner_beats else f"driver {newest.driver}"
        run_log.info("app %r: standing by; %s owns it, batch %d", self._program.app, who, newest.number)
        return newest.driver

    def _show(self, watch: Watch) -> None:
        """Write the file that shows this standby driver, if it is due."""
        now, newest = self._clock.monotonic(), watch.seen.newest
        if now - self._written >= BEAT_SECONDS:
            self._file.write(-1 if newest is None else newest.number)
            self._written = now

    def _warm_up(self, watch: Watch) -> None:
        """Start to warm up if it is due. Raises what the last time has found: no Spark, or no worker that starts."""
        if self._cannot_run is not None:
            raise self._cannot_run
        if self._warming is not None and self._warming.is_alive():
            self._warmed = self._clock.monotonic()
            self._report_waiting()
        elif watch.silent == 0.0 and self._clock.monotonic() - self._warmed >= WARM_SECONDS:
            newest = watch.seen.newest
            partitions = None if newest is None else newest.partitions
            self._warming = threading.Thread(
                target=self._warm_up_once, args=(partitions,), name="millpond-warm", daemon=True
            )
            self._warming.start()
            self._warmed = self._warming_since = self._clock.monotonic()

    def _report_waiting(self) -> None:
        """Say once that the first job has not run: the session has no cores, most likely."""
        waited = self._clock.monotonic() - self._warming_since
        if self._is_warm or self._is_reported or waited < CORES_SECONDS:
            return
        self._is_reported = True
        log.warning(
            "%s: the standby driver has waited %.0f s for its first job: its Spark session has no free cores. It takes "
            "over all the same, but has to start workers then. Let the other driver leave some (spark.cores.max).",
            self._program.app,
            waited,
        )

    def _warm_up_once(self, partitions: int | None) -> None:
        try:
            self._keep_warm(partitions)
            self._is_warm = True
        except (RuntimeGone, InvalidUse) as error:
            self._cannot_run = error
        except Exception as error:  # the first batch raises what is wrong
            log.debug("%s: a standby driver was not warmed up: %s", self._program.app, error)

    def _begin(self, takeover: TakeOver) -> TakeOver:
        if self._warming is not None:  # it shares workers with the first batch
            self._warming.join(WARM_PATIENCE)
        silent = f"; it was silent for {takeover.silent:.1f} s" if takeover.silent else ""
        run_log.info("app %r: taking over: %s%s", self._program.app, takeover.why, silent)
        self._took_over = self._clock.monotonic()
        return takeover

    def note_commit(self, record: Record) -> None:
        """Log the first commit after the take-over."""
        seconds = self._clock.monotonic() - self._took_over
        run_log.info(
            "app %r: first commit %.1f s after the take-over: batch %d", self._program.app, seconds, record.number
        )
