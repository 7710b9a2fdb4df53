"""Every verb, with one and with several partitions: what it does to rows, to keys and to state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest
from ledger_reader import changes

import millpond as mp
from millpond.storage import open_storage
from millpond.testing import TestDriver

PARTITIONS = pytest.mark.parametrize("partitions", [1, 2, 3])


def piped(build: Callable[[Any], Any], rows: list[Any], *, sink: str = "out", **how: Any) -> list[Any]:
    """What comes out of `build(stream)` when these rows go in, as one batch."""
    app = mp.App("verbs", partitions=how.pop("partitions", None))
    build(app.stream("rows", mp.sources.rows([]), **how)).to(sink, mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", rows)
        return driver.output(sink)


def nth(key, row, n):
    return {"row": row, "nth": n + 1}, n + 1


# --- verbs of any stream ---


def test_map_makes_a_row_of_each_row():
    assert piped(lambda s: s.map(lambda n: n * 2), [1, 2, 3]) == [2, 4, 6]


def test_filter_keeps_the_rows_for_which_it_is_true():
    assert piped(lambda s: s.filter(lambda n: n % 2), [1, 2, 3]) == [1, 3]
    assert piped(lambda s: s.filter(lambda n: n["x"]), [{"x": []}, {"x": "a"}]) == [{"x": "a"}]


def test_flat_map_makes_any_number_of_rows_of_each():
    assert piped(lambda s: s.flat_map(range), [0, 3, 1]) == [0, 1, 2, 0]
    assert piped(lambda s: s.flat_map(lambda n: (n for _ in range(2))), [1, 2]) == [1, 1, 2, 2]


def test_inspect_shows_each_row_and_lets_it_go_on():
    seen: list[Any] = []
    assert piped(lambda s: s.inspect(seen.append), [1, 2]) == [1, 2]
    assert seen == [1, 2]


def test_with_time_sets_the_time_that_a_step_sees():
    def time_of(row, state):
        return state.time

    def build(s):
        return s.with_time(lambda row: row["at"] + 1).key_by("k").apply("t", time_of)

    assert piped(build, [{"k": 1, "at": 5}, {"k": 2, "at": 3}], timestamp="at") == [6, 4]
    assert piped(lambda s: s.key_by("k").apply("t", time_of), [{"k": 1, "at": 5}], timestamp="at") == [5]
    assert piped(lambda s: s.key_by("k").map(lambda r: r).filter(bool).apply("t", time_of), [{"k": 1, "at": 5}],
                 timestamp=lambda r: r["at"] * 2) == [10]


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
@pytest.mark.parametrize("way", ["map", "filter", "inspect", "union", "branch", "keyed map", "update", "apply", "itself"])
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


# --- keys ---


def test_key_by_a_field_several_fields_a_function_and_named_functions():
    rows = [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]

    def keys_of(*by, **named):
        return piped(lambda s: s.key_by(*by, **named).aggregate("n", n=mp.count()), rows)

    assert keys_of("a") == [{"a": 1, "n": 1}, {"a": 2, "n": 1}]
    assert keys_of("a", "b") == [{"a": 1, "b": "x", "n": 1}, {"a": 2, "b": "y", "n": 1}]
    assert keys_of(lambda row: row["a"] % 2) == [{"key": 1, "n": 1}, {"key": 0, "n": 1}]
    assert keys_of(odd=lambda row: row["a"] % 2 == 1) == [{"odd": True, "n": 1}, {"odd": False, "n": 1}]
    assert keys_of("b", odd=lambda row: row["a"] % 2 == 1)[0] == {"b": "x", "odd": True, "n": 1}


KINDS = [
    1,
    "1",
    True,
    (1,),
    0,
    False,
    "",
    -1,
    2**70,
    "true",
    b"1",
    b"",
    (),
    ("1",),
    (True,),
    (1, 1),
    (1, (1,)),
    date(2024, 1, 1),
    datetime(2024, 1, 1),
    datetime(2024, 1, 1, tzinfo=UTC),
    UUID(int=1),
    "é\n\x00ü\u2028",
    '{"$tuple":[1]}',
    "k" * 5000,
    "k" * 4999 + "l",
    ("k" * 5000, 1),
    b"b" * 5000,
]


@pytest.mark.parametrize("verb", ["stateful_map", "apply"])
@PARTITIONS
def test_equal_keys_and_only_equal_keys_share_state(partitions, verb):
    app = mp.App("keys", partitions=partitions)
    keyed = app.stream("rows", mp.sources.rows([])).key_by("key")
    if verb == "stateful_map":
        keyed.stateful_map("seen", lambda k, row, s: (None, [*s, row["n"]]), initial=[])
    else:
        keyed.apply("seen", lambda row, state: state.list("n").append(row["n"]))
    rows = [{"key": key, "n": n} for n, key in enumerate(KINDS * 2)]
    expected = {i: [i, i + len(KINDS)] for i in range(len(KINDS))}

    def found(driver):
        values = [driver.state("seen").get(key) for key in KINDS]
        return {i: v if verb == "stateful_map" else v["n"] for i, v in enumerate(values)}

    with TestDriver(app) as driver:
        for start in range(0, len(rows), 7):
            driver.send("rows", rows[start : start + 7])
        assert found(driver) == expected
        keys = [key for key, _ in driver.state("seen").items()]
        assert sorted(map(repr, keys)) == sorted(map(repr, KINDS)), "each once, equal and of the same type"
        driver.restart(lose_replicas=True)
        assert found(driver) == expected


def test_datetimes_of_one_instant_are_one_key():
    instant = datetime(2024, 1, 1, 12, tzinfo=UTC)
    other = instant.astimezone(timezone(timedelta(hours=5)))
    found = piped(lambda s: s.key_by("at").aggregate("n", n=mp.count()), [{"at": instant}, {"at": other}])
    assert [row["n"] for row in found] == [1, 2]


@pytest.mark.parametrize("partitions", [1, 3])
def test_no_state_leaks_between_keys_that_begin_alike(partitions):
    """Long keys are cut in the local store: what is cut off must still tell them apart."""
    keys = [("k" * 300 + str(i)) for i in range(20)] + ["k" * n for n in (1, 198, 199, 200, 201, 238, 239, 240, 300)]
    app = mp.App("long", partitions=partitions)

    def f(row, state):
        state.set("v" * 150, row["n"])
        state.list("l" * 300).extend([row["n"], "x"])
        state.map("ü" * 60)["m" * 500 + str(row["n"])] = row["n"]
        state.map("ü" * 60)["short"] = row["n"]
        return list(state.map("ü" * 60))

    app.stream("rows", mp.sources.rows([])).key_by("key").apply("s", f).to("out", mp.sinks.memory())
    rows = [{"key": key, "n": n} for n, key in enumerate(keys)]
    with TestDriver(app) as driver:
        driver.send("rows", rows)
        driver.restart(lose_replicas=True)
        driver.send("rows", [{"key": row["key"], "n": row["n"] + 1000} for row in rows])
        for n, key in enumerate(keys):
            assert driver.state("s").get(key) == {
                "v" * 150: n + 1000,
                "l" * 300: [n, "x", n + 1000, "x"],
                "ü" * 60: {"m" * 500 + str(n): n, "m" * 500 + str(n + 1000): n + 1000, "short": n + 1000},
            }
        assert len(driver.output("out")[0]) == 2
        assert len(driver.output("out")[-1]) == 3
        assert sorted(key for key, _ in driver.state("s").items()) == sorted(keys)


# --- several stages ---


@PARTITIONS
def test_rekeying_over_several_stages_keeps_the_order_of_the_source(partitions):
    """Three stages, rows that take different ways and meet again: each step sees its key's rows in source order."""
    app = mp.App("stages", partitions=partitions)
    rows = app.stream("rows", mp.sources.rows([]))
    parts = rows.branch(even=lambda n: n % 2 == 0)
    first = parts["even"].key_by(k=lambda n: n % 5).stateful_map("first", lambda k, n, s: (n, [*s, n]), initial=[])
    joined = first.union(parts["rest"])
    second = joined.key_by(k=lambda n: n % 3).stateful_map("second", lambda k, n, s: (n, [*s, n]), initial=[])
    third = second.key_by(k=lambda n: 0).stateful_map("third", lambda k, n, s: (n, [*s, n]), initial=[])
    third.to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        for start in range(0, 60, 20):
            driver.send("rows", list(range(start, start + 20)))
        assert driver.state("first").get(2) == [n for n in range(60) if n % 2 == 0 and n % 5 == 2]
        assert driver.state("second").get(1) == [n for n in range(60) if n % 3 == 1]
        assert driver.state("third").get(0) == list(range(60))
        assert driver.output("out") == list(range(60))


