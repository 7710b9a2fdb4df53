"""The actions on an app's state as a whole, by way of `app.admin` and of the app itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millpond as mp
from millpond.admin import Admin
from millpond.app import App

ALIASES = {"clear": "clear_state"}  # verbs that have another name on an app
VERBS = [name for name in vars(Admin) if not name.startswith("_")]


def run(folder: Path) -> mp.App:
    app = mp.App("shop", str(folder / "state"), 1, local_dir=str(folder / "local"))
    rows = app.stream("rows", mp.sources.rows([])).key_by(k=lambda row: row)
    rows.aggregate("n", n=mp.count()).to("out", mp.sinks.memory())
    with mp.testing.TestDriver(app, mp.lowlevel.storage(app)) as driver:
        driver.send("rows", ["a", "b", "a"])
    return app


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_of_admin_is_on_the_app_with_the_same_arguments(verb: str) -> None:
    alias = getattr(App, ALIASES.get(verb, verb))
    assert inspect.signature(alias).parameters == inspect.signature(getattr(Admin, verb)).parameters


def test_an_action_of_admin_is_that_of_the_app(tmp_path: Path) -> None:
    app = run(tmp_path)
    assert app.admin.verify() == app.verify()
    assert list(app.admin.changes("n")) == list(app.changes("n")) != []
    assert app.admin.rescale(3, dry_run=True) == app.rescale(3, dry_run=True)
    app.admin.rescale(3)
    newest = mp.open(app.state_dir, "shop").newest
    assert newest is not None and newest.partitions == 3
    app.admin.clear()
    assert list(app.state("n").items()) == []


def test_an_app_that_was_opened_without_its_program_can_be_kept_in_order_but_not_rebuilt(tmp_path: Path) -> None:
    run(tmp_path)
    admin = mp.admin(str(tmp_path / "state"), "shop")
    assert isinstance(admin, Admin) and admin.verify().ok
    assert "go back when the program next starts" in admin.rollback(0, dry_run=True)
    with pytest.raises(mp.errors.InvalidUse, match=r"rebuild\('n'\): app 'shop' was opened without its program"):
        admin.rebuild("n")


@pytest.mark.parametrize("verb", ["verify", "clear", "compact", "changes", "drop_outputs", "rebuild"])
def test_an_app_that_runs_in_this_process_is_left_alone(tmp_path: Path, verb: str) -> None:
    app = run(tmp_path)
    app._running = True
    how: dict[str, Any] = {"switch": True} if verb == "rebuild" else {}
    given = ["out"] if verb == "drop_outputs" else ["n"] if verb in ("changes", "rebuild") else []
    with pytest.raises(mp.errors.InvalidUse, match="app 'shop' is running in this process"):
        getattr(app.admin, verb)(*given, **how)


def test_an_admin_that_was_taken_before_a_run_sees_what_the_run_has_changed(tmp_path: Path) -> None:
    app = mp.App("shop", str(tmp_path / "state"), 1, local_dir=str(tmp_path / "local"))
    rows = app.stream("rows", mp.sources.rows([])).key_by(k=lambda row: row)
    rows.aggregate("n", n=mp.count()).to("out", mp.sinks.memory())
    admin = app.admin
    app._storage = storage = mp.lowlevel.storage(mp.App("shop", str(tmp_path / "elsewhere"), 1))
    with mp.testing.TestDriver(app, storage) as driver:
        driver.send("rows", ["a"])
    assert len(list(admin.changes("n"))) == 1
    app._running = True
    with pytest.raises(mp.errors.InvalidUse, match="is running in this process"):
        admin.clear(force=True)


def test_an_admin_that_was_taken_before_the_program_was_written_knows_the_program(tmp_path: Path) -> None:
    app = mp.App("shop", str(tmp_path / "state"), 1, local_dir=str(tmp_path / "local"))
    admin = app.admin
    rows = app.stream("rows", mp.sources.rows([])).key_by(k=lambda row: row)
    rows.aggregate("n", n=mp.count()).to("out", mp.sinks.files(tmp_path / "out"))
    with mp.testing.TestDriver(app, mp.lowlevel.storage(app)) as driver:
        driver.send("rows", ["a"])
    with pytest.raises(mp.errors.InvalidUse, match="drop_step"):  # without a program it would remove the state
        admin.drop_step("n")
    assert len(list(app.state("n").items())) == 1


def test_an_app_that_was_opened_offers_nothing_that_changes_its_state(tmp_path: Path) -> None:
    app = run(tmp_path)
    opened: Any = mp.open(app.state_dir, "shop")
    for verb in {*VERBS, "admin", "clear_state"} - {"changes"}:
        with pytest.raises(AttributeError, match=rf"only reads: it has no '{verb}'. Use mp.admin\('.*state', 'shop'\)"):
            getattr(opened, verb)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        opened.nothing  # noqa: B018
    public = {name for name in dir(opened) if not name.startswith("_")}
    assert public == {"changes", "follow", "name", "newest", "refresh", "state", "status"}


@pytest.mark.parametrize("batch", ["0", 0.0])
def test_a_batch_that_is_no_number_is_refused(tmp_path: Path, batch: Any) -> None:
    app = run(tmp_path)
    actions: list[Callable[[], object]] = [
        lambda: app.rollback(batch),
        lambda: app.savepoint(tmp_path / "saved", batch=batch),
        lambda: list(app.admin.changes("n", after=batch)),
        lambda: app.state("n").at(batch),
    ]
    for action in actions:
        with pytest.raises(mp.errors.InvalidUse, match="expected the number of a batch, got"):
            action()
    assert not (tmp_path / "saved").exists() and app.verify().ok


@pytest.mark.parametrize("verb", sorted({*VERBS} - {"restore", "rebuild"}))
def test_an_action_on_an_app_that_is_not_there_is_refused(tmp_path: Path, verb: str) -> None:
    admin = mp.admin(str(tmp_path / "state"), "shop")
    given: dict[str, list[Any]] = {"rescale": [2], "rollback": [0], "savepoint": [tmp_path / "saved"]}
    given |= {"changes": ["n"], "drop_step": ["n"], "drop_outputs": ["out"], "drain": ["10.0.0.2"]}
    with pytest.raises(mp.errors.InvalidUse, match="holds no app 'shop': check state_dir and the app's name"):
        getattr(admin, verb)(*given.get(verb, []))
    assert not (tmp_path / "state").exists() or list((tmp_path / "state").iterdir()) == []


def test_a_savepoint_is_restored_to_an_app_that_is_not_there(tmp_path: Path) -> None:
    app = run(tmp_path)
    mp.admin(app.state_dir, "shop").savepoint(tmp_path / "saved")
    mp.admin(str(tmp_path / "other"), "shop-2").restore(tmp_path / "saved")
    assert dict(mp.open(str(tmp_path / "other"), "shop-2").state("n").items()) == {"a": {"n": 2}, "b": {"n": 1}}


@pytest.mark.parametrize("wrong", ["3", None, 2.0, True])
def test_a_batch_that_is_no_number_is_refused_in_words(tmp_path: Path, wrong: Any) -> None:
    app = run(tmp_path)
    with pytest.raises(mp.errors.InvalidUse, match="expected the number of a batch, got "):
        mp.admin(app.state_dir, "shop").rollback(wrong)
    with (
        mp.open(app.state_dir, "shop").follow(every=None) as live,
        pytest.raises(mp.errors.InvalidUse, match="wait_for: expected the number of a batch, got "),
    ):
        live.wait_for(wrong)
