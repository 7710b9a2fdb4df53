"""Compaction: the log stays small, and everything that is within reach stays what it was."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millpond as mp
from millpond.clock import SystemClock
from millpond.log.ledger import Ledger
from millpond.log.retention import find_orphans
from millpond.storage import open_storage


def app(**how: Any) -> mp.App:
    made = mp.App("log", **{"partitions": 2, "compact_every": 3, "keep": 5, **how})
    rows = made.stream("rows", mp.sources.rows([]))

    def add(key: str, row: dict[str, Any], total: int) -> tuple[Any, int | None]:
        total += row["v"]
        return {"k": key, "total": total}, total if total % 7 else None

    rows.key_by("k").stateful_map("total", add, initial=0).to("out", mp.sinks.memory())
    rows.key_by("k").apply("seen", lambda row, state: state.list("all").append(row["v"])).to("none", mp.sinks.memory())
    return made


def fold(sent: list[dict[str, Any]]) -> tuple[dict[str, int], dict[str, list[int]]]:
    totals: dict[str, int] = {}
    seen: dict[str, list[int]] = {}
    for row in sent:
        total = totals.pop(row["k"], 0) + row["v"]
        if total % 7:
            totals[row["k"]] = total
        seen.setdefault(row["k"], []).append(row["v"])
    return totals, seen


def check(driver: mp.testing.TestDriver, sent: list[dict[str, Any]]) -> None:
    totals, seen = fold(sent)
    assert dict(driver.state("total").items()) == totals
    assert {key: value["all"] for key, value in driver.state("seen").items()} == seen


def files(storage: Any) -> list[str]:
    return [item.path for item in storage.list("log")]


def ledger(storage: Any) -> Ledger:
    return Ledger(storage, "log", SystemClock())


def rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    return [{"k": f"k{chance.randrange(9)}", "v": chance.randrange(1, 5)} for _ in range(count)]


@pytest.mark.parametrize("lose", [False, True])
def test_many_batches_leave_few_files_and_the_same_state(lose: bool) -> None:
    storage, sent = open_storage("memory://"), rows(200)
    with mp.testing.TestDriver(app(), storage) as driver:
        sizes = []
        for start in range(0, 200, 2):
            driver.send("rows", sent[start : start + 2])
            sizes.append(len(files(storage)))
        check(driver, sent)
        assert max(sizes[20:]) < 90, sizes
        assert ledger(storage).floor() > 80
        driver.restart(lose_replicas=lose)
        check(driver, sent)
        driver.send("rows", rows(3, seed=1))
        check(driver, sent + rows(3, seed=1))
        assert len(driver.output("out")) == 203


@pytest.mark.parametrize("step", ["plan", "compute", "commit", "deliver", "acknowledge", "tidy"])
@pytest.mark.parametrize("when", ["before", "during", "after"])
@pytest.mark.parametrize("batch", [3, 4, 5, 8])
def test_a_crash_around_a_compaction_loses_nothing(step: Any, when: Any, batch: int) -> None:
    sent = rows(24)
    with mp.testing.TestDriver(app()) as driver:
        for number in range(12):
            if number == batch:
                driver.crash(step, when)
                with pytest.raises(mp.testing.Crashed):
                    driver.send("rows", sent[2 * number : 2 * number + 2])
                driver.restart(lose_replicas=batch % 2 == 0)
            else:
                driver.send("rows", sent[2 * number : 2 * number + 2])
        check(driver, sent)
        driver.restart(lose_replicas=True)
        check(driver, sent)


def test_what_is_within_reach_can_still_be_seen_and_what_is_not_says_so() -> None:
    storage, sent = open_storage("memory://"), rows(60)
    with mp.testing.TestDriver(app(), storage) as driver:
        for start in range(0, 60, 2):
            driver.send("rows", sent[start : start + 2])
        newest = ledger(storage).newest()
        assert newest is not None
        for back in range(5):
            totals, _ = fold(sent[: 60 - 2 * back])
            assert dict(driver.state("total").at(newest.number - back).items()) == totals
        with pytest.raises(mp.errors.InvalidUse, match="within reach"):
            driver.state("total").at(3).get("k1")
        for key, total in fold(sent)[0].items():
            assert list(driver.state("total").history(key))[-1].value == total


def test_a_damaged_manifest_is_done_without_while_an_earlier_one_is_kept() -> None:
    storage, sent = open_storage("memory://"), rows(60)
    with mp.testing.TestDriver(app(keep=20), storage) as driver:
        for start in range(0, 60, 2):
            driver.send("rows", sent[start : start + 2])
        newest = ledger(storage).newest()
        assert newest is not None and newest.manifest is not None
        storage.put(newest.manifest.path, b"{}")
        driver.restart(lose_replicas=True)
        check(driver, sent)
        driver.send("rows", rows(4, seed=2))
        check(driver, sent + rows(4, seed=2))


def test_files_of_attempts_that_failed_are_removed_and_no_others() -> None:
    storage, sent = open_storage("memory://"), rows(40)
    with mp.testing.TestDriver(app(), storage) as driver:
        for start in range(0, 20, 2):
            driver.send("rows", sent[start : start + 2])
        driver.crash("commit", "before")
        with pytest.raises(mp.testing.Crashed):
            driver.send("rows", sent[20:30])
        newest = ledger(storage).newest()
        assert newest is not None
        left = find_orphans(storage, ledger(storage), newest.number + 2)
        assert left
        driver.restart()
        driver.send("rows", sent[30:])
        assert not set(left) & set(files(storage))
        driver.restart(lose_replicas=True)
        check(driver, sent)


def test_one_who_overslept_cannot_take_a_number_that_is_gone() -> None:
    storage = open_storage("memory://")
    with mp.testing.TestDriver(app(), storage) as driver:
        driver.send("rows", rows(2))
        old = ledger(storage).newest()
        for seed in range(40):
            driver.send("rows", rows(2, seed))
    assert old is not None and old.number < ledger(storage).floor()
    late = old.followed_by("commit", driver="late", attempt="late", time=0.0)
    storage.put(ledger(storage).paths.record(old.number), b"")  # it is seen just before it goes
    with pytest.raises((mp.errors.Fenced, mp.errors.Corrupt)):
        ledger(storage).append(late, old)
    with pytest.raises(mp.errors.Fenced):
        ledger(storage).append(late, None)
    assert ledger(storage).read(late.number) is None


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6)), max_size=5), max_size=14),
    st.integers(1, 4),
    st.integers(1, 6),
    st.sets(st.integers(0, 13)),
)
def test_any_history_with_any_compaction_is_the_same_state(
    batches: list[list[tuple[int, int]]], every: int, keep: int, restarts: set[int]
) -> None:
    sent: list[dict[str, Any]] = []
    with mp.testing.TestDriver(app(compact_every=every, keep=keep)) as driver:
        for number, batch in enumerate(batches):
            fresh = [{"k": f"k{k}", "v": v} for k, v in batch]
            sent += fresh
            driver.send("rows", fresh)
            if number in restarts:
                driver.restart(lose_replicas=number % 2 == 0)
        driver.restart(lose_replicas=True)
        check(driver, sent)