@PARTITIONS
def test_a_step_and_one_two_stages_on_read_the_same_stream(partitions):
    app = mp.App("skip", partitions=partitions)
    rows = app.stream("rows", mp.sources.rows([]))
    one = rows.key_by("a").stateful_map("one", lambda k, row, n: ({**row, "one": n}, n + 1), initial=0)
    two = one.key_by("b").stateful_map("two", lambda k, row, n: ({**row, "two": n}, n + 1), initial=0)
    late = two.union(rows.map(lambda row: {**row, "raw": True}))
    late.key_by(k=lambda row: "raw" in row).aggregate("three", n=mp.count())
    sent = [{"a": n % 4, "b": n % 3} for n in range(24)]
    with TestDriver(app) as driver:
        driver.send("rows", sent[:10])
        driver.send("rows", sent[10:])
        assert dict(driver.state("one").items()) == {0: 6, 1: 6, 2: 6, 3: 6}
        assert dict(driver.state("two").items()) == {0: 8, 1: 8, 2: 8}
        assert dict(driver.state("three").items()) == {True: {"n": 24}, False: {"n": 24}}


@PARTITIONS
def test_several_steps_behind_one_key_share_a_stage_and_keep_their_own_state(partitions):
    app = mp.App("chain", partitions=partitions)
    keyed = app.stream("rows", mp.sources.rows([])).key_by("k")
    numbered = keyed.stateful_map("numbered", lambda k, row, n: ({**row, "nth": n}, n + 1), initial=0)
    numbered.stateful_filter("odd", lambda row, state: row["nth"] % 2).aggregate("kept", n=mp.count())
    with TestDriver(app) as driver:
        driver.send("rows", [{"k": n % 3} for n in range(12)])
        assert dict(driver.state("numbered").items()) == {0: 4, 1: 4, 2: 4}
        assert {key: value["n"] for key, value in driver.state("kept").items()} == {0: 2, 1: 2, 2: 2}


def test_more_partitions_than_address_space_has_room_for_at_once():
    app = mp.App("wide", partitions=200)
    app.stream("rows", mp.sources.rows([])).key_by(k=lambda n: n).stateful_map("n", nth, initial=0)
    with TestDriver(app) as driver:
        driver.send("rows", list(range(50)))
        driver.send("rows", list(range(50)))
        assert dict(driver.state("n").items()) == dict.fromkeys(range(50), 2)


# --- stateful_map ---


def test_the_initial_state_is_copied_for_every_key():
    initial = {"rows": []}

    def f(key, row, state):
        state["rows"].append(row)
        return None, state

    app = mp.App("initial")
    app.stream("rows", mp.sources.rows([])).key_by(k=lambda n: n % 2).stateful_map("s", f, initial=initial)
    with TestDriver(app) as driver:
        driver.send("rows", [1, 2, 3])
        assert dict(driver.state("s").items()) == {1: {"rows": [1, 3]}, 0: {"rows": [2]}}
    assert initial == {"rows": []}


