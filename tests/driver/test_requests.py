"""Requests reach the driver of a running app, are carried out once, and are answered; bad ones do no harm."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from folders import held, write
from processes import eventually

import millpond as mp
from millpond.clock import SystemClock
from millpond.driver.commit import Driver
from millpond.driver.loop import Settings, run_driver
from millpond.driver.settings import Controls, DriverSettings
from millpond.errors import InvalidUse
from millpond.log.checked import pack_checked
from millpond.log.heartbeat import Heartbeat
from millpond.log.ledger import Ledger
from millpond.log.paths import Paths
from millpond.log.requests import (
    Request,
    find_refusal,
    leave_request,
    read_answer,
    remember_request,
)
from millpond.runtimes.local import LocalRuntime
from millpond.storage import Storage, open_storage
from millpond.testing import TestDriver


def totals(folder: Path, partitions: int | None = 2) -> mp.App:
    app = mp.App("totals", str(folder / "state"), partitions, local_dir=str(folder / "local"))
    rows = app.stream("rows", mp.sources.files(str(folder / "in")))

    def add(key: str, row: Any, total: int) -> tuple[Any, int]:
        return {"id": row["id"], "key": key, "total": total + row["value"]}, total + row["value"]

    rows.key_by("key").stateful_map("total", add, initial=0).to("out", mp.sinks.files(str(folder / "out")))
    return app


def feed(folder: Path, first: int, count: int = 20) -> list[dict[str, Any]]:
    rows = [{"id": i, "key": f"k{i % 7}", "value": i} for i in range(first, first + count)]
    write(folder / "in" / f"{first:05d}.jsonl", rows)
    return rows


@contextlib.contextmanager
def running(app: mp.App) -> Iterator[threading.Event]:
    """Run an app in a thread, without Spark, with all threads of a real driver; yields what stops it."""
    stop, clock, failed = threading.Event(), SystemClock(), []
    program, storage = mp.lowlevel.program(app), open_storage(app.state_dir)

    def make() -> Driver:
        settings = DriverSettings(partitions=app.partitions, home=app.local_dir, every=0.05, compact_every=3)
        runtime = LocalRuntime(storage, clock, ahead=True)
        return Driver.start(program, runtime, storage, clock, settings, Controls(stop=stop))

    def work() -> None:
        try:
            run_driver(make, Settings(every=0.05, max_rows=10), stop, clock)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield stop
    finally:
        stop.set()
        thread.join()
    assert failed == []


def opened(folder: Path) -> Any:
    return mp.open(str(folder / "state"), "totals")


def admin(folder: Path) -> Any:
    return mp.admin(str(folder / "state"), "totals")


def ledger_of(folder: Path) -> Ledger:
    return Ledger(open_storage(str(folder / "state")), "totals", SystemClock())


def wait_for_rows(folder: Path, count: int) -> None:
    eventually(lambda: len(held(folder / "out")) == count, f"{count} rows")


def requests_left(folder: Path) -> list[Path]:
    return list((folder / "state/totals/requests").glob("*"))


def check(folder: Path, count: int) -> None:
    """Each row is in the sink once, in the order of its key, and the state is the last total of each key."""
    out = held(folder / "out")
    assert sorted(row["id"] for row in out) == list(range(count))
    expected: dict[str, list[int]] = {}
    for i in range(count):
        expected.setdefault(f"k{i % 7}", []).append(i)
    for key, values in expected.items():
        assert sorted(row["total"] for row in out if row["key"] == key) == [
            sum(values[: i + 1]) for i in range(len(values))
        ]
    assert dict(opened(folder).state("total").items()) == {key: sum(values) for key, values in expected.items()}


def test_a_command_rescales_a_running_app_and_the_app_goes_on(tmp_path: Path) -> None:
    feed(tmp_path, 0)
    with running(totals(tmp_path)):
        wait_for_rows(tmp_path, 20)
        for number, partitions in enumerate((5, 3, 8), 1):
            feed(tmp_path, number * 20)
            said = admin(tmp_path).rescale(partitions)
            assert f"to {partitions} partitions as record" in said
            assert opened(tmp_path).newest.partitions == partitions
        wait_for_rows(tmp_path, 80)
        assert "8 to 4 partitions" in admin(tmp_path).rescale(4, dry_run=True)
        assert admin(tmp_path).rescale(8) == "it has 8 partitions already"
    check(tmp_path, 80)
    assert opened(tmp_path).newest.partitions == 8
    assert requests_left(tmp_path) == []
    with running(totals(tmp_path)):  # the program still says 2
        feed(tmp_path, 80)
        wait_for_rows(tmp_path, 100)
    assert opened(tmp_path).newest.partitions == 8
    check(tmp_path, 100)


def test_an_app_rescales_itself_from_another_thread(tmp_path: Path) -> None:
    feed(tmp_path, 0)
    with running(totals(tmp_path)):
        wait_for_rows(tmp_path, 20)
        assert "2 to 3 partitions" in totals(tmp_path).admin.rescale(3)
    check(tmp_path, 20)


def test_two_commands_at_once_are_carried_out_one_after_the_other(tmp_path: Path) -> None:
    feed(tmp_path, 0)
    said: list[str] = []
    with running(totals(tmp_path)):
        wait_for_rows(tmp_path, 20)
        commands = [threading.Thread(target=lambda n=n: said.append(admin(tmp_path).rescale(n))) for n in (5, 7)]
        for command in commands:
            command.start()
        for command in commands:
            command.join()
        feed(tmp_path, 20)
        wait_for_rows(tmp_path, 40)
    assert len(said) == 2
    ledger = ledger_of(tmp_path)
    done = [r for r in map(ledger.read, ledger.numbers()) if r is not None and r.request]
    assert sorted(record.partitions for record in done) == [5, 7]
    check(tmp_path, 40)


def test_a_command_finds_that_the_app_has_stopped_and_rescales_it_itself(tmp_path: Path) -> None:
    feed(tmp_path, 0)
    with running(totals(tmp_path)):
        wait_for_rows(tmp_path, 20)
    storage = open_storage(str(tmp_path / "state"))
    beat = Heartbeat(storage, "totals", "5e1f", SystemClock())
    beat.beat(1)  # of a driver that is about to stop
    said: list[str] = []
    command = threading.Thread(target=lambda: said.append(admin(tmp_path).rescale(6)))
    command.start()
    eventually(lambda: requests_left(tmp_path), "the request")
    beat.stop()
    command.join()
    assert "2 to 6 partitions" in said[0]
    assert opened(tmp_path).newest.partitions == 6 and requests_left(tmp_path) == []
    with running(totals(tmp_path)):
        feed(tmp_path, 20)
        wait_for_rows(tmp_path, 40)
    check(tmp_path, 40)


def test_a_command_that_waits_in_vain_withdraws_its_request(tmp_path: Path) -> None:
    feed(tmp_path, 0)
    with running(totals(tmp_path)):
        wait_for_rows(tmp_path, 20)
    storage = open_storage(str(tmp_path / "state"))
    Heartbeat(storage, "totals", "5e1f", SystemClock()).beat(1)
    with pytest.raises(mp.errors.Unavailable, match="has not carried it out within 1 s"):
        admin(tmp_path).rescale(6, timeout=1.0)
    assert requests_left(tmp_path) == []


def test_a_damaged_request_is_refused_and_removed_and_the_app_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = totals(tmp_path)
    storage = open_storage(str(tmp_path / "state"))
    with TestDriver(app, storage) as driver, caplog.at_level(logging.WARNING, "millpond"):
        driver.send("rows", [{"id": 1, "key": "a", "value": 1}])
        good = leave_request(Ledger(storage, "totals", driver.clock), "rescale", {"partitions": 3})
        whole = storage.get(Paths("totals").request(good.id)) or b""
        newer = json.loads(b"{" + whole.split(b",", 1)[1]) | {"format": 99, "id": "newer"}
        bad = {
            "empty": b"",
            "cut": whole[:-9],
            "flipped": whole.replace(b"rescale", b"rescalf"),
            "other": b"\x00\xff" * 50,
            "newer": pack_checked(newer),
            "renamed": whole,
            "list": pack_checked({"format": 1, "id": ["x"]}),
        }
        for name, data in bad.items():
            storage.put(Paths("totals").request(name), data)
        driver.send("rows", [{"id": 2, "key": "a", "value": 2}])
        driver.send("rows", [{"id": 3, "key": "a", "value": 3}])
        assert driver.state("total").get("a") == 6
        for name in bad:
            answer = read_answer(storage, "totals", name)
            assert answer is not None and not answer.done
            assert f"request {name} is refused" in caplog.text
        assert not [path for path in requests_left(tmp_path) if "answer" not in path.name]
        assert opened(tmp_path).newest.partitions == 3, "the good one among them is carried out"


def test_a_request_that_was_copied_from_another_app_is_refused(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "state"))
    with TestDriver(totals(tmp_path), storage) as driver:
        driver.send("rows", [{"id": 1, "key": "a", "value": 1}])
        other = leave_request(Ledger(storage, "other", driver.clock), "rescale", {"partitions": 3})
        storage.put(Paths("totals").request(other.id), storage.get(Paths("other").request(other.id)) or b"")
        driver.send("rows", [{"id": 2, "key": "a", "value": 2}])
        answer = read_answer(storage, "totals", other.id)
        assert answer is not None and answer.text == "it was left for app 'other'"
        assert opened(tmp_path).newest.partitions == 2


class OtherUsersStorage:
    """A storage in which the folder of requests belongs to another user, who may forbid to read or to write there."""

    def __init__(self, inner: Storage, forbidden: str) -> None:
        self._inner, self._forbidden = inner, forbidden

    def __getattr__(self, name: str) -> Any:
        def call(path: Any, *others: Any) -> Any:
            if name in self._forbidden.split() and "/requests" in str(path):
                raise InvalidUse("Permission denied")
            return getattr(self._inner, name)(path, *others)

        return call if name in ("get", "put", "delete", "list") else getattr(self._inner, name)


@pytest.mark.parametrize(
    ("forbidden", "partitions"), [("get", 2), ("get put delete", 2), ("put delete", 5), ("delete", 5), ("list", 2)]
)
def test_a_request_of_another_user_that_the_driver_may_not_read_or_answer_does_not_end_the_app(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, forbidden: str, partitions: int
) -> None:
    own: Any = open_storage(str(tmp_path / "state"))
    app = mp.App("sums", partitions=2)
    rows = app.stream("rows", mp.sources.rows([]))
    rows.key_by("key").stateful_map("sum", lambda key, row, n: (None, n + row["value"]), initial=0)
    for _ in range(2):  # a driver that starts again finds the request again
        with TestDriver(app, cast(Any, OtherUsersStorage(own, forbidden))) as driver:
            driver.send("rows", [{"key": "a", "value": 1}])
            if not any("/requests" in item.path for item in own.list("sums")):  # or its answer
                leave_request(Ledger(own, "sums", driver.clock), "rescale", {"partitions": 5})
            for _ in range(3):
                driver.send("rows", [{"key": "a", "value": 1}])
            said = [message for message in caplog.messages if "Permission denied" in message]
            assert len(said) == len(set(said))  # said once, not at each look
            caplog.clear()
    newest = Ledger(own, "sums", SystemClock()).newest()
    assert newest is not None
    assert newest.partitions == partitions


def test_expired_and_unknown_requests_are_refused(tmp_path: Path) -> None:
    app = totals(tmp_path)
    storage = open_storage(str(tmp_path / "state"))
    with TestDriver(app, storage) as driver:
        driver.send("rows", [{"id": 1, "key": "a", "value": 1}])
        old = leave_request(Ledger(storage, "totals", driver.clock), "rescale", {"partitions": 3})
        driver.clock.advance(7 * 86400)  # the app was stopped for a week
        driver.restart()
        odd = leave_request(Ledger(storage, "totals", driver.clock), "explode")
        driver.send("rows", [{"id": 2, "key": "a", "value": 2}])
        texts = {id: answer.text for id in (old.id, odd.id) if (answer := read_answer(storage, "totals", id))}
        assert "expired after 600 s" in texts[old.id]
        assert "does not know requests of kind 'explode'; it knows: drain, rescale" in texts[odd.id]
        assert opened(tmp_path).newest.partitions == 2


def test_a_request_that_comes_back_after_a_power_loss_is_not_carried_out_again(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "state"))
    with TestDriver(totals(tmp_path), storage) as driver:
        driver.send("rows", [{"id": 1, "key": "a", "value": 1}])
        request = leave_request(Ledger(storage, "totals", driver.clock), "rescale", {"partitions": 3})
        whole = storage.get(Paths("totals").request(request.id)) or b""
        driver.send("rows", [{"id": 2, "key": "a", "value": 2}])
        driver.rescale(5)
        storage.put(Paths("totals").request(request.id), whole)
        driver.restart()
        driver.send("rows", [{"id": 3, "key": "a", "value": 3}])
        assert opened(tmp_path).newest.partitions == 5
        assert not [path for path in requests_left(tmp_path) if "answer" not in path.name]


def test_answers_that_no_command_has_read_are_removed_later(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "state"))
    with TestDriver(totals(tmp_path), storage) as driver:
        leave_request(Ledger(storage, "totals", driver.clock), "rescale", {"partitions": 3})
        driver.send("rows", [{"id": 1, "key": "a", "value": 1}])
        assert [path.name.endswith(".answer.json") for path in requests_left(tmp_path)] == [True]
        driver.clock.advance(2 * 3600)
        driver.restart()
        assert requests_left(tmp_path) == []


# --- pure parts ---


def request(**how: Any) -> Request:
    plain = {"format": 1, "id": "5e1f", "kind": "rescale", "host": "a", "pid": 7, "user": "ann", "time": 1000.0}
    return Request(**{**plain, **how})


@pytest.mark.parametrize(
    ("now", "refused"), [(1000.0, False), (1599.0, False), (1601.0, True), (800.0, False), (600.0, True)]
)
def test_a_request_counts_from_when_it_was_left_until_it_expires(now: float, refused: bool) -> None:
    assert (find_refusal(request(), now, ["rescale"]) is not None) is refused


def test_records_forget_requests_only_when_they_have_expired_by_any_clock() -> None:
    held = remember_request({}, request(id="old"), 7, 1000.0)
    held = remember_request(held, request(id="new", time=1700.0), 9, 1700.0)
    assert held.keys() == {"old", "new"}
    assert remember_request(held, request(id="newest", time=2000.0), 12, 2000.0).keys() == {"new", "newest"}
    assert find_refusal(request(id="old"), 2000.0, ["rescale"]) is not None
