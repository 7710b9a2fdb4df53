"""Standbys and chosen hosts, on simulated hosts: partitions continue where a copy is, and nothing is lost."""

from __future__ import annotations

import logging
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from local_drivers import start_driver
from simulated_hosts import ANY, World, add_up

import millpond as mp
from millpond.log.requests import EXPIRE_SECONDS, leave_request, read_answer
from millpond.replica.follow import READY_RECORDS, UNUSED_SECONDS, FollowJob, HostReport, follow
from millpond.replica.lmdb_store import close_below
from millpond.storage import Storage, open_storage


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def stores(world: World, host: str) -> list[Path]:
    return sorted(Path(world.hosts.home(host)).rglob("data.mdb"))


def flip_byte(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


def test_every_partition_has_a_ready_standby_on_another_host_after_the_first_batches(world: World) -> None:
    for _ in range(3):
        world.send()
    assert sorted(world.primary) == list(range(6))
    for partition, hosts in world.ready.items():
        assert len(hosts) == 1 and hosts != [world.primary[partition]]
    for host in world.hosts.alive:
        assert len(stores(world, host)) == 4, "two partitions that it computes, and two standbys"


def test_a_lost_host_is_replaced_by_the_standbys_without_a_read_of_the_log_and_the_log_says_so(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        world.send()
    before, standby = world.primary, world.standby
    world.hosts.kill("host-1")
    world.storage.segments_read("sums")
    read: list[str] = []
    world.between = lambda partition: read.extend(world.storage.segments_read("sums"))
    with caplog.at_level(logging.WARNING):
        world.send()
    assert len(read) <= 6, "the batch reads the changes of one record; other standbys are built after it"
    moved = [partition for partition, host in before.items() if host == "host-1"]
    assert moved and all(world.primary[p] == standby[p][0] for p in moved)
    lines = [record.message for record in caplog.records]
    assert "sums: host host-1 is gone" in lines
    takeovers = [line for line in lines if " moved from host-1 to " in line]
    assert takeovers and all("from a standby, " in line and " behind" in line for line in takeovers)
    world.check()


def test_a_task_that_runs_on_a_host_without_a_copy_gives_the_batch_back_and_it_runs_on_the_standby(
    world: World,
) -> None:
    for _ in range(3):
        world.send()
    before, standby = world.primary, world.standby
    lost = before[3]

    def kill_in_the_middle(partition: int) -> None:
        if partition == 2 and lost in world.hosts.alive:
            world.hosts.kill(lost)
            third = next(host for host in world.hosts.alive if host != standby[3][0])
            world.hosts.detours[3] = third

    world.between = kill_in_the_middle
    world.storage.segments_read("sums")
    world.send()
    assert world.primary[3] == standby[3][0]
    assert len(world.storage.segments_read("sums")) <= 3 * 6
    world.check()


def test_a_detour_to_a_busy_cluster_does_not_build_state_from_the_log(world: World) -> None:
    for _ in range(3):
        world.send()
    third = ({*world.hosts.alive} - {world.primary[0], *world.standby[0]}).pop()
    count = len(stores(world, third))
    world.hosts.detours[0] = third
    before = world.primary
    world.send()
    assert world.primary == before
    assert len(stores(world, third)) == count
    world.check()


def test_partitions_that_do_not_run_where_they_were_laid_are_laid_again(world: World) -> None:
    for _ in range(3):
        world.send()
    before = world.primary
    world.hosts.strays[0] = world.standby[0][0]
    world.send()
    assert world.primary[0] != before[0]
    for _ in range(3):
        world.clock.advance(60)
        world.send()
    assert world.primary == before
    world.check()


def test_a_batch_that_is_always_sent_to_the_wrong_host_is_computed_there_in_the_end(world: World) -> None:
    world.send()
    third = ({*world.hosts.alive} - {world.primary[0], *world.standby[0]}).pop()

    def always(partition: int) -> None:
        world.hosts.detours[0] = third

    always(0)
    world.between = always
    world.send()
    world.between = lambda partition: None
    world.hosts.detours.clear()
    world.check()


def test_losing_both_copies_recovers_from_the_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        world.send()
    partition = 0
    for host in (world.primary[partition], world.standby[partition][0]):
        world.hosts.kill(host, lose_disk=True)
    with caplog.at_level(logging.WARNING):
        world.send()
    assert any("from the log" in record.message for record in caplog.records)
    world.check()


def test_a_host_whose_disk_was_wiped_gives_its_partitions_to_the_standbys(world: World) -> None:
    for _ in range(3):
        world.send()
    before, standby = world.primary, world.standby
    close_below(world.hosts.home("host-0"))
    shutil.rmtree(world.hosts.home("host-0"))
    world.send()
    for partition, host in before.items():
        if host == "host-0":
            assert world.primary[partition] == standby[partition][0]
    world.send()
    world.send()
    assert all(len(hosts) == 1 for hosts in world.ready.values()), "standbys were built again"
    world.check()


def test_a_damaged_standby_is_rebuilt_in_the_background_before_it_is_used(world: World) -> None:
    for _ in range(3):
        world.send()
    standby = world.standby[0][0]
    damaged = [path for path in stores(world, standby) if "00000-of" in str(path)]
    for path in damaged:
        flip_byte(path)
    world.send()
    assert world.ready[0] == [standby]
    rebuilt = [path for path in stores(world, standby) if "00000-of" in str(path)]
    assert rebuilt != damaged, "a new generation"
    world.hosts.kill(world.primary[0])
    world.send()
    assert world.primary[0] == standby
    world.check()


def test_a_standby_that_is_damaged_when_it_is_needed_is_not_read(world: World) -> None:
    for _ in range(3):
        world.send()
    standby, lost = world.standby[0][0], world.primary[0]
    for path in stores(world, standby):
        flip_byte(path)
    world.hosts.kill(lost)
    world.send()
    world.check()


def test_a_standby_that_lags_is_shown_and_is_not_ready(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.send()
    world.send()
    full = Path(world.hosts.home("host-2"))
    world.driver.placement.follow()
    assert all(copy.lag == 0 for copies in world.driver.placement.status().values() for copy in copies.standbys)
    # Nothing follows on that host any more: a file is in the place of each folder.
    close_below(full)
    shutil.rmtree(full)
    full.write_text("no folder")
    for _ in range(3):
        world.send()
    assert all("host-2" not in hosts for hosts in world.ready.values())
    world.check()


def test_a_copy_that_lacks_too_many_records_is_not_taken_for_ready(world: World) -> None:
    for _ in range(3):
        world.send()
    away = "host-2"
    world.hosts.kill(away)
    for _ in range(READY_RECORDS + 2):
        world.send(2)
    world.hosts.add(away)
    world.hosts.kill("host-1")
    world.send()
    assert all(host == "host-0" for host in world.primary.values())
    world.check()


def test_with_too_few_hosts_the_app_says_so_once_and_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        world = World(tmp_path, hosts=1)
        world.send()
        world.send()
        world.restart()
        world.send()
    warned = [record.message for record in caplog.records if "standbys=1 needs 2 hosts" in record.message]
    assert len(warned) == 2, "once for each driver"
    world.hosts.add("host-1")
    for _ in range(3):
        world.send()
    assert all(len(hosts) == 1 for hosts in world.ready.values())
    world.check()


def test_without_a_cluster_the_app_says_that_standbys_need_one(caplog: pytest.LogCaptureFixture) -> None:
    app = mp.App("sums", "memory://", standbys=1)
    app.stream("rows", mp.sources.rows([{"key": "a", "value": 1}])).key_by("key").stateful_map(
        "total", add_up, initial=0
    )
    driver = start_driver(app, open_storage("memory://"))
    driver.batch(ANY)
    driver.close()
    assert [record.message for record in caplog.records if "standbys=1 needs a cluster" in record.message]


@pytest.mark.parametrize("standbys", [0, 1])
def test_a_restart_is_warm_nothing_but_the_tail_of_the_log_is_read(tmp_path: Path, standbys: int) -> None:
    world = World(tmp_path, standbys=standbys, compact_every=3)
    for _ in range(10):
        world.send()
    before = world.primary
    world.storage.segments_read("sums")
    world.restart(release=False)
    world.send()
    read = world.storage.segments_read("sums")
    assert len(read) <= 2 * 6 * (1 + standbys), read
    assert world.primary == before
    world.check()


def test_a_restart_without_the_host_of_a_partition_begins_at_its_standby(world: World) -> None:
    for _ in range(4):
        world.send()
    before, standby = world.primary, world.standby
    world.driver.close()
    world.hosts.kill("host-0")
    world.driver = world.start()
    world.send()
    for partition, host in before.items():
        assert world.primary[partition] == (standby[partition][0] if host == "host-0" else host)
    world.check()


def test_a_driver_waits_for_hosts_that_had_partitions_before(world: World) -> None:
    for _ in range(3):
        world.send()
    before = world.primary
    world.driver.close()
    late = world.hosts.alive.pop()
    sleep, seen = world.clock.sleep, []

    def join_late(seconds: float) -> None:
        seen.append(seconds)
        if len(seen) == 5:
            world.hosts.add(late)
        sleep(seconds)

    world.clock.sleep = join_late  # type: ignore[method-assign]
    world.driver = world.start()
    world.send()
    assert world.primary == before


def test_a_new_host_gets_partitions_after_it_has_copies_and_without_a_pause(world: World) -> None:
    for _ in range(2):
        world.send()
    world.hosts.add("host-3")
    for _ in range(4):
        world.send()
    assert sorted(world.primary.values()).count("host-3") == 1
    assert all(len(hosts) == 1 for hosts in world.ready.values())
    world.check()


def test_a_drained_host_is_empty_after_a_while_and_gets_partitions_again_when_it_is_undrained(world: World) -> None:
    for _ in range(2):
        world.send()
    world.driver.placement.drain("host-1")
    for _ in range(4):
        world.send()
    assert "host-1" not in world.primary.values()
    assert all("host-1" not in hosts for hosts in world.standby.values())
    assert all(len(hosts) == 1 for hosts in world.ready.values())
    world.driver.placement.undrain("host-1")
    for _ in range(4):
        world.send()
    assert list(world.primary.values()).count("host-1") == 2
    world.check()


def test_a_request_drains_a_host_and_is_answered_when_the_host_is_empty(world: World) -> None:
    def ask(**arguments: object) -> str:
        request = leave_request(world.driver.owner.ledger, "drain", arguments)
        world.driver.requests.look()
        for _ in range(6):
            world.send()
            answer = read_answer(world.storage, "sums", request.id)
            if answer is not None:
                return answer.text
        raise AssertionError("no answer")

    world.send()
    assert "host host-1 has no partitions" in ask(host="host-1")
    assert "host-1" not in world.primary.values()
    assert "'host-9' is not among the hosts" in ask(host="host-9")
    assert "'host-1' is not among the hosts that run tasks and are not drained: host-0, host-2" in ask(host="host-1")
    assert "expected the name of a host, got 7" in ask(host=7)
    assert "host host-2 has no partitions" in ask(host="host-2")
    assert "'host-0' is the only host" in ask(host="host-0")
    assert ask(host="host-1", undo=True) == "host host-1 gets partitions again"
    for _ in range(3):
        world.send()
    assert "host-1" in world.primary.values()
    world.check()


def test_a_host_stays_drained_when_another_driver_starts(world: World) -> None:
    world.send()
    world.driver.placement.drain("host-1")
    for _ in range(4):
        world.send()
    world.restart()
    for _ in range(4):
        world.send()
    assert "host-1" not in world.primary.values()
    world.driver.placement.undrain("host-1")
    world.send()
    world.restart()
    for _ in range(4):
        world.send()
    assert "host-1" in world.primary.values()
    world.check()


def test_a_drain_that_cannot_end_holds_up_no_other_request_and_is_given_up_when_it_expires(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def follow_nothing(storage: Storage, job: FollowJob) -> HostReport:  # as on hosts whose disks are full
        report = follow(storage, replace(job, follow=()))
        return replace(report, trouble="the disk is full" if job.follow else "")

    def ask(kind: str, **arguments: object) -> str:
        id = leave_request(world.driver.owner.ledger, kind, arguments).id
        world.driver.requests.look()
        for _ in range(3):
            world.send()
        return id

    def answer(id: str) -> str | None:
        found = read_answer(world.storage, "sums", id)
        return None if found is None else found.text

    world = World(world.hosts.root.parent / "other", standbys=0)
    world.send()
    monkeypatch.setattr("millpond.driver.placement.follow", follow_nothing)
    drain = ask("drain", host="host-1")
    assert answer(drain) is None
    assert not world.driver.requests.is_busy  # a run that has caught up may end
    undo = ask("drain", host="host-1", undo=True)
    assert answer(undo) == "host host-1 gets partitions again"
    assert "was undone" in (answer(drain) or "")

    drain = ask("drain", host="host-1")
    assert answer(drain) is None
    world.clock.advance(EXPIRE_SECONDS + 1)
    world.send()
    assert "host host-1 still has partitions" in (answer(drain) or "")
    assert "6 to 3 partitions" in (answer(ask("rescale", partitions=3)) or "")
    world.check()


def test_a_drained_host_that_dies_and_comes_back_gets_partitions_again(world: World) -> None:
    world.send()
    world.driver.placement.drain("host-1")
    for _ in range(3):
        world.send()
    world.hosts.kill("host-1")
    world.send()
    world.hosts.add("host-1")
    for _ in range(3):
        world.send()
    assert "host-1" in world.primary.values()


def test_only_the_hosts_of_a_running_app_can_be_drained(tmp_path: Path) -> None:
    app = mp.App("sums", str(tmp_path / "state"))
    with pytest.raises(mp.errors.InvalidUse, match="drain: app 'sums' does not run"):
        app.drain("host-1")


def test_a_rescale_restarts_the_standbys(world: World) -> None:
    for _ in range(3):
        world.send()
    world.driver.release()
    world.driver.close()
    world.partitions = 4
    world.driver = world.start()
    world.send()
    world.send()
    assert sorted(world.ready) == [0, 1, 2, 3]
    assert all(len(hosts) == 1 for hosts in world.ready.values())
    world.hosts.kill(world.primary[2])
    world.send()
    world.check()


def test_after_a_rescale_no_partitions_are_shown_until_they_are_placed(world: World) -> None:
    for _ in range(3):
        world.send()
    assert world.primary
    leave_request(world.driver.owner.ledger, "rescale", {"partitions": 5})
    world.driver.requests.look()
    for _ in range(20):
        world.send()
        if world.driver.last.kind == "rewrite":
            break
    assert world.driver.last.partitions == 5
    assert world.driver.placement.status() == {}
    world.send()
    assert sorted(world.primary) == [0, 1, 2, 3, 4]
    world.check()


def test_copies_that_a_host_does_not_need_are_removed_when_nothing_has_written_them_for_a_while(world: World) -> None:
    for _ in range(3):
        world.send()
    third = ({*world.hosts.alive} - {world.primary[0], *world.standby[0]}).pop()
    mine = next(path for path in stores(world, world.primary[0]) if "00000-of" in str(path)).parent.parent
    others = mine.parent.parent / "0123456789abcdef"
    stray = Path(world.hosts.home(third)) / mine.relative_to(world.hosts.home(world.primary[0]))
    old_incarnation = (
        Path(world.hosts.home(third)) / others.relative_to(world.hosts.home(world.primary[0])) / stray.name
    )
    for folder in (stray, stray.with_name("00001-of-00099"), old_incarnation):
        shutil.copytree(mine, folder)
    another_app = Path(world.hosts.home(third)) / "another" / "0123" / stray.name
    shutil.copytree(mine, another_app)

    def tidy() -> None:
        world.clock.advance(10_000)
        world.send()

    def age(seconds: float) -> None:
        for root in (stray, stray.with_name("00001-of-00099"), old_incarnation.parent, another_app):
            for path in [root, *root.rglob("*")] if root.exists() else []:
                before = path.stat().st_mtime - seconds
                os.utime(path, (before, before))

    tidy()
    assert stray.exists(), "it may be in use"
    age(2 * UNUSED_SECONDS)
    tidy()
    assert not stray.exists() and not stray.with_name("00001-of-00099").exists()
    assert old_incarnation.exists(), "another copy of the state directory may use it"
    age(30 * 86_400)
    tidy()
    assert not old_incarnation.exists()
    assert another_app.exists()
    needed = sorted(path.parent.parent for host in world.hosts.alive for path in stores(world, host))
    for path in [path for folder in needed for path in [folder, *folder.rglob("*")]]:
        os.utime(path, (1_000_000, 1_000_000))
    world.clock.advance(10_000)
    world.driver.placement.follow()
    assert all(folder.exists() for folder in needed), "nothing has changed for long, and the copies are needed"
    world.send()
    assert all(len(hosts) == 1 for hosts in world.ready.values())
    world.check()


@pytest.mark.parametrize("seed", range(12))
def test_hosts_that_die_and_come_back_in_any_order_lose_nothing_and_double_nothing(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    world = World(tmp_path, hosts=4, partitions=5, standbys=chance.choice([0, 1, 2]), compact_every=4)
    names = list(world.hosts.alive)

    def step_in(partition: int) -> None:
        if chance.random() < 0.08 and len(world.hosts.alive) > 1:
            world.hosts.kill(chance.choice(world.hosts.alive), lose_disk=chance.random() < 0.3)
        if chance.random() < 0.05:
            world.hosts.detours[chance.randrange(5)] = chance.choice(world.hosts.alive)

    world.between = step_in
    for _ in range(25):
        action = chance.random()
        if action < 0.25:
            missing = [name for name in names if name not in world.hosts.alive]
            if missing:
                world.hosts.add(chance.choice(missing))
        elif action < 0.35:
            world.restart(release=chance.random() < 0.5)
        elif action < 0.4:
            world.driver.placement.drain(chance.choice(names))
        elif action < 0.45:
            world.driver.placement.undrain(chance.choice(names))
        world.send(chance.randrange(1, 40))
    world.check()


@pytest.mark.parametrize("wrong", [-1, 9, True, "1", 1.0])
def test_a_number_of_standbys_that_makes_no_sense_is_refused(wrong: object) -> None:
    with pytest.raises(mp.errors.InvalidUse, match=r"App\(standbys\): expected a whole number from 0 to 8"):
        mp.App("sums", standbys=wrong)  # type: ignore[arg-type]
