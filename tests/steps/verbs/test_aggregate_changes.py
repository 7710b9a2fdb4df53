"""Running aggregates that grow store what changed; all that can be seen of them is the same as if they did not."""

from __future__ import annotations

import random
from typing import Any

import pytest

import millpond as mp
from millpond.errors import Incompatible, InvalidUse
from millpond.log.segment import unpack_state
from millpond.storage import open_storage
from millpond.testing import Crashed, TestDriver


def best_score(acc, row):
    return [row["tag"], row["v"]] if row["v"] > acc.get(row["tag"], -1) else None


def put_score(acc, change):
    acc[change[0]] = change[1]
    return acc


def best(**how):
    return mp.aggregation(initial=dict, change=best_score, update=put_score, **how)


def an_app(partitions=2, aggregations=None, **how):
    app = mp.App("grow", partitions=partitions, **how.pop("app", {}))
    keyed = app.stream("rows", mp.sources.rows([]), timestamp="at").key_by("k")
    given = aggregations or {
        "n": mp.count(),
        "all": mp.collect("v"),
        "tags": mp.distinct("tag"),
        "best": best(),
        "whole": mp.aggregation(initial=list, update=lambda acc, row: [*acc, row["v"]][-3:]),
    }
    keyed.aggregate("agg", **given, **how).to("out", mp.sinks.memory())
    return app


def expected_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    top: dict[str, int] = {}
    for row in rows:
        top[row["tag"]] = max(top.get(row["tag"], -1), row["v"])
    values = [row["v"] for row in rows]
    return {"n": len(rows), "all": values, "tags": list(top), "best": top, "whole": values[-3:]}


def by_key(rows):
    found: dict[str, list[Any]] = {}
    for row in rows:
        found.setdefault(row["k"], []).append(row)
    return {key: expected_of(mine) for key, mine in found.items()}


@pytest.mark.parametrize("seed", range(4))
def test_outputs_and_state_are_those_of_a_fold_whatever_happens(seed: int) -> None:
    chance = random.Random(seed)
    print("seed", seed)
    partitions, sent, outputs = 2, [], []
    driver = TestDriver(an_app(partitions, on_error="skip", app={"compact_every": 5}))
    for number in range(25):
        rows = [
            {"k": chance.choice("ab"), "v": chance.randrange(100), "tag": f"t{chance.randrange(12)}", "at": number}
            for _ in range(chance.randrange(1, 5))
        ]
        bad = [{"k": chance.choice("ab"), "v": 7, "at": number}] if chance.random() < 0.4 else []  # it has no tag
        mixed = chance.sample([*rows, *bad], len(rows) + len(bad))
        rows = [row for row in mixed if "tag" in row]
        for row in rows:
            sent.append(row)
            outputs.append({"k": row["k"], **expected_of([r for r in sent if r["k"] == row["k"]])})
        if chance.random() < 0.3:
            driver.crash(at=chance.choice(["compute", "commit", "deliver"]), when=chance.choice(["before", "after"]))
            with pytest.raises(Crashed):
                driver.send("rows", mixed)
            driver.restart(lose_replicas=chance.random() < 0.5)
        else:
            driver.send("rows", mixed)
        if chance.random() < 0.2:
            partitions = chance.randrange(1, 5)
            driver.restart(an_app(partitions, on_error="skip", app={"compact_every": 5}), lose_replicas=True)
    assert dict(driver.state("agg").items()) == by_key(sent)
    in_order = sorted(driver.output("out"), key=lambda row: (row["k"], row["n"]))
    assert in_order == sorted(outputs, key=lambda row: (row["k"], row["n"]))
    driver.close()


def stored_bytes(storage: Any, step: str = "agg") -> list[tuple[bytes, int]]:
    """The cells that the newest batch of an app wrote, and their sizes."""
    newest = max((item for item in storage.list("grow/steps")), key=lambda item: item.path.rsplit("/", 1)[1])
    return [(change.cell, len(change.value or b"")) for change in unpack_state(storage.get(newest.path))]


