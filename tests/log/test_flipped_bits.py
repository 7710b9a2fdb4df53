"""One flipped bit in any file that Millpond writes is an error, or recovered from, or reported; it is never believed.

The kinds of files come from `millpond.log.paths`, so a new kind fails here until it has a case.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import millpond as mp
from millpond.clock import ManualClock, SystemClock
from millpond.driver.commit import Driver
from millpond.driver.settings import Controls, DriverSettings
from millpond.errors import InvalidUse, MillpondError
from millpond.log.heartbeat import Heartbeat
from millpond.log.ledger import Ledger
from millpond.log.paths import FILE_KINDS, SAVEPOINT, Paths, file_kind
from millpond.log.recovery import RecoveryFile, read_recoveries
from millpond.log.requests import Answer, leave_request, read_answer, read_requests, write_answer
from millpond.log.standby_drivers import StandbyFile, standby_drivers
from millpond.messages import StageResults
from millpond.replica.lmdb_store import close_below
from millpond.runtimes.base import Offer
from millpond.runtimes.local import LocalRuntime
from millpond.sources.base import Limit
from millpond.storage import MemoryStorage
from millpond.testing.faults import Copy, FaultyStorage

ROWS: list[Any] = [{"id": i, "key": "abc"[i % 3], "value": i + 1} for i in range(14)]
FEW = 11  # rows that are read before the damage
BITS = 4  # of each file, beside the first and the last one


class Died(BaseException):
    """As if the process had been killed."""


def add(key: str, row: dict[str, Any], total: int) -> tuple[dict[str, Any], int]:
    total += row["value"]
    return {"id": row["id"], "key": key, "total": total}, total


def fold(rows: list[dict[str, Any]]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for row in rows:
        totals[row["key"]] = totals.get(row["key"], 0) + row["value"]
    return totals


class Offering(LocalRuntime):
    """A local runtime to which a streaming DataFrame offers empty batches, with checkpoint files."""

    def __init__(self, storage: FaultyStorage, clock: ManualClock, file: Path) -> None:
        super().__init__(storage, clock)
        self._file, self._number = file, 0

    def offers(self, wait: float) -> list[Offer]:
        self._number += 1
        self._file.write_text(f"offsets of batch {self._number}")
        return [Offer("frame", self._number, {"offsets/0": self._file})]

    def first_stage(self, program: Any, context: Any, tasks: Any, offers: Any, reading: Any = None) -> StageResults:
        return super().first_stage(program, context, tasks, [], reading)


class StandIn:
    """What an app takes for a streaming DataFrame."""

    isStreaming = True


@dataclass
class Bench:
    """An app whose state directory holds files of every kind, and what it came to."""

    folder: Path
    storage: FaultyStorage = field(default_factory=lambda: FaultyStorage(MemoryStorage()))
    clock: ManualClock = field(default_factory=ManualClock)
    rows: list[dict[str, Any]] = field(default_factory=lambda: list(ROWS))

    def app(self, local: str = "local", **how: Any) -> mp.App:
        options = {"keep": 6, "compact_every": 2, **how}
        app = mp.App("flipped", self.storage.url, 1, local_dir=str(self.folder / local), **options)
        app._storage, app._clock = self.storage, self.clock
        totals = app.stream("rows", mp.sources.rows(self.rows)).key_by("key").stateful_map("total", add, initial=0)
        totals.to("out", mp.sinks.files(self.folder / "out"))
        totals.key_by(third=lambda row: row["id"] % 3).aggregate("thirds", n=mp.count()).to("n", mp.sinks.discard())
        return app

    def driver(self, local: str = "local", hook: Any = None) -> Driver:
        app = self.app(local)
        return Driver.start(
            mp.lowlevel.program(app),
            LocalRuntime(self.storage, self.clock),
            self.storage,
            self.clock,
            DriverSettings(
                partitions=1, home=app.local_dir, threaded=False, keep=app.keep, compact_every=app.compact_every
            ),
            Controls(hook=hook),
        )

    def run(self, local: str = "local", hook: Any = None) -> None:
        driver = self.driver(local, hook)
        try:
            while driver.batch(Limit(1, 1 << 30)):
                pass
            driver.release()
        finally:
            driver.close()

    def totals(self, local: str = "local") -> dict[str, int]:
        return dict(self.app(local).state("total").items())

    def delivered(self) -> Counter[tuple[int, int]]:
        found: Counter[tuple[int, int]] = Counter()
        for file in (self.folder / "out").glob("*.jsonl"):
            found.update((row["id"], row["total"]) for row in map(json.loads, file.read_text().splitlines()))
        return found

    def prepare(self, monkeypatch: pytest.MonkeyPatch) -> Copy:
        """Batches, compactions, a rollback, pruned records, long positions, and outputs that are not delivered."""
        monkeypatch.setattr("millpond.driver.results.LARGEST_INLINE_POSITION", 0)
        del self.rows[9:]
        self.run()
        newest = mp.open(self.storage.url, "flipped").newest
        assert newest is not None
        self.app().rollback(newest.number - 3)
        self.rows += ROWS[9:FEW]

        def die(at: str, when: str) -> None:
            if (at, when) == ("deliver", "before") and self.driver_is_at_the_end():
                raise Died

        with pytest.raises(Died):
            self.run(hook=die)
        close_below(str(self.folder / "local"))
        Heartbeat(self.storage, "flipped", "someone", self.clock).beat(7)
        StandbyFile(self.storage, "flipped", "waiting", self.clock).write(7)
        self.rows += ROWS[FEW:]
        return self.storage.copy()

    def driver_is_at_the_end(self) -> bool:
        newest = mp.open(self.storage.url, "flipped").newest
        assert newest is not None and newest.positions["rows"].base is not None
        read = json.loads(self.storage.inner.get(newest.positions["rows"].base.path) or b"{}")
        return bool(read["0"] == FEW)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench(tmp_path)
    made.whole = made.prepare(monkeypatch)  # type: ignore[attr-defined]
    shutil.copytree(tmp_path / "out", tmp_path / "out as it was")
    return made


def begin_again(bench: Bench, number: int) -> str:
    """Everything as it was before the damage, and replicas that know nothing yet."""
    bench.storage.put_back(bench.whole)  # type: ignore[attr-defined]
    shutil.rmtree(bench.folder / "out")
    shutil.copytree(bench.folder / "out as it was", bench.folder / "out")
    return f"local {number}"


def bits(data: bytes, seed: int) -> list[int]:
    chance = random.Random(seed)
    return [0, 8 * len(data) - 1, *(chance.randrange(8 * len(data)) for _ in range(BITS))]


def named_errors(what: Callable[..., object]) -> MillpondError | None:
    """The error that it raised, if it is one of Millpond's; any other one fails the test."""
    try:
        what()
    except MillpondError as error:
        assert str(error)
        return error
    return None


