"""Event time: what a row's time may be, how far the watermark has come, and what is late."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import millpond as mp
from millpond.log.ledger import Ledger
from millpond.messages import EventTime, ReadHeader
from millpond.pipeline.graph import compile_program
from millpond.storage import open_storage
from millpond.watermarks import node_watermarks, times_after_reading

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


def judged(**how: Any) -> mp.App:
    app = mp.App("judged", partitions=1)
    rows = app.stream("rows", mp.sources.rows([]), timestamp="at", **how)
    rows.on_time.to("on time", mp.sinks.memory())
    rows.late.to("late", mp.sinks.memory())
    app.dead_letters.to("dead", mp.sinks.memory())
    return app


def at(*times: Any) -> list[dict[str, Any]]:
    return [{"at": time} for time in times]


def shown(driver: mp.testing.TestDriver, sink: str) -> list[Any]:
    return [row["at"] for row in driver.output(sink)]


def watermark(driver: mp.testing.TestDriver, stream: str = "rows") -> int | None:
    record = Ledger(driver._storage, driver._app.name, driver.clock).newest()
    return record.watermarks[stream].watermark


def test_case_24_rows_older_than_the_watermark_are_late() -> None:
    with mp.testing.TestDriver(judged()) as driver:
        for n in [*range(5, 10), *range(5)]:
            driver.send("rows", at(n))
        assert shown(driver, "on time") == [5, 6, 7, 8, 9]
        assert shown(driver, "late") == [0, 1, 2, 3, 4]


def test_order_inside_a_batch_decides_nothing() -> None:
    with mp.testing.TestDriver(judged()) as driver:
        driver.send("rows", at(9, 1, 5))
        assert shown(driver, "late") == []
        driver.send("rows", at(8, 20, 9))
        assert shown(driver, "late") == [8]


def test_disorder_holds_the_watermark_back() -> None:
    with mp.testing.TestDriver(judged(disorder=3)) as driver:
        driver.send("rows", at(10))
        driver.send("rows", at(7, 6))
        assert shown(driver, "late") == [6]


@pytest.mark.parametrize("lose", [False, True])
def test_the_watermark_survives_a_restart_and_never_goes_back(lose: bool) -> None:
    with mp.testing.TestDriver(judged()) as driver:
        driver.send("rows", at(10))
        driver.restart(lose_replicas=lose)
        driver.send("rows", at(3))
        driver.send("rows", at(9))
        assert shown(driver, "late") == [3, 9]


@pytest.mark.parametrize("step", ["plan", "compute", "commit", "deliver", "acknowledge", "tidy"])
@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_a_crash_judges_no_row_twice(step: Any, when: Any) -> None:
    with mp.testing.TestDriver(judged()) as driver:
        driver.send("rows", at(10))
        driver.crash(step, when)
        with pytest.raises(mp.testing.Crashed):
            driver.send("rows", at(9, 30, 12))
        driver.restart()
        driver.send("rows", at(29))
        assert shown(driver, "on time") == [10, 30, 12]
        assert shown(driver, "late") == [9, 29]


def test_datetimes_text_and_epochs_are_the_same_instants() -> None:
    app = mp.App("kinds", partitions=1)
    timestamps: dict[str, Any] = {"plain": "at", "ms": mp.epoch_ms("at"), "s": mp.epoch_s("at")}
    for name, timestamp in timestamps.items():
        app.stream(name, mp.sources.rows([]), timestamp=timestamp).on_time.to(f"{name} out", mp.sinks.memory())
    with mp.testing.TestDriver(app) as driver:
        for stamp in (NOON, NOON.isoformat(), "2024-05-01T14:00:00+02:00", "2024-05-01T12:00:00Z"):
            driver.send("plain", at(stamp))
        driver.send({"ms": at(int(NOON.timestamp() * 1000)), "s": at(NOON.timestamp())})
        micros = int(NOON.timestamp()) * 1_000_000
        assert {watermark(driver, name) for name in ("plain", "ms", "s")} == {micros}


@pytest.mark.parametrize(("epoch", "unit"), [(mp.epoch_s, "seconds"), (mp.epoch_ms, "milliseconds")])
def test_text_in_place_of_a_number_since_the_epoch_is_refused_with_the_unit(epoch: Any, unit: str) -> None:
    with pytest.raises(ValueError, match=f"^expected 'at' to be a number of {unit} since 1970, got '1714561200'$"):
        epoch("at")({"at": "1714561200"})


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({}, "has no field 'at'"),
        ({"at": None}, "expected a time"),
        ({"at": 1.5}, "got 1.5. For times in seconds or milliseconds since 1970, use timestamp=mp.epoch_s("),
        ({"at": True}, "expected a time"),
        ({"at": "yesterday"}, "ISO-8601"),
        ({"at": datetime(2024, 5, 1)}, "value.replace(tzinfo=datetime.UTC)"),
        ({"at": "2024-05-01T12:00:00"}, 'an offset such as "Z"'),
        ({"at": 1 << 62}, "2**62"),
    ],
)
def test_a_row_without_a_good_time_meets_on_error(row: dict[str, Any], says: str) -> None:
    with mp.testing.TestDriver(judged()) as driver, pytest.raises(mp.errors.StepFailed) as failed:
        driver.send("rows", [row])
    assert "timestamp" in str(failed.value) and says in str(failed.value)
    with mp.testing.TestDriver(judged(on_error="dead-letter")) as driver:
        good = {"at": NOON} if not isinstance(row.get("at"), int) else {"at": 3}
        driver.send("rows", [good, row, good])
        assert driver.output("on time") == [good, good]
        assert [letter["row"] for letter in driver.output("dead")] == [row]


def test_times_of_two_kinds_in_one_stream_are_refused() -> None:
    with mp.testing.TestDriver(judged(on_error="dead-letter")) as driver:
        driver.send("rows", at(NOON))
        driver.send("rows", at(5, NOON))
        assert shown(driver, "on time") == [NOON, NOON]
        assert "whole number" in driver.output("dead")[0]["error"]


def test_a_time_years_ahead_does_not_drive_the_watermark_away() -> None:
    far = NOON + timedelta(days=4000)
    with mp.testing.TestDriver(judged()) as driver:
        driver.send("rows", at(NOON))
        driver.send("rows", at(NOON + timedelta(seconds=1), far, NOON + timedelta(seconds=2)))
        driver.send("rows", at(NOON + timedelta(seconds=3)))
        assert shown(driver, "late") == [far]
        assert len(driver.output("on time")) == 4
    with mp.testing.TestDriver(judged(on_error="dead-letter")) as driver:
        driver.send("rows", at(NOON, far))
        assert shown(driver, "on time") == [NOON] and len(driver.output("dead")) == 1
    app = mp.App("strict", partitions=1)
    app.stream("rows", mp.sources.rows([]), timestamp="at", ahead="1h").to("out", mp.sinks.memory())
    with mp.testing.TestDriver(app) as driver:
        driver.send("rows", at(NOON))
        with pytest.raises(mp.errors.StepFailed, match="ahead"):
            driver.send("rows", at(NOON + timedelta(hours=2)))


def test_disorder_without_a_timestamp_is_refused() -> None:
    with pytest.raises(mp.errors.InvalidUse, match="timestamp= is needed"):
        mp.App("a").stream("rows", mp.sources.rows([]), disorder="1s")


def test_a_disorder_of_another_unit_is_refused_in_words() -> None:
    with mp.testing.TestDriver(judged(disorder="10s")) as driver, pytest.raises(mp.errors.InvalidUse, match="whole"):
        driver.send("rows", at(5))


def program(**streams: Any) -> Any:
    app = mp.App("p")
    graph = app._graph
    made = [app.stream(name, mp.sources.rows([]), timestamp="at", **how) for name, how in streams.items()]
    both = made[0].union(*made[1:]) if len(made) > 1 else made[0]
    both.key_by("k").stateful_map("s", lambda k, r, s: (r, s), initial=0)
    return compile_program("p", graph)


def header(**newest: dict[str, int]) -> ReadHeader:
    return ReadHeader(0, "n", 0, newest=newest, units=dict.fromkeys(newest, "number"))


def test_the_slowest_partition_and_the_slowest_stream_decide() -> None:
    found = program(a={"disorder": 2}, b={})
    moment = EventTime()
    times = times_after_reading(found, moment, [header(a={"0": 100, "1": 50}), header(a={"1": 60}, b={"0": 40})])
    assert times["a"].watermark == 58 and times["b"].watermark == 40
    assert node_watermarks(found, moment, times)[-1].at == 40
    alone = times_after_reading(found, moment, [header(a={"0": 100})])
    assert node_watermarks(found, moment, alone)[-1].at is None  # b may still say anything


def test_a_quiet_stream_stops_holding_the_others_back() -> None:
    app = mp.App("two", partitions=1)
    a = app.stream("a", mp.sources.rows([]), timestamp="at")
    b = app.stream("b", mp.sources.rows([]), timestamp="at", idle_after="10s")
    both = a.union(b)
    both.late.to("late", mp.sinks.memory())
    with mp.testing.TestDriver(app) as driver:
        driver.send("a", at(100))
        driver.send("a", at(50))
        assert driver.output("late") == []  # b has said nothing yet
        driver.advance("10s")
        driver.send("a", at(60))
        assert shown(driver, "late") == [60]


def test_down_time_does_not_count_as_quiet() -> None:
    app = mp.App("two", partitions=1)
    rows = app.stream("rows", mp.sources.rows([]), timestamp="at", idle_after="10s")
    rows.late.to("late", mp.sinks.memory())
    with mp.testing.TestDriver(app) as driver:
        driver.send("rows", at(NOON))
        driver.clock.advance(3600)
        driver.restart()
        driver.send("rows", at(NOON + timedelta(seconds=1)))
        assert driver.output("late") == []
        driver.advance("1h")
        driver.send("rows", at(NOON + timedelta(minutes=30)))
        assert shown(driver, "late") == [NOON + timedelta(minutes=30)]


def test_with_time_sets_times_anew_and_the_watermark_follows_them() -> None:
    app = mp.App("anew", partitions=1)
    rows = app.stream("rows", mp.sources.rows([])).with_time(lambda row: row["at"])
    rows.late.to("late", mp.sinks.memory())
    with mp.testing.TestDriver(app) as driver:
        driver.send("rows", at(10))
        driver.send("rows", at(9, 11))
        assert shown(driver, "late") == [9]


@pytest.mark.parametrize("partitions", [1, 3])
def test_typed_columns_text_and_objects_have_the_same_times(tmp_path: Any, partitions: int) -> None:
    import json

    import pyarrow as pa
    import pyarrow.parquet as pq

    stamps = [NOON + timedelta(seconds=n) for n in (5, 1, 9)]
    pq.write_table(pa.table({"k": ["a", "b", "a"], "at": pa.array(stamps)}), tmp_path / "a.parquet")
    lines = "".join(json.dumps({"k": k, "at": t.isoformat()}) + "\n" for k, t in zip("aba", stamps, strict=True))
    (tmp_path / "a.jsonl").write_text(lines)
    seen = {}
    for form in ("parquet", "jsonl"):
        app = mp.App(form, partitions=partitions, state_dir=str(tmp_path / "state"))
        rows = app.stream("rows", mp.sources.files(tmp_path / f"a.{form}", format=form), timestamp="at")

        def note(row: Any, state: mp.State) -> Any:
            return (state.key, state.time)

        rows.key_by("k").apply("note", note).to("out", mp.sinks.memory())
        from millpond.clock import ManualClock
        from millpond.driver.commit import Driver
        from millpond.driver.settings import DriverSettings
        from millpond.runtimes.local import LocalRuntime
        from millpond.sources.base import Limit

        storage = open_storage(str(tmp_path / "state"))
        clock = ManualClock()
        driver = Driver.start(
            mp.lowlevel.program(app),
            LocalRuntime(storage, clock),
            storage,
            clock,
            DriverSettings(partitions=partitions, home=str(tmp_path / "local"), threaded=False),
        )
        driver.batch(Limit(1000, 1 << 20))
        seen[form] = sorted(mp.lowlevel.program(app).sinks["out"].rows)  # type: ignore[attr-defined]
        assert driver.last.watermarks["rows"].watermark == int((NOON + timedelta(seconds=9)).timestamp()) * 1_000_000
    assert seen["parquet"] == seen["jsonl"] == sorted(zip("aba", stamps, strict=True))


def test_times_of_another_kind_in_a_later_batch_are_refused_row_by_row() -> None:
    for first, second in ((NOON, 5), (5, NOON)):
        with mp.testing.TestDriver(judged(on_error="dead-letter")) as driver:
            driver.send("rows", at(first))
            driver.send("rows", at(second))
            assert shown(driver, "on time") == [first]
            assert "as in the rows before" in driver.output("dead")[0]["error"]


def test_a_window_of_which_nothing_is_said_is_refused() -> None:
    app = mp.App("half")
    app.stream("rows", mp.sources.rows([]), timestamp="at").key_by("k").window("w", mp.tumbling(10), grace=mp.NO_GRACE)
    with pytest.raises(mp.errors.InvalidUse, match="'w' does nothing yet"):
        mp.lowlevel.program(app)
