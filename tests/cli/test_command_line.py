"""What all commands have in common: help, usage, errors and exit codes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from millpond.errors import InvalidUse

Millpond = Callable[..., Result]


def python_m(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    import os

    command = [sys.executable, "-m", "millpond", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **more}, check=False)


def test_every_command_is_listed_and_explains_itself(millpond: Millpond) -> None:
    listed = millpond("--help").stdout
    upkeep = ("changes", "verify", "compact", "rescale", "rollback", "savepoint", "restore", "drop-step")
    for command in ("run", "state", "status", "clear", "demo", *upkeep):
        assert command in listed
        assert millpond(command, "--help").exit_code == 0
    for verb in ("get", "list", "history"):
        assert millpond("state", verb, "--help").exit_code == 0


def test_no_command_is_wrong_usage_and_so_is_an_unknown_one(millpond: Millpond) -> None:
    assert millpond().exit_code == 2
    assert millpond("dance").exit_code == 2
    assert millpond("state", "get").exit_code == 2


def test_python_m_millpond_is_the_same_command_and_an_error_is_one_block_without_a_traceback() -> None:
    ended = python_m("status", "--state-dir", "nowhere")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == (
        f"error: {Path('nowhere').absolute()} holds no app. Give the state_dir of an app with --state-dir; "
        "nothing was created.\n"
    )


def test_wrong_usage_ends_with_code_2() -> None:
    assert python_m("status", "--format", "xml").returncode == 2


def test_millpond_trace_shows_where_an_error_came_from(millpond: Millpond, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = python_m("status", "--state-dir", "nowhere", MILLPOND_TRACE="1")
    assert ended.returncode == 1
    assert "Traceback" in ended.stderr
    assert "InvalidUse" in ended.stderr
    monkeypatch.setenv("MILLPOND_TRACE", "0")
    assert millpond("status").stderr.startswith("error: ")
    monkeypatch.setenv("MILLPOND_TRACE", "1")
    assert isinstance(millpond("status").exception, InvalidUse)


def test_no_command_brings_spark_in_before_it_is_needed() -> None:
    script = "import sys, millpond.cli; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