# --- a case for each kind ---


def at_rest(bench: Bench, kind: str) -> None:
    """Flip bits of every file of a kind; look at the state, run to the end, and look again."""
    files = [path for path in bench.whole.files if kind_name(path) == kind]  # type: ignore[attr-defined]
    assert files, f"the bench has no {kind}"
    number = 0
    for path in files:
        for bit in bits(bench.whole.files[path], number):  # type: ignore[attr-defined]
            number += 1
            local = begin_again(bench, number)
            bench.storage.flip(path, bit)
            where = f"{path}, bit {bit}"
            is_reported = not bench.app().verify().ok
            seen: list[dict[str, int]] = []
            unread = named_errors(lambda seen=seen, local=local: seen.append(bench.totals(local)))
            assert unread is not None or seen == [fold(ROWS[:FEW])], f"{where}: a reader saw {seen}"
            failed = named_errors(lambda local=local: bench.run(local))
            if failed is None:
                assert bench.totals(f"{local} and another") == fold(ROWS), where
                assert bench.delivered() == whole_output(), where
            # Who reads the file for the next batch has noticed, or it is reported, or nothing needs the file.
            assert is_reported or failed is None, f"{where}: {failed}, and verify reports nothing"
            close_below(str(bench.folder))


def whole_output() -> Counter[tuple[int, int]]:
    totals: dict[str, int] = {}
    found = Counter()
    for row in ROWS:
        output, totals[row["key"]] = add(row["key"], row, totals.get(row["key"], 0))
        found[output["id"], output["total"]] += 1
    return found


