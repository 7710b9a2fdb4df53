"""What windows and joins keep stays in the order of arrival, though batch numbers come again.

A savepoint that is restored begins a ledger whose numbers start at 0, with state that was written under higher ones.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_drivers import Lanes, driver_of, run_to_end
from small_lives import Build, Life
from small_rebuilds import rebuild

import millpond as mp

Rows = list[dict[str, Any]]
KEEPING: dict[str, Callable[[], Any]] = {
    "all": lambda: mp.collect("v"),
    "once": lambda: mp.distinct("d"),
    "first": lambda: mp.first("v"),
    "last": lambda: mp.last("v"),
    "latest": lambda: mp.latest("v"),
    "top": lambda: mp.top(2, "v", by="d"),
}


def window(kind: Any, **how: Any) -> Build:
    made = {"grace": 50, **how} if kind.__class__.__name__ in ("Hopping", "Session", "Sliding") else how
    return lambda streams: (
        streams["rows"].window("w", kind, **made).aggregate(**{name: make() for name, make in KEEPING.items()})
    )


def pair(left: Any, right: Any) -> Any:
    return {"k": (left or right)["k"], "left": left and left["v"], "right": right and right["v"]}


def join(verb: str, *given: Any, **how: Any) -> Build:
    return lambda streams: getattr(streams["left"], verb)("j", streams["right"], *given, merge=pair, **how)


WINDOWS = {
    "tumbling": window(mp.tumbling(100)),
    "hopping": window(mp.hopping(100, 50)),
    "session": window(mp.session(30)),
    "sliding": window(mp.sliding(20)),
    "sliding, shown early": window(mp.sliding(20), trigger=mp.triggers.every_rows(3)),
    "global": window(mp.global_window(), trigger=mp.triggers.every_rows(4)),
    "discarding": window(mp.tumbling(100), trigger=mp.triggers.every_rows(2), panes="discard"),
    "retracting": window(mp.session(30), trigger=mp.triggers.every_rows(2), panes="retract"),
    "by rows": window(mp.count_tumbling(5)),
    "by rows, hopping": window(mp.count_hopping(4, 2)),
    "by rows, sliding": window(mp.count_sliding(3)),
    "key's clock": window(mp.tumbling(100), clock="key"),
}
JOINS = {
    "interval": join("join_interval", before=5, after=5, grace=50),
    "interval, outer": join("join_interval", before=5, after=5, grace=50, how="outer"),
    "window": join("join_window", mp.tumbling(100), grace=50, how="outer"),
    "asof": join("join_asof", keep=50, how="left"),
    "asof, waiting": join("join_asof", keep=50, how="left", wait=True),
}


def row(v: int, t: int, k: str = "a") -> dict[str, Any]:
    return {"k": k, "t": t, "v": v, "d": v % 4}


def in_one_go(build: Build, batches: list[dict[str, Rows]], streams: tuple[str, ...]) -> list[Any]:
    with Life(build, *streams, partitions=2) as life:
        for batch in batches:
            life.send(**batch)
        return life.finish()


def test_a_window_that_goes_on_after_a_restore_holds_all_rows_in_their_order() -> None:
    with Life(window(mp.tumbling(100))) as life:
        for v in range(6):
            life.send(row(v, v))
        life.move()
        life.send(row(6, 6))
        life.send(row(7, 7))
        (found,) = life.finish()
    assert found["all"] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert found["once"] == [0, 1, 2, 3] and (found["first"], found["last"]) == (0, 7)


BREAKS: dict[str, dict[int, tuple[Any, ...]]] = {  # after which batch what happens
    "restored into another app": {4: ("move",)},
    "an earlier batch restored, replicas lost": {4: ("move", 2), 5: ("lose",)},
    "rolled back": {3: ("rollback", 2), 5: ("rollback", 1)},
    "everything": {
        1: ("move", 1),
        2: ("rollback", 1),
        3: ("clear_and_restore",),
        4: ("compact",),
        5: ("move",),
        6: ("rescale", 3),
    },
}


@pytest.mark.parametrize("breaks", BREAKS)
@pytest.mark.parametrize("kind", [*WINDOWS, *JOINS])
def test_whatever_comes_between_batches_the_outputs_are_the_same(kind: str, breaks: str) -> None:
    build = {**WINDOWS, **JOINS}[kind]
    streams = ("rows",) if kind in WINDOWS else ("left", "right")
    # Many rows of equal key and time, some of them out of order.
    times = [5, 1, 5, 5, 3, 5, 20, 5, 21, 20, 5, 60, 60, 5, 61, 60] if kind in WINDOWS else [5] * 14 + [6, 4]
    rows = [row(v, t) for v, t in enumerate(times)]
    batches = [{s: rows[i + n : i + 2 : len(streams)] for n, s in enumerate(streams)} for i in range(0, len(rows), 2)]
    expected = in_one_go(build, batches, streams)
    assert expected, "the rows are worth a test"
    with Life(build, *streams, partitions=2) as life:
        for i, batch in enumerate(batches):
            life.send(**batch)
            if i in BREAKS[breaks]:
                _happen(life, BREAKS[breaks][i])
        assert _by_key(life.finish()) == _by_key(expected)


def _by_key(rows: list[Any]) -> list[Any]:
    """The outputs of each key in their order: what partition a key is of does not matter."""
    return sorted(rows, key=lambda each: each["k"])


def test_a_rebuilt_window_goes_on_in_order_though_the_rebuild_took_more_batches(tmp_path: Path) -> None:
    class Bounded(Lanes):
        def plan_to(self, position: Any, end: Any, limit: mp.lowlevel.Limit, now: float) -> list[mp.lowlevel.Split]:
            start = position.get("0", 0)
            stop = min(start + self.width, end.get("0", 0))
            return [mp.lowlevel.Split("0", start, stop, partition="0")] if stop > start else []

    source = Bounded({"0": [row(v, v) for v in range(30)]}, width=30)
    app = mp.App("again", str(tmp_path / "state"), 1, local_dir=str(tmp_path / "local"), keep=1)
    rows = app.stream("rows", source, timestamp="t").key_by("k")
    window(mp.tumbling(100))({"rows": rows}).to("out", mp.sinks.memory())

    def run() -> None:
        driver = driver_of(app, mp.lowlevel.storage(app), tmp_path / "local")
        run_to_end(driver)
        driver.release()
        driver.close()

    run()
    app.compact()
    app.compact()
    source.width = 1
    assert rebuild(app, "w", switch=True).unknown, "the bounds of the first batch are not kept"
    source.lanes["0"].extend(row(v, v) for v in range(30, 40))
    run()
    (found,) = app.state("w").get("a")
    assert found["all"] == list(range(40)) and found["last"] == 39


events = st.one_of(
    st.just(("move", 0)),
    st.tuples(st.sampled_from(["move", "rollback"]), st.integers(0, 3)),
    st.sampled_from([("clear_and_restore",), ("compact",), ("restart",), ("lose",), ("rescale", 1), ("rescale", 3)]),
)


def _happen(life: Life, event: tuple[Any, ...]) -> None:
    if event[0] == "lose":
        life.restart(lose_replicas=True)
    else:
        getattr(life, event[0])(*event[1:])


@st.composite
def histories(draw: Any, streams: tuple[str, ...]) -> list[Any]:
    """Batches of rows, with things that happen between them."""
    found: list[Any] = []
    clock = number = 0
    for _ in range(draw(st.integers(2, 6))):
        batch: dict[str, Rows] = {name: [] for name in streams}
        for which, step, back, key in draw(
            st.lists(
                st.tuples(st.integers(0, 1), st.integers(0, 6), st.integers(0, 12), st.sampled_from("ab")), max_size=5
            )
        ):
            clock, number = clock + step, number + 1
            batch[streams[which % len(streams)]].append(row(number, clock - back, key))
        found.append(batch)
        found += draw(st.lists(events, max_size=2))
    return found


@pytest.mark.parametrize("kind", [*WINDOWS, *JOINS])
def test_random_histories_end_as_an_uninterrupted_run_does(kind: str) -> None:
    build = {**WINDOWS, **JOINS}[kind]
    streams = ("rows",) if kind in WINDOWS else ("left", "right")

    @settings(max_examples=6, deadline=None, database=None, print_blob=True, suppress_health_check=list(HealthCheck))
    @given(histories(streams))
    def check(history: list[Any]) -> None:
        expected = in_one_go(build, [each for each in history if isinstance(each, dict)], streams)
        with Life(build, *streams, partitions=2) as life:
            for each in history:
                if isinstance(each, dict):
                    life.send(**each)
                else:
                    _happen(life, each)
            found = life.finish()
        assert _by_key(found) == _by_key(expected)

    check()
