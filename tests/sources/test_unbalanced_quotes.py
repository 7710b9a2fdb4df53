"""A quote in a CSV file that is never closed takes no other row with it, and does not stop the source in silence."""

from __future__ import annotations

import gzip
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millpond as mp
from millpond.clock import ManualClock
from millpond.driver.commit import Driver
from millpond.driver.loop import Settings, run_driver
from millpond.driver.planning import with_snapshots
from millpond.driver.settings import DriverSettings
from millpond.runtimes.local import LocalRuntime
from millpond.storage import open_storage

BAD_LINE = 11  # where the row that begins with a quote stands


def csv_of(rows: int, bad: int = BAD_LINE) -> str:
    lines = ["id,name", *(f"{n},name {n}" for n in range(rows))]
    lines[bad - 1] = f'{bad - 2},"name {bad - 2}'
    return "\n".join(lines) + "\n"


class Stop(threading.Event):
    """Time passes while it is waited for; `meanwhile` is what happens then."""

    def __init__(self, clock: ManualClock, meanwhile: Callable[[], object] | None) -> None:
        super().__init__()
        self.clock, self.meanwhile, self.waits = clock, meanwhile, 0

    def wait(self, timeout: float | None = None) -> bool:
        self.waits += 1
        self.clock.advance(timeout or 0.0)
        if self.meanwhile is not None:
            self.meanwhile()
        return self.is_set()


class Reader:
    """Runs of an app over a CSV file, each until it is caught up."""

    def __init__(self, folder: Path, name: str = "a.csv", **how: Any) -> None:
        self.path, self.clock, self.how = folder / name, ManualClock(), how
        self.rows: list[Any] = []
        self.letters: list[Any] = []
        self.storage, self.home = open_storage("memory://"), str(folder / "local")
        self.waits = 0

    def write(self, text: str | bytes, age: float = 3600.0) -> None:
        data = text.encode() if isinstance(text, str) else text
        self.path.write_bytes(gzip.compress(data) if self.path.suffix == ".gz" else data)
        self.touch(age)

    def touch(self, age: float) -> None:
        at = self.clock.now() - age
        os.utime(self.path, (at, at))

    def run(self, meanwhile: Callable[[], object] | None = None) -> None:
        app = mp.App("quotes", partitions=1)
        rows = app.stream("rows", mp.sources.files(self.path), **self.how)
        rows.to("out", mp.sinks.function(lambda rows, delivery: self.rows.extend(rows)))
        app.dead_letters.to("dead", mp.sinks.function(lambda rows, delivery: self.letters.extend(rows)))
        program = with_snapshots(mp.lowlevel.program(app), self.clock.now())

        def make() -> Driver:
            runtime = LocalRuntime(self.storage, self.clock)
            return Driver.start(
                program, runtime, self.storage, self.clock, DriverSettings(partitions=1, home=self.home, threaded=False)
            )

        stop = Stop(self.clock, meanwhile)
        run_driver(make, Settings("caught-up", max_rows=400), stop, self.clock)
        self.waits = stop.waits

    @property
    def ids(self) -> list[int]:
        return [int(row["id"]) for row in self.rows]


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
@pytest.mark.parametrize(("rows", "bad"), [(1000, BAD_LINE), (20, BAD_LINE), (20, 21), (20, 2), (40_000, 39)])
def test_the_line_is_a_bad_row_and_all_others_are_read(tmp_path: Path, name: str, rows: int, bad: int) -> None:
    reader = Reader(tmp_path, name, on_error="dead-letter")
    reader.write(csv_of(rows, bad))
    reader.run()
    assert reader.ids == [n for n in range(rows) if n != bad - 2]
    [letter] = reader.letters
    assert f"{reader.path}, line {bad}: expected a second quote that closes the field" in letter["error"]
    assert letter["row"] == f'{bad - 2},"name {bad - 2}'
    assert reader.waits == 0


