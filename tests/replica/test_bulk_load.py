"""A replica that is filled with tables, in one go, is the one that applies the same changes one by one."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millpond as mp
from millpond.log.segment import Change, changes_table
from millpond.replica import fill_progress as filling
from millpond.replica.lmdb_store import RecordChanges, Replica
from millpond.storage import open_storage

names = st.sampled_from([b"", b"v:a", b"v:b", b"w:" + b"x" * 300])
keys = st.one_of(
    st.integers(0, 9).map(lambda n: b'"k%d"' % n),
    st.sampled_from([b'"' + b"l" * n + b'"' for n in (230, 238, 240, 400)]),
    st.text(max_size=3).map(lambda text: b'"%s"' % text.encode().replace(b"\x00", b"")),
)
values = st.one_of(st.binary(max_size=5).map(lambda b: b.hex().encode()), st.none())
times = st.one_of(st.none(), st.none(), st.integers(-5, 5))


def changes() -> Any:
    made = st.builds(Change, keys, names, values, times, times)
    plain = st.builds(Change, keys, names, st.just(b"1"), st.none(), st.none())
    some = st.one_of(st.lists(made, max_size=8), st.lists(plain, max_size=8))
    return some.map(lambda found: sorted({(c.key, c.cell): c for c in found}.values(), key=lambda c: c[:2]))


def held(replica: Replica) -> Any:
    with replica.view() as view:
        cells = list(view.entries("s"))
        due = [list(view.due("s", 100, wall=wall)) for wall in (False, True)]
        return cells, due


@given(st.lists(changes(), max_size=4))
@settings(max_examples=60, deadline=None)
def test_it_holds_the_same_whatever_the_cells_are(parts: list[list[Change]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        one, other = Replica(Path(folder, "one")), Replica(Path(folder, "other"))
        try:
            one.apply(RecordChanges(0, [("s", part) for part in parts]))
            other.apply(RecordChanges(0, [("s", changes_table(part)) for part in parts]))
            assert held(one) == held(other)
        finally:
            one.close()
            other.close()


def test_cells_that_are_not_in_order_are_all_there(tmp_path: Path) -> None:
    replica = Replica(tmp_path / "r")
    table = changes_table([Change(b'"%d"' % n, b"", b"%d" % n) for n in (3, 1, 2)])
    replica.apply(RecordChanges(0, [("s", table)]))
    assert [entry.value for entry in held(replica)[0]] == [b"1", b"2", b"3"]
    replica.close()


def counting() -> mp.App:
    app = mp.App("counting", partitions=2, compact_every=2)
    app.stream("rows", mp.sources.rows([])).key_by("k").aggregate("n", n=mp.count())
    return app


def test_how_long_a_replica_took_is_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.INFO, "millpond")
    with mp.testing.TestDriver(counting(), open_storage("memory://")) as driver:
        for batch in range(5):
            driver.send("rows", [{"k": n} for n in range(batch * 10, batch * 10 + 10)])
        assert "cells" not in caplog.text
        driver.restart(lose_replicas=True)
        assert len(dict(driver.state("n").items())) == 50
        told = [record.getMessage() for record in caplog.records if "cells" in record.getMessage()]
        assert len(told) == 2
        assert all(line.startswith(f"counting: partition {p}: ") for p, line in enumerate(told))
        assert sum(int(line.split(": ")[2].split(" cells")[0]) for line in told) >= 40
        monkeypatch.setattr(filling, "REPORT_SECONDS", 0.0)
        caplog.clear()
        driver.restart(lose_replicas=True)
        assert len(dict(driver.state("n").items())) == 50
        assert " left" in caplog.text or caplog.text.count(" cells, ") == 2
