"""What goes by event time is refused where the program is written if no row can have one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millpond as mp

TIMED: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "tumbling": (lambda timed, k: k.window("x", mp.tumbling(10), grace=0), r"window\('x'\): expected rows with an"),
    "session": (lambda timed, k: k.window("x", mp.session(10), grace=0), r"window\('x'\): "),
    "sliding": (lambda timed, k: k.window("x", mp.sliding(10), grace=0), r"window\('x'\): "),
    "join": (lambda timed, k: timed.join_interval("x", k, grace=0), r"join_interval\('x'\), the right side: expected"),
    "asof": (lambda timed, k: k.join_asof("x", timed, keep=10), r"join_asof\('x'\), the left side: "),
    "window join": (lambda timed, k: k.join_window("x", k, mp.tumbling(5), grace=0), r"join_window\('x'\), the left"),
    "ttl": (
        lambda timed, k: k.apply("x", lambda row, state: None, ttl=mp.ttl("1h", clock="event")),
        r"apply\('x', ttl\) with clock=\"event\": expected",
    ),
    "earliest": (
        lambda timed, k: k.aggregate("x", first=mp.earliest("v")),
        r"aggregate\('x'\), first=mp.earliest\('v'\): expected",
    ),
    "latest": (
        lambda timed, k: k.window("x", mp.count_tumbling(3)).aggregate(last=mp.latest("v")),
        r"window\('x'\).aggregate, last=mp.latest\('v'\): expected",
    ),
}


def streams(name: str = "a") -> tuple[Any, Any]:
    app = mp.App(name)
    timed = app.stream("timed", mp.sources.rows([]), timestamp="at").key_by("k")
    return timed, app.stream("timeless", mp.sources.rows([]))


@pytest.mark.parametrize("what", TIMED)
def test_what_goes_by_event_time_needs_one(what: str) -> None:
    build, text = TIMED[what]
    timed, timeless = streams()
    with pytest.raises(mp.errors.InvalidUse, match=text) as raised:
        build(timed, timeless.map(dict).key_by("k"))
    assert str(raised.value).endswith("Give the stream one with timestamp=…, or the rows with with_time(…)")


@pytest.mark.parametrize("what", TIMED)
@pytest.mark.parametrize("how", ["timestamp", "with_time", "with_time behind key_by", "union"])
def test_any_way_to_a_time_will_do(what: str, how: str) -> None:
    build, _ = TIMED[what]
    timed, timeless = streams()
    rows = {
        "timestamp": lambda: timed.filter(bool),
        "with_time": lambda: timeless.with_time(lambda row: row["at"]).key_by("k"),
        "with_time behind key_by": lambda: timeless.key_by("k").with_time(lambda row: row["at"]),
        "union": lambda: timeless.union(timed).key_by("k"),
    }[how]()
    build(timed, rows)


def test_windows_over_windows_have_the_times_of_panes() -> None:
    timed, _ = streams()
    per_ten = timed.window("ten", mp.tumbling(10), grace=0).aggregate(n=mp.count())
    per_ten.window("hundred", mp.tumbling(100), grace=0).aggregate(n=mp.sum("n"))


def test_what_goes_by_the_number_of_rows_or_by_the_clock_needs_no_time() -> None:
    _, timeless = streams()
    rows = timeless.key_by("k")
    rows.window("three", mp.count_tumbling(3)).aggregate(n=mp.count())
    rows.window("all", mp.global_window(), trigger=mp.triggers.on_update()).aggregate(n=mp.count())
    rows.deduplicate("once", within="1h")
    rows.apply("kept", lambda row, state: None, ttl="1h")
