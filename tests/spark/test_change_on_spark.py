"""State of an older version on Spark: what is met is migrated by whichever worker meets it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from folders import held, write
from pyspark.sql import SparkSession

import millpond as mp

KEYS = [f"k{n}" for n in range(40)]


def counted(version: int) -> Any:
    def count(key: str, row: dict[str, Any], state: Any) -> Any:
        if version == 1:
            return {**row, "n": state + 1}, state + 1
        return {**row, "n": state["n"] + 1}, {**state, "n": state["n"] + 1}

    return count


def as_record(n: int) -> dict[str, int]:
    return {"n": n * 100, "version": 2}


def with_unit(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "unit": "cent"}


def app_of(folder: Path, version: int, lazily: bool = True) -> mp.App:
    app = mp.App("change", str(folder / "state"), partitions=4, local_dir=str(folder / "local"))

    def how(f: Any) -> dict[str, Any]:
        if version == 1:
            return {}
        return {"version": 2, "migrate": mp.lazily({1: f}) if lazily else {1: f}}

    prices = app.stream("prices", mp.sources.files(folder / "prices", format="jsonl")).key_by("key")
    table = app.table("price", prices, everywhere=True, **how(with_unit))
    rows = app.stream("rows", mp.sources.files(folder / "rows", format="jsonl")).key_by("key")
    initial = 0 if version == 1 else {"n": 0, "version": 2}
    numbered = rows.stateful_map("count", counted(version), initial=initial, **how(as_record))
    found = numbered.lookup("unit", table, merge=lambda row, price: {**row, "unit": (price or {}).get("unit")})
    found.to("out", mp.sinks.files(folder / "out"))
    return app


@pytest.mark.parametrize("lost", [False, True], ids=["replicas kept", "replicas lost"])
def test_state_is_migrated_where_it_is_met_and_seen_in_its_new_shape_everywhere(
    spark: SparkSession, tmp_path: Path, lost: bool
) -> None:
    write(tmp_path / "prices" / "1.jsonl", [{"key": key, "price": n} for n, key in enumerate(KEYS)])
    write(tmp_path / "rows" / "1.jsonl", [{"key": key, "of": 1} for key in KEYS])
    app_of(tmp_path, 1).run(until="caught-up", spark=spark)
    if lost:
        shutil.rmtree(tmp_path / "local")

    some = KEYS[::3]
    write(tmp_path / "rows" / "2.jsonl", [{"key": key, "of": 2} for key in some])
    write(tmp_path / "prices" / "2.jsonl", [{"key": KEYS[0], "price": 7}])
    app_of(tmp_path, 2).run(until="caught-up", spark=spark)
    second = sorted((row["key"], row["n"], row["unit"]) for row in held(tmp_path / "out") if row["of"] == 2)
    # what a row brings is of the newest version already, and this one says nothing of a unit
    assert second == sorted((key, 101, None if key == KEYS[0] else "cent") for key in some)
    counts = dict(app_of(tmp_path, 2).state("count").items())
    assert counts == {key: {"n": 101 if key in some else 100, "version": 2} for key in KEYS}

    app_of(tmp_path, 2, lazily=False).run(until="caught-up", spark=spark)
    assert dict(app_of(tmp_path, 2, lazily=False).state("count").items()) == counts
    assert app_of(tmp_path, 2, lazily=False).verify().ok
