"""Which host computes a partition and which keeps a standby: a pure function of what is known about hosts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable

import pytest

from millpond.driver.layout import HostFacts, Layout, choose_layout
from millpond.replica.follow import READY_RECORDS


def places(hosts: Iterable[str]) -> dict[str, str]:
    return {host: f"folder of {host}" for host in hosts}


def settled(layout: Layout, lag: int = 0) -> dict[str, dict[int, int]]:
    """Every copy of a layout, so far behind."""
    found: dict[str, dict[int, int]] = {}
    for partition, host in layout.primary.items():
        for at in (
            host,
            *layout.standby.get(partition, ()),
            *([layout.moving[partition]] if partition in layout.moving else []),
        ):
            found.setdefault(at, {})[partition] = lag
    return found


def test_a_new_app_is_spread_evenly_with_each_standby_on_another_host() -> None:
    layout = choose_layout(HostFacts(7, places("abc"), standbys=1))
    assert sorted(Counter(layout.primary.values()).values()) == [2, 2, 3]
    assert sorted(Counter(host for hosts in layout.standby.values() for host in hosts).values()) == [2, 2, 3]
    assert all(layout.primary[partition] not in hosts for partition, hosts in layout.standby.items())
    assert layout.moving == {}


def test_partitions_of_a_host_that_is_gone_move_to_their_standbys_and_all_others_stay() -> None:
    before = choose_layout(HostFacts(6, places("abc"), standbys=1))
    facts = HostFacts(6, places("ac"), settled(before, 3), before.primary, before.standby, 1)
    after = choose_layout(facts)
    for partition, host in before.primary.items():
        expected = before.standby[partition][0] if host == "b" else host
        assert after.primary[partition] == expected
    assert all(set(hosts) == {"a", "c"} - {after.primary[p]} for p, hosts in after.standby.items())


def test_a_standby_that_is_too_far_behind_is_not_used_while_another_copy_is_ready() -> None:
    lags = {"a": {0: READY_RECORDS + 1}, "c": {0: READY_RECORDS}}
    assert choose_layout(HostFacts(1, places("abc"), lags, {0: "gone"}, {0: ("a",)}, 1)).primary == {0: "c"}


def test_a_standby_is_preferred_to_a_copy_that_was_left_behind() -> None:
    lags = {"a": {0: 0}, "c": {0: 2}}
    facts = HostFacts(4, places("abc"), lags, {0: "gone", 1: "c", 2: "b", 3: "a"}, {0: ("c",)}, 1)
    assert choose_layout(facts).primary[0] == "c"


def test_a_copy_that_is_far_behind_is_better_than_none() -> None:
    lags = {"b": {0: READY_RECORDS + 1}}
    assert choose_layout(HostFacts(1, places("abc"), lags, {0: "gone"})).primary == {0: "b"}


def test_a_host_whose_copy_is_gone_gives_its_partition_to_one_that_has_a_copy() -> None:
    layout = choose_layout(HostFacts(2, places("ab"), {"b": {0: 1, 1: 0}}, {0: "a", 1: "b"}, {0: ("b",)}, 1))
    assert layout.primary[0] == "b"


def test_a_new_host_gets_partitions_only_after_it_has_copies_of_all_that_move() -> None:
    before = choose_layout(HostFacts(6, places("ab"), standbys=1))
    facts = HostFacts(6, places("abc"), settled(before), before.primary, before.standby, 1)
    first = choose_layout(facts)
    assert first.primary == before.primary
    assert Counter(first.moving.values()) == {"c": 2}
    assert set(first.moving) <= set(first.followed_on("c"))
    half = settled(first)
    del half["c"][min(first.moving)]
    assert choose_layout(HostFacts(6, places("abc"), half, first.primary, first.standby, 1)).primary == before.primary
    done = choose_layout(HostFacts(6, places("abc"), settled(first), first.primary, first.standby, 1))
    assert Counter(done.primary.values()) == {"a": 2, "b": 2, "c": 2}
    assert done.moving == {}


def test_a_drained_host_is_left_by_partitions_and_standbys_when_others_have_copies() -> None:
    layout = choose_layout(HostFacts(6, places("abc"), standbys=1))
    for _ in range(3):
        facts = HostFacts(6, places("abc"), settled(layout), layout.primary, layout.standby, 1, avoided=frozenset("b"))
        layout = choose_layout(facts)
    assert set(layout.primary.values()) == {"a", "c"}
    assert {host for hosts in layout.standby.values() for host in hosts} == {"a", "c"}
    assert layout.followed_on("b") == []


def test_hosts_that_share_a_folder_are_one_place_and_hold_no_standby_for_each_other() -> None:
    shared = {"a": "one", "b": "one", "c": "two"}
    layout = choose_layout(HostFacts(6, shared, standbys=1))
    for partition, hosts in layout.standby.items():
        assert [shared[host] for host in hosts] == ["two" if shared[layout.primary[partition]] == "one" else "one"]
    assert choose_layout(HostFacts(4, {"a": "one", "b": "one"}, standbys=1)).standby == {}


def test_two_standbys_are_on_two_other_hosts() -> None:
    layout = choose_layout(HostFacts(5, places("abcd"), standbys=2))
    for partition, hosts in layout.standby.items():
        assert len({layout.primary[partition], *hosts}) == 3


def test_without_hosts_there_is_no_layout() -> None:
    assert choose_layout(HostFacts(5, {})) == Layout()


@pytest.mark.parametrize("seed", range(30))
def test_whatever_hosts_come_and_go_a_partition_moves_only_to_a_copy_and_the_layout_comes_to_rest(seed: int) -> None:
    chance = random.Random(seed)
    names, partitions, standbys = "abcde", chance.randrange(1, 12), chance.randrange(3)
    alive = set(chance.sample(names, 3))
    layout, copies = Layout(), dict[str, dict[int, int]]()
    for _ in range(30):
        action = chance.choice(["kill", "add", "rest"])
        if action == "kill" and len(alive) > 1:
            copies.pop(gone := chance.choice(sorted(alive)), None)
            alive.discard(gone)
        elif action == "add":
            alive.add(chance.choice(names))
        for round in range(4):
            facts = HostFacts(partitions, places(sorted(alive)), copies, layout.primary, layout.standby, standbys)
            before, layout = layout, choose_layout(facts)
            assert set(layout.primary) == set(range(partitions))
            assert set(layout.primary.values()) <= alive
            for partition, host in layout.primary.items():
                held = before.primary.get(partition)
                if held in alive and held != host:
                    assert facts.is_ready(host, partition), "a move that nothing forces waits for a copy"
                if held not in alive and any(facts.is_ready(at, partition) for at in alive):
                    assert facts.is_ready(host, partition), "a copy is used where there is one"
                homes = layout.standby.get(partition, ())
                assert host not in homes and len(set(homes)) == len(homes) == min(standbys, len(alive) - 1)
            copies = {host: {**copies.get(host, {}), **lags} for host, lags in settled(layout).items()}
            if round == 3:
                assert before.primary == layout.primary and before.standby == layout.standby
                loads = Counter({host: 0 for host in alive})
                loads.update(layout.primary.values())
                assert max(loads.values()) - min(loads.values()) <= 1
