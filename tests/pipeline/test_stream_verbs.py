"""The verbs of any stream, and that no two readers share a row."""

from __future__ import annotations

from typing import Any

import pytest
from outside import Calls
from small_programs import PARTITIONS, nth, piped

import millpond as mp
from millpond.testing import TestDriver


def test_map_makes_a_row_of_each_row():
    assert piped(lambda s: s.map(lambda n: n * 2), [1, 2, 3]) == [2, 4, 6]


def test_filter_keeps_the_rows_for_which_it_is_true():
    assert piped(lambda s: s.filter(lambda n: n % 2), [1, 2, 3]) == [1, 3]
    assert piped(lambda s: s.filter(lambda n: n["x"]), [{"x": []}, {"x": "a"}]) == [{"x": "a"}]


def test_flat_map_makes_any_number_of_rows_of_each():
    assert piped(lambda s: s.flat_map(range), [0, 3, 1]) == [0, 1, 2, 0]
    assert piped(lambda s: s.flat_map(lambda n: (n for _ in range(2))), [1, 2]) == [1, 1, 2, 2]


def test_inspect_shows_each_row_and_lets_it_go_on():
    seen = Calls()
    assert piped(lambda s: s.inspect(seen.append), [1, 2]) == [1, 2]
    assert seen == [1, 2]


def test_with_time_sets_the_time_that_a_step_sees():
    def time_of(row, state):
        return state.time

    def build(s):
        return s.with_time(lambda row: row["at"] + 1).key_by("k").apply("t", time_of)

    assert piped(build, [{"k": 1, "at": 5}, {"k": 2, "at": 3}], timestamp="at") == [6, 4]
    assert piped(lambda s: s.key_by("k").apply("t", time_of), [{"k": 1, "at": 5}], timestamp="at") == [5]
    assert piped(
        lambda s: s.key_by("k").map(lambda r: r).filter(bool).apply("t", time_of),
        [{"k": 1, "at": 5}],
        timestamp=lambda r: r["at"] * 2,
    ) == [10]


