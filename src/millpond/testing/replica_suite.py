"""The contract of replicas as tests, to run against your own replica.

# test_my_replica.py
import pytest
from millpond.testing.replica_suite import ReplicaSuite

class TestMyReplica(ReplicaSuite):
    @pytest.fixture
    def make_replica(self, tmp_path):
        return lambda storage, app: MyReplica(storage, app, tmp_path / "replica")

    @pytest.fixture
    def held(self):
        return lambda replica, storage: replica.read_all()
"""

from __future__ import annotations

import copy
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from millpond import sources
from millpond.app import App
from millpond.clock import SystemClock
from millpond.errors import Unavailable
from millpond.log.ledger import Ledger
from millpond.log.point import LogPoint
from millpond.log.record import Record
from millpond.replica.protocol import LogReplica, ReplicaPosition
from millpond.storage import Item, Storage, open_storage
from millpond.testing.in_memory_driver import TestDriver

APP = "replicated"
State = dict[str, Any]
MakeReplica = Callable[[Storage, str], LogReplica]
Held = Callable[[LogReplica, Storage], State]


def _add(key: str, row: dict[str, Any], total: int) -> tuple[None, int | None]:
    return None, None if row["v"] is None else total + row["v"]


class GrowingLog:
    """The log of a small app with a step `total` and a table `latest`, and the state after each of its actions.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from millpond.testing.replica_suite import GrowingLog
    >>> log = GrowingLog(Path(tempfile.mkdtemp()))
    >>> log.send([{"k": "a", "v": 1}], [{"k": "a", "v": 2}, {"k": "b", "v": 5}])
    >>> log.newest.kind, log.state("total"), log.state("latest")["b"]
    ('commit', {'a': 3, 'b': 5}, {'k': 'b', 'v': 5})
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.app = App(APP, str(folder / "state"), local_dir=str(folder / "local"))
        rows = self.app.stream("rows", sources.rows([])).key_by("k")
        rows.stateful_map("total", _add, initial=0)
        self.app.table("latest", rows, deleted=lambda row: row["v"] is None)
        self.storage = open_storage(self.app.state_dir)
        self._state: dict[str, State] = {"total": {}, "latest": {}}
        self._states: dict[int, dict[str, State]] = {}

    @property
    def newest(self) -> Record:
        found = Ledger(self.storage, APP, SystemClock()).newest()
        assert found is not None
        return found

    @property
    def point(self) -> LogPoint:
        return LogPoint.of(self.newest)

    def point_at(self, number: int) -> LogPoint:
        record = Ledger(self.storage, APP, SystemClock()).read(number)
        assert record is not None
        return LogPoint.of(record)

    def state(self, step: str, number: int | None = None) -> State:
        """Return what a step holds at the newest record, or at an earlier one."""
        known = self.newest.number if number is None else max(n for n in self._states if n <= number)
        return self._states[known][step]

    @property
    def batches(self) -> list[int]:
        """The numbers of the records after which the state is known, oldest first."""
        return sorted(self._states)

    def send(self, *batches: list[dict[str, Any]]) -> None:
        """Run the app over some batches of rows."""
        with TestDriver(self.app, self.storage, partitions=None if self._states else 3) as driver:
            for rows in batches:
                driver.send("rows", rows)
                for row in rows:
                    key, value = row["k"], row["v"]
                    if value is None:
                        self._state["total"].pop(key, None)
                        self._state["latest"].pop(key, None)
                    else:
                        self._state["total"][key] = self._state["total"].get(key, 0) + value
                        self._state["latest"][key] = row
                self._note()
        self._note()

    def send_some(self, count: int, seed: int = 0) -> None:
        """Run the app over some batches of random rows; some of them delete a key."""
        chosen = random.Random(seed)

        def row() -> dict[str, Any]:
            return {"k": f"k{chosen.randrange(12)}", "v": chosen.choice([None, 1, 2, 3, 4, 5])}

        self.send(*([row() for _ in range(8)] for _ in range(count)))

    def roll_back(self, batch: int) -> None:
        self.app.rollback(batch)
        self._state = copy.deepcopy(self._states[batch])
        self._note()

    def rescale(self, partitions: int) -> None:
        self.app.rescale(partitions)
        self._note()

    def compact(self, keep: int) -> None:
        self.app.compact(keep=keep)
        self._note()

    def clear(self) -> None:
        self.app.clear_state()
        self._state = {"total": {}, "latest": {}}
        self._note()

    def restore(self, path: Path) -> None:
        """Clear the app, and give it the state of a savepoint that is taken before."""
        state = self._state
        self.app.savepoint(path)
        self.clear()
        self.app.restore(path)
        self._state = state
        self._note()

    def copy_to(self, folder: Path) -> GrowingLog:
        """Return a copy of the log, as an administrator makes one of a state directory."""
        shutil.copytree(self.folder / "state", folder / "state")
        other = GrowingLog(folder)
        other._state, other._states = copy.deepcopy(self._state), copy.deepcopy(self._states)
        return other

    def _note(self) -> None:
        self._states[self.newest.number] = copy.deepcopy(self._state)


class Interrupted(BaseException):
    """What ends a catch-up in the middle, as a kill would.

    >>> from millpond.testing.replica_suite import Interrupted
    >>> isinstance(Interrupted(), Exception)
    False
    """


class InterruptedStorage:
    """A storage that raises an error at a read: the first reads, as many as `reads` says, succeed.

    >>> from millpond.storage import open_storage
    >>> from millpond.testing.replica_suite import Interrupted, InterruptedStorage
    >>> InterruptedStorage(open_storage("memory://"), 1, Interrupted()).get("a")
    """

    def __init__(self, inner: Storage, reads: int, error: BaseException) -> None:
        self._inner, self._left, self._error = inner, reads, error
        self.url = inner.url

    def _read(self) -> None:
        if self._left == 0:
            raise self._error
        self._left -= 1

    def get(self, path: str) -> bytes | None:
        self._read()
        return self._inner.get(path)

    def get_range(self, path: str, start: int, length: int) -> bytes | None:
        self._read()
        return self._inner.get_range(path, start, length)

    def list(self, prefix: str, after: str | None = None) -> Iterator[Item]:
        return self._inner.list(prefix, after)

    def put(self, path: str, data: bytes | memoryview) -> None:
        self._inner.put(path, data)

    def put_new(self, path: str, data: bytes | memoryview) -> bool:
        return self._inner.put_new(path, data)

    def delete(self, paths: Iterable[str]) -> None:
        self._inner.delete(paths)


class ReplicaSuite:
    """The contract of `mp.lowlevel.LogReplica`, one test for each promise. Override `make_replica` and `held`.

    >>> from millpond.testing.replica_suite import ReplicaSuite
    >>> class TestMine(ReplicaSuite):
    ...     step = "latest"
    >>> ReplicaSuite.__test__, TestMine.__test__
    (False, True)
    """

    __test__: ClassVar[bool] = False
    step: ClassVar[str] = "total"
    """What the replica holds: the step "total", whose values are numbers, or the table "latest" of dicts."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__test__" not in cls.__dict__:
            cls.__test__ = True

    @pytest.fixture
    def make_replica(self) -> MakeReplica:
        """Override: return a function of a storage and an app's name that makes a replica, always in the same place.

        A second call is what a new process does.
        """
        raise NotImplementedError("override the fixture make_replica")

    @pytest.fixture
    def held(self) -> Held:
        """Override: return a function of a replica and the log's storage that reads what it holds, by key."""
        raise NotImplementedError("override the fixture held")

    def wanted(self, state: State, partitions: int) -> State:
        """Override if the replica holds only some keys: return that part of a state."""
        return state

    @pytest.fixture
    def log(self, tmp_path: Path) -> GrowingLog:
        """A log of eight batches."""
        log = GrowingLog(tmp_path / "log")
        log.send_some(8)
        return log

    def check(self, log: GrowingLog, replica: LogReplica, held: Held) -> None:
        """Assert that the replica has reached the newest record, and holds its state."""
        newest = log.newest
        assert replica.position == ReplicaPosition.of(log.point)
        assert replica.lag(log.point) == 0
        assert held(replica, log.storage) == self.wanted(log.state(self.step), newest.partitions)

    # What it is

    def test_it_is_a_replica(self, log: GrowingLog, make_replica: MakeReplica) -> None:
        assert isinstance(make_replica(log.storage, APP), LogReplica)

    def test_a_new_one_is_before_the_first_record(self, log: GrowingLog, make_replica: MakeReplica) -> None:
        replica = make_replica(log.storage, APP)
        assert replica.position.number == -1
        assert replica.lag(log.point) == log.newest.number + 1

    # Catching up

    def test_it_holds_the_state_at_each_record(self, log: GrowingLog, make_replica: MakeReplica, held: Held) -> None:
        replica = make_replica(log.storage, APP)
        for number in log.batches:
            point = log.point_at(number)
            assert replica.catch_up(point) == replica.position == ReplicaPosition.of(point)  # and never further
            assert held(replica, log.storage) == self.wanted(log.state(self.step, number), point.partitions)
            assert replica.lag(log.point) == log.newest.number - number

    @pytest.mark.parametrize("seed", range(3))
    def test_any_sequence_of_catch_ups_leads_to_the_same_state(
        self, log: GrowingLog, make_replica: MakeReplica, held: Held, seed: int
    ) -> None:
        chosen = random.Random(seed)
        replica = make_replica(log.storage, APP)
        for number in [*sorted(chosen.choices(log.batches, k=5)), log.newest.number]:
            if chosen.random() < 0.5:
                replica = make_replica(log.storage, APP)
            replica.catch_up(log.point_at(number))
            if chosen.random() < 0.3:
                replica.catch_up(log.point_at(number))
        self.check(log, replica, held)

    def test_a_repeated_catch_up_changes_nothing(self, log: GrowingLog, make_replica: MakeReplica, held: Held) -> None:
        replica = make_replica(log.storage, APP)
        replica.catch_up(log.point)
        assert replica.catch_up(log.point) == ReplicaPosition.of(log.point)
        self.check(log, replica, held)

    def test_it_does_not_go_back_to_an_earlier_record(
        self, log: GrowingLog, make_replica: MakeReplica, held: Held
    ) -> None:
        replica = make_replica(log.storage, APP)
        replica.catch_up(log.point)
        assert replica.catch_up(log.point_at(log.batches[2])) == ReplicaPosition.of(log.point)
        self.check(log, replica, held)

    def test_a_new_process_finds_its_position_and_goes_on(
        self, log: GrowingLog, make_replica: MakeReplica, held: Held
    ) -> None:
        make_replica(log.storage, APP).catch_up(log.point)
        before = log.newest.number
        assert make_replica(log.storage, APP).position.number == before
        log.send_some(3, seed=1)
        replica = make_replica(log.storage, APP)
        assert replica.lag(log.point) == log.newest.number - before
        replica.catch_up(log.point)
        self.check(log, replica, held)

    # Trouble

    def test_a_catch_up_that_is_killed_at_any_read_is_continued(
        self, log: GrowingLog, make_replica: MakeReplica, held: Held
    ) -> None:
        make_replica(log.storage, APP).catch_up(log.point_at(log.batches[1]))
        for reads in range(200):
            try:
                make_replica(InterruptedStorage(log.storage, reads, Interrupted()), APP).catch_up(log.point)
                break
            except Interrupted:
                self._check_at_its_position(log, make_replica(log.storage, APP), held)
        else:
            pytest.fail("200 reads were not enough to catch up")
        assert reads > 2, "nothing was read: the replica does not use the storage that it is given"
        self.check(log, make_replica(log.storage, APP), held)

    def _check_at_its_position(self, log: GrowingLog, replica: LogReplica, held: Held) -> None:
        at = replica.position
        point = log.point_at(at.number)
        assert at == ReplicaPosition.of(point)
        assert held(replica, log.storage) == self.wanted(log.state(self.step, at.number), point.partitions)

    def test_a_storage_that_does_not_answer_leaves_it_as_it_is(
        self, log: GrowingLog, make_replica: MakeReplica, held: Held
    ) -> None:
        make_replica(log.storage, APP).catch_up(log.point_at(log.batches[1]))
        silent = InterruptedStorage(log.storage, 2, Unavailable("the storage does not answer"))
        with pytest.raises(Unavailable):
            make_replica(silent, APP).catch_up(log.point)
        self._check_at_its_position(log, make_replica(log.storage, APP), held)
        replica = make_replica(log.storage, APP)
        replica.catch_up(log.point)
        self.check(log, replica, held)

    # Other state than the records before add up to

    @pytest.mark.parametrize("is_kept", [True, False], ids=["caught up before", "empty before"])
    @pytest.mark.parametrize("action", ["rollback", "rescale", "clear", "restore"])
    def test_it_follows(
        self,
        log: GrowingLog,
        make_replica: MakeReplica,
        held: Held,
        tmp_path: Path,
        action: str,
        is_kept: bool,
    ) -> None:
        replica = make_replica(log.storage, APP)
        if is_kept:
            replica.catch_up(log.point)
        match action:
            case "rollback":
                log.roll_back(log.batches[3])
            case "rescale":
                log.rescale(5)
            case "clear":
                log.clear()
            case "restore":
                log.restore(tmp_path / "saved")
        replica.catch_up(log.point)
        self.check(log, replica, held)
        log.send_some(2, seed=2)
        replica.catch_up(log.point)
        self.check(log, replica, held)
        self.check(log, make_replica(log.storage, APP), held)

    def test_one_that_retention_has_passed_begins_again_with_the_manifest(
        self, log: GrowingLog, make_replica: MakeReplica, held: Held
    ) -> None:
        replica = make_replica(log.storage, APP)
        replica.catch_up(log.point_at(log.batches[1]))
        log.compact(keep=1)
        log.send_some(2, seed=3)
        log.compact(keep=1)
        replica.catch_up(log.point)
        self.check(log, replica, held)

    @pytest.mark.parametrize("more", [0, 1, 4], ids=["fewer records", "as many records", "more records"])
    def test_the_history_of_another_copy_of_the_log_is_not_used(
        self, log: GrowingLog, make_replica: MakeReplica, held: Held, tmp_path: Path, more: int
    ) -> None:
        other = log.copy_to(tmp_path / "other")
        log.send_some(2, seed=4)
        make_replica(log.storage, APP).catch_up(log.point)
        for seed in range(more):
            other.send_some(1 if more == 4 else 2, seed=5 + seed)
        replica = make_replica(other.storage, APP)
        replica.catch_up(other.point)
        self.check(other, replica, held)
