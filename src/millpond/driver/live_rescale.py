"""Rescaling a running app: most of the state moves while batches go on, the rest between two of them.

    prepare   a thread writes the state of the newest record under the new number of partitions, then the changes of
              the batches since, until there are few; batches go on under the old number
    finish    between two batches: the changes that are left are moved, and one record makes the new files the state

The stream waits only for `finish`, and the next batch builds its replicas from the new files. Until the record is
written nothing has changed: a crash leaves files that no record names.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from millpond.clock import elapsed
from millpond.driver.owner import Owner
from millpond.driver.requests import Refused
from millpond.driver.schema_change import Adaptation
from millpond.errors import Fenced, MillpondError
from millpond.log.compaction import Compactor
from millpond.log.jobs import JobLost
from millpond.log.manifest import Runs
from millpond.log.record import Record
from millpond.log.rewrite import Rewriter, add_runs
from millpond.runtimes.base import RuntimeGone

log = logging.getLogger("millpond")

FEW_RECORDS = 3  # whose changes are left to `finish`
MOST_PASSES = 5  # over the changes since the pass before
MOST_ATTEMPTS = 3  # at jobs that are lost, as when an executor dies


@dataclass(frozen=True)
class RescalePlan:
    """What is asked for: the new number, the reason in words, and more fields of the record."""

    partitions: int
    why: str
    fields: Callable[[], dict[str, Any]] = dict  # called right before the record is written


class LiveRescale:
    """Moves the state of a running app to another number of partitions. A `RequestedWork`.

    `rewriter` runs the jobs of `prepare`, a few at a time, and `at_once` those of `finish`. `settle` is called when the
    stream begins to wait, and returns what has been delivered.
    """

    def __init__(
        self,
        owner: Owner,
        compactor: Compactor,
        rewriter: Rewriter,
        at_once: Rewriter,
        plan: RescalePlan,
        settle: Callable[[], dict[str, int]],
    ) -> None:
        self._owner, self._compactor = owner, compactor
        self._rewriter, self._at_once = rewriter, at_once
        self._plan, self._settle = plan, settle
        self._runs: Runs = {}
        self._moved = owner.last  # the record up to which the changes are moved
        self._error: BaseException | None = None
        self._is_given_up = False
        self._prepared = threading.Event()
        self._began = elapsed()
        compactor.is_held = True
        self._thread = threading.Thread(target=self._prepare, name="millpond-rescale", daemon=True)
        if compactor.settings.threaded:
            self._thread.start()
        else:
            self._prepare()
            self._is_first = True  # let a batch go on in between, as it does beside a thread

    _is_first = False

    def advance(self) -> str | None:
        """Finish once everything is prepared."""
        if self._is_first or not self._prepared.is_set():
            self._is_first = False
            return None
        began = elapsed()
        before = self._owner.last
        try:
            if self._error is not None:
                raise self._error
            delivered = self._settle()
            manifest = self._at_once.write_manifest(self._move_rest(before), before)
        except (Fenced, RuntimeGone):
            raise
        except (MillpondError, JobLost) as error:
            self._compactor.is_held = False
            raise Refused(f"{self._plan.why} failed, and nothing was changed: {error}") from error
        what = Adaptation(self._plan.partitions)
        record = self._owner.replace_state(what, manifest, delivered, why=self._plan.why, **self._plan.fields())
        self._compactor.begin(record)
        now = elapsed()
        return (
            f"{before.partitions} to {record.partitions} partitions as record {record.number}, prepared in "
            f"{began - self._began:.1f} s beside the batches; rows waited {now - began:.1f} s"
        )

    @property
    def is_ready(self) -> bool:
        """Whether all that can be done beside the batches is done."""
        return self._prepared.is_set()

    def close(self) -> None:
        """Wait for the jobs that are running, and start no others."""
        self._is_given_up = True
        if self._thread.is_alive():
            self._thread.join()

    def _prepare(self) -> None:
        try:
            self._compactor.wait()  # it removes nothing that is read here, and starts nothing
            base = self._moved
            self._runs = self._run(
                lambda: self._rewriter.run_jobs(self._rewriter.plan_jobs(base, base, partitions=self._plan.partitions))
            )
            for _ in range(MOST_PASSES):
                newest = self._owner.last
                if newest.number - self._moved.number <= FEW_RECORDS or self._is_given_up:
                    break
                self._move_changes(self._rewriter, newest)
        except (MillpondError, JobLost) as error:
            self._error = error
        except BaseException as error:  # `advance` raises it, too: half of the state must not become the state
            self._error = error
            raise
        finally:
            self._prepared.set()

    def _move_rest(self, last: Record) -> Runs:
        if last.number > self._moved.number:
            self._move_changes(self._at_once, last)
        return self._runs

    def _move_changes(self, rewriter: Rewriter, newest: Record) -> None:
        """Move the changes after the record that was reached last."""
        jobs = rewriter.plan_changes(self._moved, newest, self._plan.partitions)
        add_runs(self._runs, self._run(lambda: rewriter.move_changes(jobs)))
        self._moved = newest

    def _run(self, jobs: Callable[[], Runs]) -> Runs:
        for attempt in range(1, MOST_ATTEMPTS + 1):
            try:
                return jobs()
            except JobLost as error:
                if attempt == MOST_ATTEMPTS or self._is_given_up:
                    raise
                log.warning("%s: %s is tried again: %s", self._owner.last.app, self._plan.why, error)
        raise AssertionError("unreachable")