def test_an_output_that_is_none_is_not_emitted_and_other_false_values_are():
    outputs = [None, 0, "", [], False, {}]
    assert piped(lambda s: s.key_by(k=lambda i: 0).stateful_map("s", lambda k, i, n: (outputs[i], 1)), [0, 1, 2, 3, 4, 5]) == [0, "", [], False, {}]


def test_an_output_does_not_change_when_the_state_does():
    def f(key, row, state):
        state.append(row)
        return state, state

    found = piped(lambda s: s.key_by(k=lambda n: 0).stateful_map("s", f, initial=list), [1, 2])
    assert found == [[1], [1, 2]]


def test_a_function_that_does_not_return_a_pair_is_told_so():
    with pytest.raises(mp.errors.StepFailed, match=r"the function of a stateful_map returns \(output, state\)$".replace("$", "")) as caught:
        piped(lambda s: s.key_by(k=lambda n: 0).stateful_map("s", lambda k, n, s: n, initial=0), [1])
    assert str(caught.value).count("returns (output, state)") == 2, "in the message, and in the traceback under it"


def test_an_error_of_the_users_that_speaks_of_unpacking_is_left_alone():
    class Odd(Exception):
        def __init__(self, one, two):
            super().__init__(f"cannot unpack {one} and {two}")

    def f(key, row, state):
        if row == 2:
            raise Odd(row, state)
        return row, row

    found = piped(lambda s: s.key_by(k=lambda n: 0).stateful_map("s", f, initial=0), [1, 2, 3], on_error="skip")
    assert found == [1, 3]


# --- the State handle ---


def applied(f: Callable[..., Any], *batches: list[Any], key: Any = "k", verb: str = "apply") -> Any:
    """Run `f(row, state)` over batches of rows of one key; the outputs, the state, and the last changelog."""
    app = mp.App("handle")
    getattr(app.stream("rows", mp.sources.rows([])).key_by(k=lambda row: key), verb)("s", f).to(
        "out", mp.sinks.memory()
    )
    storage = open_storage("memory://")
    with TestDriver(app, storage=storage) as driver:
        for batch in batches:
            driver.send("rows", batch)
        outputs, state = driver.output("out"), driver.state("s").get(key)
        last = [(cell, None if gone else value) for _, cell, value, gone in changes(storage, "handle", "s")]
        driver.restart(lose_replicas=True)
        assert driver.state("s").get(key) == state, "as the log says"
        return outputs, state, last


def test_values_are_set_got_deleted_and_asked_for():
    def f(row, state):
        before = (state.exists("x"), state.get("x"), state.get("x", "none"))
        if row is None:
            state.delete("x")
        else:
            state.set("x", row)
        return (*before, state.exists("x"), state.get("x"))

    outputs, state, last = applied(f, [1, [2]], [None, None], [0])
    assert outputs == [
        (False, None, "none", True, 1),
        (True, 1, 1, True, [2]),
        (True, [2], [2], False, None),
        (False, None, "none", False, None),
        (False, None, "none", True, 0),
    ]
    assert state == {"x": 0}
    assert last == [("v:x", "0")]


def test_a_value_that_is_none_is_a_value():
    def f(row, state):
        found = state.exists("x"), state.get("x", "default")
        state.set("x", None)
        return found

    assert applied(f, [1, 2], [3])[0] == [(False, "default"), (True, None), (True, None)]


def test_what_get_returns_is_the_callers_own():
    def f(row, state):
        if row == "set":
            value = {"list": [1]}
            state.set("x", value)
            value["list"].append("changed after set")
        else:
            state.get("x")["list"].append("changed after get")
            state.map("m").get("a", []).append("lost")
            state.list("l").extend([[1]] if len(state.list("l")) == 0 else [])
            state.list("l")[0].append("lost")
        return state.get("x")

    outputs, state, _ = applied(f, ["set", "get"], ["get", "get"])
    assert outputs == [{"list": [1]}] * 4
    assert state == {"x": {"list": [1]}, "l": [[1]]}


def test_the_handle_knows_its_key_and_its_time():
    seen = []

    def f(row, state):
        seen.append((state.key, state.time, state.watermark))

    applied(f, [1], key=("a", 1))
    assert seen[0] == (("a", 1), None, None)


def test_clear_drops_values_lists_and_maps_and_they_begin_anew():
    def f(row, state):
        if row == "clear":
            state.clear()
        else:
            state.set("v", row)
            state.list("l").append(row)
            state.map("m")[row] = row
        return len(state.list("l")), len(state.map("m")), state.exists("v")

    outputs, state, last = applied(f, [1, 2], [3, "clear", 4])
    assert outputs == [(1, 1, True), (2, 2, True), (3, 3, True), (0, 0, False), (1, 1, True)]
    assert state == {"v": 4, "l": [4], "m": {4: 4}}
    assert [cell for cell, value in last if value is None] == [
        "l:l:0000000000000001", "l:l:0000000000000002", "m:m:1", "m:m:2", "m:m:3",
    ]
    outputs, state, last = applied(f, [1, 2], ["clear"])
    assert state is None
    assert {value for _, value in last} == {None}


def test_a_list_does_what_lists_do():
    def f(row, state):
        items = state.list("items")
        items.append(row)
        items.extend(x for x in ("a", "b"))
        items[0] = "first"
        items[-1] = "last"
        found = [len(items), items[0], items[-1], items[1], list(items), items.popleft(), repr(items)]
        for bad in (5, -6):
            with pytest.raises(IndexError):
                items[bad]
        with pytest.raises(IndexError):
            items[9] = 1
        return found

    outputs, state, _ = applied(f, [1])
    assert outputs == [[3, "first", "last", "a", ["first", "a", "last"], "first", "StateList(['a', 'last'])"]]
    assert state == {"items": ["a", "last"]}


