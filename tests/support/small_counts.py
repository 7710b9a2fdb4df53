"""An app that counts rows by key."""

from __future__ import annotations

from typing import Any

import millpond as mp
from millpond.testing import TestDriver


def counting(name: str = "counts", **how: Any) -> mp.App:
    app = mp.App(name, **how)
    rows = app.stream("rows", mp.sources.rows([])).key_by(key=lambda key: key)
    rows.aggregate("count", n=mp.count()).to("out", mp.sinks.memory())
    return app


def counts(driver: TestDriver) -> dict[Any, int]:
    return {key: value["n"] for key, value in driver.state("count").items()}
