"""Rules: functions with state read whole tables, which change while rows flow."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from damaged_replicas import Damage
from local_drivers import run_locally
from small_drivers import Lanes
from small_rebuilds import rebuild

import millpond as mp
from millpond.driver.commit import STEPS
from millpond.errors import InvalidUse, StepFailed
from millpond.testing import Crashed, TestDriver

PARTITIONS = pytest.mark.parametrize("partitions", [1, 3])


def is_gone(rule: dict[str, Any]) -> bool:
    return rule.get("above") is None


def alerts(row: dict[str, Any], state: mp.State) -> list[dict[str, Any]]:
    """An output for each rule that a row breaks, with the number of rows that its key has had."""
    state.set("n", state.get("n", 0) + 1)
    rules = state.table("rules").items()
    return [{"row": row["id"], "rule": name, "n": state.get("n")} for name, rule in rules if row["v"] > rule["above"]]


def checked(f: Callable[..., Any] = alerts, verb: str = "flat_apply", partitions: int | None = 2, **how: Any) -> mp.App:
    """Rows by sensor, which a function checks against rules."""
    app = mp.App("alerts", partitions=partitions, keep=1000)
    changes = app.stream("changes", mp.sources.rows([]), **how.pop("time", {}))
    rules = app.table("rules", changes.key_by("rule"), everywhere=True, deleted=is_gone, **how.pop("table", {}))
    rows = app.stream("rows", mp.sources.rows([])).key_by("sensor")
    getattr(rows, verb)("check", f, tables=[rules], **how).to("out", mp.sinks.memory())
    app.dead_letters.to("dead", mp.sinks.memory())
    return app


def row(id: int, v: int, sensor: str = "a") -> dict[str, Any]:
    return {"id": id, "v": v, "sensor": sensor}


def rule(name: Any, above: int | None, **more: Any) -> dict[str, Any]:
    return {"rule": name, "above": above, **more}


def broken(driver: TestDriver, since: int = 0) -> list[tuple[int, str]]:
    return [(found["row"], found["rule"]) for found in driver.output("out")[since:]]


@PARTITIONS
def test_every_row_is_checked_against_every_rule_while_rules_change(partitions: int) -> None:
    with TestDriver(checked(partitions=partitions)) as driver:
        driver.send("rows", [row(0, 9)])
        driver.send({"rows": [row(1, 4, "a"), row(2, 8, "b")], "changes": [rule("high", 7), rule("any", 0)]})
        assert broken(driver) == [(1, "any"), (2, "any"), (2, "high")], "changes come first, and rules are in order"
        driver.send("rows", [row(3, 8, "c")])
        driver.send({"rows": [row(4, 8, "a")], "changes": [rule("any", None), rule("high", 8), rule("new", 3)]})
        driver.send("rows", [row(5, 9, "b")])
        assert broken(driver, 3) == [(3, "any"), (3, "high"), (4, "new"), (5, "high"), (5, "new")]
        assert driver.state("check").get("a") == {"n": 3}


@pytest.mark.parametrize("verb", ["apply", "flat_apply", "update", "stateful_filter"])
def test_all_verbs_with_a_state_handle_read_tables(verb: str) -> None:
    def f(row: Any, state: Any) -> Any:
        found = state.table("rules").get(row["sensor"])
        row["found"] = found and found["above"]
        return [row] if verb == "flat_apply" else row if verb == "apply" else found is not None

    with TestDriver(checked(f, verb)) as driver:
        driver.send({"rows": [row(1, 1, "a"), row(2, 2, "b")], "changes": [rule("a", 5)]})
        found = [(each["id"], each["found"]) for each in driver.output("out")]
        assert found == ([(1, 5)] if verb == "stateful_filter" else [(1, 5), (2, None)])


class Delayed:
    """Checks a row when it comes, and again when its timer fires."""

    def on_row(self, key: Any, row: Any, state: Any, timers: Any) -> Any:
        timers.set_wall("again", after="1m", payload=row["id"])
        return {"row": row["id"], "rules": [name for name, _ in state.table("rules").items()]}

    def on_timer(self, key: Any, timer: Any, state: Any, timers: Any) -> Any:
        table = state.table("rules")
        return {"timer": timer.payload, "rules": [name for name, _ in table.items()], "batch": table.batch}


def test_rows_and_timers_of_a_processor_read_tables() -> None:
    with TestDriver(checked(Delayed, "process")) as driver:
        driver.send({"rows": [row(1, 1)], "changes": [rule("x", 1)]})
        driver.send("changes", [rule("y", 1)])
        driver.advance("1m")
        first, second = driver.output("out")
        assert first == {"row": 1, "rules": ["x"]}
        assert second["rules"] == ["x", "y"]


def test_the_handle_names_the_batch_whose_changes_it_includes() -> None:
    def version(row: Any, state: Any) -> Any:
        table = state.table("rules")
        return {"batch": table.batch, "rules": {each["above"] for _, each in table.items()}, "text": repr(table)}

    with TestDriver(checked(version, "apply", partitions=3)) as driver:
        names = [f"r{n}" for n in range(20)]
        for number in range(4):
            changes = [rule(name, number) for name in names] if number % 2 == 0 else []
            driver.send({"rows": [row(n, 1, f"s{n}") for n in range(20)], "changes": changes})
        found = driver.output("out")
        by_batch: dict[int, list[Any]] = {}
        for each in found:
            by_batch.setdefault(each["batch"], []).append(each["rules"])
        assert list(by_batch.values()) == [[{n}] * 20 for n in (0, 0, 2, 2)]
        _, second = driver.state("rules").history("r0")
        assert second.batch == list(by_batch)[2]
        assert found[0]["text"] == f"StateTable('rules', batch={found[0]['batch']})"


def test_what_a_function_reads_is_its_own() -> None:
    def spoil(row: Any, state: Any) -> Any:
        table = state.table("rules")
        for found in (
            table.get("x"),
            next(table.items())[1],
            next(table.prefix("x"))[1],
            next(table.range("x", "x"))[1],
        ):
            assert found["tags"] == ["t"] and found["above"] == 1 and "spoilt" not in found
            found["tags"].append(row["id"])
            found["above"], found["spoilt"] = 99, True
        plain = table.get("y")
        assert plain == rule("y", 2)
        listed = dict(table.items())["y"]
        assert listed == rule("y", 2)
        plain["spoilt"] = listed["spoilt"] = True
        return row["id"]

    with TestDriver(checked(spoil, "apply", partitions=1)) as driver:
        driver.send({"rows": [row(1, 1), row(2, 1)], "changes": [rule("x", 1, tags=["t"]), rule("y", 2)]})
        driver.send("rows", [row(3, 1), row(4, 1)])
        assert driver.output("out") == [1, 2, 3, 4]
        assert driver.state("rules").get("x") == rule("x", 1, tags=["t"])


# --- keys ---


@pytest.fixture(params=["few rules", "many rules"])
def kept(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table whose rows a process keeps in order, or one that is too large for that."""
    if request.param == "many rules":
        monkeypatch.setattr("millpond.steps.state.table_rows.MOST_ORDERED", 1)
        monkeypatch.setattr("millpond.steps.state.table_rows.MOST_POINTS", 5)
        monkeypatch.setattr("millpond.steps.state.table_rows.CHUNK", 2)