def test_popleft_of_an_empty_list_is_an_index_error():
    with pytest.raises(mp.errors.StepFailed, match="IndexError: popleft from an empty list"):
        applied(lambda row, state: state.list("x").popleft(), [1])


def test_a_list_writes_only_the_elements_that_changed():
    def f(row, state):
        items = state.list("items")
        if row == "fill":
            items.extend(range(1000))
        elif row == "set":
            items[500] = "changed"
        elif row == "pop":
            items.popleft()
        else:
            items.append(row)

    bounds = "l:items"
    assert applied(f, ["fill"], ["new"])[2] == [(bounds, "[0,1001]"), ("l:items:0000000000001000", '"new"')]
    assert applied(f, ["fill"], ["set"])[2] == [("l:items:0000000000000500", '"changed"')]
    assert applied(f, ["fill"], ["pop"])[2] == [(bounds, "[1,1000]"), ("l:items:0000000000000000", None)]
    _, state, last = applied(f, ["fill"], ["pop", "x", "set"])
    assert len(last) == 4
    assert state["items"][-1] == "x"
    assert state["items"][500] == "changed"
    assert len(state["items"]) == 1000


def test_a_map_does_what_mappings_do():
    def f(row, state):
        found = state.map("m")
        found.update({"a": 1, 2: "two", (3, "x"): [3]})
        found["a"] = found.get("a", 0) + 10
        found.setdefault("new", []).append("lost, as with get")
        with pytest.raises(KeyError):
            found["missing"]
        with pytest.raises(KeyError):
            del found["missing"]
        del found[2]
        popped = found.pop("new")
        return [len(found), sorted(map(str, found)), dict(found), popped, "a" in found, 2 in found, repr(found)]

    outputs, state, _ = applied(f, [1])
    assert outputs == [
        [2, ["(3, 'x')", "a"], {"a": 11, (3, "x"): [3]}, [], True, False, "StateMap({'a': 11, (3, 'x'): [3]})"]
    ]
    assert state == {"m": {"a": 11, (3, "x"): [3]}}


def test_a_map_writes_only_the_keys_that_changed():
    def f(row, state):
        pages = state.map("pages")
        if row == "fill":
            pages.update((n, n) for n in range(1000))
        elif row == "drop":
            del pages[7]
        else:
            pages[row] = pages.get(row, 0) + 1

    assert applied(f, ["fill"], [500])[2] == [("m:pages:500", "501")]
    assert applied(f, ["fill"], ["drop"])[2] == [("m:pages:7", None)]
    _, state, last = applied(f, ["fill"], ["drop", 1, "new"])
    assert last == [('m:pages:"new"', "1"), ("m:pages:1", "2"), ("m:pages:7", None)]
    assert len(state["pages"]) == 1000


def test_a_map_sees_what_was_written_before_and_in_this_batch_alike():
    def f(row, state):
        found = state.map("m")
        if row in found:
            del found[row]
        else:
            found[row] = row
        return sorted(found)

    outputs, _, _ = applied(f, [1, 2, 3], [2, 4, 1], [1])
    assert outputs == [[1], [1, 2], [1, 2, 3], [1, 3], [1, 3, 4], [3, 4], [1, 3, 4]]


def test_names_with_colons_slashes_and_letters_of_all_kinds_stay_apart():
    names = ["a", "a:b", "a/b", "a%3Ab", "é", " ", "l:a", "0000000000000001"]

    def f(row, state):
        for i, name in enumerate(names):
            state.set(name, i)
            state.list(name + "-list").append(i)
            state.map(name + "-map")[name] = i

    _, state, _ = applied(f, [1])
    assert state == {
        **{name: i for i, name in enumerate(names)},
        **{f"{name}-list": [i] for i, name in enumerate(names)},
        **{f"{name}-map": {name: i} for i, name in enumerate(names)},
    }


def test_one_name_is_one_kind_of_state():
    def f(row, state):
        state.set("x", 1)
        state.list("x").append(1)

    with pytest.raises(mp.errors.StepFailed, match="state 'x' is a value and was used as a list: give each its own name"):
        applied(f, [1])


# --- apply, flat_apply, update, stateful_filter ---


def test_apply_emits_what_it_returns_unless_it_is_none():
    found = piped(lambda s: s.key_by(k=lambda n: 0).apply("a", lambda n, state: n or None), [0, 1, 2])
    assert found == [1, 2]


@pytest.mark.parametrize("give", [list, tuple, iter, lambda rows: (row for row in rows)])
def test_flat_apply_emits_all_of_an_iterable(give):
    found = piped(lambda s: s.key_by(k=lambda n: 0).flat_apply("f", lambda n, state: give([n] * n)), [2, 0, 1])
    assert found == [2, 2, 1]
    assert piped(lambda s: s.key_by(k=lambda n: 0).flat_apply("f", lambda n, state: None), [2]) == []


def test_a_generator_of_flat_apply_reads_and_writes_state_as_it_goes():
    def f(row, state):
        for _ in range(2):
            state.set("n", state.get("n", 0) + 1)
            yield state.get("n")

    assert applied(f, ["a", "b"], ["c"], verb="flat_apply")[0] == [1, 2, 3, 4, 5, 6]


def test_a_generator_that_fails_half_way_has_emitted_and_written_nothing():
    def f(row, state):
        state.set("n", state.get("n", 0) + 1)
        yield state.get("n")
        if row == "bad":
            raise ValueError(row)
        yield "end"

    app = mp.App("half")
    rows = app.stream("rows", mp.sources.rows([]), on_error="skip")
    rows.key_by(k=lambda row: 0).flat_apply("f", f).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", ["a", "bad", "b"])
        assert driver.output("out") == [1, "end", 2, "end"]
        assert driver.state("f").get(0) == {"n": 2}


