"""TTL: what is over is never read, and does leave storage."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ledger_reader import ledger, rows_of

import millpond as mp
from millpond.storage import Storage, open_storage
from millpond.testing import Crashed, TestDriver

STEPS = ["plan", "compute", "commit", "deliver", "acknowledge", "tidy"]
START = datetime(2030, 1, 1, tzinfo=UTC)


def minute(n: int) -> datetime:
    return START + timedelta(minutes=n)


def row(k: Any, at: Any, **more: Any) -> dict[str, Any]:
    return {"k": k, "at": at, **more}


def app_with(build: Any, *, timestamp: Any = "at", disorder: Any = 0, partitions: int = 1) -> mp.App:
    """An app around one step, `build(keyed stream)`; `other` is a stream that moves the watermark alone."""
    app = mp.App("ttl", partitions=partitions)
    rows = app.stream("rows", mp.sources.rows([]), timestamp=timestamp, disorder=disorder)
    build(rows.key_by("k")).to("out", mp.sinks.memory())
    return app


def counting(ttl: Any = None, **how: Any) -> mp.App:
    """A count per key, by `stateful_map`."""
    return app_with(lambda s: s.stateful_map("s", lambda k, r, n: (n + 1, n + 1), initial=0, ttl=ttl), **how)


def applying(f: Any, ttl: Any = None, verb: str = "apply", **how: Any) -> mp.App:
    return app_with(lambda s: getattr(s, verb)("s", f, ttl=ttl), **how)


def number(row: Any, state: mp.State) -> Any:
    """How many rows came while the last one was remembered."""
    state.set("n", state.get("n", 0) + 1)
    return state.get("n")


def in_storage(storage: Storage, step: str = "s") -> dict[tuple[str, str], str]:
    """All cells that the log holds of a step, by key and cell, with their values."""
    found: dict[tuple[str, str], str] = {}
    for record in ledger(storage, "ttl"):
        for _, pointers in sorted(record.get("segments", {}).get(step, {}).items()):
            for change in (change for pointer in pointers for change in rows_of(storage, pointer["path"])):
                place = (change["key"], change["cell"])
                if change["deleted"]:
                    found.pop(place, None)
                else:
                    found[place] = change["value"]
    return found


# --- by event time ---


@pytest.mark.parametrize("app", [counting(10), applying(number, 10)], ids=["stateful_map", "apply"])
def test_state_is_over_when_no_row_has_written_it_for_so_long(app):
    with TestDriver(app) as driver:
        for at in (0, 9, 18, 28, 37):
            driver.send("rows", [row("a", at)])
        assert driver.output("out") == [1, 2, 3, 1, 2], "28 comes when 18 + 10 has come"


def test_rows_of_one_batch_see_what_is_over_by_their_own_time():
    with TestDriver(counting(10)) as driver:
        driver.send("rows", [row("a", at) for at in (0, 9, 18, 28, 37)])
        assert driver.output("out") == [1, 2, 3, 1, 2]


def test_a_row_behind_the_watermark_sees_what_is_over_by_the_watermark():
    with TestDriver(counting(10)) as driver:
        driver.send("rows", [row("a", 0)])
        driver.send("rows", [row("b", 50)])
        driver.send("rows", [row("a", 3)])
        assert driver.output("out") == [1, 1, 1]


def test_a_row_that_comes_late_shortens_no_life():
    with TestDriver(counting(10, disorder=100)) as driver:
        driver.send("rows", [row("a", 20), row("a", 12), row("a", 25)])
        assert driver.output("out") == [1, 2, 3]


def test_what_is_over_leaves_storage_though_no_row_of_its_key_comes():
    storage = open_storage("memory://")
    with TestDriver(counting(10), storage=storage) as driver:
        driver.send("rows", [row("a", 0), row("b", 5)])
        assert set(in_storage(storage)) == {('"a"', ""), ('"b"', "")}
        driver.send("rows", [row("c", 10)])
        assert set(in_storage(storage)) == {('"b"', ""), ('"c"', "")}
        assert dict(driver.state("s").items()) == {"b": 1, "c": 1}
        assert driver.state("s").get("a") is None
        assert [moment.value for moment in driver.state("s").history("a")] == [1, None]
        driver.restart(lose_replicas=True)
        assert dict(driver.state("s").items()) == {"b": 1, "c": 1}


def test_the_end_of_the_input_takes_nothing_away():
    with TestDriver(counting("10m")) as driver:
        driver.send("rows", [row("a", minute(0))])
        driver.finish()
        assert driver.state("s").get("a") == 1


def test_times_may_be_instants():
    with TestDriver(counting("10m")) as driver:
        for at in (0, 9, 19, 28):
            driver.send("rows", [row("a", minute(at))])
        assert driver.output("out") == [1, 2, 1, 2]


# --- by the clock ---


@pytest.mark.parametrize(
    "app",
    [
        counting("10s", timestamp=None),
        applying(number, "10s", timestamp=None),
        counting(mp.ttl("10s", clock="processing")),
    ],
    ids=["stateful_map", "apply", "rows with a time"],
)
def test_without_an_event_time_or_when_told_so_the_clock_counts(app):
    storage = open_storage("memory://")
    with TestDriver(app, storage=storage) as driver:
        driver.send("rows", [row("a", 1), row("b", 1)])
        driver.advance("9s")
        driver.send("rows", [row("a", 1)])
        driver.advance("1s")
        assert {key for key, _ in in_storage(storage)} == {'"a"'}, "a batch ran for it, without a row"
        driver.advance("8s")
        driver.send("rows", [row("a", 1)])
        driver.advance("1m")
        driver.send("rows", [row("a", 1)])
        assert driver.output("out") == [1, 1, 2, 3, 1]


def test_what_is_over_by_the_clock_is_not_seen_from_outside_though_no_batch_has_run():
    app = applying(lambda r, s: s.list("l").append(1) or s.set("n", 1), "10s", timestamp=None)
    with TestDriver(app) as driver:
        driver.send("rows", [row("a", 1)])
        assert driver.state("s").get("a") == {"l": [1], "n": 1}
        driver.clock.advance(10)
        assert driver.state("s").get("a") is None
        assert list(driver.state("s").items()) == []


# --- what refreshes it ---


def looks_then_writes(row: Any, state: mp.State) -> Any:
    if row.get("write"):
        state.set("v", row["write"])
    return state.get("v", "gone")


@pytest.mark.parametrize(
    ("ttl", "expected"),
    [
        (mp.ttl(10), ["x", "x", "x", "y", "y", "gone"]),
        (mp.ttl(10, refresh="read"), ["x", "x", "x", "y", "y", "y"]),
        (mp.ttl(10, refresh="never"), ["x", "x", "gone", "y", "y", "gone"]),
    ],
    ids=["write", "read", "never"],
)
def test_what_lets_an_entry_live_on(ttl, expected):
    sent = [row("a", 0, write="x"), row("a", 5, write="x"), row("a", 12), row("a", 13, write="y"), row("a", 20)]
    with TestDriver(applying(looks_then_writes, ttl)) as driver:
        for each in [*sent, row("a", 24)]:
            driver.send("rows", [each])
            driver.send("rows", [row("b", each["at"])])
        assert driver.output("out")[::2] == expected
    with TestDriver(applying(looks_then_writes, ttl)) as driver:
        driver.send("rows", [*sent, row("a", 24)])
        assert driver.output("out") == expected, "the same in one batch"


def test_a_row_that_fails_refreshes_nothing():
    def f(row, state):
        state.get("v")
        if row.get("fails"):
            raise ValueError("no")
        return looks_then_writes(row, state)

    app = app_with(lambda s: s.apply("s", f, ttl=mp.ttl(10, refresh="read"), on_error="skip"))
    with TestDriver(app) as driver:
        driver.send("rows", [row("a", 0, write="x"), row("a", 9, fails=True), row("a", 10)])
        assert driver.output("out") == ["x", "gone"]


def test_a_row_of_a_stateful_map_that_fails_refreshes_nothing():
    def f(key, row, n):
        return (n + 1, n + 1) if not row.get("fails") else 1 / 0

    ttl = mp.ttl(10, refresh="read")
    app = app_with(lambda s: s.stateful_map("s", f, initial=0, ttl=ttl, on_error="skip"))
    with TestDriver(app) as driver:
        driver.send("rows", [row("a", 0), row("a", 9, fails=True), row("b", 9), row("a", 10), row("b", 11)])
        assert driver.output("out") == [1, 1, 1, 2]
        assert dict(driver.state("s").items()) == {"a": 1, "b": 2}


# --- every entry on its own ---


def test_a_value_may_have_a_ttl_of_its_own():
    storage = open_storage("memory://")

    def f(row, state):
        if row["at"] == 0:
            state.set("short", 1, ttl=5)
            state.set("long", 2, ttl=mp.ttl(50))
            state.set("step's", 3)
        return [state.get(name) for name in ("short", "long", "step's")]

    with TestDriver(applying(f, 10), storage=storage) as driver:
        for at in (0, 4, 5, 9, 10, 49, 50):
            driver.send("rows", [row("a", at)])
        gone: list[Any] = [None, None, None]
        assert driver.output("out") == [[1, 2, 3], [1, 2, 3], *[[None, 2, 3]] * 2, *[[None, 2, None]] * 2, gone]
        assert in_storage(storage) == {}, "nothing of it is left"


def test_a_value_has_a_ttl_of_its_own_in_a_step_without_one():
    def f(row, state):
        if row["at"] == 0:
            state.set("v", 1, ttl=5)
            state.set("w", 1, ttl=5)
        if row["at"] == 3:
            state.set("w", 2)
        return [state.exists("v"), state.get("w")]

    with TestDriver(applying(f)) as driver:
        for at in (0, 3, 5, 1000):
            driver.send("rows", [row("a", at)])
        assert driver.output("out") == [[True, 1], [True, 2], [False, 2], [False, 2]], "setting it again makes it last"


def test_reading_refreshes_no_ttl_of_a_values_own():
    def f(row, state):
        if row["at"] == 0:
            state.set("v", 1, ttl=5)
        return state.get("v", "gone")

    with TestDriver(applying(f, mp.ttl(100, refresh="read"))) as driver:
        driver.send("rows", [row("a", at) for at in (0, 4, 5)])
        assert driver.output("out") == [1, 1, "gone"]


def test_elements_of_a_map_are_over_one_by_one():
    def f(row, state):
        seen = state.map("seen")
        if "id" in row:
            seen[row["id"]] = row["at"]
        return (len(seen), sorted(seen), "x" in seen)

    storage = open_storage("memory://")
    with TestDriver(applying(f, 10), storage=storage) as driver:
        driver.send("rows", [row("a", 0, id="x"), row("a", 6, id="y")])
        driver.send("rows", [row("a", 10)])
        driver.send("rows", [row("a", 11, id="y"), row("a", 18)])
        assert driver.output("out")[1:] == [(2, ["x", "y"], True), (1, ["y"], False), *[(1, ["y"], False)] * 2]
        assert driver.state("s").get("a") == {"seen": {"y": 11}}
        assert list(in_storage(storage)) == [('"a"', 'm:seen:"y"')]


def test_a_list_is_over_as_a_whole_and_begins_anew():
    def f(row, state):
        recent = state.list("recent")
        if "add" in row:
            recent.append(row["add"])
        if "change" in row:
            recent[0] = row["change"]
        return list(recent)

    storage = open_storage("memory://")
    with TestDriver(applying(f, 10), storage=storage) as driver:
        driver.send("rows", [row("a", 0, add=1), row("a", 8, add=2)])
        driver.send("rows", [row("a", 16, change="one"), row("a", 25)])
        assert driver.output("out")[-1] == ["one", 2]
        driver.send("rows", [row("a", 26), row("a", 27, add=3)])
        assert driver.output("out")[-2:] == [[], [3]]
        assert driver.state("s").get("a") == {"recent": [3]}
        driver.send("rows", [row("b", 99)])
        assert in_storage(storage) == {}


def test_reading_a_list_lets_all_of_it_live_on_where_reading_does():
    def f(row, state):
        if "add" in row:
            state.list("l").append(row["add"])
        return list(state.list("l"))

    with TestDriver(applying(f, mp.ttl(10, refresh="read"))) as driver:
        for each in (row("a", 0, add=1), row("a", 8, add=2), row("a", 16), row("a", 24), row("a", 34)):
            driver.send("rows", [each])
        assert driver.output("out") == [[1], [1, 2], [1, 2], [1, 2], []]


def test_what_is_deleted_stays_so_for_a_row_of_an_earlier_time():
    def f(row, state):
        if row.get("write"):
            state.set("v", row["at"])
        if row.get("delete"):
            state.delete("v")
        return [state.get("v")]

    with TestDriver(applying(f, 10, disorder=100)) as driver:
        driver.send(
            "rows", [row("a", 0, write=True), row("a", 10), row("a", 5), row("a", 10, delete=True), row("a", 5)]
        )
        assert driver.output("out") == [[0], [None], [0], [None], [None]]


def test_one_batch_may_bring_the_end_of_a_list_and_its_new_beginning():
    def f(row, state):
        state.list("l").append(row["at"])
        return list(state.list("l"))

    with TestDriver(applying(f, 10)) as driver:
        driver.send("rows", [row("a", 0), row("a", 1), row("a", 2)])
        driver.send("rows", [row("a", 12)])
        assert driver.output("out")[-1] == [12]
        assert driver.state("s").get("a") == {"l": [12]}


@pytest.mark.parametrize("verb", ["flat_apply", "update", "stateful_filter"])
def test_the_other_verbs_have_it_too(verb):
    def f(row, state):
        row["n"] = state.get("n", 0) + 1
        state.set("n", row["n"])
        return [row]

    with TestDriver(applying(f, 10, verb)) as driver:
        driver.send("rows", [row("a", at) for at in (0, 9, 19)])
        assert [found["n"] for found in driver.output("out")] == [1, 2, 1]


def test_aggregates_begin_anew_when_they_are_over():
    app = app_with(lambda s: s.aggregate("s", n=mp.count(), last=mp.last("at"), ttl=10))
    with TestDriver(app) as driver:
        driver.send("rows", [row("a", 0), row("a", 9)])
        driver.send("rows", [row("a", 19), row("b", 20)])
        assert [found["n"] for found in driver.output("out")] == [1, 2, 1, 1]
        assert driver.state("s").get("a") == {"n": 1, "last": 19}
        driver.send("rows", [row("b", 29)])
        assert driver.state("s").get("a") is None


def test_the_state_of_a_process_step_has_it_and_its_timers_have_not():
    class Watch:
        def on_row(self, key, row, state, timers):
            state.set("n", state.get("n", 0) + 1)
            timers.set("report", at=row["at"] + 30)
            return ("row", state.get("n"))

        def on_timer(self, key, timer, state, timers):
            state.set("fired", timer.at)
            return (timer.at, state.get("n"), state.get("fired"))

    storage = open_storage("memory://")
    with TestDriver(app_with(lambda s: s.process("s", Watch, ttl=10)), storage=storage) as driver:
        driver.send("rows", [row("a", 0), row("a", 5), row("a", 15)])
        assert driver.output("out") == [("row", 1), ("row", 2), ("row", 1)]
        driver.send("rows", [row("b", 45)])
        assert driver.output("out")[-1] == (45, None, 45)
        assert driver.state("s").get("a") == {"fired": 45}
        driver.send("rows", [row("b", 55)])
        assert driver.state("s").get("a") is None


def test_a_timer_sees_what_was_not_over_at_its_time():
    class Late:
        def on_row(self, key, row, state, timers):
            state.set("v", row["at"])
            timers.set("look", after=9)

        def on_timer(self, key, timer, state, timers):
            return (timer.at, state.get("v"))

    with TestDriver(app_with(lambda s: s.process("s", Late, ttl=10))) as driver:
        driver.send("rows", [row("a", 0)])
        driver.send("rows", [row("b", 500)])
        assert driver.output("out")[0] == (9, 0), "the batch goes far beyond the end of the state"


# --- ids that were seen ---


def test_ids_that_were_seen_leave_storage_when_they_are_over():
    storage = open_storage("memory://")
    app = app_with(lambda s: s.deduplicate("s", by="id", within=10))
    with TestDriver(app, storage=storage) as driver:
        driver.send("rows", [row("a", 0, id=1), row("a", 5, id=2), row("a", 9, id=1)])
        assert [found["at"] for found in driver.output("out")] == [0, 5]
        driver.send("rows", [row("b", 10, id=9)])
        assert [cell for _, cell in in_storage(storage)] == ["m:seen:2", "m:seen:9"]
        driver.send("rows", [row("a", 12, id=1), row("a", 14, id=2), row("a", 15, id=2)])
        assert [found["at"] for found in driver.output("out")] == [0, 5, 10, 12, 15]


def test_ids_leave_by_the_clock_where_rows_have_no_time():
    storage = open_storage("memory://")
    app = app_with(lambda s: s.deduplicate("s", within="10s"), timestamp=None)
    with TestDriver(app, storage=storage) as driver:
        driver.send("rows", [row("a", 0)])
        driver.advance("9s")
        driver.send("rows", [row("a", 0)])
        assert len(in_storage(storage)) == 1
        driver.advance("1s")
        assert in_storage(storage) == {}
        driver.send("rows", [row("a", 0)])
        assert len(driver.output("out")) == 2


def test_another_within_counts_for_the_ids_that_are_kept():
    def app(within):
        return app_with(lambda s: s.deduplicate("s", by="id", within=within))

    storage = open_storage("memory://")
    with TestDriver(app(None), storage=storage) as driver:
        driver.send("rows", [row("a", 0, id=1), row("a", 6, id=2)])
        driver.restart(app(10))
        driver.send("rows", [row("b", 12, id=3)])
        assert [cell for _, cell in in_storage(storage)] == ["m:seen:2", "m:seen:3"]
        driver.restart(app(100))
        driver.send("rows", [row("a", 50, id=2), row("b", 51, id=4)])
        assert [found["at"] for found in driver.output("out")] == [0, 6, 12, 51]
        driver.restart(app(None))
        driver.send("rows", [row("b", 5000, id=5)])
        assert len(in_storage(storage)) == 4


def test_copies_of_a_row_that_is_older_than_what_is_remembered_are_let_go_all_but_the_first():
    with TestDriver(app_with(lambda s: s.deduplicate("s", by="id", within=10))) as driver:
        driver.send("rows", [row("b", 100, id=0)])
        for _ in range(2):
            driver.send("rows", [row("a", 5, id=1), row("a", 5, id=1)])
        driver.send("rows", [row("b", 109, id=9)])
        driver.send("rows", [row("a", 5, id=1)])
        assert [found["id"] for found in driver.output("out")] == [0, 1, 9]


@pytest.mark.parametrize("timed", [True, False], ids=["event time", "the clock"])
@settings(max_examples=60, deadline=None, database=None)
@given(
    st.lists(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 30), st.integers(0, 2)), max_size=4), max_size=8)
)
def test_an_id_lives_as_an_entry_with_a_ttl_that_nothing_refreshes(timed, batches):
    def first(row, state):
        seen = state.map("seen")
        if row["id"] in seen:
            return None
        seen[row["id"]] = True
        return row

    def app(step):
        clock: dict[str, Any] = {} if timed else {"timestamp": None}
        return app_with(step, **clock)

    found, within = [], 7 if timed else "7s"
    for step in (
        lambda s: s.deduplicate("s", by="id", within=within),
        lambda s: s.apply("s", first, ttl=mp.ttl(within, refresh="never")),
    ):
        with TestDriver(app(step)) as driver:
            for batch in batches:
                driver.send("rows", [row(k, at, id=id) for k, at, id in batch])
                if not timed:
                    driver.advance(f"{sum(at for _, at, _ in batch) % 5}s")
            found.append((driver.output("out"), {k: set(v["seen"]) for k, v in driver.state("s").items()}))
    assert found[0] == found[1]


def test_within_no_time_at_all_is_refused():
    with pytest.raises(mp.errors.InvalidUse, match=r"deduplicate\('s', within\): .*longer than nothing"):
        app_with(lambda s: s.deduplicate("s", within=0))


@pytest.mark.parametrize("length", [3, 10, 50])
def test_a_plain_set_ends_a_ttl_of_the_values_own_also_where_nothing_refreshes_the_steps(length):
    def do(row, state):
        if row["do"] != "look":
            state.set("v", row["at"], **({"ttl": length} if row["do"] == "own" else {}))
        return state.get("v")

    with TestDriver(app_with(lambda s: s.apply("s", do, ttl=mp.ttl(10, refresh="never")))) as driver:
        history = [("own", 0), ("plain", 2), ("plain", 5), ("look", 11), ("look", 12), ("plain", 13), ("own", 14)]
        for what, at in [*history, ("look", 13 + length), ("look", 14 + length)]:
            driver.send("rows", [row("a", at, do=what)])
        # The plain value came to be at 2, and the later ones keep its end, 12.
        assert driver.output("out") == [0, 2, 5, 5, 13, 14, 14]


# --- another TTL than before ---


@pytest.mark.parametrize("make", [counting, lambda ttl=None: applying(number, ttl)], ids=["stateful_map", "apply"])
def test_a_ttl_can_be_set_changed_and_removed_on_state_that_is_there(make):
    storage = open_storage("memory://")
    with TestDriver(make(), storage=storage) as driver:
        driver.send("rows", [row("a", 0), row("b", 100)])
        driver.restart(make(10))
        driver.send("rows", [row("b", 105)])
        assert {key for key, _ in in_storage(storage)} == {'"a"', '"b"'}, "it lives from now on, by the watermark: 100"
        driver.restart(make(20))
        driver.send("rows", [row("b", 110)])
        assert {key for key, _ in in_storage(storage)} == {'"a"', '"b"'}, "and 10 more"
        driver.restart(make(15))
        driver.send("rows", [row("b", 114)])
        assert {key for key, _ in in_storage(storage)} == {'"a"', '"b"'}
        driver.send("rows", [row("b", 115)])
        assert {key for key, _ in in_storage(storage)} == {'"b"'}, "a is over at 115"
        driver.restart(make())
        driver.send("rows", [row("c", 9000)])
        driver.send("rows", [row("b", 9001)])
        assert driver.output("out")[-1] == 6, "b lasts for ever now"


def test_a_ttl_that_is_made_shorter_takes_away_at_once_what_is_over():
    with TestDriver(counting(100)) as driver:
        driver.send("rows", [row("a", 0), row("b", 50)])
        driver.restart(counting(10))
        driver.send("rows", [row("b", 51)])
        assert dict(driver.state("s").items()) == {"b": 2}


def test_a_ttl_of_another_clock_begins_anew():
    with TestDriver(counting("10m")) as driver:
        driver.send("rows", [row("a", minute(0))])
        driver.restart(counting(mp.ttl("10m", clock="processing")))
        driver.send("rows", [row("b", minute(500))])
        assert driver.state("s").get("a") == 1
        driver.advance("10m")
        assert driver.state("s").get("a") is None


def test_lists_maps_and_values_with_a_ttl_of_their_own_when_the_steps_ttl_changes():
    def f(row, state):
        if row["k"] == "a":
            state.list("l").extend([1, 2])
            state.map("m")["x"] = 1
            state.set("own", 1, ttl=1000)
            state.set("v", 1)

    storage = open_storage("memory://")
    with TestDriver(applying(f), storage=storage) as driver:
        driver.send("rows", [row("a", 0)])
        driver.restart(applying(f, 10))
        driver.send("rows", [row("b", 9)])
        assert driver.state("s").get("a") == {"l": [1, 2], "m": {"x": 1}, "own": 1, "v": 1}
        driver.send("rows", [row("b", 10)])
        assert driver.state("s").get("a") == {"own": 1}
        driver.restart(applying(f))
        driver.send("rows", [row("b", 1000)])
        assert in_storage(storage) == {}


@pytest.mark.parametrize("at", STEPS)
def test_a_crash_while_the_ttl_changes_changes_nothing(at):
    with TestDriver(counting(), partitions=2) as driver:
        driver.send("rows", [row(k, 0) for k in range(5)])
        driver.restart(counting(10))
        driver.crash(at=at, when="before")
        with pytest.raises(Crashed):
            driver.send("rows", [row(9, 9)])
        driver.restart(lose_replicas=True)
        assert sorted(driver.state("s").items()) == [*((k, 1) for k in range(5)), (9, 1)]
        driver.send("rows", [row(9, 10)])
        assert dict(driver.state("s").items()) == {9: 2}


# --- mistakes ---


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mp.ttl("soon"), "ttl: expected a duration such as"),
        (lambda: mp.ttl(0), "ttl: expected a duration longer than nothing"),
        (
            lambda: mp.ttl("1h", refresh="always"),  # type: ignore[arg-type]
            r'ttl\(refresh\): expected "write", "read" or "never", got \'always\'',
        ),
        (lambda: mp.ttl("1h", clock="wall"), r"ttl\(clock\): expected"),  # type: ignore[arg-type]
        (lambda: mp.ttl(10, clock="processing"), "the clock needs a duration such as"),
        (lambda: counting([]), r"stateful_map\('s', ttl\): ttl: expected a duration"),
    ],
)
def test_what_is_no_ttl_is_refused(make, message):
    with pytest.raises(mp.errors.InvalidUse, match=message):
        make()


@pytest.mark.parametrize(
    ("app", "message"),
    [
        (counting("10s"), "the stream's times are whole numbers, so expected a whole number"),
        (counting(10, timestamp=None), "expected a duration such as"),
        (
            applying(lambda r, s: s.set("v", 1, ttl=mp.ttl("1h", clock="event")), timestamp=None),
            r'ttl with clock="event" needs rows with an event time',
        ),
        (applying(lambda r, s: s.set("v", 1, ttl=mp.ttl(5, refresh="read"))), "can be refreshed by reading"),
        (applying(lambda r, s: s.set("v", 1, ttl="later")), r"state.set\('v', ttl=\): ttl: expected a duration"),
    ],
)
def test_a_ttl_that_does_not_fit_the_rows_says_so(app, message):
    with TestDriver(app) as driver, pytest.raises(mp.errors.StepFailed, match=message):
        driver.send("rows", [row("a", 1)])


# --- any history ---


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 40)), max_size=6), max_size=6),
    st.sampled_from(["write", "never"]),
    st.integers(1, 12),
    st.integers(1, 2),
)
def test_any_rows_are_counted_as_a_plain_program_counts_them(batches, refresh, after, partitions):
    counts: dict[str, tuple[int, int]] = {}  # key → count, when it is over
    expected, watermark = [], None
    for batch in batches:
        for key, at in batch:
            now = at if watermark is None else max(at, watermark)
            n, over = counts.get(key, (0, now))
            if over <= now:
                counts[key] = (1, now + after)
            else:
                counts[key] = (n + 1, over if refresh == "never" else max(over, now + after))
            expected.append(counts[key][0])
        watermark = max([at for _, at in batch] + ([] if watermark is None else [watermark]), default=None)
        counts = {key: held for key, held in counts.items() if watermark is None or held[1] > watermark}
    with TestDriver(counting(mp.ttl(after, refresh=refresh), partitions=partitions)) as driver:
        for batch in batches:
            driver.send("rows", [row(key, at) for key, at in batch])
        assert driver.output("out") == expected
        assert dict(driver.state("s").items()) == {key: n for key, (n, _) in counts.items()}


class Model:
    """The state of a step in plain Python: per key and place what is kept there, and when it is over."""

    def __init__(self, ttl: tuple[int, str] | None) -> None:
        self.ttl = ttl
        self.kept: dict[tuple[str, str], tuple[Any, int | None, bool]] = {}

    def get(self, place: tuple[str, str], now: int, reads: bool = True) -> Any:
        value, over, own = self.kept.get(place, (None, None, False))
        if over is not None and over <= now:
            return None
        if reads and value is not None and not own and self.ttl is not None and self.ttl[1] == "read":
            later = now + self.ttl[0] if over is None else max(over, now + self.ttl[0])
            self.kept[place] = (value, later, False)
        return value

    def put(self, place: tuple[str, str], value: Any, now: int, ttl: int | None = None) -> None:
        _, held, own = self.kept.get(place, (None, None, False))
        if self.get(place, now, reads=False) is None:
            held = None
        if ttl is not None:
            over = now + ttl
        elif self.ttl is None:
            over = None
        elif self.ttl[1] == "never" and held is not None and not own:
            over = held
        else:
            over = now + self.ttl[0]
            over = max(over, held) if held is not None and not own else over
        self.kept[place] = (value, over, ttl is not None)


def played(row: Any, state: mp.State) -> Any:
    items, seen = state.list("l"), state.map("m")
    match row["do"]:
        case "set":
            state.set("v", row["at"])
        case "set for":
            state.set("v", row["at"], ttl=row["n"])
        case "delete":
            state.delete("v")
        case "append":
            items.append(row["at"])
        case "popleft":
            return [items.popleft() if items else None]
        case "clear list":
            items.clear()
        case "put":
            seen[row["n"] % 3] = row["at"]
        case "remove":
            seen.pop(row["n"] % 3, None)
        case "clear":
            state.clear()
        case "look":
            return [state.get("v"), list(items), {key: seen[key] for key in seen}]
    return None


def told(model: Model, row: Any, now: int) -> Any:
    """The same by the model; places are those of the state's cells."""
    k, n = row["k"], row["n"]
    value, items, element = (k, "v"), (k, "l"), (k, f"m{n % 3}")
    match row["do"]:
        case "set":
            model.put(value, row["at"], now)
        case "set for":
            model.put(value, row["at"], now, n)
        case "delete":
            model.kept.pop(value, None)
        case "append":
            model.put(items, [*(model.get(items, now) or []), row["at"]], now)
        case "popleft":
            held = model.get(items, now)
            if not held:
                return [None]
            model.put(items, held[1:], now)
            return [held[0]]
        case "clear list":
            model.kept.pop(items, None)
        case "put":
            model.put(element, row["at"], now)
        case "remove":
            if model.get(element, now) is not None:
                del model.kept[element]
        case "clear":
            model.kept = {place: held for place, held in model.kept.items() if place[0] != k}
        case "look":
            looked = [model.get(value, now), model.get(items, now) or []]
            found = {i: model.get((k, f"m{i}"), now) for i in range(3)}
            return [*looked, {i: at for i, at in found.items() if at is not None}]
    return None


