"""A window that closes goes through few modules, whatever its kind and its store."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from millpond.steps.windows.cell_names import extent_of, text_of, time_of, window_cell

ROOT = Path(__file__).resolve().parents[3]
TRACER: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "trace_row.py"), run_name="tracer")


@pytest.mark.parametrize("window", TRACER["WINDOWS"])
def test_a_closing_window_goes_through_nine_modules_at_most(window: str, tmp_path: Path) -> None:
    for cached in (extent_of, text_of, time_of, window_cell):  # other tests may have used the same names
        cached.cache_clear()
    trace = TRACER["trace_batch"](tmp_path, window)
    assert len(trace.modules) <= 9, sorted(trace.modules)
