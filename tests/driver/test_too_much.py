"""A batch whose rows grow to more than can be moved at once is read in smaller pieces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_drivers import driver_of, run_to_end

import millpond as mp
from millpond.storage import open_storage
from millpond.task import read_task as tasks


@pytest.fixture(autouse=True)
def little_can_be_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "MOST_BLOB_BYTES", 20_000)


def growing(folder: Path, rows: list[Any], copies: int, sink: Any) -> mp.App:
    """Every row becomes several of a hundred bytes and more."""
    app = mp.App("growing", str(folder / "state"), partitions=1, local_dir=str(folder / "local"))
    stream = app.stream("rows", mp.sources.rows(rows)).flat_map(lambda n: [{"n": n, "pad": "x" * 100}] * copies)
    stream.key_by(lambda row: "all").aggregate("seen", n=mp.count(), sum=mp.sum("n")).to("out", sink)
    return app


def test_rows_that_grow_too_much_are_read_in_smaller_batches(tmp_path: Path) -> None:
    sink = mp.sinks.memory()
    app = growing(tmp_path, list(range(200)), copies=10, sink=sink)
    driver = driver_of(app, open_storage(app.state_dir), tmp_path / "local")
    assert run_to_end(driver) >= 200 * 10 * 100 // 20_000
    assert app.state("seen").get("all") == {"n": 2000, "sum": 10 * sum(range(200))}
    assert len(sink.rows) == 2000


def test_a_row_that_alone_is_too_much_is_an_error_that_names_its_stream(tmp_path: Path) -> None:
    app = growing(tmp_path, [1, 2], copies=1000, sink=mp.sinks.memory())
    driver = driver_of(app, open_storage(app.state_dir), tmp_path / "local")
    with pytest.raises(mp.errors.InvalidUse, match=r"stream 'rows': a task made \d+ bytes of the rows that it read"):
        run_to_end(driver)
