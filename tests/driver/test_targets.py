"""What sinks hold after state directories were copied, drivers were paused, and targets lost files."""

from __future__ import annotations

import json
import logging
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import millpond as mp
from millpond.clock import SystemClock
from millpond.driver.commit import Driver
from millpond.driver.settings import Controls, DriverSettings
from millpond.driver.targets import Targets
from millpond.log.ledger import Ledger
from millpond.replica.lmdb_store import close_below
from millpond.runtimes.local import LocalRuntime
from millpond.sinks.files import FileSink
from millpond.sources.base import Limit
from millpond.storage import open_storage


def add(key: str, row: dict[str, Any], total: int) -> tuple[dict[str, Any], int]:
    return {"id": row["id"], "key": key, "total": total + 1}, total + 1


class Bench:
    """An app over files in a folder, run batch by batch without Spark."""

    def __init__(self, folder: Path, format: Any = "jsonl", *, keep: int = 1000) -> None:
        self.folder, self.format, self.keep = folder, format, keep
        self.sink: Callable[[], Any] = lambda: mp.sinks.files(folder / "out", format=format)
        self.written = 0

    def app(self) -> mp.App:
        app = mp.App(
            "copied",
            str(self.folder / "state"),
            partitions=2,
            local_dir=str(self.folder / "local"),
            keep=self.keep,
            compact_every=2,
        )
        rows = app.stream("rows", mp.sources.files(self.folder / "in.jsonl"))
        rows.key_by("key").stateful_map("total", add, initial=0).to("out", self.sink())
        return app

    def admin(self) -> Any:
        """The operations on the app's state without its program."""
        return mp.admin(str(self.folder / "state"), "copied")

    def void(self) -> dict[str, list[tuple[int, int]]]:
        """What the newest record says is still to be made void."""
        newest = mp.open(str(self.folder / "state"), "copied").newest
        assert newest is not None
        return newest.void

    def add_rows(self, count: int) -> None:
        with open(self.folder / "in.jsonl", "a") as file:
            for i in range(self.written, self.written + count):
                file.write(json.dumps({"id": i, "key": f"k{i % 5}"}) + "\n")
        self.written += count

    def driver(self, hook: Any = None, **how: Any) -> Driver:
        storage, clock, app = open_storage(str(self.folder / "state")), SystemClock(), self.app()
        runtime, home = LocalRuntime(storage, clock), str(self.folder / "local")
        made = Driver.start(
            mp.lowlevel.program(app),
            runtime,
            storage,
            clock,
            DriverSettings(home=home, threaded=False, keep=app.keep, compact_every=app.compact_every, **how),
            Controls(hook=hook),
        )
        return made

    def run(self, rows: int = 0, **how: Any) -> None:
        self.add_rows(rows)
        driver = self.driver(**how)
        while driver.batch(Limit(1, 1 << 30)):
            pass
        driver.release()
        close_below(str(self.folder / "local"))

    def copy_state(self) -> None:
        shutil.copytree(self.folder / "state", self.folder / "copy")

    def put_copy_back(self) -> None:
        close_below(str(self.folder / "local"))
        shutil.rmtree(self.folder / "state")
        shutil.copytree(self.folder / "copy", self.folder / "state")

    def held(self) -> Counter[int]:
        """How often each row's output is in the folder, as a reader of the folder counts."""
        found: Counter[int] = Counter()
        for file in sorted((self.folder / "out").glob(f"*.{self.format}")):
            if self.format == "jsonl":
                found.update(json.loads(line)["id"] for line in file.read_text().splitlines())
            else:
                found.update(pq.read_table(file).column("id").to_pylist())
        return found

    def files(self) -> list[Path]:
        return sorted((self.folder / "out").glob(f"*.{self.format}"))

    def incarnation(self) -> str:
        newest = mp.open(str(self.folder / "state"), "copied").newest
        assert newest is not None
        return newest.incarnation

    def each_once(self) -> Counter[int]:
        return Counter(range(self.written))


