"""Asks the driver of a running app to do something, and waits until a record says that it is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from millpond.clock import Clock
from millpond.errors import InvalidUse, Unavailable
from millpond.log.heartbeat import seems_running
from millpond.log.jobs import ProgressCallback
from millpond.log.ledger import Ledger
from millpond.log.record import Record
from millpond.log.requests import (
    EXPIRE_SECONDS,
    Request,
    leave_request,
    read_answer,
    remove_answer,
    remove_request,
)
from millpond.storage import Storage

POLL_SECONDS = 0.1
ANSWER_PATIENCE = 2.0  # seconds that a command waits for the answer once it has seen the record
STOPPED_PATIENCE = 10.0  # seconds for which an app must seem to be stopped: a supervisor may be starting it again


@dataclass
class RunningApp:
    """An app that seems to run, as a command asks it for something."""

    storage: Storage
    name: str
    clock: Clock
    runs_here: Callable[[], bool] = field(default=lambda: False)  # whether it runs in this process
    progress: ProgressCallback = field(default=lambda done, total: None)

    @property
    def seems_running(self) -> bool:
        return self.runs_here() or seems_running(self.storage, self.name, self.clock) is not None

    def ask(
        self, kind: str, arguments: Mapping[str, Any], *, why: str = "", timeout: float = EXPIRE_SECONDS
    ) -> str | None:
        """Leave a request, wait until it is carried out, and return the answer; None if the app has stopped instead.

        `InvalidUse` if the driver refuses it. `Unavailable` if it is not carried out within `timeout` seconds: then it
        is withdrawn, and expires should a driver that is hard at work have taken it already.
        """
        ledger = Ledger(self.storage, self.name, self.clock)
        request = leave_request(ledger, kind, arguments, why=why, expires=timeout)
        try:
            return self._wait(ledger, request, timeout)
        finally:  # also if a person interrupts it
            remove_request(self.storage, self.name, request.id)
            remove_answer(self.storage, self.name, request.id)

    def _wait(self, ledger: Ledger, request: Request, timeout: float) -> str | None:
        began = last_seen = self.clock.monotonic()
        newest, seen_number = ledger.newest(), -1
        self.progress(0, 1)
        while True:
            if (text := self._find_answer(request)) is not None:
                self.progress(1, 1)
                return text
            newest = ledger.newest(near=None if newest is None else newest.number)
            if newest is not None and request.id in newest.requests:
                self.progress(1, 1)
                return self._describe(ledger, request, newest)
            now = self.clock.monotonic()
            number = -1 if newest is None else newest.number
            if self.seems_running or number > seen_number:  # a driver that starts claims before its first heartbeat
                last_seen, seen_number = now, number
            elif now - last_seen > STOPPED_PATIENCE or (newest is not None and newest.kind == "release"):
                return self._withdraw(ledger, request)
            if now - began > timeout:
                text = self._withdraw(ledger, request)
                if text is not None:
                    return text
                raise Unavailable(
                    f"{request.kind}: the driver of app {self.name!r} has not carried it out within {timeout:.0f} s. "
                    "The request was withdrawn; if the driver has begun with it already, its log and `millpond status` "
                    "say what became of it."
                )
            self.clock.sleep(POLL_SECONDS)

    def _find_answer(self, request: Request) -> str | None:
        answer = read_answer(self.storage, self.name, request.id)
        if answer is None:
            return None
        if not answer.done:
            raise InvalidUse(f"{request.kind}: the driver of app {self.name!r} refuses it: {answer.text}")
        return answer.text

    def _describe(self, ledger: Ledger, request: Request, newest: Record) -> str:
        """Return the answer to a request that a record has carried out: the driver writes it next, unless it dies."""
        until = self.clock.monotonic() + ANSWER_PATIENCE
        while self.clock.monotonic() < until:
            if (text := self._find_answer(request)) is not None:
                return text
            self.clock.sleep(POLL_SECONDS)
        number = newest.requests[request.id][0]
        record = ledger.read(number)
        what = f": {record.why}" if record is not None and record.why else ""
        return f"carried out by record {number}{what}"

    def _withdraw(self, ledger: Ledger, request: Request) -> str | None:
        """Remove the request, and return the answer if it was carried out at the last moment; None if it was not."""
        remove_request(self.storage, self.name, request.id)
        if (text := self._find_answer(request)) is not None:
            return text
        newest = ledger.newest()
        if newest is not None and request.id in newest.requests:
            return self._describe(ledger, request, newest)
        return None
