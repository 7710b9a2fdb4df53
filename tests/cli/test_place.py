"""`--state-dir` and `--app`: which app a command is about."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

import millpond as mp
from cli.samples import order

Millpond = Callable[..., Result]
Running = Callable[..., mp.testing.TestDriver]

COMMANDS = [["state", "list", "total"], ["status"], ["clear", "--yes"]]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_only_app_of_a_state_dir_needs_no_name(command: list[str], millpond: Millpond, running: Running) -> None:
    running("orders", "elsewhere").send("orders", [order("ann", 3)])
    Path("elsewhere/totals").mkdir()
    Path("elsewhere/totals/part-1.jsonl").touch()
    Path("elsewhere/notes.txt").touch()
    assert millpond(*command, "--state-dir", "elsewhere").exit_code == 0


def test_of_several_apps_the_named_one_is_meant(millpond: Millpond, running: Running) -> None:
    for name, amount in [("orders", 3), ("orders-eu", 4), ("orders/us", 5), ("orders0", 6)]:
        running(name).send("orders", [order("ann", amount)])
    for name, amount in [("orders", 3), ("orders-eu", 4), ("orders/us", 5), ("orders0", 6)]:
        found = millpond("state", "get", "total", "ann", "--app", name, "--format", "json")
        assert found.stdout == f'{{"key":"ann","value":{amount}}}\n'


@pytest.mark.parametrize("command", COMMANDS)
def test_one_of_several_apps_must_be_named(command: list[str], millpond: Millpond, running: Running) -> None:
    for name in ("orders", "orders/us", "orders-eu"):
        running(name).send("orders", [order("ann", 3)])
    result = millpond(*command)
    assert result.exit_code == 1
    assert result.stderr == (
        f"error: {Path('state').absolute()} holds several apps: 'orders', 'orders-eu', 'orders/us'. "
        "Choose one with --app.\n"
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_a_state_dir_without_an_app_is_an_error(command: list[str], millpond: Millpond) -> None:
    result = millpond(*command, "--state-dir", "nowhere")
    assert result.exit_code == 1
    assert result.stderr == (
        f"error: {Path('nowhere').absolute()} holds no app. Give the state_dir of an app with --state-dir; "
        "nothing was created.\n"
    )
    assert not Path("nowhere").exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_an_app_that_is_not_there_is_an_error(command: list[str], millpond: Millpond, running: Running) -> None:
    running("orders").send("orders", [order("ann", 3)])
    result = millpond(*command, "--app", "order")
    assert result.exit_code == 1
    assert result.stderr == (
        f"error: {Path('state').absolute()} holds no app 'order'; it holds: 'orders'. Correct --app or --state-dir.\n"
    )
