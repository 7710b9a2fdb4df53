from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import millpond as mp
from cli.samples import totals_app
from millpond.cli import commands


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test has its own current folder, so its own `state`, and its own replicas and temporary files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("MILLPOND_LOCAL_DIR", str(tmp_path / "replicas"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("MILLPOND_TRACE", raising=False)


@pytest.fixture
def millpond() -> Callable[..., Result]:
    """Runs a command line in this process."""

    def run(*arguments: str, input: str | None = None) -> Result:
        return CliRunner().invoke(commands, list(arguments), input=input)

    return run


@pytest.fixture
def running() -> Iterator[Callable[..., mp.testing.TestDriver]]:
    """Makes apps that keep running totals by customer, in a state_dir on disk."""
    with contextlib.ExitStack() as stack:

        def make(name: str = "orders", state_dir: str = "state") -> mp.testing.TestDriver:
            return stack.enter_context(mp.testing.TestDriver(totals_app(name), storage=state_dir, partitions=2))

        yield make
