from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# A busy machine is no failure: how long an example takes is not what these tests are about.
settings.register_profile("millpond", deadline=None)
settings.load_profile("millpond")

MARKED_FOLDERS = {"spark": pytest.mark.spark, "kafka": pytest.mark.kafka}
NO_SKIPS = os.environ.get("MILLPOND_NO_SKIPS", "") not in ("", "0")
# Skips that are no failures: ../conftest.py, and conformance tests of an ability that a source need not have.
ALLOWED_SKIPS = ("datasketches has no wheel for this Python", "this source has no ", "this input does not grow")

skipped: list[str] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for folder, mark in MARKED_FOLDERS.items():
            if Path(__file__).parent / folder in item.path.parents:
                item.add_marker(mark)


# With MILLPOND_NO_SKIPS=1, as in CI, a session with skipped tests fails and lists them with their reasons.


def note_if_skipped(report: pytest.CollectReport | pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        if any(allowed in str(reason) for allowed in ALLOWED_SKIPS):
            return
        line = f"{report.nodeid}: {str(reason).removeprefix('Skipped: ')}"
        if line not in skipped:  # a module is collected twice, for its tests and for its doctests
            skipped.append(line)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    note_if_skipped(report)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    note_if_skipped(report)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if NO_SKIPS and skipped and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if NO_SKIPS and skipped:
        terminalreporter.section("FAILED: tests were skipped, and MILLPOND_NO_SKIPS is set", red=True)
        for line in skipped:
            terminalreporter.line(line)