def test_it_stops_an_app_that_stops_at_bad_rows(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.write(csv_of(1000))
    with pytest.raises(mp.errors.StepFailed, match=r"a\.csv, line 11: expected a second quote"):
        reader.run()


def test_every_quote_without_an_end_is_a_bad_row_of_its_own(tmp_path: Path) -> None:
    reader = Reader(tmp_path, on_error="dead-letter")
    long = "x" * 140_000
    reader.write(f'id,name\n0,"a\n1,b\n2,{long}\n3,"d\n4,e\n')
    reader.run()
    assert reader.ids == [1, 4]
    assert [letter["error"].partition(": ")[0][-6:] for letter in reader.letters] == ["line 2", "line 4", "line 5"]
    assert "none came in 131072 characters" in reader.letters[0]["error"]


def test_a_file_that_was_just_written_is_given_time(tmp_path: Path) -> None:
    reader = Reader(tmp_path, on_error="dead-letter")
    reader.write(csv_of(1000), age=0.0)
    reader.run()
    assert reader.waits > 0
    assert reader.ids == [n for n in range(1000) if n != 9]
    assert len(reader.letters) == 1


def test_a_writer_that_goes_on_has_all_the_time_it_needs(tmp_path: Path) -> None:
    """The rest is beyond the end that the run has, so the next one reads it."""
    reader = Reader(tmp_path, on_error="dead-letter")
    reader.write('id,name\n0,a\n1,"two\n', age=0.0)
    written = []

    def finish() -> None:
        if not written:
            written.append(reader.write('id,name\n0,a\n1,"two\nlines"\n2,c\n', age=0.0))

    reader.run(finish)
    assert (reader.ids, reader.letters) == ([0], [])
    reader.run()
    assert (reader.ids, reader.letters) == ([0, 1, 2], [])
    assert reader.rows[1]["name"] == "two\nlines"


@pytest.mark.parametrize("age", [0.0, 3600.0])
def test_a_file_that_ends_in_the_middle_of_a_line_too_is_an_error(tmp_path: Path, age: float) -> None:
    """A writer may be in the middle of it, so no row is given up; but nobody is told that all was read."""
    reader = Reader(tmp_path, on_error="dead-letter")
    reader.write(csv_of(1000).rstrip("\n"), age)
    with pytest.raises(mp.errors.InvalidUse, match=r"a\.csv, line 11: expected a second quote.*middle of a line"):
        reader.run()
    assert (reader.ids, reader.letters) == (list(range(9)), [])
    reader.write(csv_of(1000))
    reader.run()
    assert reader.ids == [n for n in range(1000) if n != 9]


def test_a_last_line_without_a_newline_waits_as_ever(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.write('id,name\n0,a\n1,"b', age=0.0)
    reader.run()
    assert (reader.ids, reader.waits) == ([0], 0)


def test_a_header_with_an_open_quote_is_an_error(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.write('id,"name\n0,a\n1,b\n')
    with pytest.raises(mp.errors.InvalidUse, match=r"line 1: expected a CSV header.*second quote"):
        reader.run()


def test_a_position_of_before_is_looked_at_once_more(tmp_path: Path) -> None:
    """One that an older version has left says no more than how far it came."""
    text = csv_of(1000)
    path = tmp_path / "a.csv"
    path.write_text(text)
    os.utime(path, (0, 0))
    source = mp.sources.files(path)
    first = len("id,name\n") + len("".join(f"{n},name {n}\n" for n in range(9)))
    found: dict[str, Any] = {"a.csv": {"offset": first, "seen": len(text)}}
    [split] = source.plan(found, mp.lowlevel.Limit(10_000, 1 << 30), 100.0)
    chunks = list(source.read(split))
    assert (len(chunks[0].bad), len(chunks[0].rows)) == (1, 990)  # type: ignore[arg-type]
    assert source.plan({"a.csv": chunks[-1].position}, mp.lowlevel.Limit(10_000, 1 << 30), 100.0) == []
