"""`millpond status`: where an app stands."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import millpond as mp
from cli.samples import order, totals_app
from millpond.clock import ManualClock, SystemClock
from millpond.log.heartbeat import FRESH_SECONDS, Heartbeat, PartitionCopies, StandbyCopy
from millpond.log.ledger import Ledger
from millpond.log.record import Kind, Position, Record
from millpond.log.standby_drivers import StandbyFile
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
        "standby_drivers": [],
        "streams": {"orders": {"position": "0: 3", "last_rows": 1, "watermark": None, "lost": 0}},
        "steps": {"total": {"kind": "stateful_map", "segments": len(segments), "bytes": size}},
        "sinks": {"totals": {"delivered": last.number - 1, "open": 1}},
        "recent": {"batches": 2, "late": {}, "skipped": {}},
        "log": {"first": 0, "compacted": None, "rewritten": None, "why": None, "trouble": None},
        "recovering": [],
        "replicas": {},
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
        "running no process seems to run it",
        "within reach from batch 0",
        "compacted never",
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
    assert found["streams"] == {"orders": {"position": "0: 2", "last_rows": 2, "watermark": None, "lost": 0}}


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


def test_standby_drivers_are_shown_for_as_long_as_they_wait(millpond: Millpond, running: Running) -> None:
    running().send("orders", [order("ann", 3)])
    assert status(millpond)["standby_drivers"] == [] and "standing by" not in millpond("status").stdout
    file = StandbyFile(open_storage("state"), "orders", "s1", SystemClock())
    file.write(7)
    assert status(millpond)["standby_drivers"] == [{"host": socket.gethostname(), "pid": os.getpid()}]
    assert f"standing by   process {os.getpid()} on {socket.gethostname()}" in millpond("status").stdout
    late = ManualClock(start=SystemClock().now() - FRESH_SECONDS)
    StandbyFile(open_storage("state"), "orders", "s2", late).write(7)  # a process that is gone, on another machine
    assert len(status(millpond)["standby_drivers"]) == 1
    file.remove()
    assert status(millpond)["standby_drivers"] == []


def test_the_hosts_of_partitions_and_standbys_are_shown_with_their_lag(millpond: Millpond, running: Running) -> None:
    running().send("orders", [order("ann", 3)])
    copies = {
        0: PartitionCopies("10.0.0.1", [StandbyCopy("10.0.0.2", 3, True)]),
        1: PartitionCopies("10.0.0.2", [StandbyCopy("10.0.0.1")]),
        2: PartitionCopies("10.0.0.3"),
    }
    Heartbeat(open_storage("state"), "orders", "driver", SystemClock()).beat(7, partitions=copies)
    assert status(millpond)["replicas"] == {
        "0": {"host": "10.0.0.1", "standbys": [{"host": "10.0.0.2", "lag": 3, "ready": True}]},
        "1": {"host": "10.0.0.2", "standbys": [{"host": "10.0.0.1", "lag": None, "ready": False}]},
        "2": {"host": "10.0.0.3", "standbys": []},
    }
    lines = [" ".join(re.findall(r"[\w.]+", line)) for line in millpond("status").stdout.splitlines()]
    assert {"0 10.0.0.1 10.0.0.2 3 yes", "1 10.0.0.2 10.0.0.1 no", "2 10.0.0.3 none"} <= set(lines)


def test_a_damaged_record_is_an_error(millpond: Millpond, running: Running) -> None:
    running().send("orders", [order("ann", 3)])
    record = max(Path("state/orders/ledger").iterdir())
    record.write_bytes(record.read_bytes().replace(b"total", b"tutal"))
    result = millpond("status")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert "is damaged: its checksum does not fit its bytes" in result.stderr
    assert "Traceback" not in result.output


# --- event time, and what was left out ---


def timed() -> mp.App:
    app = mp.App("orders")
    rows = app.stream("orders", mp.sources.rows([]), timestamp="at", on_error="skip")
    again = rows.with_time(lambda row: row["at"]).key_by("customer")
    again.window("by ten", mp.tumbling(10), grace=mp.NO_GRACE).aggregate(n=mp.count())

    def picky(row: dict[str, Any], state: mp.State) -> None:
        if row["customer"] == "eve":
            raise ValueError("not her")

    rows.key_by("customer").apply("picky", picky)
    return app


def test_the_watermark_and_the_rows_that_were_late_or_skipped_are_told(millpond: Millpond) -> None:
    with mp.testing.TestDriver(timed(), storage="state") as driver:
        driver.send("orders", [{"customer": "ann", "at": 25}, {"customer": "eve", "at": 26}])
        driver.send("orders", [{"customer": "ann", "at": 1}, {"customer": "bob", "at": 2}])
    found = status(millpond)
    assert found["streams"]["orders"]["watermark"] == 26
    assert found["streams"]["orders with_time 0"] == {"position": "", "last_rows": 0, "watermark": 26, "lost": 0}
    assert found["recent"] == {"batches": 2, "late": {"by ten": 2}, "skipped": {"picky": 1}}
    shown = " ".join(millpond("status").stdout.replace("│", " ").split())
    assert "rows left out in the last 2 batches" in shown
    assert "step or stream late skipped or dead letters" in " ".join(shown.replace("┃", " ").split())
    assert "by ten 2 0 picky 0 1" in shown


def test_a_watermark_of_datetimes_is_one(millpond: Millpond) -> None:
    app = mp.App("orders")
    app.stream("orders", mp.sources.rows([]), timestamp="at").key_by("customer").aggregate("n", n=mp.count())
    with mp.testing.TestDriver(app, storage="state") as driver:
        driver.send("orders", [{"customer": "ann", "at": "2023-05-01T12:00:00Z"}])
    assert status(millpond)["streams"]["orders"]["watermark"] == "2023-05-01T12:00:00Z"
    assert "2023-05-01 12:00:00+00:00" in millpond("status").stdout


# --- a log that was compacted, pruned and rewritten ---


def pruned() -> None:
    app = totals_app("orders", keep=2, compact_every=2)
    with mp.testing.TestDriver(app, storage="state", partitions=2) as driver:
        for number in range(12):
            driver.send("orders", [order("ann", number)])


def test_a_pruned_ledger_is_read_from_its_floor_on(millpond: Millpond) -> None:
    pruned()
    floor = Ledger(open_storage("state"), "orders", SystemClock()).floor()
    assert floor > 3 and not Path("state/orders/ledger/00000000000000000001.json").exists()
    follow("commit", deliveries={"totals": 0})  # a sink to which nothing has come for long
    found = status(millpond)
    assert found["log"]["first"] == floor
    assert floor <= found["log"]["compacted"] < found["batch"]
    assert found["recent"]["batches"] <= found["batch"] - floor + 1
    assert f"within reach  from batch {floor}" in millpond("status").stdout
    assert f"compacted     up to batch {found['log']['compacted']}" in millpond("status").stdout


def test_the_last_rewrite_is_told_with_its_reason(millpond: Millpond, running: Running) -> None:
    running().send("orders", [order("ann", 3)])
    mp.admin("state", "orders").rescale(5)
    found = status(millpond)
    assert found["partitions"] == 5
    assert found["log"]["rewritten"] == found["batch"] - 1
    assert found["log"]["why"] == "rescale to 5 partitions"
    assert f"rewritten     in batch {found['batch'] - 1}: rescale to 5 partitions" in millpond("status").stdout


def test_a_damaged_manifest_is_told_and_so_is_the_rest(millpond: Millpond, running: Running) -> None:
    running().send("orders", [order("ann", 3)])
    mp.admin("state", "orders").compact()
    [manifest] = Path("state/orders/manifests").iterdir()
    manifest.write_bytes(manifest.read_bytes() + b" ")
    found = status(millpond)
    assert found["log"]["compacted"] is None
    assert "is damaged" in found["log"]["trouble"]
    assert found["steps"]["total"]["kind"] == "stateful_map"


def test_the_demos_watch_reads_a_pruned_ledger_from_its_floor_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from millpond.demo import progress

    pruned()
    monkeypatch.setattr(progress, "NAME", "orders")
    watch = progress.Watch(Path("."))
    assert watch.look(0.0).commits > 0
    assert watch.state.get("ann") == sum(range(12))
