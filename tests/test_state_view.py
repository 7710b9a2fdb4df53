"""State from outside: by key, all of it, its history, as it was, from another process, and without the library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from ledger_reader import commits

import millpond as mp
from millpond.storage import LocalStorage, open_storage
from millpond.testing import TestDriver
from millpond.testing.faults import FaultyStorage

PARTITIONS = pytest.mark.parametrize("partitions", [1, 3])


@dataclass
class Account:
    owner: str
    balance: Decimal


def shop(partitions: int | None = None, state_dir: str = "memory://") -> mp.App:
    app = mp.App("shop", state_dir=state_dir, partitions=partitions)
    rows = app.stream("orders", mp.sources.rows([])).key_by("who")

    def add_up(who, row, total):
        return None, None if row["n"] == 0 else total + row["n"]

    def remember(row, state):
        if row["n"] == 0:
            state.clear()
        else:
            state.set("last", row["n"])
            state.list("all").append(row["n"])
            state.map("per n")[row["n"]] = state.map("per n").get(row["n"], 0) + 1

    rows.stateful_map("total", add_up, initial=0)
    rows.apply("seen", remember)
    rows.aggregate("spend", n=mp.count(), spent=mp.sum("n"), mean=mp.mean("n"))
    rows.deduplicate("once", by="n")
    rows.stateful_map(
        "account", lambda who, row, s: (None, Account(who, Decimal(row["n"]))), initial=None, type=Account
    )
    return app


BATCHES: list[list[Any]] = [
    [{"who": "ann", "n": 1}, {"who": "bob", "n": 5}],
    [{"who": "ann", "n": 2}, {"who": "cat", "n": 7}],
    [{"who": "bob", "n": 0}],
    [{"who": "bob", "n": 3}, {"who": "ann", "n": 2}],
]


def totals_after(batches: int) -> dict[str, int]:
    totals: dict[str, int] = {}
    for batch in BATCHES[:batches]:
        for row in batch:
            if row["n"] == 0:
                totals.pop(row["who"], None)
            else:
                totals[row["who"]] = totals.get(row["who"], 0) + row["n"]
    return totals


@pytest.fixture
def driven(request):
    partitions = getattr(request, "param", 3)
    with TestDriver(shop(partitions)) as driver:
        for batch in BATCHES:
            driver.send("orders", batch)
            driver.advance("1h")
        yield driver


# --- get and items ---


@pytest.mark.parametrize("driven", [1, 3], indirect=True)
def test_get_gives_a_keys_value_and_items_all_of_them(driven):
    state = driven.state("total")
    assert {who: state.get(who) for who in ("ann", "bob", "cat")} == totals_after(4) == dict(state.items())
    assert state.get("eve") is None
    assert state.get("eve", 0) == 0


def test_the_value_of_an_apply_step_is_the_dict_of_its_names(driven):
    assert driven.state("seen").get("ann") == {"last": 2, "all": [1, 2, 2], "per n": {1: 1, 2: 2}}
    assert driven.state("seen").get("bob") == {"last": 3, "all": [3], "per n": {3: 1}}


def test_the_value_of_an_aggregate_is_its_results(driven):
    assert driven.state("spend").get("ann") == {"n": 3, "spent": 5, "mean": 5 / 3}


def test_values_are_of_the_types_that_were_kept(driven):
    assert driven.state("account").get("cat") == Account("cat", Decimal(7))


def test_what_a_view_gives_is_the_callers_own(driven):
    driven.state("seen").get("ann")["all"].append("changed")
    assert driven.state("seen").get("ann")["all"] == [1, 2, 2]


def test_a_view_shows_each_commit_as_soon_as_it_is_made_and_never_half_of_one(driven):
    state = driven.state("total")
    driven.send("orders", [{"who": "ann", "n": 100}])
    assert state.get("ann") == 105
    with pytest.raises(mp.errors.StepFailed):
        driven.send("orders", [{"who": "ann", "n": 1000}, {"who": "ann"}])
    assert state.get("ann") == 105


class Listing(FaultyStorage):
    """Counts the files that it has listed."""

    listed = 0

    def list(self, prefix, after=None):
        for item in super().list(prefix, after):
            self.listed += 1
            yield item


def test_a_view_that_is_asked_again_does_not_look_through_the_whole_ledger():
    storage = Listing(open_storage("memory://"))
    with TestDriver(shop(1), storage=storage) as driver:
        for _ in range(5):
            driver.send("orders", BATCHES[0])
        state = driver.state("total")
        assert state.get("ann") == 5
        driver.send("orders", BATCHES[0])
        storage.listed = 0
        assert state.get("ann") == 6
        assert storage.listed == 2, "the record that it knew and the one that is new"
        storage.delete([item.path for item in storage.list("")])
        assert state.get("ann") is None


def test_a_step_that_there_is_not_is_said_with_those_that_there_are(driven):
    with pytest.raises(mp.errors.InvalidUse, match="app 'shop' has no step 'totl'; it has: account, once, seen, spend"):
        driven.state("totl").get("ann")


def test_a_key_that_cannot_be_one_is_refused(driven):
    with pytest.raises(mp.errors.InvalidUse, match="a key cannot be None"):
        driven.state("total").get(None)


def test_an_app_that_never_ran_has_no_state():
    state = mp.App("never", state_dir="memory://").state("total")
    assert state.get("ann", 0) == 0
    assert list(state.items()) == []
    assert list(state.history("ann")) == []
    assert state.to_arrow().num_rows == 0


# --- history and at ---


@pytest.mark.parametrize("driven", [1, 3], indirect=True)
def test_history_has_every_value_and_the_deletions(driven):
    found = list(driven.state("total").history("bob"))
    assert [(m.batch, m.value, m.deleted) for m in found] == [(1, 5, False), (3, None, True), (4, 3, False)]
    assert [(m.batch, m.value) for m in driven.state("total").history("ann")] == [(1, 1), (2, 3), (4, 5)]
    assert [(b.time - a.time).total_seconds() for a, b in pairwise(found)] == [7200, 3600]
    assert found[0].time.tzinfo is UTC
    assert list(driven.state("total").history("eve")) == []


def test_history_of_named_state_is_the_whole_of_it_each_time(driven):
    found = [m.value for m in driven.state("seen").history("bob")]
    assert found == [
        {"last": 5, "all": [5], "per n": {5: 1}},
        None,
        {"last": 3, "all": [3], "per n": {3: 1}},
    ]
    assert [m.value["spent"] for m in driven.state("spend").history("ann")] == [1, 3, 5]


@pytest.mark.parametrize("driven", [1, 3], indirect=True)
def test_at_gives_the_state_as_it_was(driven):
    for batch in range(5):
        earlier = driven.state("total").at(batch)
        assert dict(earlier.items()) == totals_after(batch)
        assert earlier.get("ann") == totals_after(batch).get("ann")
        assert [m.batch for m in earlier.history("ann")] == [n for n in (1, 2, 4) if n <= batch]
    assert dict(driven.state("total").items()) == totals_after(4), "and the present is as it was"


def test_an_earlier_view_does_not_move_when_the_app_goes_on(driven):
    earlier = driven.state("total").at(2)
    assert earlier.get("ann") == 3
    driven.send("orders", [{"who": "ann", "n": 100}])
    assert earlier.get("ann") == 3


def test_a_batch_that_there_is_not_is_refused(driven):
    for batch in (99, -1):
        with pytest.raises(mp.errors.InvalidUse, match=f"app 'shop': there is no batch {batch}"):
            driven.state("total").at(batch).get("ann")


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="only Linux says which files a process has open")
def test_an_earlier_view_leaves_no_store_open(driven):
    """Its folder goes with it, and a store takes a terabyte of address space."""
    views = [driven.state("total").at(1) for _ in range(3)]
    assert {view.get("ann") for view in views} == {1}
    opened = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if is_there(fd)]
    assert not [path for path in opened if "millpond-at-" in path]


def is_there(fd: str) -> bool:
    return os.path.islink(f"/proc/self/fd/{fd}")


# --- as tables ---


def test_to_arrow_and_to_pandas_have_a_row_per_key(driven):
    table = driven.state("total").to_arrow()
    assert table.schema == pa.schema([("key", pa.string()), ("value", pa.int64())])
    assert dict(zip(*table.to_pydict().values(), strict=True)) == totals_after(4)
    frame = driven.state("total").to_pandas()
    assert isinstance(frame, pd.DataFrame)
    assert frame.set_index("key")["value"].to_dict() == totals_after(4)


def test_structs_of_an_aggregate_are_columns_that_can_be_taken_apart(driven):
    table = driven.state("spend").to_arrow()
    by_key = {row["key"]: row["value"] for row in table.to_pylist()}
    assert by_key["ann"] == {"n": 3, "spent": 5, "mean": 5 / 3}


@pytest.mark.parametrize(
    "keys, values",
    [
        ([1, "a", True], [1, "x", None]),
        (["a", "b"], [{"x": 1}, [1]]),
        ([b"1", b"2"], [Decimal("1.1"), Decimal(2)]),
        ([date(2024, 1, 1)], [datetime(2024, 1, 1, tzinfo=UTC)]),
        ([(1, "a"), (2, "b")], [{1, 2}, {3}]),
        (["a"], [2**70]),
        (["a"], [Account("x", Decimal(1))]),
        (["a", "b"], [{"x": 1}, {"x": "one"}]),
    ],
    ids=repr,
)
def test_whatever_is_kept_becomes_a_table_and_loses_nothing(keys, values):
    app = mp.App("odd")
    rows = app.stream("rows", mp.sources.rows([])).key_by("k")
    rows.stateful_map("s", lambda k, row, s: (None, [row["v"]] if row["v"] is None else row["v"]), initial=None)
    with TestDriver(app) as driver:
        driver.send("rows", [{"k": k, "v": v} for k, v in zip(keys, values, strict=True)])
        table = driver.state("s").to_arrow()
        assert len(table) == len(keys)
        assert len(driver.state("s").to_pandas()) == len(keys)
        for name, given in (("key", keys), ("value", values)):
            found = table.column(name).to_pylist()
            if table.schema.field(name).type == pa.string() and not all(isinstance(v, str) for v in given):
                # Values without a common type are text, each of them JSON.
                assert all(json.loads(text) is not None for text in found)
            elif table.schema.field(name).type not in (pa.string(),):
                assert len(set(map(type, found))) == 1
        if values == [{"x": 1}, {"x": "one"}]:
            assert [json.loads(v) for v in sorted(table.column("value").to_pylist())] == [{"x": "one"}, {"x": 1}]


# --- from another process ---


def ran_on_disk(tmp_path, partitions: int = 2) -> LocalStorage:
    storage = LocalStorage(tmp_path / "state")
    with TestDriver(shop(partitions), storage=storage) as driver:
        for batch in BATCHES:
            driver.send("orders", batch)
    return storage


@PARTITIONS
def test_another_process_reads_the_state_without_the_program(tmp_path, partitions):
    ran_on_disk(tmp_path, partitions)
    code = """
