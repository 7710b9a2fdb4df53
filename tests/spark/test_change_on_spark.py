"""State of an older version on Spark: what is met is migrated by whichever worker meets it."""

from __future__ import annotations

import dataclasses
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


def account(fields: list[Any]) -> Any:
    """The class of the state, with fields of its own; workers are sent it by value, as one of the program file."""
    made: Any = dataclasses.make_dataclass("Account", fields)
    made.__module__, made.__qualname__ = "__main__", "Account"
    return made


def accounts(folder: Path, cls: Any, values: list[Any], declared: bool, **how: Any) -> mp.App:
    app = mp.App("accounts", str(folder / "state"), partitions=2, local_dir=str(folder / "local"))
    rows = app.stream("rows", mp.sources.files(folder / "rows", format="jsonl"), on_error="dead-letter").key_by("key")

    def add(key: str, row: dict[str, Any], old: Any) -> Any:
        total = row["v"] + (0 if old is None else old.total)
        return {"key": key, "total": total}, cls(total, *values)

    if declared:
        how["type"] = cls
    else:
        app.stream("typed", mp.sources.rows([]), type=cls)
    rows.stateful_map("account", add, initial=None, **how).to("out", mp.sinks.files(folder / "out"))
    app.dead_letters.to("dead", mp.sinks.files(folder / "dead"))
    return app


@pytest.mark.parametrize("declared", [True, False], ids=["before the first batch", "when it is met"])
def test_a_class_that_gained_a_required_field_loses_no_row_and_is_migrated(
    spark: SparkSession, tmp_path: Path, declared: bool
) -> None:
    old = account([("total", int)])
    write(tmp_path / "rows" / "1.jsonl", [{"key": "a", "v": 1}, {"key": "b", "v": 2}])
    accounts(tmp_path, old, [], declared).run(until="caught-up", spark=spark)

    new = account([("total", int), ("currency", str)])
    write(tmp_path / "rows" / "2.jsonl", [{"key": "a", "v": 10}])
    with pytest.raises(mp.errors.Incompatible, match=r"step 'account', key '[ab]': .*'currency'.*migrate=.*rebuild"):
        accounts(tmp_path, new, ["EUR"], declared).run(until="caught-up", spark=spark)
    assert held(tmp_path / "dead") == [] and len(held(tmp_path / "out")) == 2

    def upgrade(fields: dict[str, Any]) -> Any:
        return new(fields["total"] * 100, "EUR")

    for migrate in (mp.lazily({1: upgrade}), {1: upgrade}):
        app = accounts(tmp_path, new, ["EUR"], declared, version=2, migrate=migrate)
        app.run(until="caught-up", spark=spark)
        assert dict(app.state("account").items()) == {"a": new(110, "EUR"), "b": new(200, "EUR")}
    assert held(tmp_path / "out")[-1] == {"key": "a", "total": 110} and held(tmp_path / "dead") == []