def test_update_changes_the_row_in_place_whatever_it_returns():
    def f(row, state):
        row["n"] = state.get("n", 0)
        state.set("n", row["n"] + 1)
        return "ignored"

    assert applied(f, [{"a": 1}, {"a": 2}], verb="update")[0] == [{"a": 1, "n": 0}, {"a": 2, "n": 1}]


def test_an_update_that_fails_half_way_leaves_the_row_and_the_state_as_they_were():
    def f(row, state):
        row["seen"].append(1)
        state.set("n", state.get("n", 0) + 1)
        state.list("l").append(row["bad"])
        state.map("m")["x"] = 1
        if row["bad"]:
            raise ValueError("half-way")

    app = mp.App("half")
    rows = app.stream("rows", mp.sources.rows([]), on_error="dead-letter")
    rows.key_by("k").update("u", f).to("out", mp.sinks.memory())
    app.dead_letters.map(lambda letter: letter["row"]).to("dead", mp.sinks.memory())
    storage = open_storage("memory://")
    with TestDriver(app, storage=storage) as driver:
        driver.send("rows", [{"k": 1, "bad": True, "seen": []}])
        assert changes(storage, "half", "u") == []
        driver.send("rows", [{"k": 1, "bad": bad, "seen": []} for bad in (True, False, True)])
        assert driver.output("dead") == [{"k": 1, "bad": True, "seen": []}] * 3
        assert driver.output("out") == [{"k": 1, "bad": False, "seen": [1]}]
        assert driver.state("u").get(1) == {"n": 1, "l": [False], "m": {"x": 1}}


def test_stateful_filter_lets_the_row_go_on_when_it_is_true():
    def rising(row, state):
        last = state.get("last")
        state.set("last", row)
        return last is None or row > last

    assert applied(rising, [1, 3, 2], [2, 5], verb="stateful_filter")[0] == [1, 3, 5]


# --- deduplicate ---


@PARTITIONS
def test_deduplicate_lets_the_first_row_of_each_key_through(partitions):
    rows = [{"k": k, "n": n} for n, k in enumerate("abacab")]
    found = piped(lambda s: s.key_by("k").deduplicate("once"), rows, partitions=partitions)
    assert [row["n"] for row in found] == [0, 1, 3]


@pytest.mark.parametrize("by", ["id", lambda row: row["id"]])
def test_deduplicate_by_an_id_remembers_it_over_batches_and_restarts(by):
    app = mp.App("dedup", partitions=2)
    app.stream("rows", mp.sources.rows([])).key_by("card").deduplicate("once", by=by).to("out", mp.sinks.memory())
    rows = [{"card": card, "id": i, "n": n} for n, (card, i) in enumerate([("a", 1), ("a", "1"), ("b", 1), ("a", 1)])]
    with TestDriver(app) as driver:
        driver.send("rows", rows)
        driver.restart(lose_replicas=True)
        driver.send("rows", rows)
        assert [row["n"] for row in driver.output("out")] == [0, 1, 2]


def test_deduplicate_within_a_time_forgets_after_it():
    app = mp.App("dedup")
    rows = app.stream("rows", mp.sources.rows([]), timestamp="at").key_by("k")
    rows.deduplicate("once", within=10).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [{"k": 1, "at": at} for at in (0, 10, 11, 5, 21, 22)])
        assert [row["at"] for row in driver.output("out")] == [0, 11, 22]


def test_deduplicate_within_a_time_goes_by_the_clock_where_rows_have_no_time():
    app = mp.App("dedup")
    app.stream("rows", mp.sources.rows([])).key_by("k").deduplicate("once", within="10s").to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        for n in range(5):
            driver.send("rows", [{"k": 1, "n": n}])
            driver.advance("4s")
        assert [row["n"] for row in driver.output("out")] == [0, 3]


def test_deduplicate_within_a_duration_of_the_wrong_kind_says_so():
    def build(s):
        return s.key_by("k").deduplicate("once", within="10s")

    with pytest.raises(mp.errors.StepFailed, match="the stream's times are ints, so within must be a whole number"):
        piped(build, [{"k": 1, "at": 1}, {"k": 1, "at": 2}], timestamp="at")


# --- aggregate ---


@PARTITIONS
def test_aggregate_gives_an_output_per_row_with_the_keys_fields(partitions):
    def build(s):
        return s.key_by("k").aggregate("a", n=mp.count(), total=mp.sum("v"), most=mp.max("v"), all=mp.collect("v"))

    found = piped(build, [{"k": "a", "v": 2}, {"k": "b", "v": 5}, {"k": "a", "v": 1}], partitions=partitions)
    assert found == [
        {"k": "a", "n": 1, "total": 2, "most": 2, "all": [2]},
        {"k": "b", "n": 1, "total": 5, "most": 5, "all": [5]},
        {"k": "a", "n": 2, "total": 3, "most": 2, "all": [2, 1]},
    ]


def test_an_aggregate_that_fails_on_a_row_has_not_counted_it_in_any_part():
    app = mp.App("agg")
    rows = app.stream("rows", mp.sources.rows([]), on_error="skip").key_by("k")
    rows.aggregate("a", n=mp.count(), all=mp.collect("v"), total=mp.sum("v")).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [{"k": 1, "v": 1}, {"k": 1, "v": "x"}, {"k": 1}, {"k": 1, "v": 2}])
        assert driver.output("out")[-1] == {"k": 1, "n": 2, "all": [1, 2], "total": 3}
        assert driver.state("a").get(1) == {"n": 2, "all": [1, 2], "total": 3}


