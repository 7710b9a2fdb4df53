"""Placement: on which hosts the partitions of a running app are, and the standbys that follow them.

The hosts themselves say which copies they have: when a driver starts, when a host joins, and with every round of
following. So a driver that starts again, on other hosts or after a crash, computes each partition where its newest copy
is. Standbys follow committed records only, in jobs that run beside the batches, from a thread.

On a runtime with one host there is nothing to choose, and nothing here costs anything.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from millpond.driver.layout import HostFacts, Layout, choose_layout
from millpond.driver.owner import Owner
from millpond.driver.settings import DriverSettings
from millpond.errors import MillpondError
from millpond.log.heartbeat import PartitionCopies, StandbyCopy
from millpond.log.jobs import JobLost
from millpond.log.point import LogPoint
from millpond.log.record import Record
from millpond.messages import KeyedResult
from millpond.pipeline.graph import Program
from millpond.replica.follow import READY_RECORDS, FollowJob, HostReport, follow
from millpond.runtimes.base import Runtime

log = logging.getLogger("millpond")

SENT_RECORDS = 32  # whose segments are sent to standbys, so that they need not read the ledger
PAUSE_SECONDS = 0.3  # at least, between two rounds of following
PAUSE_FACTOR = 3.0  # a round is followed by a pause of so many times its own length
IDLE_SECONDS = 5.0  # between two rounds without a commit
TIDY_SECONDS = 300.0  # between two removals of copies that a host does not need
AVOIDED_SECONDS = 60.0  # for which a host that could not keep a copy gets no other
JOIN_SECONDS = 5.0  # that a driver waits at its start for hosts which had partitions before
MOST_REPEATS = 3  # attempts at one batch that may end because a partition is on the wrong host
RELAY_SECONDS = 5.0  # between two attempts at laying partitions again that do not run where they were laid
ROUND_SECONDS = 30.0  # that closing waits for a round of following


@dataclass
class _Host:
    """What is known about one host."""

    place: str = ""  # the id of the folder of its replicas; empty until it has answered
    copies: dict[int, int] = field(default_factory=dict)  # partition → the record that its copy is at
    tidied: float = 0.0  # when copies that it does not need were removed
    avoided_until: float = 0.0


class Placement:
    """Chooses the hosts of partitions and standbys, and keeps the standbys up to date.

    The driver calls `begin` once, `settle` before each attempt at a batch, `note_results` with what the tasks returned,
    and `note_commit` after each commit. With `threaded` settings standbys follow in a thread, else in `note_commit`.
    """

    def __init__(self, runtime: Runtime, owner: Owner, settings: DriverSettings, program: Program) -> None:
        self._runtime, self._owner, self._settings, self._program = runtime, owner, settings, program
        self._app, self._clock = owner.last.app, owner.clock
        self._lock = threading.RLock()
        self._hosts: dict[str, _Host] = {}
        self._drained: set[str] = set()
        self._layout = Layout()
        self._placed: list[str] = []  # the hosts that the runtime was given
        self._strays: set[int] = set()  # partitions that ran elsewhere in the last batch
        self._relaid = 0.0  # when strays were last laid again
        self._computed: dict[int, str] = {}  # partition → the host that computed it last
        self._unknown: dict[
            int, tuple[str, int]
        ] = {}  # partition → place and record, until it is known whose place it is
        self._point = LogPoint.of(owner.last)
        self.is_on = False  # after `begin`: whether the runtime has hosts; if not, nothing else here is called
        self._is_stale = False  # the layout is to be chosen again
        self._is_active = False  # there were several hosts once
        self._has_warned = False
        self._changed_at: float | None = None  # when a loss was noticed
        self._repeats = (-1, 0)  # the batch, and how many attempts at it have ended on the wrong host
        self._wake, self._stopped = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    # --- called by the driver ---

    def begin(self) -> None:
        """Ask the hosts what they have, and lay the partitions there. Called before the first batch."""
        self.is_on = self._runtime.has_hosts
        if not self.is_on:
            if self._settings.standbys:
                log.warning(
                    "%s: standbys=%d needs a cluster: here all tasks run on one host, or where Spark puts them. The "
                    "app goes on without standbys.",
                    self._app,
                    self._settings.standbys,
                )
            return
        hosts = self._wait_for_hosts(set(self._owner.last.hosts))
        with self._lock:
            self._point = LogPoint.of(self._owner.last)
            self._take_hosts(hosts)
            self._drained = set(self._owner.last.drained) & set(hosts)
            if hosts and self._settings.threaded:  # which notices hosts that join while there is nothing to do
                self._thread = threading.Thread(target=self._run, name="millpond-standbys", daemon=True)
                self._thread.start()
            if not self._is_active:
                return
            for host, partitions in self._owner.last.hosts.items():
                self._computed |= dict.fromkeys((p for p in partitions if p < self._point.partitions), host)
            self._layout = Layout(primary=dict(self._computed))
            jobs = [(host, self._make_job("", [], None)) for host in hosts]
        self._ask(jobs)
        with self._lock:
            self._lay()

    def settle(self) -> dict[int, frozenset[str]] | None:
        """Notice which hosts have come and gone, and place the partitions again if that is needed.

        Returns where ready copies are, for the tasks: partition → ids of places. None if there is one host.
        """
        hosts = self._runtime.hosts()
        with self._lock:
            self._take_hosts(hosts)
            self._take_record(self._owner.last)
            if not self._is_active:
                return None
            if self._is_stale:
                self._lay()
            batch, repeats = self._repeats
            if batch == self._owner.last.number + 1 and repeats >= MOST_REPEATS:
                return {}
            return self._ready_places()

    def note_results(self, results: Iterable[KeyedResult]) -> bool:
        """Take note of where tasks ran; return whether the batch is to be run again because some were misplaced."""
        with self._lock:
            if not self._is_active:
                return False
            base, misplaced = self._owner.last.number, False
            moved: dict[tuple[str, str, str], list[tuple[int, int]]] = {}
            for result in results:
                host = self._host_at(result)
                misplaced |= result.misplaced
                if result.misplaced:  # what the driver believed to be there is not
                    self._is_stale = True
                    at = self._wanted_host(result) if host is None else host
                    if at is not None:
                        self._hosts[at].copies.pop(result.partition, None)
                elif host is not None:
                    before = self._computed.get(result.partition)
                    if before is not None and before != host:
                        how = self._describe_source(host, result)
                        behind = 0 if result.found is None else base - result.found
                        moved.setdefault((before, host, how), []).append((result.partition, behind))
                    self._computed[result.partition] = host
                    self._hosts[host].copies[result.partition] = base
                elif result.place:  # a host that is new, or whose folder was replaced
                    self._unknown[result.partition] = (result.place, base)
                    self._is_stale = True
                    self._wake.set()
            self._relay_strays(misplaced)
            if misplaced:
                self._changed_at = self._clock.monotonic() if self._changed_at is None else self._changed_at
                batch, repeats = self._repeats
                number = base + 1
                self._repeats = (number, repeats + 1 if batch == number else 1)
                return True
            self._log_moves(moved)
            return False

    def _relay_strays(self, misplaced: bool) -> None:
        """Lay the partitions again if some have not run on their hosts twice in a row.

        Their hosts may have been too busy when the partitions were laid: an executor that has just been started is.
        """
        wanted = self._layout.primary
        strays = {p for p, host in self._computed.items() if p in wanted and host != wanted[p]}
        now = self._clock.monotonic()
        if (strays & self._strays or (misplaced and strays)) and now - self._relaid >= RELAY_SECONDS:
            self._placed, self._is_stale, self._relaid = [], True, now
        self._strays = strays

    def note_commit(self) -> None:
        """Let the standbys follow the newest record, in the thread if there is one."""
        with self._lock:
            self._take_record(self._owner.last)
            self._warn_if_few()  # not earlier: executors join one after the other
            if not self._is_active:
                return
        if self._settings.threaded:
            self._wake.set()
        else:
            self.follow()

    def record_fields(self) -> dict[str, Any]:
        """Return what the next record says about hosts: which partitions each has computed, and which are drained."""
        with self._lock:
            found: dict[str, list[int]] = {}
            for partition, host in sorted(self._computed.items()):
                found.setdefault(host, []).append(partition)
            return {"hosts": found, "drained": sorted(self._drained)}

    def close(self) -> None:
        """Stop the thread. May be called twice."""
        self._stopped.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(ROUND_SECONDS)
            self._thread = None

    # --- called by anyone ---

    def drain(self, host: str) -> None:
        """Let all partitions and standbys leave a host, once others have copies. It gets none until `undrain`."""
        with self._lock:
            self._drained.add(host)
            self._is_stale = True
        self._wake.set()

    def undrain(self, host: str) -> None:
        """Let a host get partitions again."""
        with self._lock:
            self._drained.discard(host)
            self._is_stale = True
        self._wake.set()

    def hosts(self) -> list[str]:
        """Return the hosts that are alive, without those that are drained; empty if there is only one."""
        with self._lock:
            return [host for host in self._hosts if host not in self._drained] if self._is_active else []

    def is_undrained(self, host: str) -> bool:
        """Return whether a host is alive and may get partitions."""
        with self._lock:
            return host in self._hosts and host not in self._drained

    def is_empty(self, host: str) -> bool:
        """Return whether a host computes and follows no partition."""
        with self._lock:
            return not self._layout.on(host)

    def status(self) -> dict[int, PartitionCopies]:
        """Return where each partition and its standbys are; empty if there is only one host.

        Also empty after a rewrite, such as a rescale, until the next batch places the partitions: there are no copies.
        """
        with self._lock:
            last, point = self._owner.last, self._point
            if (last.incarnation, last.epoch, last.partitions) != (point.incarnation, point.epoch, point.partitions):
                return {}
            newest = last.number
            return {
                partition: PartitionCopies(
                    self._computed.get(partition, host),
                    [
                        self._standby_status(standby, partition, newest)
                        for standby in self._layout.standby.get(partition, ())
                    ],
                )
                for partition, host in self._layout.primary.items()
                if self._is_active
            }

    def _standby_status(self, host: str, partition: int, newest: int) -> StandbyCopy:
        position = self._hosts[host].copies.get(partition) if host in self._hosts else None
        lag = None if position is None else max(0, newest - position)
        return StandbyCopy(host, lag, lag is not None and lag <= READY_RECORDS)

    # --- hosts, copies and the layout; the lock is held ---

    def _wait_for_hosts(self, expected: set[str]) -> list[str]:
        """Return the hosts, once those that had partitions before are there, or none has joined for a while.

        Executors of a session that has just been started join one after the other.
        """
        hosts = self._runtime.hosts()
        waited, pause = 0.0, 0.1
        while hosts and not expected <= set(hosts) and waited < JOIN_SECONDS:
            self._clock.sleep(pause)
            now = self._runtime.hosts()
            waited = waited + pause if now == hosts else 0.0
            hosts = now
        return hosts

    def _take_hosts(self, hosts: list[str]) -> None:
        if hosts == list(self._hosts):
            return
        gone = [host for host in self._hosts if host not in hosts]
        if gone and self._is_active:
            self._changed_at = self._clock.monotonic()
            log.warning("%s: %s gone", self._app, _are("host", gone))
            self._drained -= set(gone)  # one that comes back was repaired
        self._hosts = {host: self._hosts.get(host) or _Host(tidied=self._clock.monotonic()) for host in hosts}
        self._is_active = self._is_active or len(hosts) > 1
        self._is_stale = True
        self._wake.set()

    def _take_record(self, record: Record) -> None:
        """Follow the log to a record. After a rewrite the copies of before are of no use."""
        point = self._point
        if record.number == point.number:
            return
        if (record.incarnation, record.epoch, record.partitions) != (point.incarnation, point.epoch, point.partitions):
            self._point, self._is_stale = LogPoint.of(record), True
            for host in self._hosts.values():
                host.copies = {}
            self._unknown = {}
            if record.partitions != point.partitions:
                self._layout, self._computed = Layout(), {}
        else:
            self._point = point.followed_by(record, SENT_RECORDS)

    def _lay(self) -> None:
        self._is_stale = False
        now, newest = self._clock.monotonic(), self._owner.last.number
        known = {name: host.place for name, host in self._hosts.items() if host.place}
        avoided = {name for name, host in self._hosts.items() if host.avoided_until > now} | self._drained
        before = self._layout
        self._layout = choose_layout(
            HostFacts(
                self._point.partitions,
                known or {name: name for name in self._hosts},
                {name: {p: newest - at for p, at in host.copies.items()} for name, host in self._hosts.items()},
                before.primary,
                before.standby,
                self._settings.standbys,
                frozenset(avoided),
            )
        )
        wanted = [self._layout.primary[p] for p in range(self._point.partitions)] if self._hosts else []
        if wanted != self._placed:
            self._runtime.place(wanted)
            self._placed = wanted
        if self._layout != before:
            self._wake.set()

    def _warn_if_few(self) -> None:
        standbys = self._settings.standbys
        places = {host.place or name for name, host in self._hosts.items() if name not in self._drained}
        if standbys and len(places) <= standbys and not self._has_warned:
            self._has_warned = True
            log.warning(
                "%s: standbys=%d needs %d hosts, each with a local_dir of its own, and got %d. The app goes on: a "
                "partition without a standby is recovered from the log, and standbys are built when hosts join.",
                self._app,
                standbys,
                standbys + 1,
                len(places),
            )

    def _ready_places(self) -> dict[int, frozenset[str]]:
        found: dict[int, set[str]] = {}
        newest = self._owner.last.number
        for host in self._hosts.values():
            for partition, position in host.copies.items():
                if newest - position <= READY_RECORDS:
                    found.setdefault(partition, set()).add(host.place)
        return {partition: frozenset(places) for partition, places in found.items()}

    def _host_at(self, result: KeyedResult) -> str | None:
        """Return the host that a task ran on; of several that share a folder, the one that was asked for."""
        wanted = self._layout.primary.get(result.partition)
        found = [name for name, host in self._hosts.items() if host.place == result.place]
        return wanted if wanted in found else next(iter(found), None)

    def _wanted_host(self, result: KeyedResult) -> str | None:
        """Return the host that a task was to run on, if its folder was replaced: all others are known."""
        wanted = self._layout.primary.get(result.partition)
        return wanted if wanted in self._hosts and all(host.place for host in self._hosts.values()) else None

    def _describe_source(self, host: str, result: KeyedResult) -> str:
        if result.found is None:
            return "from the log"
        return "from a standby" if self._settings.standbys else "from a copy that was there"

    def _log_moves(self, moved: Mapping[tuple[str, str, str], list[tuple[int, int]]]) -> None:
        now = self._clock.monotonic()
        seconds = 0.0 if self._changed_at is None else now - self._changed_at
        for (before, after, how), partitions in moved.items():
            behind = max(records for _, records in partitions)
            text = "" if how == "from the log" else f", {behind} record{'' if behind == 1 else 's'} behind"
            level = logging.INFO if self._changed_at is None else logging.WARNING
            what = _list_partitions([partition for partition, _ in partitions])
            log.log(
                level, "%s: %s moved from %s to %s in %.1f s, %s%s", self._app, what, before, after, seconds, how, text
            )
        self._changed_at = None

    # --- following ---

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._wake.wait(IDLE_SECONDS)
            self._wake.clear()
            if self._stopped.is_set():
                return
            began = self._clock.monotonic()
            try:
                self.follow()
            except Exception:  # a defect here must not take the standbys away without a word
                log.exception("%s: a round of following failed", self._app)
            self._stopped.wait(max(PAUSE_SECONDS, PAUSE_FACTOR * (self._clock.monotonic() - began)))

    def follow(self) -> None:
        """Let every host catch up the partitions that it follows, once. Called from the thread, or by tests."""
        try:
            hosts = self._runtime.hosts()
        except MillpondError:  # the next batch raises it
            return
        with self._lock:
            self._take_hosts(hosts)
            if not self._is_active:
                return
            if self._is_stale:
                self._lay()
            jobs = self._jobs()
        if jobs:
            self._ask(jobs)
        with self._lock:
            if self._is_stale:
                self._lay()

    def _jobs(self) -> list[tuple[str, FollowJob]]:
        now, newest = self._clock.monotonic(), self._point.number
        jobs = []
        for name, host in self._hosts.items():
            behind = (
                [p for p in self._layout.followed_on(name) if host.copies.get(p, -1) < newest] if host.place else []
            )
            is_due = bool(host.place) and now - host.tidied > TIDY_SECONDS
            if behind or is_due or not host.place:
                keep = self._layout.on(name) if is_due else None
                jobs.append((name, self._make_job(host.place, behind, keep)))
        return jobs

    def _make_job(self, place: str, follow: list[int], keep: frozenset[int] | None) -> FollowJob:
        program, home = self._program, self._settings.home
        job = FollowJob(self._point, home, place, tuple(follow), keep, program.local_stores, frozenset(program.steps))
        return job.with_log(self._point)

    def _ask(self, jobs: list[tuple[str, FollowJob]]) -> None:
        try:
            reports = self._runtime.each_on(follow, jobs)
        except (JobLost, MillpondError) as error:
            log.info("%s: hosts were not asked for their copies, which is tried again: %s", self._app, error)
            return
        with self._lock:
            for (name, job), report in zip(jobs, reports, strict=True):
                if name in self._hosts:
                    self._take_report(name, job, report)

    def _take_report(self, name: str, job: FollowJob, report: HostReport) -> None:
        host, point = self._hosts[name], self._point
        is_other = any(other.place == report.place for at, other in self._hosts.items() if at != name)
        if host.place and host.place != report.place:
            if is_other:  # Spark ran the job elsewhere
                return
            host.copies = {}  # the folder was removed and is another one now
        if (job.point.incarnation, job.point.epoch, job.point.partitions) != (
            point.incarnation,
            point.epoch,
            point.partitions,
        ):
            return
        before, host.place = (host.place, dict(host.copies)), report.place
        primary = {p: at for p, at in host.copies.items() if self._layout.primary.get(p) == name}
        host.copies = {**report.positions, **{p: max(at, report.positions.get(p, at)) for p, at in primary.items()}}
        for partition, (place, at) in list(self._unknown.items()):
            if place == host.place:
                del self._unknown[partition]
                host.copies[partition] = max(at, host.copies.get(partition, at))
                self._computed.setdefault(partition, name)
        if job.keep is not None:
            host.tidied = self._clock.monotonic()
        if report.removed:
            log.info("%s: %s: removed %d copies that are not needed there", self._app, name, report.removed)
        for partition, seconds in report.built.items():
            log.info("%s: partition %d: built a copy on %s in %.1f s", self._app, partition, name, seconds)
        if report.trouble:
            if host.avoided_until <= self._clock.monotonic():
                log.warning("%s: no copy can be kept on %s: %s", self._app, name, report.trouble)
            host.avoided_until = self._clock.monotonic() + AVOIDED_SECONDS
        if before != (host.place, host.copies) or report.trouble:
            self._is_stale = True


def _list_partitions(partitions: list[int]) -> str:
    word = "partition" if len(partitions) == 1 else "partitions"
    return f"{word} {', '.join(map(str, sorted(partitions)))}"


def _are(word: str, names: list[str]) -> str:
    return f"{word} {names[0]} is" if len(names) == 1 else f"{word}s {', '.join(names)} are"