WRITES = ["set", "set for", "delete", "append", "popleft", "clear list", "put", "remove", "clear"]
actions = st.sampled_from(WRITES) | st.just("look")
acts = st.fixed_dictionaries(
    {"k": st.sampled_from("ab"), "at": st.integers(1, 40), "do": actions, "n": st.integers(1, 12)}
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.lists(acts, max_size=8), max_size=5),
    st.none() | st.tuples(st.integers(1, 12), st.sampled_from(["write", "read", "never"])),
    st.sampled_from([0, 10]),
)
def test_any_use_of_the_state_is_as_in_a_plain_program(batches, ttl, disorder):
    storage, model, expected = open_storage("memory://"), Model(ttl), []
    watermark: int | None = None
    lives = None if ttl is None else mp.ttl(ttl[0], refresh=ttl[1])
    app = applying(played, lives, disorder=disorder)
    with TestDriver(app, storage=storage) as driver:
        for batch in batches:
            driver.send("rows", batch)
            for each in batch:
                told_now = told(model, each, each["at"] if watermark is None else max(each["at"], watermark))
                expected += [] if told_now is None else [told_now]
            newest = [each["at"] - disorder for each in batch]
            watermark = max(newest + ([] if watermark is None else [watermark]), default=None)
            if watermark is not None:
                model.kept = {p: held for p, held in model.kept.items() if held[1] is None or held[1] > watermark}
        assert driver.output("out") == expected
        cells = {(key[1], "m" + cell[4:] if cell[0] == "m" else cell[0]) for key, cell in in_storage(storage)}
        empty = {place for place, held in model.kept.items() if held[0] == []}  # an empty list has its bounds
        assert {place for place in cells if place[1] != "x"} - empty == model.kept.keys() - empty
