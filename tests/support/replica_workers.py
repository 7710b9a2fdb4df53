"""A small log and what processes do with a replica of it; a module of its own, so that others can import it."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from millpond.log.segment import Change
from millpond.replica import View
from millpond.replica.catch_up import open_replica
from millpond.replica.cell_format import Damaged
from millpond.replica.lmdb_store import RecordChanges, close_below

T = TypeVar("T")
Cells = dict[tuple[str, bytes, bytes], bytes]


def replicated(
    folder: Path, missing: Callable[[int], Iterable[RecordChanges]], use: Callable[[View], T], *, rebuild: bool = False
) -> T:
    """Read a replica that has caught up; if it turns out to be damaged, read it again once it is rebuilt."""
    try:
        with open_replica(folder, missing, rebuild) as view:
            return use(view)
    except Damaged:
        with open_replica(folder, missing, rebuild=True) as view:
            return use(view)


def key(i: int) -> bytes:
    return b'"key-%06d"' % (2 * i)


def records(keys: int, count: int) -> list[RecordChanges]:
    """A log: all keys, then changes and deletions here and there, in two steps."""
    chance = random.Random(keys)
    found: list[RecordChanges] = []
    for number in range(count):
        touched = range(keys) if number == 0 else sorted(chance.sample(range(keys), keys // 10))
        totals = [
            Change(key(i), b"", None if number and chance.random() < 0.1 else b"%d" % (number * 100_000 + i))
            for i in touched
        ]
        seen = [Change(key(i), b"v:" + b"n" * (i % 300), b'"%d"' % number) for i in touched if i % 5 == 0]
        found.append(RecordChanges(number, {"total": totals, "seen": seen} if number != 3 else {}))
    return found


def folded(log: Iterable[RecordChanges]) -> Cells:
    cells: Cells = {}
    for _, changes, *_ in log:
        for step, found in changes.items():
            for at, cell, value, *_ in found:
                if value is None:
                    cells.pop((step, at, cell), None)
                else:
                    cells[step, at, cell] = value
    return cells


def after(log: list[RecordChanges], asked: list[int] | None = None) -> Any:
    """`missing` of a replica of this log; notes from where it was asked."""

    def missing(position: int) -> Iterator[RecordChanges]:
        if asked is not None:
            asked.append(position)
        return iter(log[position + 1 :])

    return missing


def wrong(view: View, expected: Cells, keys: int) -> str:
    """What a reader would get wrong, one way or the other; nothing if all is right."""
    for (step, at, cell), value in expected.items():
        if view.get(step, at, cell) != value:
            return f"{step} {at!r} {cell!r}: {view.get(step, at, cell)!r}, expected {value!r}"
    present = [key(i) for i in range(keys)]
    if view.get_many("total", present) != [expected.get(("total", at, b"")) for at in present]:
        return "get_many"
    if any(view.get("total", b'"key-%06d"' % (2 * i + 1)) is not None for i in range(0, keys, 50)):
        return "a key that nobody wrote"
    for step in ("total", "seen"):
        if {(step, *found[:2]): found[2] for found in view.scan(step)} != {
            at: value for at, value in expected.items() if at[0] == step
        }:
            return f"scan of {step}"
    return ""


def flip_and_read(folder: str, keys: int, flips: int) -> None:
    """Flip bytes of the store one after the other, under an open handle or a closed one, and read all of it."""
    log = records(keys, 8)
    chance = random.Random(flips)
    expected, more = folded(log), folded(log[:-1])
    place = Path(folder, "p")
    for flip in range(flips):
        short = flip % 3 == 0  # sometimes there is still a record to apply
        replicated(place, after(log[:-1] if short else log), lambda view: None)
        (generation,) = place.glob("g*")
        file = generation / "data.mdb"
        size = file.stat().st_size
        page = 4096 * chance.randrange(size // 4096)
        at = page + (chance.randrange(16) if flip % 2 else chance.randrange(4096))
        if flip % 4 < 2:
            close_below(folder)
        with open(file, "r+b") as opened:
            opened.seek(at)
            byte = opened.read(1)[0]
            opened.seek(at)
            opened.write(bytes([byte ^ chance.choice([0xFF, 1 << chance.randrange(8)])]))
        found = replicated(place, after(log), lambda view: wrong(view, expected, keys))
        if found:
            sys.exit(f"flip {flip} at byte {at} of {size}: {found}")
    assert more != expected
    print("right after", flips, "flips")


def catch_up(folder: str, keys: int, count: int, results: Any) -> None:
    """Bring the replica up to date, record by record, as others do the same."""
    log = records(keys, count)
    asked: list[int] = []
    for upto in range(1, count + 1):
        expected = folded(log[:upto])

        def read(view: View, expected: Cells = expected, upto: int = upto) -> str:
            return "" if view.position >= upto else wrong(view, expected, keys)

        found = replicated(Path(folder, "p"), after(log[:upto], asked), read)
        if found:
            break
    results.put((found, asked.count(-1)))


def die_while_applying(folder: str, keys: int, count: int, at: int) -> None:
    """Killed in the middle of the log, between two records."""

    def fatal(position: int) -> Iterator[RecordChanges]:
        for record in records(keys, count)[position + 1 :]:
            if record[0] == at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield record

    replicated(Path(folder, "p"), fatal, lambda view: None)


def die_while_reading(folder: str) -> None:
    """Killed with a version of the store in hand."""

    def use(view: View) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    replicated(Path(folder, "p"), lambda position: (), use)


if __name__ == "__main__":
    flip_and_read(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
