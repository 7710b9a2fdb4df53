"""What can be done to an app's state as a whole, from a program or a shell."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from millpond.clock import Clock, as_datetime
from millpond.codec import Codec, decode_key
from millpond.errors import InvalidUse
from millpond.log.jobs import ProgressCallback
from millpond.log.ledger import Ledger
from millpond.log.reach import read_beside_retention
from millpond.log.retention import Keep, keeping
from millpond.maintenance.caretaker import Caretaker, Verdict, verified
from millpond.steps.state.migration import MARK
from millpond.storage import Storage, open_storage


@dataclass(frozen=True)
class StateChange:
    """One change of one cell of a step's state: `deleted` ones have no value.

    `cell` says which part of the key's state it is: "" where a step keeps one value per key.

    >>> import millpond as mp
    >>> from datetime import UTC, datetime
    >>> mp.StateChange(7, datetime(2030, 1, 1, tzinfo=UTC), "ann", "", 3).value
    3
    """

    batch: int
    time: datetime
    key: Any
    cell: str
    value: Any
    deleted: bool = False


class Upkeep(ABC):
    """The actions of an app, and of one that is only opened. Each refuses to begin while the app seems to run, changes
    nothing until its one commit, and can be killed at any moment and called again.

    `force` says that the app does not run, whatever its heartbeat says. If it does after all, its driver is fenced.
    """

    name: str
    _clock: Clock

    @property
    @abstractmethod
    def _kept(self) -> Storage:
        """Where the app's log lives."""

    def _caretaker(self, progress: ProgressCallback | None = None, force: bool = False) -> Caretaker:
        made = Caretaker(self._kept, self.name, self._clock, force=force)
        return made if progress is None else replace(made, progress=progress)

    def rescale(
        self, partitions: int, *, dry_run: bool = False, progress: ProgressCallback | None = None, force: bool = False
    ) -> str:
        """Move the state to another count of partitions, and say what was moved; `dry_run` only says it.

        An app that starts with another `partitions=` does the same by itself. `progress`, here and in the
        other long actions, is called with what is done and what there is to do: partitions, or files.

        >>> import millpond as mp
        >>> def grow(): mp.open("state", "orders").rescale(8)
        """
        return self._caretaker(progress, force).rescale(partitions, dry_run=dry_run)

    def rollback(
        self, batch: int, *, dry_run: bool = False, progress: ProgressCallback | None = None, force: bool = False
    ) -> str:
        """Go back to an earlier batch: state, positions in the sources and event time, in one commit.

        The next run reads on from there. File sinks give back what came later, at once if the program is there, and
        else when it next starts; other sinks keep what they hold. The records between stay in the log until they are
        pruned.

        >>> import millpond as mp
        >>> def undo(): print(mp.open("state", "orders").rollback(41, dry_run=True))
        """
        text = self._caretaker(progress, force).rollback(batch, dry_run=dry_run)
        return f"{text}; {self._sinks_back(batch, dry_run)}"

    def _sinks_back(self, batch: int, dry_run: bool) -> str:
        newest = Ledger(self._kept, self.name, self._clock).newest()
        sinks = ", ".join(sorted(newest.deliveries)) if newest is not None else ""
        return f"{sinks} go back when the program next starts, if they can" if sinks else "there are no sinks"

    def drop_step(self, step: str, *, dry_run: bool = False, force: bool = False) -> str:
        """Forget the state of a step that is no longer in the program, and say how much it was.

        >>> import millpond as mp
        >>> def tidy(): mp.open("state", "orders").drop_step("old-total")
        """
        return self._caretaker(force=force).drop(step, dry_run=dry_run)

    def compact(
        self,
        keep: int | str | timedelta | None = None,
        *,
        dry_run: bool = False,
        progress: ProgressCallback | None = None,
        force: bool = False,
    ) -> str:
        """Merge the whole log into runs now, and remove what nothing needs any more.

        What lies before the past that is to be kept goes too: `keep` is said as for an App, and if it is not, an App
        goes by its own, and one that is only opened leaves all that is within reach.

        >>> import millpond as mp
        >>> def tidy(): print(mp.open("state", "orders").compact(keep="7d"))
        """
        kept = self._keep if keep is None else keeping(keep, "compact(keep)")
        return self._caretaker(progress, force).compact(kept, dry_run=dry_run)

    @property
    def _keep(self) -> Keep | None:
        return None

    def verify(self) -> Verdict:
        """Read every record and every file that is needed, and compare their checksums; may be called any time.

        >>> import millpond as mp
        >>> mp.App("orders", state_dir="memory://").verify()
        Verdict(records=0, files=0, bytes=0, damaged=[], orphans=[], kinds={})
        """
        return verified(self._kept, self.name, self._clock)

    def savepoint(
        self,
        path: str | os.PathLike[str],
        batch: int | None = None,
        *,
        dry_run: bool = False,
        progress: ProgressCallback | None = None,
    ) -> str:
        """Write a copy of the state, at the newest batch or an earlier one, that needs nothing else.

        >>> import millpond as mp
        >>> def keep(): mp.open("state", "orders").savepoint("savepoints/friday")
        """
        return self._caretaker(progress).savepoint(open_storage(str(path)), batch, dry_run=dry_run)

    def restore(
        self,
        path: str | os.PathLike[str],
        *,
        dry_run: bool = False,
        progress: ProgressCallback | None = None,
        force: bool = False,
    ) -> str:
        """Begin with the state of a savepoint: an app that never ran or was cleared, of any name, whatever its
        count of partitions.

        >>> import millpond as mp
        >>> def again(): mp.App("orders-2", partitions=8).restore("savepoints/friday")
        """
        return self._caretaker(progress, force).restore(open_storage(str(path)), dry_run=dry_run)

    def changes(self, step: str, after: int = -1) -> Iterator[StateChange]:
        """Every change of a step's state that is within reach, batch by batch, after a batch.

        A rollback changes back what was changed since the batch that it went to.

        >>> import millpond as mp
        >>> list(mp.App("orders", state_dir="memory://").changes("total"))
        []
        """
        ledger = Ledger(self._kept, self.name, self._clock)
        return read_beside_retention(ledger, lambda: self._changes(ledger, step, after), f"changes of {step!r}")

    def _changes(self, ledger: Ledger, step: str, after: int) -> Iterator[StateChange]:
        codec = Codec((), unknown="plain")
        newest = ledger.newest()
        if newest is None:
            return
        if step not in newest.steps:
            raise InvalidUse(f"changes: app {self.name!r} has no step {step!r}; it has: {', '.join(newest.steps)}")
        keeper = self._caretaker()
        for record in ledger.between(max(newest.born - 1, ledger.floor() - 1, after), newest.number):
            for change in keeper.changes_of(record, step):
                if change.cell == MARK:
                    continue
                yield StateChange(
                    record.number,
                    as_datetime(record.time),
                    decode_key(change.key),
                    change.cell.decode(),
                    None if change.value is None else codec.decode(change.value),
                    change.value is None,
                )
