"""An app's state from another process, without its program."""

from __future__ import annotations

from millpond.admin import Upkeep
from millpond.clock import SystemClock
from millpond.errors import InvalidUse
from millpond.log.ledger import Ledger
from millpond.log.paths import check_name
from millpond.log.record import Record
from millpond.state_view import StateView
from millpond.storage import Storage, open_storage


class ReadOnlyApp(Upkeep):
    """An app's state, seen from another process."""

    def __init__(self, state_dir: str, name: str) -> None:
        check_name(name, "open(name)")
        self.name, self._storage, self._clock = name, open_storage(state_dir), SystemClock()
        if Ledger(self._storage, name, self._clock).newest() is None:
            raise InvalidUse(f"{self._storage.url} holds no app {name!r}: check state_dir and the app's name")

    def _open_storage(self) -> Storage:
        return self._storage

    @property
    def _kept(self) -> Storage:
        return self._storage

    def state(self, step: str) -> StateView:
        """A step's state, as of the newest commit.

        >>> import millpond as mp
        >>> def total(who): return mp.open("state", "orders").state("total").get(who)
        """
        return StateView(self._storage, self.name, step, self._clock)

    @property
    def newest(self) -> Record | None:
        """The newest record of the ledger.

        >>> import millpond as mp
        >>> def batch(): return mp.open("state", "orders").newest.number
        """
        return Ledger(self._storage, self.name, self._clock).newest()


def open(state_dir: str, name: str) -> ReadOnlyApp:
    """An app's state, read-only, from any process that can read its `state_dir`.

    >>> import millpond as mp
    >>> mp.open("memory://shared", "orders")
    Traceback (most recent call last):
    ...
    millpond.errors.InvalidUse: memory://shared holds no app 'orders': check state_dir and the app's name
    """
    return ReadOnlyApp(state_dir, name)