def answers(keys: list[Any], question: Callable[[Any], Any], halves: bool = True) -> Any:
    """What a function finds in a table with these keys, of which half come in the same batch as the question."""
    app = mp.App("keys", partitions=2)
    table = app.table("t", app.stream("changes", mp.sources.rows([])).key_by(key=lambda pair: pair["k"]), True)
    asked = app.stream("asked", mp.sources.rows([])).key_by(key=lambda row: row["key"])
    asked.apply("ask", lambda row, state: question(state.table("t")), tables=[table]).to("out", mp.sinks.memory())
    middle = len(keys) // 2
    with TestDriver(app) as driver:
        driver.send("changes", [{"k": key} for key in keys[:middle]])
        driver.send({"changes": [{"k": key} for key in keys[middle:]], "asked": [{"key": 1}]})
        [found] = driver.output("out")
        return found


LONG = "ab" * 150
TEXTS = [
    "ab",
    "a",
    "b",
    "",
    "a!",
    "a b",
    'a"',
    "a\\",
    "aé",
    "a\n",
    "a\x01",
    "a𝄞",
    LONG,
    LONG + "x",
    LONG + "y",
    "A",
    "a~",
]


def names(pairs: Any) -> list[Any]:
    """The keys of pairs, each of which comes with its row."""
    found = list(pairs)
    assert all(row == {"k": key} for key, row in found)
    return [key for key, _ in found]


