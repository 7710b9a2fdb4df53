"""Functions that would end their worker, and migrations that raise: errors in words, at once, as in a test."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from folders import write
from pyspark.sql import SparkSession

import millpond as mp

ROWS = [{"key": f"k{n % 3}", "n": n} for n in range(9)]


def leave(row: Any) -> Any:
    sys.exit("enough")


def close(row: Any) -> Any:
    raise GeneratorExit("enough")


def fork(row: Any) -> Any:
    os.fork()
    return row


def app_of(folder: Path, f: Any = None, step: Any = None, **how: Any) -> mp.App:
    app = mp.App("ends", str(folder / "state"), partitions=2, local_dir=str(folder / "local"))
    rows = app.stream("rows", mp.sources.files(folder / "in"))
    rows = rows if f is None else rows.map(lambda row: f(row) if row["n"] == 7 else row)

    def count(key: str, row: Any, n: int) -> tuple[None, int]:
        if step is not None and row["n"] == 7:
            step(row)
        return None, n + 1

    rows.key_by("key").stateful_map("count", count, initial=0, **how)
    return app


@pytest.mark.parametrize("where", ["map", "count"])
@pytest.mark.parametrize(
    ("f", "text"), [(leave, "SystemExit: enough"), (close, "GeneratorExit: enough"), (fork, "RuntimeError: os.fork")]
)
def test_a_function_that_would_end_its_worker_fails_at_once_with_its_row(
    spark: SparkSession, tmp_path: Path, f: Any, text: str, where: str
) -> None:
    write(tmp_path / "in" / "a.jsonl", ROWS)
    began = time.monotonic()
    with pytest.raises(mp.errors.StepFailed, match=text) as caught:
        app_of(tmp_path, **{"f" if where == "map" else "step": f}).run(until="caught-up", spark=spark)
    assert (caught.value.step, caught.value.key, caught.value.row) == (where, None if where == "map" else "k1", ROWS[7])
    assert time.monotonic() - began < 30, "it was tried again"


def broken(value: int) -> int:
    if value == 3:
        raise KeyError("no such account")
    return value


@pytest.mark.parametrize("lazily", [False, True])
def test_a_migration_that_raises_names_step_key_and_value(spark: SparkSession, tmp_path: Path, lazily: bool) -> None:
    write(tmp_path / "in" / "a.jsonl", ROWS)
    app_of(tmp_path).run(until="caught-up", spark=spark)
    write(tmp_path / "in" / "b.jsonl", ROWS)
    migrate: Any = mp.lazily({1: broken}) if lazily else {1: broken}
    said = r"step 'count': its migration raised KeyError: 'no such account', for the key 'k\d' and the value 3\."
    with pytest.raises(mp.errors.Incompatible, match=said):
        app_of(tmp_path, version=2, migrate=migrate).run(until="caught-up", spark=spark)
    assert dict(app_of(tmp_path).state("count").items()) == {"k0": 3, "k1": 3, "k2": 3}
