"""Any history of rows, batches, crashes and restarts ends where a fold in plain Python ends.

A failing history is printed with the blob that gives it again: @reproduce_failure(…).
"""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import millpond as mp
from millpond.testing import Crashed, TestDriver

STEPS = ["plan", "compute", "commit", "deliver", "acknowledge", "tidy"]
WHENS = ["before", "during", "after"]

HISTORIES = settings(
    max_examples=50,
    deadline=None,
    database=None,
    derandomize=False,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)

keys = st.sampled_from(["a", "b", 1, True, ("a", 1), "long" * 80])
rows = st.lists(st.fixed_dictionaries({"key": keys, "n": st.integers(-3, 9)}), max_size=6)
points = st.tuples(st.sampled_from(STEPS), st.sampled_from(WHENS))
histories = st.lists(
    st.one_of(
        st.tuples(st.just("send"), rows),
        st.tuples(st.just("crash"), rows, points, st.booleans()),
        st.tuples(st.just("restart"), st.booleans()),
    ),
    max_size=8,
)


def live_through(driver: TestDriver, history: list[Any]) -> list[Any]:
    """Let it all happen; the rows that were sent, in their order."""
    sent: list[Any] = []
    for what, *how in history:
        if what == "send":
            driver.send("rows", how[0])
            sent += how[0]
        elif what == "restart":
            driver.restart(lose_replicas=how[0])
        else:
            driver.crash(*how[1])
            sent += how[0]
            with pytest.raises(Crashed):
                driver.send("rows", how[0])
                driver.finish()  # an empty batch passes some points without meeting them
                raise Crashed("nothing", "to do")
            driver.restart(lose_replicas=how[2])
    return sent


def program(partitions: int) -> mp.App:
    """Every kind of state, two stages, three sinks, dead letters."""
    app = mp.App("history", partitions=partitions)
    read = app.stream("rows", mp.sources.rows([]), on_error="dead-letter")

    def add_up(key, row, total):
        if row["n"] < 0:
            raise ValueError("negative")
        total += row["n"]
        return {"key": key, "total": total}, None if total > 12 else total

    def remember(row, state):
        state.set("n", state.get("n", 0) + 1)
        recent = state.list("recent")
        recent.append(row["total"])
        if len(recent) > 3:
            recent.popleft()
        seen = state.map("seen")
        seen[repr(row["key"])] = seen.get(repr(row["key"]), 0) + 1
        if len(seen) > 2:
            del seen[next(iter(seen))]
        if row["total"] == 9:
            state.clear()
        return [state.key, row["total"], state.get("n", 0)]

    totals = read.key_by("key").stateful_map("total", add_up, initial=0).to("totals", mp.sinks.memory())
    totals.key_by(odd=lambda row: row["total"] % 2 == 1).apply("seen", remember).to("seen out", mp.sinks.memory())
    app.dead_letters.key_by("key").aggregate("letters", n=mp.count()).to("letters out", mp.sinks.memory())
    return app


def same(key: Any) -> Any:
    """Keys that Python takes for equal and the app does not."""
    return type(key).__name__, key


def folded(sent: list[Any]) -> dict[str, Any]:
    totals: dict[Any, int] = {}
    seen: dict[bool, dict[str, Any]] = {}
    letters: Counter[Any] = Counter()
    out: dict[str, list[Any]] = {"totals": [], "seen out": [], "letters out": []}
    for row in sent:
        key, at = row["key"], same(row["key"])
        if row["n"] < 0:
            letters[at] += 1
            out["letters out"].append({"key": key, "n": letters[at]})
            continue
        total = totals.pop(at, 0) + row["n"]
        if total <= 12:
            totals[at] = total
        out["totals"].append({"key": key, "total": total})
        odd = total % 2 == 1
        held = seen.setdefault(odd, {"n": 0, "recent": [], "seen": {}})
        held["n"] += 1
        held["recent"] = [*held["recent"], total][-3:]
        held["seen"][repr(key)] = held["seen"].get(repr(key), 0) + 1
        if len(held["seen"]) > 2:
            del held["seen"][min(held["seen"], key=json.dumps)]  # a map's keys come in the order of their text
        if total == 9:
            del seen[odd]
        out["seen out"].append([odd, total, held["n"] if total != 9 else 0])
    return {"total": totals, "seen": seen, "letters": {at: {"n": n} for at, n in letters.items()}, **out}


def held(driver: TestDriver) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for step in ("total", "seen", "letters"):
        state[step] = {same(key) if step != "seen" else key: value for key, value in driver.state(step).items()}
    return {**state, **{sink: driver.output(sink) for sink in ("totals", "seen out", "letters out")}}


@given(history=histories, partitions=st.sampled_from([1, 2, 3]))
@HISTORIES
def test_any_history_ends_where_the_plain_fold_ends(history, partitions):
    with TestDriver(program(partitions)) as driver:
        expected = folded(live_through(driver, history))
        assert held(driver) == expected
        driver.restart(lose_replicas=True)
        assert held(driver) == expected


@given(history=histories, partitions=st.sampled_from([1, 2]))
@HISTORIES
def test_functions_that_are_not_repeatable_cannot_make_state_and_sinks_disagree(history, partitions):
    chance = random.Random()
    app = mp.App("chance", partitions=partitions)

    def stamped(row):
        return {**row, "id": chance.getrandbits(64)}

    def keep(key, row, ids):
        ids = [*ids, (row["id"], chance.getrandbits(64))]
        return {"key": key, "ids": ids}, ids

    def keep_last(row, state):
        state.map("last")[repr(row["key"])] = row["ids"]
        return {"key": row["key"], "last": row["ids"], "luck": chance.getrandbits(64)}

    rows = app.stream("rows", mp.sources.rows([])).map(stamped)
    kept = rows.key_by("key").stateful_map("ids", keep, initial=[]).to("ids out", mp.sinks.memory())
    spread = kept.key_by(luck=lambda row: chance.randrange(3)).apply("lucky", keep_last)
    spread.to("lucky out", mp.sinks.memory())
    with TestDriver(app) as driver:
        sent = live_through(driver, history)
        for lose_replicas in (False, True):
            per_key: dict[Any, Any] = {}
            for row in driver.output("ids out"):
                assert row["ids"][:-1] == per_key.get(same(row["key"]), []), "each output goes on from the one before"
                per_key[same(row["key"])] = row["ids"]
            assert {same(key): ids for key, ids in driver.state("ids").items()} == per_key
            counts = Counter(same(row["key"]) for row in sent)
            assert {at: len(ids) for at, ids in per_key.items()} == counts, "each row once"
            # Where a row went by chance, it is in state and sink alike.
            lucky = [(repr(row["key"]), row["last"]) for row in driver.output("lucky out")]
            assert sorted(lucky) == sorted((repr(row["key"]), row["ids"]) for row in driver.output("ids out"))
            assert all(last in lucky for _, value in driver.state("lucky").items() for last in value["last"].items())
            driver.restart(lose_replicas=lose_replicas)
