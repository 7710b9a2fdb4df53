"""Lookups in a database that is not ours: asked once for many rows, and remembered for a while."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from outside import Calls, Outside
from small_programs import PARTITIONS, piped

import millpond as mp
from millpond.driver.commit import STEPS
from millpond.errors import InvalidUse, StepFailed
from millpond.testing import Crashed, TestDriver


class Database(Outside):
    """Remembers what it was asked."""

    def __init__(self, **rows: Any) -> None:
        self.rows, self.asked = dict[Any, Any](rows), list[list[Any]]()

    def __call__(self, keys: list[Any]) -> dict[Any, Any]:
        self.asked.append(sorted(keys, key=str))
        return {key: self.rows[key] for key in keys if key in self.rows}


def people() -> Database:
    return Database(a={"name": "Ann"}, b={"name": "Bob"})


def row(who: Any, n: int = 0) -> dict[str, Any]:
    return {"who": who, "n": n}


def program(fetch: Any, partitions: int = 1, how: Any = "left", **cache: Any) -> mp.App:
    app = mp.App("shop", partitions=partitions)
    rows = app.stream("rows", mp.sources.rows([]))
    rows.lookup("person", mp.external(fetch, **cache), on="who", how=how).to("out", mp.sinks.memory())
    return app


def test_it_is_asked_once_for_all_rows_of_a_chunk_and_for_no_key_twice():
    people_asked = people()
    with TestDriver(program(people_asked)) as driver:
        driver.send("rows", [row("a", 1), row("b", 2), row("a", 3), row("x", 4)])
        assert driver.output("out") == [
            {"who": "a", "n": 1, "name": "Ann"},
            {"who": "b", "n": 2, "name": "Bob"},
            {"who": "a", "n": 3, "name": "Ann"},
            {"who": "x", "n": 4},
        ]
    assert people_asked.asked == [["a", "b", "x"]]


def test_an_inner_lookup_leaves_out_what_it_does_not_know():
    with TestDriver(program(Database(a={"name": "Ann"}, b=None), how="inner")) as driver:
        driver.send("rows", [row("a"), row("b"), row("x")])
        assert [found["who"] for found in driver.output("out")] == ["a"]


def test_what_was_fetched_is_remembered_and_also_that_there_was_nothing():
    people_asked = people()
    with TestDriver(program(people_asked)) as driver:
        driver.send("rows", [row("a"), row("x")])
        driver.send("rows", [row("a"), row("x"), row("b")])
        driver.send("rows", [row("a"), row("x"), row("b")])
        assert [found.get("name") for found in driver.output("out")] == [
            "Ann",
            None,
            "Ann",
            None,
            "Bob",
            "Ann",
            None,
            "Bob",
        ]
    assert people_asked.asked == [["a", "x"], ["b"]]


def test_what_is_remembered_is_believed_until_it_expires():
    people_asked = people()
    with TestDriver(program(people_asked, expire="5m")) as driver:
        driver.send("rows", [row("a")])
        people_asked.rows["a"] = {"name": "Anna"}
        driver.advance("4m")
        driver.send("rows", [row("a")])
        driver.advance("1m")
        driver.send("rows", [row("a")])
        assert [found["name"] for found in driver.output("out")] == ["Ann", "Ann", "Anna"]


def test_without_an_end_it_is_believed_for_as_long_as_the_process_lives():
    people_asked = people()
    with TestDriver(program(people_asked, expire=None)) as driver:
        driver.send("rows", [row("a")])
        driver.advance("1000d")
        driver.send("rows", [row("a")])
        assert people_asked.asked == [["a"]]
        driver.restart()
        driver.send("rows", [row("a")])
        assert people_asked.asked == [["a"], ["a"]], "a new process remembers nothing"


def test_the_keys_asked_for_longest_ago_are_forgotten_first():
    people_asked = people()
    with TestDriver(program(people_asked, cache=2)) as driver:
        for who in "abacb":
            driver.send("rows", [row(who)])
        assert people_asked.asked == [["a"], ["b"], ["c"], ["b"]]
        driver.send("rows", [row(who) for who in "abcde"])
        assert [found.get("name") for found in driver.output("out")[-5:]] == ["Ann", "Bob", None, None, None]


def test_without_a_cache_it_is_asked_every_time():
    people_asked = people()
    with TestDriver(program(people_asked, cache=0)) as driver:
        for _ in range(2):
            driver.send("rows", [row("a"), row("a")])
        assert people_asked.asked == [["a"], ["a"]]
        assert [found["name"] for found in driver.output("out")] == ["Ann"] * 4


def test_fetch_may_be_a_coroutine_function():
    async def fetch(keys):
        return {key: {"name": key.upper()} for key in keys}

    with TestDriver(program(fetch)) as driver:
        driver.send("rows", [row("a")])
        assert driver.output("out") == [{"who": "a", "n": 0, "name": "A"}]


def test_what_is_found_belongs_to_who_found_it():
    def merge(row, found):
        found["tags"].append(row["n"])
        return found["tags"]

    def build(s):
        return s.lookup("l", mp.external(Database(a={"tags": []})), on="who", merge=merge)

    assert piped(build, [row("a", 1), row("a", 2)]) == [[1], [2]]


@PARTITIONS
def test_a_keyed_stream_is_looked_up_by_its_key_and_keeps_it(partitions):
    def build(s):
        found = s.key_by("who").lookup("person", mp.external(people()), merge=lambda row, found: found["name"])
        return found.apply("by", lambda name, state: [state.key, state.time, name])

    rows = [{**row("a"), "at": 1}, {**row("b"), "at": 2}, {**row("a"), "at": 3}]
    assert piped(build, rows, timestamp="at", partitions=partitions) == [
        ["a", 1, "Ann"],
        ["b", 2, "Bob"],
        ["a", 3, "Ann"],
    ]


def test_on_is_a_field_several_or_a_function_and_nothing_looks_nothing_up():
    database = Database()
    database.rows = {("a", 1): "first", 2: "second"}

    def found(on, rows):
        return piped(lambda s: s.lookup("l", mp.external(database), on=on, merge=lambda row, found: found), rows)

    assert found(("who", "n"), [row("a", 1), row("a", 2), row(None, 1)]) == ["first", None, None]
    assert found(lambda row: row + 1, [1, 2]) == ["second", None]
    assert found("who", [row(None), row(2)]) == [None, "second"]
    assert database.asked == [[("a", 1), ("a", 2)], [2, 3], [2]]


# --- what fails ---


class Down(Outside):
    """A database that answers after so many attempts."""

    def __init__(self, attempts: int) -> None:
        self.attempts, self.asked = attempts, 0

    def __call__(self, keys: list[Any]) -> dict[Any, Any]:
        self.asked += 1
        if self.asked <= self.attempts:
            raise ConnectionError("the database is down")
        return {key: {"name": key} for key in keys}


def looked_up(fetch: Any, rows: list[Any], **how: Any) -> tuple[list[Any], list[Any]]:
    app = mp.App("shop")
    app.stream("rows", mp.sources.rows([])).lookup("person", mp.external(fetch), on="who", **how).to(
        "out", mp.sinks.memory()
    )
    app.dead_letters.to("dead", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", rows)
        return driver.output("out"), driver.output("dead")


def test_a_question_that_fails_stops_the_app():
    with pytest.raises(StepFailed, match="ConnectionError: the database is down") as failed:
        looked_up(Down(1), [row("a")])
    assert (failed.value.step, failed.value.row) == ("person", row("a"))


def test_a_question_that_fails_is_asked_again_as_retry_says():
    down = Down(2)
    out, _ = looked_up(down, [row("a"), row("b")], on_error=mp.retry(2))
    assert ([found["name"] for found in out], down.asked) == (["a", "b"], 3)
    with pytest.raises(StepFailed, match="the database is down"):
        looked_up(Down(3), [row("a")], on_error=mp.retry(2))


def test_only_rows_that_needed_the_answer_fail():
    app = mp.App("shop")
    database = people()
    answers = iter([database, Down(9)])
    current = Calls()

    def fetch(keys):
        return current[-1](keys)

    rows = app.stream("rows", mp.sources.rows([]))
    rows.lookup("person", mp.external(fetch), on="who", on_error="dead-letter").to("out", mp.sinks.memory())
    app.dead_letters.to("dead", mp.sinks.memory())
    with TestDriver(app) as driver:
        current.append(next(answers))
        driver.send("rows", [row("a")])
        current.append(next(answers))
        driver.send("rows", [row("b", 1), row("a", 2), row("c", 3), row(None, 4)])
        assert [(found["n"], found.get("name")) for found in driver.output("out")] == [
            (0, "Ann"),
            (2, "Ann"),
            (4, None),
        ]
        assert [(x["row"]["n"], x["step"]) for x in driver.output("dead")] == [(1, "person"), (3, "person")]


def test_an_answer_that_is_no_dict_is_told():
    with pytest.raises(StepFailed, match="fetch: expected a dict of rows by key, got a value of type list: "):
        looked_up(lambda keys: [1], [row("a")])


def test_a_key_that_no_dict_can_have_and_a_field_that_is_not_there_fail_with_their_row_alone():
    out, dead = looked_up(people(), [row(["a"]), {"n": 1}, row("a")], on_error="dead-letter")
    assert [found["name"] for found in out] == ["Ann"]
    assert [letter["error"] for letter in dead] == [
        "expected a key that a dict can have, got a value of type list: ['a']",
        "the row has no field 'who'; it has: 'n'",
    ]


def test_what_is_no_external_database_is_refused():
    with pytest.raises(InvalidUse, match=r"external\(fetch\): expected a function of a list of keys, got 3"):
        mp.external(3)  # type: ignore[arg-type]
    for wrong in (-1, 1.5, None, True):
        with pytest.raises(InvalidUse, match=r"external\(cache\): expected a whole number of keys, 0 or more"):
            mp.external(people(), cache=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidUse, match=r"external\(expire\): expected a duration"):
        mp.external(people(), expire="soon")
    with pytest.raises(InvalidUse, match=r"on\): expected a field or a function that gives a row its key in the ext"):
        piped(lambda s: s.lookup("l", mp.external(people())), [])


@pytest.mark.parametrize("at, when", list(itertools.product(STEPS, ["before", "during", "after"])))
def test_a_crash_anywhere_gives_each_row_once(at, when):
    with TestDriver(program(people(), partitions=2)) as driver:
        driver.send("rows", [row("a", 0)])
        driver.crash(at, when)
        with pytest.raises(Crashed):
            driver.send("rows", [row("b", 1), row("x", 2)])
        driver.restart()
        assert [(found["n"], found.get("name")) for found in driver.output("out")] == [
            (0, "Ann"),
            (1, "Bob"),
            (2, None),
        ]
