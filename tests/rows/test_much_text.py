"""More text than one Arrow array of strings can hold: the limit is lowered, so that little text is much."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millpond as mp
from millpond.codec import Codec
from millpond.log import merge_runs as merge
from millpond.log import segment
from millpond.log.segment import Change, SegmentOrigin
from millpond.steps.windows import panes
from millpond.storage import open_storage

ORIGIN = SegmentOrigin("much", "step", 0, 1)


@pytest.fixture(params=[1, 100, 5000])
def lowered(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> int:
    monkeypatch.setattr(segment, "MOST_TEXT", request.param)
    monkeypatch.setattr(merge, "LARGEST_PART_BYTES", 4 * request.param)
    return int(request.param)


def texts(count: int, size: int = 40) -> list[Change]:
    return [Change(b'"%06d"' % n, b"", b'"%0*d"' % (size, n)) for n in range(count)]


def test_a_merge_holds_its_text_with_large_offsets() -> None:
    """Taking and combining rows makes one array of them, whose 32-bit offsets would end at two gigabytes."""
    merged = merge.newest_cells([segment.changes_table(texts(3)), segment.changes_table(texts(5, 50))])
    assert [merged.schema.field(name).type for name in ("key", "cell", "value")] == [pa.large_string()] * 3
    assert segment.read_changes(merged) == texts(5, 50)


def test_files_have_the_same_types_as_ever(lowered: int) -> None:
    merged = merge.newest_cells([segment.changes_table(texts(200))])
    data = segment.pack_table(merged, ORIGIN)
    assert pq.read_schema(io.BytesIO(data)).remove_metadata() == segment.STATE
    assert segment.unpack_state(bytes(data)) == texts(200)


def test_a_merge_is_cut_into_files_by_their_text(lowered: int) -> None:
    merged = merge.newest_cells([segment.changes_table(texts(200))])
    pieces = list(merge.split_table(merged))
    sizes = [int(segment.text_bytes(piece).sum()) for piece in pieces]
    assert all(size <= max(4 * lowered, 50) for size in sizes)
    assert [change for piece in pieces for change in segment.read_changes(piece)] == texts(200)


def test_the_cells_of_one_key_stay_in_one_file(lowered: int) -> None:
    cells = [Change(b'"k%d"' % (n // 20), b"m:%02d" % (n % 20), b'"%030d"' % n) for n in range(100)]
    pieces = list(merge.split_table(merge.newest_cells([segment.changes_table(cells)])))
    keys = [{change.key for change in segment.read_changes(piece)} for piece in pieces]
    assert sum(map(len, keys)) == 5, "no key is in two"
    again = [change for piece in pieces for change in segment.unpack_state(segment.pack_table(piece, ORIGIN))]  # type: ignore[arg-type]
    assert again == cells


def test_outputs_of_one_call_are_cut_into_arrays(lowered: int) -> None:
    rows = [b'{"n":%d}' % n for n in range(300)]
    block = b"".join(row + b"\n" for row in rows)
    arrays = segment.text_columns(block)
    assert [text.encode() for array in arrays for text in array.to_pylist()] == rows
    assert (len(arrays) > 1) == (len(block) > lowered)
    packed = segment.pack_outputs(range(600), [block, block], ORIGIN, Codec())
    found = segment.unpack_outputs(bytes(packed))
    assert (found.orders.tolist(), found.objects(Codec())) == (list(range(600)), 2 * [{"n": n} for n in range(300)])


def test_a_cell_that_is_there_twice_is_found() -> None:
    one = segment.changes_table(texts(10))
    assert merge.find_doubled_key([one]) is None
    assert merge.find_doubled_key([one, segment.changes_table([Change(b'"x"', b"", b"1")])]) is None
    assert merge.find_doubled_key([one, segment.changes_table(texts(10)[7:8])]) == b'"000007"'
    assert merge.find_doubled_key([segment.changes_table([])]) is None


def an_app(**how: Any) -> mp.App:
    app = mp.App("much", partitions=2, compact_every=2)
    rows = app.stream("rows", mp.sources.rows([])).key_by("key")
    rows.stateful_map("last", lambda key, row, state: (row, row["text"]), initial=None, **how).to(
        "out", mp.sinks.memory()
    )
    return app


def test_state_and_outputs_survive_compaction_a_rescale_and_lost_replicas(lowered: int) -> None:
    storage = open_storage("memory://")
    sent: list[dict[str, str]] = []
    with mp.testing.TestDriver(an_app(), storage) as driver:
        for batch in range(6):
            rows = [{"key": f"k{n % 60}", "text": f"{batch}" * (n % 90)} for n in range(batch, 150)]
            driver.send("rows", rows)
            sent += rows
        expected = {row["key"]: row["text"] for row in sent}
        assert dict(driver.state("last").items()) == expected
        assert driver.output("out") == sent
        driver.restart(lose_replicas=True)
        assert dict(driver.state("last").items()) == expected
        changed = an_app(version=2, migrate={1: lambda state: state + "!"})
        changed.partitions = 5
        driver.restart(changed, lose_replicas=True)
        assert dict(driver.state("last").items()) == {key: text + "!" for key, text in expected.items()}


def test_panes_that_are_more_text_than_one_array_holds_are_written_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    app = mp.App("panes", partitions=1)
    rows = app.stream("rows", mp.sources.rows([]), timestamp="at").key_by("key")
    counts = rows.window("counts", mp.tumbling(10), grace=mp.NO_GRACE).aggregate(n=mp.count())
    counts.to("out", mp.sinks.memory())
    called: list[int] = []

    def too_much(*args: Any) -> Any:
        called.append(1)
        raise pa.ArrowCapacityError("array cannot contain more than 2147483646 bytes")

    monkeypatch.setattr(panes, "typed_column", too_much)
    with mp.testing.TestDriver(app) as driver:
        driver.send("rows", [{"key": f"k{n % 3}", "at": n} for n in range(12)])
        found = [(row["key"], row["n"]) for row in driver.output("out")]
    assert (sorted(found), len(called)) == ([("k0", 4), ("k1", 3), ("k2", 3)], 1)
