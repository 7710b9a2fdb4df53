"""The layout of partitions: which host computes each of them, and which hosts keep a standby of it.

A pure function of what is known about the hosts. A partition stays where it is for as long as its host is alive and has
a usable copy. One whose host is gone moves to a host with a ready copy. Moves that are only useful, to a new host or
away from one that is drained, wait until the copies are ready there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from millpond.replica.follow import READY_RECORDS


@dataclass(frozen=True)
class HostFacts:
    """What is known about the hosts and their copies of the partitions."""

    partitions: int
    hosts: Mapping[str, str]  # host → the folder of its replicas: hosts with the same one are one place
    behind: Mapping[str, Mapping[int, int]] = field(default_factory=dict)  # host → partition → records that it lacks
    primary: Mapping[int, str] = field(default_factory=dict)  # partition → host, at present
    standby: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    standbys: int = 0  # wanted for each partition
    avoided: frozenset[str] = frozenset()  # hosts that are to get nothing: drained ones, or with a full disk

    def lag(self, host: str, partition: int) -> float:
        """Return how many records a copy lacks; infinity if there is none."""
        return self.behind.get(host, {}).get(partition, math.inf)

    def is_ready(self, host: str, partition: int) -> bool:
        """Return whether a host is alive and has a copy that is not too far behind."""
        return host in self.hosts and self.lag(host, partition) <= READY_RECORDS


@dataclass(frozen=True)
class Layout:
    """Where partitions are computed and followed."""

    primary: dict[int, str] = field(default_factory=dict)  # partition → host
    standby: dict[int, tuple[str, ...]] = field(default_factory=dict)  # partition → hosts that keep a standby
    moving: dict[int, str] = field(default_factory=dict)  # partition → host that computes it as soon as it has a copy

    def followed_on(self, host: str) -> list[int]:
        """Return the partitions that a host keeps a copy of without computing them."""
        found = {p for p, hosts in self.standby.items() if host in hosts} | {
            p for p, target in self.moving.items() if target == host
        }
        return sorted(found)

    def on(self, host: str) -> frozenset[int]:
        """Return all partitions that a host has a copy of, or is to have."""
        return frozenset([*(p for p, held in self.primary.items() if held == host), *self.followed_on(host)])


def choose_layout(facts: HostFacts) -> Layout:
    """Return where each partition is to be; an empty layout if there is no host.

    >>> choose_layout(HostFacts(2, {"a": "1", "b": "2"}, standbys=1))
    Layout(primary={0: 'a', 1: 'b'}, standby={0: ('b',), 1: ('a',)}, moving={})
    """
    if not facts.hosts:
        return Layout()
    usable = sorted(set(facts.hosts) - facts.avoided) or sorted(facts.hosts)
    primary = _primaries(facts, usable)
    planned = _balanced(facts, usable, primary)
    moves = {partition: host for partition, host in planned.items() if host != primary[partition]}
    if all(facts.is_ready(host, partition) for partition, host in moves.items()):
        primary, moves = planned, {}  # all at once: each change of the layout costs a job
    return Layout(primary, _standbys(facts, usable, primary), moves)


def _primaries(facts: HostFacts, usable: list[str]) -> dict[int, str]:
    """Return the hosts that can compute the partitions now."""
    ready = {p: [host for host in facts.hosts if facts.is_ready(host, p)] for p in range(facts.partitions)}
    found = {
        p: held
        for p, held in facts.primary.items()
        if held in facts.hosts and p in ready and held in (ready[p] or [held])
    }
    load = Counter(found.values())
    for partition, copies in ready.items():
        if partition in found:
            continue
        options = copies or sorted(facts.hosts)

        def cost(host: str, partition: int = partition) -> tuple[object, ...]:
            lag = facts.lag(host, partition)
            is_other = host not in facts.standby.get(partition, ())  # a copy that was left behind, and does not follow
            return math.isinf(lag), host not in usable, is_other, load[host], lag, host

        found[partition] = min(options, key=cost)
        load[found[partition]] += 1
    return dict(sorted(found.items()))


def _balanced(facts: HostFacts, usable: list[str], primary: dict[int, str]) -> dict[int, str]:
    """Return the primaries after some have moved away from hosts to avoid, and from hosts with too many."""
    planned, load = dict(primary), Counter(primary.values())

    def move(partition: int, target: str) -> None:
        load[planned[partition]] -= 1
        load[target] += 1
        planned[partition] = target

    for partition, host in primary.items():
        if host not in usable:
            move(
                partition,
                min(usable, key=lambda target: (not facts.is_ready(target, partition), load[target], target)),
            )
    while True:
        target = min(usable, key=lambda host: (load[host], host))
        source = max(usable, key=lambda host: (load[host], host))
        if load[source] - load[target] <= 1:
            return planned
        mine = [partition for partition, host in planned.items() if host == source]
        move(
            min(mine, key=lambda p: (facts.lag(target, p), target not in facts.standby.get(p, ()), p)),
            target,
        )


def _standbys(facts: HostFacts, usable: list[str], primary: dict[int, str]) -> dict[int, tuple[str, ...]]:
    """Return the hosts of standbys: those that are, where they still can be, and others in even shares."""
    if not facts.standbys:
        return {}
    most = math.ceil(facts.partitions * facts.standbys / len(usable)) + 1
    load: Counter[str] = Counter()
    found: dict[int, list[str]] = {partition: [] for partition in primary}

    def may_have(host: str, partition: int) -> bool:
        taken = {facts.hosts[other] for other in (primary[partition], *found[partition])}
        return host in usable and facts.hosts[host] not in taken and len(found[partition]) < facts.standbys

    for partition in primary:
        for host in facts.standby.get(partition, ()):
            if may_have(host, partition) and load[host] < most:
                found[partition].append(host)
                load[host] += 1
    computed = Counter(primary.values())
    for partition, held in found.items():
        while options := [host for host in usable if may_have(host, partition)]:

            def cost(host: str, partition: int = partition) -> tuple[object, ...]:
                is_missing = not facts.is_ready(host, partition)
                return load[host] >= most, is_missing, load[host], computed[host], host

            held.append(min(options, key=cost))
            load[held[-1]] += 1
    return {partition: tuple(hosts) for partition, hosts in found.items() if hosts}
