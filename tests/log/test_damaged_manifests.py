"""A damaged manifest never brings back state from before a rollback, a rescale or a migration."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from small_shop import feed, flip, fold, run, shop, totals

import millpond as mp
from millpond.clock import SystemClock
from millpond.log.ledger import Ledger
from millpond.storage import open_storage


def newest(app: mp.App) -> Any:
    found = Ledger(open_storage(app.state_dir), app.name, SystemClock()).newest()
    assert found is not None
    return found


def damage(app: mp.App) -> Path:
    """Flip one bit of the newest manifest."""
    path = Path(app.state_dir) / newest(app).manifest.path
    flip(path, len(path.read_bytes()) // 2)
    return path


def rewritten(folder: Path, how: str) -> mp.App:
    """An app that was compacted, then rewritten, and has replicas of its newest state."""
    feed(folder, *range(16))
    app = shop(folder, compact_every=3, partitions=None)
    run(app, batches=9)
    if how == "rollback":
        app.rollback(4)
        for number in range(4, 16):
            other_rows(folder, number)
    elif how == "rescale":
        app.rescale(3)
    else:
        mp.admin(app.state_dir, "shop").drop_step("parity")
    for number in range(9, 16):
        other_rows(folder, number)
    return app


def other_rows(folder: Path, number: int) -> None:
    """Put rows of one key alone into a file that was not read: what the other keys have is seen at the end."""
    (folder / "in" / f"{number:04d}.jsonl").write_text('{"k": "other", "v": 1}\n' * 10)


@pytest.mark.parametrize("replicas", ["whole", "lost"])
@pytest.mark.parametrize("how", ["rollback", "rescale", "drop"])
def test_a_driver_goes_on_with_no_state_from_before_a_rewrite(tmp_path: Path, how: str, replicas: str) -> None:
    app = rewritten(tmp_path, how)
    held = totals(app)
    path = damage(app)
    if replicas == "lost":
        shutil.rmtree(str(app.local_dir))
    try:
        run(app)
    except mp.errors.Corrupt as error:
        assert path.name in str(error)
        whole = flip(path, len(path.read_bytes()) // 2)  # put back, all is well
        assert whole
        assert totals(app) == held
        run(app)
    shutil.rmtree(str(app.local_dir))
    read = 4 if how == "rollback" else 9
    assert totals(app) == {**fold(range(read)), "other": (16 - read) * 10}
    assert app.verify().ok


@pytest.mark.parametrize("action", ["compact", "rescale", "savepoint", "rollback", "drop"])
@pytest.mark.parametrize("how", ["rollback", "rescale"])
def test_no_action_builds_on_state_from_before_a_rewrite(tmp_path: Path, how: str, action: str) -> None:
    app = rewritten(tmp_path, how)
    held, record = totals(app), newest(app)
    path = damage(app)
    admin = mp.admin(app.state_dir, "shop")
    act = {
        "compact": lambda: admin.compact(),
        "rescale": lambda: admin.rescale(5),
        "savepoint": lambda: admin.savepoint(tmp_path / "saved"),
        "rollback": lambda: admin.rollback(record.number),
        "drop": lambda: admin.drop_step("parity"),
    }[action]
    with pytest.raises(mp.errors.Corrupt, match=path.name):
        act()
    flip(path, len(path.read_bytes()) // 2)
    shutil.rmtree(str(app.local_dir))
    assert totals(app) == held and app.verify().ok
    assert newest(app).manifest == record.manifest


@pytest.mark.parametrize("action", ["run", "compact", "rescale", "read"])
def test_within_an_epoch_an_earlier_manifest_does_and_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, action: str
) -> None:
    feed(tmp_path, *range(16))
    app = shop(tmp_path, compact_every=3, partitions=None)
    run(app, batches=12)
    path = damage(app)
    shutil.rmtree(str(app.local_dir))
    with caplog.at_level(logging.WARNING, "millpond"):
        if action == "run":
            run(app)
        elif action == "compact":
            mp.admin(app.state_dir, "shop").compact()
        elif action == "rescale":
            app.rescale(3)
        else:
            assert totals(app) == fold(range(12))
    assert any(path.name in record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    run(app)
    shutil.rmtree(str(app.local_dir))
    assert totals(app) == fold(range(16))