@pytest.mark.parametrize("name", ["all", "tags", "best"])
def test_a_row_after_a_thousand_costs_what_it_adds(tmp_path, name: str) -> None:
    given = {"all": mp.collect("v"), "tags": mp.distinct("tag"), "best": best()}
    rows = [{"k": "a", "v": i, "tag": f"t{i}", "at": i} for i in range(1002)]
    storage = open_storage(str(tmp_path))
    with TestDriver(an_app(1, {name: given[name]}), storage=str(tmp_path)) as driver:
        driver.send("rows", rows[:1000])
        whole = sum(size for _, size in stored_bytes(storage))
        for row in rows[1000:]:
            driver.send("rows", [row])
            [(cell, size)] = stored_bytes(storage)
            assert cell.startswith(b"d:") and size < 60 < whole / 50


def test_changes_are_folded_once_they_are_as_large_as_the_value(tmp_path) -> None:
    storage, total, cells = open_storage(str(tmp_path)), 0, 0
    with TestDriver(an_app(1, {"all": mp.collect("v")}, app={"compact_every": 1000}), storage=str(tmp_path)) as driver:
        for i in range(150):
            driver.send("rows", [{"k": "a", "v": f"value {i:04d}", "at": i}])
            written = stored_bytes(storage)
            total += sum(size for _, size in written)
            cells = max(cells, len(written))
        assert driver.state("agg").get("a") == {"all": [f"value {i:04d}" for i in range(150)]}
    assert cells > 10  # the value, and deletions of the changes that it contains
    assert total < 150 * 13 * 6  # a whole value at each row would be 150 * 75 * 13


def test_history_at_changes_and_a_view_without_the_program_show_whole_values(tmp_path) -> None:
    app = an_app(1, {"n": mp.count(), "all": mp.collect("v")}, app={"state_dir": str(tmp_path)})
    app.changes("agg").to("published", mp.sinks.memory())
    with TestDriver(app, storage=str(tmp_path)) as driver:
        for i in range(4):
            driver.send("rows", [{"k": "a", "v": i, "at": i}])
        values = [{"n": i + 1, "all": [*range(i + 1)]} for i in range(4)]
        assert [row["value"] for row in driver.output("published")] == values
        assert [entry.value for entry in driver.state("agg").history("a")] == values
        batches = [entry.batch for entry in driver.state("agg").history("a")]
        assert driver.state("agg").at(batches[1]).get("a") == values[1]
    opened = mp.open(str(tmp_path), "grow")
    assert opened.state("agg").get("a") == values[-1]
    app.rollback(batches[1])
    assert mp.open(str(tmp_path), "grow").state("agg").get("a") == values[1]
    with TestDriver(app, storage=str(tmp_path)) as driver:
        driver.send("rows", [{"k": "a", "v": 9, "at": 9}])
        assert driver.state("agg").get("a") == {"n": 3, "all": [0, 1, 9]}


def test_without_the_program_changes_of_ones_own_are_beside_the_value(tmp_path) -> None:
    app = an_app(1, {"best": best()}, app={"state_dir": str(tmp_path)})
    with TestDriver(app, storage=str(tmp_path)) as driver:
        for v in (1, 5, 3, 8):
            driver.send("rows", [{"k": "a", "v": v, "tag": "x", "at": v}])
        assert driver.state("agg").get("a") == {"best": {"x": 8}}
    shown = mp.open(str(tmp_path), "grow").state("agg").get("a")
    assert shown == {"best": {"value": {"x": 1}, "changes": [["x", 5], ["x", 8]]}}


ONE, TWO = {"all": mp.collect("v"), "n": mp.count()}, {"n": mp.count()}


