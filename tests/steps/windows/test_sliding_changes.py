"""A changed program over state of sliding windows: what goes on, and what is refused before anything is changed."""

from __future__ import annotations

from typing import Any

import pytest
from ledger_reader import ledger, paths
from small_windows import row, rows, sent, windowed

import millpond as mp
from millpond.errors import Incompatible
from millpond.steps.windows.window_step import WindowStep
from millpond.storage import open_storage
from millpond.testing import TestDriver

T = mp.triggers
SLIDING = mp.sliding(5)

REFUSED = {
    "a trigger comes": ((SLIDING, {}), (SLIDING, {"trigger": T.on_update()})),
    "a trigger that rarely fires comes": ((SLIDING, {}), (SLIDING, {"trigger": T.every_rows(50)})),
    "a trigger goes": ((SLIDING, {"trigger": T.every_rows(50)}), (SLIDING, {})),
    "tumbling to sliding": ((mp.tumbling(10), {}), (SLIDING, {})),
    "hopping to sliding": ((mp.hopping(10, 5), {}), (SLIDING, {})),
    "session to sliding": ((mp.session(4), {}), (SLIDING, {})),
    "sliding to tumbling": ((SLIDING, {}), (mp.tumbling(10), {})),
    "sliding to hopping": ((SLIDING, {}), (mp.hopping(10, 5), {})),
    "sliding to session": ((SLIDING, {}), (mp.session(4), {})),
    "the clock of the key to that of the stream": ((SLIDING, {"clock": "key"}), (SLIDING, {})),
    "the clock of the stream to that of the key": ((SLIDING, {}), (SLIDING, {"clock": "key"})),
    "longer": ((SLIDING, {}), (mp.sliding(8), {})),
    "shorter": ((SLIDING, {}), (mp.sliding(3), {})),
}


def program(window, how, **more):
    return windowed(window, {"n": mp.count(), "sum": mp.sum("v")}, **{"grace": 20, **how, **more})


@pytest.mark.parametrize("change", REFUSED)
def test_what_sliding_windows_keep_is_not_taken_for_other_windows(change):
    (before, how), (after, other) = REFUSED[change]
    storage = open_storage("memory://")
    with (
        TestDriver(program(before, how), storage=storage) as driver,
        TestDriver(program(before, how)) as unchanged,
    ):
        for each in (driver, unchanged):
            each.send("rows", rows((1, 1), (2, 3)))
        with pytest.raises(Incompatible) as refused:
            driver.restart(program(after, other))
        for part in (
            "app 'windows': step 'w'",
            f"expected the windows that its state was kept for, {before!r}",
            f"got {after!r}",
            "another name",
            "app.rebuild('w', switch=True)",
            "nothing was changed",
        ):
            assert part in str(refused.value)
        held = paths(storage, "")
        with pytest.raises(Incompatible):
            driver.restart()
        assert paths(storage, "") == held, "nothing is claimed"
        driver.restart(program(before, how))
        for each in (driver, unchanged):
            each.send("rows", [row(4, 4)])
            each.send("rows", [row(8, 100, "b")])
            each.finish()
        assert driver.output("out") == unchanged.output("out") != []


def test_a_step_with_another_name_is_asked_by_the_name_that_it_had():
    with sent(program(SLIDING, {}), rows((1, 1))) as driver:
        app = mp.App("windows", partitions=1)
        keyed = app.stream("rows", mp.sources.rows([]), timestamp="t").key_by("k")
        found = keyed.window("new", mp.sliding(8), grace=20, renamed_from="w")
        found.aggregate(n=mp.count(), sum=mp.sum("v")).to("out", mp.sinks.memory())
        found.late.to("late", mp.sinks.memory())
        with pytest.raises(Incompatible, match="step 'new': expected the windows"):
            driver.restart(app)


@pytest.mark.parametrize("change", REFUSED)
def test_state_made_again_fits_the_other_windows(change):
    (before, how), (after, other) = REFUSED[change]
    with sent(program(before, how), rows((1, 1), (2, 3))) as driver, TestDriver(program(after, other)) as new:
        with pytest.raises(Incompatible):
            driver.restart(program(after, other))
        driver.rebuild("w", switch=True)
        driver.restart()
        for one in rows((1, 1), (2, 3)):
            new.send("rows", [one])
        shown = [len(each.output("out")) for each in (driver, new)]
        for each in (driver, new):
            each.send("rows", [row(4, 4)])
            each.finish()
        assert driver.output("out")[shown[0] :] == new.output("out")[shown[1] :] != []


@pytest.mark.parametrize(
    ("how", "other"),
    [
        ({}, {}),
        ({}, {"grace": 30}),
        ({"grace": 30}, {}),
        ({"clock": "key"}, {"clock": "key"}),
        ({"trigger": T.on_update()}, {"trigger": T.every_rows(50)}),
    ],
)
def test_sliding_windows_go_on_with_the_same_program_another_grace_or_another_trigger(how, other):
    with sent(program(SLIDING, how), rows((1, 1), (2, 3))) as driver:
        driver.restart(program(mp.sliding(5), other))
        driver.send("rows", [row(4, 2)])
        driver.finish()
        finals = {o["window_end"]: (o["window_start"], o["n"], o["sum"]) for o in driver.output("out")}
        assert finals == {1: (-4, 1, 1), 2: (-3, 2, 5), 3: (-2, 3, 7)}


def test_the_same_size_may_be_written_in_another_way():
    with sent(windowed(mp.sliding("60s"), grace="1s"), [row(1, "2030-01-01T00:00:00Z")]) as driver:
        driver.restart(windowed(mp.sliding("1m"), grace="1s"))
        driver.finish()
        assert [o["sum"] for o in driver.output("out")] == [1]


class OlderStep(WindowStep):
    """A window step as an older version of Millpond recorded it."""

    @property
    def detail(self) -> dict[str, Any]:
        return {name: value for name, value in super().detail.items() if name != "early"}


def test_state_that_does_not_say_whether_a_trigger_fired_early_goes_on_and_says_it_from_then_on():
    storage = open_storage("memory://")
    older = program(SLIDING, {})
    object.__setattr__(mp.lowlevel.program(older).steps["w"], "__class__", OlderStep)
    with TestDriver(older, storage=storage) as driver:
        driver.send("rows", [row(1, 1)])
        assert "early" not in ledger(storage, "windows")[-1]["steps"]["w"]["detail"]
        with pytest.raises(Incompatible, match=r"kept for, mp\.sliding\(5\) with clock='stream', got"):
            driver.restart(program(mp.sliding(8), {}))
        driver.restart(program(SLIDING, {}))
        driver.send("rows", [row(2, 2)])
        with pytest.raises(Incompatible, match="with clock='stream' and no trigger before they close, got"):
            driver.restart(program(SLIDING, {"trigger": T.on_update()}))