def test_an_aggregation_that_is_new_begins_now_and_leaves_the_others_alone():
    def app_with(**aggregations):
        app = mp.App("agg")
        app.stream("rows", mp.sources.rows([])).key_by("k").aggregate("a", **aggregations)
        return app

    with TestDriver(app_with(n=mp.count(), v=mp.sum("v"))) as driver:
        driver.send("rows", [{"k": 1, "v": 5}])
        driver.restart(app_with(n=mp.count(), v=mp.max("v"), low=mp.min("v")))
        driver.send("rows", [{"k": 1, "v": 3}])
        assert driver.state("a").get(1) == {"n": 2, "v": 3, "low": 3}


# --- types ---


@dataclass
class Order:
    customer: str
    amount: Decimal
    at: datetime | None = None
    tags: set[str] = field(default_factory=set)


class Item(msgspec.Struct):
    customer: str
    amount: int


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_typed_stream_makes_rows_of_its_type(partitions):
    app = mp.App("typed", partitions=partitions)
    orders = app.stream("orders", mp.sources.rows([]), type=Order)
    kept = orders.key_by("customer").stateful_map("last", lambda k, o, s: (o, o), initial=None)
    kept.to("out", mp.sinks.memory())
    kept.key_by("customer").aggregate("sum", total=mp.sum("amount"))
    with TestDriver(app) as driver:
        driver.send("orders", [{"customer": "a", "amount": "1.10"}, Order("a", Decimal(2), tags={"x"})])
        assert driver.output("out") == [Order("a", Decimal("1.10")), Order("a", Decimal(2), tags={"x"})]
        assert driver.state("last").get("a") == Order("a", Decimal(2), tags={"x"})
        assert driver.state("sum").get("a") == {"total": Decimal("3.10")}
        driver.restart(lose_replicas=True)
        assert driver.state("last").get("a") == Order("a", Decimal(2), tags={"x"})


def test_structs_are_rows_and_state_too():
    found = piped(
        lambda s: s.key_by("customer").stateful_map("s", lambda k, i, n: (Item(k, n.amount + i.amount),) * 2,
                                                    initial=lambda: Item("", 0), type=Item),
        [Item("a", 1), {"customer": "a", "amount": 2}],
        type=Item,
    )
    assert found == [Item("a", 1), Item("a", 3)]


def test_a_row_that_does_not_fit_its_type_is_bad_input():
    app = mp.App("typed")
    app.stream("orders", mp.sources.rows([]), type=Order, on_error="dead-letter").to("out", mp.sinks.memory())
    app.dead_letters.to("dead", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("orders", [{"customer": "a"}, {"customer": 1, "amount": 1}, 7, {"customer": "b", "amount": 1}])
        assert driver.output("out") == [Order("b", Decimal(1))]
        letters = driver.output("dead")
        assert [letter["row"] for letter in letters] == [{"customer": "a"}, {"customer": 1, "amount": 1}, 7]
        assert {letter["step"] for letter in letters} == {"orders"}
        assert all(letter["error"].startswith("expected Order: ") for letter in letters)


VALUES = [
    None, True, 0, -(2**80), 1.5, float("inf"), "", "é\n\x00", b"\x00\xff", Decimal("1.10"), UUID(int=5),
    date(2024, 2, 29), datetime(2024, 1, 1, 1, 2, 3, 4), datetime(2024, 1, 1, tzinfo=UTC), timedelta(days=-1, microseconds=3),
    (), (1, "a", (2,)), [1, [2, {"a": (3,)}]], {1, 2}, frozenset({"a"}), {1: "a", "$tuple": 2, (1, 2): None}, {},
    Order("a", Decimal("2.50"), datetime(2024, 1, 1, tzinfo=UTC), {"x"}), Item("b", 3),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_what_goes_in_comes_out_equal_and_of_the_same_type(value):
    app = mp.App("values")
    rows = app.stream("rows", mp.sources.rows([])).key_by("k")
    rows.stateful_map("whole", lambda k, row, s: ([row["v"], s], [row["v"]]), initial=None).to("out", mp.sinks.memory())

    def f(row, state):
        state.set("v", row["v"])
        state.list("l").append(row["v"])
        state.map("m")[1] = row["v"]

    rows.apply("parts", f)
    rows.key_by("k").map(lambda row: [row["v"]]).to("later", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [{"k": 1, "v": value}])
        driver.restart(lose_replicas=True)
        driver.send("rows", [{"k": 1, "v": value}])
        found = [
            *driver.output("out")[1],
            driver.output("out")[1][1][0],
            driver.output("later")[0][0],
            driver.state("whole").get(1)[0],
            *(v if name == "v" else v[0] if name == "l" else v[1] for name, v in driver.state("parts").get(1).items()),
        ]
        assert len(found) == 8
        del found[1]
        for one in found:
            assert one == value
            assert type(one) is type(value)


# --- on_error ---

VERBS: dict[str, Callable[[Any, Callable[[Any], Any]], Any]] = {
    "map": lambda s, f: s.map(f),
    "filter": lambda s, f: s.filter(lambda n: f(n) is not None),
    "flat_map": lambda s, f: s.flat_map(lambda n: [f(n)]),
    "inspect": lambda s, f: s.inspect(f),
    "branch": lambda s, f: s.branch(all=lambda n: f(n) is not None)["all"],
    "key_by": lambda s, f: s.key_by(k=f),
    "stateful_map": lambda s, f: s.key_by(k=lambda n: 0).stateful_map("step", lambda k, n, s: (f(n), n)),
    "apply": lambda s, f: s.key_by(k=lambda n: 0).apply("step", lambda n, state: f(n)),
    "flat_apply": lambda s, f: s.key_by(k=lambda n: 0).flat_apply("step", lambda n, state: [f(n)]),
    "update": lambda s, f: s.key_by(k=lambda n: 0).update("step", lambda n, state: f(n)),
    "stateful_filter": lambda s, f: s.key_by(k=lambda n: 0).stateful_filter("step", lambda n, state: f(n) is not None),
    "deduplicate": lambda s, f: s.key_by(k=lambda n: 0).deduplicate("step", by=f),
    "aggregate": lambda s, f: s.key_by(k=lambda n: 0).aggregate("step", last=mp.last(f)).map(lambda row: row["last"]),
}  # fmt: skip
EVERY_VERB = pytest.mark.parametrize("verb", VERBS)
STEPS = {"stateful_map", "apply", "flat_apply", "update", "stateful_filter", "deduplicate", "aggregate"}


def not_two(n):
    if n == 2:
        raise ValueError("it is two")
    return n


@EVERY_VERB
def test_stop_ends_the_run_and_names_step_key_row_and_batch(verb):
    app = mp.App("errors")
    VERBS[verb](app.stream("rows", mp.sources.rows([])), not_two).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [1])
        with pytest.raises(mp.errors.StepFailed) as caught:
            driver.send("rows", [3, 2, 4])
        error = caught.value
        assert (error.row, error.batch, error.error) == (2, 2, "ValueError: it is two")
        assert error.step == ("step" if verb in STEPS else "key_by(k)" if verb == "key_by" else verb)
        assert error.key == (0 if verb in STEPS else None)
        assert "not_two" in error.traceback
        assert "/millpond/" not in error.traceback, "the frames of the library say nothing to the user"
        assert driver.output("out") == [1], "nothing of the batch counts"


@EVERY_VERB
def test_skip_lets_the_row_go(verb):
    assert piped(lambda s: VERBS[verb](s, not_two), [1, 2, 3], on_error="skip") == [1, 3]


@EVERY_VERB
def test_dead_letter_keeps_the_row(verb):
    app = mp.App("errors")
    VERBS[verb](app.stream("rows", mp.sources.rows([]), on_error="dead-letter"), not_two).to("out", mp.sinks.memory())
    app.dead_letters.to("dead", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [1, 2, 3])
        assert driver.output("out") == [1, 3]
        assert [(letter["row"], letter["error"]) for letter in driver.output("dead")] == [(2, "ValueError: it is two")]


@EVERY_VERB
@pytest.mark.parametrize("failures", [1, 2, 3])
def test_retry_calls_again_after_growing_pauses_and_then_gives_up(verb, failures):
    calls: list[float] = []

    def flaky(n):
        if n == 2:
            calls.append(driver.clock.now())
            if len(calls) <= failures:
                raise ValueError("not yet")
        return n

    app = mp.App("errors")
    rows = app.stream("rows", mp.sources.rows([]), on_error=mp.retry(2, "1s", then="skip"))
    VERBS[verb](rows, flaky).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [1, 2, 3])
        assert driver.output("out") == ([1, 2, 3] if failures <= 2 else [1, 3])
        pauses = [after - before for before, after in zip(calls, calls[1:], strict=False)]
        assert pauses == pytest.approx([1.0, 2.0][: min(failures, 2)])