def names_in_range(first: Any, last: Any, table: Any) -> list[Any]:
    return names(table.range(first, last))


@pytest.mark.usefixtures("kept")
def test_items_come_in_the_natural_order_of_their_keys() -> None:
    assert answers(TEXTS, lambda table: names(table.items())) == sorted(TEXTS)
    numbers = [5, -1, 10, 9, 0, 100, -20, 1 << 70]
    assert answers(numbers, lambda table: names(table.items())) == sorted(numbers)
    days = [date(2030, 1, 2), date(2029, 12, 31), date(2030, 1, 1)]
    assert answers(days, lambda table: names(table.items())) == sorted(days)
    parts = [("b", 2), ("a", 10), ("a", 9), ("a",), ("b",), ("a", 9, 1)]
    assert answers(parts, lambda table: names(table.items())) == sorted(parts)
    mixed = ["b", 2, ("a",), True, "a", 1]
    assert answers(mixed, lambda table: names(table.items())) == [True, 1, 2, "a", "b", ("a",)]


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("beginning", ["", "a", "a!", 'a"', "ab", LONG, "é", "zz"])
def test_a_prefix_finds_the_texts_that_begin_so_in_order(beginning: str) -> None:
    wanted = sorted(text for text in TEXTS if text.startswith(beginning))
    assert answers([*TEXTS, 5, ("a",)], lambda table: names(table.prefix(beginning))) == wanted


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("beginning", [(), ("a",), (1,), ("a", 1), ("a", 1, 2, 3)])
def test_a_prefix_of_parts_finds_the_tuples_whose_first_parts_these_are(beginning: tuple[Any, ...]) -> None:
    keys: list[Any] = [("a", 1), ("a", 12), ("ab", 1), (1, 2), (12, 2), (1,), ("a", 1, 2), "a", 1]
    tuples = [key for key in keys if isinstance(key, tuple)]
    wanted = [key for key in tuples if key[: len(beginning)] == beginning]
    assert answers(keys, lambda table: sorted(names(table.prefix(beginning)), key=repr)) == sorted(wanted, key=repr)


@pytest.mark.usefixtures("kept")
def test_a_range_includes_both_ends_and_is_empty_if_they_are_swapped() -> None:
    numbers = [-5, 1, 2, 3, 9, 10, 11, 40, True]
    assert answers(numbers, lambda table: names(table.range(2, 4))) == [2, 3]
    assert answers(numbers, lambda table: names(table.range(-5, 10))) == [-5, 1, 2, 3, 9, 10]
    assert answers(numbers, lambda table: names(table.range(10, 2))) == []
    for first, last in (("a", "a~"), ("a!", 'a"'), ("", "zz"), ("b", "a"), (LONG, LONG + "x")):
        wanted = sorted(text for text in TEXTS if first <= text <= last)
        assert answers([*TEXTS, 7], partial(names_in_range, first, last)) == wanted
    parts = [("a", 1), ("a", 5), ("a", 50), ("a", 7), ("b", 1), ("a",)]
    assert answers(parts, lambda table: names(table.range(("a", 5), ("a", 50)))) == [("a", 5), ("a", 7), ("a", 50)]
    times = [datetime(2030, 1, 1, hour, tzinfo=UTC) for hour in (3, 1, 2)]
    assert answers(times, lambda table: names(table.range(times[1], times[2]))) == [times[1], times[2]]


@pytest.mark.usefixtures("kept")
def test_get_returns_the_row_of_a_key_or_the_default() -> None:
    keys = [1, "1", True, ("a", 1), date(2030, 1, 1)]
    assert answers(keys, lambda table: [table.get(key)["k"] for key in keys]) == keys
    assert answers(
        keys, lambda table: [table.get(2), table.get("x", 0), table.get(None, 3), table.get((None,), 4)]
    ) == [
        None,
        0,
        3,
        4,
    ]


# --- a plain model ---


