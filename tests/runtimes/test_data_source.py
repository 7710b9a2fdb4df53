"""The data source `millpond`: its options, its columns and its rows, without a JVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import millpond as mp
from millpond.runtimes.spark.data_source import MillpondSource
from millpond.testing.replica_suite import APP, GrowingLog


@pytest.fixture
def log(tmp_path: Path) -> GrowingLog:
    log = GrowingLog(tmp_path / "log")
    log.send_some(5)
    return log


def source(log: GrowingLog, **options: Any) -> MillpondSource:
    given = {"path": log.app.state_dir, "app": APP, "step": "total", **options}
    return MillpondSource({name: str(value) for name, value in given.items() if value is not None})


def parts(found: MillpondSource, schema: Any = None) -> list[list[dict[str, Any]]]:
    """The rows of each partition, as Spark would read them."""
    reader = found.reader(schema or found.schema())
    return [[row for batch in reader.read(part) for row in batch.to_pylist()] for part in reader.partitions()]


def rows(found: MillpondSource, schema: Any = None) -> list[dict[str, Any]]:
    return [row for part in parts(found, schema) for row in part]


def state(found: MillpondSource) -> dict[str, Any]:
    return {row["key"]: row["value"] for row in rows(found)}


def test_state_is_read_a_partition_at_a_time_with_its_types(log: GrowingLog) -> None:
    found = source(log)
    assert found.schema().simpleString() == "struct<key:string,value:bigint,batch:bigint>"
    assert len(parts(found)) == log.newest.partitions == 3
    assert state(found) == log.state("total")
    assert {row["batch"] for row in rows(found)} == {log.newest.number}


def test_values_that_are_dicts_become_structs(log: GrowingLog) -> None:
    found = source(log, step="latest")
    assert found.schema().simpleString() == "struct<key:string,value:struct<k:string,v:bigint>,batch:bigint>"
    assert state(found) == log.state("latest")


@pytest.mark.parametrize("action", ["nothing", "compact", "rescale", "rollback"])
def test_the_past_is_read_as_it_was(log: GrowingLog, action: str) -> None:
    batches = log.batches
    match action:
        case "compact":
            log.compact(keep=100)
        case "rescale":
            log.rescale(5)
        case "rollback":
            log.roll_back(batches[1])
    log.send_some(2, seed=1)
    assert state(source(log)) == log.state("total")
    for number in batches:
        assert state(source(log, batch=number)) == log.state("total", number)


def test_changes_are_read_from_one_batch_to_another(log: GrowingLog) -> None:
    log.roll_back(log.batches[1])
    log.send_some(2, seed=1)
    found = source(log, changes_from=0)
    columns = "batch:bigint,time:timestamp,key:string,cell:string,value:bigint,deleted:boolean"
    assert found.schema().simpleString() == f"struct<{columns}>"
    assert len(parts(found)) == 3
    expected = [
        {"batch": c.batch, "time": c.time, "key": c.key, "cell": c.cell, "value": c.value, "deleted": c.deleted}
        for c in mp.open(log.app.state_dir, APP).changes("total")
    ]
    order = lambda row: (row["batch"], row["key"])  # noqa: E731
    assert sorted(rows(found), key=order) == sorted(expected, key=order)
    assert any(row["deleted"] for row in expected) and any(row["batch"] > log.batches[-3] for row in expected)
    some = source(log, changes_from=2, changes_to=3)
    assert sorted(rows(some), key=order) == sorted((row for row in expected if row["batch"] in (2, 3)), key=order)


def mixed(tmp_path: Path, values: list[Any]) -> mp.App:
    app = mp.App("mixed", str(tmp_path / "state"), 1, local_dir=str(tmp_path / "local"))
    rows = app.stream("rows", mp.sources.rows([])).key_by("k")
    rows.stateful_map("last", lambda key, row, last: (None, row["v"]), initial=None)
    with mp.testing.TestDriver(app, mp.lowlevel.storage(app)) as driver:
        driver.send("rows", [{"k": number, "v": value} for number, value in enumerate(values)])
    return app


def read_mixed(app: mp.App, schema: Any = None, **options: Any) -> tuple[str, dict[int, Any]]:
    found = MillpondSource({"path": app.state_dir, "app": "mixed", "step": "last", **options})
    used = schema or found.schema()
    return used["value"].dataType.simpleString(), {row["key"]: row["value"] for row in rows(found, used)}


@pytest.mark.parametrize(
    ("values", "kind", "shown"),
    [
        ([1.5, 2.0], "double", [1.5, 2.0]),
        (["a", "b"], "string", ["a", "b"]),
        ([1, "a"], "string", ["1", '"a"']),
        ([1, 2.5], "string", ["1", "2.5"]),
        ([(1, "a")], "string", ['{"$tuple":[1,"a"]}']),
        ([{}], "string", ["{}"]),
        ([{"a": 1}, {"b": "x"}], "struct<a:bigint,b:string>", [{"a": 1, "b": None}, {"a": None, "b": "x"}]),
        ([[1, 2], []], "array<bigint>", [[1, 2], []]),
        ([True], "boolean", [True]),
    ],
)
def test_a_common_type_is_found_and_other_values_are_json(
    tmp_path: Path, values: list[Any], kind: str, shown: list[Any]
) -> None:
    assert read_mixed(mixed(tmp_path, values)) == (kind, dict(enumerate(shown)))


def test_values_are_json_if_that_is_asked_for(tmp_path: Path) -> None:
    assert read_mixed(mixed(tmp_path, [1, 2]), values="json") == ("string", {0: "1", 1: "2"})


def test_a_later_value_of_another_type_is_an_error_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millpond.runtimes.spark.data_source.SAMPLE", 2)
    cases: list[list[Any]] = [[1, 2, "x"], [1, 2, 2.5], [1, 2, True], [1.5, 2.5, True], [[1], [2], [2.5]]]
    cases.append([{"a": 1}, {"a": 2}, {"a": 3, "b": 4}])
    for number, values in enumerate(cases):
        folder = tmp_path / str(number)
        with pytest.raises(mp.errors.InvalidUse, match=r"does not fit: .* Read the values as JSON text with option"):
            read_mixed(mixed(folder, values))


def test_a_schema_of_the_user_chooses_columns_and_types(tmp_path: Path) -> None:
    from pyspark.sql.types import DoubleType, StructField, StructType

    app = mixed(tmp_path, [1, 2])
    found = MillpondSource({"path": app.state_dir, "app": "mixed", "step": "last"})
    assert rows(found, StructType([StructField("value", DoubleType())])) == [{"value": 1.0}, {"value": 2.0}]
    with pytest.raises(mp.errors.InvalidUse, match="no column 'total'; it has: key, value, batch"):
        found.reader(StructType([StructField("total", DoubleType())]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": None}, "needs the app's state_dir"),
        ({"app": None}, f"needs an app, .* holds: '{APP}'"),
        ({"step": None}, "needs a step"),
        ({"stepp": "total"}, "option 'stepp' .*: expected one of path, app, step, batch"),
        ({"app": "other"}, "holds no app 'other'"),
        ({"step": "other"}, "has no step 'other'; it has: latest, total"),
        ({"batch": "last"}, "option 'batch' .*: expected the number of a batch, got 'last'"),
        ({"batch": 999}, r"expected a batch of app 'replicated' from 0 to \d+, got 999"),
        ({"changes_from": 7, "changes_to": 3}, r"from 0 to \d+, in order, got 7 and 3"),
        ({"changes_to": 999}, r"from 0 to \d+, in order, got 0 and 999"),
        ({"changes_from": 1, "batch": 2}, "expected one, got both"),
        ({"values": "xml"}, "expected auto or json, got 'xml'"),
    ],
)
def test_wrong_options_are_refused_in_words(log: GrowingLog, options: dict[str, Any], message: str) -> None:
    with pytest.raises(mp.errors.InvalidUse, match=message):
        rows(source(log, **options))


@pytest.mark.parametrize("options", [{}, {"step": None}], ids=["all options", "no step"])
def test_what_would_write_or_stream_is_refused_in_words(log: GrowingLog, options: dict[str, Any]) -> None:
    found, schema = source(log, **options), source(log).schema()
    for verb in (found.writer, found.streamWriter):
        with pytest.raises(mp.errors.InvalidUse, match="only reads: the state of an app is written by its own steps"):
            verb(schema, False)
    with pytest.raises(mp.errors.InvalidUse, match=r"has no stream: use spark.read, with changes_from"):
        found.streamReader(schema)
