"""What a stream of changes publishes besides changes: existing state, and the difference after a rewrite."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from small_lives import WHOLE, Feed, Held

import millpond as mp
from millpond.clock import SystemClock
from millpond.driver.commit import Driver
from millpond.driver.settings import Controls, DriverSettings
from millpond.replica.lmdb_store import close_below
from millpond.runtimes.local import LocalRuntime
from millpond.storage import open_storage
from millpond.testing import Crashed

STEPS = ["plan", "compute", "commit", "deliver", "acknowledge", "tidy"]
EVERYWHERE = [(at, when) for at in STEPS for when in ("before", "during", "after")]


def add(key: Any, row: Any, total: int) -> tuple[None, int | None]:
    return None, None if row["v"] == 0 else total + row["v"]


class Topic(Held):
    """A sink that has each delivery once, as a compacted topic by key."""

    def table(self) -> dict[Any, Any]:
        held = {row["key"]: row["value"] for row in self.all()}
        return {key: value for key, value in held.items() if value is not None}


class Bench:
    """An app that is started again and again, its input and its topics."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.feed = folder, Feed()
        self.topics: dict[str, Any] = {"table": Topic(), "second": Topic()}
        self.app = self.program()

    def program(self, partitions: int = 3, sinks: tuple[str, ...] = ("table",), **how: Any) -> mp.App:
        keep, every = how.pop("keep", 1000), how.pop("compact_every", 100)
        local = str(self.folder / "local")
        app = mp.App("kept", str(self.folder / "state"), partitions, local_dir=local, keep=keep, compact_every=every)
        keyed = app.stream("rows", self.feed).key_by("k")
        step = how.pop("name", "s")
        keyed.stateful_map(step, how.pop("f", add), initial=0, **how)
        keyed.apply("other", lambda row, state: state.set("v", row["v"]))
        for sink in sinks:
            app.changes(step).to(sink, self.topics[sink])
        return app

    def send(self, **values: int) -> None:
        """One batch of the input, which the next run reads."""
        self.feed.batches.append([{"k": k, "v": v} for k, v in values.items()])

    def run(self, app: mp.App | None = None, crash: tuple[str, str] | None = None, *, is_stopped: bool = False) -> None:
        """Run an app, the last one if none is given, until all is read, it crashes, or it is stopped at once."""
        app = self.app = app or self.app

        def die(step: str, when: str) -> None:
            if (step, when) == crash:
                raise Crashed(step, when)

        storage, clock = open_storage(app.state_dir), SystemClock()
        settings = DriverSettings(
            partitions=app.partitions,
            home=app.local_dir,
            keep=app.keep,
            compact_every=app.compact_every,
            threaded=False,
            bounded=False,
        )
        program = mp.lowlevel.program(app)
        driver = Driver.start(program, LocalRuntime(storage, clock), storage, clock, settings, Controls(hook=die))
        with closing(driver):
            while not is_stopped and driver.batch(WHOLE):
                pass
            driver.release()

    def count(self, sink: str = "table") -> int:
        return len(self.topics[sink].all())

    def since(self, count: int, sink: str = "table") -> dict[Any, Any]:
        """The rows after the first ones, by key."""
        return {row["key"]: row["value"] for row in self.topics[sink].all()[count:]}

    def state(self, step: str = "s") -> dict[Any, Any]:
        return dict(self.app.state(step).items())

    def batches(self) -> list[int]:
        """The numbers of the batches."""
        ledger = sorted((self.folder / "state" / "kept" / "ledger").glob("*.json"))
        return [int(path.stem) for path in ledger if b'"kind":"commit"' in path.read_bytes()]

    def roll_back(self, batches: int) -> None:
        """Go back to the first batches, and forget the rest of the input."""
        self.app.rollback(self.batches()[batches - 1])
        del self.feed.batches[batches:]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield Bench(tmp_path)
    close_below(str(tmp_path))


def test_a_stream_that_is_new_publishes_the_state_that_is_there(bench: Bench) -> None:
    bench.send(a=1, b=2, c=3)
    bench.send(c=0, d=4)
    bench.run(bench.program(sinks=()))
    bench.run(bench.program())
    assert bench.since(0) == {"a": 1, "b": 2, "d": 4}, "without a row of input"
    bench.send(a=1)
    bench.run()
    assert bench.since(3) == {"a": 2}
    bench.run()
    assert bench.count() == 4, "it is published once"


