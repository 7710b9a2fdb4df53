"""A deterministic scheduler: several actors, each in a thread of its own, of which only one runs at a time.

Every call on a `ScheduledStorage`, and every change or listing of a file below a watched folder, is a scheduling
point. The policy decides there whether the actor goes on, is parked while another one runs, or is killed. A run is
described by its schedule: the few points at which something else happened than "go on". Two runs with the same
schedule make the same calls in the same order.

An actor that is killed makes no further effect: every later call on the storage or below a watched folder raises
`Killed` again, so that its `finally` blocks cannot do what a dead process could not do.
"""

from __future__ import annotations

import builtins
import os
import random
import sys
import threading
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from unittest import mock

from millpond.storage import Item, Storage

KILL = "kill"
STUCK_AFTER = 60.0  # seconds in which no actor reaches a scheduling point


class Killed(BaseException):
    """The process of an actor is gone. It is no `Exception`, so that no handler of the program sees it."""


class Stuck(AssertionError):
    """An actor waits for something that only a parked actor could do."""


@dataclass(frozen=True)
class Turn:
    """What happens at one scheduling point: another actor goes on, or the running one is killed."""

    step: int  # the scheduling point, counted over all actors
    to: str  # the name of the actor that goes on, or KILL

    def __str__(self) -> str:
        return f"{self.step}:{self.to}"


Schedule = tuple[Turn, ...]


def as_text(schedule: Schedule) -> str:
    """A schedule in one line: `17:rollback 30:kill`."""
    return " ".join(map(str, schedule)) or "-"


def from_text(text: str) -> Schedule:
    """The schedule that `as_text` wrote.

    >>> as_text(from_text("17:rollback 30:kill"))
    '17:rollback 30:kill'
    """
    parts = [] if text.strip() in ("", "-") else text.split()
    return tuple(Turn(int(step), to) for step, to in (part.split(":", 1) for part in parts))


@dataclass
class Actor:
    """One thread of a run, and how it ended."""

    name: str
    work: Callable[[], object]
    gate: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    state: str = "waiting"  # waiting, live, done, failed, killed
    error: BaseException | None = None
    is_killed: bool = False

    @property
    def is_over(self) -> bool:
        return self.state in ("done", "failed", "killed")


Kind = Literal["effect", "look", "read"]
ATTEMPTS = ("steps", "outputs", "positions", "spark", "manifests", "exchange")  # folders of files with unique names
KINDS: tuple[Kind, ...] = ("effect", "look", "read")


@dataclass(frozen=True)
class Point:
    """One scheduling point of a run: who was there, before which call, and who could have gone on instead."""

    step: int
    actor: str
    call: str
    others: tuple[str, ...]

    @property
    def kind(self) -> Kind:
        """An effect that others can see, a look at what others may change, or a read of a file that never changes.

        A file that no record names yet is seen by no one but by the removal of orphans, so its put counts as a look.
        """
        verb, _, path = self.call.partition(" ")
        if verb in ("get", "get_range", "open", "stat") or path.endswith("/.probe"):
            return "look" if "/ledger" in path else "read"
        if verb in ("list", "listdir", "scandir", "mkdir") or (verb == "put" and path.split("/")[1] in ATTEMPTS):
            return "look"
        return "effect"


class Policy:
    """Decides at each point; this one follows a schedule. Actors that end are followed by the next in their order."""

    def __init__(self, schedule: Schedule = ()) -> None:
        self._turns = {turn.step: turn.to for turn in schedule}

    def turn(self, point: Point) -> str | None:
        return self._turns.get(point.step)

    def next(self, after: str, waiting: list[str], step: int) -> str:
        return waiting[0]


