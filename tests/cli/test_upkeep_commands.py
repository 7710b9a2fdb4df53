"""`millpond rescale`, `rollback`, `compact`, `verify`, `savepoint`, `restore`, `drop-step` and `changes`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from rich.console import Console

import millpond as mp
from cli.samples import order
from millpond.cli.load_program import load_app
from millpond.cli.progress_bar import progress_bar_if_needed
from millpond.clock import SystemClock
from millpond.driver.commit import Driver
from millpond.driver.settings import DriverSettings
from millpond.log.heartbeat import Heartbeat
from millpond.log.record import Record
from millpond.runtimes.local import LocalRuntime
from millpond.sources.base import Limit
from millpond.storage import open_storage

Millpond = Callable[..., Result]
Running = Callable[..., mp.testing.TestDriver]


def totals(state_dir: str = "state", app: str = "orders") -> dict[str, int]:
    return dict(mp.open(state_dir, app).state("total").items())


def newest(state_dir: str = "state", app: str = "orders") -> Record:
    found = mp.open(state_dir, app).newest
    assert found is not None
    return found


def files() -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in Path("state").rglob("*") if file.is_file()}


@pytest.fixture
def orders(running: Running) -> None:
    """An app of four batches."""
    driver = running()
    for number in range(1, 5):
        driver.send("orders", [order("ann", number), order(f"c{number}", 1)])


pytestmark = pytest.mark.usefixtures("orders")


# --- rescale ---


def test_a_rescale_moves_the_state_and_says_what_it_moved(millpond: Millpond) -> None:
    before = totals()
    result = millpond("rescale", "5")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"app 'orders' in {Path('state').absolute()}: rescaled: 2 to 5 partitions, ")
    assert newest().partitions == 5
    assert totals() == before


@pytest.mark.parametrize(
    "command",
    [
        ("rescale", "5"),
        ("rollback", "2"),
        ("compact", "--keep", "1"),
        ("drop-step", "total"),
        ("savepoint", "saved"),
    ],
    ids=lambda command: command[0],
)
def test_a_dry_run_says_what_would_be_done_and_changes_nothing(millpond: Millpond, command: tuple[str, ...]) -> None:
    before = files()
    result = millpond(*command, "--dry-run")
    assert result.exit_code == 0, result.output
    assert ": would " in result.stdout
    assert files() == before
    assert not Path("saved").exists() or not list(Path("saved").rglob("*.*"))


def test_a_number_that_is_none_is_wrong_usage(millpond: Millpond) -> None:
    assert millpond("rescale", "0").exit_code == 2
    assert millpond("rescale", "many").exit_code == 2
    assert millpond("rollback", "-1").exit_code == 2


@pytest.mark.parametrize(
    "command",
    [("rollback", "2", "--yes"), ("compact",), ("drop-step", "total", "--yes")],
    ids=lambda command: command[0],
)
def test_nothing_is_done_while_the_app_runs(millpond: Millpond, command: tuple[str, ...]) -> None:
    Heartbeat(open_storage("state"), "orders", "d1", SystemClock()).beat(7)
    before = files()
    result = millpond(*command)
    assert result.exit_code == 1
    assert "app 'orders' is running on" in result.stderr
    assert "--force" in result.stderr
    assert files() == before
    result = millpond(*command, "--force")
    assert result.exit_code == 0, result.stderr


def test_a_rescale_asks_the_driver_that_seems_to_run_and_says_so_if_it_does_not_answer(millpond: Millpond) -> None:
    Heartbeat(open_storage("state"), "orders", "d1", SystemClock()).beat(7)
    before = files()
    result = millpond("rescale", "5", "--timeout", "1")
    assert result.exit_code == 1
    assert "the driver of app 'orders' has not carried it out within 1 s" in result.stderr
    assert files() == before
    assert millpond("rescale", "5", "--dry-run").exit_code == 0
    assert millpond("rescale", "5", "--force").exit_code == 0
    assert newest().partitions == 5


# --- rollback ---


def test_a_rollback_from_the_shell_takes_the_state_back_and_says_that_the_sinks_are_not(millpond: Millpond) -> None:
    result = millpond("rollback", "2", "--yes")
    assert result.exit_code == 0, result.output
    assert "back to batch 2" in result.stdout
    assert "totals go back when the program next starts, if they can" in result.stdout
    assert totals() == {"ann": 3, "c1": 1, "c2": 1}


def test_a_person_is_asked_before_a_rollback(millpond: Millpond) -> None:
    before = totals()
    for answer in ("n\n", ""):
        result = millpond("rollback", "2", input=answer)
        assert result.exit_code == 1
        assert f"Take app 'orders' in {Path('state').absolute()} from batch" in result.stderr
        assert "error: app 'orders' was not rolled back. Use --yes to do it without confirmation.\n" in result.stderr
        assert totals() == before
    assert millpond("rollback", "2", input="y\n").exit_code == 0
    assert totals() != before


def test_what_is_not_within_reach_is_refused_before_anyone_is_asked(millpond: Millpond) -> None:
    result = millpond("rollback", "99")
    assert result.exit_code == 1
    assert "error: app 'orders': batch 99 is not within reach" in result.stderr
    assert "Take app" not in result.stderr


PROGRAM = """
import millpond as mp