@pytest.mark.parametrize(("at", "when"), EVERYWHERE)
def test_existing_state_is_published_once_whatever_crashes(bench: Bench, at: str, when: str) -> None:
    bench.send(a=1, b=2, c=3)
    bench.run(bench.program(sinks=()))
    bench.send(a=5, b=0, e=6)
    try:
        bench.run(bench.program(), crash=(at, when))
    except Crashed:
        assert bench.count() in (0, 3)
    bench.run()
    assert bench.since(0) == {"a": 6, "c": 3, "e": 6} == bench.state()
    assert bench.count() == 3
    assert len({row["batch"] for row in bench.topics["table"].all()}) == 1, "all of it is of one batch"


def test_a_run_that_is_stopped_before_its_first_batch_leaves_the_rest_to_the_next(bench: Bench) -> None:
    bench.send(a=1, b=2)
    bench.run(bench.program(sinks=()))
    bench.run(bench.program(), is_stopped=True)
    assert bench.count() == 0
    bench.run()
    assert bench.since(0) == {"a": 1, "b": 2}


def test_a_sink_that_is_new_gets_all_state_and_the_others_nothing(bench: Bench) -> None:
    bench.send(a=1, b=2)
    bench.run()
    bench.run(bench.program(sinks=("table", "second")))
    assert bench.since(0, "second") == {"a": 1, "b": 2}
    assert bench.count() == 2


def test_a_stream_that_was_gone_for_a_while_publishes_what_it_has_missed(bench: Bench) -> None:
    bench.send(a=1, b=2, c=3, d=4)
    bench.run()
    bench.send(a=1, b=0, e=5)
    bench.run(bench.program(sinks=()))
    bench.run(bench.program())
    assert bench.since(4) == {"a": 2, "b": None, "e": 5}
    assert bench.topics["table"].table() == bench.state()


@pytest.mark.parametrize("compact_every", [1, 100])
def test_a_rollback_publishes_the_difference(bench: Bench, compact_every: int) -> None:
    for values in ({"a": 1, "b": 2, "c": 3}, {"a": 1}, {"b": 0, "d": 4}, {"c": 1}):
        bench.send(**values)
    bench.run(bench.program(compact_every=compact_every))
    bench.roll_back(2)
    bench.run()
    assert bench.state() == {"a": 2, "b": 2, "c": 3} == bench.topics["table"].table()
    assert bench.since(7) == {"b": 2, "c": 3, "d": None}
    bench.send(a=7)
    bench.run()
    assert bench.since(10) == {"a": 9}


@pytest.mark.parametrize(("at", "when"), EVERYWHERE)
def test_a_difference_is_published_once_whatever_crashes(bench: Bench, at: str, when: str) -> None:
    for values in ({"a": 1, "b": 2, "c": 3}, {"a": 1}, {"b": 0, "d": 4}):
        bench.send(**values)
    bench.run()
    bench.roll_back(2)
    try:
        bench.run(crash=(at, when))
    except Crashed:
        assert bench.count() in (6, 8)
    bench.run()
    assert bench.since(6) == {"b": 2, "d": None}
    assert bench.count() == 8
    assert bench.topics["table"].table() == bench.state()


