"""`max_rows` is kept: no batch reads more rows, whatever the source, its format and the length of its rows."""

from __future__ import annotations

import gzip
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_drivers import Lanes

import millpond as mp
from millpond.clock import ManualClock
from millpond.driver.commit import Driver
from millpond.driver.settings import DriverSettings
from millpond.runtimes.local import LocalRuntime
from millpond.storage import open_storage

MOST = 10_000
ALL = 30_000


class Wide(LocalRuntime):
    """Several reading tasks in a batch, as on Spark."""

    slots = 4


def read_all(app: mp.App, home: Path, most: int = MOST, *, ahead: bool = False) -> list[int]:
    """The rows of each batch."""
    clock, storage, found = ManualClock(), open_storage("memory://"), []
    runtime = Wide(storage, clock, ahead=ahead)
    driver = Driver.start(
        mp.lowlevel.program(app), runtime, storage, clock, DriverSettings(partitions=1, home=str(home), threaded=False)
    )
    while driver.batch(mp.lowlevel.Limit(most, 256 << 20)):
        found.append(sum(driver.last.rows.values()))
        assert len(found) < 1000
    return found


def app_over(*sources: Any) -> tuple[mp.App, list[Any]]:
    app, out = mp.App("bounded", partitions=1), []
    for number, source in enumerate(sources):
        app.stream(f"rows {number}", source).to(
            f"out {number}", mp.sinks.function(lambda rows, delivery: out.extend(rows))
        )
    return app, out


def as_lines(numbers: range, length: Callable[[int], int] = lambda n: 34) -> bytes:
    """JSON lines of these lengths, more or less, with their newlines."""
    lines = (json.dumps({"n": f"{n:05d}"}).encode() for n in numbers)
    return b"".join(line + b" " * (length(n) - len(line) - 1) + b"\n" for n, line in zip(numbers, lines, strict=True))


def numbers(rows: list[Any]) -> list[int]:
    return [int(row["n"]) for row in rows]


LENGTHS: dict[str, Callable[[int], int]] = {
    "short": lambda n: 34,
    "shortest": lambda n: 16,
    "long, then short": lambda n: 500 if n < 2_000 else 16,
    "short, then long": lambda n: 16 if n < 12_000 else 500,
    "by turns": lambda n: 16 if n // 3_000 % 2 else 200,
}


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("length", list(LENGTHS))
def test_json_lines_of_any_length(tmp_path: Path, length: str, ahead: bool) -> None:
    (tmp_path / "a.jsonl").write_bytes(as_lines(range(ALL), LENGTHS[length]))
    app, out = app_over(mp.sources.files(tmp_path / "a.jsonl"))
    sizes = read_all(app, tmp_path / "local", ahead=ahead)
    assert max(sizes) <= MOST
    assert numbers(out) == list(range(ALL))


def test_rows_of_one_length_fill_their_batches(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(as_lines(range(ALL)))
    app, _ = app_over(mp.sources.files(tmp_path / "a.jsonl"))
    assert len(read_all(app, tmp_path / "local")) == 4  # 95 parts of 100 of what is allowed, for what is not known


@pytest.mark.parametrize("kind", ["csv", "jsonl.gz", "csv.gz", "parquet", "many files", "many gz"])
def test_every_format(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    csv = "n\n" + "".join(f"{n:05d}\n" for n in range(ALL))
    if kind == "csv":
        (folder / "a.csv").write_text(csv)
    elif kind == "csv.gz":
        (folder / "a.csv.gz").write_bytes(gzip.compress(csv.encode()))
    elif kind == "jsonl.gz":
        (folder / "a.jsonl.gz").write_bytes(gzip.compress(as_lines(range(ALL))))
    elif kind == "parquet":
        pq.write_table(pa.table({"n": [f"{n:05d}" for n in range(ALL)]}), folder / "a.parquet", row_group_size=700)
    else:
        for first in range(0, ALL, 1000):
            data = as_lines(range(first, first + 1000), lambda n: 200 if n % 2000 < 1000 else 20)
            name = f"{first:05d}.jsonl"
            if kind == "many gz":
                (folder / f"{name}.gz").write_bytes(gzip.compress(data))
            else:
                (folder / name).write_bytes(data)
    app, out = app_over(mp.sources.files(folder))
    assert max(read_all(app, tmp_path / "local")) <= MOST
    assert numbers(out) == list(range(ALL))


def test_all_streams_together_keep_it(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(as_lines(range(ALL)))
    some = [{"n": n} for n in range(ALL)]
    few = [{"n": n} for n in range(10)]
    app, out = app_over(mp.sources.files(tmp_path / "a.jsonl"), mp.sources.rows(some), mp.sources.rows(few))
    sizes = read_all(app, tmp_path / "local")
    assert max(sizes) <= MOST
    assert sum(sizes) == 2 * ALL + 10 == len(out)
    assert len(sizes) <= 10  # what one stream does not want, the others have


class Heedless:
    """A source that plans all it has, whatever it is asked for, and reads it in chunks."""

    def __init__(self, count: int, chunk: int) -> None:
        self.count, self.chunk = count, chunk

    def plan(self, position: Any, limit: mp.lowlevel.Limit, now: float) -> list[mp.lowlevel.Split]:
        done = position.get("0", 0)
        return [mp.lowlevel.Split("0", done, self.count)] if done < self.count else []

    def read(self, split: mp.lowlevel.Split) -> Iterator[mp.lowlevel.Chunk]:
        for first in range(split.start, split.stop, self.chunk):
            last = min(first + self.chunk, split.stop)
            yield mp.lowlevel.Chunk([{"n": n} for n in range(first, last)], last)


def test_a_source_that_plans_too_much_is_stopped_between_two_chunks(tmp_path: Path) -> None:
    app, out = app_over(Heedless(1000, chunk=30))
    sizes = read_all(app, tmp_path, most=100)
    assert max(sizes) <= 100 and sizes[0] == 90
    assert numbers(out) == list(range(1000))


def test_a_source_that_cannot_be_stopped_goes_on_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app, out = app_over(Heedless(1000, chunk=300))
    with caplog.at_level(logging.WARNING, "millpond"):
        assert read_all(app, tmp_path, most=100) == [1000]
    assert numbers(out) == list(range(1000))
    assert [record.message for record in caplog.records] == [
        "bounded: stream 'rows 0' has more rows in a batch than max_rows=100: its source ignores limit.rows"
    ]


def test_lanes_that_are_wider_than_their_share_are_read_all_the_same(tmp_path: Path) -> None:
    app, out = app_over(Lanes({"a": [{"n": n} for n in range(50)], "b": [{"n": n} for n in range(50)]}, width=4))
    assert sum(read_all(app, tmp_path, most=4)) == 100 == len(out)
