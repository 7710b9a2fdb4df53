"""A rebuild by an unchanged program makes exactly the state that is there, whatever happened on the way to it."""

from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

import millpond as mp
from millpond.clock import SystemClock
from millpond.driver.settings import DriverSettings
from millpond.log import checked, segment
from millpond.log import merge_runs as merge
from millpond.log.ledger import Ledger
from millpond.log.segment import STATE
from millpond.maintenance.rebuild import Rebuild
from millpond.maintenance.rollback import roll_back
from millpond.maintenance.stopped_app import StoppedApp
from millpond.runtimes.local import LocalRuntime
from millpond.storage import Storage, open_storage

KEYS = "abc"


class Bell:
    """Timers by both clocks, which set each other."""

    def on_row(self, key: str, row: Any, state: mp.State, timers: mp.Timers) -> None:
        state.set("last", row["v"])
        timers.set("soon", after=row["v"] * 3, payload=row["v"])
        timers.set_wall("later", after=row["v"] * 10)

    def on_timer(self, key: str, timer: mp.Timer, state: mp.State, timers: mp.Timers) -> Any:
        state.list("rang").append([timer.name, state.get("last")])
        if timer.name == "later" and state.get("last", 0) % 2:
            timers.set_wall("later", after=25)
        return {"rang": key}


def note(row: Any, state: mp.State) -> Any:
    if row["v"] == 13:
        raise ValueError("unlucky")
    state.set("brief", row["v"], ttl=7)
    state.map("times")[row["v"]] = row["at"]
    return None


def everything(partitions: int) -> mp.App:
    app = mp.App("all", partitions=partitions, compact_every=3)
    sink = mp.sinks.memory
    left = app.stream("left", mp.sources.rows([]), timestamp="at", disorder=4, idle_after=30, on_error="dead-letter")
    right = app.stream("right", mp.sources.rows([]), timestamp="at", disorder=2, idle_after=60, on_error="skip")
    keyed, other = left.key_by("k"), right.key_by("k")

    keyed.stateful_map("total", lambda k, row, n: (None, n + row["v"]), initial=0)
    by_clock = mp.ttl("40s", refresh="read", clock="processing")
    keyed.stateful_map("wall", lambda k, row, n: (None, n + row["v"]), initial=0, ttl=by_clock)
    keyed.stateful_map("brief", lambda k, row, n: (None, n + row["v"]), initial=0, ttl=9)
    keyed.apply("note", note)
    keyed.process("bell", Bell).to("rang", sink())
    keyed.deduplicate("once", by="v", within=20).to("firsts", sink())
    tumbling = keyed.window("tumbling", mp.tumbling(10), grace=3, trigger=mp.triggers.every_rows(2))
    tumbling.aggregate(n=mp.count(), all=mp.collect("v"), who=mp.distinct("v")).to("tumbled", sink())
    keyed.window("hopping", mp.hopping(10, 5), grace=mp.NO_GRACE).aggregate(s=mp.sum("v"), last=mp.last("v"))
    keyed.window("session", mp.session(6), grace=2).aggregate(all=mp.collect("v"), first=mp.first("v"))
    keyed.window("sliding", mp.sliding(8), grace=mp.NO_GRACE).aggregate(n=mp.count(), last=mp.last("v"))
    keyed.window("counted", mp.count_tumbling(3)).aggregate(all=mp.collect("v"))
    late = tumbling.late.key_by(k=lambda row: row["key"])
    late.stateful_map("late", lambda k, row, n: (None, [*n, row["late_by"]]), initial=list)
    keyed.join_interval("near", other, before=5, after=5, grace=2, how="outer", merge=lambda a, b: [a, b])
    keyed.join_asof("quoted", other, keep=20, how="left", wait=True, merge=lambda a, b: [a, b])
    table = app.table("latest", other, deleted=lambda row: row["v"] == 2)
    looked = keyed.lookup("with", table, merge=lambda row, found: {"k": row["k"], "found": found})
    looked.key_by("k").stateful_map("seen", lambda k, row, n: (None, [*n, row["found"]][-4:]), initial=list)
    letters = app.dead_letters.key_by(step=lambda letter: letter["step"])
    letters.stateful_map("letters", lambda k, letter, n: (None, n + 1), initial=0)
    return app


STEPS = [
    "total", "wall", "brief", "note", "bell", "once", "tumbling", "hopping", "session", "sliding", "counted", "late",
    "near", "quoted", "latest", "seen", "letters",
]  # fmt: skip


def kept(storage: Storage, app: str, step: str) -> Any:
    """All that an app keeps of a step, as it is stored: living cells with their times, and what the record says."""
    last = Ledger(storage, app, SystemClock()).newest()
    assert last is not None
    found = []
    for work in StoppedApp(storage, app, SystemClock()).rewriter.plan_jobs(last, last):
        if step in work.steps:
            _, runs, fresh = work.steps[step]
            files = [part.file for run in runs for part in run] + fresh
            tables = [segment.state_table(checked.read_file(storage, file)) for file in files] or [STATE.empty_table()]
            found += [tuple(change) for change in segment.read_changes(merge.drop_deleted(merge.newest_cells(tables)))]
    return sorted(found), last.due.get(step), last.reached.get(step)


