"""When a standby driver takes over: the decision, from observations alone."""

from __future__ import annotations

from typing import Any

import pytest

from millpond.driver.takeover import LONGEST_GAP, Observation, TakeOver, Watch, decide, follow
from millpond.log.heartbeat import Beat
from millpond.log.record import Record


def record(number: int = 7, driver: str = "first", kind: Any = "commit") -> Record:
    return Record(
        format=3,
        kind=kind,
        app="orders",
        number=number,
        incarnation="i",
        born=0,
        driver=driver,
        attempt="a",
        time=0.0,
        previous="",
        partitions=1,
        checksum=f"{number}-{driver}",
    )


def beat(time: float = 0.0, driver: str = "first", every: float = 1.0) -> Beat:
    return Beat(driver, "a host", 12, time, 7, every=every)


def look(at: float, newest: Record | None = None, of: Beat | None = None, took: float = 0.0, **how: Any) -> Observation:
    return Observation(at, at + took, record() if newest is None else newest, of or beat(), **how)


def watch_all(*seen: Observation) -> Watch:
    watch: Watch | None = None
    for one in seen:
        watch = follow(watch, one)
    assert watch is not None
    return watch


def why(*seen: Observation, own: tuple[str, ...] = ()) -> str | None:
    found = decide(watch_all(*seen), own)
    return None if found is None else found.why


ALIVE = None
SILENT = "its owner is silent"
GONE = "the process of its owner is gone"
STOPPED = "its owner has stopped"


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param([look(0)], ALIVE, id="one observation proves nothing"),
        pytest.param([look(t) for t in range(4)], ALIVE, id="three seconds of silence"),
        pytest.param([look(t) for t in range(5)], SILENT, id="four seconds of silence"),
        pytest.param([look(t, of=beat(t)) for t in range(60)], ALIVE, id="it beats"),
        pytest.param([look(t, newest=record(t)) for t in range(60)], ALIVE, id="it commits, without a beat"),
        pytest.param([look(t, of=beat(t // 3)) for t in range(60)], ALIVE, id="it beats every three seconds"),
        pytest.param([look(t, of=beat(-1e9 + t)) for t in range(60)], ALIVE, id="its clock is far behind"),
        pytest.param([look(t, of=beat(1e9 - t)) for t in range(60)], ALIVE, id="its clock goes back"),
        pytest.param([look(t, of=beat(every=5.0)) for t in range(20)], ALIVE, id="it has not seen the standby yet"),
        pytest.param([look(t, of=beat(every=5.0)) for t in range(21)], SILENT, id="neither will it"),
        pytest.param([look(0, is_dead=True)], GONE, id="its process is known to be gone"),
        pytest.param([look(0, of=beat(driver="older"), is_dead=True)], ALIVE, id="another process is gone"),
        pytest.param([look(t, of=beat(driver="older")) for t in range(20)], ALIVE, id="it has not beaten yet"),
        pytest.param([look(t, of=beat(driver="older")) for t in range(21)], SILENT, id="it never beats"),
        pytest.param([look(0, newest=record(kind="release"))], STOPPED, id="it has released the app"),
        pytest.param([look(t * 2.0) for t in range(3)], SILENT, id="looks at intervals of two seconds"),
        pytest.param([look(0), look(9.9)], ALIVE, id="two looks with a pause between them"),
        pytest.param([look(0), look(9.9), look(19.8)], SILENT, id="three such looks"),
        pytest.param([*(look(t) for t in range(4)), look(3600)], ALIVE, id="the standby was paused"),
        pytest.param([*(look(t) for t in (0, 3600, 3601, 3602, 3603))], ALIVE, id="paused, and three more looks"),
        pytest.param([*(look(t) for t in (0, 3600, 3601, 3602, 3603, 3604))], SILENT, id="paused, and four more"),
        pytest.param([look(t * 11.0, took=10.0) for t in range(4)], ALIVE, id="slow reads are no silence"),
        pytest.param([look(t * 11.0, took=10.0) for t in range(5)], SILENT, id="the time between slow reads is"),
    ],
)
def test_an_app_is_taken_over_when_its_owner_is_gone(seen: list[Observation], expected: str | None) -> None:
    assert why(*seen) == expected


def test_an_app_that_never_ran_is_taken_over_at_once() -> None:
    assert decide(Watch(Observation(0, 0, None, None))) == TakeOver("no driver has run it yet", 0.0, None)


def test_an_app_without_a_heartbeat_is_given_the_time_of_four_slow_beats() -> None:
    seen = [Observation(t, t, record(), None) for t in range(21)]
    assert why(*seen[:20]) is None
    assert why(*seen) == SILENT


def test_a_restart_does_not_wait_for_a_driver_of_its_own_process() -> None:
    assert why(look(0), own=("first",)) == "its owner was this process"
    assert why(look(0), own=("other",)) is None


def test_the_decision_names_the_record_that_the_claim_follows_and_the_silence() -> None:
    found = decide(watch_all(*(look(t) for t in range(6))))
    assert found == TakeOver(SILENT, 5.0, record())


def test_a_gap_that_is_just_not_a_pause_counts_for_two_seconds() -> None:
    assert watch_all(look(0), look(LONGEST_GAP)).silent == 2.0
    assert watch_all(look(0), look(LONGEST_GAP + 0.1)).silent == 0.0