class RandomPolicy(Policy):
    """Switches and kills by chance; what it decided can be replayed as a schedule."""

    def __init__(self, seed: int, *, switches: float = 0.05, kills: float = 0.005) -> None:
        super().__init__()
        self._chance = random.Random(seed)
        self._switches, self._kills = switches, kills

    def turn(self, point: Point) -> str | None:
        drawn = self._chance.random()
        if drawn < self._kills:
            return KILL
        return self._chance.choice(point.others) if point.others and drawn < self._kills + self._switches else None


class Scheduler:
    """Runs actors one at a time. `points` holds every scheduling point in order, `taken` what was decided."""

    def __init__(self, policy: Policy | None = None) -> None:
        self._policy = policy or Policy()
        self._actors: dict[str, Actor] = {}
        self._threads: dict[threading.Thread, Actor] = {}  # by the thread itself: an ident is used again
        self._over = threading.Event()
        self._uncounted = 0
        self.points: list[Point] = []
        self.taken: list[Turn] = []

    @property
    def schedule(self) -> Schedule:
        return tuple(self.taken)

    @property
    def ends(self) -> dict[str, str]:
        """How each actor ended: `done`, `killed`, or the error that it raised."""
        return {
            actor.name: actor.state if actor.error is None else f"{type(actor.error).__name__}: {actor.error}"
            for actor in self._actors.values()
        }

    @property
    def errors(self) -> dict[str, BaseException]:
        return {actor.name: actor.error for actor in self._actors.values() if actor.error is not None}

    def run(self, works: Mapping[str, Callable[[], object]]) -> None:
        """Run the actors, beginning with the first, until all of them are over."""
        for name, work in works.items():
            self._actors[name] = Actor(name, work)
        threads = [
            threading.Thread(target=self._run, args=(actor,), name=actor.name, daemon=True)
            for actor in self._actors.values()
        ]
        for thread in threads:
            thread.start()
        if not threads:
            return
        next(iter(self._actors.values())).gate.release()
        seen = -1
        while not self._over.wait(STUCK_AFTER):
            if seen == len(self.points):
                raise Stuck(f"after {as_text(self.schedule)}: {self.ends}\n{_stacks(threads)}")
            seen = len(self.points)
        for thread in threads:
            thread.join()

    def _run(self, actor: Actor) -> None:
        actor.gate.acquire()
        self._threads[threading.current_thread()] = actor
        try:
            if actor.is_killed:
                raise Killed
            actor.state = "live"
            actor.work()
            actor.state = "done"
        except Killed:
            actor.state = "killed"
        except BaseException as error:
            actor.state, actor.error = "failed", error
        names = list(self._actors)
        after = names.index(actor.name) + 1
        waiting = [name for name in [*names[after:], *names[:after]] if not self._actors[name].is_over]
        if waiting:
            self._actors[self._policy.next(actor.name, waiting, len(self.points))].gate.release()
        else:
            self._over.set()

    def point(self, call: str) -> None:
        """A scheduling point of the actor whose thread this is; nothing happens in other threads."""
        actor = self._threads.get(threading.current_thread())
        if actor is None:
            return
        if actor.is_killed:
            raise Killed
        if self._uncounted:
            return
        others = tuple(name for name, other in self._actors.items() if other is not actor and not other.is_over)
        point = Point(len(self.points), actor.name, call, others)
        self.points.append(point)
        to = self._policy.turn(point)
        if to is None or to == actor.name or (to != KILL and to not in others):
            return
        self.taken.append(Turn(point.step, to))
        if to == KILL:
            actor.is_killed = True
            raise Killed
        self._actors[to].gate.release()
        actor.gate.acquire()
        if actor.is_killed:
            raise Killed

    @property
    def running_actor(self) -> str | None:
        """The name of the actor whose thread this is; None in any other thread."""
        actor = self._threads.get(threading.current_thread())
        return None if actor is None else actor.name

    def kill(self, name: str) -> None:
        """Kill another actor where it is parked, if it has begun. Its thread ends when it is next scheduled."""
        actor = self._actors[name]
        if actor.state == "live":
            actor.is_killed = True

    @contextmanager
    def uninterrupted(self) -> Iterator[None]:
        """Calls made here are no scheduling points."""
        self._uncounted += 1
        try:
            yield
        finally:
            self._uncounted -= 1


