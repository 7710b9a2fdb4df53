"""Tests programs without Spark: the same steps, in memory, with a clock that the test controls.

`TestDriver` runs an app. `FaultyStorage` and the suites check storages, sources and sinks of your own against the
contracts in `mp.lowlevel`.
"""

from millpond.testing.in_memory_driver import Crashed, TestDriver

__all__ = ["Crashed", "TestDriver"]


def __dir__() -> list[str]:
    return __all__
