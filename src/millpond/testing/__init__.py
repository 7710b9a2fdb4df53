"""Test programs without Spark: the same steps, in memory, with a clock that the test moves.

`TestDriver` runs an app; `FaultyStorage` and the suites hold storages, sources and sinks of one's own to
the contracts of `millpond.flow`.
"""

from millpond.testing.in_memory_driver import Crashed, TestDriver

__all__ = ["Crashed", "TestDriver"]


def __dir__() -> list[str]:
    return __all__
