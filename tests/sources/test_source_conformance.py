"""Every source of ours keeps the promises of the protocol."""

from __future__ import annotations

import csv
import gzip
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millpond import sources
from millpond.testing.source_suite import SourceSuite


def as_jsonl(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


class TestJsonLinesInOneFile(SourceSuite):
    @pytest.fixture
    def make_source(self, tmp_path):
        def make(rows):
            (tmp_path / "a.jsonl").write_text(as_jsonl(rows))
            return sources.files(tmp_path / "a.jsonl")

        return make

    @pytest.fixture
    def add_rows(self, tmp_path):
        def add(rows):
            with open(tmp_path / "a.jsonl", "a") as file:
                file.write(as_jsonl(rows))

        return add


class TestJsonLinesInAFolder(SourceSuite):
    """Three rows to a file, and a new file for what comes later."""

    @pytest.fixture
    def make_source(self, tmp_path, add_rows):
        def make(rows):
            add_rows(rows)
            return sources.files(tmp_path, format="jsonl")

        return make

    @pytest.fixture
    def add_rows(self, tmp_path):
        def add(rows):
            for i in range(0, len(rows), 3):
                count = len(list(tmp_path.iterdir()))
                (tmp_path / f"{count:03d}.jsonl").write_text(as_jsonl(rows[i : i + 3]))

        return add


class TestJsonLinesInAGlob(TestJsonLinesInAFolder):
    @pytest.fixture
    def make_source(self, tmp_path, add_rows):
        def make(rows):
            add_rows(rows)
            return sources.files(tmp_path / "*.jsonl")

        return make


class TestPackedJsonLines(SourceSuite):
    """A gzip file that grows by further members, as `gzip >> file` makes it."""

    @pytest.fixture
    def make_source(self, tmp_path):
        def make(rows):
            (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(as_jsonl(rows).encode()))
            return sources.files(tmp_path / "a.jsonl.gz")

        return make

    @pytest.fixture
    def add_rows(self, tmp_path):
        def add(rows):
            with open(tmp_path / "a.jsonl.gz", "ab") as file:
                file.write(gzip.compress(as_jsonl(rows).encode()))

        return add


class TestCsv(SourceSuite):
    @pytest.fixture
    def make_source(self, tmp_path, add_rows):
        def make(rows):
            (tmp_path / "a.csv").write_text("id,text\n")
            add_rows(rows)
            return sources.files(tmp_path / "a.csv")

        return make

    @pytest.fixture
    def add_rows(self, tmp_path):
        def add(rows):
            with open(tmp_path / "a.csv", "a", newline="") as file:
                csv.DictWriter(file, ["id", "text"]).writerows(rows)

        return add

    def some_rows(self, first, count):
        return [{"id": str(i), "text": f'row "{i}",\nand more'} for i in range(first, first + count)]


class TestParquet(SourceSuite):
    """Ten rows to a file, four to a row group."""

    @pytest.fixture
    def make_source(self, tmp_path, add_rows):
        def make(rows):
            add_rows(rows)
            return sources.files(tmp_path, format="parquet")

        return make

    @pytest.fixture
    def add_rows(self, tmp_path):
        def add(rows):
            for i in range(0, len(rows), 10):
                count = len(list(tmp_path.iterdir()))
                table = pa.Table.from_pylist(rows[i : i + 10])
                pq.write_table(table, tmp_path / f"{count:03d}.parquet", row_group_size=4)

        return add


class TestRows(SourceSuite):
    plain_splits = False

    @pytest.fixture
    def held(self):
        return []

    @pytest.fixture
    def make_source(self, held):
        def make(rows):
            held[:] = rows
            return sources.rows(held)

        return make

    @pytest.fixture
    def add_rows(self, held):
        return held.extend

    @pytest.fixture
    def reopen(self, held):
        return lambda source: sources.rows(list(held))


@dataclass
class Items:
    """A function that a process can load by its name, as pickle needs it: it returns an iterator over some rows."""

    rows: list[Any]

    def __call__(self):
        return iter(self.rows)


@dataclass
class SeekableItems:
    rows: list[Any]

    def __call__(self, start):
        return iter(self.rows[start:])


class TestIterators(SourceSuite):
    @pytest.fixture
    def make_source(self):
        return lambda rows: sources.iterate(Items(list(rows)))


class TestIteratorsThatCanSeek(SourceSuite):
    @pytest.fixture
    def make_source(self):
        return lambda rows: sources.iterate(SeekableItems(list(rows)))


class TestRate(SourceSuite):
    """The rows of a rate are there when their time has come, so the clock makes them."""

    START = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)

    @pytest.fixture
    def make_source(self, clock):
        def make(rows):
            source = sources.rate(10, start=clock.now())
            clock.advance(len(rows) / 10)
            return source

        return make

    @pytest.fixture
    def add_rows(self, clock):
        return lambda rows: clock.advance(len(rows) / 10)

    def some_rows(self, first, count):
        return [{"timestamp": self.START + timedelta(seconds=i / 10), "value": i} for i in range(first, first + count)]