def test_a_row_goes_to_the_first_branch_that_takes_it():
    app = mp.App("branches")
    parts = app.stream("n", mp.sources.rows([])).branch(small=lambda n: n < 10, even=lambda n: n % 2 == 0)
    assert sorted(parts) == ["even", "rest", "small"]
    for name, part in parts.items():
        part.to(name, mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("n", [4, 12, 13, 5])
        assert driver.output("small") == [4, 5]
        assert driver.output("even") == [12]
        assert driver.output("rest") == [13]


def test_a_branch_that_nobody_reads_is_let_go():
    assert piped(lambda s: s.branch(small=lambda n: n < 10)["small"], [1, 20]) == [1]


@PARTITIONS
def test_a_union_holds_the_rows_of_all_its_streams(partitions):
    app = mp.App("union", partitions=partitions)
    left, right = app.stream("left", mp.sources.rows([])), app.stream("right", mp.sources.rows([]))
    both = left.map(lambda n: {"n": n}).union(right.map(lambda n: {"n": n}), left.map(lambda n: {"n": -n}))
    both.key_by(sign=lambda row: row["n"] > 0).stateful_map("count", nth, initial=0)
    both.to("all", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send({"left": [1, 2], "right": [7]})
        assert sorted(row["n"] for row in driver.output("all")) == [-2, -1, 1, 2, 7]
        assert dict(driver.state("count").items()) == {True: 3, False: 2}


def test_a_union_has_no_key_until_the_next_key_by():
    app = mp.App("union")
    keyed = app.stream("rows", mp.sources.rows([])).key_by("k")
    joined = keyed.union(app.stream("others", mp.sources.rows([])))
    assert not isinstance(joined, mp.KeyedStream)
    assert not hasattr(joined, "stateful_map")


@PARTITIONS
def test_the_key_stays_with_the_rows_until_the_next_key_by(partitions):
    def build(s):
        kept = s.key_by("k").map(lambda r: r["v"]).filter(lambda v: v != 2).flat_map(lambda v: [v, v]).inspect(id)
        return kept.branch(all=lambda v: True)["all"].stateful_map("n", lambda k, v, n: ((k, v, n), n + 1), initial=0)

    rows = [{"k": "a", "v": 1}, {"k": "b", "v": 2}, {"k": "b", "v": 3}]
    found = piped(build, rows, partitions=partitions)
    assert found == [("a", 1, 0), ("a", 1, 1), ("b", 3, 0), ("b", 3, 1)]


def changing(row):
    row["tags"].append("changed")
    row["n"] += 1
    return row


@pytest.mark.parametrize("changer_first", [False, True])
@pytest.mark.parametrize(
    "way", ["map", "filter", "inspect", "union", "branch", "keyed map", "update", "apply", "itself"]
)
def test_branches_never_share_a_mutable_row(way, changer_first):
    app = mp.App("shared")
    rows = app.stream("rows", mp.sources.rows([]))

    def change():
        if way == "map":
            rows.map(changing).to("changed", mp.sinks.memory())
        elif way == "filter":
            rows.filter(changing).to("changed", mp.sinks.memory())
        elif way == "inspect":
            rows.inspect(changing).to("changed", mp.sinks.memory())
        elif way == "union":
            others = app.stream("others", mp.sources.rows([]))
            rows.union(others).map(changing).to("changed", mp.sinks.memory())
        elif way == "itself":
            rows.union(rows).map(changing).to("changed", mp.sinks.memory())
        elif way == "branch":
            rows.branch(all=changing)["all"].to("changed", mp.sinks.memory())
        elif way == "keyed map":
            rows.key_by("k").map(changing).to("changed", mp.sinks.memory())
        elif way == "update":
            rows.key_by("k").update("u", lambda row, state: changing(row)).to("changed", mp.sinks.memory())
        else:
            rows.key_by("k").apply("a", lambda row, state: changing(row)).to("changed", mp.sinks.memory())

    if changer_first:
        change()
    rows.to("plain", mp.sinks.memory())
    rows.key_by("k").stateful_map("kept", lambda k, row, s: (row, row), initial=None).to("keyed", mp.sinks.memory())
    rows.map(changing).to("other", mp.sinks.memory())
    if not changer_first:
        change()
    sent = [{"k": 1, "n": 1, "tags": ["new"]}]
    with TestDriver(app) as driver:
        driver.send("rows", sent)
        changed = {"k": 1, "n": 2, "tags": ["new", "changed"]}
        assert driver.output("changed") == [changed] * (2 if way == "itself" else 1)
        assert driver.output("other") == [changed]
        assert driver.output("plain") == driver.output("keyed") == [{"k": 1, "n": 1, "tags": ["new"]}]
        assert driver.state("kept").get(1) == {"k": 1, "n": 1, "tags": ["new"]}
    assert sent == [{"k": 1, "n": 1, "tags": ["new"]}], "nor does the test's own row change"


@pytest.mark.parametrize("first", ["one", "two"])
def test_readers_of_a_keyed_stream_do_not_share_rows_either(first):
    app = mp.App("shared")
    rows = app.stream("rows", mp.sources.rows([])).key_by("k")
    for name in [first, "one" if first == "two" else "two"]:
        rows.map(changing).to(name, mp.sinks.memory())
    rows.to("plain", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [{"k": 1, "n": 1, "tags": []}])
        assert driver.output("one") == driver.output("two") == [{"k": 1, "n": 2, "tags": ["changed"]}]
        assert driver.output("plain") == [{"k": 1, "n": 1, "tags": []}]


def test_a_dead_letter_shares_no_row_with_a_branch():
    app = mp.App("shared")
    rows = app.stream("rows", mp.sources.rows([]), on_error="dead-letter")
    rows.key_by("missing").stateful_map("s", nth, initial=0)
    app.dead_letters.map(lambda letter: letter["row"].clear() or letter).to("dead", mp.sinks.memory())
    rows.to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [{"n": 1}])
        assert driver.output("out") == [{"n": 1}]
        assert driver.output("dead")[0]["row"] == {}


# --- what is refused while building ---


def test_each_name_is_given_once():
    app = mp.App("names")
    rows = app.stream("rows", mp.sources.rows([]))
    text = "sink 'rows': the name belongs to a stream already.* give one of the two another name"
    with pytest.raises(mp.errors.InvalidUse, match=text):
        rows.to("rows", mp.sinks.memory())


@pytest.mark.parametrize(
    "build, words",
    [
        (lambda s: s.map(7), r"map: expected a function, got 7"),
        (lambda s: s.key_by(), "key_by: expected a field, several fields or a function, got nothing"),
        (lambda s: s.key_by(7), "key_by: expected a field's name or a function, got 7"),
        (lambda s: s.key_by(len, str), "the parts of a key need names that differ"),
        (lambda s: s.branch(), "expected at least one predicate"),
        (lambda s: s.branch(rest=len), "none of them named 'rest'"),
        (lambda s: s.union(), "expected one or more streams of the same app"),
        (lambda s: s.to("x", 7), "expected a sink such as"),
        (lambda s: s.key_by("k").aggregate("a"), "expected one or more aggregations by name, such as n=mp.count"),
        (lambda s: s.key_by("k").aggregate("a", n="count"), r"expected n= to be an aggregation, such .*, got 'count'$"),
        (
            lambda s: s.key_by("k").aggregate("a", n=sum),
            r"n= to be an aggregation, such as n=mp.*got the function sum$",
        ),
        (lambda s: s.key_by("k").aggregate("a", n=mp.sum), r"n= to be an aggregation, .*got the function sum$"),
        (lambda s: s.key_by("k").aggregate("a", k=mp.count()), "expected names other than the key's"),
        (lambda s: s.key_by("k").apply("a", max, on_error="explode"), 'expected "stop", "skip", "dead-letter"'),
        (lambda s: s.key_by("k").deduplicate("d", within="soon"), "expected a duration such as"),
        (lambda s: s.key_by("k").stateful_map("", max), "expected a plain name"),
    ],
)
def test_what_makes_no_program_is_refused_where_it_is_written(build, words):
    with pytest.raises(mp.errors.InvalidUse, match=words):
        build(mp.App("refused").stream("rows", mp.sources.rows([])))


# Verbs of `Stream` that return a stream without keys, or no other stream: a keyed stream has them as they are.
LEAVES_KEYS_BEHIND = {"key_by", "union", "to"}
KEEPS_KEYS: dict[str, Any] = {
    "map": lambda keyed: keyed.map(len),
    "filter": lambda keyed: keyed.filter(len),
    "flat_map": lambda keyed: keyed.flat_map(len),
    "inspect": lambda keyed: keyed.inspect(len),
    "with_time": lambda keyed: keyed.with_time(len),
    "map_async": lambda keyed: keyed.map_async(len),
    "map_batch": lambda keyed: keyed.map_batch(len),
    "lookup": lambda keyed: keyed.lookup("known", mp.external(len)),
    "branch": lambda keyed: keyed.branch(long=len)["long"],
    "on_time": lambda keyed: keyed.on_time,
    "late": lambda keyed: keyed.late,
}


def test_every_verb_of_a_stream_is_known_to_keep_keys_or_not() -> None:
    verbs = {name for name in vars(mp.Stream) if not name.startswith("_")}
    assert verbs == KEEPS_KEYS.keys() | LEAVES_KEYS_BEHIND


@pytest.mark.parametrize("verb", KEEPS_KEYS.values(), ids=KEEPS_KEYS)
def test_a_keyed_stream_keeps_its_key_through_every_other_verb(verb: Any) -> None:
    keyed = mp.App("keyed").stream("rows", mp.sources.rows([]), timestamp="at").key_by("k")
    found = verb(keyed)
    assert isinstance(found, mp.KeyedStream)
    found.aggregate("n", n=mp.count())  # which needs to know the names of the key