def test_a_step_has_a_policy_of_its_own_or_that_of_its_stream():
    app = mp.App("errors")
    rows = app.stream("rows", mp.sources.rows([]), on_error="dead-letter").key_by(k=lambda n: 0)
    rows.apply("own", lambda n, state: not_two(n), on_error="skip").to("own out", mp.sinks.memory())
    rows.apply("inherited", lambda n, state: not_two(n)).to("inherited out", mp.sinks.memory())
    app.dead_letters.to("dead", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [1, 2])
        assert [letter["step"] for letter in driver.output("dead")] == ["inherited"]


@pytest.mark.parametrize("verb", sorted(STEPS))
def test_a_row_that_fails_changes_no_state(verb):
    app = mp.App("errors")
    VERBS[verb](app.stream("rows", mp.sources.rows([]), on_error="skip"), not_two)
    storage = open_storage("memory://")
    with TestDriver(app, storage=storage) as driver:
        driver.send("rows", [2, 2])
        assert changes(storage, "errors", "step") == []
        assert driver.state("step").get(0) is None


@pytest.mark.parametrize("row", [{"other": 1}, {}, 7, None, "text"])
def test_a_row_without_the_field_that_its_key_needs(row):
    app = mp.App("missing")
    rows = app.stream("rows", mp.sources.rows([]), on_error="dead-letter")
    rows.key_by("customer").stateful_map("n", nth, initial=0)
    app.dead_letters.to("dead", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [{"customer": "a"}, row, {"customer": "b"}])
        assert dict(driver.state("n").items()) == {"a": 1, "b": 1}
        letter = driver.output("dead")[0]
        assert letter["row"] == row
        assert letter["step"] == "key_by(customer)"
        assert letter["error"].startswith("the row has no field 'customer'; it ")


def test_a_missing_field_stops_the_run_in_words():
    with pytest.raises(mp.errors.StepFailed, match=r"the row has no field 'customer'; it has: 'client', 'n'"):
        piped(lambda s: s.key_by("customer").stateful_map("n", nth, initial=0), [{"client": 1, "n": 2}])


@pytest.mark.parametrize(
    "key, words",
    [
        (None, "a key cannot be None"),
        (1.5, "the float 1.5"),
        ([1], r"the list \[1\]; use a tuple"),
        ({"a": 1}, "of the type dict"),
        ((1, None), "a key cannot be None"),
        ("\ud800", "lone surrogate"),
    ],
)
@pytest.mark.parametrize("by", ["field", "function", "two fields"])
def test_what_cannot_be_a_key_is_refused_in_words(by, key, words):
    def keyed(s):
        if by == "field":
            return s.key_by("k")
        return s.key_by("k", "n") if by == "two fields" else s.key_by(key=lambda row: row["k"])

    rows = [{"k": "good", "n": 1}, {"k": key, "n": 2}]
    with pytest.raises(mp.errors.StepFailed, match=words):
        piped(lambda s: keyed(s).stateful_map("n", nth, initial=0), rows)
    found = piped(lambda s: keyed(s).stateful_map("n", lambda k, row, s: (row["n"], 1)), rows, on_error="skip")
    assert found == [1]