import json, sys
import millpond as mp
app = mp.open(sys.argv[1], "shop")
total = app.state("total")
print(json.dumps({
    "total": dict(total.items()),
    "ann": total.get("ann"),
    "eve": total.get("eve", "nobody"),
    "seen": app.state("seen").get("bob")["all"],
    "spend": app.state("spend").get("ann"),
    "account": {who: {**value, "balance": str(value["balance"])} for who, value in app.state("account").items()},
    "history": [[m.batch, m.value] for m in total.history("bob")],
    "earlier": dict(total.at(1).items()),
    "newest": app.newest.kind,
}))
"""
    found = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "state")],
        capture_output=True,
        text=True,
        check=True,
        env={"MILLPOND_LOCAL_DIR": str(tmp_path / "local"), "PATH": ""},
    )
    assert json.loads(found.stdout) == {
        "total": totals_after(4),
        "ann": 5,
        "eve": "nobody",
        "seen": [3],
        "spend": {"n": 3, "spent": 5, "mean": 5 / 3},
        "account": {w: {"owner": w, "balance": b} for w, b in (("ann", "2"), ("bob", "3"), ("cat", "7"))},
        "history": [[1, 5], [3, None], [4, 3]],
        "earlier": {"ann": 1, "bob": 5},
        "newest": "commit",
    }


def test_opening_what_is_not_there_says_so_and_makes_nothing(tmp_path):
    with pytest.raises(mp.errors.InvalidUse, match=f"{tmp_path}/state holds no app 'shop': check state_dir"):
        mp.open(str(tmp_path / "state"), "shop")
    assert not (tmp_path / "state").exists()


def test_opening_an_app_by_a_wrong_name_says_which_apps_there_are(tmp_path):
    app = mp.App("orders", str(tmp_path / "state"), 1)
    app.stream("rows", mp.sources.rows([])).key_by("key").aggregate("n", n=mp.count()).to("out", mp.sinks.memory())
    with mp.testing.TestDriver(app, storage=str(tmp_path / "state")):
        pass
    for wrong in (mp.open, lambda folder, name: mp.admin(folder, name).verify()):
        with pytest.raises(mp.errors.InvalidUse, match=r"holds no app 'order': check .*; it holds: 'orders'$"):
            wrong(str(tmp_path / "state"), "order")


def test_a_reader_beside_a_running_driver_sees_its_commits(tmp_path, monkeypatch):
    monkeypatch.setenv("MILLPOND_LOCAL_DIR", str(tmp_path / "local"))
    storage = LocalStorage(tmp_path / "state")
    with TestDriver(shop(2), storage=storage) as driver:
        driver.send("orders", BATCHES[0])
        reader = mp.open(str(tmp_path / "state"), "shop").state("total")
        assert dict(reader.items()) == totals_after(1)
        driver.send("orders", BATCHES[1])
        assert dict(reader.items()) == totals_after(2)


# --- without the library ---


def test_duckdb_reads_the_changelog_and_the_state_of_a_step(tmp_path):
    ran_on_disk(tmp_path)
    files = f"{tmp_path}/state/shop/steps/total/*/*.parquet"
    found = duckdb.sql(f"SELECT key, value, deleted, filename FROM read_parquet('{files}', filename=true)").fetchall()
    assert len(found) == 7
    newest = duckdb.sql(
        f"""
        SELECT key, arg_max(value, parse_filename(filename)) AS value
        FROM read_parquet('{files}', filename=true) GROUP BY key ORDER BY key
        """
    ).fetchall()
    assert [(json.loads(key), json.loads(value)) for key, value in newest] == [("ann", 5), ("bob", 3), ("cat", 7)]


def test_pandas_reads_a_segment_and_pyarrow_a_whole_step(tmp_path):
    storage = ran_on_disk(tmp_path, partitions=1)
    path = commits(storage, "shop")[2]["segments"]["total"]["0"][0]["path"]
    frame = pd.read_parquet(tmp_path / "state" / path)
    assert list(frame.columns) == ["key", "cell", "value", "deleted", "due", "wall"]
    assert frame[["key", "value", "deleted"]].to_dict("records") == [{"key": '"bob"', "value": None, "deleted": True}]
    assert ds.dataset(tmp_path / "state/shop/steps/seen", format="parquet").count_rows() > 10


def test_segments_are_sorted_by_key_and_cell(tmp_path):
    storage = open_storage("memory://")
    app = mp.App("sorted")

    def f(row, state):
        state.set("v", row)
        state.list("l").append(row)

    app.stream("rows", mp.sources.rows([])).key_by(k=lambda n: n % 10).apply("s", f)
    with TestDriver(app, storage=storage) as driver:
        driver.send("rows", list(range(50, 0, -1)))
    from ledger_reader import changes

    found: list[Any] = [(key, cell) for key, cell, _, _ in changes(storage, "sorted", "s")]
    assert found == sorted(found)
    assert len(found) == 10 * 7


def test_a_map_with_keys_that_python_takes_for_equal_loses_none_of_them():
    def keep(row, state):
        state.map("seen")[row["id"]] = row["n"]

    app = mp.App("equal")
    keyed = app.stream("rows", mp.sources.rows([])).key_by("k")
    keyed.apply("s", keep)
    keyed.deduplicate("once", by="id")
    with TestDriver(app) as driver:
        driver.send("rows", [{"k": "a", "id": id, "n": n} for n, id in enumerate([0, False, "x"])])
        driver.send("rows", [{"k": "b", "id": id, "n": n} for n, id in enumerate([0, "x"])])
        found = driver.state("s").get("a")["seen"]
        assert sorted(map(repr, found)) == sorted(map(repr, [(0, 0), (False, 1), ("x", 2)]))
        assert driver.state("s").get("b") == {"seen": {0: 0, "x": 1}}
        assert len(driver.state("once").get("a")["seen"]) == 3
        assert driver.state("s").to_arrow().num_rows == 2
