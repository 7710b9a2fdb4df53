"""Reading Kafka: which messages, from where on, in which order, and as what rows."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from kafka_apps import Background, Copying, positions, run_here
from kafka_broker import Broker
from processes import eventually

import millpond as mp
from millpond.errors import InvalidUse, StepFailed, Unavailable


def numbers(rows: list[Any]) -> list[int]:
    return sorted(row["n"] for row in rows)


def count_to(n: int, first: int = 0) -> list[dict[str, int]]:
    return [{"n": i} for i in range(first, n)]


# --- which topics ---


def test_a_list_of_topics_is_read(broker: Broker, topic: str, tmp_path: Path) -> None:
    names = [broker.create_topic(f"{topic}-{i}", partitions=2) for i in range(2)]
    broker.send(names[0], count_to(10))
    broker.send(names[1], count_to(20, first=10))
    app = Copying(tmp_path, mp.sources.kafka(names, servers=broker.address))
    assert numbers(app.run()) == list(range(20))
    assert app.run() == []


def test_new_topics_of_a_pattern_and_new_partitions_are_read_while_the_app_runs(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    broker.create_topic(f"{topic}-a")
    broker.create_topic(f"other-{topic}")
    broker.send(f"{topic}-a", count_to(1))
    broker.send(f"other-{topic}", [{"n": -1}])
    app = Copying(tmp_path, mp.sources.kafka(f"^{topic}-.*", servers=broker.address, start="latest"))
    with Background(app.app) as running:
        eventually(lambda: running.error or positions_or_none(app), "the first commit")
        broker.create_topic(f"{topic}-b")
        broker.send(f"{topic}-b", count_to(10, first=1))
        broker.add_partitions(f"{topic}-a", 3)
        broker.send(f"{topic}-a", count_to(20, first=10), partition=2)
        eventually(lambda: running.error or len(app.rows) >= 19, "all rows")
        assert running.error is None
    assert numbers(app.rows) == list(range(1, 20))


def test_what_comes_after_the_first_plan_of_a_pattern_without_topics_is_read(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    source = mp.sources.kafka(f"^{topic}-.*", servers=broker.address, start="latest")
    assert Copying(tmp_path, source).run() == []
    broker.create_topic(f"{topic}-a")
    broker.send(f"{topic}-a", count_to(5))
    app = Copying(tmp_path, mp.sources.kafka(f"^{topic}-.*", servers=broker.address, start="latest"))
    assert numbers(app.run()) == [0, 1, 2, 3, 4]
    assert set(positions(app.app)) >= {f"{topic}-a/0"}


def test_a_pattern_leaves_out_the_topics_of_kafka_itself(broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.create_topic(topic)
    broker.send(topic, count_to(1))
    app = Copying(tmp_path, mp.sources.kafka(topic, servers=broker.address))
    app.run()
    assert broker.group_offsets(app.app.name, topic), "a commit to __consumer_offsets"
    pattern = mp.sources.kafka(rf"^(__consumer.*|{topic})$", servers=broker.address, value="bytes")
    assert Copying(tmp_path / "2", pattern).run() == [b'{"n": 0}']


def positions_or_none(app: Copying) -> Any:
    """The positions of the newest commit, once the app has one."""
    try:
        return positions(app.app)
    except InvalidUse:  # there is no app in the state directory, or no state directory
        return None


def test_an_empty_topic_has_no_rows(broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.create_topic(topic, partitions=2)
    app = Copying(tmp_path, mp.sources.kafka(topic, servers=broker.address))
    assert app.run() == []
    broker.send(topic, count_to(3))
    assert numbers(app.run()) == [0, 1, 2]


def test_an_unknown_topic_is_refused(broker: Broker, topic: str, tmp_path: Path) -> None:
    app = Copying(tmp_path, mp.sources.kafka(topic, servers=broker.address))
    with pytest.raises(InvalidUse, match=f"there is no topic '{topic}' on this cluster"):
        app.run()
    # Also as one more topic of an app that has read others
    broker.create_topic(f"{topic}-a")
    broker.send(f"{topic}-a", count_to(1))
    Copying(tmp_path, mp.sources.kafka(f"{topic}-a", servers=broker.address)).run()
    app = Copying(tmp_path, mp.sources.kafka([f"{topic}-a", topic], servers=broker.address))
    with pytest.raises(InvalidUse, match=f"there is no topic '{topic}' on this cluster"):
        app.run()


@pytest.mark.parametrize(
    ("topics", "how", "says"),
    [
        (["a", "b", "a"], {}, r"sources.kafka\(topics\): expected each name once, got 'a' twice"),
        ("a", {"metadata": "value"}, r"sources.kafka\(metadata\): expected .* other than 'value'"),
        ("a", {"metadata": ""}, r"sources.kafka\(metadata\): expected the name of a field, got ''"),
    ],
)
def test_arguments_that_contradict_are_refused_when_the_program_is_built(
    topics: Any, how: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidUse, match=says):
        mp.sources.kafka(topics, servers="localhost:9092", **how)


def test_a_topic_that_the_program_no_longer_names_stops_the_app(broker: Broker, topic: str, tmp_path: Path) -> None:
    one, other = (broker.create_topic(f"{topic}-{name}") for name in ("one", "other"))
    broker.send(one, count_to(5))
    broker.send(other, count_to(15, first=10))

    def app(topics: Any, **how: Any) -> Copying:
        return Copying(tmp_path, mp.sources.kafka(topics, servers=broker.address, **how))

    assert numbers(app(one).run()) == list(range(5))
    broker.send(one, count_to(7, first=5))
    for changed in (other, f"^{other}$"):
        with pytest.raises(InvalidUse) as refused:
            app(changed).run()
        text = str(refused.value)
        assert text.startswith(f"sources.kafka: topics={changed!r} no longer has {one!r}, which the stream has read")
        assert "the topic still exists" in text and "deleted" not in text
        assert 'on_data_loss="continue"' in text and "another name" in text
    assert numbers(app(other, on_data_loss="continue").run()) == list(range(10, 15))
    # It goes on where it was, once it is named again.
    assert numbers(app([one, other]).run()) == [5, 6]
    broker.delete_topic(one)
    with pytest.raises(InvalidUse, match=f"no longer has '{one}', .* the topic no longer exists"):
        app(other).run()
    with pytest.raises(InvalidUse, match=f"{one}/0: the topic was deleted"):
        app([one, other]).run()


# --- from where on ---


def test_latest_begins_at_the_first_plan_and_skips_nothing_after_it(broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.create_topic(topic, partitions=2)
    broker.send(topic, count_to(10))

    def source() -> Any:
        return mp.sources.kafka(topic, servers=broker.address, start="latest")

    assert Copying(tmp_path, source()).run() == []
    broker.send(topic, count_to(20, first=10))  # before a row was read, and the app restarts
    broker.add_partitions(topic, 3)
    broker.send(topic, count_to(30, first=20), partition=2)
    assert numbers(Copying(tmp_path, source()).run()) == list(range(10, 30))


def test_a_datetime_begins_at_the_first_message_of_that_time(broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.create_topic(topic, partitions=2)
    for i in range(4):
        broker.send(topic, [{"n": i}], partition=0, timestamp=1_700_000_000_000 + i * 1000)
    broker.send(topic, [{"n": 4}], partition=1, timestamp=1_600_000_000_000)
    start = datetime.fromtimestamp(1_700_000_002, UTC)
    app = Copying(tmp_path, mp.sources.kafka(topic, servers=broker.address, start=start))
    assert numbers(app.run()) == [2, 3]
    broker.send(topic, [{"n": 5}], partition=1, timestamp=1_600_000_001_000)  # it came after the first plan
    assert numbers(app.run()) == [5]


@pytest.mark.parametrize(("year", "expected"), [(1950, [0, 1]), (1970, [1])])
def test_a_start_before_1970_is_the_oldest_message(
    broker: Broker, topic: str, tmp_path: Path, year: int, expected: list[int]
) -> None:
    broker.create_topic(topic)
    for n, time in enumerate([-5000, 5000]):
        broker.send(topic, [{"n": n}], timestamp=time)
    start = datetime(year, 1, 1, tzinfo=UTC)
    assert numbers(Copying(tmp_path, mp.sources.kafka(topic, servers=broker.address, start=start)).run()) == expected


def test_a_start_between_two_milliseconds_is_the_later_one(broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.create_topic(topic)
    for n in range(2):
        broker.send(topic, [{"n": n}], timestamp=1_700_000_000_000 + n)
    start = datetime.fromtimestamp(1_700_000_000, UTC).replace(microsecond=1)
    assert numbers(Copying(tmp_path, mp.sources.kafka(topic, servers=broker.address, start=start)).run()) == [1]


def test_offsets_begin_where_they_say_and_a_position_wins(broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.create_topic(topic, partitions=2)
    broker.send(topic, count_to(10), partition=0)
    broker.send(topic, count_to(15, first=10), partition=1)

    def source(offset: int) -> Any:
        return mp.sources.kafka(topic, servers=broker.address, start={topic: {0: offset}})

    assert numbers(Copying(tmp_path, source(7)).run()) == [7, 8, 9, 10, 11, 12, 13, 14]
    assert Copying(tmp_path, source(2)).run() == []
    with pytest.raises(InvalidUse, match=rf"{topic}/0: expected an offset from 0 to 10, .* got 11"):
        Copying(tmp_path / "other", source(11)).run()
    nowhere = mp.sources.kafka(topic, servers=broker.address, start={topic: {0: 1, 7: 0}})
    with pytest.raises(InvalidUse, match=rf"start=\): {topic}/7: expected a partition from 0 to 1, .*, got 7"):
        Copying(tmp_path / "nowhere", nowhere).run()
    with pytest.raises(InvalidUse, match="expected offsets of 'orders', got some of 'order'"):
        mp.sources.kafka("orders", servers=broker.address, start={"order": {0: 1}})


# --- as what rows ---


def test_json_may_have_newlines_and_bad_values_are_found_where_they_are(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    broker.create_topic(topic)
    pretty = json.dumps({"n": 1, "text": "a\nb"}, indent=2)
    values = ['{"n": 0}', pretty, "", '{"n": 2}\0', "{", " ", '{"n": 3} {"n": 4}', b"\xff\xfe", '{"n": 5}\r\n', None]
    broker.send(topic, values)
    source = mp.sources.kafka(topic, servers=broker.address)
    app = Copying(tmp_path, source, on_error="dead-letter")
    letters = mp.sinks.memory()
    app.app.dead_letters.to("letters", letters)
    assert app.run() == [{"n": 0}, {"n": 1, "text": "a\nb"}, {"n": 5}, None]
    places = sorted(letter["error"].split(": ")[0] for letter in letters.rows)
    assert places == [f"topic '{topic}', partition 0, offset {i}" for i in (2, 3, 4, 5, 6, 7)]

    skipping = Copying(tmp_path / "skip", mp.sources.kafka(topic, servers=broker.address), on_error="skip")
    assert len(skipping.run()) == 4
    with pytest.raises(StepFailed, match=f"topic '{topic}', partition 0, offset 2"):
        Copying(tmp_path / "stop", mp.sources.kafka(topic, servers=broker.address)).run()


@pytest.mark.parametrize(
    ("value", "expected"),
    [("string", ["tea", ""]), ("bytes", [b"tea", b""]), (len, [3, 0])],
    ids=["string", "bytes", "function"],
)
def test_values_have_other_forms(broker: Broker, topic: str, tmp_path: Path, value: Any, expected: list[Any]) -> None:
    broker.create_topic(topic)
    broker.send(topic, ["tea", ""])
    assert Copying(tmp_path, mp.sources.kafka(topic, servers=broker.address, value=value)).run() == expected


def test_metadata_has_all_of_the_message(broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.create_topic(topic)
    broker.send(topic, [{"n": 1}], key="k", headers={"a": "1", "b": None}, timestamp=1_700_000_000_123)
    broker.send(topic, ["[1]", None, {"n": 2}], timestamp=1_700_000_000_000)
    broker.send(topic, [{"n": 3}], key=b"\xff")
    source = mp.sources.kafka(topic, servers=broker.address, metadata="kafka")
    app = Copying(tmp_path, source, on_error="dead-letter")
    letters = mp.sinks.memory()
    app.app.dead_letters.to("letters", letters)
    first, listed, tombstone, without_key = app.run()
    assert first == {
        "n": 1,
        "kafka": {
            "topic": topic,
            "partition": 0,
            "offset": 0,
            "timestamp": datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC),
            "key": "k",
            "headers": {"a": b"1", "b": None},
        },
    }
    assert listed["value"] == [1] and listed["kafka"]["offset"] == 1
    assert tombstone["value"] is None and tombstone["kafka"]["offset"] == 2
    assert without_key["n"] == 2 and without_key["kafka"]["key"] is None and without_key["kafka"]["headers"] == {}
    [letter] = letters.rows
    assert letter["error"].startswith(f"topic '{topic}', partition 0, offset 4: ValueError: expected UTF-8 text")


DEEP = b"[" * 5000, b"]" * 5000
UNDECODABLE = [b'"\xff"', b'"\xff"\n', b'\n"\xff"', b"\n".join(DEEP), b"".join(DEEP), b"{}\n{}", b"\n", b""]


@pytest.mark.parametrize("metadata", [None, "kafka"])
def test_a_message_that_cannot_be_decoded_is_a_bad_row(
    broker: Broker, topic: str, tmp_path: Path, metadata: str | None
) -> None:
    broker.create_topic(topic)
    for bad in UNDECODABLE:
        broker.send(topic, [bad, {"n": 1}])
    source = mp.sources.kafka(topic, servers=broker.address, metadata=metadata)
    app, letters = Copying(tmp_path, source, on_error="dead-letter"), mp.sinks.memory()
    app.app.dead_letters.to("letters", letters)
    assert numbers(app.run()) == [1] * len(UNDECODABLE)
    places = [letter["error"].split(":")[0] for letter in letters.rows]
    assert places == [f"topic '{topic}', partition 0, offset {2 * i}" for i in range(len(UNDECODABLE))]


@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, LookupError])
def test_whatever_a_decoder_raises_makes_a_bad_row(
    broker: Broker, topic: str, tmp_path: Path, error: type[BaseException]
) -> None:
    def decode(data: bytes) -> Any:
        row = json.loads(data)
        if row["n"] == 1:
            raise error("no")
        return row

    broker.create_topic(topic)
    broker.send(topic, count_to(3))
    app = Copying(tmp_path, mp.sources.kafka(topic, servers=broker.address, value=decode), on_error="skip")
    assert numbers(app.run()) == [0, 2]


def refuse(data: bytes) -> Any:
    raise InvalidUse("the registry refuses")


class Sulking:
    """A decoder that is not available at first."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, data: bytes) -> Any:
        self.calls += 1
        if self.calls < 3:
            raise Unavailable("the registry is down", retry_after=0.01)
        return json.loads(data)