def test_a_rollback_from_damaged_state_publishes_all_state_with_a_warning(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.send(a=1, b=2)
    bench.send(b=1, c=3)
    bench.run(bench.program(partitions=1))
    newest = max((bench.folder / "state" / "kept" / "steps" / "s").rglob("*.parquet"), key=lambda path: path.name)
    newest.write_bytes(b"damaged")
    bench.roll_back(1)
    with caplog.at_level(logging.WARNING):
        bench.run()
    assert "the state that was published cannot be read" in caplog.text
    assert bench.since(4) == {"a": 1, "b": 2}
    bench.send(a=1)
    bench.run()
    assert bench.since(6) == {"a": 2}


UNDELIVERED = ("deliver", "before")  # committed, and the driver dies before it delivers


@pytest.mark.parametrize("action", ["rollback", "two rollbacks", "clear", "drop outputs", "rollback and rescale"])
def test_outputs_that_are_given_up_before_they_arrive_are_published_with_the_difference(
    bench: Bench, action: str
) -> None:
    bench.send(x=1, y=1, z=1)
    bench.run()
    bench.send(x=1, z=0)
    bench.run()
    bench.send(x=0, y=2, u=7)
    with pytest.raises(Crashed):
        bench.run(crash=UNDELIVERED)
    if action == "clear":
        bench.app.clear_state()
        bench.feed.batches[:] = [[{"k": "u", "v": 7}]]
    elif action == "drop outputs":
        bench.app.drop_outputs("table")
    else:
        bench.app.rollback(bench.batches()[1])
        if action == "two rollbacks":
            bench.app.rollback(bench.batches()[0])
        if action == "rollback and rescale":
            bench.app = bench.program(partitions=5)
    bench.run()
    assert bench.topics["table"].table() == bench.state()


class Ledgered(Topic):
    """A topic whose deliveries can be made void."""

    def rollback(self, deliveries: Any, rows: Any) -> None:
        for delivery in deliveries:
            self.rows.pop((delivery.batch, delivery.partition), None)


@pytest.mark.parametrize("crash", [None, UNDELIVERED])
def test_a_sink_that_was_rolled_back_lacks_what_came_after_it(bench: Bench, crash: tuple[str, str] | None) -> None:
    bench.topics["table"] = Ledgered()
    bench.send(x=1, y=1)
    bench.run(bench.program())
    bench.send(x=1, y=2)
    with suppress(Crashed):
        bench.run(crash=crash)
    bench.app.rollback(bench.batches()[0])
    bench.run()  # reads the rows again: the state is what was published, but the sink has lost it
    assert bench.topics["table"].table() == bench.state() == {"x": 2, "y": 3}
    assert bench.count() == 4


def test_a_step_that_reads_changes_is_rolled_back_with_them(bench: Bench) -> None:
    def program() -> mp.App:
        app = bench.program()
        changes = app.changes("s").key_by("key")
        changes.stateful_map("copy", lambda key, row, held: (None, [*held, row["value"]]), initial=[])
        return app

    bench.send(x=1, y=1)
    bench.run(program())
    bench.send(x=1, y=2)
    bench.run(program())
    bench.app.rollback(bench.batches()[0])
    bench.run(program())
    assert dict(bench.app.state("copy").items()) == {"x": [1, 2], "y": [1, 3]}
    assert bench.topics["table"].table() == bench.state()


def test_two_rollbacks_without_a_run_between_are_one_difference(bench: Bench) -> None:
    for values in ({"a": 1, "b": 2, "c": 3}, {"a": 1}, {"b": 0, "d": 4}):
        bench.send(**values)
    bench.run()
    bench.roll_back(2)
    bench.roll_back(1)
    bench.run()
    assert bench.since(6) == {"a": 1, "b": 2, "d": None}


def test_rows_that_are_read_again_after_a_rollback_are_published_with_the_difference(bench: Bench) -> None:
    for values in ({"a": 1, "b": 2}, {"a": 1}, {"b": 0, "d": 4}):
        bench.send(**values)
    bench.run()
    bench.app.rollback(bench.batches()[0])
    bench.run()
    assert bench.topics["table"].table() == bench.state() == {"a": 2, "d": 4}


@pytest.mark.parametrize("partitions", [1, 2, 5])
def test_a_rescale_publishes_nothing_and_loses_nothing(bench: Bench, partitions: int) -> None:
    bench.send(a=1, b=2, c=3, d=4, e=5)
    bench.run()
    bench.run(bench.program(partitions))
    assert bench.count() == 5
    bench.app.rescale(4)
    bench.run(bench.program(4))
    assert bench.count() == 5
    bench.send(a=1, b=0, f=6)
    bench.run()
    assert bench.since(5) == {"a": 2, "b": None, "f": 6}
    bench.roll_back(1)
    bench.run(bench.program(3))
    assert bench.since(8) == {"a": 1, "b": 2, "f": None}
    assert bench.topics["table"].table() == bench.state()


@pytest.mark.parametrize("partitions", [3, 2])
def test_a_migration_publishes_the_values_that_it_changes(bench: Bench, partitions: int) -> None:
    bench.send(a=1, b=2, c=3, d=4)
    bench.run()
    bench.run(bench.program(partitions, version=2, migrate={1: lambda total: total * 10 if total > 2 else total}))
    assert bench.since(4) == {"c": 30, "d": 40}
    bench.send(c=1)
    bench.run()
    assert bench.since(6) == {"c": 31}
    assert bench.topics["table"].table() == bench.state()


def test_a_lazy_migration_publishes_a_key_when_it_is_met(bench: Bench) -> None:
    bench.send(a=1, b=2)
    bench.run()
    lazy = mp.lazily({1: lambda total: total * 10})
    bench.run(bench.program(version=2, migrate=lazy))
    assert bench.count() == 2
    bench.send(a=1)
    bench.run()
    assert bench.since(2) == {"a": 11}
    bench.run(bench.program(sinks=("table", "second"), version=2, migrate=lazy))
    assert bench.since(0, "second") == {"a": 11, "b": 20} == bench.state()


def test_a_step_under_a_new_name_publishes_nothing_again(bench: Bench) -> None:
    bench.send(a=1, b=2)
    bench.run()
    bench.run(bench.program(name="renamed", renamed_from="s"))
    assert bench.count() == 2
    bench.send(a=1)
    bench.run()
    assert bench.since(2) == {"a": 2}
    bench.roll_back(1)
    bench.run()
    assert bench.since(3) == {"a": 1}


def test_a_step_whose_state_was_dropped_is_published_as_gone(bench: Bench) -> None:
    bench.send(a=1, b=2)
    bench.run()
    admin = mp.admin(bench.app.state_dir, "kept")
    admin.drop_step("other")
    bench.run()
    assert bench.count() == 2, "the state of this step is as it was"
    admin.drop_step("s")
    bench.run()
    assert bench.since(2) == {"a": None, "b": None}


@pytest.mark.parametrize("compact_every", [1, 100])
@pytest.mark.parametrize(("at", "when"), [("never", ""), *EVERYWHERE])
def test_keys_that_a_clear_has_removed_are_published_as_gone(
    bench: Bench, compact_every: int, at: str, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    for values in ({"a": 1, "b": 2}, {"c": 3}, {"d": 4, "c": 1}):
        bench.send(**values)
    bench.run(bench.program(compact_every=compact_every))
    bench.app.clear_state()
    bench.feed.batches[:] = []
    bench.send(a=7, d=4)
    with caplog.at_level(logging.WARNING):
        try:
            bench.run(crash=(at, when))
        except Crashed:
            assert bench.count() in (5, 8)
        bench.run()
    assert not caplog.text
    assert bench.since(5) == {"a": 7, "b": None, "c": None} and bench.count() == 8
    assert bench.topics["table"].table() == bench.state()
    files = [path.name for path in (bench.folder / "state" / "kept" / "steps" / "s").rglob("*.parquet")]
    bench.run()
    assert bench.count() == 8
    left = [path.name for path in (bench.folder / "state" / "kept" / "steps" / "s").rglob("*.parquet")]
    assert 0 < len(left) <= len(files), "the files of the cleared state are removed when they have served"
    assert bench.app.verify().ok and not bench.app.verify().orphans


@pytest.mark.parametrize("folder", ["steps/s", "manifests"])
def test_state_that_is_damaged_can_be_cleared(bench: Bench, folder: str, caplog: pytest.LogCaptureFixture) -> None:
    bench.send(a=1, b=1)
    for _ in range(6):
        bench.send(b=0)
    bench.send(b=3)
    bench.run(bench.program(keep=1, compact_every=1))
    for file in (bench.folder / "state" / "kept" / folder).rglob("*.*"):
        if file.is_file():
            file.write_bytes(b"damaged") if folder == "manifests" else file.unlink()
    bench.app.clear_state()
    with caplog.at_level(logging.WARNING):
        bench.run()
    assert "not which keys were removed since" in caplog.text
    assert bench.topics["table"].table() == bench.state() == {"a": 1, "b": 3}


def test_a_reader_that_is_gone_holds_no_cleared_state(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.send(a=1, b=2)
    bench.run()
    bench.app.clear_state()
    bench.run(bench.program(sinks=()))  # reads the input again
    bench.run()
    segments = list((bench.folder / "state" / "kept" / "steps" / "s").rglob("*.parquet"))
    assert {int(path.name.split("-")[0]) for path in segments} == set(bench.batches()[-1:])
    with caplog.at_level(logging.WARNING):
        bench.run(bench.program())
    assert "not which keys were removed since" in caplog.text
    assert bench.since(2) == {"a": 1, "b": 2}


def test_a_savepoint_that_is_restored_after_a_clear_is_published_as_a_difference(bench: Bench, tmp_path: Path) -> None:
    bench.send(a=1, b=2)
    bench.run()
    bench.app.savepoint(tmp_path / "saved")
    bench.send(b=1, c=3)
    bench.run()
    bench.app.clear_state()
    bench.app.restore(tmp_path / "saved")
    del bench.feed.batches[1:]
    bench.run()
    assert bench.since(4) == {"b": 2, "c": None}
    assert bench.topics["table"].table() == bench.state() == {"a": 1, "b": 2}


def test_state_that_retention_has_removed_is_published_whole_with_a_warning(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    few: dict[str, Any] = {"keep": 1, "compact_every": 1}
    bench.send(a=1, b=2, c=3)
    bench.run(bench.program(**few))
    for _ in range(8):
        bench.send(a=1, b=0)
    bench.run(bench.program(sinks=(), **few))
    with caplog.at_level(logging.WARNING):
        bench.run(bench.program(**few))
    assert "no longer kept" in caplog.text
    assert bench.since(3) == {"a": 9, "c": 3}


def test_many_restarts_without_a_batch_publish_nothing(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.send(a=1, b=2, c=3)
    with caplog.at_level(logging.WARNING):
        for _ in range(6):
            bench.run(bench.program(keep=1, compact_every=1))
    assert bench.count() == 3 and not caplog.text


def test_a_savepoint_that_is_restored_elsewhere_is_published_whole(bench: Bench, tmp_path: Path) -> None:
    bench.send(a=1, b=2)
    bench.run()
    bench.app.savepoint(tmp_path / "saved")
    other = Bench(tmp_path / "other")
    other.app.restore(tmp_path / "saved")
    other.run()
    assert other.since(0) == {"a": 1, "b": 2}


def test_a_rebuild_publishes_what_it_has_corrected() -> None:
    def program(add: Any) -> mp.App:
        app = mp.App("kept", partitions=3)
        app.stream("rows", mp.sources.rows([])).key_by("k").stateful_map("s", add, initial=0)
        app.changes("s").to("table", mp.sinks.memory())
        return app

    def add_twice(key: Any, row: Any, total: int) -> tuple[None, int]:
        return None, total + row["v"] * (2 if key == "a" else 1)

    with mp.testing.TestDriver(program(add)) as driver:
        driver.send("rows", [{"k": "a", "v": 1}, {"k": "b", "v": 2}])
        driver.restart(program(add_twice))
        driver.rebuild("s", switch=True)
        driver.send("rows", [{"k": "c", "v": 1}])
        assert [(row["key"], row["value"]) for row in driver.output("table")[2:]] == [("a", 2), ("c", 1)]


ACTIONS = ["send", "send", "send", "crash", "rollback", "rescale", "migrate", "clear", "leave", "join"]


def random_life(bench: Bench, dice: random.Random) -> Iterator[str]:
    """Random actions on an app; the name of each, after it was done and a run has followed."""
    version, partitions = 1, 3
    sinks: tuple[str, ...] = ("table",)

    def program() -> mp.App:
        migrations = {v: partial(times_ten, bound=v) for v in range(1, version)}
        return bench.program(partitions, sinks, version=version, migrate=migrations, compact_every=3)

    for _ in range(14):
        action = dice.choice(ACTIONS if sinks else [each for each in ACTIONS if each != "clear"])
        if action in ("send", "crash"):
            for _ in range(dice.randrange(1, 4)):
                bench.send(**{dice.choice("abcdefghij"): dice.randrange(4) for _ in range(4)})
        elif action == "rollback":
            with suppress(mp.errors.InvalidUse):
                bench.app.rollback(dice.choice(bench.batches()))
        elif action == "rescale":
            partitions = dice.randrange(1, 6)
        elif action == "migrate":
            version += 1
        elif action == "clear":
            bench.app.clear_state()
        else:
            sinks = () if action == "leave" else ("table",)
        try:
            bench.run(program(), crash=dice.choice(EVERYWHERE) if action == "crash" else None)
        except Crashed:
            what = dice.choice(["run", "rollback", "clear", "rescale"])
            if what == "rollback":
                with suppress(mp.errors.InvalidUse):
                    bench.app.rollback(dice.choice(bench.batches()))
            elif what == "clear" and sinks:
                bench.app.clear_state()
            elif what == "rescale":
                partitions = dice.randrange(1, 6)
            bench.run(program())
            action = f"crash, {what}"
        yield action
    sinks = ("table",)
    bench.run(program())
    yield "end"


def times_ten(total: int, bound: int) -> int:
    return total * 10 if total % (bound + 1) == 0 and total < 10_000 else total


@pytest.mark.parametrize("seed", range(25))
def test_after_any_history_the_rows_kept_by_key_are_the_state(bench: Bench, seed: int) -> None:
    done: list[str] = []
    if seed % 3 == 0:
        bench.topics["table"] = Ledgered()
    bench.send(a=1)
    bench.run(bench.program())
    for action in random_life(bench, random.Random(seed)):
        done.append(action)
        if is_joined(done):
            assert bench.topics["table"].table() == bench.state(), f"seed {seed}: {done}"


def is_joined(done: list[str]) -> bool:
    """Whether the stream is in the program after these actions."""
    return next((action != "leave" for action in reversed(done) if action in ("leave", "join", "end")), True)