rows = st.lists(
    st.builds(
        lambda k, v, back: {"k": k, "v": v, "back": back},
        st.sampled_from(KEYS),
        st.sampled_from([1, 2, 3, 13]),
        st.integers(-3, 25),
    ),
    max_size=5,
)
acts = st.one_of(
    st.tuples(st.just("send"), rows, rows),
    st.tuples(st.just("send"), rows, rows),
    st.tuples(st.just("send"), rows, st.just([])),
    st.tuples(st.just("advance"), st.sampled_from([1, 20, 70]), st.none()),
    st.tuples(st.just("restart"), st.booleans(), st.sampled_from([1, 2, 3])),
    st.tuples(st.just("rollback"), st.integers(1, 6), st.none()),
    st.tuples(st.just("finish"), st.none(), st.none()),
    st.tuples(st.just("crash"), rows.filter(len), st.sampled_from(["compute", "commit", "deliver", "acknowledge"])),
    st.tuples(st.just("rebuild"), st.sampled_from(STEPS), st.none()),
)


def some(*backs: int) -> list[Any]:
    return [{"k": "a", "v": 3, "back": back} for back in backs]


@example([("send", some(0, 5), []), ("send", some(0, 25, 25), []), ("send", some(25), [])], [])  # late rows
@example(
    [("send", some(0), some(0)), ("advance", 70, None), ("send", some(9, 0), []), ("advance", 20, None)], []
)  # idle
@example([("send", some(0), some(0)), ("finish", None, None), ("send", some(0), [])], [])
@example([("send", some(0), some(1)), ("send", some(0), []), ("rollback", 1, None), ("send", some(2), some(0))], [])
@settings(max_examples=15, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(acts_done=st.lists(acts, min_size=3, max_size=10), switched=st.lists(st.sampled_from(STEPS), max_size=2))
def test_a_rebuild_by_the_same_program_makes_the_same_state(acts_done: list[Any], switched: list[str]) -> None:
    storage, time, exact = open_storage("memory://"), 100, True
    with mp.testing.TestDriver(everything(2), storage) as driver:
        for act, one, two in acts_done:
            if act == "send" or act == "crash":
                time += 6
                feeds = {"left": one, "right": two if act == "send" else []}
                sent = {
                    name: [{"k": row["k"], "v": row["v"], "at": time - row["back"]} for row in feed]
                    for name, feed in feeds.items()
                }
                if act == "crash":
                    driver.crash(at=two, when="before")
                try:
                    driver.send(sent)
                except mp.testing.Crashed:
                    driver.restart()
            elif act == "advance":
                driver.advance(one)
            elif act == "restart":
                # Some steps number the rows of a batch within each partition: then only their order is the same.
                exact = exact and two == 2
                driver.restart(everything(two), lose_replicas=one)
            elif act == "finish":
                driver.finish()
            elif act == "rollback":
                go_back(driver, storage, one)
            else:
                assert driver.rebuild(one) == []
        check_all(driver, storage, exact)
        driver.send("left", [{"k": "a", "v": 1, "at": time}])
        check_all(driver, storage, exact)
        seen = {step: dict(driver.state(step).items()) for step in STEPS}
        for step in switched:
            found = driver.rebuild(step, switch=True)
            assert found == [] and found.unknown is None, step
        assert {step: dict(driver.state(step).items()) for step in STEPS} == seen
        driver.send("left", [{"k": "a", "v": 2, "at": time + 1}])
        check_all(driver, storage, exact)


def check_all(driver: mp.testing.TestDriver, storage: Storage, exact: bool) -> None:
    """Rebuild once, and compare all steps: to the last byte if `exact`, else as they are seen."""
    program, home = driver._replace_ends(mp.lowlevel.program(driver._app)), driver._home
    settings = DriverSettings(home=home, threaded=False, bounded=False)
    made = Rebuild(program, "total", storage, driver.clock, settings, mp.sinks.discard())
    try:
        made.run(LocalRuntime(storage, driver.clock))
        for step in STEPS:
            (live, *times), (again, *its) = (kept(storage, app, step) for app in ("all", made.shadow))
            assert its == times, step
            if exact:
                assert again == live, step
            else:
                seen = mp.StateView(storage, made.shadow, step, driver.clock, step=program.steps[step], home=home)
                assert dict(seen.items()) == dict(driver.state(step).items()), step
    finally:
        made.forget()


def go_back(driver: mp.testing.TestDriver, storage: Storage, batches: int) -> None:
    """Some batches back, as somebody who stops the app does."""
    driver.restart()
    newest = Ledger(storage, "all", SystemClock()).newest()
    assert newest is not None
    driver._driver.release()
    with contextlib.suppress(mp.errors.InvalidUse):  # that batch was set aside before
        roll_back(StoppedApp(storage, "all", driver.clock), max(0, newest.number - batches))
    driver.restart()
