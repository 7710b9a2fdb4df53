"""Jobs that a runtime runs over many pieces of work: how their progress is reported, and how they fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

When = Literal["before", "during", "after"]  # of a crash point
ProgressCallback = Callable[[int, int], None]  # (done, total), in partitions or files


class JobLost(Exception):
    """The tasks of a batch or a delivery did not finish, for a reason outside the program. They can be tried again."""
