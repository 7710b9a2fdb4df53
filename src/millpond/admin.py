"""What can be done to an app's state as a whole, from a program, a shell or another process."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from millpond.clock import Clock, SystemClock
from millpond.driver.settings import DriverSettings
from millpond.driver.void_deliveries import sinks_without_rollback
from millpond.errors import InvalidUse
from millpond.log.apps import check_app_exists
from millpond.log.heartbeat import check_stopped
from millpond.log.jobs import ProgressCallback
from millpond.log.ledger import Ledger
from millpond.log.paths import check_name
from millpond.log.published import files_before_clear
from millpond.log.requests import EXPIRE_SECONDS
from millpond.log.retention import Keep, parse_keep
from millpond.maintenance.ask_driver import RunningApp
from millpond.maintenance.clear import clear_app
from millpond.maintenance.compact import compact_log
from millpond.maintenance.drop import drop_sink_outputs, drop_step_state
from millpond.maintenance.rebuild import Rebuild, Rebuilt, remove_dead_shadows
from millpond.maintenance.rescale import check_partitions, rescale_app
from millpond.maintenance.restore import restore_savepoint, restore_steps
from millpond.maintenance.rollback import roll_back, roll_back_sinks
from millpond.maintenance.savepoint import write_savepoint
from millpond.maintenance.stopped_app import StoppedApp
from millpond.maintenance.verify import Verdict, verify_app
from millpond.pipeline.graph import Program
from millpond.runtimes.base import Runtime
from millpond.sinks.discard import DiscardSink
from millpond.state_changes import StateChange, read_changes
from millpond.state_view import StateView, forget_files, forget_replicas
from millpond.storage import Storage, open_storage


@dataclass(frozen=True)
class AppAccess:
    """What an `App` adds to its state: its settings, its program, and a runtime that can run it.

    Functions are called when an action begins: an `Admin` that was taken before a run sees what the run has changed.
    """

    keep: Keep
    partitions: int | None
    local_dir: str | None
    is_running: Callable[[], bool]  # in this process
    has_program: Callable[[], bool]  # False if the app was made only to look at its state
    compile_program: Callable[[], Program]
    share_storage: Callable[[], Storage]  # the storage, in a place that workers can reach
    open_runtime: Callable[[Program, Any], AbstractContextManager[Runtime]]


class Admin:
    """The actions on an app's state as a whole: `app.admin`, or `mp.admin(state_dir, name)` without the program.

    Each but `rescale` refuses to begin while the app seems to run. Each changes nothing until its one commit, and can
    be killed at any moment and called again. `force=True` states that the app does not run, whatever its heartbeat
    says; a driver that runs after all is fenced. `progress(done, total)` is called during the long actions, with the
    number of partitions or files that are done. `dry_run=True` only says what would be done.

    >>> import millpond as mp
    >>> mp.App("orders", state_dir="memory://").admin.verify().ok
    True
    """

    def __init__(
        self, name: str, find_storage: Callable[[], Storage], clock: Clock, access: AppAccess | None = None
    ) -> None:
        self.name, self._find_storage, self._clock, self._access = name, find_storage, clock, access

    @property
    def _storage(self) -> Storage:
        return self._find_storage()

    def _open_storage(self) -> Storage:
        return self._find_storage()

    def rescale(
        self,
        partitions: int,
        *,
        dry_run: bool = False,
        progress: ProgressCallback | None = None,
        force: bool = False,
        timeout: float = EXPIRE_SECONDS,
    ) -> str:
        """Move the state to another number of partitions, and say what was moved. The app may run meanwhile.

        The driver of a running app is asked to do it: it moves most of the state beside its batches, and the rest
        between two of them. This call waits until a record says that it is done, for at most `timeout` seconds. An app
        that does not run is rescaled here. The number stays until the program's `partitions=` is changed.

        >>> import millpond as mp
        >>> def grow(app: mp.App): print(app.admin.rescale(8, dry_run=True))
        """
        check_partitions(partitions)
        running = self._running_app(progress)
        if not force and running.seems_running:
            if dry_run:  # which only reads
                looked_at = StoppedApp(self._storage, self.name, self._clock, force=True)
                return rescale_app(looked_at, partitions, dry_run=True)
            answer = running.ask("rescale", {"partitions": partitions}, timeout=timeout)
            if answer is not None:
                return answer  # otherwise the app has stopped, and is rescaled here
        return rescale_app(self._stopped_app(progress, force), partitions, dry_run=dry_run)

    def drain(self, host: str, *, undo: bool = False, timeout: float = EXPIRE_SECONDS) -> str:
        """Let all partitions and standbys of a running app leave a host, and say so when it is empty.

        The driver builds copies on other hosts first, beside its batches. The host gets no partitions until `undo`,
        or until it is gone, and the next commit makes the driver that follows know this, too. Its name is the one that
        `millpond status` shows. This call waits for at most `timeout` seconds. InvalidUse if the app does not run, or
        has no other host.

        >>> import millpond as mp
        >>> def before_maintenance(app: mp.App): print(app.admin.drain("10.0.0.2"))
        """
        self._check_exists()
        running = self._running_app(None)
        answer = None
        if running.seems_running:
            answer = running.ask("drain", {"host": host, "undo": undo}, timeout=timeout)
        if answer is None:
            raise InvalidUse(f"drain: app {self.name!r} does not run, so no host has partitions of it.")
        return answer

    def rollback(
        self, batch: int, *, dry_run: bool = False, progress: ProgressCallback | None = None, force: bool = False
    ) -> str:
        """Go back to an earlier batch: state, positions in the sources and event time, in one commit.

        The next run reads on from there. It is refused if a source of the program no longer has the rows. Sinks that
        can roll back give up what came later: at once if the program is there, or else when it next starts; other sinks
        keep what they hold. The records between stay in the log until they are pruned.

        >>> import millpond as mp
        >>> def undo(app: mp.App): print(app.admin.rollback(41, dry_run=True))
        """
        text = roll_back(self._stopped_app(progress, force), batch, dry_run=dry_run, program=self._program())
        return f"{text}; {self._roll_back_sinks(dry_run)}"

    def _roll_back_sinks(self, dry_run: bool) -> str:
        ledger = self._ledger()
        if self._access is None:
            newest = ledger.newest()
            sinks = ", ".join(sorted(newest.deliveries)) if newest is not None else ""
            return f"{sinks} go back when the program next starts, if they can" if sinks else "there are no sinks"
        program = self._access.compile_program()
        if not dry_run:
            roll_back_sinks(program, ledger)
        stay = sinks_without_rollback(program)
        return f"{', '.join(stay)} keep what they hold" if stay else "every sink goes back too"

    def drop_step(self, step: str, *, dry_run: bool = False, force: bool = False) -> str:
        """Remove the state of a step that is no longer in the program, and say how much it was.

        InvalidUse if the app has its program and the step is in it. `mp.admin` and the command line do not read the
        program: they remove the state of any step.

        >>> import millpond as mp
        >>> def tidy(app: mp.App): print(app.admin.drop_step("old-total"))
        """
        return drop_step_state(self._stopped_app(force=force), step, self._program(), dry_run=dry_run)

    def drop_outputs(self, sink: str, *, force: bool = False) -> None:
        """Give up the outputs that were not delivered to a sink which is gone from the program.

        >>> import millpond as mp
        >>> mp.App("orders", state_dir="memory://").admin.drop_outputs("totals")
        """
        self._check_not_running("drop_outputs: ")
        drop_sink_outputs(self._stopped_app(force=force), sink, self._program())

    def clear(self, *, force: bool = False) -> None:
        """Remove all state, positions and open outputs: the next run reads its input from the beginning.

        A new incarnation begins, so that what was delivered before is never mistaken for what comes.

        >>> import millpond as mp
        >>> mp.App("orders", state_dir="memory://").admin.clear()
        """
        self._check_not_running("clear_state: ")
        access = self._access
        partitions, local_dir = (None, None) if access is None else (access.partitions, access.local_dir)
        cleared = clear_app(self._stopped_app(force=force), partitions, self._program())
        if cleared is not None:
            last, first = cleared
            forget_replicas(self.name, last.incarnation, local_dir)
            published = files_before_clear(self._ledger(), first)  # the next run says which keys are gone
            forget_files(self._storage, self.name, before=first.number, exclude=published)

    def compact(
        self,
        keep: int | str | timedelta | None = None,
        *,
        dry_run: bool = False,
        progress: ProgressCallback | None = None,
        force: bool = False,
    ) -> str:
        """Merge the whole log into runs now, and remove the files that no record names any more.

        Records that are older than `keep` says are removed, too. `keep` is given as for an `App`. If it is None, an
        `App` uses its own `keep`, and an app that was opened without its program removes no record.

        >>> import millpond as mp
        >>> def tidy(app: mp.App): print(app.admin.compact(keep="7d"))
        """
        own = None if self._access is None else self._access.keep
        kept = own if keep is None else parse_keep(keep, "compact(keep)")
        return compact_log(self._stopped_app(progress, force), kept, dry_run=dry_run)

    def verify(self) -> Verdict:
        """Read every record and every file that is needed, and compare their checksums. The app may run meanwhile.

        >>> import millpond as mp
        >>> mp.App("orders", state_dir="memory://").admin.verify()
        Verdict(records=0, files=0, bytes=0, damaged=[], orphans=[], kinds={})
        """
        self._check_not_running()
        self._check_exists()
        return verify_app(self._storage, self.name, self._clock)

    def savepoint(
        self,
        path: str | os.PathLike[str],
        batch: int | None = None,
        *,
        dry_run: bool = False,
        progress: ProgressCallback | None = None,
    ) -> str:
        """Write a copy of the state, at the newest batch or an earlier one, that needs no other file.

        The app may run meanwhile, in another process.

        >>> import millpond as mp
        >>> def keep(app: mp.App): print(app.admin.savepoint("savepoints/friday"))
        """
        return write_savepoint(self._stopped_app(progress), open_storage(str(path)), batch, dry_run=dry_run)

    def restore(
        self,
        path: str | os.PathLike[str],
        *,
        steps: Sequence[str] | None = None,
        dry_run: bool = False,
        progress: ProgressCallback | None = None,
        force: bool = False,
    ) -> str:
        """Give an app that never ran, or was cleared, the state of a savepoint.

        The app may have another name and another number of partitions than the one that the savepoint was made of.

        With `steps`, an app that has state gets that of these steps, too, which it must lack. Its other steps, its
        positions and its event time stay as they are: rows that it has read already do not change the added state.

        >>> import millpond as mp
        >>> def again(): print(mp.App("orders-2", partitions=8).admin.restore("savepoints/friday"))
        >>> def add(app: mp.App): print(app.admin.restore("savepoints/friday", steps=["spend"]))
        """
        app, source = self._stopped_app(progress, force, is_new=steps is None), open_storage(str(path))
        if steps is None:
            return restore_savepoint(app, source, dry_run=dry_run)
        return restore_steps(app, source, steps, self._program(), dry_run=dry_run)

    def rebuild(self, step: str, spark: Any = None, *, switch: bool = False, force: bool = False) -> Rebuilt:
        """Make a step's state again from the input, and compare it with the live one. Needs the program.

        The batches of the app are run again up to its newest one, with the bounds, the clock and the event time that
        they had; the logger warns of those whose records are no longer kept. Nothing is sent to a sink, and the app may
        run meanwhile. With `switch` the rebuilt state takes the place of the live one in one commit; the app must have
        stopped before.

        >>> import millpond as mp
        >>> def again(app: mp.App): print(app.admin.rebuild("total", switch=True))
        """
        access = self._access
        if access is None:
            raise InvalidUse(f"rebuild({step!r}): app {self.name!r} was opened without its program, which is needed")
        if switch:
            what = f"rebuild({step!r}, switch=True)"
            self._check_not_running(f"{what}: ")
            check_stopped(self._storage, self.name, self._clock, what, force=force)
        settings = DriverSettings(home=access.local_dir)
        storage = access.share_storage()
        rebuild = Rebuild(access.compile_program(), step, storage, self._clock, settings, DiscardSink())
        return run_rebuild(rebuild, lambda program: access.open_runtime(program, spark), switch=switch, force=force)

    def changes(self, step: str, after: int = -1) -> Iterator[StateChange]:
        """Yield every change of a step's state that is within reach, batch by batch, after a batch.

        A rollback changes back what was changed since the batch that it went to.

        >>> import millpond as mp
        >>> list(mp.App("orders", state_dir="memory://").admin.changes("total"))
        []
        """
        self._check_not_running()
        self._check_exists()
        return read_changes(self._storage, self.name, self._clock, step, after)

    def _ledger(self) -> Ledger:
        return Ledger(self._storage, self.name, self._clock)

    def _program(self) -> Program | None:
        """Return the program; None if the app was opened without it."""
        return self._access.compile_program() if self._access is not None and self._access.has_program() else None

    def _running_app(self, progress: ProgressCallback | None) -> RunningApp:
        runs_here = self._access.is_running if self._access is not None else lambda: False
        app = RunningApp(self._storage, self.name, self._clock, runs_here)
        return app if progress is None else replace(app, progress=progress)

    def _stopped_app(
        self, progress: ProgressCallback | None = None, force: bool = False, *, is_new: bool = False
    ) -> StoppedApp:
        self._check_not_running()
        if not is_new:
            self._check_exists()
        app = StoppedApp(self._storage, self.name, self._clock, force=force)
        return app if progress is None else replace(app, progress=progress)

    def _check_exists(self) -> None:
        """Raise `InvalidUse` if there is no such app and no program that could make it: its name may be misspelt."""
        if self._access is None:
            check_app_exists(self._ledger())

    def _check_not_running(self, where: str = "") -> None:
        if self._access is not None and self._access.is_running():
            raise InvalidUse(
                f"{where}app {self.name!r} is running in this process. Stop it first; nothing was changed."
            )


def run_rebuild(
    rebuild: Rebuild,
    runtime: Callable[[Program], AbstractContextManager[Runtime]],
    *,
    switch: bool,
    force: bool = False,
) -> Rebuilt:
    """Run a rebuild and compare its result with the live state. Its shadow is removed, also if this fails."""
    program, storage, home = rebuild.program, rebuild.storage, rebuild.settings.home
    step = program.steps[rebuild.step]

    def view(app: str, batch: int | None, at: Clock) -> StateView:
        return StateView(storage, app, step.name, at, step=step, types=program.types, home=home, batch=batch)

    for left in remove_dead_shadows(storage, rebuild.app, rebuild.clock):
        forget_replicas(left, None, home)
    try:
        with runtime(program) as found:
            rebuild.run(found)
        differences = rebuild.differences(view)
        if switch:
            rebuild.switch_to_rebuilt(force=force)
        return differences
    finally:
        rebuild.forget()
        forget_replicas(rebuild.shadow, None, home)


class AdminVerbs(ABC):
    """The verbs of `Admin` on an app itself: each calls the one of `admin` with the same arguments."""

    @property
    @abstractmethod
    def admin(self) -> Admin:
        """What can be done to the app's state as a whole."""

    def rescale(
        self,
        partitions: int,
        *,
        dry_run: bool = False,
        progress: ProgressCallback | None = None,
        force: bool = False,
        timeout: float = EXPIRE_SECONDS,
    ) -> str:
        """Move the state to another number of partitions: see `Admin.rescale`.

        >>> import millpond as mp
        >>> def grow(): mp.admin("state", "orders").rescale(8)
        """
        return self.admin.rescale(partitions, dry_run=dry_run, progress=progress, force=force, timeout=timeout)

    def drain(self, host: str, *, undo: bool = False, timeout: float = EXPIRE_SECONDS) -> str:
        """Let all partitions of a running app leave a host: see `Admin.drain`.

        >>> import millpond as mp
        >>> def before_maintenance(): mp.admin("state", "orders").drain("10.0.0.2")
        """
        return self.admin.drain(host, undo=undo, timeout=timeout)

    def rollback(
        self, batch: int, *, dry_run: bool = False, progress: ProgressCallback | None = None, force: bool = False
    ) -> str:
        """Go back to an earlier batch: see `Admin.rollback`.

        >>> import millpond as mp
        >>> def undo(): print(mp.admin("state", "orders").rollback(41, dry_run=True))
        """
        return self.admin.rollback(batch, dry_run=dry_run, progress=progress, force=force)

    def drop_step(self, step: str, *, dry_run: bool = False, force: bool = False) -> str:
        """Remove the state of a step that is no longer in the program: see `Admin.drop_step`.

        >>> import millpond as mp
        >>> def tidy(): mp.admin("state", "orders").drop_step("old-total")
        """
        return self.admin.drop_step(step, dry_run=dry_run, force=force)

    def compact(
        self,
        keep: int | str | timedelta | None = None,
        *,
        dry_run: bool = False,
        progress: ProgressCallback | None = None,
        force: bool = False,
    ) -> str:
        """Merge the whole log, and remove files that no record names: see `Admin.compact`.

        >>> import millpond as mp
        >>> def tidy(): print(mp.admin("state", "orders").compact(keep="7d"))
        """
        return self.admin.compact(keep, dry_run=dry_run, progress=progress, force=force)

    def verify(self) -> Verdict:
        """Read every file that is needed, and compare its checksum: see `Admin.verify`.

        >>> import millpond as mp
        >>> mp.App("orders", state_dir="memory://").verify()
        Verdict(records=0, files=0, bytes=0, damaged=[], orphans=[], kinds={})
        """
        return self.admin.verify()

    def savepoint(
        self,
        path: str | os.PathLike[str],
        batch: int | None = None,
        *,
        dry_run: bool = False,
        progress: ProgressCallback | None = None,
    ) -> str:
        """Write a copy of the state that needs no other file: see `Admin.savepoint`.

        >>> import millpond as mp
        >>> def keep(): mp.admin("state", "orders").savepoint("savepoints/friday")
        """
        return self.admin.savepoint(path, batch, dry_run=dry_run, progress=progress)

    def restore(
        self,
        path: str | os.PathLike[str],
        *,
        steps: Sequence[str] | None = None,
        dry_run: bool = False,
        progress: ProgressCallback | None = None,
        force: bool = False,
    ) -> str:
        """Begin with the state of a savepoint, or add that of some steps: see `Admin.restore`.

        >>> import millpond as mp
        >>> def again(): mp.App("orders-2", partitions=8).restore("savepoints/friday")
        """
        return self.admin.restore(path, steps=steps, dry_run=dry_run, progress=progress, force=force)

    def changes(self, step: str, after: int = -1) -> Iterator[StateChange]:
        """Yield every change of a step's state that is within reach, after a batch: see `Admin.changes`.

        >>> import millpond as mp
        >>> list(mp.App("orders", state_dir="memory://").changes("total"))
        []
        """
        return self.admin.changes(step, after)


def admin(state_dir: str, name: str) -> Admin:
    """Return what can be done to an app's state as a whole, from any process that can write its `state_dir`.

    The app's program is not read: sinks roll back when it next starts, and `rebuild` is not possible. Every action but
    `restore` raises `InvalidUse` if there is no such app. `mp.open` only reads.

    >>> import millpond as mp
    >>> mp.admin("memory://shared", "orders").rescale(8)
    Traceback (most recent call last):
    ...
    millpond.errors.InvalidUse: memory://shared holds no app 'orders': check state_dir and the app's name
    """
    check_name(name, "admin(name)")
    storage = open_storage(state_dir)
    return Admin(name, lambda: storage, SystemClock())
