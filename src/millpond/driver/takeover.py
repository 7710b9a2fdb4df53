"""When a standby driver takes its app over: a decision from what it has observed, without disk or clock.

Two machines' clocks are never compared. A standby driver looks at the heartbeat and at the newest record again and
again, and measures with its own monotonic clock for how long neither has changed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from millpond.log.heartbeat import BEAT_SECONDS, Beat
from millpond.log.record import Record

SILENT_BEATS = 4  # that an owner misses before it is regarded as gone
LONGEST_STEP = 2.0  # seconds of silence that two observations can prove: more of them are needed before a decision
LONGEST_GAP = 10.0  # seconds between observations, after which the standby driver itself was paused


@dataclass(frozen=True)
class Observation:
    """The heartbeat and the newest record, and when they were read, by the monotonic clock of the reader.

    `is_dead` states that the process of the heartbeat is known to be gone, because it ran on the reader's machine.
    """

    began: float
    ended: float
    newest: Record | None
    beat: Beat | None
    is_dead: bool = False

    @property
    def mark(self) -> tuple[object, ...]:
        """What changes when the owner does anything."""
        beat, newest = self.beat, self.newest
        return (
            None if beat is None else (beat.driver, beat.time, beat.number),
            None if newest is None else (newest.number, newest.checksum),
        )

    @property
    def owner_beats(self) -> bool:
        """Whether the heartbeat is that of the driver which owns the app."""
        return self.beat is not None and self.newest is not None and self.beat.driver == self.newest.driver


@dataclass(frozen=True)
class Watch:
    """The last observation, and for how many seconds the owner was seen to be silent at that time."""

    seen: Observation
    silent: float = 0.0

    @property
    def limit(self) -> float:
        """The seconds of silence after which the owner is regarded as gone.

        If there is no heartbeat of the owner, it is about to write its first one, or maintenance owns the app.
        """
        beat = self.seen.beat
        return SILENT_BEATS * (beat.every if beat is not None and self.seen.owner_beats else BEAT_SECONDS)


@dataclass(frozen=True)
class TakeOver:
    """The decision to take an app over: why, for how long its owner was silent, and the record that the claim follows.

    If the newest record is another one when the claim is written, another driver was first.
    """

    why: str
    silent: float
    newest: Record | None


def follow(watch: Watch | None, seen: Observation) -> Watch:
    """Return the watch after one more observation.

    Silence is the time between two observations that saw the same; the time that reading took does not count. A pair
    of observations proves at most `LONGEST_STEP` seconds. If more than `LONGEST_GAP` lies between them, the standby
    driver was paused or its storage was unavailable, the owner perhaps, too, and the silence begins again.
    """
    if watch is None or watch.seen.mark != seen.mark:
        return Watch(seen)
    gap = seen.began - watch.seen.ended
    if gap > LONGEST_GAP:
        return Watch(seen)
    return Watch(seen, watch.silent + min(max(0.0, gap), LONGEST_STEP))


def decide(watch: Watch, own: Collection[str] = ()) -> TakeOver | None:
    """Return why the app is taken over now; None while its owner seems to be there.

    `own` are the ids of drivers that have run in this process before: a restart does not wait for them.
    """
    seen, newest = watch.seen, watch.seen.newest
    if newest is None:
        return TakeOver("no driver has run it yet", 0.0, newest)
    if newest.kind == "release":
        return TakeOver("its owner has stopped", watch.silent, newest)
    if newest.driver in own:
        return TakeOver("its owner was this process", watch.silent, newest)
    if seen.owner_beats and seen.is_dead:
        return TakeOver("the process of its owner is gone", watch.silent, newest)
    if watch.silent >= watch.limit:
        return TakeOver("its owner is silent", watch.silent, newest)
    return None