@pytest.fixture(params=["jsonl", "parquet"])
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Bench:
    return Bench(tmp_path, request.param)


@pytest.fixture
def lines(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


# --- a target that is ahead of the ledger ---


def lose_ledger_tail(bench: Bench) -> None:
    for record in sorted((bench.folder / "state" / "copied" / "ledger").glob("*.json"))[-9:]:
        record.unlink()


@pytest.mark.parametrize("how", ["copy", "lost tail", "copy that was rescaled", "copy that was compacted"])
def test_an_older_state_directory_stops_before_it_changes_anything(bench: Bench, how: str) -> None:
    bench.run(10)
    bench.copy_state()
    bench.run(9)
    if how == "lost tail":
        lose_ledger_tail(bench)
    else:
        bench.put_copy_back()
    if how == "copy that was rescaled":
        bench.app().rescale(3)
    if how == "copy that was compacted":
        bench.app().compact()
    before = {path: path.read_bytes() for path in (bench.folder / "state").rglob("*.json")}
    with pytest.raises(mp.errors.Incompatible) as error:
        bench.run(11)
    assert "sink 'out'" in str(error.value) and str(bench.folder / "out") in str(error.value)
    assert "run(take_back=['out'])" in str(error.value) and "run(accept=['out'])" in str(error.value)
    assert {path: path.read_bytes() for path in (bench.folder / "state").rglob("*.json")} == before
    assert bench.held() == Counter(range(19))

    bench.run(take_back=["out"])
    assert bench.held() == bench.each_once()
    assert bench.app().verify().ok
    bench.run(3)  # asked once
    assert bench.held() == bench.each_once()


def test_what_another_copy_delivered_stays_if_that_is_accepted(bench: Bench) -> None:
    bench.run(10)
    bench.copy_state()
    bench.run(9)
    bench.put_copy_back()
    bench.run(11, accept=["out"])
    assert bench.held() == bench.each_once() + Counter(range(10, 19))
    bench.run(3)
    assert bench.held() == bench.each_once() + Counter(range(10, 19))


def test_ids_of_a_restored_copy_are_new_for_sinks_that_go_by_them(lines: Bench) -> None:
    taken: dict[str, list[int]] = {}
    lines.sink = lambda: mp.sinks.function(
        lambda rows, delivery: taken.setdefault(delivery.id, [r["id"] for r in rows])
    )
    lines.run(10)
    lines.copy_state()
    lines.run(9)
    lines.put_copy_back()
    lines.run(11)
    assert set(range(30)) == {row for rows in taken.values() for row in rows}
    again = [row for rows in taken.values() for row in rows if row in range(10, 19)]
    assert Counter(again) == Counter([*range(10, 19), *range(10, 19)])


def test_a_copy_that_runs_beside_the_original_stops_the_one_that_comes_second(lines: Bench) -> None:
    lines.run(5)
    lines.add_rows(5)
    original = lines.driver()
    assert original.batch(Limit(1, 1 << 30))
    lines.copy_state()
    (lines.folder / "state").rename(lines.folder / "original")
    (lines.folder / "copy").rename(lines.folder / "state")
    beside = lines.driver()
    (lines.folder / "state").rename(lines.folder / "copy")
    (lines.folder / "original").rename(lines.folder / "state")
    with pytest.raises(mp.errors.Incompatible, match="another copy of it is running"):
        original.batch(Limit(1, 1 << 30))
    beside.close()
    original.close()


@pytest.mark.parametrize("names", [["nothing"], ["out", "out "]])
def test_only_sinks_with_a_register_can_be_accepted_or_taken_back(lines: Bench, names: list[str]) -> None:
    with pytest.raises(mp.errors.InvalidUse, match=r"whose targets remember who delivers to them \(out\)"):
        lines.run(1, accept=names)
    with pytest.raises(mp.errors.InvalidUse, match="got out in both"):
        lines.run(1, accept=["out"], take_back=["out"])


def test_a_damaged_register_is_noticed(lines: Bench) -> None:
    lines.run(3)
    [register] = (lines.folder / "out" / "_millpond").rglob("*.json")
    data = bytearray(register.read_bytes())
    data[-9] ^= 1
    register.write_bytes(data)
    with pytest.raises(mp.errors.Corrupt, match="delete that file"):
        lines.run(1)
    register.unlink()
    lines.run(1)
    assert lines.held() == lines.each_once()


# --- drivers that were paused ---


class Parked:
    """Runs a function in a thread, up to the moment at which something in it waits for `go_on`."""

    def __init__(self) -> None:
        self._reached, self._go = threading.Event(), threading.Event()
        self.error: BaseException | None = None
        self._armed = True

    def wait_here(self) -> None:
        if self._armed and threading.current_thread() is self._thread:
            self._armed = False
            self._reached.set()
            assert self._go.wait(60)

    def run(self, work: Callable[[], Any]) -> None:
        def body() -> None:
            try:
                work()
            except BaseException as error:
                self.error = error

        self._thread = threading.Thread(target=body)
        self._thread.start()
        assert self._reached.wait(60), self.error

    def go_on(self) -> None:
        self._go.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


class SleepyFiles(FileSink):
    """A file sink that can fall asleep right before it writes or empties a delivery."""

    def __init__(self, *args: Any, parked: Parked, at: str, batch: int = -1, **how: Any) -> None:
        super().__init__(*args, **how)
        self._parked, self._at, self._batch = parked, at, batch

    def deliver(self, rows: list[Any], delivery: Any) -> None:
        if self._at == "deliver" and delivery.batch == self._batch:
            self._parked.wait_here()
        super().deliver(rows, delivery)

    def rollback(self, *args: Any) -> None:
        if self._at == "rollback":
            self._parked.wait_here()
        super().rollback(*args)


def sleepy(bench: Bench, at: str, batch: int = -1) -> Parked:
    parked = Parked()
    bench.sink = lambda: SleepyFiles(bench.folder / "out", format=bench.format, parked=parked, at=at, batch=batch)
    return parked


def run_until_parked(bench: Bench, parked: Parked, rows: int) -> None:
    bench.add_rows(rows)

    def work() -> None:
        driver = bench.driver()
        try:
            while driver.batch(Limit(1, 1 << 30)):
                pass
        finally:
            driver.close()

    parked.run(work)


@pytest.mark.parametrize("successor", ["delivers", "rolls back at once"])
def test_a_paused_driver_cannot_deliver_what_was_rolled_back(bench: Bench, successor: str) -> None:
    bench.run(3)
    batch = newest(bench) + 3  # the claim, a commit, and the commit whose delivery sleeps
    parked = sleepy(bench, "deliver", batch)
    run_until_parked(bench, parked, 5)
    if successor == "delivers":
        bench.run()
        assert bench.held() == bench.each_once()
    bench.app().rollback(batch - 1)
    bench.run()
    parked.go_on()
    assert isinstance(parked.error, mp.errors.Fenced)
    assert bench.held() == bench.each_once()
    bench.run(2)
    assert bench.held() == bench.each_once()


def test_the_files_of_what_was_rolled_back_stay_and_keep_their_columns(bench: Bench) -> None:
    bench.run(6)
    before = bench.files()
    bench.app().rollback(newest(bench) - 4)
    emptied = [file for file in before if file in bench.files() and (not file.stat().st_size or is_empty(file))]
    assert bench.files() == before and len(emptied) == 3
    if bench.format == "parquet":
        assert {tuple(pq.read_schema(file).names) for file in before} == {("id", "key", "total")}
    bench.run()
    assert bench.held() == bench.each_once()


def is_empty(file: Path) -> bool:
    return file.suffix == ".parquet" and pq.read_metadata(file).num_rows == 0


@pytest.mark.parametrize("away", ["clear", "drop"])
def test_a_paused_driver_cannot_deliver_what_was_cleared_or_dropped(lines: Bench, away: str) -> None:
    lines.run(3)
    parked = sleepy(lines, "deliver", newest(lines) + 3)
    run_until_parked(lines, parked, 5)
    if away == "clear":
        lines.app().clear_state()
        lines.run()
        expected = lines.each_once() + Counter(range(4))  # the four that were delivered before the app was cleared
    else:
        lines.app().drop_outputs("out")
        lines.run()
        expected = lines.each_once() - Counter([4])
    parked.go_on()
    assert lines.held() == expected


FOLLOWERS: dict[str, Callable[[Bench], Any]] = {
    "clear": lambda bench: bench.app().clear_state(),
    "clear without the program": lambda bench: bench.admin().clear(),
    "clear twice": lambda bench: (bench.admin().clear(), bench.admin().clear()),
    "clear and compact": lambda bench: (bench.admin().clear(), bench.admin().compact(keep=1)),
    "compact": lambda bench: bench.admin().compact(keep=1),
    "rescale": lambda bench: bench.admin().rescale(3),
    "drop a step": lambda bench: bench.admin().drop_step("total"),
    "drop outputs": lambda bench: bench.admin().drop_outputs("out"),
}


@pytest.mark.parametrize("follower", FOLLOWERS)
def test_what_was_rolled_back_is_made_void_whatever_follows_the_rollback(lines: Bench, follower: str) -> None:
    lines.run(4)
    rolled_back = lines.files()[1:]
    lines.admin().rollback(1)
    FOLLOWERS[follower](lines)
    assert lines.void()["out"][0][0] == 2, "every record repeats it until the sinks have done it"
    lines.run()
    assert len(rolled_back) == 3 and not any(file.stat().st_size for file in rolled_back)
    assert not lines.void()


def test_a_paused_driver_cannot_deliver_what_was_rolled_back_before_a_clear(lines: Bench) -> None:
    lines.run(3)
    batch = newest(lines) + 3
    parked = sleepy(lines, "deliver", batch)
    run_until_parked(lines, parked, 5)
    lines.admin().rollback(batch - 1)
    lines.app().clear_state()
    parked.go_on()
    assert lines.held() == Counter(range(4)), "the four that were delivered before"


@pytest.mark.parametrize("compact", [False, True])
def test_a_clear_without_the_program_gives_up_open_outputs_with_the_next_start(lines: Bench, compact: bool) -> None:
    lines.run(3)
    parked = sleepy(lines, "deliver", newest(lines) + 3)
    run_until_parked(lines, parked, 5)
    lines.admin().clear()
    if compact:
        lines.admin().compact(keep=1)
    lines.run()
    parked.go_on()
    assert lines.held() == lines.each_once() + Counter(range(4))


def test_a_rollback_that_is_paused_touches_nothing_newer(bench: Bench) -> None:
    bench.run(6)
    parked = sleepy(bench, "rollback")
    parked.run(lambda: bench.app().rollback(newest(bench) - 3))
    bench.sink = lambda: mp.sinks.files(bench.folder / "out", format=bench.format)
    bench.run(4)
    assert bench.held() == bench.each_once()
    parked.go_on()
    assert parked.error is None
    assert bench.held() == bench.each_once()


def test_a_paused_start_takes_nothing_back_from_its_successor(lines: Bench) -> None:
    lines.run(6)
    mp.admin(str(lines.folder / "state"), "copied").rollback(newest(lines) - 3)
    parked = sleepy(lines, "rollback")
    run_until_parked(lines, parked, 1)
    lines.sink = lambda: mp.sinks.files(lines.folder / "out")
    lines.run(4)
    parked.go_on()
    assert isinstance(parked.error, mp.errors.Fenced)
    assert lines.held() == lines.each_once()


def test_a_paused_driver_does_not_call_a_function_sink(lines: Bench) -> None:
    calls: list[tuple[str, int]] = []
    name = ["first"]

    def sink() -> Any:
        me = name[0]
        return mp.sinks.function(lambda rows, delivery: calls.extend((me, row["id"]) for row in rows))

    lines.sink, parked, seen = sink, Parked(), []

    def hook(step: str, when: str) -> None:
        if (step, when) == ("deliver", "before"):
            seen.append(1)
            if len(seen) == 3:
                parked.wait_here()

    lines.add_rows(5)

    def work() -> None:
        driver = lines.driver(hook)
        while driver.batch(Limit(1, 1 << 30)):
            pass

    parked.run(work)
    name[0] = "second"
    lines.run()
    parked.go_on()
    assert isinstance(parked.error, mp.errors.Fenced)
    assert calls == [("first", 0), ("first", 1), ("second", 2), ("second", 3), ("second", 4)]


# --- a target that is behind the ledger ---


@pytest.mark.parametrize("count", [1, 3])
def test_files_lost_from_the_end_of_a_folder_are_delivered_again(
    bench: Bench, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    bench.run(6)
    for file in bench.files()[-count:]:
        file.unlink()
    with caplog.at_level(logging.WARNING, "millpond"):
        bench.run(2)
    assert bench.held() == bench.each_once()
    assert "has lost what was delivered" in caplog.text


def test_a_folder_that_is_gone_is_filled_again(bench: Bench) -> None:
    bench.run(6)
    bench.app().rollback(newest(bench) - 3)
    bench.run(1)
    shutil.rmtree(bench.folder / "out")
    bench.run(2)
    assert bench.held() == bench.each_once()


def test_a_folder_that_was_put_back_from_a_copy_gets_what_it_lacks(bench: Bench) -> None:
    bench.run(3)
    shutil.copytree(bench.folder / "out", bench.folder / "older")
    bench.run(4)
    for file in bench.files()[3:]:  # somebody reads files and removes them
        file.unlink()
    shutil.rmtree(bench.folder / "out")
    shutil.move(bench.folder / "older", bench.folder / "out")
    bench.run(2)
    assert bench.held() == bench.each_once()


def test_a_driver_that_dies_while_it_fills_a_folder_again_is_followed_by_one_that_goes_on(lines: Bench) -> None:
    lines.run(6)
    shutil.rmtree(lines.folder / "out")

    class Dies(FileSink):
        def deliver(self, rows: list[Any], delivery: Any) -> None:
            super().deliver(rows, delivery)
            raise KeyboardInterrupt

    plain = lines.sink
    lines.sink = lambda: Dies(lines.folder / "out")
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            lines.driver()
    lines.sink = plain
    lines.run(1)
    assert lines.held() == lines.each_once()


@pytest.mark.parametrize("leave", [0, 1])
def test_files_that_a_reader_removed_do_not_come_again(lines: Bench, leave: int) -> None:
    lines.run(6)
    for file in lines.files()[: 6 - leave]:
        file.unlink()
    lines.run(1)
    assert lines.held() == Counter(range(6 - leave, 7))


def test_a_sink_that_is_given_another_folder_begins_there(lines: Bench) -> None:
    lines.run(6)
    lines.sink = lambda: mp.sinks.files(lines.folder / "elsewhere")
    lines.run(2)
    shutil.rmtree(lines.folder / "out")
    (lines.folder / "elsewhere").rename(lines.folder / "out")
    assert lines.held() == Counter([6, 7])


def test_what_the_log_no_longer_has_is_named(tmp_path: Path) -> None:
    bench = Bench(tmp_path, keep=2)
    bench.run(20)
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(mp.errors.Incompatible, match=r"those of batches 0 to \d+ are gone.*run\(accept=\['out'\]\)"):
        bench.run(1)
    bench.run(0, accept=["out"])
    assert bench.held() == Counter([20])


def newest(bench: Bench) -> int:
    return max(int(path.stem) for path in (bench.folder / "state" / "copied" / "ledger").glob("*.json"))


def test_the_newest_file_is_delivered_again_if_it_is_empty(bench: Bench) -> None:
    bench.run(3)
    bench.files()[-1].write_bytes(b"")
    bench.run()
    assert bench.held() == bench.each_once()


def test_a_damaged_parquet_file_is_named_and_delivered_again_once_it_is_deleted(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "parquet")
    bench.run(3)
    damaged = bench.files()[-1]
    damaged.write_bytes(damaged.read_bytes()[:-9])
    with pytest.raises(mp.errors.Corrupt, match=rf"{damaged.name} is damaged"):
        bench.run()
    damaged.unlink()
    bench.run()
    assert bench.held() == bench.each_once()


# --- what was rolled back since a copy was made ---


@pytest.mark.parametrize("to", [0, 2])
@pytest.mark.parametrize("with_a_driver", [True, False])
@pytest.mark.parametrize("delivered", [True, False])
def test_what_a_copy_counts_is_delivered_again_if_it_was_rolled_back_since(
    bench: Bench, to: int, with_a_driver: bool, delivered: bool
) -> None:
    bench.run(3)
    if delivered:
        bench.run(3)
    else:
        bench.add_rows(3)
        driver = bench.driver()
        for _ in range(2):
            driver.batch(Limit(1, 1 << 30))  # the ledger of the copy does not say that the last one is delivered
        close_below(str(bench.folder / "local"))
    bench.copy_state()
    bench.app().rollback(to, force=True)
    if with_a_driver:
        bench.run()
    bench.put_copy_back()
    with pytest.raises(mp.errors.Incompatible, match="take_back"):
        bench.run()
    bench.run(2, take_back=["out"])
    assert bench.held() == bench.each_once()


def test_outputs_that_were_dropped_on_purpose_stay_void_after_a_copy_is_put_back(lines: Bench) -> None:
    lines.run(3)
    lines.add_rows(1)
    sink, lines.sink = lines.sink, lambda: mp.sinks.function(refuse)
    with pytest.raises(mp.errors.StepFailed):
        lines.run()
    lines.sink = sink
    lines.app().drop_outputs("out", force=True)
    lines.run()  # its records do not repeat what was dropped
    lines.copy_state()
    lines.run(1)
    lines.put_copy_back()
    lines.run(take_back=["out"])
    assert lines.held() == Counter({0: 1, 1: 1, 2: 1, 4: 1})


def refuse(rows: list[Any], delivery: Any) -> None:
    raise ValueError("no room")


# --- two faults at once ---


@pytest.mark.parametrize("choice", ["take_back", "accept"])
@pytest.mark.parametrize("batch", [0, 5])
def test_a_copy_from_before_a_rollback_gets_its_outputs_back(bench: Bench, choice: str, batch: int) -> None:
    bench.run(8)
    bench.copy_state()
    bench.app().rollback(batch)
    bench.put_copy_back()
    with pytest.raises(mp.errors.Incompatible):
        bench.run()
    bench.run(2, **{choice: ["out"]})
    assert bench.held() == bench.each_once()
    bench.run(1)
    assert bench.held() == bench.each_once()


def test_a_rollback_that_died_half_way_and_an_older_copy_lose_nothing(lines: Bench) -> None:
    lines.run(8)
    lines.copy_state()

    class Dies(FileSink):
        def rollback(self, deliveries: Any, rows: Any) -> None:
            super().rollback(deliveries[:3], rows)
            raise KeyboardInterrupt

    plain = lines.sink
    lines.sink = lambda: Dies(lines.folder / "out")
    with pytest.raises(KeyboardInterrupt):
        lines.app().rollback(2)
    lines.sink = plain
    lines.put_copy_back()
    lines.run(1, take_back=["out"])
    assert lines.held() == lines.each_once()


def test_a_target_from_before_a_rollback_gives_up_what_was_rolled_back(bench: Bench) -> None:
    bench.run(8)
    shutil.copytree(bench.folder / "out", bench.folder / "older")
    bench.app().rollback(4)
    bench.run(3)
    shutil.rmtree(bench.folder / "out")
    shutil.move(bench.folder / "older", bench.folder / "out")
    bench.run(1)
    assert bench.held() == bench.each_once()


def test_a_target_from_before_what_the_log_has_is_named(tmp_path: Path) -> None:
    bench = Bench(tmp_path, keep=2)
    bench.run(3)
    shutil.copytree(tmp_path / "out", tmp_path / "older")
    bench.run(20)
    shutil.rmtree(tmp_path / "out")
    shutil.move(tmp_path / "older", tmp_path / "out")
    with pytest.raises(mp.errors.Incompatible, match=r"those of batches \d+ to \d+ are gone"):
        bench.run(1)
    bench.run(0, accept=["out"])
    assert bench.held() == Counter([0, 1, 2, 23])


def test_a_sink_without_outputs_for_long_is_not_behind(tmp_path: Path) -> None:
    bench = Bench(tmp_path, keep=2)
    bench.sink = lambda: mp.sinks.memory()
    app = bench.app

    def with_late() -> mp.App:
        made = app()
        made.dead_letters.to("dead", mp.sinks.files(tmp_path / "out"))
        return made

    bench.app = with_late  # type: ignore[method-assign]
    for _ in range(3):
        bench.run(20)
    assert bench.files() == []


@pytest.mark.parametrize("fault", ["deleted", "put back"])
def test_a_target_that_is_replaced_under_a_running_driver_is_noticed(lines: Bench, fault: str) -> None:
    lines.run(3)
    shutil.copytree(lines.folder / "out", lines.folder / "older")
    lines.add_rows(6)
    driver = lines.driver()
    assert driver.batch(Limit(2, 1 << 30))
    shutil.rmtree(lines.folder / "out")
    if fault == "put back":
        shutil.move(lines.folder / "older", lines.folder / "out")
    with pytest.raises(mp.errors.Incompatible, match="deleted or put back from a copy while app 'copied' ran"):
        driver.batch(Limit(2, 1 << 30))
    driver.close()
    lines.run()
    assert lines.held() == lines.each_once()


def test_a_paused_driver_does_not_set_the_register_back(lines: Bench) -> None:
    lines.run(3)
    lines.copy_state()
    parked = Parked()

    class Sleepy(FileSink):
        def register(self, registration: Any) -> None:
            if registration.batch > registration.claim:
                parked.wait_here()
            super().register(registration)

    plain = lines.sink
    lines.sink = lambda: Sleepy(lines.folder / "out")
    run_until_parked(lines, parked, 3)
    lines.sink = plain
    lines.run(4)
    parked.go_on()
    assert lines.held() == lines.each_once()
    lines.put_copy_back()
    with pytest.raises(mp.errors.Incompatible):
        lines.run()
    lines.run(take_back=["out"])
    assert lines.held() == lines.each_once()


class BeforeReading:
    """A storage that calls a function before it reads a path for the first time."""

    def __init__(self, inner: Any, path: str, call: Callable[[], None]) -> None:
        self._inner, self._path, self._call = inner, path, call
        self.was_called = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def get(self, path: str) -> bytes | None:
        if path == self._path and not self.was_called:
            self.was_called = True
            self._call()
        found: bytes | None = self._inner.get(path)
        return found


def test_a_record_that_retention_removes_while_a_register_is_checked_is_not_one_of_another_copy(tmp_path: Path) -> None:
    bench = Bench(tmp_path, keep=2)
    bench.run(1)
    (entry,) = mp.sinks.files(tmp_path / "out").registrations("copied", bench.incarnation(), "out")
    record = f"copied/ledger/{entry.batch:020d}.json"
    inner = open_storage(str(tmp_path / "state"))
    storage: Any = BeforeReading(inner, record, lambda: bench.run(20))
    program = mp.lowlevel.program(bench.app())
    Targets(program, Ledger(storage, "copied", SystemClock())).check(Ledger(inner, "copied", SystemClock()).newest())
    assert storage.was_called and inner.get(record) is None
