"""`mp.open`: an app's state, its changes and its status, seen from any process, without the app's program."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn

from millpond.clock import SystemClock
from millpond.errors import InvalidUse
from millpond.follower import Commit, Follower
from millpond.log.apps import check_app_exists
from millpond.log.ledger import Ledger
from millpond.log.paths import check_name
from millpond.log.record import Record
from millpond.replica.folders import check_local_dir
from millpond.state_changes import StateChange, read_changes
from millpond.state_view import StateView
from millpond.status import Status, status_of
from millpond.storage import Storage, open_storage
from millpond.timing import seconds

_CHANGING = (
    "admin",
    "clear",
    "clear_state",
    "compact",
    "drain",
    "drop_outputs",
    "drop_step",
    "rebuild",
    "rescale",
    "restore",
    "rollback",
)
_ADMIN_VERBS = (*_CHANGING, "savepoint", "verify")


class ReadOnlyApp:
    """An app's state, seen from another process, without its program. Nothing on it changes the state.

    >>> import millpond as mp
    >>> app = mp.App("orders", state_dir="memory://orders-3")
    >>> counts = app.stream("orders", mp.sources.rows([])).key_by("who").aggregate("count", n=mp.count())
    >>> with mp.testing.TestDriver(app, mp.lowlevel.storage(app)) as driver:
    ...     driver.send("orders", [{"who": "ann"}, {"who": "bob"}, {"who": "ann"}])
    >>> opened = mp.open("memory://orders-3", "orders")
    >>> opened.name, opened.state("count").get("ann"), len(list(opened.changes("count")))
    ('orders', {'n': 2}, 2)
    >>> opened.newest.kind, opened.status().steps["count"].kind
    ('commit', 'aggregate')
    """

    def __init__(self, state_dir: str, name: str) -> None:
        check_name(name, "open(name)")
        self.name, self._state_dir, self._storage, self._clock = name, state_dir, open_storage(state_dir), SystemClock()
        self._ledger = Ledger(self._storage, name, self._clock)
        check_app_exists(self._ledger)
        self._refreshed: Follower | None = None

    def state(self, step: str) -> StateView:
        """Return a view of a step's state, as of the newest commit. Each read looks for the newest commit.

        >>> import millpond as mp
        >>> def total(who): return mp.open("state", "orders").state("total").get(who)
        """
        return StateView(self._storage, self.name, step, self._clock)

    def changes(self, step: str, after: int = -1) -> Iterator[StateChange]:
        """Yield every change of a step's state that is within reach, batch by batch, after a batch.

        A rollback changes back what was changed since the batch that it went to.

        >>> import millpond as mp
        >>> def changed(): return [change.key for change in mp.open("state", "orders").changes("total", after=41)]
        """
        return read_changes(self._storage, self.name, self._clock, step, after)

    def status(self) -> Status:
        """Return what `millpond status` prints: the newest batch, streams, steps and sinks, and who seems to run it.

        Reads the ledger and lists the segments.

        >>> import millpond as mp
        >>> def is_running(): return mp.open("state", "orders").status().running is not None
        """
        return status_of(self._storage, self.name, self._clock)

    @property
    def newest(self) -> Record | None:
        """The newest record of the ledger.

        >>> import millpond as mp
        >>> def batch(): return mp.open("state", "orders").newest.number
        """
        return self._ledger.newest()

    def follow(
        self, every: str | float | timedelta | None = "1s", local_dir: str | os.PathLike[str] | None = None
    ) -> Follower:
        """Return a read replica: a copy of the app's state on this host that follows the running app.

        The copy is built from the log first, which takes as long as reading all state. Then a thread looks for new
        commits at intervals of `every`; with None only `refresh` does. The app is never waited for or held up. The copy
        is in a folder of its own among the temporary files (`MILLPOND_LOCAL_DIR`), and is removed by `close`. With
        `local_dir` it is there, is kept for the next time, and is shared by the readers of this host.

        >>> import millpond as mp
        >>> def total(who):
        ...     with mp.open("state", "orders").follow() as live:
        ...         return live.state("total").get(who)
        """
        pause = None if every is None else seconds(every, "follow(every)")
        if pause is not None and pause <= 0:
            raise InvalidUse(f"follow(every): expected a duration above 0, such as 0.5 or '500ms', got {every!r}")
        home = None if local_dir is None else check_local_dir(local_dir, "follow(local_dir)")
        return Follower(self._storage, self.name, self._clock, pause, home)

    def refresh(self) -> Commit:
        """Catch up with the newest commit, and return it: all reads of it agree.

        The first call builds a read replica, as `follow` does; the next ones apply what was committed since.

        >>> import millpond as mp
        >>> def report():
        ...     with mp.open("state", "orders").refresh() as commit:
        ...         return commit.batch, dict(commit.state("total").items())
        """
        if self._refreshed is None:
            self._refreshed = self.follow(every=None)
        else:
            self._refreshed.refresh()
        return self._refreshed.at_one_commit()

    def _open_storage(self) -> Storage:
        return self._storage

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if name in _ADMIN_VERBS:
                verb = "" if name == "admin" else f".{name.removesuffix('_state')}(…)"
                raise AttributeError(
                    f"mp.open(…) only reads: it has no {name!r}. Use mp.admin({self._state_dir!r}, {self.name!r}){verb}"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def open(state_dir: str, name: str) -> ReadOnlyApp:
    """Open an app's state for reading, from any process that can read its `state_dir`, without its program.

    >>> import millpond as mp
    >>> mp.open("memory://shared", "orders")
    Traceback (most recent call last):
    ...
    millpond.errors.InvalidUse: memory://shared holds no app 'orders': check state_dir and the app's name
    """
    return ReadOnlyApp(state_dir, name)