app = mp.App("shop", state_dir="shop-state", partitions=2)
rows = app.stream("rows", mp.sources.files("in")).key_by("k")
rows.stateful_map("total", lambda k, row, n: ({"k": k, "n": n + 1}, n + 1), initial=0).to("out", mp.sinks.files("out"))
"""


def shop() -> None:
    """The program and what it has done, in three batches."""
    Path("app.py").write_text(PROGRAM)
    Path("in").mkdir()
    for number in range(3):
        Path(f"in/{number}.jsonl").write_text('{"k": "a"}\n{"k": "b"}\n')
    with load_app("app.py") as app:
        clock = SystemClock()
        driver = Driver.start(
            mp.lowlevel.program(app),
            LocalRuntime(mp.lowlevel.storage(app), clock),
            mp.lowlevel.storage(app),
            clock,
            DriverSettings(partitions=2, home=None, threaded=False),
        )
        while driver.batch(Limit(2, 1 << 20)):
            pass
        driver.release()
        driver.close()


def held() -> list[Any]:
    return [json.loads(line) for file in sorted(Path("out").glob("*.jsonl")) for line in file.read_text().splitlines()]


def test_with_the_program_its_sinks_go_back_too(millpond: Millpond) -> None:
    shop()
    assert len(held()) == 6
    result = millpond("rollback", "2", "--program", "app.py", "--yes")
    assert result.exit_code == 0, result.output
    assert "app 'shop'" in result.stdout
    assert "every sink goes back too" in result.stdout
    assert totals("shop-state", "shop") == {"a": 2, "b": 2}
    assert len(held()) == 4


def test_a_program_that_is_not_there_or_another_is_an_error(millpond: Millpond) -> None:
    result = millpond("rollback", "2", "--program", "nothing.py", "--yes")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: --program nothing.py: expected a Python file")
    shop()
    result = millpond("rollback", "2", "--program", "app.py", "--app", "orders", "--yes")
    assert result.exit_code == 1
    assert result.stderr == "error: app.py: expected app 'orders', as --app says, but it is 'shop'\n"
    assert len(held()) == 6


# --- compact and verify ---


def test_compact_merges_the_log_and_leaves_all_that_is_within_reach(millpond: Millpond) -> None:
    before = totals()
    result = millpond("compact")
    assert result.exit_code == 0, result.output
    assert "compacted: " in result.stdout
    assert (totals(), totals_at(2)) == (before, {"ann": 3, "c1": 1, "c2": 1})


def totals_at(batch: int) -> dict[str, int]:
    return dict(mp.open("state", "orders").state("total").at(batch).items())


@pytest.mark.parametrize("keep", ["1", "1ms"])
def test_compact_with_keep_removes_what_lies_before(millpond: Millpond, keep: str) -> None:
    before = totals()
    mp.App("orders").drop_outputs("totals")  # what is not delivered stays within reach, however old
    for _ in range(6):  # one long pause alone makes nothing old
        assert millpond("compact", "--keep", keep).exit_code == 0
    assert totals() == before
    with pytest.raises(mp.errors.InvalidUse, match="no longer within reach"):
        totals_at(2)
    assert millpond("verify").exit_code == 0


def test_a_keep_that_is_none_is_an_error(millpond: Millpond) -> None:
    for wrong in ("soon", "0"):
        result = millpond("compact", "--keep", wrong)
        assert result.exit_code == 1
        assert result.stderr.startswith("error: compact(keep): expected ")


def test_verify_finds_that_all_is_whole(millpond: Millpond) -> None:
    result = millpond("verify")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "all is whole, 0 orphans" in result.stderr
    found = json.loads(millpond("verify", "--format", "json").stdout)
    assert found["ok"] and found["records"] == newest().number + 1 and found["damaged"] == []
    assert found["kinds"]["record"] == found["records"] and found["kinds"]["state segment"] > 0
    for kind, count in found["kinds"].items():
        assert f"checked: {kind}: {count:,}" in result.stderr


def test_verify_lists_what_is_damaged_and_what_is_nobodys(millpond: Millpond) -> None:
    segment = min(Path("state").rglob("steps/**/*.parquet"))
    orphan = segment.with_name(segment.name.replace(".parquet", "x.parquet"))
    orphan.write_bytes(b"of an attempt that failed")
    segment.write_bytes(b"nonsense")
    result = millpond("verify")
    assert result.exit_code == 1
    assert f"damaged: {Path('state').absolute()}: {segment.relative_to('state')} is damaged" in result.stdout
    assert f"orphan: {orphan.relative_to('state')}" in result.stdout
    assert "1 damaged or missing, 1 orphans" in result.stderr
    told = millpond("verify", "--format", "json")
    assert told.exit_code == 1
    found = json.loads(told.stdout)
    assert (found["ok"], len(found["damaged"]), found["orphans"]) == (False, 1, [str(orphan.relative_to("state"))])


@pytest.mark.parametrize("count", [1, 2])
def test_verify_goes_on_if_the_newest_records_are_damaged(millpond: Millpond, count: int) -> None:
    segment, last = min(Path("state").rglob("steps/**/*.parquet")), newest().number
    segment.write_bytes(b"nonsense")
    damaged = sorted(Path("state/orders/ledger").glob("*.json"))[-count:]
    for record in damaged:
        data = bytearray(record.read_bytes())
        data[200] ^= 4
        record.write_bytes(data)
    result = millpond("verify", "--format", "json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert (found["ok"], found["records"], found["orphans"]) == (False, last + 1 - count, [])
    for file in (*damaged, segment):
        assert [text for text in found["damaged"] if f"{file.relative_to('state')} is damaged" in text]
    assert len(found["damaged"]) == count + 1


def test_verify_of_a_ledger_without_a_whole_record_reports_it(millpond: Millpond) -> None:
    for record in Path("state/orders/ledger").glob("*.json"):
        record.write_bytes(b"nonsense")
    found = json.loads(millpond("verify", "--format", "json").stdout)
    assert not found["ok"] and found["records"] == 0 and len(found["damaged"]) == 1


# --- savepoints ---


def test_a_savepoint_begins_another_app(millpond: Millpond) -> None:
    result = millpond("savepoint", "saved")
    assert result.exit_code == 0, result.output
    assert f"saved: batch {newest().number}: " in result.stdout
    assert millpond("restore", "saved", "--state-dir", "elsewhere").exit_code == 0
    assert totals("elsewhere") == totals()
    result = millpond("restore", "saved", "--state-dir", "elsewhere", "--app", "other")
    assert result.stdout.startswith(f"app 'other' in {Path('elsewhere').absolute()}: restored: batch ")
    assert totals("elsewhere", "other") == totals()


def test_a_savepoint_of_an_earlier_batch(millpond: Millpond) -> None:
    assert millpond("savepoint", "saved", "--batch", "2").exit_code == 0
    assert millpond("restore", "saved", "--app", "other").exit_code == 0
    assert totals(app="other") == {"ann": 3, "c1": 1, "c2": 1}


def test_a_restore_over_state_is_refused_and_so_is_one_of_nothing(millpond: Millpond) -> None:
    assert millpond("savepoint", "saved").exit_code == 0
    before = files()
    result = millpond("restore", "saved")
    assert result.exit_code == 1
    assert "holds state of app 'orders' already" in result.stderr
    result = millpond("restore", "nowhere", "--app", "other")
    assert (result.exit_code, files()) == (1, before)
    assert "holds no savepoint" in result.stderr
    assert millpond("restore", "saved", "--app", "other", "--dry-run").exit_code == 0
    assert files() == before


@pytest.mark.parametrize(
    ("text", "told"), [(b"{", "savepoint.json is damaged"), (b'{"format":9}', "a savepoint of format 9")]
)
def test_a_savepoint_that_cannot_be_read_is_an_error(millpond: Millpond, text: bytes, told: str) -> None:
    Path("saved").mkdir()
    Path("saved/savepoint.json").write_bytes(text)
    result = millpond("restore", "saved", "--app", "other")
    assert result.exit_code == 1
    assert told in result.stderr


# --- drop-step and changes ---


def test_a_dropped_step_is_gone(millpond: Millpond) -> None:
    result = millpond("drop-step", "total", input="n\n")
    assert result.exit_code == 1
    assert "Delete step total: " in result.stderr
    assert "error: step 'total' was not dropped. Use --yes to do it without confirmation.\n" in result.stderr
    assert totals()["ann"] == 10
    assert millpond("drop-step", "total", "--yes").exit_code == 0
    with pytest.raises(mp.errors.InvalidUse, match="no step 'total'"):
        totals()
    result = millpond("drop-step", "nothing", "--yes")
    assert result.exit_code == 1
    assert "has no state of 'nothing'" in result.stderr


def test_changes_are_shown_batch_by_batch(millpond: Millpond) -> None:
    lines = [json.loads(line) for line in millpond("changes", "total", "--format", "json").stdout.splitlines()]
    ann = [(line["batch"], line["value"]) for line in lines if line["key"] == "ann"]
    assert ann == [(1, 1), (2, 3), (3, 6), (4, 10)]
    assert lines[0] | {"key": "?", "value": 0} == {
        "batch": 1,
        "time": "2023-11-14T22:13:20Z",
        "key": "?",
        "cell": "",
        "value": 0,
        "deleted": False,
    }
    later = millpond("changes", "total", "--after", "3", "--format", "json").stdout.splitlines()
    assert sorted(json.loads(line)["key"] for line in later) == ["ann", "c4"]


def test_people_read_changes_in_a_table_and_are_told_of_more(millpond: Millpond) -> None:
    result = millpond("changes", "total", "--limit", "3")
    assert result.exit_code == 0
    assert "'ann'" in result.stdout
    assert "There are more than 3 changes" in result.stderr
    assert "There are more" not in millpond("changes", "total").stderr
    result = millpond("changes", "other")
    assert result.exit_code == 1
    assert "has no step 'other'" in result.stderr


def test_a_bar_comes_with_the_first_word_and_goes_with_the_last(tmp_path: Path) -> None:
    for is_terminal in (True, False):
        with (tmp_path / "shown").open("w") as file:
            told = progress_bar_if_needed(
                "bringing the state into shape", Console(file=file, force_terminal=is_terminal, width=100)
            )
            assert file.tell() == 0
            for _ in range(2):
                for done in range(4):
                    told(done, 3)
        text = (tmp_path / "shown").read_text()
        assert ("bringing the state into shape" in text and "3/3" in text) is is_terminal
