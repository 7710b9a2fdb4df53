"""State that is migrated when it is met: the same as if all of it had been migrated before the first batch."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

import millpond as mp
from millpond.storage import open_storage

# --- one program of every kind of step that can be migrated, in three versions ---


def shape(version: int, n: int) -> Any:
    """A number, as state of a version holds it."""
    return n if version == 1 else {"sum": n} if version == 2 else {"sum": n, "of": 3}


def number(state: Any) -> int:
    return state if isinstance(state, int) else state["sum"]


def value_to_2(n: int) -> Any:
    return None if n == 13 else shape(2, n)


def value_to_3(state: dict[str, int]) -> Any:
    return shape(3, state["sum"] + 100)


def names_to_2(names: dict[str, Any]) -> Any:
    if names.get("n") == 13:
        return None
    return {"count": names.get("n", 0) * 10, **{k: v for k, v in names.items() if k != "n"}}


def names_to_3(names: dict[str, Any]) -> Any:
    return {name: [value, 3] for name, value in names.items()}


def columns_to_2(columns: dict[str, Any]) -> Any:
    return None if columns["n"] == 13 else {"sum": columns["n"]}


def columns_to_3(columns: dict[str, Any]) -> Any:
    return {"sum": columns["sum"] + 100, "of": "three"}


def row_to_2(row: dict[str, Any]) -> Any:
    return {**row, "two": row["v"] * 2}


def row_to_3(row: dict[str, Any]) -> Any:
    return None if row["v"] == 13 else {**row, "three": row["v"] * 3}


class Bell:
    """Remembers the last value, and tells it some time after."""

    def __init__(self, version: int) -> None:
        self.name = "n" if version == 1 else "count"

    def on_row(self, key: str, row: Any, state: mp.State, timers: mp.Timers) -> None:
        if row["do"] == "drop":
            timers.cancel("ring")
        elif row["do"] == "add":
            state.set(self.name, row["v"])
            timers.set("ring", after=7)

    def on_timer(self, key: str, timer: mp.Timer, state: mp.State, timers: mp.Timers) -> Any:
        return {"rang": key, "with": state.get(self.name)}


def everything(version: int, way: str, partitions: int = 2, names: str = "names", compact_every: int = 3) -> mp.App:
    app = mp.App("all", partitions=partitions, compact_every=compact_every)
    keyed = app.stream("rows", mp.sources.rows([]), timestamp="at").key_by("k")

    def versions(to_2: Any, to_3: Any) -> Any:
        functions = {v: f for v, f in ((1, to_2), (2, to_3)) if v < version}
        return {"version": version, "migrate": functions if way == "eager" else mp.lazily(functions)}

    def add(key: str, row: Any, state: Any) -> Any:
        if row["do"] == "drop":
            return None, None
        if row["do"] != "add":
            return number(state), state
        total = number(state) + row["v"]
        return total, shape(version, total)

    def note(row: Any, state: mp.State) -> Any:
        name = "n" if version == 1 else "count"
        match row["do"]:
            case "add":
                state.set(name, row["v"])
            case "drop":
                state.delete(name)
            case "clear":
                state.clear()
            case "list":
                state.list("all").append(row["v"])
                state.map("per")[row["v"]] = row["at"]
            case "fleeting":  # its migration gives it another name, and so a life without end
                state.set(name, row["v"], ttl=4)
            case "short":
                state.set("short", row["v"], ttl=4)
            case _:
                return {"names": state.get(name), "short": state.get("short"), "all": list(state.list("all"))}
        return None

    keyed.stateful_map("total", add, initial=lambda: shape(version, 0), **versions(value_to_2, value_to_3)).to(
        "totals", mp.sinks.memory()
    )
    renamed: dict[str, Any] = {"renamed_from": "names"} if names != "names" else {}
    keyed.apply(names, note, **versions(names_to_2, names_to_3), **renamed).to("noted", mp.sinks.memory())
    keyed.process("bell", lambda: Bell(version), **versions(names_to_2, names_to_3)).to("rang", mp.sinks.memory())
    lives = {"ttl": 9, **versions(value_to_2, value_to_3)}
    keyed.stateful_map("brief", add, initial=lambda: shape(version, 0), **lives).to("briefs", mp.sinks.memory())

    columns: dict[str, Any] = {"n": int} if version == 1 else {"sum": int} if version == 2 else {"sum": int, "of": str}

    def add_together(table: pa.Table, states: pa.Table) -> Any:
        known = {state["k"]: state for state in states.to_pylist()}
        name, totals = next(iter(columns)), []
        for row in table.to_pylist():
            state = known[row["k"]]
            if row["do"] == "drop":
                state.update(dict.fromkeys(columns))
            elif row["do"] == "add":
                state.update({column: "three" for column in columns}, **{name: (state[name] or 0) + row["v"]})
            totals.append(state[name])
        return pa.table({"k": table["k"], "total": totals}), pa.Table.from_pylist([*known.values()], states.schema)

    for step, ttl in (("columns", None), ("brief columns", 9)):
        how = {"ttl": ttl, **versions(columns_to_2, columns_to_3)}
        keyed.apply_batch(step, add_together, state=columns, **how).to(f"{step} out", mp.sinks.memory())

    rows = versions(row_to_2, row_to_3)
    updates = app.stream("updates", mp.sources.rows([]), timestamp="at").key_by("k")
    here = app.table("here", updates, deleted=lambda row: row["do"] == "drop", **rows)
    everywhere = app.table("everywhere", updates, everywhere=True, deleted=lambda row: row["do"] == "drop", **rows)
    brief = app.table("passing", updates, ttl=9, **rows)
    for name, table in (("here", here), ("everywhere", everywhere), ("passing", brief)):
        keyed.lookup(f"with {name}", table, merge=lambda row, found: {"row": row, "found": found}).to(
            f"looked {name}", mp.sinks.memory()
        )
    return app


STEPS = ["total", "bell", "brief", "columns", "brief columns", "here", "everywhere", "passing"]
SINKS = ["totals", "noted", "rang", "briefs", "looked here", "looked everywhere", "looked passing"]
SINKS += ["columns out", "brief columns out"]


def seen(driver: mp.testing.TestDriver, names: str) -> Any:
    """All that a user can see."""
    states = {step: dict(driver.state(step).items()) for step in STEPS} | {"names": dict(driver.state(names).items())}
    each = {f"{step} {key}": driver.state(step).get(key) for step in STEPS for key in KEYS}
    return states, {k: v for k, v in each.items() if v is not None}, {sink: driver.output(sink) for sink in SINKS}


KEYS = "abcd"
rows = st.lists(
    st.builds(
        lambda k, v, do: {"k": k, "v": v, "do": do},
        st.sampled_from(KEYS),
        st.sampled_from([1, 2, 13]),
        st.sampled_from(["add", "add", "drop", "clear", "list", "short", "fleeting", "read"]),
    ),
    max_size=4,
)
acts = st.one_of(
    st.tuples(st.just("send"), rows, rows),
    st.tuples(st.just("send"), rows, rows),
    st.tuples(st.just("restart"), st.booleans(), st.sampled_from([1, 2, 3])),
    st.tuples(st.just("newer"), st.sampled_from(["lazily", "eager"]), st.booleans()),
    st.tuples(st.just("rename"), st.just(None), st.just(None)),
)


def add(key: str, value: int) -> Any:
    return "send", [{"k": key, "v": value, "do": "add"}], []


MEANWHILE = [add("d", 1)] * 4  # time passes


@example([add("a", 13), ("newer", "lazily", False), *MEANWHILE])  # a timer of a key that its migration drops
@example([("send", [{"k": "a", "v": 1, "do": "fleeting"}], []), ("newer", "lazily", False), *MEANWHILE])
@settings(max_examples=40, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(history=st.lists(acts, min_size=4, max_size=12))
def test_what_is_migrated_when_it_is_met_is_seen_as_if_all_had_been_migrated(history: list[Any]) -> None:
    version, way, partitions, names, time = 1, "lazily", 2, "names", 0
    drivers = [mp.testing.TestDriver(everything(1, "eager")), mp.testing.TestDriver(everything(1, "lazily"))]
    try:
        for act, one, two in [*history, ("newer", "eager", False), ("restart", True, 1)]:
            lose = False
            if act == "send":
                time += 3
                sent = {name: [{**row, "at": time} for row in feed] for name, feed in (("rows", one), ("updates", two))}
                for driver in drivers:
                    driver.send(sent)
            else:
                if act == "restart":
                    lose, partitions = one, two
                elif act == "newer":
                    version, way, lose = min(version + 1, 3), one, two
                else:
                    names = "notes"
                for driver, how in zip(drivers, ("eager", way), strict=True):
                    driver.restart(everything(version, how, partitions, names), lose_replicas=lose)
            assert seen(drivers[0], names) == seen(drivers[1], names)
    finally:
        for driver in drivers:
            driver.close()


# --- what it promises ---


def totals(version: int = 1, migrate: Any = None, partitions: int = 2, **how: Any) -> mp.App:
    app = mp.App("totals", partitions=partitions, compact_every=2)

    def add(key: str, n: int, state: Any) -> Any:
        total = number(state) + n
        return total, shape(version, total)

    keyed = app.stream("rows", mp.sources.rows([])).key_by(k=lambda row: row[0]).map(lambda row: row[1])
    keyed.stateful_map("total", add, initial=lambda: shape(version, 0), version=version, migrate=migrate, **how).to(
        "out", mp.sinks.memory()
    )
    return app


TO_2, TO_3 = mp.lazily({1: value_to_2}), mp.lazily({1: value_to_2, 2: value_to_3})


def test_nothing_is_rewritten_at_the_start_and_a_key_when_a_row_meets_it(tmp_path: Any) -> None:
    with mp.testing.TestDriver(totals(), str(tmp_path)) as driver:
        driver.send("rows", [("a", 1), ("b", 2), ("c", 3)])
        before = sorted(path for path in tmp_path.rglob("*.parquet"))
        driver.restart(totals(2, TO_2))
        assert sorted(path for path in tmp_path.rglob("*.parquet")) == before
        assert dict(driver.state("total").items()) == {"a": {"sum": 1}, "b": {"sum": 2}, "c": {"sum": 3}}
        opened = mp.open(str(tmp_path), "totals").state("total")
        assert dict(opened.items()) == {"a": 1, "b": 2, "c": 3}
        driver.send("rows", [("b", 0)])
        assert dict(opened.items()) == {"a": 1, "b": {"sum": 2}, "c": 3}
        driver.restart(totals(3, TO_3))
        driver.send("rows", [("c", 1), ("d", 5)])
        assert dict(opened.items()) == {"a": 1, "b": {"sum": 2}, "c": shape(3, 104), "d": shape(3, 5)}
        assert [moment.value for moment in opened.history("c")] == [3, shape(3, 104)]
        newest = {"a": shape(3, 101), "b": shape(3, 102), "c": shape(3, 104), "d": shape(3, 5)}
        assert dict(driver.state("total").items()) == newest
        assert driver.state("total").get("a") == newest["a"]
        assert sorted(driver.state("total").to_arrow().to_pydict()["key"]) == ["a", "b", "c", "d"]
        driver.restart(totals(3, TO_3, partitions=5), lose_replicas=True)
        assert dict(driver.state("total").items()) == newest
        assert all(change.cell == "" for change in mp.open(str(tmp_path), "totals").changes("total"))


def cells(folder: Any, app: str) -> list[tuple[str, str]]:
    """The keys and cells that are alive, as they are stored."""
    again = mp.App(app, str(folder / "again"))
    mp.admin(str(folder / "state"), app).savepoint(folder / "copy")
    again.restore(folder / "copy")
    again.rescale(7)  # what is dead does not move along
    again.savepoint(folder / "moved")
    tables = [pq.read_table(file) for file in (folder / "moved").rglob("*.parquet")]
    return sorted((json.loads(row["key"]), row["cell"]) for table in tables for row in table.to_pylist())


def test_a_migration_of_all_state_ends_it(tmp_path: Any) -> None:
    with mp.testing.TestDriver(totals(), str(tmp_path / "state")) as driver:
        driver.send("rows", [("a", 1), ("b", 2), ("x", 13)])
        driver.restart(totals(2, TO_2))
        driver.send("rows", [("b", 1)])
        assert dict(driver.state("total").items()) == {"a": {"sum": 1}, "b": {"sum": 3}}
        driver.restart(totals(2, {1: value_to_2}))
        opened = mp.open(str(tmp_path / "state"), "totals")
        assert dict(opened.state("total").items()) == {"a": {"sum": 1}, "b": {"sum": 3}}
        assert opened.newest is not None and opened.newest.steps["total"].unmarked is None
        driver.restart(totals(2))
        driver.send("rows", [("a", 1)])
        assert dict(driver.state("total").items()) == {"a": {"sum": 2}, "b": {"sum": 3}}
    assert cells(tmp_path, "totals") == [("a", ""), ("b", "")]


def test_a_key_that_is_dropped_and_comes_back_is_not_migrated_again(tmp_path: Any) -> None:
    def app(version: int, migrate: Any = None) -> mp.App:
        app = mp.App("dropped", partitions=1)
        rows = app.stream("rows", mp.sources.rows([])).key_by("k")

        def put(row: Any, state: mp.State) -> None:
            state.clear() if row["v"] is None else state.set("n", row["v"])

        rows.apply("names", put, version=version, migrate=migrate)
        return app

    with mp.testing.TestDriver(app(1), str(tmp_path / "state")) as driver:
        driver.send("rows", [{"k": "a", "v": 1}, {"k": "c", "v": 1}])
        driver.restart(app(2, mp.lazily({1: lambda names: {"made": 1}})))
        driver.send("rows", [{"k": "c", "v": 2}])
        driver.send("rows", [{"k": "c", "v": None}])
        driver.send("rows", [{"k": "a", "v": None}])
        assert dict(driver.state("names").items()) == {}
        driver.send("rows", [{"k": "a", "v": 2}, {"k": "b", "v": 3}])
        assert dict(driver.state("names").items()) == {"a": {"n": 2}, "b": {"n": 3}}
        driver.restart(lose_replicas=True)
        driver.send("rows", [{"k": "a", "v": 4}])
        assert dict(driver.state("names").items()) == {"a": {"n": 4}, "b": {"n": 3}}
    assert cells(tmp_path, "dropped") == [("a", "v:n"), ("a", "~"), ("b", "v:n"), ("b", "~")]


def test_it_is_refused_where_it_cannot_be_done_and_nothing_is_touched() -> None:
    storage = open_storage("memory://")
    with pytest.raises(mp.errors.InvalidUse, match="is a function of key and value"):
        mp.lazily({1: lambda key, value: (key, value)})
    with pytest.raises(mp.errors.InvalidUse, match="expected migrations by version"):
        mp.lazily([value_to_2])  # type: ignore[arg-type]
    with mp.testing.TestDriver(totals(), storage) as driver:
        driver.send("rows", [("a", 1), ("b", 2)])
        with pytest.raises(mp.errors.Incompatible, match="without a way from 1 to 2"):
            driver.restart(totals(3, mp.lazily({2: value_to_3})))
        driver.restart(totals(2, TO_2))
        driver.send("rows", [("a", 1)])
        with pytest.raises(mp.errors.Incompatible, match="version 2, and the program says version=1"):
            driver.restart(totals(1))
        with pytest.raises(mp.errors.Incompatible, match=r"was migrated lazily, and may still keep state of version 1"):
            driver.restart(totals(2))
        with pytest.raises(mp.errors.Incompatible, match="without a way from 1 to 2"):
            driver.restart(totals(3, {2: value_to_3}))
        driver.restart(totals(2, TO_2), lose_replicas=True)
        assert dict(driver.state("total").items()) == {"a": {"sum": 2}, "b": {"sum": 2}}


@pytest.mark.parametrize("kind", ["stateful_map", "apply"])
def test_a_migration_that_fails_stops_the_batch_whatever_happens_to_rows(kind: str) -> None:
    def app(version: int, migrate: Any = None) -> mp.App:
        app = mp.App("fails", partitions=1)
        rows = app.stream("rows", mp.sources.rows([]), on_error="skip").key_by("k")
        if kind == "apply":
            rows.apply("kept", lambda row, state: state.set("n", row["v"]), version=version, migrate=migrate)
        else:
            rows.stateful_map("kept", lambda k, row, n: (None, row["v"]), initial=0, version=version, migrate=migrate)
        return app

    def fails(value: Any) -> Any:
        raise ValueError("no")

    with mp.testing.TestDriver(app(1)) as driver:
        driver.send("rows", [{"k": "a", "v": 1}])
        driver.restart(app(2, mp.lazily({1: fails})))
        driver.send("rows", [{"k": "b", "v": 1}])
        with pytest.raises(mp.errors.Incompatible, match="its migration raised ValueError: no, for the key 'a'"):
            driver.send("rows", [{"k": "a", "v": 2}])


def test_rollback_and_savepoints_know_the_version_of_every_key(tmp_path: Any) -> None:
    place = str(tmp_path / "state")
    with mp.testing.TestDriver(totals(), place) as driver:
        driver.send("rows", [("a", 1), ("b", 2), ("c", 3)])
        driver.restart(totals(2, TO_2))
        driver.send("rows", [("b", 1)])
        number = mp.open(place, "totals").newest.number
        driver.send("rows", [("c", 1)])
        driver.restart(totals(3, {1: value_to_2, 2: value_to_3}))
        driver.send("rows", [("a", 1), ("d", 1)])
    opened = mp.open(place, "totals")
    admin = mp.admin(place, "totals")
    admin.savepoint(tmp_path / "saved", batch=number)
    admin.rollback(number)
    moved = mp.App("moved", str(tmp_path / "moved"))
    moved.restore(tmp_path / "saved")
    for state in (opened.state("total"), moved.state("total")):
        assert dict(state.items()) == {"a": 1, "b": {"sum": 3}, "c": 3}
    with pytest.raises(mp.errors.Incompatible, match="may still keep state of version 1"):
        mp.testing.TestDriver(totals(2), place)
    with mp.testing.TestDriver(totals(3, TO_3), place) as driver:
        assert dict(driver.state("total").items()) == {"a": shape(3, 101), "b": shape(3, 103), "c": shape(3, 103)}


def test_who_only_looks_rows_up_is_given_the_newest_and_writes_nothing(tmp_path: Any) -> None:
    def app(version: int, migrate: Any = None) -> mp.App:
        app = mp.App("totals", partitions=2)
        updates = app.stream("updates", mp.sources.rows([])).key_by("k")
        table = app.table("total", updates, everywhere=True, version=version, migrate=migrate)
        rows = app.stream("rows", mp.sources.rows([]))
        rows.lookup("found", table, on="k").to("out", mp.sinks.memory())
        return app

    with mp.testing.TestDriver(app(1), str(tmp_path)) as driver:
        driver.send("updates", [{"k": "a", "v": 1}, {"k": "b", "v": 2}])
        driver.restart(app(2, mp.lazily({1: row_to_2})))
        driver.send({"rows": [{"k": "a"}], "updates": [{"k": "b", "v": 3}]})
        driver.send("rows", [{"k": "b"}])
        assert driver.output("out") == [{"k": "a", "v": 1, "two": 2}, {"k": "b", "v": 3}]
        assert mp.open(str(tmp_path), "totals").state("total").get("a") == {"k": "a", "v": 1}
