"""For tests and for the examples in docstrings: on a Python without datasketches, skip what needs it.

`quantile` and `approx_distinct` need that package, which pyproject.toml leaves out where it has no wheel. A test that
ends with their error message is skipped there. Everywhere else it fails.
"""

from __future__ import annotations

import doctest
import importlib.util
import traceback
from collections.abc import Iterator

import pytest

HAS_SKETCHES = importlib.util.find_spec("datasketches") is not None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        cause = error.exc_info[1] if isinstance(error, doctest.UnexpectedException) else error
        if HAS_SKETCHES or "pip install datasketches" not in "".join(traceback.format_exception(cause)):
            raise
        pytest.skip("datasketches has no wheel for this Python")
