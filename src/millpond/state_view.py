"""State from outside: a step's state at the newest commit or an earlier one, and its history."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Container, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import groupby
from typing import Any

import pyarrow as pa

from millpond.clock import Clock, as_datetime
from millpond.codec import decode_key, encode_key, partition_of
from millpond.errors import Corrupt, InvalidUse, Unavailable
from millpond.log import checked, segment
from millpond.log.ledger import Ledger
from millpond.log.manifest import Manifest, read_manifest
from millpond.log.paths import FOLDERS, Paths
from millpond.log.reach import MOST_READ_ATTEMPTS, batch_number, read_beside_retention, within_reach
from millpond.log.record import Record
from millpond.replica.folders import default_home
from millpond.replica.lending import close_below, delete_replicas
from millpond.replica.local_stores import ONLY_LMDB, LocalStores
from millpond.replica.snapshot import Apart, ReadView, Snapshot, SnapshotReader
from millpond.steps.kind import Step
from millpond.steps.shown_step import ShownStep
from millpond.storage import Storage


class _OutOfReach(Exception):
    """The files of a record were removed while it was being read; there are newer ones."""


@dataclass(frozen=True)
class Moment:
    """One entry of a key's history: the batch, its time, and the value then; a deletion has none.

    >>> import millpond as mp
    >>> from datetime import UTC, datetime
    >>> mp.Moment(7, datetime(2030, 1, 1, tzinfo=UTC), value=3).deleted
    False
    """

    batch: int
    time: datetime
    value: Any
    deleted: bool = False


class StateView:
    """A step's state, read from the log: always committed, never half a batch.

    >>> import millpond as mp
    >>> app = mp.App("orders")
    >>> orders = app.stream("orders", mp.sources.rows([]))
    >>> totals = orders.key_by("who").stateful_map("total", lambda k, r, n: (None, n + r["n"]), initial=0)
    >>> with mp.testing.TestDriver(app) as driver:
    ...     driver.send("orders", [{"who": "ann", "n": 1}])
    ...     driver.send("orders", [{"who": "ann", "n": 2}, {"who": "bob", "n": 5}])
    ...     state = driver.state("total")
    ...     state.get("ann"), state.get("eve", 0), sorted(state.items())
    ...     [moment.value for moment in state.history("ann")]
    (3, 0, [('ann', 3), ('bob', 5)])
    [1, 3]
    """

    def __init__(
        self,
        storage: Storage,
        app: str,
        name: str,
        clock: Clock,
        *,
        step: Step | None = None,
        types: tuple[type, ...] = (),
        home: str | None = None,
        batch: int | None = None,
        stores: LocalStores = ONLY_LMDB,
    ) -> None:
        self._storage, self._app, self._name, self._clock = storage, app, name, clock
        self._step, self._types, self._batch = step, types, batch
        self._shown = ShownStep(app, name, step, types)
        self._ledger = Ledger(storage, app, clock)
        self._stores = stores  # of the app; a replica in a folder of its own is in LMDB
        self._seen: int | None = None
        # The state at an earlier batch has a replica of its own, which is removed with this view. (A TemporaryDirectory
        # would warn when it goes with its owner.)
        self._own_home = None if batch is None else tempfile.mkdtemp(prefix="millpond-at-")
        if self._own_home is not None:
            weakref.finalize(self, shutil.rmtree, self._own_home, ignore_errors=True)
        self._shared_home, self._home = home, home if self._own_home is None else self._own_home

    def _record(self) -> Record | None:
        if self._batch is None:
            found = self._ledger.newest(near=self._seen)  # the second look need not list the whole ledger
            self._seen = None if found is None else found.number
            return found
        newest = self._ledger.newest()
        if newest is None or not 0 <= self._batch <= newest.number:
            raise InvalidUse(f"app {self._app!r}: there is no batch {self._batch}")
        record = within_reach(self._ledger, self._batch, newest)
        if record is None:
            raise InvalidUse(
                f"app {self._app!r}: batch {self._batch} is no longer within reach: App(keep=) says how many are"
            )
        return record

    def _snapshot(self, key: bytes | None = None) -> Snapshot | None:
        """Return what the step has at one record, of all keys or of one; None if there is no record.

        A running app that shares the local folder may catch up some replicas while others are opened. If that happens
        each time, the state is read from replicas in a folder of its own, which are built for this one read.
        """
        later: Record | None = None
        for attempt in range(2 * MOST_READ_ATTEMPTS):
            record, later = later or self._record(), None
            if record is None:
                return None
            try:
                if attempt < MOST_READ_ATTEMPTS:
                    return self._take(record, key, self._home)
                with tempfile.TemporaryDirectory(prefix="millpond-at-", ignore_cleanup_errors=True) as home:
                    return self._take(record, key, home)
            except Apart as apart:
                later = self._ledger.read(apart.newest)
            except _OutOfReach:
                pass
        raise self._overtaken()

    def _take(self, record: Record, key: bytes | None, home: str | None) -> Snapshot:
        self._shown.kind(record)  # raises if there is no such step
        partitions = range(record.partitions) if key is None else [partition_of(key, record.partitions)]
        try:
            stores = self._stores if home == self._shared_home else ONLY_LMDB
            reader = SnapshotReader(self._ledger, home, stores, (self._name,))
            return reader.take(record, partitions, partial(self._reader, key))
        except Corrupt as error:
            if self._batch is not None:
                self._record()  # which says so if the batch is no longer within reach
                raise
            if self._ledger.is_newest(record):
                raise
            raise _OutOfReach(record.number) from error
        finally:
            if home is not None and home != self._shared_home:  # it is removed soon: leave no store open in it
                close_below(home)

    def _reader(self, key: bytes | None, record: Record) -> ReadView:
        return self._shown.reader(key, record, record.time if self._batch is not None else self._clock.now())

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key, or the default.

        >>> import millpond as mp
        >>> mp.App("orders", state_dir="memory://").state("total").get("ann", 0)
        0
        """
        snapshot = self._snapshot(encode_key(key))
        if snapshot is None:
            return default
        with closing(snapshot):
            cells = sorted((cell, value) for rows in snapshot for _, cell, value in rows)
        record = snapshot.record
        return self._shown.value(self._shown.kind(record), key, cells, record) if cells else default

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Yield every key and its value, partition by partition, all of them as of one commit.

        They are copied when the first one is asked for, to a temporary file if there are many.

        >>> import millpond as mp
        >>> list(mp.App("orders", state_dir="memory://").state("total").items())
        []
        """
        snapshot = self._snapshot()
        if snapshot is None:
            return
        record, kind = snapshot.record, self._shown.kind(snapshot.record)
        with closing(snapshot):
            for rows in snapshot:
                for key, cells in groupby(rows, key=lambda cell: cell[0]):
                    known = decode_key(key)
                    yield (
                        known,
                        self._shown.value(kind, known, sorted((cell, value) for _, cell, value in cells), record),
                    )

    def _overtaken(self) -> Unavailable:
        return Unavailable(
            f"app {self._app!r}, step {self._name!r}: the app has removed the files of the record that was being read, "
            "because it has written many since. Read again, or let App(keep=) say that more records stay."
        )

    def history(self, key: Any) -> Iterator[Moment]:
        """Yield every value that a key has had, batch by batch, oldest first; deletions too.

        A rollback, a restore or a migration that gave the key another value is an entry, too, under its own number.

        >>> import millpond as mp
        >>> list(mp.App("orders", state_dir="memory://").state("total").history("ann"))
        []
        """
        what = f"history of {key!r} in step {self._name!r}"
        return read_beside_retention(self._ledger, lambda: self._history(key), what)

    def _history(self, key: Any) -> Iterator[Moment]:
        encoded = encode_key(key)
        newest = self._record()
        if newest is None:
            return
        kind = self._shown.kind(newest)
        held: dict[bytes, bytes] = {}
        floor = max(newest.born, self._ledger.floor())
        if floor > newest.born:  # what was before is compacted, and only what it came to is known
            known = self._before(floor, newest, encoded)
            held = {cell: value for cell, value in known.items() if kind.is_shown(cell)}
        for record in self._ledger.between(floor - 1, newest.number):
            changed, partition = False, partition_of(encoded, record.partitions)  # which may not be that of today
            if record.kind == "rewrite" and record.manifest is not None:
                now = self._in_place(record, partition, encoded, kind)
                changed, held = now is not None and now != held, held if now is None else now
            for part in record.segments.get(self._name, {}).get(partition, []):
                for change in segment.unpack_key(checked.read_file(self._storage, part), encoded):
                    if not kind.is_shown(change.cell):
                        continue
                    changed = changed or held.get(change.cell) != change.value  # else its time alone has moved
                    if change.value is None:
                        held.pop(change.cell, None)
                    else:
                        held[change.cell] = change.value
            if changed:
                value = self._shown.value(kind, key, sorted(held.items()), record) if held else None
                yield Moment(record.number, as_datetime(record.time), value, deleted=not held)

    def _in_place(self, record: Record, partition: int, key: bytes, kind: type[Step]) -> dict[bytes, bytes] | None:
        """Return the cells of a key after a rewrite; None if its manifest is gone."""
        assert record.manifest is not None
        if self._storage.get(record.manifest.path) is None:
            return None
        manifest = read_manifest(self._storage, record.manifest)
        found = _in_manifest(self._storage, manifest, self._name, partition, key)
        return {cell: value for cell, value in found.items() if kind.is_shown(cell)}

    def _before(self, floor: int, newest: Record, key: bytes) -> dict[bytes, bytes]:
        """Return the cells of a key right before the first record that is still there."""
        for record in self._ledger.between(floor - 1, newest.number):
            if record.manifest is not None and self._storage.get(record.manifest.path) is not None:
                manifest = read_manifest(self._storage, record.manifest)
                if manifest.upto == floor - 1:
                    partition = partition_of(key, record.partitions)
                    return _in_manifest(self._storage, manifest, self._name, partition, key)
        return {}

    def at(self, batch: int) -> StateView:
        """Return the same state right after a batch was committed.

        >>> import millpond as mp
        >>> earlier = mp.App("orders", state_dir="memory://").state("total").at(7)
        """
        return StateView(
            self._storage,
            self._app,
            self._name,
            self._clock,
            step=self._step,
            types=self._types,
            batch=batch_number(batch, "at"),
        )

    def to_arrow(self) -> pa.Table:
        """Return all keys and values as a table of two columns; values without a common type are JSON text.

        >>> import millpond as mp
        >>> mp.App("orders", state_dir="memory://").state("total").to_arrow().num_rows
        0
        """
        return self._shown.table(self.items())

    def to_pandas(self) -> Any:
        """Return the same as a pandas DataFrame.

        >>> import millpond as mp
        >>> len(mp.App("orders", state_dir="memory://").state("total").to_pandas())
        0
        """
        return self.to_arrow().to_pandas()

    def to_dataframe(self, spark: Any) -> Any:
        """Return the same as a Spark DataFrame.

        >>> import millpond as mp
        >>> def show(spark): mp.App("orders").state("total").to_dataframe(spark).show()
        """
        return spark.createDataFrame(self.to_arrow())


def _in_manifest(storage: Storage, where: Manifest, step: str, partition: int, key: bytes) -> dict[bytes, bytes]:
    """Return the cells of one key in a manifest."""
    held: dict[bytes, bytes] = {}
    for run in where.runs.get(step, {}).get(partition, []):
        for part in run:
            for change in segment.unpack_key(checked.read_file(storage, part.file), key):
                if change.value is None:
                    held.pop(change.cell, None)
                else:
                    held[change.cell] = change.value
    return held


def forget_replicas(app: str, incarnation: str | None, place: str | None) -> None:
    delete_replicas(place or default_home(), app, incarnation)


def forget_files(storage: Storage, app: str, before: int, exclude: Container[str] = ()) -> None:
    """Delete the segments of the batches before a record; called after a clear, when no record names them."""
    paths = Paths(app)
    for folder in FOLDERS:
        old = [
            item.path
            for item in storage.list(f"{paths.root}/{folder}")
            if (paths.batch(item.path) or before) < before and item.path not in exclude
        ]
        storage.delete(old)