def test_a_decoder_that_is_unavailable_is_waited_for_and_one_that_refuses_stops_the_app(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    broker.create_topic(topic)
    broker.send(topic, count_to(2))
    waiting = mp.sources.kafka(topic, servers=broker.address, value=Sulking())
    assert Copying(tmp_path, waiting, on_error="skip").run() == count_to(2)
    refusing = mp.sources.kafka(topic, servers=broker.address, value=refuse)
    with pytest.raises(InvalidUse, match="the registry refuses"):
        Copying(tmp_path / "other", refusing, on_error="skip").run()


def test_a_message_of_10_mb_is_read(broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.create_topic(topic, max_message_bytes=12 << 20)
    from kafka_operations import produce_all

    text = "x" * (10 << 20)
    producer = broker.producer(message_max_bytes=12 << 20)
    produce_all(producer, topic, [{"n": 0}, {"n": 1, "text": text}, {"n": 2}])
    app = Copying(tmp_path, mp.sources.kafka(topic, servers=broker.address))
    rows = app.run()
    assert [row["n"] for row in rows] == [0, 1, 2] and rows[1]["text"] == text


# --- tables, times ---


def test_tombstones_delete_rows_of_a_table(broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.create_topic(f"{topic}-prices")
    broker.create_topic(topic)
    broker.send(f"{topic}-prices", [{"price": 3}], key="tea")
    broker.send(f"{topic}-prices", [{"price": 4}], key="milk")
    broker.send(f"{topic}-prices", [None], key="tea")
    app = mp.App("shop", state_dir=str(tmp_path / "state"), local_dir=str(tmp_path / "replicas"), partitions=2)
    changes = app.stream("prices", mp.sources.kafka(f"{topic}-prices", servers=broker.address, metadata="kafka"))
    keyed = changes.key_by(item=lambda row: row["kafka"]["key"])
    prices = app.table("price", keyed, deleted=lambda row: row.get("value", row) is None)
    broker.send(topic, [{"item": "tea"}, {"item": "milk"}])
    out = mp.sinks.memory()
    orders = app.stream("orders", mp.sources.kafka(topic, servers=broker.address)).key_by("item")
    orders.lookup("priced", prices, merge=lambda row, price: (row["item"], price and price["price"])).to("out", out)
    run_here(app)
    assert sorted(out.rows) == [("milk", 4), ("tea", None)]


def test_the_time_of_messages_closes_windows(broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.create_topic(topic)
    for i, second in enumerate([0, 30, 59, 61, 130]):
        broker.send(topic, [{"n": i, "k": "a"}], timestamp=1_700_000_040_000 + second * 1000)
    app = mp.App("windows", state_dir=str(tmp_path / "state"), local_dir=str(tmp_path / "replicas"), partitions=2)
    source = mp.sources.kafka(topic, servers=broker.address)
    stream = app.stream("orders", source, timestamp=mp.message_time)
    out = mp.sinks.memory()
    stream.key_by("k").window("per-minute", mp.tumbling("1m"), grace=0).aggregate(n=mp.count()).to("out", out)
    run_here(app)
    assert [(row["window_start"], row["n"]) for row in out.rows] == [
        (datetime.fromtimestamp(1_700_000_040, UTC), 3),
        (datetime.fromtimestamp(1_700_000_100, UTC), 1),
    ]


@pytest.mark.parametrize("metadata", [None, "kafka"])
def test_a_time_that_is_out_of_range_is_a_bad_row(
    broker: Broker, topic: str, tmp_path: Path, metadata: str | None
) -> None:
    broker.create_topic(topic, message_timestamp_after_max_ms=2**63 - 1)
    now = 1_700_000_000_000
    for n, time in enumerate([now, 2**62, 2**63 // 1000, now]):  # such as nanoseconds in the place of milliseconds
        broker.send(topic, [{"n": n}], timestamp=time)
    source = mp.sources.kafka(topic, servers=broker.address, metadata=metadata)
    app = Copying(tmp_path, source, timestamp=mp.message_time, on_error="dead-letter")
    letters = mp.sinks.memory()
    app.app.dead_letters.to("letters", letters)
    assert numbers(app.run()) == [0, 3]
    for offset, letter in enumerate(letters.rows, 1):
        assert letter["error"].startswith(f"topic '{topic}', partition 0, offset {offset}: ")
    assert len(letters.rows) == 2


# --- gaps ---


def test_an_open_transaction_is_read_when_it_is_committed(broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.create_topic(topic)
    broker.send(topic, count_to(2))
    producer = broker.producer(transactional_id=topic)
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b'{"n": 2}')
    producer.flush(60)
    broker.send(topic, [{"n": 3}])
    app = Copying(tmp_path, mp.sources.kafka(topic, servers=broker.address))
    assert numbers(app.run()) == [0, 1]
    assert app.run() == []
    producer.commit_transaction(60)
    eventually(lambda: broker.end_offsets(topic, committed=True) == {0: 5}, "the marker of the transaction")
    assert numbers(app.run()) == [2, 3]


def test_a_compacted_topic_has_gaps(broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.create_topic(
        topic, cleanup_policy="compact", min_cleanable_dirty_ratio=0.01, segment_ms=100, min_compaction_lag_ms=0
    )
    for i in range(30):
        broker.send(topic, [{"n": i}], key=f"k{i % 3}")
    # A message of a later segment lets the cleaner at the ones before.
    until = {"n": 29}

    def cleaned() -> bool:
        broker.send(topic, [until], key="k2")
        return len(broker.read_committed(topic)) < broker.end_offsets(topic)[0] - 5

    eventually(cleaned, "compaction", 180)
    app = Copying(tmp_path, mp.sources.kafka(topic, servers=broker.address))
    app.run(max_rows=5)
    newest = {row["n"] % 3: row["n"] for row in app.rows}
    assert newest == {0: 27, 1: 28, 2: 29}


def test_a_sparse_topic_takes_few_batches(broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.create_topic(topic)
    broker.send(topic, count_to(20))
    for _ in range(3):
        broker.send_in_transaction(topic, count_to(1000), abort=True)
    broker.send(topic, count_to(40, first=20))
    app = Copying(tmp_path, mp.sources.kafka(topic, servers=broker.address))
    batches: list[str] = []
    rows = app.run(max_rows=10, hook=lambda step, when: batches.append(f"{when} {step}"))
    assert numbers(rows) == list(range(40))
    assert batches.count("after commit") < 20


# --- rate and order ---


@pytest.mark.parametrize("most", [3, 10, 1000])
def test_no_partition_starves_and_each_keeps_its_order(broker: Broker, topic: str, tmp_path: Path, most: int) -> None:
    broker.create_topic(topic, partitions=5)
    sizes = [60, 3, 3, 3, 3]
    for partition, size in enumerate(sizes):
        broker.send(topic, [{"p": partition, "n": i} for i in range(size)], partition=partition)
    app = Copying(tmp_path, mp.sources.kafka(topic, servers=broker.address))
    batches: list[int] = []

    def note(step: str, when: str) -> None:
        if (step, when) == ("deliver", "after"):
            batches.append(len(app.rows))

    app.run(max_rows=most, hook=note)
    for partition, size in enumerate(sizes):
        assert [row["n"] for row in app.rows if row["p"] == partition] == list(range(size))
    each = [end - begin for begin, end in zip([0, *batches], batches, strict=False)]
    assert max(each) <= most
    few = app.rows[: max(25, most)]  # the small partitions are done soon
    assert Counter(row["p"] for row in few if row["p"]) == {1: 3, 2: 3, 3: 3, 4: 3}


def test_big_messages_after_small_ones_keep_batches_small(broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.create_topic(topic)
    broker.send(topic, count_to(100))
    app = Copying(tmp_path, mp.sources.kafka(topic, servers=broker.address))
    batches: list[int] = []

    def note(step: str, when: str) -> None:
        if (step, when) == ("deliver", "after"):
            batches.append(len(app.rows))
        if (step, when) == ("tidy", "after") and len(batches) == 1:  # 81 MB, planned as 1 kB
            broker.send(topic, [{"n": i, "text": "x" * 900_000} for i in range(100, 190)])

    with Background(app.app, hook=note) as running:
        eventually(lambda: running.error or len(app.rows) >= 190, "all messages")
        assert running.error is None
    assert numbers(app.rows) == list(range(190))
    assert batches[0] == 100 and (batches[1] - 100) * 900_000 <= 64 << 20


def test_the_first_batch_has_as_many_big_messages_as_max_bytes_allows(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    broker.create_topic(topic, partitions=2)
    for partition in range(2):
        broker.send(topic, [{"n": i, "text": "x" * 100_000} for i in range(50)], partition=partition)
    app = Copying(tmp_path, mp.sources.kafka(topic, servers=broker.address))
    batches: list[int] = []

    def note(step: str, when: str) -> None:
        if (step, when) == ("deliver", "after"):
            batches.append(len(app.rows))

    app.run(hook=note, max_bytes=4_000_000)
    assert 38 <= batches[0] <= 40 and len(batches) == 3


# --- others on the same topic ---


def test_two_apps_read_one_topic_and_the_groups_have_their_offsets(broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.create_topic(topic, partitions=2)
    broker.send(topic, count_to(10), partition=0)
    broker.send(topic, count_to(14, first=10), partition=1)
    one = Copying(tmp_path / "1", mp.sources.kafka(topic, servers=broker.address), name=f"{topic}-one")
    two = Copying(tmp_path / "2", mp.sources.kafka(topic, servers=broker.address, group=f"{topic}-g"), name="two")
    assert numbers(one.run()) == numbers(two.run()) == list(range(14))
    assert broker.group_offsets(f"{topic}-one", topic) == {0: 10, 1: 4}
    assert broker.group_offsets(f"{topic}-g", topic) == {0: 10, 1: 4}
    # Nothing depends on them.
    broker.send(topic, [{"n": 14}], partition=0)
    broker.admin.delete_consumer_groups([f"{topic}-one"])[f"{topic}-one"].result(60)
    assert numbers(one.run()) == [14]
