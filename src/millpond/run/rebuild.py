"""Rebuilding a step's state from the input alone: in a shadow of the app, compared, and then put in its place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from millpond.clock import Clock, new_id
from millpond.codec import decode_key
from millpond.errors import InvalidUse
from millpond.log import manifest as manifests
from millpond.log import pointer
from millpond.log.ledger import Ledger
from millpond.log.manifest import Manifest, Part, Run
from millpond.log.paths import Attempt, Paths
from millpond.log.pointer import Pointer
from millpond.log.record import Record
from millpond.run.batch import positions_of
from millpond.run.maintenance import At, Caretaker
from millpond.run.rewrite import fields
from millpond.storage import Storage


def shadow_name(app: str, step: str) -> str:
    """The name of the app that rebuilds a step of another."""
    return f"{app}~{step}"


@dataclass(frozen=True)
class Difference:
    """A key whose state is not what its input makes of it now; None is no state.

    >>> import millpond as mp
    >>> mp.Difference("ann", live=3, rebuilt=4).rebuilt
    4
    """

    key: Any
    live: Any
    rebuilt: Any


def reach(storage: Storage, clock: Clock, app: str, step: str, streams: list[str]) -> str:
    """Whether the shadow stands where the app does; nothing if so, and else what is to be done, in words."""
    live, shadow = (Ledger(storage, name, clock).newest() for name in (app, shadow_name(app, step)))
    if live is None or shadow is None:
        return "the app has never run"
    here, there = positions_of(storage, live), positions_of(storage, shadow)
    for stream in streams:
        mine, its = here.get(stream, {}), there.get(stream, {})
        gone = sorted(place for place in mine if place not in its)
        if gone:
            first = min(its, default="nothing")
            return (
                f"the input of stream {stream!r} no longer reaches back far enough: {len(gone)} of the {len(mine)} "
                f"places that the app has read are gone, the first of them {gone[0]!r}. A rebuilt state would begin "
                f"with {first!r}"
            )
        if mine != its:
            return (
                f"stream {stream!r} was read to another place by the app than by the rebuild. Run the app until it is "
                "caught up, stop it, and call rebuild again: it goes on from where it is"
            )
    return ""


def switched(storage: Storage, clock: Clock, app: str, step: str, at: At | None = None) -> None:
    """Put the rebuilt state of a step in the place of the live one, in one commit, and forget the shadow."""
    keeper = Caretaker(storage, app, clock, at or (lambda when: None))
    shadow = Ledger(storage, shadow_name(app, step), clock).newest()
    if shadow is None:
        raise InvalidUse(f"rebuild({step!r}): nothing has been rebuilt")
    last = keeper.claim("rebuild")
    works = keeper.rewriter.works(last, last)
    for work in works:
        work.steps.pop(step, None)
    manifest = manifests.read(storage, keeper.rewriter.done(works, last))
    copied = _copied(storage, keeper, shadow, step, last.number + 1)
    runs = {**manifest.runs, step: copied}
    path = Paths(app).manifest(Attempt(last.number + 1, keeper.id, new_id()))
    made = Manifest(manifests.FORMAT, app, last.number, last.checksum, runs)
    taken = {name: {**getattr(last, name)} for name in ("reached", "due", "steps")}
    for name, held in taken.items():
        held.pop(step, None)
        if step in getattr(shadow, name):
            held[step] = getattr(shadow, name)[step]
    arrivals = max(last.arrivals, shadow.arrival - last.number)
    own = fields(manifests.write(storage, path, made), last, f"rebuild {step}", arrivals=arrivals, **taken)
    keeper.write("release", keeper.write("rewrite", last, **own))
    forget(storage, app, step)


def _copied(storage: Storage, keeper: Caretaker, shadow: Record, step: str, number: int) -> dict[int, list[Run]]:
    """The shadow's segments of a step, as segments of the app."""
    of = Caretaker(storage, shadow.app, keeper.clock)
    found: dict[int, list[Run]] = {}

    def copy(partition: int, file: Pointer) -> Pointer:
        path = Paths(keeper.app).state(step, partition, Attempt(number, keeper.id, new_id()))
        return pointer.write(storage, path, pointer.read(storage, file), file.rows)

    for work in of.rewriter.works(shadow, shadow):
        if step in work.steps:
            _, runs, fresh = work.steps[step]
            parts = [[Part(copy(work.partition, part.file), part.first) for part in run] for run in runs]
            found[work.partition] = parts + [[Part(copy(work.partition, file), "")] for file in fresh]
    return found


def forget(storage: Storage, app: str, step: str) -> None:
    """Remove the shadow's files."""
    root = Paths(shadow_name(app, step)).root
    storage.delete([item.path for item in storage.list(root)])


def differences(live: dict[bytes, Any], rebuilt: dict[bytes, Any]) -> Iterator[Difference]:
    """Where two states of a step, by encoded key, are not equal."""
    for key in sorted(live.keys() | rebuilt.keys()):
        if live.get(key) != rebuilt.get(key):
            yield Difference(decode_key(key), live.get(key), rebuilt.get(key))
