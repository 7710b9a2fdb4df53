"""Every replica of ours keeps the promises of the protocol."""

from __future__ import annotations

from functools import partial

import pytest

from millpond.clock import SystemClock
from millpond.codec import encode_key, partition_of
from millpond.log.ledger import Ledger
from millpond.log.point import LogPoint
from millpond.replica.folders import table_folder
from millpond.replica.lmdb_store import close_below
from millpond.replica.local_replica import LocalReplica
from millpond.steps.shown_step import ShownStep
from millpond.task.tables import TableChanges
from millpond.testing.replica_suite import APP, ReplicaSuite


class LocalSuite(ReplicaSuite):
    __test__ = False

    @pytest.fixture
    def home(self, tmp_path):
        yield str(tmp_path / "replicas")
        close_below(tmp_path)

    @pytest.fixture
    def held(self):
        def read(replica, storage):
            record = Ledger(storage, APP, SystemClock()).read(replica.position.number)
            assert record is not None
            if not record.steps:
                return {}
            shown = ShownStep(APP, self.step)
            with replica.open(LogPoint.of(record)) as view:
                assert view.position == record.number
                return dict(shown.items(shown.reader(None, record, record.time)(view), record))

        return read


class TestThePartitionOfATask(LocalSuite):
    @pytest.fixture
    def make_replica(self, home):
        return lambda storage, app: LocalReplica.of_partition(storage, app, 1, home)

    def wanted(self, state, partitions):
        return {key: value for key, value in state.items() if partition_of(encode_key(key), partitions) == 1}


class TestAWholeTable(LocalSuite):
    step = "latest"

    @pytest.fixture
    def make_replica(self, home):
        def make(storage, app):
            folder = partial(table_folder, home, table="latest")
            return LocalReplica(storage, app, TableChanges(storage, "latest"), home, folder)

        return make


class TestAReadersCopyOfAnApp(LocalSuite):
    @pytest.fixture
    def make_replica(self, home):
        return lambda storage, app: LocalReplica.of_app(storage, app, home)