def kind_name(path: str) -> str | None:
    kind = file_kind(path)
    return None if kind is None else kind.name


def heartbeat(bench: Bench) -> None:
    """A damaged heartbeat stops nobody for ever, and is not taken for another one."""
    path = next(path for path in bench.whole.files if kind_name(path) == "heartbeat")  # type: ignore[attr-defined]
    for number, bit in enumerate(bits(bench.whole.files[path], 7)):  # type: ignore[attr-defined]
        local = begin_again(bench, number)
        bench.storage.flip(path, bit)
        named_errors(lambda: bench.app().rescale(2))
        bench.app().rescale(3, force=True)
        assert bench.totals(local) == fold(ROWS[:FEW])
        close_below(str(bench.folder))


def standby_driver(bench: Bench) -> None:
    """A damaged file of a standby driver is reported, and shows no standby driver."""
    path = next(path for path in bench.whole.files if kind_name(path) == "standby driver")  # type: ignore[attr-defined]
    assert len(standby_drivers(bench.storage, "flipped", bench.clock)) == 1
    for number, bit in enumerate(bits(bench.whole.files[path], 8)):  # type: ignore[attr-defined]
        begin_again(bench, number)
        bench.storage.flip(path, bit)
        assert standby_drivers(bench.storage, "flipped", bench.clock) == []
        assert not bench.app().verify().ok


def flip_small_file(bench: Bench, path: str, is_believed: Callable[[], bool]) -> None:
    """A small file that is damaged is reported by `verify`, and is not believed."""
    data = bench.storage.get(path)
    assert data is not None and is_believed()
    for bit in bits(bytes(data), 9):
        bench.storage.put(path, data)
        bench.storage.flip(path, bit)
        assert not is_believed()
        assert not bench.app().verify().ok


def recovery_progress(bench: Bench) -> None:
    RecoveryFile(bench.storage, "flipped", "driver", 7, 0).write(1, 2, 3.0)
    clock = SystemClock()
    flip_small_file(
        bench,
        Paths("flipped").recovery(0),
        lambda: bool(read_recoveries(bench.storage, "flipped", "driver", 7, clock)),
    )


def request(bench: Bench) -> None:
    left = leave_request(Ledger(bench.storage, "flipped", bench.clock), "rescale", {"partitions": 2})
    flip_small_file(bench, Paths("flipped").request(left.id), lambda: read_requests(bench.storage, "flipped") == [left])


def answer(bench: Bench) -> None:
    given = Answer(format=1, id="5e1f", done=True, text="done", time=bench.clock.now())
    write_answer(bench.storage, "flipped", given)
    flip_small_file(
        bench, Paths("flipped").answer("5e1f"), lambda: read_answer(bench.storage, "flipped", "5e1f") == given
    )


def savepoint(bench: Bench) -> None:
    """A damaged savepoint is refused; so is one of whose other files a bit is flipped."""
    saved = FaultyStorage(MemoryStorage())
    bench.app().savepoint(saved.url)
    whole, number = saved.copy(), 0
    assert SAVEPOINT in whole.files and {kind_name(path) for path in whole.files} == {
        "savepoint",
        "state segment",
        "position",
    }
    for path, data in whole.files.items():
        for bit in bits(data, number):
            number += 1
            saved.put_back(whole)
            saved.flip(path, bit)
            other = mp.App("other", MemoryStorage().url, local_dir=str(bench.folder / f"restored {number}"))
            error = named_errors(lambda other=other: other.restore(saved.url))
            assert error is not None, f"{path}, bit {bit}: restored"
            assert not isinstance(error, InvalidUse), error


def spark_file(bench: Bench) -> None:
    """Spark's checkpoint files are read back when a driver starts, and by `verify` and savepoints."""
    storage = FaultyStorage(MemoryStorage())
    app = mp.App("frames", storage.url, 1, local_dir=str(bench.folder / "frames"))
    app._storage, app._clock = storage, bench.clock
    app.stream("frame", StandIn()).key_by("key").aggregate("n", n=mp.count()).to("out", mp.sinks.discard())
    runtime = Offering(storage, bench.clock, bench.folder / "offsets")
    driver = Driver.start(
        mp.lowlevel.program(app),
        runtime,
        storage,
        bench.clock,
        DriverSettings(partitions=1, home=app.local_dir, threaded=False),
    )
    for _ in range(3):
        driver.batch(Limit(1, 1 << 30))
    driver.release()
    assert app.verify().ok
    whole, number = storage.copy(), 0
    files = [path for path in whole.files if kind_name(path) == "spark file"]
    assert files
    newest = max(files)
    for path in files:
        for bit in bits(whole.files[path], number):
            number += 1
            storage.put_back(whole)
            storage.flip(path, bit)
            assert not app.verify().ok, f"{path}, bit {bit}"
            if path == newest:
                assert named_errors(lambda: app.savepoint(MemoryStorage().url)) is not None