def ask(table: Any, question: list[Any]) -> Any:
    """The answer of a table, or of the model of one, to a question."""
    how, *arguments = question
    if how == "get":
        return table.get(*arguments)
    return list(getattr(table, how)(*arguments))


class Model:
    """What the table would be as a plain dict."""

    def __init__(self) -> None:
        self.rows: dict[str, Any] = {}

    def get(self, key: str) -> Any:
        return self.rows.get(key)

    def items(self) -> Any:
        return [(key, self.rows[key]) for key in sorted(self.rows)]

    def prefix(self, text: str) -> Any:
        return [(key, found) for key, found in self.items() if key.startswith(text)]

    def range(self, first: str, last: str) -> Any:
        return [(key, found) for key, found in self.items() if first <= key <= last]


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("seed", range(8))
def test_random_tables_answer_as_a_plain_dict_would(seed: int) -> None:
    rng = random.Random(seed)
    keys = [rng.choice("ab ") * rng.randrange(4) + rng.choice(["", "x", '"', "é"]) for _ in range(12)]

    def application(partitions: int) -> mp.App:
        app = mp.App("oracle", partitions=partitions, compact_every=rng.choice([2, 50]))
        changes = app.stream("changes", mp.sources.rows([])).key_by("rule")
        table = app.table("t", changes, everywhere=True, deleted=is_gone)
        asked = app.stream("asked", mp.sources.rows([])).key_by("who")

        def answer(row: Any, state: Any) -> Any:
            state.set("n", state.get("n", 0) + 1)
            return {"id": row["id"], "n": state.get("n"), "found": ask(state.table("t"), row["question"])}

        asked.apply("ask", answer, tables=[table]).to("out", mp.sinks.memory())
        asked.lookup("look", table, on="key", merge=lambda row, found: [row["id"], found]).to("seen", mp.sinks.memory())
        return app

    model, counts = Model(), dict.fromkeys("pqr", 0)
    wanted: list[Any] = []
    looked: list[Any] = []
    number = 0
    with TestDriver(application(rng.randrange(1, 4))) as driver:
        for _ in range(10):
            changes = []
            for _ in range(rng.choice([0, 0, 1, 5])):
                key, above = rng.choice(keys), rng.choice([None, rng.randrange(100)])
                changes.append(rule(key, above, more=[1]) if rng.random() < 0.3 else rule(key, above))
                if above is None:
                    model.rows.pop(key, None)
                else:
                    model.rows[key] = changes[-1]
            asked = []
            for _ in range(rng.randrange(6)):
                key, other, who, number = rng.choice(keys), rng.choice(keys), rng.choice("pqr"), number + 1
                question = rng.choice([["get", key], ["items"], ["prefix", key[:1]], ["range", key, other]])
                asked.append({"id": number, "who": who, "key": key, "question": question})
                counts[who] += 1
                wanted.append({"id": number, "n": counts[who], "found": ask(model, question)})
                looked.append([number, model.get(key)])
            act = rng.randrange(5)
            if act == 0:
                driver.crash(at=rng.choice(STEPS), when=rng.choice(["before", "during", "after"]))
            with contextlib.suppress(Crashed):
                driver.send({"changes": changes, "asked": asked})
            if act < 2:
                driver.restart(application(rng.randrange(1, 4)), lose_replicas=rng.random() < 0.5)
        driver.restart()
        by_id = sorted(driver.output("out"), key=lambda found: found["id"])
        assert by_id == wanted
        assert sorted(driver.output("seen"), key=lambda found: found[0]) == looked


# --- when something fails ---


@pytest.mark.parametrize("when", ["before", "during", "after"])
@pytest.mark.parametrize("at", STEPS)
@pytest.mark.parametrize("lose_replicas", [False, True])
def test_a_crash_anywhere_changes_nothing(at: Any, when: Any, lose_replicas: bool) -> None:
    with TestDriver(checked(partitions=3)) as driver:
        driver.send({"rows": [row(1, 4)], "changes": [rule("low", 1), rule("high", 7)]})
        driver.crash(at=at, when=when)
        with contextlib.suppress(Crashed):
            driver.send({"rows": [row(2, 8), row(3, 8, "b")], "changes": [rule("low", None), rule("mid", 5)]})
        driver.restart(lose_replicas=lose_replicas)
        driver.send("rows", [row(4, 6, "b")])
        assert broken(driver) == [(1, "low"), (2, "high"), (2, "mid"), (3, "high"), (3, "mid"), (4, "mid")]
        assert {key: found["n"] for key, found in driver.state("check").items()} == {"a": 2, "b": 2}


