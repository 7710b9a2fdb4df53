"""The driver's side of requests: it looks for them beside its batches, and carries them out between two batches."""

from __future__ import annotations

import contextlib
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Protocol

from millpond.driver.owner import Owner
from millpond.errors import MillpondError, Unavailable
from millpond.log.jobs import When
from millpond.log.requests import (
    REQUEST_FORMAT,
    Answer,
    Request,
    UnreadableRequest,
    find_refusal,
    has_requests,
    read_requests,
    remove_old_answers,
    remove_request,
    write_answer,
)

log = logging.getLogger("millpond")

LOOK_SECONDS = 1.0  # between two listings of the folder, which are not on the way of a batch


class Refused(Exception):
    """A request is not carried out, and nothing was changed. Its text is the answer."""


class RequestedWork(Protocol):
    """A request that is being carried out.

    If the work changes the app, one record does it, with `Owner.naming(request)` among its fields.
    """

    def advance(self) -> str | None:
        """Go on with the work, and return the answer once it is done; None if batches are to go on first.

        Called on the driver's own thread, before each batch, until it returns a text or raises `Refused`. Any other
        error ends the run, and the next driver takes the request again.
        """
        ...

    @property
    def is_ready(self) -> bool:
        """Whether `advance` has something to do."""
        ...

    def close(self) -> None:
        """Give the work up, because the driver ends. Called once, in place of `advance`."""
        ...


class WaitingWork(ABC):
    """The base of a `RequestedWork` that only waits for something, and changes nothing in the app.

    Other requests are taken and carried out meanwhile. When its request has expired, it is not waited for any longer.
    """

    @abstractmethod
    def describe_unfinished(self) -> str:
        """Return what is so when its request expires, in words."""


class NothingToDo:
    """The work of a request that asks for what is so already."""

    is_ready = True

    def __init__(self, text: str) -> None:
        self._text = text

    def advance(self) -> str:
        return self._text

    def close(self) -> None:
        return None