@pytest.mark.parametrize("value", [object(), "lone \ud800", {"deep": [lambda: 0]}])
@pytest.mark.parametrize("where", ["to a sink", "to a key", "from a step to a sink", "from a step to a key"])
def test_a_row_that_cannot_be_encoded_fails_alone(where, value):
    app = mp.App("rows", partitions=2)
    rows = app.stream("rows", mp.sources.rows([]), on_error="dead-letter")
    if "from a step" in where:
        rows = rows.key_by(k=lambda n: n).stateful_map("step", lambda k, n, s: ({"k": n, "v": value if n == 2 else n}, 1))
    else:
        rows = rows.map(lambda n: {"k": n, "v": value if n == 2 else n})
    if "key" in where:
        rows = rows.key_by("k").stateful_map("last", lambda k, row, s: (row, 1))
    rows.to("out", mp.sinks.memory())
    app.dead_letters.to("dead", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [1, 2, 3])
        assert driver.output("out") == [{"k": 1, "v": 1}, {"k": 3, "v": 3}]
        letters = driver.output("dead")
        assert len(letters) == 1
        assert letters[0]["row"] == repr({"k": 2, "v": value})
        assert letters[0]["step"] == ("key_by" if "key" in where else "out")


def test_a_row_that_cannot_be_encoded_stops_the_run_in_words():
    with pytest.raises(mp.errors.StepFailed, match="cannot store") as caught:
        piped(lambda s: s.map(lambda n: {"n": [object()]}), [1])
    assert caught.value.step == "out"


# --- dead letters ---


@PARTITIONS
def test_dead_letters_of_every_stage_meet_in_one_stream_which_is_a_stream_like_any_other(partitions):
    app = mp.App("letters", partitions=partitions)
    rows = app.stream("rows", mp.sources.rows([]), type=Item, on_error="dead-letter")

    def fail_on(amount):
        def f(row):
            if row.amount == amount:
                raise ValueError(f"amount {amount}")
            return row

        return f

    one = rows.map(fail_on(1)).key_by("customer").map(fail_on(2))
    two = one.stateful_map("two", lambda k, row, s: (fail_on(3)(row), 1))
    three = two.key_by(k=lambda row: fail_on(4)(row).amount).apply("three", lambda row, state: fail_on(5)(row))
    three.to("out", mp.sinks.memory())
    letters = app.dead_letters
    letters.to("dead", mp.sinks.memory())
    letters.key_by("step").aggregate("per step", n=mp.count()).to("counts", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [{"customer": f"c{n}", "amount": n % 7} for n in range(14)] + [{"customer": 1}])
        assert sorted(row.amount for row in driver.output("out")) == [0, 0, 6, 6]
        steps = [letter["step"] for letter in driver.output("dead")]
        assert sorted(steps) == ["key_by(k)"] * 2 + ["map"] * 4 + ["rows"] + ["three"] * 2 + ["two"] * 2
        assert {step: v["n"] for step, v in driver.state("per step").items()} == {
            "map": 4, "two": 2, "key_by(k)": 2, "three": 2, "rows": 1,
        }  # fmt: skip
        assert len(driver.output("counts")) == 11


def test_letters_that_nobody_reads_are_counted_in_the_ledger_alone():
    app = mp.App("letters")
    app.stream("rows", mp.sources.rows([]), on_error="dead-letter").map(not_two).to("out", mp.sinks.memory())
    storage = open_storage("memory://")
    with TestDriver(app, storage=storage) as driver:
        driver.send("rows", [1, 2, 2])
        assert driver.output("out") == [1]
    from ledger_reader import commits

    assert commits(storage, "letters")[0]["skipped"] == {"map": 2}


@pytest.mark.parametrize("where", ["step", "retry", "union"])
def test_what_stands_behind_the_dead_letters_cannot_make_more_of_them(where):
    app = mp.App("letters")
    rows = app.stream("rows", mp.sources.rows([]), on_error="dead-letter")
    if where == "union":
        rows.union(app.dead_letters).map(not_two)
    else:
        policy: Any = "dead-letter" if where == "step" else mp.retry(1, then="dead-letter")
        app.dead_letters.key_by("step").apply("again", lambda row, state: row, on_error=policy)
    with pytest.raises(mp.errors.InvalidUse, match='what stands behind app.dead_letters cannot have on_error="dead-letter"'):
        TestDriver(app)


# --- what is refused while building ---


def test_each_name_is_given_once():
    app = mp.App("names")
    rows = app.stream("rows", mp.sources.rows([]))
    with pytest.raises(mp.errors.InvalidUse, match="sink 'rows': the name belongs to a stream already"):
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
        (lambda s: s.key_by("k").aggregate("a"), "expected aggregations by name"),
        (lambda s: s.key_by("k").aggregate("a", k=mp.count()), "with names other than the key's"),
        (lambda s: s.key_by("k").apply("a", len, on_error="explode"), 'expected "stop", "skip", "dead-letter"'),
        (lambda s: s.key_by("k").deduplicate("d", within="soon"), "expected a duration such as"),
        (lambda s: s.key_by("k").stateful_map("", len), "expected a plain name"),
    ],
)
def test_what_makes_no_program_is_refused_where_it_is_written(build, words):
    with pytest.raises(mp.errors.InvalidUse, match=words):
        build(mp.App("refused").stream("rows", mp.sources.rows([])))
