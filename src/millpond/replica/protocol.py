"""What a replica is: anything that follows the log of an app and remembers the record that it has reached.

The store of a partition, the copy of a table on a host, the copy that `mp.open(…).follow()` reads and a table in
another database keep the same three promises: `catch_up`, `position` and `lag`. `millpond.testing.replica_suite` tests
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from millpond.log.point import LogPoint


@dataclass(frozen=True)
class ReplicaPosition:
    """The record that a replica has reached; -1 before the first.

    The number alone does not say which record it is: a copy of the state directory can have another record with the
    same number, so a replica stores the checksum of the record, too, and compares it with the log before it goes on.
    `incarnation` and `epoch` say whose state it is: a clear begins a new incarnation, and a rollback, a rescale, a
    restore or a migration a new epoch, with other state than the records before add up to.

    >>> import millpond as mp
    >>> mp.lowlevel.ReplicaPosition().number
    -1
    """

    number: int = -1
    checksum: str = ""
    incarnation: str = ""
    epoch: int = 0

    @classmethod
    def of(cls, point: LogPoint) -> ReplicaPosition:
        """Return the position of a replica that has reached a point of the log.

        >>> import millpond as mp
        >>> def reached(to): return mp.lowlevel.ReplicaPosition.of(to).number
        """
        return cls(point.number, point.links[point.number].checksum, point.incarnation, point.epoch)


@runtime_checkable
class LogReplica(Protocol):
    """A copy of an app's state, or of part of it, that follows the log.

    A replica holds the exact state at one record: the state and the position change together, in one transaction.
    So it can be killed at any moment, and the next process goes on from the position. Nothing is applied before it is
    committed, so nothing is ever undone.

    >>> import millpond as mp
    >>> class Followed:
    ...     def __init__(self): self._at = mp.lowlevel.ReplicaPosition()
    ...     @property
    ...     def position(self): return self._at
    ...     def catch_up(self, to):
    ...         if self.lag(to):  # apply the records after self._at, then
    ...             self._at = mp.lowlevel.ReplicaPosition.of(to)
    ...         return self._at
    ...     def lag(self, newest): return max(0, newest.number - self._at.number)
    >>> replica = Followed()
    >>> isinstance(replica, mp.lowlevel.LogReplica), replica.position.number
    (True, -1)
    >>> def reached(replica: mp.lowlevel.LogReplica, to): return replica.catch_up(to).number, replica.lag(to)
    """

    @property
    def position(self) -> ReplicaPosition:
        """The record that the replica has reached, as it is stored beside the state. A new process finds the same."""
        ...

    def catch_up(self, to: LogPoint) -> ReplicaPosition:
        """Apply the log up to a record, and return the position.

        - The call applies nothing after that record. A replica that is at a later record of this log stays there, and
          repeating a call changes nothing.
        - A replica that is empty, or that retention has passed, begins with the state in the manifest of the record.
        - At a record of another epoch or incarnation it takes the whole state of that record in place of what it holds.
        - If its position is not a record of this log, because another copy of the state directory was put in its place,
          what it holds is not used: the replica is built again from the log.
        - `Unavailable` if the storage does not answer or the replica has no room; `Corrupt` if a file of the log is
          damaged, or if retention has removed what leads to that record: read the newest record and call this again;
          `Incompatible` if the log is of a newer version. The replica then still holds the state at its position.
        """
        ...

    def lag(self, newest: LogPoint) -> int:
        """Return how many records the replica is behind the newest one; 0 if it has reached it. Reads no storage."""
        ...