def test_rules_are_the_same_with_another_number_of_partitions() -> None:
    with TestDriver(checked(partitions=2)) as driver:
        driver.send("changes", [rule(f"r{n}", n) for n in range(9)])
        driver.send("rows", [row(1, 4)])
        for partitions in (5, 1, 3):
            driver.restart(checked(partitions=partitions))
            driver.send({"rows": [row(partitions, 4, f"s{partitions}")], "changes": [rule("r0", None)]})
        assert broken(driver)[4:] == [(n, f"r{m}") for n in (5, 1, 3) for m in range(1, 4)]


@pytest.mark.parametrize("read", ["get", "items", "prefix", "range"])
def test_a_damaged_table_is_rebuilt_where_a_function_reads_it(read: str) -> None:
    damage = Damage(b"MARKER")

    def check(row: Any, state: Any) -> Any:
        damage()
        try:
            question = {"get": ["x"], "items": [], "prefix": ["x"], "range": ["x", "x"]}[read]
            found = ask(state.table("rules"), [read, *question])
            return str(found).count("MARKER")
        except Exception:  # damage of a store is none of a function's business
            return "damage was seen"

    with TestDriver(checked(check, "apply", partitions=1)) as driver:
        driver.send("changes", [rule("x", 1, note="MARKER")])
        driver.send("changes", [rule("y", 1)])
        driver.send("changes", [rule("y", 2)])
        [folder] = Path(driver._home).rglob("table-rules-*")
        damage.begin(folder, 2)
        driver.send("rows", [row(1, 1)])
        assert damage.left == 0
        assert driver.output("out") == [1]


def test_a_row_that_fails_is_handled_by_on_error_and_changes_no_state() -> None:
    def check(row: Any, state: Any) -> Any:
        state.set("n", state.get("n", 0) + 1)
        return state.table("rules").get(row["id"])["above"]

    with TestDriver(checked(check, "apply", on_error="dead-letter")) as driver:
        driver.send({"rows": [row(1, 1), row(2, 1), row(1, 1)], "changes": [rule(1, 7)]})
        assert driver.output("out") == [7, 7]
        assert [letter["row"]["id"] for letter in driver.output("dead")] == [2]
        assert driver.state("check").get("a") == {"n": 2}


def test_rules_expire_and_the_next_row_does_not_meet_them() -> None:
    app = checked(time={"timestamp": "at"}, table={"ttl": 10})
    with TestDriver(app) as driver:
        driver.send("changes", [rule("old", 0, at=0), rule("young", 0, at=5)])
        driver.send({"rows": [row(1, 1)], "changes": [rule("clock", 99, at=9)]})
        driver.send({"rows": [row(2, 1)], "changes": [rule("clock", 99, at=12)]})
        driver.restart(lose_replicas=True)
        driver.send("rows", [row(3, 1)])
        assert broken(driver) == [(1, "old"), (1, "young"), (2, "young"), (3, "young")]


def upgrade(rule: dict[str, Any]) -> dict[str, Any]:
    return {**rule, "above": rule["above"] * 10, "version": 2}


@pytest.mark.usefixtures("kept")
def test_functions_read_the_newest_version_of_rules_that_are_migrated_lazily() -> None:
    def read(row: Any, state: Any) -> Any:
        table = state.table("rules")
        return [
            table.get("a")["above"],
            [found["above"] for _, found in table.items()],
            [found["above"] for _, found in table.prefix("b")],
            [found["above"] for _, found in table.range("b", "c")],
        ]

    with TestDriver(checked(read, "apply")) as driver:
        driver.send("changes", [rule("a", 1), rule("b", 2), rule("c", 3)])
        driver.restart(checked(read, "apply", table={"version": 2, "migrate": mp.lazily({1: upgrade})}))
        driver.send("rows", [row(1, 1)])
        driver.send({"rows": [row(2, 1)], "changes": [rule("b", 5)]})
        driver.send("rows", [row(3, 1)])
        before, after = [10, [10, 20, 30], [20], [20, 30]], [10, [10, 5, 30], [5], [5, 30]]
        assert driver.output("out") == [before, after, after]


