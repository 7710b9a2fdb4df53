"""Watermarks, as pure functions: the event time of every stream and of every node of a program."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from millpond.errors import InvalidUse
from millpond.log.record import Began, Record, StreamTime
from millpond.messages import EventTime, ReadHeader
from millpond.pipeline.graph import DeadLetters, Program, Read, SideOutput, StatefulStep, StepChanges
from millpond.steps.base import BatchTime
from millpond.timing import MAX_TICKS, Unit, span

WHOLE = ""  # stands for all partitions of a source of which none is known yet


@dataclass(frozen=True)
class Watermark:
    """The watermark of the rows that leave a node."""

    at: int | None = None
    unit: Unit | None = None
    asleep: bool = False  # no row is expected from it at the moment: it does not hold others back


def times_after_reading(
    program: Program, event_time: EventTime, headers: Sequence[ReadHeader]
) -> dict[str, StreamTime]:
    """Return the event time of every stream after the rows of some reading tasks."""
    found = dict(event_time.times)
    for name, read in program.clocks.values():
        held = found.get(name, StreamTime())
        newest, unit = dict(held.newest), held.unit
        for header in headers:
            for partition, time in header.newest.get(name, {}).items():
                newest[partition] = max(time, newest.get(partition, time))
            unit = _one_unit(name, unit, header.units.get(name))
        if unit is None:
            continue
        idle = event_time.idle.get(name, frozenset())
        holding = [time for partition, time in newest.items() if partition not in idle]
        at = held.watermark
        if holding:
            now = min(holding) - span(read.disorder, unit, f"stream {read.stream!r}, disorder")
            at = now if at is None else max(at, now)
        found[name] = StreamTime(unit, at, newest)
    return found


def _one_unit(name: str, known: Unit | None, found: Unit | None) -> Unit | None:
    if known is not None and found is not None and known != found:
        raise InvalidUse(
            f"stream {name!r}: its times are datetimes in some rows and whole numbers in others. "
            "Make all of them one or the other, for example with mp.epoch_ms(field)."
        )
    return known or found


def node_watermarks(program: Program, event_time: EventTime, times: Mapping[str, StreamTime]) -> list[Watermark]:
    """Return the watermark of every node.

    That of a step never goes back, and lags behind its input by the age of the rows that the step may still emit.
    """
    if not program.clocks and not event_time.reached:
        return [Watermark()] * len(program.nodes)  # no node has ever had event time
    found: list[Watermark] = []
    for node in program.nodes:
        clock = program.clocks.get(node.id)
        if clock is not None:
            time = times.get(clock[0], StreamTime())
            found.append(Watermark(time.watermark, time.unit, clock[0] in event_time.asleep))
        elif isinstance(node.op, StepChanges):  # rows without event time
            found.append(Watermark())
        elif isinstance(node.op, (SideOutput, DeadLetters)):
            before = found[node.inputs[0]] if node.inputs else Watermark()
            found.append(Watermark(None, before.unit))
        elif isinstance(node.op, Read):
            found.append(Watermark())
        elif isinstance(node.op, StatefulStep):
            found.append(_output_watermark(node.op, input_watermark(program, event_time, found, node.id)))
        else:
            found.append(_lowest([found[i] for i in node.inputs]))
    return found


def input_watermark(program: Program, event_time: EventTime, known: Sequence[Watermark], node: int) -> Watermark:
    """Return the watermark of the rows that come to a step, from those of the nodes before it."""
    found = _lowest([known[i] for i in program.nodes[node].inputs])
    op = program.nodes[node].op
    assert isinstance(op, StatefulStep)
    floor = event_time.reached.get(op.step.name)
    if floor is None or (found.at is not None and found.at >= floor):
        return found
    return replace(found, at=floor)


def _lowest(marks: list[Watermark]) -> Watermark:
    units = {mark.unit for mark in marks if mark.unit is not None}
    if len(units) > 1:
        raise InvalidUse(
            "streams whose times are datetimes and streams whose times are whole numbers meet here, in a union or a "
            "join. Give all of them one kind of time, for example with mp.epoch_ms(field)."
        )
    unit = units.pop() if units else None
    awake = [mark for mark in marks if not mark.asleep]
    if awake:
        at = None if any(mark.at is None for mark in awake) else min(mark.at for mark in awake if mark.at is not None)
        return Watermark(at, unit)
    return Watermark(max((mark.at for mark in marks if mark.at is not None), default=None), unit, asleep=True)


def _output_watermark(op: StatefulStep, mark: Watermark) -> Watermark:
    if mark.at is None or mark.unit is None:
        return mark
    if op.step.watermark_lag is None:
        return replace(mark, at=None)
    lag = sum(span(held, mark.unit, f"{op.step.kind}({op.step.name!r})") for held in op.step.watermark_lag)
    return replace(mark, at=mark.at - lag)


@dataclass(frozen=True)
class BatchTimes:
    """The event time of a program in one batch."""

    ends: dict[str, StreamTime]  # stream → its time as the batch ends
    began: list[Watermark]  # of every node, as the batch begins
    steps: dict[int, BatchTime]  # node of a step → the times of the batch, as the step sees them


def batch_times(program: Program, event_time: EventTime, now: float, headers: Sequence[ReadHeader] = ()) -> BatchTimes:
    """Return the event time of a batch. The first stage knows from the headers of the reading tasks how it ends."""
    ends = event_time.ends
    if ends is None:
        ends = times_after_reading(program, event_time, headers)
    began = node_watermarks(program, event_time, event_time.times)
    ended = node_watermarks(program, event_time, ends)
    steps = {}
    for node in program.nodes:
        if isinstance(node.op, StatefulStep):
            end = input_watermark(program, event_time, ended, node.id)
            steps[node.id] = BatchTime(
                now=now,
                unit=end.unit,
                start_watermark=input_watermark(program, event_time, began, node.id).at,
                end_watermark=MAX_TICKS if event_time.final else end.at,  # at the end of the input, all times are over
                expiry_watermark=end.at,
                is_final=event_time.final,
            )
    return BatchTimes(ends, began, steps)


def event_time_fields(
    program: Program, event_time: EventTime, before: Record, times: dict[str, StreamTime], closed: Mapping[str, int]
) -> dict[str, Any]:
    """Return what the record of a batch says of event time.

    `times` are those at the end of the batch, and `closed` is what the end of the input has closed in each step.
    """
    return {
        "watermarks": times,
        "reached": _reached_watermarks(program, event_time, times, closed),
        "began": _event_time_entry(event_time, before.watermarks),
    }


def _reached_watermarks(
    program: Program, event_time: EventTime, times: Mapping[str, StreamTime], closed: Mapping[str, int]
) -> dict[str, int]:
    """Return the highest watermark that every step has worked with, for the record.

    The end of the input closes everything that is open, without a watermark: `closed` keeps it closed.
    """
    known = node_watermarks(program, event_time, times)
    found = dict(event_time.reached)
    for node in program.nodes:
        if isinstance(node.op, StatefulStep):
            name = node.op.step.name
            at = max(
                (
                    t
                    for t in (input_watermark(program, event_time, known, node.id).at, closed.get(name))
                    if t is not None
                ),
                default=None,
            )
            if at is not None:
                found[name] = at
    return found


def _event_time_entry(event_time: EventTime, before: Mapping[str, StreamTime]) -> Began | None:
    """Return what a record says of the event time at which its batch began; None if the record before it says so."""
    moved = {name: time for name, time in event_time.times.items() if before.get(name) != time}
    idle = {name: sorted(partitions) for name, partitions in event_time.idle.items() if partitions}
    found = Began(moved, idle, sorted(event_time.asleep), event_time.final)
    return None if found == Began() else found


def is_due(
    program: Program,
    event_time: EventTime,
    due: Mapping[str, tuple[int | None, int | None]],
    now: float,
) -> bool:
    """Return whether a timer, a window or an expiry is due although no row has come."""
    known = node_watermarks(program, event_time, event_time.times)
    for node in program.nodes:
        if isinstance(node.op, StatefulStep):
            event, wall = due.get(node.op.step.name, (None, None))
            at = input_watermark(program, event_time, known, node.id).at
            if event is not None and (event_time.final or (at is not None and at >= event)):
                return True
            if wall is not None and wall <= now * 1_000_000:
                return True
    return False


@dataclass(frozen=True)
class SourceAnswers:
    """What the sources answered when they were asked for the plan of a batch."""

    coming: Mapping[str, set[str]]  # stream → the partitions that the batch reads from
    asked: float  # when they were asked, on the monotonic clock
    only: frozenset[str] | None = None  # the streams that were asked; None means all
    unsure: frozenset[str] = frozenset()  # streams of which a partition that is not in `coming` may have rows, too


@dataclass
class Quiet:
    """Counts for how long no row has come from each source partition.

    Quiet time is the time between two plans that both found nothing for a partition, and one such pair adds at most
    `longest` seconds. Time in which the app did not plan (a long batch, a retry, a full delivery queue, a stopped
    process, down-time) is therefore never counted as quiet.
    """

    longest: float = math.inf
    _seconds: dict[tuple[str, str], float] = field(default_factory=dict)  # counted so far, per clock and partition
    _empty: frozenset[tuple[str, str]] = frozenset()  # what the last plan found nothing for
    _planned: float | None = None  # when the sources were asked for the last plan

    def event_time(
        self, program: Program, times: Mapping[str, StreamTime], answers: SourceAnswers, *, final: bool = False
    ) -> EventTime:
        """Return event time as a batch begins, from that of the last record and what the sources answered."""
        coming, planned, only, unsure = answers.coming, answers.asked, answers.only, answers.unsure
        found = dict(times)
        idle: dict[str, frozenset[str]] = {}
        asleep: set[str] = set()
        empty: set[tuple[str, str]] = set()
        passed = 0.0 if self._planned is None else min(max(0.0, planned - self._planned), self.longest)
        for name, read in program.clocks.values():
            if read.idle_after is None:
                continue
            held = found.get(name, StreamTime())
            partitions = set(held.newest) or {WHOLE}
            if only is not None and read.stream not in only:
                for p in partitions:
                    self._seconds.pop((name, p), None)
                continue
            here = {clock_partition(name, read, p) for p in coming.get(read.stream, ())}
            here |= {WHOLE} if here else set()
            for p in partitions - here:
                if read.stream not in unsure:
                    empty.add((name, p))
                    if (name, p) in self._empty:
                        self._seconds[name, p] = self._seconds.get((name, p), 0.0) + passed
            quiet = {p: self._seconds.get((name, p), 0.0) - read.idle_after for p in partitions}
            gone = frozenset(p for p in partitions if quiet[p] >= 0)
            if gone and held.newest and held.unit is not None:
                if gone == partitions:
                    # No partition has rows: time goes on at the pace of the clock, one whole number per second.
                    pace = min(quiet.values()) * (1_000_000 if held.unit == "instant" else 1)
                    at = max(held.newest.values()) + int(pace)
                else:
                    at = min(time for p, time in held.newest.items() if p not in gone)
                at -= span(read.disorder, held.unit, "disorder")
                at = at if held.watermark is None else max(at, held.watermark)
                found[name] = StreamTime(held.unit, at, held.newest)
            for p in partitions & here:
                self._seconds.pop((name, p), None)
            idle[name] = gone - here
            if gone == partitions and not here:
                asleep.add(name)
        self._empty, self._planned = frozenset(empty), planned
        return EventTime(found, idle, frozenset(asleep), final=final)


def clock_partition(name: str, read: Read, partition: str) -> str:
    """Return the name of a source partition in the time `name`; a `with_time` has a time of its own."""
    return partition if name == read.stream else f"{read.stream}:{partition}"
