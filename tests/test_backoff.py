"""Pauses between attempts."""

from __future__ import annotations

import pytest

from millpond.backoff import JITTER, Backoff
from millpond.clock import seed_chance


@pytest.mark.parametrize("seed", range(20))
def test_pauses_double_up_to_the_longest_and_chance_only_shortens_them(seed: int) -> None:
    seed_chance(seed)
    backoff = Backoff(first=0.5, longest=60.0)
    for attempt, whole in enumerate([0.5, 1, 2, 4, 8, 16, 32, 60, 60, 60], 1):
        assert whole * (1 - JITTER) <= backoff.pause(attempt) <= whole


def test_very_many_attempts_are_no_overflow() -> None:
    assert Backoff(first=0.2, longest=10.0).pause(100_000) <= 10.0


def test_a_seed_gives_the_same_pauses_again() -> None:
    def pauses() -> list[float]:
        seed_chance(7)
        return [Backoff(first=1.0, longest=60.0).pause(attempt) for attempt in range(1, 9)]

    assert pauses() == pauses()


def test_two_clients_do_not_try_again_in_step() -> None:
    backoff = Backoff(first=1.0, longest=60.0)
    assert len({backoff.pause(5) for _ in range(50)}) > 1
