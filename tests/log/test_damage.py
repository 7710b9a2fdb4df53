"""What is damaged in storage is said to be, by its name, and nothing is built on it."""

from __future__ import annotations

import re

import pytest
from ledger_reader import commits, ledger, paths, rows_of
from small_counts import counting, counts

import millpond as mp
from millpond.log.checked import checksum
from millpond.storage import open_storage
from millpond.testing import Crashed, TestDriver
from millpond.testing.faults import FaultyStorage


@pytest.fixture
def storage() -> FaultyStorage:
    return FaultyStorage(open_storage("memory://"))


# --- damage ---


def record_path(storage: FaultyStorage, number: int) -> str:
    return paths(storage, "counts/ledger")[number]


def finished(storage: FaultyStorage, *batches: list[str]) -> None:
    with TestDriver(counting(), storage=storage) as driver:
        for batch in batches:
            driver.send("rows", batch)


def test_an_empty_record_is_corrupt_and_the_text_says_why(storage):
    finished(storage, ["a"], ["b"])
    storage.damage(record_path(storage, 2), "empty")
    text = r"ledger record counts/ledger/0{19}2\.json is empty, as a power loss .* delete that one file while no driver"
    with pytest.raises(mp.errors.Corrupt, match=text):
        TestDriver(counting(), storage=storage)


def test_the_way_out_of_a_damaged_record_is_one(storage):
    finished(storage, ["a"])
    storage.damage(record_path(storage, 1))
    with pytest.raises(mp.errors.Corrupt, match="or delete the app's folder there and read its input again"):
        TestDriver(counting(), storage=storage)
    storage.delete(paths(storage, "counts"))
    with TestDriver(counting(), storage=storage) as driver:
        driver.send("rows", ["a"])
        assert counts(driver) == {"a": 1}