def test_a_rebuild_gives_the_same_state_as_the_batches_did(tmp_path: Path) -> None:
    app = mp.App("again", str(tmp_path / "state"), partitions=2, local_dir=str(tmp_path / "local"))
    source = Lanes({"a": [rule("x", 1), rule("y", 3), rule("x", 4), rule("y", None)]})
    rules = app.table("rules", app.stream("changes", source).key_by("rule"), everywhere=True, deleted=is_gone)

    def count(row: Any, state: Any) -> Any:
        hits = sum(row["v"] > each["above"] for _, each in state.table("rules").items())
        state.set("hits", [*state.get("hits", []), hits])

    rows = app.stream("rows", Lanes({"b": [row(n, 5, f"s{n % 2}") for n in range(8)]})).key_by("sensor")
    rows.apply("hits", count, tables=[rules]).to("out", mp.sinks.memory())
    run_locally(app)
    assert app.state("hits").get("s0") == {"hits": [1, 1, 1, 1]}, "all rules were read first"
    assert list(rebuild(app, "hits")) == []


# --- what is refused ---


def test_only_tables_of_the_app_that_are_everywhere_can_be_read() -> None:
    app, other = mp.App("a"), mp.App("b")
    rows = app.stream("rows", mp.sources.rows([])).key_by("k")
    here = app.table("here", rows)
    elsewhere = other.table("t", other.stream("rows", mp.sources.rows([])).key_by("k"), everywhere=True)
    with pytest.raises(
        InvalidUse, match=r"apply\('x', tables\): expected tables that every worker has .*everywhere=True"
    ):
        rows.apply("x", lambda row, state: None, tables=[here])
    with pytest.raises(InvalidUse, match=r"update\('y', tables\): expected tables of the same app"):
        rows.update("y", lambda row, state: None, tables=[elsewhere])
    with pytest.raises(InvalidUse, match=r"process\('z', tables\): expected tables of the same app.*got 'here'"):
        rows.process("z", Delayed, tables=["here"])  # type: ignore[list-item]
    with pytest.raises(InvalidUse, match=r"flat_apply\('w', tables\): expected a list of tables.*got table 'here'"):
        rows.flat_apply("w", lambda row, state: None, tables=here)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (lambda state: state.table("rule"), r"state.table\('rule'\): expected one of .* which are: 'rules'"),
        (lambda state: state.table("rules").prefix(5), "expected a text, or a tuple of the first parts of keys, got 5"),
        (lambda state: state.table("rules").range(1, "a"), "expected two keys of the same type, got 1 and 'a'"),
        (lambda state: state.table("rules").range(1, None), "a key cannot be None"),
        (lambda state: state.table("rules").get(1.5), "expected a key of str, .* got the float 1.5"),
    ],
)
def test_questions_that_make_no_sense_are_refused(question: Any, message: str) -> None:
    app = checked(lambda row, state: question(state), "apply")
    with TestDriver(app) as driver, pytest.raises(StepFailed, match=message):
        driver.send("rows", [row(1, 1)])


def test_a_step_without_tables_says_how_to_get_them() -> None:
    app = mp.App("a")
    rows = app.stream("rows", mp.sources.rows([])).key_by("k")
    rows.apply("x", lambda row, state: state.table("rules")).to("out", mp.sinks.memory())
    with TestDriver(app) as driver, pytest.raises(StepFailed, match=r"which are: none. Give the step tables="):
        driver.send("rows", [{"k": 1}])


def test_a_table_of_dead_letters_cannot_be_read_before_them() -> None:
    app = mp.App("a")
    rows = app.stream("rows", mp.sources.rows([]), on_error="dead-letter").key_by("k")
    letters = app.table("letters", app.dead_letters.key_by("step"), everywhere=True)
    rows.apply("x", lambda row, state: None, tables=[letters]).to("out", mp.sinks.memory())
    with pytest.raises(InvalidUse, match=r"apply\('x'\) looks into table 'letters', which is made of dead letters"):
        TestDriver(app).__enter__()