class RequestDesk:
    """Takes one request after the other, and answers them.

    `kinds` has the function that begins the work of each kind of request; it may raise `Refused`. With `threaded`, a
    thread looks for requests; otherwise `look` does when it is called. `at` is called at the crash points: before
    anything is done, when it is done and not answered, and when it is answered and still there.

    `found` is set while a request may wait; `current` is what is being carried out, with its request if there is one.
    `waiting` has the `WaitingWork` that is waited for beside that.

    A request never ends the run. One that the driver may not read is refused, and one that it may not answer, because
    another user has left it, stays where it is.
    """

    def __init__(
        self,
        owner: Owner,
        kinds: Mapping[str, Callable[[Request], RequestedWork]],
        at: Callable[[When], None],
        *,
        threaded: bool,
    ) -> None:
        self._owner, self._kinds, self._at, self._threaded = owner, kinds, at, threaded
        self._storage, self._app = owner.storage, owner.last.app
        self.found, self._stopped = threading.Event(), threading.Event()
        self.current: tuple[Request | None, RequestedWork] | None = None
        self.waiting: dict[str, tuple[Request, RequestedWork]] = {}  # by the id of the request
        self._known: frozenset[str] = frozenset()  # requests that need not be found: waited for, or not to be answered
        self._trouble = ""  # why no requests can be found, as it was logged
        self._thread = threading.Thread(target=self._watch, name="millpond-requests", daemon=True)

    def start(self) -> None:
        """Begin to look for requests, and remove answers that no command has read."""
        with contextlib.suppress(MillpondError):
            remove_old_answers(self._storage, self._app, self._owner.clock.now())
        self.look()
        if self._threaded:
            self._thread.start()

    def look(self) -> None:
        """Look once whether there is a request."""
        try:
            if has_requests(self._storage, self._app, self._known):
                self.found.set()
        except Unavailable:  # the next look tries again
            pass
        except MillpondError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                log.warning("%s: no requests of commands are found: %s", self._app, error)

    def _watch(self) -> None:
        while not self._stopped.wait(LOOK_SECONDS):
            if not self.found.is_set():
                self.look()

    @property
    def is_busy(self) -> bool:
        """Whether a request waits or is being carried out, other than `WaitingWork`."""
        return self.current is not None or self.found.is_set()

    @property
    def is_ready(self) -> bool:
        """Whether `advance` has something to do now."""
        is_ready = self.found.is_set() if self.current is None else self.current[1].is_ready
        return is_ready or any(work.is_ready for _, work in self.waiting.values())

    def begin(self, work: RequestedWork) -> None:
        """Begin work that the driver itself asks for. Called only while the desk is not busy."""
        assert self.current is None
        self.current = (None, work)

    def advance(self) -> None:
        """Take the next request, or go on with the one that was taken. Called between two batches."""
        for request, work in list(self.waiting.values()):
            self._wait_for(request, work)
        if self.current is None:
            self.current = self._take()
        if self.current is not None and self._go_on(*self.current):
            self.current = None

    def _wait_for(self, request: Request, work: RequestedWork) -> None:
        """Look once whether what is waited for is so, and answer if it is, or if the request has expired."""
        assert isinstance(work, WaitingWork)
        is_over = self._go_on(request, work)
        if not is_over and (age := self._owner.clock.now() - request.time) > request.expires:
            self._refuse(request, f"not done after {age:.0f} s: {work.describe_unfinished()}")
            is_over = True
        if is_over:
            self.waiting.pop(request.id, None)
            self._known -= {request.id}

    def _go_on(self, request: Request | None, work: RequestedWork) -> bool:
        """Go on with some work, and return whether it has ended; then it is answered."""
        try:
            text = work.advance()
        except Refused as refusal:
            if request is None:
                log.warning("%s: %s", self._app, refusal)
            else:
                self._refuse(request, str(refusal))
            return True
        if text is None:
            return False
        if request is None:
            log.warning("%s: %s", self._app, text)
        else:
            self._at("during")
            log.warning("%s: carried out a request of %s: %s", self._app, request.who, text)
            record, _ = self._owner.last.requests.get(request.id, (None, 0.0))
            self._answer(request.id, text, done=True, record=record)
        return True

    def _take(self) -> tuple[Request, RequestedWork] | None:
        if not self.found.is_set():
            return None
        self.found.clear()  # the next look finds what is left
        try:
            found = read_requests(self._storage, self._app)
        except MillpondError:  # the next look tries again
            return None
        for each in found:
            if each.id in self._known:
                continue
            if isinstance(each, UnreadableRequest):
                self._refuse(each, each.reason)
            elif each.id in self._owner.last.requests:  # the driver before died before it had answered
                number = self._owner.last.requests[each.id][0]
                self._answer(each.id, f"carried out by record {number}", done=True, record=number)
            elif (refusal := find_refusal(each, self._owner.clock.now(), self._kinds)) is not None:
                self._refuse(each, refusal)
            else:
                self._at("before")
                try:
                    work = self._kinds[each.kind](each)
                except Refused as error:
                    self._refuse(each, str(error))
                    continue
                if not isinstance(work, WaitingWork):
                    return each, work
                self.waiting[each.id] = (each, work)
                self._known |= {each.id}
                self._wait_for(each, work)
        return None

    def _refuse(self, request: Request | UnreadableRequest, text: str) -> None:
        what = f" ({request.kind}, of {request.who})" if isinstance(request, Request) else ""
        log.warning("%s: request %s%s is refused: %s", self._app, request.id, what, text)
        self._answer(request.id, text, done=False)

    def _answer(self, id: str, text: str, *, done: bool, record: int | None = None) -> None:
        """Write the answer, then remove the request. If the storage is unavailable, a later look does both.

        If this user may not do that, the request is passed over from now on.
        """
        now = self._owner.clock.now()
        try:
            write_answer(
                self._storage,
                self._app,
                Answer(format=REQUEST_FORMAT, id=id, done=done, text=text, time=now, record=record),
            )
            self._at("after")
            remove_request(self._storage, self._app, id)
        except Unavailable as error:
            log.warning("%s: request %s is answered later: %s", self._app, id, error)
        except MillpondError as error:
            self._known |= {id}
            log.warning("%s: request %s cannot be answered, and stays there: %s", self._app, id, error)

    def close(self) -> None:
        """Stop looking, and give up what is under way: the next driver takes it again. May be called twice."""
        self._stopped.set()
        given_up = [*self.waiting.values(), *([] if self.current is None else [self.current])]
        self.current, self.waiting = None, {}
        for _, work in given_up:
            work.close()
        if self._thread.is_alive():
            self._thread.join()
