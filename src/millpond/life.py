"""What an app does with its state as a whole, with its program at hand."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from millpond.admin import Upkeep
from millpond.clock import Clock, new_id
from millpond.driver.runtime import Runtime
from millpond.driver.settings import DriverSettings
from millpond.driver.targets import Targets
from millpond.driver.void_deliveries import Ranges, staying, void_deliveries
from millpond.errors import Corrupt, InvalidUse
from millpond.log.heartbeat import check_stopped
from millpond.log.ledger import Ledger
from millpond.log.record import FORMAT, Record
from millpond.log.retention import Keep
from millpond.maintenance.rebuild import Rebuild, Rebuilt, forget_shadows
from millpond.pipeline import graph as g
from millpond.sinks.discard import DiscardSink
from millpond.state_view import StateView, forget_files, forget_replicas
from millpond.storage import Storage


class Life(Upkeep):
    """An app's state, as its program knows it: looked at, rebuilt, cleared."""

    state_dir: str
    partitions: int | None
    local_dir: str | None
    keep: Keep
    _graph: g.Graph
    _storage: Storage | None
    _running: bool

    @abstractmethod
    def _open_storage(self) -> Storage:
        """Where the app's log lives."""

    @abstractmethod
    def _program(self) -> g.Program:
        """What the app does, made ready to run."""

    @abstractmethod
    def _shared_storage(self) -> Storage:
        """The storage, where processes of their own can reach it."""

    @abstractmethod
    def _runtime(self, program: g.Program, spark: Any) -> AbstractContextManager[Runtime]:
        """Whatever runs the tasks of a program, on a Spark session."""

    @property
    def _kept(self) -> Storage:
        if self._running:
            raise InvalidUse(f"app {self.name!r} is running in this process. Stop it first; nothing was changed.")
        return self._open_storage()

    @property
    def _keep(self) -> Keep:
        return self.keep

    def _sinks_back(self, batch: int, dry_run: bool) -> str:
        program = self._program()
        ledger = Ledger(self._open_storage(), self.name, self._clock)
        newest = None if dry_run else ledger.newest()
        if newest is not None:
            Targets(program, ledger).note(newest, newest.incarnation)
            try:
                void_deliveries(program, ledger, self.name, newest.void_ranges)
            except Corrupt:
                if ledger.is_newest(newest):
                    raise
                # Else a driver has started since, which does this before it removes a record.
        stay = staying(program)
        return f"{', '.join(stay)} keep what they hold" if stay else "every sink goes back too"

    def state(self, step: str) -> StateView:
        """A step's state, as of the newest commit.

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
        )

    def rebuild(self, step: str, spark: Any = None, *, switch: bool = False, force: bool = False) -> Rebuilt:
        """Make a step's state again from the input, and compare it with the live one.

        The batches of the app are run again up to its newest one, with the bounds, the clock and the event time that
        they had; the logger warns of those whose records are no longer kept. Nothing is sent to a sink, and the app may
        run meanwhile. With `switch` the rebuilt state takes the place of the live one in one commit; the app must have
        stopped before.

        >>> import millpond as mp
        >>> def again(app): print(app.rebuild("total", switch=True))
        """
        if switch:
            self._stopped(f"rebuild({step!r}, switch=True)", force)
        settings = DriverSettings(home=self.local_dir)
        rebuild = Rebuild(self._program(), step, self._shared_storage(), self._clock, settings, DiscardSink())
        return run_rebuild(rebuild, lambda program: self._runtime(program, spark), switch=switch, force=force)

    def clear_state(self, *, force: bool = False) -> None:
        """Forget all state, positions and open outputs: the next run reads its input from the beginning.

        Refused while the app seems to run, unless with `force`. A new incarnation begins, so what was delivered
        before is never mistaken for what comes.

        >>> import millpond as mp
        >>> mp.App("orders", state_dir="memory://").clear_state()
        """
        last = self._stopped("clear_state", force)
        if last is None:
            return
        number = last.number + 1
        ledger = Ledger(self._open_storage(), self.name, self._clock)
        cleared = Record(
            format=FORMAT,
            kind="clear",
            app=self.name,
            number=number,
            incarnation=new_id(),
            born=number,
            arrivals=0,
            driver=new_id(),
            attempt=new_id(),
            time=self._clock.now(),
            previous=last.checksum,
            partitions=self.partitions or last.partitions,
            deliveries=dict.fromkeys(last.deliveries, number),
        )
        ledger.append(cleared, last)
        self._give_up(ledger, cleared, last.incarnation, _undelivered(ledger, last))
        forget_replicas(self.name, last.incarnation, self.local_dir)
        forget_files(self._open_storage(), self.name, before=number)

    def drop_outputs(self, sink: str, *, force: bool = False) -> None:
        """Give up the outputs that were not delivered to a sink which is gone from the program.

        >>> import millpond as mp
        >>> mp.App("orders", state_dir="memory://").drop_outputs("totals")
        """
        last = self._stopped("drop_outputs", force)
        if last is not None and sink in last.deliveries:
            ledger = Ledger(self._open_storage(), self.name, self._clock)
            dropped = {sink: _undelivered(ledger, last)[sink]}
            record = last.followed_by(
                "release",
                driver=new_id(),
                attempt=new_id(),
                time=self._clock.now(),
                deliveries={**last.deliveries, sink: last.number},
                undo={},
                void={**last.void_ranges, sink: [*last.void_ranges.get(sink, []), *dropped[sink]]},
            )
            record = ledger.append(record, last)
            self._give_up(ledger, record, record.incarnation, dropped)

    def _give_up(self, ledger: Ledger, record: Record, incarnation: str, ranges: Ranges) -> None:
        """Make what was not delivered void in its targets, so that a driver that is paused cannot deliver it later.

        An app that was opened without its program knows no sinks.
        """
        if self._graph.nodes:
            program = self._program()
            Targets(program, ledger).note(record, incarnation)
            void_deliveries(program, ledger, self.name, ranges)

    def _stopped(self, what: str, force: bool) -> Record | None:
        if self._running:
            raise InvalidUse(
                f"{what}: app {self.name!r} is running in this process. Stop it first; nothing was changed."
            )
        check_stopped(self._open_storage(), self.name, self._clock, what, force=force)
        return Ledger(self._open_storage(), self.name, self._clock).newest()


def _undelivered(ledger: Ledger, last: Record) -> Ranges:
    """The records whose outputs may not have reached each sink yet."""
    first = max(last.born, ledger.floor())
    return {sink: [(max(first, number + 1), last.number)] for sink, number in last.deliveries.items()}


def run_rebuild(
    rebuild: Rebuild,
    runtime: Callable[[g.Program], AbstractContextManager[Runtime]],
    *,
    switch: bool,
    force: bool = False,
) -> Rebuilt:
    """Run a rebuild and compare its result with the live state. Its shadow is removed, also if this fails."""
    program, storage, home = rebuild.program, rebuild.storage, rebuild.settings.home
    step = program.steps[rebuild.step]

    def view(app: str, batch: int | None, at: Clock) -> StateView:
        return StateView(storage, app, step.name, at, step=step, types=program.types, home=home, batch=batch)

    for left in forget_shadows(storage, rebuild.app, rebuild.clock):
        forget_replicas(left, None, home)
    try:
        with runtime(program) as found:
            rebuild.run(found)
        differences = rebuild.differences(view)
        if switch:
            rebuild.switch(force=force)
        return differences
    finally:
        rebuild.forget()
        forget_replicas(rebuild.shadow, None, home)
