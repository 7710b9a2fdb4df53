"""Messages that are gone before they were read: an error that names them, or a count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kafka_apps import Copying, positions, run_here
from kafka_broker import Broker
from typer.testing import CliRunner

import millpond as mp
from millpond.cli import commands
from millpond.errors import InvalidUse


def count_to(n: int, first: int = 0) -> list[dict[str, int]]:
    return [{"n": i} for i in range(first, n)]


def numbers(rows: list[Any]) -> list[int]:
    return sorted(row["n"] for row in rows)


def lost_in_status(app: Copying) -> int:
    done = CliRunner().invoke(
        commands, ["status", "--state-dir", str(app.app.state_dir), "--app", app.app.name, "--format", "json"]
    )
    assert done.exit_code == 0, done.output
    return int(json.loads(done.stdout)["streams"]["orders"]["lost"])


def reader_of(broker: Broker, topic: str, folder: Path, **how: Any) -> Copying:
    return Copying(folder, mp.sources.kafka(topic, servers=broker.address, **how))


def reader_with_unread_rows(broker: Broker, topic: str, tmp_path: Path, count: int) -> Copying:
    """A reader of a new topic that has read five rows of it."""
    broker.create_topic(topic)
    broker.send(topic, count_to(5))
    app = reader_of(broker, topic, tmp_path)
    app.run()
    broker.send(topic, count_to(count, first=5))
    return app


def test_messages_that_retention_removed_stop_the_app_until_the_user_accepts_it(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    broker.create_topic(topic)
    broker.send(topic, count_to(5))
    reader_of(broker, topic, tmp_path).run()
    broker.send(topic, count_to(20, first=5))
    broker.delete_records(topic, 0, 12)
    for _ in range(2):  # it is not skipped at the second start either
        with pytest.raises(InvalidUse, match=f"{topic}/0: offsets 5 to 11 were removed before they were read"):
            reader_of(broker, topic, tmp_path).run()
    app = reader_of(broker, topic, tmp_path, on_data_loss="continue")
    assert numbers(app.run()) == list(range(12, 20))
    assert positions(app.app)[f"{topic}/0"]["lost"] == lost_in_status(app) == 7
    broker.send(topic, count_to(21, first=20))
    assert numbers(app.run()) == [20]
    assert lost_in_status(app) == 7


@pytest.mark.parametrize("ahead", [False, True])
def test_messages_that_are_removed_between_plan_and_read_are_not_skipped(
    broker: Broker, topic: str, tmp_path: Path, ahead: bool
) -> None:
    app = reader_with_unread_rows(broker, topic, tmp_path, 200)
    removed: list[int] = []

    def remove(step: str, when: str) -> None:
        if (step, when) == ("compute", "before") and not removed:
            removed.append(120)
            broker.delete_records(topic, 0, 120)

    with pytest.raises(InvalidUse, match=f"{topic}/0: offsets 5 to 119 were removed before they were read"):
        app.run(hook=remove, ahead=ahead)


def test_what_is_removed_between_plan_and_read_is_counted(broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.create_topic(topic)
    broker.send(topic, count_to(5))
    app = reader_of(broker, topic, tmp_path, on_data_loss="continue")
    app.run()
    broker.send(topic, count_to(60, first=5))
    removed: list[int] = []

    def remove(step: str, when: str) -> None:
        if (step, when) == ("compute", "before") and not removed:
            removed.append(40)
            broker.delete_records(topic, 0, 40)

    assert numbers(app.run(hook=remove)) == list(range(40, 60))
    assert lost_in_status(app) == 35


@pytest.mark.parametrize("is_created_again", [False, True])
def test_a_topic_that_was_deleted_stops_the_app(
    broker: Broker, topic: str, tmp_path: Path, is_created_again: bool
) -> None:
    broker.create_topic(topic)
    broker.send(topic, count_to(5))
    reader_of(broker, topic, tmp_path).run()
    broker.delete_topic(topic)
    if is_created_again:
        broker.create_topic(topic)
        broker.send(topic, count_to(15, first=10))  # as many as before: only the id of the topic differs
    gap = "the topic was deleted and created again: .* from offset 5" if is_created_again else "the topic was deleted"
    with pytest.raises(InvalidUse, match=f"{topic}/0: {gap}"):
        reader_of(broker, topic, tmp_path).run()
    app = reader_of(broker, topic, tmp_path, on_data_loss="continue")
    assert numbers(app.run()) == (list(range(10, 15)) if is_created_again else [])


def test_a_topic_that_is_deleted_between_plan_and_read_stops_the_app(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    app = reader_with_unread_rows(broker, topic, tmp_path, 15)
    deleted: list[str] = []

    def delete(step: str, when: str) -> None:
        if (step, when) == ("compute", "before") and not deleted:
            deleted.append(topic)
            broker.delete_topic(topic)
            broker.create_topic(topic)

    with pytest.raises(InvalidUse, match=f"{topic}/0: the topic was deleted and created again"):
        app.run(hook=delete)
    assert app.rows == count_to(5)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("when", [("plan", "after"), ("compute", "during")])
def test_a_topic_that_is_created_again_between_plan_and_commit_is_not_read_under_the_old_offsets(
    broker: Broker, topic: str, tmp_path: Path, when: tuple[str, str], ahead: bool
) -> None:
    app = reader_with_unread_rows(broker, topic, tmp_path, 15)
    begun: list[str] = []

    def create_again(step: str, at: str) -> None:
        if (step, at) == when and not begun:
            begun.append(topic)
            broker.delete_topic(topic)
            broker.create_topic(topic)
            broker.send(topic, count_to(130, first=100))  # more than before: all offsets of the plan are there

    with pytest.raises(InvalidUse, match=f"{topic}/0: the topic was deleted and created again: .* from offset 5"):
        app.run(hook=create_again, ahead=ahead, max_rows=10)
    assert begun and app.rows == count_to(5)
    going_on = reader_of(broker, topic, tmp_path, on_data_loss="continue")
    assert going_on.run() == count_to(130, first=100)


def test_a_topic_that_is_created_again_between_plan_and_commit_is_read_from_its_beginning(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    broker.create_topic(topic)
    broker.send(topic, count_to(5))
    app = reader_of(broker, topic, tmp_path, on_data_loss="continue")
    app.run()
    broker.send(topic, count_to(15, first=5))
    begun: list[str] = []

    def create_again(step: str, at: str) -> None:
        if (step, at) == ("plan", "after") and not begun:
            begun.append(topic)
            broker.delete_topic(topic)
            broker.create_topic(topic)
            broker.send(topic, count_to(130, first=100))

    app.run(hook=create_again)
    app.run()
    assert app.rows == [*count_to(5), *count_to(130, first=100)]


def test_a_position_beyond_the_end_stops_the_app(broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.create_topic(topic)
    broker.send(topic, count_to(5))
    topic_id = entry_of(broker, topic, tmp_path / "other")["topic_id"]
    position = {f"{topic}/0": {"offset": 9, "from": 0, "topic_id": topic_id}}
    limit = mp.lowlevel.Limit(100, 1 << 20)
    source = mp.sources.kafka(topic, servers=broker.address)
    with pytest.raises(InvalidUse, match="the partition ends at offset 5, before the offset to read next, 9"):
        source.plan(position, limit, 0.0)
    with pytest.raises(InvalidUse, match="the partition ends at offset 5, before the offset to read next, 9"):
        source.as_of(0.0).plan(position, limit, 0.0)
    going_on = mp.sources.kafka(topic, servers=broker.address, on_data_loss="continue")
    [split] = going_on.plan(position, limit, 0.0)
    [chunk] = going_on.read(split)
    assert chunk.position["offset"] == 5


def entry_of(broker: Broker, topic: str, folder: Path) -> Any:
    app = reader_of(broker, topic, folder)
    app.run()
    return positions(app.app)[f"{topic}/0"]


# --- rollback and rebuild ---


def counting(folder: Path, source: Any) -> mp.App:
    app = mp.App("count", state_dir=str(folder / "state"), local_dir=str(folder / "replicas"), partitions=2)

    def add(key: Any, row: Any, total: int) -> Any:
        return None, total + row["n"]

    app.stream("orders", source).key_by(parity=lambda row: row["n"] % 2).stateful_map("total", add, initial=0)
    return app


def test_a_rollback_is_refused_if_the_messages_after_it_are_gone(broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.create_topic(topic)

    def app() -> mp.App:
        return counting(tmp_path, mp.sources.kafka(topic, servers=broker.address))

    for i in range(3):
        broker.send(topic, count_to(10 * i + 10, first=10 * i))
        run_here(app())
    broker.delete_records(topic, 0, 15)
    commits = [n for n, rows in history(tmp_path) if rows]
    before = newest_number(tmp_path)
    with pytest.raises(InvalidUse, match=f"{topic}/0: offsets 10 to 14 are gone from the topic: the oldest is 15"):
        app().rollback(commits[0])
    assert newest_number(tmp_path) == before
    app().rollback(commits[1])
    assert state_of(app()) == {0: sum(range(0, 20, 2)), 1: sum(range(1, 20, 2))}
    run_here(app())
    assert state_of(app()) == {0: sum(range(0, 30, 2)), 1: sum(range(1, 30, 2))}


def test_a_rollback_is_refused_if_a_partition_that_was_added_since_has_lost_messages(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    broker.create_topic(topic)

    def app() -> mp.App:
        return counting(tmp_path, mp.sources.kafka(topic, servers=broker.address))

    broker.send(topic, count_to(10))
    run_here(app())
    [first] = [n for n, rows in history(tmp_path) if rows]
    broker.add_partitions(topic, 2)
    broker.send(topic, count_to(20, first=10), partition=1)
    run_here(app())
    broker.delete_records(topic, 1, 4)
    with pytest.raises(InvalidUse, match=f"{topic}/1: offsets 0 to 3 are gone"):
        app().rollback(first)


def newest_number(folder: Path) -> int:
    newest = mp.open(str(folder / "state"), "count").newest
    assert newest is not None
    return newest.number


def history(folder: Path) -> list[tuple[int, int]]:
    from millpond.clock import SystemClock
    from millpond.log.ledger import Ledger
    from millpond.storage import open_storage

    ledger = Ledger(open_storage(str(folder / "state")), "count", SystemClock())
    records = [ledger.read(number) for number in range(ledger.floor(), newest_number(folder) + 1)]
    return [(record.number, sum(record.rows.values())) for record in records if record is not None]


def state_of(app: mp.App) -> dict[Any, Any]:
    return {key: value for key, value in app.state("total").items()}