@pytest.mark.parametrize(
    ("later", "how", "shown"),
    [
        (TWO, {}, {"all": [0, 1, 2], "n": 4}),  # columns
        ({"n": mp.count(lambda row: row["v"])}, {}, {"all": [0, 1, 2], "n": 4}),  # by row
        (ONE, {"ttl": 1000}, {"all": [0, 1, 2, 3], "n": 4}),
        ({"all": mp.distinct("v"), "n": mp.count()}, {}, {"all": [3], "n": 4}),
    ],
)
def test_a_changed_program_goes_on_with_the_state(later, how, shown) -> None:
    with TestDriver(an_app(2, ONE)) as driver:
        for i in range(3):
            driver.send("rows", [{"k": key, "v": i, "at": i} for key in "abc"])
        driver.restart(an_app(2, later, **how))
        driver.send("rows", [{"k": "a", "v": 3, "at": 3}])
        assert driver.state("agg").get("a") == shown
        assert driver.state("agg").get("b") == {"all": [0, 1, 2], "n": 3}
        driver.restart(an_app(2, ONE), lose_replicas=True)  # and back
        driver.send("rows", [{"k": "b", "v": 4, "at": 4}])
        assert driver.state("agg").get("b") == {"all": [0, 1, 2, 4], "n": 4}


def test_an_aggregation_that_was_away_for_a_while_has_its_changes() -> None:
    both, one = {"best": best(), "all": mp.collect("v")}, {"all": mp.collect("v")}
    with TestDriver(an_app(1, both)) as driver:
        for v in (1, 5):
            driver.send("rows", [{"k": "a", "v": v, "tag": "x", "at": v}])
        driver.restart(an_app(1, one))
        driver.send("rows", [{"k": "a", "v": v, "tag": "x", "at": 9} for v in range(500)])  # more than enough to fold
        driver.send("rows", [{"k": "a", "v": 9, "tag": "x", "at": 9}])
        driver.restart(an_app(1, both))
        assert driver.state("agg").get("a")["best"] == {"x": 5}
        driver.send("rows", [{"k": "a", "v": 6, "tag": "y", "at": 9}])
        assert driver.state("agg").get("a")["best"] == {"x": 5, "y": 6}


def test_a_change_that_is_gone_from_the_program_is_incompatible() -> None:
    with TestDriver(an_app(1, {"best": best()})) as driver:
        for v in (1, 5):
            driver.send("rows", [{"k": "a", "v": v, "tag": "x", "at": v}])
        driver.restart(an_app(1, {"best": mp.aggregation(initial=dict, update=lambda acc, row: acc)}))
        with pytest.raises(
            Incompatible, match=r"step 'agg', best=: the state holds changes .* has no change= any more"
        ):
            driver.send("rows", [{"k": "a", "v": 7, "tag": "x", "at": 7}])


def test_windows_and_retractions_take_an_aggregation_with_changes() -> None:
    app = mp.App("grow", partitions=1)
    keyed = app.stream("rows", mp.sources.rows([]), timestamp="at").key_by("k")
    keyed.window("tens", mp.tumbling(10), grace=0).aggregate(best=best()).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [{"k": "a", "v": v, "tag": "x", "at": 1} for v in (3, 8, 5)])
        driver.send("rows", [{"k": "a", "v": 1, "tag": "x", "at": 30}])
        assert [row["best"] for row in driver.output("out")] == [{"x": 8}]


def test_a_change_is_copied_before_the_function_can_alter_it() -> None:
    row = {"k": "a", "v": 1, "tag": "x", "at": 1, "list": [1]}

    def extend(acc, change):
        acc.append(change)
        change.append(0)
        return acc

    grown = mp.aggregation(initial=list, change=lambda acc, row: row["list"], update=extend)
    with TestDriver(an_app(1, {"g": grown})) as driver:
        driver.send("rows", [row, row])
        driver.restart(lose_replicas=True)
        driver.send("rows", [row])
        assert driver.state("agg").get("a") == {"g": [[1, 0]] * 3}
        assert driver.output("out")[-1]["g"] == [[1, 0]] * 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"change": 3}, r"aggregation\(change=\): expected a function, got 3"),
        ({"change": lambda row: row}, r"aggregation\(change=\): expected a function of 2 arguments \(acc, row\)"),
    ],
)
def test_a_change_that_is_no_function_is_refused(given, message) -> None:
    with pytest.raises(InvalidUse, match=message):
        mp.aggregation(initial=list, update=lambda acc, change: acc, **given)
