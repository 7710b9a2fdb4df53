"""Keys, which tell state apart, and stages, between which rows change hands."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from small_programs import PARTITIONS, nth, piped

import millpond as mp
from millpond.testing import TestDriver


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
    rows: list[Any] = [{"key": key, "n": n} for n, key in enumerate(keys)]
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
