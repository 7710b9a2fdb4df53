"""`partitions="auto"`: when the number of partitions follows the cores of the session, as a pure function.

Executors come and go, and a rescale makes every replica be built again. So the number follows only if it has been off
by much for a while, and not again soon after the last time. A driver that starts begins to watch at its start: before
all executors are there, nothing is moved.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

LOOK_SECONDS = 5.0  # between two observations
SETTLE_SECONDS = 60.0  # for which the cores must call for another number
REST_SECONDS = 600.0  # at least, between two rescales
FACTOR = 1.5  # by which the numbers must differ


@dataclass(frozen=True)
class CoreWatch:
    """What was observed: since when the cores call for more or fewer partitions, and the bounds of them since then."""

    since: float | None = None
    least: int = 0
    most: int = 0
    rescaled: float | None = None  # when this driver last moved the state

    def observe(self, cores: int, partitions: int, now: float) -> tuple[CoreWatch, int | None]:
        """Return the next state of the watch, and the number to rescale to now; None if the present one stays.

        `now` is of a clock that never goes back. Cores that have varied count with the number that is nearest to the
        present one.

        >>> from millpond.driver.auto_partitions import CoreWatch
        >>> watch, wanted = CoreWatch().observe(8, 2, now=0.0)
        >>> watch, wanted = watch.observe(6, 2, now=30.0)
        >>> watch, wanted = watch.observe(8, 2, now=61.0)
        >>> wanted
        6
        """
        is_more, is_fewer = cores >= partitions * FACTOR, cores * FACTOR <= partitions
        if not is_more and not is_fewer:
            return replace(self, since=None), None
        if self.since is None or (self.least > partitions) != is_more:
            return replace(self, since=now, least=cores, most=cores), None
        watch = replace(self, least=min(self.least, cores), most=max(self.most, cores))
        has_settled = now - self.since >= SETTLE_SECONDS
        has_rested = self.rescaled is None or now - self.rescaled >= REST_SECONDS
        if not has_settled or not has_rested:
            return watch, None
        return CoreWatch(rescaled=now), watch.least if is_more else watch.most