def exchange_file(bench: Bench) -> None:
    """Rows between two stages of a batch are read once, in the batch that wrote them."""
    for number in range(BITS):
        local = begin_again(bench, number)
        bench.storage.flip_reads("*/exchange/*", random.Random(number).randrange(10**6))
        error = named_errors(lambda local=local: bench.run(local))
        assert error is not None, "the rows of a batch with a flipped bit were taken"
        bench.storage._flips.clear()
        bench.run(local)
        thirds = {key: value["n"] for key, value in bench.app(local).state("thirds").items()}
        assert thirds == Counter(row["id"] % 3 for row in ROWS)
        assert bench.totals(local) == fold(ROWS) and bench.delivered() == whole_output()
        close_below(str(bench.folder))


CASES: dict[str, Callable[[Bench], None]] = {
    **{
        kind: lambda bench, kind=kind: at_rest(bench, kind)  # type: ignore[misc]
        for kind in ("record", "floor", "state segment", "output segment", "position", "manifest")
    },
    "heartbeat": heartbeat,
    "standby driver": standby_driver,
    "recovery progress": recovery_progress,
    "request": request,
    "answer": answer,
    "savepoint": savepoint,
    "spark file": spark_file,
    "exchange file": exchange_file,
}


@pytest.mark.parametrize("kind", [kind.name for kind in FILE_KINDS])
def test_a_flipped_bit_is_never_believed(bench: Bench, kind: str) -> None:
    assert kind in CASES, f"files of the kind {kind!r} have no case: how is a flipped bit in one of them noticed?"
    CASES[kind](bench)


def test_every_file_that_is_written_has_a_kind(bench: Bench) -> None:
    assert {kind.name for kind in FILE_KINDS} == CASES.keys()
    assert [path for path in bench.whole.files if file_kind(path) is None] == []  # type: ignore[attr-defined]
    written = {call.path for call in bench.storage.calls if call.verb in ("put", "put_new")}
    assert [path for path in written if file_kind(path) is None and "/." not in path] == []


# --- faults of a whole storage ---


def test_a_listing_that_is_out_of_date_loses_and_removes_nothing(bench: Bench) -> None:
    local = begin_again(bench, 0)
    bench.storage.stop_listings()
    error = named_errors(lambda: bench.run(local))
    bench.storage.resume_listings()
    assert error is None or isinstance(error, mp.errors.Fenced)
    bench.run(local)
    assert bench.totals("new") == fold(ROWS) and bench.delivered() == whole_output()
    assert bench.app().verify().ok


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_lost_tail_of_the_ledger_is_noticed_or_read_again(bench: Bench, count: int) -> None:
    begin_again(bench, 0)
    bench.run()
    close_below(str(bench.folder))
    floors = [path for path in bench.storage.copy().files if path.endswith("/floor")]
    lost = [path for path in bench.storage.lose_tail("flipped/ledger", count + len(floors)) if path not in floors]
    assert len(lost) == count
    for path in floors:
        bench.storage.put(path, bench.whole.files[path])  # type: ignore[attr-defined]
    error = named_errors(lambda: bench.run("new"))
    if error is not None:
        assert isinstance(error, mp.errors.Incompatible), error
        driver = Driver.start(
            mp.lowlevel.program(bench.app()),
            LocalRuntime(bench.storage, bench.clock),
            bench.storage,
            bench.clock,
            DriverSettings(partitions=1, home=str(bench.folder / "new"), threaded=False, take_back=["out"]),
        )
        while driver.batch(Limit(1, 1 << 30)):
            pass
        driver.release()
    assert bench.totals("another") == fold(ROWS) and bench.delivered() == whole_output()
