"""Names that a program has changed: what would be read again, or begin without state, is said when the app starts."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import millpond as mp
from millpond.storage import Storage, open_storage


def an_app(stream: str = "orders", step: str = "total", renamed_from: str | None = None) -> mp.App:
    app = mp.App("shop", partitions=1)
    rows = app.stream(stream, mp.sources.rows([{"k": "a", "n": 1}]))
    keyed = rows.key_by("k")
    keyed.stateful_map(step, lambda k, row, s: (s + 1, s + 1), initial=0, renamed_from=renamed_from).to(
        "out", mp.sinks.memory()
    )
    return app


def warnings_of(storage: Storage, caplog: pytest.LogCaptureFixture, **names: Any) -> list[str]:
    caplog.clear()
    with (
        caplog.at_level(logging.WARNING, "millpond"),
        mp.testing.TestDriver(an_app(**names), storage=storage) as driver,
    ):
        driver.send(names.get("stream", "orders"), [{"k": "a", "n": 1}])
    return [record.getMessage() for record in caplog.records]


def test_a_renamed_stream_is_read_again_with_a_warning(caplog):
    storage = open_storage("memory://")
    assert warnings_of(storage, caplog) == []
    [warning] = warnings_of(storage, caplog, stream="order")
    assert "stream 'orders' is no longer in the program, and stream 'order' is new" in warning


def test_a_renamed_step_begins_without_state_with_a_warning(caplog):
    storage = open_storage("memory://")
    warnings_of(storage, caplog)
    [warning] = warnings_of(storage, caplog, step="sum")
    assert "write renamed_from='total' there" in warning


def test_a_former_name_that_no_step_has_is_named_in_a_warning(caplog):
    storage = open_storage("memory://")
    assert warnings_of(storage, caplog, step="sum", renamed_from="totl") == []  # there is no state yet
    storage = open_storage("memory://")
    warnings_of(storage, caplog)
    gone, typo = warnings_of(storage, caplog, step="sum", renamed_from="totl")
    assert "step 'total' is no longer in the program" in gone
    assert "renamed_from='totl' is no step of the stored state, which has 'total'" in typo


def test_a_former_name_that_is_right_needs_no_warning(caplog):
    storage = open_storage("memory://")
    warnings_of(storage, caplog)
    assert not any(
        "no longer" in each or "no step" in each
        for each in warnings_of(storage, caplog, step="sum", renamed_from="total")
    )
    assert warnings_of(storage, caplog, step="sum", renamed_from="total") == []
