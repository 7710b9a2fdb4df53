"""`millpond status`: where an app stands."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import Result

import millpond as mp
from cli.samples import order
from millpond.clock import SystemClock
from millpond.log.ledger import Ledger
from millpond.log.record import Kind, Position, Record
from millpond.run.heartbeat import Heartbeat
from millpond.storage import open_storage

Millpond = Callable[..., Result]
Running = Callable[..., mp.testing.TestDriver]


def status(millpond: Millpond) -> Any:
    result = millpond("status", "--format", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def newest() -> Record:
    found = mp.open("state", "orders").newest
    assert found is not None
    return found


def follow(kind: Kind, **own: Any) -> None:
    """Write a record behind the newest one."""
    last = newest()
    record = last.followed_by(kind, driver="d", attempt=f"a{last.number}", time=1.0, **own)
    Ledger(open_storage("state"), "orders", SystemClock()).append(record, last)


def test_it_tells_of_the_newest_batch_the_streams_the_steps_and_the_sinks(millpond: Millpond, running: Running) -> None:
    driver = running()
    driver.send("orders", [order("ann", 3), order("bob", 4)])
    driver.send("orders", [order("ann", 5)])
    last = newest()
    segments = list(Path("state").rglob("steps/**/*.parquet"))
    found = status(millpond)
    size = found.pop("segment_bytes")
    assert size == sum(file.stat().st_size for file in segments)
    assert found == {
        "app": "orders",
        "state_dir": str(Path("state").absolute()),
        "incarnation": last.incarnation,
        "partitions": 2,
        "batch": last.number,
        "kind": "commit",
        "time": "2023-11-14T22:13:20Z",
        "last_commit": last.number,
        "running": None,
        "streams": {"orders": {"position": "0: 3", "last_rows": 1}},
        "steps": {"total": {"kind": "stateful_map", "segments": len(segments), "bytes": size}},
        "sinks": {"totals": {"delivered": last.number - 1, "open": 1}},
    }


def test_people_read_the_same_in_tables(millpond: Millpond, running: Running) -> None:
    running().send("orders", [order("ann", 3), order("bob", 4)])
    result = millpond("status")
    assert result.exit_code == 0
    shown = " ".join(result.stdout.replace("│", " ").split())
    last = newest()
    for words in (
        "app orders",
        f"incarnation {last.incarnation}",
        "partitions 2",
        f"newest batch {last.number} (commit), 2023-11-14 22:13:20",
        "running nobody seems to",
        "orders 0: 2 2",
        "total stateful_map",
        f"totals batch {last.number - 1} 1",
    ):
        assert words in shown


def test_a_last_batch_of_no_rows_leaves_the_last_commit_to_be_told(millpond: Millpond, running: Running) -> None:
    driver = running()
    driver.send("orders", [order("ann", 3), order("bob", 4)])
    committed = status(millpond)["last_commit"]
    driver.restart()
    found = status(millpond)
    assert (found["kind"], found["last_commit"]) == ("claim", committed)
    assert found["batch"] > committed
    assert found["streams"] == {"orders": {"position": "0: 2", "last_rows": 2}}


def test_an_app_that_has_only_begun_has_nothing_to_tell(millpond: Millpond, running: Running) -> None:
    running()
    found = status(millpond)
    assert (found["kind"], found["last_commit"], found["streams"], found["segment_bytes"]) == ("claim", None, {}, 0)
    assert millpond("status").exit_code == 0


def test_batches_whose_outputs_are_not_known_to_be_delivered_are_counted(millpond: Millpond, running: Running) -> None:
    running().send("orders", [order("ann", 3)])
    sinks = status(millpond)["sinks"]
    follow("commit", outputs=newest().outputs)
    assert status(millpond)["sinks"]["totals"] == {"delivered": sinks["totals"]["delivered"], "open": 2}
    follow("commit")
    assert status(millpond)["sinks"]["totals"]["open"] == 2, "a batch without outputs is none to wait for"
    done = newest().number
    follow("release", deliveries={"totals": done})
    assert status(millpond)["sinks"]["totals"] == {"delivered": done, "open": 0}


def test_many_places_are_told_by_their_number_and_the_last(millpond: Millpond, running: Running) -> None:
    running().send("orders", [order("ann", 3)])
    follow("commit", positions={"orders": Position({"a.jsonl": {"offset": 7}, "b.jsonl": {"offset": 9}})})
    assert status(millpond)["streams"]["orders"]["position"] == '2 places, the last b.jsonl: {"offset":9}'


def test_who_seems_to_run_it_is_told(millpond: Millpond, running: Running) -> None:
    running().send("orders", [order("ann", 3)])
    Heartbeat(open_storage("state"), "orders", "d1", SystemClock()).beat(7)
    assert status(millpond)["running"] == {"host": socket.gethostname(), "pid": os.getpid(), "batch": 7}
    assert f"process {os.getpid()} on {socket.gethostname()}, batch 7" in millpond("status").stdout


def test_a_damaged_record_is_an_error(millpond: Millpond, running: Running) -> None:
    running().send("orders", [order("ann", 3)])
    record = max(Path("state/orders/ledger").iterdir())
    record.write_bytes(record.read_bytes().replace(b"total", b"tutal"))
    result = millpond("status")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert "is damaged: its checksum does not fit its bytes" in result.stderr
    assert "Traceback" not in result.output
