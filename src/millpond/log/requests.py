"""Requests: small files in which a command asks the owner of a running app to do something.

    command                          driver, between two batches
    puts <id>.json, if absent   ──▶  finds it, and refuses it if it is expired, damaged or of an unknown kind
                                     does it; the record that makes it count names the id
    reads record or answer     ◀──   puts <id>.answer.json
    removes the answer               removes <id>.json

No request is carried out twice: every later record remembers the id until the request has expired, so a driver that
finds the file of a request that was carried out, because the driver before died before it removed the file, only
answers it. A request that is never taken expires, and the next driver that finds it refuses it: what was asked for
before a stop does not happen a week later. A command that gives up removes its request.

Times in these files are compared with the clock of the driver's machine.
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct, field

from millpond.clock import new_id
from millpond.errors import Corrupt, InvalidUse
from millpond.log.checked import pack_checked, read_checked, write_checked
from millpond.log.ledger import Ledger
from millpond.log.paths import Paths
from millpond.storage import Storage

REQUEST_FORMAT = 1
EXPIRE_SECONDS = 600.0  # after which a request is refused
ANSWER_SECONDS = 3600.0  # after which an answer that no command has read is removed
MOST_CLOCK_SKEW = 300.0  # seconds between the clocks of two machines


class Request(Struct, omit_defaults=True, frozen=True, kw_only=True):
    """What a command asks for, and who asks."""

    format: int
    id: str
    kind: str
    host: str
    pid: int
    user: str
    time: float
    expires: float = EXPIRE_SECONDS  # seconds after `time`
    arguments: dict[str, Any] = field(default_factory=dict)
    why: str = ""
    app: str = ""  # that is asked; empty in requests of an earlier version

    @property
    def who(self) -> str:
        """Who has left it, in words."""
        return f"{self.user} on {self.host}, process {self.pid}"

    @property
    def remember_until(self) -> float:
        """The time until which records name it: by any clock it has expired then."""
        return self.time + self.expires + MOST_CLOCK_SKEW


class Answer(Struct, omit_defaults=True, frozen=True, kw_only=True):
    """What became of a request: `text` says what was done, or why it was refused."""

    format: int
    id: str
    done: bool
    text: str
    time: float
    record: int | None = None  # that carries it out


@dataclass(frozen=True)
class UnreadableRequest:
    """The file of a request that cannot be read, and the reason."""

    id: str
    reason: str


def leave_request(
    ledger: Ledger,
    kind: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    why: str = "",
    expires: float = EXPIRE_SECONDS,
) -> Request:
    """Write a request for the driver of an app, and return it."""
    request = Request(
        format=REQUEST_FORMAT,
        id=new_id(),
        kind=kind,
        host=socket.gethostname(),
        pid=os.getpid(),
        user=_user(),
        time=ledger.clock.now(),
        expires=expires,
        arguments=dict(arguments or {}),
        why=why,
        app=ledger.app,
    )
    ledger.storage.put_new(
        ledger.paths.request(request.id), pack_checked(request)
    )  # the id is random: nothing is there
    return request


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def has_requests(storage: Storage, app: str, known: Collection[str] = ()) -> bool:
    """Return whether any request waits, other than those that are known. Costs one listing."""
    paths = Paths(app)
    found = (paths.request_id(item.path) for item in storage.list(paths.requests))
    return any(id is not None and id not in known for id in found)


def read_requests(storage: Storage, app: str) -> list[Request | UnreadableRequest]:
    """Return the requests that wait, unreadable ones first, the others in the order of their times."""
    found = list(_read_requests(storage, app))
    return sorted(found, key=lambda each: (each.time, each.id) if isinstance(each, Request) else (0.0, each.id))


def _read_requests(storage: Storage, app: str) -> Iterator[Request | UnreadableRequest]:
    paths = Paths(app)
    for item in list(storage.list(paths.requests)):
        id = paths.request_id(item.path)
        if id is not None:
            request = _read_request(storage, app, id)
            if request is not None:
                yield request


def _read_request(storage: Storage, app: str, id: str) -> Request | UnreadableRequest | None:
    try:
        data = read_checked(storage, Paths(app).request(id))
        if data is None:  # it was withdrawn since it was listed
            return None
        found = msgspec.json.decode(data)
        if found.get("format") != REQUEST_FORMAT:
            return UnreadableRequest(
                id,
                f"it has format {found.get('format')}, and the driver's version of Millpond reads format "
                f"{REQUEST_FORMAT}: use the same version for both",
            )
        request = msgspec.json.decode(data, type=Request)
    except (Corrupt, InvalidUse, msgspec.MsgspecError) as error:  # InvalidUse: the driver may not read it
        return UnreadableRequest(id, str(error))
    if request.app not in ("", app):
        return UnreadableRequest(id, f"it was left for app {request.app!r}")
    return request if request.id == id else UnreadableRequest(id, f"the file holds request {request.id}")


def find_refusal(request: Request, now: float, kinds: Collection[str]) -> str | None:
    """Return why a request is not carried out, in words; None if it is.

    >>> from millpond.log.requests import Request, find_refusal
    >>> request = Request(format=1, id="5e1f", kind="rescale", host="a", pid=7, user="ann", time=1000.0)
    >>> find_refusal(request, 1010.0, ["rescale"])
    >>> find_refusal(request, 9000.0, ["rescale"])
    'it was left 8000 s ago, by the clock of the driver, and expired after 600 s. Ask again'
    """
    if request.kind not in kinds:
        known = ", ".join(sorted(kinds))
        return f"the driver does not know requests of kind {request.kind!r}; it knows: {known}. Upgrade the driver"
    age = now - request.time
    if age > request.expires:
        return (
            f"it was left {age:.0f} s ago, by the clock of the driver, and expired after {request.expires:.0f} s. "
            "Ask again"
        )
    if age < -MOST_CLOCK_SKEW:
        return f"it comes from a machine whose clock is {-age:.0f} s ahead of the driver's. Set the clocks right"
    return None


def remember_request(
    held: Mapping[str, tuple[int, float]], request: Request, number: int, now: float
) -> dict[str, tuple[int, float]]:
    """Return `Record.requests` of the record that carries out a request; `held` is that of the record before.

    Requests that have expired by any clock are forgotten.
    """
    kept = {id: (record, until) for id, (record, until) in held.items() if until > now}
    return {**kept, request.id: (number, request.remember_until)}


def write_answer(storage: Storage, app: str, answer: Answer) -> None:
    """Write the answer to a request."""
    write_checked(storage, Paths(app).answer(answer.id), answer)


def read_answer(storage: Storage, app: str, id: str) -> Answer | None:
    """Return the answer to a request; None if there is none, or if it is damaged: the ledger has it, too."""
    try:
        data = read_checked(storage, Paths(app).answer(id))
        return None if data is None else msgspec.json.decode(data, type=Answer)
    except (Corrupt, msgspec.MsgspecError):
        return None


def remove_request(storage: Storage, app: str, id: str) -> None:
    """Remove a request: it was answered, or the command has given up."""
    storage.delete([Paths(app).request(id)])


def remove_answer(storage: Storage, app: str, id: str) -> None:
    """Remove an answer that the command has read."""
    storage.delete([Paths(app).answer(id)])


def remove_old_answers(storage: Storage, app: str, now: float) -> None:
    """Remove the answers that no command has read for a long time, and damaged ones."""
    paths = Paths(app)
    for item in list(storage.list(paths.requests)):
        name = item.path.rsplit("/", 1)[-1]
        if name.endswith(".answer.json"):
            answer = read_answer(storage, app, name.removesuffix(".answer.json"))
            if answer is None or abs(now - answer.time) > ANSWER_SECONDS:
                storage.delete([item.path])
