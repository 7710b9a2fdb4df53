"""Exploration of schedules: all with few turns, and random ones beyond."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from protocol_world import Outcome, Scenario, play
from scheduling import KILL, KINDS, Kind, Policy, RandomPolicy, Schedule, Turn


@dataclass
class Found:
    """What an exploration has seen."""

    runs: int = 0
    failures: list[Outcome] = field(default_factory=list)
    complete: bool = True  # whether every schedule within the bound was run

    def __str__(self) -> str:
        return "\n".join(map(str, self.failures))


@dataclass
class Explorer:
    """Runs a scenario under many schedules, until it has failed often enough or its time is over."""

    scenario: Scenario
    folder: Path
    seconds: float = float("inf")
    most_failures: int = 1
    found: Found = field(default_factory=Found)

    def __post_init__(self) -> None:
        self._until = time.monotonic() + self.seconds

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self._until or len(self.found.failures) >= self.most_failures

    def run(self, policy: Policy) -> Outcome:
        self.found.runs += 1
        outcome = play(self.scenario, policy, self.folder / f"{self.found.runs}")
        if outcome.violations:
            self.found.failures.append(outcome)
        return outcome

    def exhaust(
        self, turns: int, *, before: tuple[Kind, ...] = KINDS, kills: bool = True, most: int | None = None
    ) -> Found:
        """Every schedule with up to so many turns, each before a call of one of these kinds.

        With `most` only so many of the turns that can follow a schedule are tried, spread evenly over the run.
        """
        level: list[tuple[Schedule, Outcome]] = [((), self.run(Policy()))]
        for depth in range(turns):
            further = []
            for schedule, outcome in level:
                for turn in spread(next_turns(schedule, outcome, before, self.scenario.options.readers, kills), most):
                    if self.is_over:
                        self.found.complete = False
                        return self.found
                    longer = (*schedule, turn)
                    outcome_of_longer = self.run(Policy(longer))
                    if depth + 1 < turns:
                        further.append((longer, outcome_of_longer))
            level = further
        return self.found

    def wander(self, seed: int, count: int) -> Found:
        """So many schedules that switch and kill by chance; each has a seed of its own."""
        for number in range(count):
            if self.is_over:
                break
            self.run(RandomPolicy(seed * 1_000_003 + number))
        return self.found


def spread(turns: Iterable[Turn], most: int | None) -> list[Turn]:
    """At most so many of the turns, evenly spread."""
    found = list(turns)
    if most is None or len(found) <= most:
        return found
    return [found[i * len(found) // most] for i in range(most)]


def shortened(scenario: Scenario, outcome: Outcome, folder: Path) -> Outcome:
    """A failure with fewer turns, if leaving some out still fails."""
    tries = 0
    while True:
        for turn in outcome.schedule:
            tries += 1
            fewer = tuple(other for other in outcome.schedule if other != turn)
            found = play(scenario, Policy(fewer), folder / f"shorter-{tries}")
            if found.violations and len(found.schedule) < len(outcome.schedule):
                outcome = found
                break
        else:
            return outcome


def next_turns(
    schedule: Schedule, outcome: Outcome, before: tuple[Kind, ...], readers: tuple[str, ...] = (), kills: bool = True
) -> Iterator[Turn]:
    """The turns that can follow those of a schedule, as its run has shown them."""
    last = schedule[-1].step if schedule else -1
    for point in outcome.points:
        if point.step > last and (point.kind in before or point.actor in readers):
            yield from (Turn(point.step, other) for other in point.others)
            if kills:
                yield Turn(point.step, KILL)
