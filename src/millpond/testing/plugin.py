"""A pytest fixture: `millpond_driver(app)` returns a TestDriver that is closed when the test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest


@pytest.fixture
def millpond_driver() -> Iterator[Callable[..., Any]]:
    """Return a function that makes TestDrivers, which are closed when the test ends.

    def test_totals(millpond_driver):
        driver = millpond_driver(app)
        driver.send("orders", [{"customer": "a", "amount": 3}])
        assert driver.output("totals") == [{"customer": "a", "total": 3}]
    """
    from millpond.testing import TestDriver

    with ExitStack() as stack:
        yield lambda app, **how: stack.enter_context(TestDriver(app, **how))
