"""`millpond clear`: forget all that an app knows, on purpose."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

from click.testing import Result

import millpond as mp
from cli.samples import order
from millpond.clock import SystemClock
from millpond.log.heartbeat import Heartbeat
from millpond.storage import open_storage

Millpond = Callable[..., Result]
Running = Callable[..., mp.testing.TestDriver]


def totals() -> dict[str, int]:
    newest = mp.open("state", "orders").newest
    assert newest is not None
    return dict(mp.open("state", "orders").state("total").items()) if newest.steps else {}


def test_with_yes_the_state_is_gone_and_a_new_incarnation_begins(millpond: Millpond, running: Running) -> None:
    running().send("orders", [order("ann", 3)])
    before = mp.open("state", "orders").newest
    result = millpond("clear", "--yes")
    assert result.exit_code == 0
    where = Path("state").absolute()
    assert result.stderr == (f"app 'orders' in {where}: cleared; its next run reads its input from the beginning\n")
    after = mp.open("state", "orders").newest
    assert before is not None
    assert after is not None
    assert (after.kind, after.number) == ("clear", before.number + 1)
    assert after.incarnation != before.incarnation
    assert totals() == {}


def test_a_person_is_asked_and_may_say_yes_or_no(millpond: Millpond, running: Running) -> None:
    running().send("orders", [order("ann", 3)])
    result = millpond("clear", input="n\n")
    assert f"Delete all state of app 'orders' in {Path('state').absolute()}?" in result.stderr
    assert result.exit_code == 1
    assert "error: app 'orders' was not cleared. Use --yes to do it without confirmation.\n" in result.stderr
    assert totals() == {"ann": 3}
    assert millpond("clear", input="y\n").exit_code == 0
    assert totals() == {}


def test_where_nobody_can_answer_nothing_is_cleared(millpond: Millpond, running: Running) -> None:
    running().send("orders", [order("ann", 3)])
    result = millpond("clear", input="")
    assert result.exit_code == 1
    assert "error: app 'orders' was not cleared. Use --yes to do it without confirmation.\n" in result.stderr
    assert totals() == {"ann": 3}


def test_it_is_refused_while_the_app_runs(millpond: Millpond, running: Running) -> None:
    running().send("orders", [order("ann", 3)])
    Heartbeat(open_storage("state"), "orders", "d1", SystemClock()).beat(7)
    result = millpond("clear", "--yes")
    assert result.exit_code == 1
    running_there = f"clear_state: app 'orders' is running on {socket.gethostname()}, process {os.getpid()}: "
    assert result.stderr.startswith(f"error: {running_there}") and "--force" in result.stderr
    assert totals() == {"ann": 3}
