"""Every sink of ours keeps the promises of the protocol."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest

from millpond import sinks
from millpond.testing.sink_suite import SinkSuite


def in_order(folder):
    return sorted(path for path in folder.iterdir() if path.is_file()) if folder.exists() else []


class TestJsonLines(SinkSuite):
    @pytest.fixture
    def make_sink(self, tmp_path):
        return lambda: sinks.files(tmp_path / "out")

    @pytest.fixture
    def held(self, tmp_path):
        def read(sink):
            files = in_order(tmp_path / "out")
            return [json.loads(line) for file in files for line in file.read_text().splitlines()]

        return read


class TestParquet(SinkSuite):
    @pytest.fixture
    def make_sink(self, tmp_path):
        return lambda: sinks.files(tmp_path / "out", format="parquet")

    @pytest.fixture
    def held(self, tmp_path):
        def read(sink):
            files = in_order(tmp_path / "out")
            return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]

        return read


class TestMemory(SinkSuite):
    @pytest.fixture
    def make_sink(self):
        return sinks.memory

    @pytest.fixture
    def held(self):
        return lambda sink: sink.rows


class TestConsole(SinkSuite):
    counts_once = False

    @pytest.fixture
    def make_sink(self):
        return sinks.console

    @pytest.fixture
    def held(self, capsys):
        def read(sink):
            return [json.loads(line.split(": ", 1)[1]) for line in capsys.readouterr().out.splitlines()]

        return read


class TestFunction(SinkSuite):
    """A function that keeps what it is given by the delivery's id, as the docs say it should."""

    @pytest.fixture(autouse=True)
    def empty(self):
        KEPT.clear()

    @pytest.fixture
    def make_sink(self):
        return lambda: sinks.function(keep)

    @pytest.fixture
    def held(self):
        return lambda sink: [row for rows in KEPT.values() for row in rows]


KEPT = {}


def keep(rows, delivery):
    KEPT[delivery.id] = rows


class TestFunctionInWorkers(TestFunction):
    @pytest.fixture
    def make_sink(self):
        return lambda: sinks.function(keep, where="workers")
