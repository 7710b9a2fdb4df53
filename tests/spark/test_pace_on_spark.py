"""What a batch reads, where a run ends and what counts as quiet, on Spark."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millpond as mp
from millpond.clock import SystemClock
from millpond.driver.loop import Settings
from millpond.log.ledger import Ledger

pytestmark = pytest.mark.slow


def write(path: Path, rows: list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))


def app_in(folder: Path) -> mp.App:
    return mp.App("paced", str(folder / "state"), partitions=2, local_dir=str(folder / "local"))


@pytest.mark.parametrize("slow", ["plan before", "commit before"])
def test_rows_in_order_are_not_late_however_long_a_batch_takes(spark: SparkSession, tmp_path: Path, slow: str) -> None:
    write(tmp_path / "in" / "a.jsonl", [{"at": 1_700_000_000_000 + n, "pad": "x" * 70} for n in range(20_000)])
    app, late, slept = app_in(tmp_path), mp.sinks.memory(), []
    rows = app.stream("rows", mp.sources.files(tmp_path / "in"), timestamp=mp.epoch_ms("at"), idle_after="500ms")
    rows.late.to("late", late)

    def hook(step: str, when: str) -> None:
        if f"{step} {when}" == slow and len(slept) < 4:  # a stopped process, a slow sink, a long batch
            slept.append(time.sleep(1.2))

    mp.lowlevel.run_with(app, Settings("caught-up", every=0.1, max_rows=5_000), spark, hook)
    assert late.rows == []


def test_a_run_that_catches_up_ends_where_the_input_ended_when_it_began(spark: SparkSession, tmp_path: Path) -> None:
    app, rows, plans = app_in(tmp_path), [{"n": 1}], []
    write(tmp_path / "in" / "a.jsonl", [{"n": 1}, {"n": 2}])
    began = time.time() - 2
    streams = {
        "rate": mp.sources.rate(50, start=began),
        "rows": mp.sources.rows(rows),
        "files": mp.sources.files(tmp_path / "in"),
    }
    for name, source in streams.items():
        app.stream(name, source).key_by(k=lambda row: 0).aggregate(f"{name} count", n=mp.count())

    def hook(step: str, when: str) -> None:
        if (step, when) == ("plan", "before"):
            plans.append(step)
            assert len(plans) < 60, "the run goes after what arrives"
            rows.append({"n": 1})
            write(tmp_path / "in" / "a.jsonl", [{"n": 3}])
            write(tmp_path / "in" / f"new-{len(plans)}.jsonl", [{"n": 4}])

    mp.lowlevel.run_with(app, Settings("caught-up", every=0.1), spark, hook)
    assert app.state("rows count").get(0) == {"n": 1}
    assert app.state("files count").get(0) == {"n": 2}
    assert 100 <= app.state("rate count").get(0)["n"] < 50 * (time.time() - began)

    mp.lowlevel.run_with(app, Settings("caught-up", every=0.1), spark)  # the next one reads what came meanwhile
    assert app.state("rows count").get(0) == {"n": 1 + len(plans)}
    assert app.state("files count").get(0) == {"n": 2 + 2 * len(plans)}


def test_no_batch_reads_more_rows_than_max_rows(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    lines = [b'{"k": "%04d", "n": %06d, "x": 123}\n' % (n % 1000, n + 100_000) for n in range(300_000)]
    (tmp_path / "in" / "a.jsonl").write_bytes(b"".join(lines))
    app = app_in(tmp_path)
    app.stream("rows", mp.sources.files(tmp_path / "in")).key_by("k").aggregate("sum", n=mp.count(), last=mp.last("n"))
    app.run(until="caught-up", spark=spark, max_rows=100_000)
    ledger = Ledger(mp.lowlevel.storage(app), "paced", SystemClock())
    newest = ledger.newest()
    assert newest is not None
    sizes = [record.rows["rows"] for record in ledger.between(0, newest.number) if record.rows]
    assert max(sizes) <= 100_000 and sum(sizes) == 300_000 and len(sizes) <= 5
    assert app.state("sum").get("0999") == {"n": 300, "last": 399_999}