def test_a_byte_flipped_anywhere_in_a_record_is_corrupt(storage):
    finished(storage, ["a"])
    path = record_path(storage, 1)
    whole = storage.get(path)
    for at in range(len(whole)):
        for mask in (0xFF, 0x01, 0x20):
            storage.put(path, whole[:at] + bytes([whole[at] ^ mask]) + whole[at + 1 :])
            with pytest.raises(mp.errors.Corrupt, match=r"0001\.json is damaged: its checksum does not fit"):
                assert mp.open(storage.url, "counts").newest
    for size in (1, 12, 46, 47, len(whole) // 2, len(whole) - 1):
        storage.put(path, whole[:size])
        with pytest.raises(mp.errors.Corrupt, match="is damaged"):
            assert mp.open(storage.url, "counts").newest
    storage.put(path, whole + b" ")
    with pytest.raises(mp.errors.Corrupt, match="is damaged"):
        assert mp.open(storage.url, "counts").newest


@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_a_damaged_record_stops_whoever_needs_it_and_changes_nothing(storage, number):
    finished(storage, ["a"], ["b"], ["c"])
    storage.damage(record_path(storage, number))
    before = {path: storage.get(path) for path in paths(storage, "")}
    # The newest is needed by every driver, an older one by whoever has no replica.
    damaged = pytest.raises(mp.errors.Corrupt, match=re.escape(record_path(storage, number)))
    with damaged, TestDriver(counting(), storage=storage) as driver:
        counts(driver)
    after = {path: storage.get(path) for path in paths(storage, "")}
    assert {path: after[path] for path in before} == before


def test_a_missing_record_is_said_to_be_missing(storage):
    finished(storage, ["a"], ["b"], ["c"])
    gone = record_path(storage, 2)
    storage.delete([gone])
    missing = pytest.raises(mp.errors.Corrupt, match=f"{re.escape(gone)} is missing, and record 4 builds on it")
    with missing, TestDriver(counting(), storage=storage) as driver:
        counts(driver)


def test_a_record_under_another_number_is_corrupt(storage):
    finished(storage, ["a"], ["b"])
    storage.put(record_path(storage, 2), storage.get(record_path(storage, 1)))
    with pytest.raises(mp.errors.Corrupt, match="holds record 1, expected 2: files were renamed or copied"):
        TestDriver(counting(), storage=storage)


def test_a_folder_that_holds_another_apps_ledger_is_refused(storage):
    finished(storage, ["a"])
    for path in paths(storage, "counts"):
        storage.put(path.replace("counts/", "sums/", 1), storage.get(path))
    with pytest.raises(mp.errors.Incompatible, match="the folder of app 'sums' holds the ledger of app 'counts'"):
        TestDriver(counting("sums"), storage=storage)


def test_a_record_of_a_newer_format_asks_for_an_upgrade(storage):
    finished(storage, ["a"])
    path = record_path(storage, 1)
    body = storage.get(path)[len('{"checksum":"') + 32 + 2 :].replace(b'"format":3', b'"format":4', 1)
    storage.put(path, b'{"checksum":"' + checksum(body).encode() + b'",' + body)
    with pytest.raises(
        mp.errors.Incompatible, match="has format 4, and this version of Millpond reads formats 1 to 3: upgrade"
    ):
        TestDriver(counting(), storage=storage)


def segment_of(storage: FaultyStorage, kind: str, batch: int) -> str:
    parts = ledger(storage, "counts")[batch][kind]["count" if kind == "segments" else "out"]
    return parts["0"][0]["path"]


@pytest.mark.parametrize("how", ["flip", "truncate", "empty", "missing"])
def test_a_damaged_state_segment_is_corrupt_by_its_name(storage, how):
    finished(storage, ["a"], ["b"], ["a"])
    path = segment_of(storage, "segments", 2)
    storage.delete([path]) if how == "missing" else storage.damage(path, how)
    words = "is missing, and the ledger needs it" if how == "missing" else "is damaged: expected [0-9]+ bytes"
    with TestDriver(counting(), storage=storage) as driver:
        with pytest.raises(mp.errors.Corrupt, match=f"{re.escape(path)} {words}"):
            counts(driver)
        with pytest.raises(mp.errors.Corrupt, match=f"{re.escape(path)} {words}"):
            driver.send("rows", ["x", "y", "z", "new"])
        assert len(commits(storage, "counts")) == 3, "nothing is built on what is damaged"


def test_a_byte_flipped_anywhere_in_a_segment_is_noticed(storage):
    finished(storage, ["a"], ["a"])
    path = segment_of(storage, "segments", 1)
    whole = storage.get(path)
    with TestDriver(counting(), storage=storage) as driver:
        for at in range(0, len(whole), 7):
            storage.put(path, whole[:at] + bytes([whole[at] ^ 0x01]) + whole[at + 1 :])
            with pytest.raises(mp.errors.Corrupt, match=re.escape(path)):
                counts(driver)
        storage.put(path, whole)
        assert counts(driver) == {"a": 2}, "and put back, all is well"


@pytest.mark.parametrize("how", ["flip", "truncate", "empty", "missing"])
def test_a_damaged_output_segment_is_corrupt_by_its_name_and_not_delivered(storage, how):
    with TestDriver(counting(), storage=storage) as driver:
        driver.send("rows", ["a"])
        driver.crash("deliver", "before")
        with pytest.raises(Crashed):
            driver.send("rows", ["b"])
        path = segment_of(storage, "outputs", 2)
        whole = storage.get(path)
        storage.delete([path]) if how == "missing" else storage.damage(path, how)
        with pytest.raises(mp.errors.Corrupt, match=re.escape(path)):
            driver.restart()
        assert driver.output("out") == [{"key": "a", "n": 1}]
        storage.put(path, whole)
        driver.restart()
        assert driver.output("out") == [{"key": "a", "n": 1}, {"key": "b", "n": 1}]


def test_segments_say_what_they_are(storage):
    finished(storage, ["a"])
    import io

    import pyarrow.parquet as pq

    found = pq.read_metadata(io.BytesIO(storage.get(segment_of(storage, "segments", 1)))).metadata
    assert {key.decode(): value.decode() for key, value in found.items() if key.startswith(b"millpond")} == {
        "millpond.format": "1",
        "millpond.app": "counts",
        "millpond.of": "count",
        "millpond.partition": "0",
        "millpond.batch": "1",
    }
    written = segment_of(storage, "outputs", 1)
    assert rows_of(storage, written) == [{"order": 0, "row": None, "fields": {"key": "a", "n": 1}}]
    found = pq.read_metadata(io.BytesIO(storage.get(written))).metadata
    assert found[b"millpond.format"] == b"2"
    assert found[b"millpond.rows"] == b'{"fields":[["key","str"],["n","int"]]}'
