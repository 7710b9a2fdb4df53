"""Read replicas: they answer from one commit at a time, whatever the app does meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ledger_of_two_steps
import pytest
from ledger_of_two_steps import NAME, bank, some_rows, sums
from processes import Program, eventually

import millpond as mp
from millpond.testing.replica_suite import APP, GrowingLog


@pytest.fixture(autouse=True)
def local_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MILLPOND_LOCAL_DIR", str(tmp_path / "replicas"))
    return tmp_path / "replicas-readers"


@pytest.fixture
def log(tmp_path: Path) -> GrowingLog:
    log = GrowingLog(tmp_path / "log")
    log.send_some(4)
    return log


@pytest.fixture
def live(log: GrowingLog) -> Iterator[mp.Follower]:
    with mp.open(log.app.state_dir, APP).follow(every=None) as live:
        yield live


def read(source: Any, step: str = "total") -> dict[str, Any]:
    return dict(source.state(step).items())


# --- one commit at a time ---


def test_a_replica_answers_from_the_commit_that_it_names(log: GrowingLog, live: mp.Follower) -> None:
    assert live.batch == log.newest.number and live.lag == 0
    assert live.time.timestamp() == pytest.approx(log.newest.time)
    assert read(live) == log.state("total") and read(live, "latest") == log.state("latest")
    before, state = live.batch, log.state("total")
    log.send_some(2, seed=1)
    assert live.batch == before and read(live) == state
    assert live.lag == log.newest.number - before
    assert live.refresh() == live.batch == log.newest.number and live.lag == 0
    assert read(live) == log.state("total")


def test_single_keys_are_read_as_items_are(log: GrowingLog, live: mp.Follower) -> None:
    total = live.state("total")
    assert {key: total.get(key) for key in log.state("total")} == log.state("total")
    assert total.get("nobody") is None and total.get("nobody", 7) == 7
    assert sorted(total.to_arrow().to_pylist(), key=str) == sorted(
        ({"key": key, "value": value} for key, value in log.state("total").items()), key=str
    )
    assert len(total.to_pandas()) == len(log.state("total"))


def test_several_reads_of_one_commit_agree_while_the_replica_goes_on(log: GrowingLog, live: mp.Follower) -> None:
    with live.at_one_commit() as commit:
        before = log.newest.number
        for seed in range(1, 4):
            log.send_some(2, seed=seed)
            live.refresh()
            assert read(live) == log.state("total")
            assert read(commit) == log.state("total", before) and read(commit, "latest") == log.state("latest", before)
        assert commit.batch == before < live.batch
    with pytest.raises(mp.errors.InvalidUse, match=f"the commit of batch {before} was closed"):
        commit.state("total").get("k1")


def test_items_are_of_one_commit_even_if_the_replica_goes_on_between_two_of_them(
    log: GrowingLog, live: mp.Follower
) -> None:
    items, expected = live.state("total").items(), log.state("total")
    found = [next(items)]
    log.send_some(3, seed=1)
    live.refresh()
    assert dict([*found, *items]) == expected != read(live)


def test_an_opened_app_is_refreshed_on_demand(log: GrowingLog) -> None:
    opened = mp.open(log.app.state_dir, APP)
    before, first = log.newest.number, opened.refresh()
    log.send_some(1, seed=1)
    with opened.refresh() as second:
        assert (first.batch, second.batch) == (before, log.newest.number)
        assert read(first) == log.state("total", first.batch) and read(second) == log.state("total")
    first.close()


def test_a_step_that_is_not_there_is_refused_by_name(live: mp.Follower) -> None:
    with pytest.raises(mp.errors.InvalidUse, match="has no step 'totl'; it has: latest, total"):
        live.state("totl")
    with live.at_one_commit() as commit, pytest.raises(mp.errors.InvalidUse, match="has no step 'totl'"):
        commit.state("totl")


# --- whatever happens to the app ---


@pytest.mark.parametrize("action", ["rollback", "rescale", "clear", "restore", "compact"])
def test_a_replica_follows(log: GrowingLog, live: mp.Follower, tmp_path: Path, local_dir: Path, action: str) -> None:
    with live.at_one_commit() as commit:
        before = log.newest.number
        match action:
            case "rollback":
                log.roll_back(log.batches[1])
            case "rescale":
                log.rescale(5)
            case "clear":
                log.clear()
            case "restore":
                log.restore(tmp_path / "saved")
            case "compact":
                log.compact(keep=1)
        live.refresh()
        if action == "clear":
            with pytest.raises(mp.errors.InvalidUse, match="has no step 'total'; it has: none yet"):
                live.state("total")
        else:
            assert read(live) == log.state("total")
        log.send_some(2, seed=2)
        live.refresh()
        assert live.batch == log.newest.number and read(live) == log.state("total")
        assert commit.batch == before and read(commit) == log.state("total", before)
    assert len(list(local_dir.glob("*/*/*/reader-*"))) == 1, "replicas of earlier state were left behind"


def test_a_replica_that_retention_has_passed_begins_again(log: GrowingLog, live: mp.Follower) -> None:
    for seed in range(1, 4):
        log.send_some(3, seed=seed)
        log.compact(keep=1)
    live.refresh()
    assert read(live) == log.state("total")


def test_another_copy_of_the_state_directory_is_followed(log: GrowingLog, live: mp.Follower, tmp_path: Path) -> None:
    other = log.copy_to(tmp_path / "other")
    log.send_some(3, seed=1)
    live.refresh()
    other.send_some(1, seed=2)
    (log.folder / "state").rename(tmp_path / "gone")
    (other.folder / "state").rename(log.folder / "state")
    live.refresh()
    assert live.batch == other.batches[-1] and read(live) == other.state("total", live.batch)


def test_readers_beside_a_running_app_see_only_whole_commits(tmp_path: Path) -> None:
    """The app runs in another process, compacts and prunes; the two steps agree in every commit."""
    program = Program(Path(ledger_of_two_steps.__file__), tmp_path, logs=tmp_path / "logs")
    try:
        eventually(lambda: has_step(tmp_path, "paid"), "a commit")
        wrong: list[Any] = []
        seen: set[int] = set()
        with mp.open(str(tmp_path / "state"), NAME).follow(every=0.01) as live:
            first = live.batch
            done = threading.Event()

            def look() -> None:
                while not done.is_set():
                    with live.at_one_commit() as commit:
                        found = sums(commit)
                        seen.add(commit.batch)
                        if found[0] != found[1]:
                            wrong.append((commit.batch, found))

            threads = [threading.Thread(target=look) for _ in range(2)]
            for thread in threads:
                thread.start()
            try:
                eventually(lambda: program.process.poll() is not None or len(seen) >= 15 or wrong, "commits to be read")
            finally:
                done.set()
                for thread in threads:
                    thread.join()
            assert wrong == [] and live.batch > first, program.output
            (tmp_path / "stop").touch()
            program.succeed()
            live.wait_for(live.batch + live.lag)
            newest = mp.open(str(tmp_path / "state"), NAME)
            assert sums(live) == sums(newest) and live.error is None
    finally:
        program.kill()


def has_step(folder: Path, step: str) -> bool:
    try:
        newest = mp.open(str(folder / "state"), NAME).newest
    except mp.errors.InvalidUse:  # there is no record yet
        return False
    return newest is not None and step in newest.steps


# --- following in the background ---


def test_a_thread_follows_until_the_replica_is_closed(log: GrowingLog) -> None:
    with mp.open(log.app.state_dir, APP).follow(every=0.01) as live:
        for seed in range(1, 4):
            log.send_some(1, seed=seed)
            assert live.wait_for(log.newest.number) == log.newest.number
            assert read(live) == log.state("total")
    with pytest.raises(mp.errors.InvalidUse, match="this read replica was closed"):
        live.state("total")
    assert not any(thread.name == f"millpond-follow-{APP}" for thread in threading.enumerate())


def test_waiting_ends_when_the_time_is_over(log: GrowingLog, live: mp.Follower) -> None:
    number = log.newest.number
    with pytest.raises(
        mp.errors.Unavailable, match=f"waited for batch {number + 1}, and the newest one read is {number}"
    ):
        live.wait_for(number + 1, timeout="10ms")


@pytest.mark.parametrize("batch", ["3", 3.5, None])
def test_waiting_for_what_is_no_batch_is_refused(live: mp.Follower, batch: Any) -> None:
    with pytest.raises(mp.errors.InvalidUse, match="wait_for: expected the number of a batch"):
        live.wait_for(batch, timeout=0)


def test_a_log_that_cannot_be_read_leaves_the_replica_where_it_is(log: GrowingLog) -> None:
    with mp.open(log.app.state_dir, APP).follow(every=0.01) as live:
        state, path = log.state("total"), log.folder / "state" / APP / "ledger" / f"{log.newest.number + 1:020d}.json"
        path.write_bytes(b'{"checksum":"0"}')
        eventually(lambda: live.error is not None, "the error")
        assert isinstance(live.error, mp.errors.Corrupt) and read(live) == state
        with pytest.raises(mp.errors.Unavailable, match=r"the last attempt to catch up has failed: .*ledger record"):
            live.wait_for(live.batch + 1, timeout=0.05)
        path.unlink()
        eventually(lambda: live.error is None, "the end of the error")


@pytest.mark.parametrize("every", ["soon", -1, 0])
def test_an_interval_that_makes_no_sense_is_refused(log: GrowingLog, every: Any) -> None:
    with pytest.raises(mp.errors.InvalidUse, match=r"follow\(every\)"):
        mp.open(log.app.state_dir, APP).follow(every=every)


# --- the files of replicas ---


def test_a_closed_replica_leaves_no_files(log: GrowingLog, local_dir: Path) -> None:
    with mp.open(log.app.state_dir, APP).follow(), mp.open(log.app.state_dir, APP).follow(every=None):
        assert len(list(local_dir.glob("*/"))) >= 2
    assert list(local_dir.iterdir()) == []


def test_what_a_killed_reader_has_left_is_removed_by_the_next(log: GrowingLog, local_dir: Path) -> None:
    code = (
        "import sys, time; import millpond as mp; live = mp.open(sys.argv[1], sys.argv[2]).follow(); "
        "print(live.batch, flush=True); time.sleep(600)"
    )
    reader = subprocess.Popen([sys.executable, "-c", code, log.app.state_dir, APP], stdout=subprocess.PIPE, text=True)
    assert reader.stdout is not None and int(reader.stdout.readline()) == log.newest.number
    with mp.open(log.app.state_dir, APP).follow(every=None):
        assert len(list(local_dir.glob("*.lock"))) == 2, "the folder of a living reader was removed"
    os.kill(reader.pid, signal.SIGKILL)
    reader.wait()
    reader.stdout.close()
    assert len(list(local_dir.glob("*.lock"))) == 1
    with mp.open(log.app.state_dir, APP).follow(every=None):
        assert len(list(local_dir.glob("*.lock"))) == 1
    assert list(local_dir.iterdir()) == []


def test_a_replica_in_a_chosen_folder_is_kept_and_shared(log: GrowingLog, tmp_path: Path, local_dir: Path) -> None:
    opened, place = mp.open(log.app.state_dir, APP), str(tmp_path / "kept")
    with opened.follow(every=None, local_dir=place) as one, opened.follow(every=None, local_dir=place) as two:
        before = one.batch
        log.send_some(2, seed=1)
        assert two.refresh() == log.newest.number and (one.batch, read(one)) == (before, log.state("total", before))
        assert one.refresh() == log.newest.number and read(one) == read(two) == log.state("total")
    assert list((tmp_path / "kept").rglob("data.mdb")) and not local_dir.exists()
    with opened.follow(every=None, local_dir=place) as live:
        assert read(live) == log.state("total")


def test_a_damaged_replica_is_built_again_from_the_log(log: GrowingLog, live: mp.Follower, local_dir: Path) -> None:
    (data,) = local_dir.rglob("data.mdb")
    key = max(log.state("total"))
    with open(data, "r+b") as file:
        whole = file.read()
        at = whole.index(f'"{key}"\0'.encode())
        while at >= 0:
            file.seek(at + len(key) + 4)
            file.write(bytes([whole[at + len(key) + 4] ^ 1]))
            at = whole.find(f'"{key}"\0'.encode(), at + 1)
    assert live.state("total").get(key) == log.state("total")[key]
    assert read(live) == log.state("total") and read(live, "latest") == log.state("latest")


def test_the_app_and_a_reader_share_no_folder(tmp_path: Path, local_dir: Path) -> None:
    app = bank(tmp_path)
    with mp.testing.TestDriver(app, mp.lowlevel.storage(app)) as driver:
        driver.send("rows", some_rows(0))
        with mp.open(app.state_dir, NAME).follow(every=None) as live:
            assert sums(live) == (90, 90)
            driver.send("rows", some_rows(1))
            live.refresh()
            assert sums(live)[0] == sums(live)[1] > 90
            assert list(local_dir.rglob("data.mdb")) and not (tmp_path / "replicas").exists()