def _stacks(threads: list[threading.Thread]) -> str:
    frames = sys._current_frames()
    return "\n".join(
        f"--- {thread.name}\n{''.join(traceback.format_stack(frames[thread.ident]))}"
        for thread in threads
        if thread.ident in frames
    )


class ScheduledStorage:
    """A storage whose every call is a scheduling point, placed before the call."""

    def __init__(self, inner: Storage, scheduler: Scheduler) -> None:
        self.inner, self.url, self._scheduler = inner, inner.url, scheduler

    def get(self, path: str) -> bytes | None:
        self._scheduler.point(f"get {path}")
        return self.inner.get(path)

    def get_range(self, path: str, start: int, length: int) -> bytes | None:
        self._scheduler.point(f"get_range {path}")
        return self.inner.get_range(path, start, length)

    def put(self, path: str, data: bytes | memoryview) -> None:
        self._scheduler.point(f"put {path}")
        self.inner.put(path, data)

    def put_new(self, path: str, data: bytes | memoryview) -> bool:
        self._scheduler.point(f"put_new {path}")
        return self.inner.put_new(path, data)

    def list(self, prefix: str, after: str | None = None) -> Iterator[Item]:
        self._scheduler.point(f"list {prefix}")
        return self.inner.list(prefix, after)

    def delete(self, paths: Iterable[str]) -> None:
        for path in [*paths]:  # each is a call of its own, as on a disk
            self._scheduler.point(f"delete {path}")
            self.inner.delete([path])


@contextmanager
def watched(folder: str, scheduler: Scheduler) -> Iterator[None]:
    """Make every change, listing and reading of files below a folder a scheduling point, whoever's code makes it."""
    root = os.path.realpath(folder)

    def below(path: Any) -> str | None:
        if not isinstance(path, str | os.PathLike):
            return None
        full = os.path.abspath(os.fspath(path))
        return full[len(root) :] if full == root or full.startswith(root + os.sep) else None

    def wrapped(verb: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **how: Any) -> Any:
            named = [name for name in map(below, args[:2]) if name is not None]
            if named:
                scheduler.point(f"{verb} {named[-1]}")
            return real(*args, **how)

        return call

    verbs = ("replace", "rename", "link", "unlink", "remove", "listdir", "scandir", "mkdir", "rmdir", "truncate")
    patches = [mock.patch.object(os, verb, wrapped(verb, getattr(os, verb))) for verb in verbs]
    patches += [mock.patch.object(os, "stat", wrapped("stat", os.stat))]
    patches += [mock.patch.object(builtins, "open", wrapped("open", builtins.open))]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


@contextmanager
def seeded_ids(scheduler: Scheduler, seed: int = 0) -> Iterator[None]:
    """Let random ids come from a seed, so that names, and the order of listings, are the same each time.

    Each actor has ids of its own, and so has the thread that calls this. Any other thread, such as one that an earlier
    test has left behind, gets ids that are really random, and takes none of theirs. So does a replica that is built:
    no actor sees its name, and it may take a second attempt if the process has too many stores open.
    """
    chances: dict[str, random.Random] = {}
    caller, real = threading.current_thread(), uuid.uuid4

    class Seeded:
        @staticmethod
        def uuid4() -> uuid.UUID:
            who = scheduler.running_actor or ("" if threading.current_thread() is caller else None)
            if who is None:
                return real()
            chance = chances.setdefault(who, random.Random(f"{seed} {who}"))
            return uuid.UUID(int=chance.getrandbits(128), version=4)

    with (
        mock.patch("millpond.clock.uuid", Seeded),
        mock.patch("millpond.replica.folders.new_id", lambda: real().hex[:16]),
    ):
        yield
