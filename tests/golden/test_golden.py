"""State that an earlier version has written is read, continued, moved and restored by this one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from golden import open_columns
from golden.program import NAME, app, feed, run, shown

import millpond as mp
from millpond.log.segment import unpack_outputs

FORMATS = sorted(Path(__file__).parent.glob("format-*"))
MORE = 5  # batches that come after what is there


@pytest.fixture(params=FORMATS, ids=lambda path: path.name)
def golden(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


@pytest.fixture
def place(golden: Path, tmp_path: Path) -> Path:
    """A copy of the state, with the input that it was made from."""
    shutil.copytree(golden / "state", tmp_path / "state")
    feed(tmp_path, range(expected(golden)["batches"]))
    return tmp_path


def expected(golden: Path) -> Any:
    return json.loads((golden / "expected.json").read_text())


def outputs(folder: Path) -> list[str]:
    return sorted(
        f"{file.parent.name}: {line}" for file in folder.rglob("*.jsonl") for line in file.read_text().splitlines()
    )


def straight(golden: Path, folder: Path) -> tuple[Any, list[str]]:
    """What this version makes of all of the input, and what it puts out for the batches that come after."""
    batches = expected(golden)["batches"]
    feed(folder, range(batches))
    made = app(folder, partitions=2)
    run(made)
    before = outputs(folder / "out")
    feed(folder, range(batches, batches + MORE))
    run(made)
    after = outputs(folder / "out")
    for line in before:
        after.remove(line)
    return shown(made), after


def test_there_is_a_state_directory_of_every_format() -> None:
    assert [path.name for path in FORMATS] == ["format-1", "format-2", "format-3"]


def test_nothing_in_it_tells_of_the_machine_that_wrote_it(golden: Path) -> None:
    for file in golden.rglob("*.json"):
        text = file.read_text()
        assert '"/' not in text and "://" not in text, file
    assert not list(golden.rglob("heartbeat.json"))


def test_it_is_whole_and_holds_what_it_held(golden: Path, place: Path) -> None:
    opened = mp.open(str(place / "state"), NAME)
    admin = mp.admin(str(place / "state"), NAME)
    assert admin.verify().ok
    newest = opened.newest
    assert newest is not None and newest.number == expected(golden)["newest"]
    assert shown(app(place)) == expected(golden)["state"]


def test_a_reader_without_the_program_sees_it_too(place: Path) -> None:
    opened = mp.open(str(place / "state"), NAME)
    assert opened.state("prices").get("s2") == {"sku": "s2", "price": 6}
    assert opened.state("reminders").get("c3") == app(place).state("reminders").get("c3")
    assert [change.key for change in opened.changes("accounts")]


@pytest.mark.parametrize("partitions", [None, 1, 3])
def test_it_goes_on_in_as_many_partitions_or_others(
    golden: Path, place: Path, partitions: int | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    batches = expected(golden)["batches"]
    state, out = straight(golden, tmp_path_factory.mktemp("straight"))
    feed(place, range(batches, batches + MORE))
    made = app(place, partitions, compact_every=3)
    run(made)
    assert shown(made) == state
    assert outputs(place / "out") == out
    assert made.verify().ok


@pytest.mark.parametrize("action", ["rescale", "compact", "drop"])
def test_it_can_be_looked_after(golden: Path, place: Path, action: str) -> None:
    admin = mp.admin(str(place / "state"), NAME)
    if action == "rescale":
        admin.rescale(5)
    elif action == "compact":
        admin.compact(keep=1)
    else:
        admin.drop_step("once")
    found, then = shown(app(place)), expected(golden)["state"]
    assert found == (then | {"once": {}} if action == "drop" else then)
    assert admin.verify().ok


def test_its_savepoint_begins_another_app(golden: Path, tmp_path: Path) -> None:
    batches = expected(golden)["batches"]
    state, out = straight(golden, tmp_path / "straight")
    other = tmp_path / "other"
    feed(other, range(batches + MORE))
    made = app(other, partitions=3)
    made.restore(golden / "savepoint")
    assert shown(made) == expected(golden)["state"]
    run(made)
    assert shown(made) == state
    assert outputs(other / "out") == out


def test_an_open_delivery_of_format_1_whose_file_is_there_is_not_delivered_again(tmp_path: Path) -> None:
    """The driver died after the second delivery, and before a record said so."""
    shutil.copytree(Path(__file__).parent / "open-delivery", tmp_path, dirs_exist_ok=True)

    def add(key: str, row: dict[str, Any], total: int) -> tuple[dict[str, Any], int]:
        return {"id": row["id"], "key": key, "total": total + 1}, total + 1

    made = mp.App("open", str(tmp_path / "state"), partitions=1, local_dir=str(tmp_path / "local"))
    rows = made.stream("rows", mp.sources.files(tmp_path / "in.jsonl"))
    rows.key_by("key").stateful_map("total", add, initial=0).to("out", mp.sinks.files(tmp_path / "out"))
    with open(tmp_path / "in.jsonl", "a") as file:
        file.write('{"id": 4, "key": "a"}\n')
    run(made)
    texts = [path.read_text() for path in sorted((tmp_path / "out").glob("*.jsonl"))]
    assert sorted(json.loads(line)["id"] for text in texts for line in text.splitlines()) == [0, 1, 2, 3, 4]


def test_open_deliveries_of_columns_are_delivered_as_they_were(tmp_path: Path) -> None:
    shutil.copytree(open_columns.HERE, tmp_path, dirs_exist_ok=True)
    segments = {
        path.relative_to(tmp_path / "state/columns/outputs").parts[0]: unpack_outputs(path.read_bytes())
        for path in tmp_path.rglob("outputs/**/*.parquet")
    }
    for sink in ("totals", "typed", "shipments"):
        assert segments[sink].uniform is not None
    assert segments["mixed"].columns is not None and segments["mixed"].uniform is None
    run(open_columns.app(tmp_path))
    found = {sink: open_columns.delivered(tmp_path / "out" / sink) for sink in open_columns.SINKS}
    assert found == expected(open_columns.HERE)
