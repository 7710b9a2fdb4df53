"""Drain a host on request: its partitions and standbys leave it, and the command waits until it is empty."""

from __future__ import annotations

from millpond.driver.placement import Placement
from millpond.driver.requests import NothingToDo, Refused, RequestedWork, WaitingWork
from millpond.log.requests import Request


class DrainWork(WaitingWork):
    """Waits until a host that is drained has no partitions. Batches, and other requests, go on meanwhile."""

    def __init__(self, placement: Placement, host: str) -> None:
        self._placement, self._host = placement, host
        placement.drain(host)

    @property
    def is_ready(self) -> bool:
        return self._placement.is_empty(self._host)

    def advance(self) -> str | None:
        if self._placement.is_undrained(self._host):
            raise Refused(f"host {self._host} gets partitions again: the drain was undone before it had ended")
        if not self.is_ready:
            return None
        return f"host {self._host} has no partitions and gets none until it is undrained or gone"

    def describe_unfinished(self) -> str:
        return (
            f"host {self._host} still has partitions of which no other host has a ready copy. They leave it when one "
            "has, and drain with --undo lets it keep them"
        )

    def close(self) -> None:
        return None


def begin_drain(placement: Placement, request: Request) -> RequestedWork:
    """Begin to drain the host that a request names, or let it get partitions again."""
    host, undo = request.arguments.get("host"), request.arguments.get("undo", False)
    if not isinstance(host, str) or type(undo) is not bool:
        raise Refused(f"expected the name of a host, got {host!r}")
    if undo:
        placement.undrain(host)
        return NothingToDo(f"host {host} gets partitions again")
    hosts = placement.hosts()
    if host not in hosts:
        known = ", ".join(hosts) or "the app runs on one host"
        raise Refused(f"{host!r} is not among the hosts that run tasks and are not drained: {known}")
    if hosts == [host]:
        raise Refused(f"{host!r} is the only host, and its partitions can be nowhere else")
    return DrainWork(placement, host)
