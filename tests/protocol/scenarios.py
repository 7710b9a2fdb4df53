"""The scenarios of the model: who meets whom."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from protocol_world import Options, Scenario, World

from millpond.storage import MemoryStorage

Actors = dict[str, Callable[[], object]]


def takeover(world: World) -> Actors:
    """Two drivers at once; the newer one owns the app."""
    return {"a": world.drives("a", 2), "b": world.drives("b", 2)}


def sleeper_and_rollback(world: World) -> Actors:
    """A driver may sleep anywhere while another takes over, an admin rolls back, and a third goes on."""
    return {
        "a": world.drives("a", 2),
        "b": world.drives("b", 1),
        "rollback": world.rolls_back(0),
        "c": world.drives("c", 1),
    }


def retention_and_rollback(world: World, commit: int = 1) -> Actors:
    """A driver whose retention may sleep beside a rollback."""
    return {"a": world.drives("a", 5), "rollback": world.rolls_back(commit), "b": world.drives("b", 1)}


def spilled_positions(world: World) -> Actors:
    """Positions in files of their own, a rollback, and retention after it."""
    return {"a": world.drives("a", 2), "rollback": world.rolls_back(0), "b": world.drives("b", 5)}


def restored_copy(world: World) -> Actors:
    """A copy of the state directory is taken, the app goes on, the copy is put back, and other rows come."""
    copies: list[MemoryStorage] = []
    return {
        "a": world.drives("a", 2),
        "copy": world.copies(copies),
        "b": world.drives("b", 2),
        "restore": world.puts_back(copies, ["a", "b", "copy", "c"]),
        "c": world.drives("c", 2, **world.options.reconciled),
    }


def rolled_back_since_the_copy(world: World, commit: int | None = 0) -> Actors:
    """What the copy holds is rolled back after it was taken; then the copy is put back."""
    copies: list[MemoryStorage] = []
    return {
        "a": world.drives("a", 2),
        "copy": world.copies(copies),
        "rollback": world.rolls_back(commit),
        "b": world.drives("b", 1),
        "restore": world.puts_back(copies, ["a", "b", "copy", "rollback", "c"]),
        "c": world.drives("c", 1, **world.options.reconciled),
    }


def shared_replicas(world: World) -> Actors:
    """A copy of the state directory is run beside the original, and both keep their replicas in one place."""
    copies: list[MemoryStorage] = []
    twin = world.becomes_twin(copies)
    return {
        "a": world.drives("a", 1),
        "copy": world.copies(copies),
        "b": world.drives("b", 1),
        "twin": twin.drives("twin", 1),
        "reader": world.reads(),
        "twin-reader": twin.reads(),
    }


def two_rollbacks(world: World) -> Actors:
    """Two admins roll back to different batches while drivers come and go."""
    return {
        "a": world.drives("a", 3),
        "rollback": world.rolls_back(-2),
        "b": world.drives("b", 1),
        "other-rollback": world.rolls_back(0),
        "c": world.drives("c", 1),
    }


def rescale_and_compact(world: World) -> Actors:
    """Maintenance beside drivers and a reader."""
    return {
        "a": world.drives("a", 2),
        "rescale": world.rescales(2),
        "reader": world.reads(2),
        "b": world.drives("b", 2),
        "compact": world.compacts(1),
        "c": world.drives("c", 1),
    }


def everyone(world: World) -> Actors:
    """All that can be done to an app at once."""
    return {
        "a": world.drives("a", 3),
        "rescale": world.rescales(2),
        "savepoint": world.saves(),
        "b": world.drives("b", 2),
        "rollback": world.rolls_back(1),
        "reader": world.reads(3),
        "compact": world.compacts(2),
        "c": world.drives("c", 2),
        "other-rollback": world.rolls_back(-1),
    }


SCENARIOS = {
    scenario.name: scenario
    for scenario in [
        Scenario("takeover", takeover),
        Scenario("sleeper-and-rollback", sleeper_and_rollback, Options(rolls_back=True)),
        Scenario(
            "retention-and-rollback",
            retention_and_rollback,
            Options(rows=8, keep=1, compact_every=1, rolls_back=True, probe_rollback=True),
        ),
        Scenario(
            "retention-and-later-rollback",
            partial(retention_and_rollback, commit=2),
            Options(rows=8, keep=1, compact_every=1, rolls_back=True),
        ),
        Scenario(
            "spilled-positions",
            spilled_positions,
            Options(rows=8, keep=6, compact_every=1, spilled_positions=True, rolls_back=True, probe_rollback=True),
        ),
        Scenario("restored-copy-accepted", restored_copy, Options(reconciled={"accept": ["out"]}, most=20)),
        Scenario("restored-copy-taken-back", restored_copy, Options(reconciled={"take_back": ["out"]}, most=60)),
        Scenario(
            "rolled-back-since-the-copy",
            rolled_back_since_the_copy,
            Options(reconciled={"take_back": ["out"]}, rolls_back=True, most=60),
        ),
        Scenario(
            "all-rolled-back-since-the-copy",
            partial(rolled_back_since_the_copy, commit=None),
            Options(reconciled={"take_back": ["out"]}, rolls_back=True, most=20),
        ),
        Scenario("two-rollbacks", two_rollbacks, Options(format="parquet", rolls_back=True, most=40)),
        Scenario("rescale-and-compact", rescale_and_compact, Options(partitions=None, compact_every=2, most=40)),
        Scenario(
            "everyone",
            everyone,
            Options(rows=12, partitions=None, keep=4, compact_every=2, rolls_back=True, most=20),
        ),
        Scenario(
            "shared-replicas", shared_replicas, Options(rows=4, shared_home="shared", readers=("reader", "twin-reader"))
        ),
    ]
}
