"""A rebuild runs the app's batches again, up to where the app is, with the program of now and with nothing else."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from local_drivers import start_driver
from small_rebuilds import rebuild

import millpond as mp
from millpond.clock import SystemClock
from millpond.log.apps import list_apps
from millpond.log.ledger import Ledger
from millpond.sources.base import Chunk, Limit, Split
from millpond.storage import open_storage


def add(key: str, row: Any, total: int) -> Any:
    return None, total + row["v"]


def add_twice(key: str, row: Any, total: int) -> Any:
    return None, total + 2 * row["v"]


def shop(folder: Path, f: Any = add, name: str = "orders", source: Any = None, **how: Any) -> mp.App:
    how = {"partitions": 2, "local_dir": str(folder / "local"), **how}
    app = mp.App(name, str(folder / "state"), **how)
    rows = app.stream("rows", source or mp.sources.files(folder / "in"), timestamp="at").key_by("k")
    rows.stateful_map("total", f, initial=0).to("out", mp.sinks.files(folder / f"out-{name.replace('/', '')}"))
    windowed = rows.window("by ten", mp.tumbling(10), grace=mp.NO_GRACE)
    windowed.aggregate(n=mp.count(), all=mp.collect("v")).to("windows", mp.sinks.discard())
    late = windowed.late.key_by(k=lambda row: row["key"])
    late.stateful_map("late", lambda k, row, n: (None, n + 1), initial=0)
    return app


def feed(folder: Path, number: int, ats: Any = range(10)) -> None:
    (folder / "in").mkdir(exist_ok=True)
    rows = [{"k": f"k{(number * 7 + i) % 5}", "v": i + 1, "at": number * 10 + at} for i, at in enumerate(ats)]
    (folder / "in" / f"{number:04d}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def run(app: mp.App, rows: int = 10, batches: int = 1000) -> int:
    """Run until all is read, or for some batches; the number of the newest record."""
    driver = start_driver(app)
    for _ in range(batches):
        if not driver.batch(Limit(rows, 1 << 20)):
            break
    driver.release()
    driver.close()
    return driver.last.number


def state(app: mp.App, step: str = "total") -> dict[Any, Any]:
    return dict(app.state(step).items())


def files_below(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for number in range(4):
        feed(tmp_path, number)
    return tmp_path


# --- a shadow is of the program of now ---


def test_a_look_with_a_wrong_function_leaves_nothing_for_the_rebuild_after_it(place: Path) -> None:
    run(shop(place))
    right = state(shop(place))
    looked = rebuild(shop(place, add_twice), "total")
    assert {d.key: d.rebuilt for d in looked} == {key: 2 * n for key, n in right.items()}
    assert rebuild(shop(place), "total", switch=True) == []
    assert state(shop(place)) == right
    feed(place, 4)
    run(shop(place))
    assert sum(state(shop(place)).values()) == 5 * 55


def test_a_look_before_more_was_read_leaves_nothing_either(place: Path) -> None:
    app = shop(place)
    run(app, batches=2)
    rebuild(app, "total")
    run(app)
    app.rollback(2)
    (place / "in" / "0003.jsonl").unlink()
    run(app)
    assert rebuild(app, "total", switch=True) == []
    assert sum(state(app).values()) == 3 * 55


def test_in_a_test_driver_too() -> None:
    def app(f: Any) -> mp.App:
        app = mp.App("orders", partitions=2)
        app.stream("rows", mp.sources.rows([])).key_by("k").stateful_map("total", f, initial=0)
        return app

    with mp.testing.TestDriver(app(add)) as driver:
        driver.send("rows", [{"k": "a", "v": 1}, {"k": "b", "v": 2}])
        driver.restart(app(add_twice))
        assert driver.rebuild("total") == [mp.Difference("a", 1, 2), mp.Difference("b", 2, 4)]
        driver.restart(app(add))
        assert driver.rebuild("total", switch=True) == []
        driver.send("rows", [{"k": "a", "v": 1}])
        assert dict(driver.state("total").items()) == {"a": 2, "b": 2}


def test_a_shadow_goes_with_its_rebuild_and_what_one_that_died_has_left_with_the_next(place: Path) -> None:
    app = shop(place)
    run(app)
    before = files_below(place / "state")
    rebuild(app, "total")
    assert files_below(place / "state") == before

    def dies() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rebuild(app, "total", between=dies)
    assert files_below(place / "state") == before
    left = place / "state" / "orders" / "rebuild" / "5e1f0000"
    shutil.copytree(place / "state" / "orders" / "ledger", left / "ledger")
    assert app.verify().ok and list_apps(open_storage(app.state_dir)) == ["orders"]
    rebuild(app, "total")
    assert files_below(place / "state") == before
    assert app.verify().ok


@pytest.mark.parametrize("neighbour", ["orders~total", "orders/rebuild", "rebuild", "orders%2Frebuild"])
def test_a_rebuild_leaves_every_app_beside_it_alone(place: Path, neighbour: str) -> None:
    app, other = shop(place), shop(place, name=neighbour)
    run(app)
    run(other)
    held, files = state(other), files_below(place / "state")
    rebuild(app, "total")
    assert state(other) == held and other.verify().ok
    assert files_below(place / "state") == files
    rebuild(app, "total", switch=True)
    assert state(other) == held and other.verify().ok
    assert list_apps(open_storage(app.state_dir)) == sorted(["orders", neighbour])


def test_a_long_name_can_be_rebuilt(place: Path) -> None:
    app = shop(place, name="o" * 120)
    run(app)
    assert rebuild(app, "total", switch=True) == []


# --- it reads what the app has read ---


def test_it_reads_to_where_the_app_is_and_not_to_the_end_of_the_input(place: Path) -> None:
    app = shop(place)
    run(app, batches=3)
    feed(place, 4)
    with (place / "in" / "0002.jsonl").open("a") as file:
        file.write('{"k": "k0", "v": 1000, "at": 25}\n{"k": "k0", "v": 1')
    found = rebuild(app, "total", switch=True)
    assert found == [] and found.unknown is None
    assert sum(state(app).values()) == 3 * 55
    run(app)
    assert sum(state(app).values()) == 5 * 55 + 1000


def test_an_app_that_goes_on_meanwhile_is_compared_as_it_was_and_not_switched(place: Path) -> None:
    app = shop(place)
    run(app, batches=2)

    def go_on() -> None:
        run(shop(place))

    assert rebuild(app, "total", between=go_on) == []
    feed(place, 4)
    with pytest.raises(mp.errors.InvalidUse, match="has gone on while its state was rebuilt"):
        rebuild(app, "total", switch=True, between=go_on)
    assert sum(state(app).values()) == 5 * 55
    run(app)
    assert rebuild(app, "total", switch=True) == []


@pytest.mark.parametrize("format", ["jsonl", "csv", "parquet", "jsonl.gz"])
def test_an_input_that_is_gone_is_said_to_be_gone(tmp_path: Path, format: str) -> None:
    import gzip

    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    (tmp_path / "in").mkdir()
    for number in range(3):
        rows = [{"k": "a", "v": i, "at": number * 10 + i} for i in range(10)]
        file = tmp_path / "in" / f"{number}.{format}"
        if format == "csv":
            pa.csv.write_csv(pa.Table.from_pylist(rows), file)
        elif format == "parquet":
            pa.parquet.write_table(pa.Table.from_pylist(rows), file)
        else:
            text = "".join(json.dumps(row) + "\n" for row in rows)
            file.write_bytes(gzip.compress(text.encode()) if format.endswith("gz") else text.encode())
    app = mp.App("orders", str(tmp_path / "state"), 2, local_dir=str(tmp_path / "local"))
    count = app.stream("rows", mp.sources.files(tmp_path / "in")).key_by("k")
    count.stateful_map("total", lambda k, row, n: (None, n + int(row["v"])), initial=0)
    run(app, rows=7)
    assert rebuild(app, "total", switch=True) == []
    held = state(app)
    (tmp_path / "in" / f"1.{format}").unlink()
    with pytest.raises(mp.errors.InvalidUse, match=r"no longer reaches back far enough: 1 of .* '1\."):
        rebuild(app, "total", switch=True)
    assert state(app) == held == {"a": 135}


def test_an_input_with_fewer_rows_than_the_app_has_read_is_refused(place: Path) -> None:
    app = shop(place)
    run(app)
    held = state(app)
    file = place / "in" / "0001.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:4]) + " " * (len(lines[4]) - 1) + "\n" + "".join(lines[5:]))
    with pytest.raises(mp.errors.InvalidUse, match=r"batch 2 of the app read 10 rows of it, and now there are 9"):
        rebuild(app, "total", switch=True)
    assert state(app) == held


class Numbers:
    """A source of the user's own, which knows nothing of `plan_to`; `most` is what a plan has, whatever the limit."""

    def __init__(self, count: int, most: int | None = None) -> None:
        self.count, self.most = count, most

    def plan(self, position: Mapping[str, Any], limit: Limit, now: float) -> list[Split]:
        done = position.get("n", 0)
        stop = min(self.count, done + (self.most or limit.rows))
        return [Split("n", done, stop)] if done < stop else []

    def read(self, split: Split) -> Iterator[Chunk]:
        yield Chunk([{"k": f"k{n % 3}", "v": n, "at": n} for n in range(split.start, split.stop)], split.stop)


def test_a_source_that_knows_no_bounds_is_asked_for_as_many_rows_as_a_batch_had(tmp_path: Path) -> None:
    run(shop(tmp_path, source=Numbers(50)), rows=7, batches=4)
    app = shop(tmp_path, source=Numbers(1000))
    assert rebuild(app, "total", switch=True) == []
    assert sum(state(app).values()) == sum(range(28))
    with pytest.raises(mp.errors.InvalidUse, match=r"read it to \{'n': 7\}, and the rebuild came to \{'n': 20\}"):
        rebuild(shop(tmp_path, source=Numbers(1000, most=20)), "total")


# --- it runs the batches as they were ---


def test_what_was_late_is_late_again_and_nothing_else(tmp_path: Path) -> None:
    for number, ats in enumerate([[1, 2, 25], [3, 4, 5], [0, 19, 9]]):
        feed(tmp_path, number, ats)
    app = shop(tmp_path)
    run(app, rows=3)
    held = state(app, "late")
    assert sum(held.values()) == 3
    for step in ("total", "by ten", "late"):
        assert rebuild(app, step) == []
    by_one = shop(tmp_path, name="other")
    run(by_one, rows=1)  # in batches of other bounds other rows are late
    assert state(by_one, "late") != held


def test_batches_that_a_rollback_has_set_aside_are_not_run(place: Path) -> None:
    app = shop(place)
    run(app)
    app.rollback(2)
    for number in (2, 3):
        feed(place, number, [30, 1, 2])
    run(app, rows=2)
    for step in ("total", "by ten", "late"):
        assert rebuild(app, step, switch=True) == []
    assert app.verify().ok


def test_a_step_is_rebuilt_after_a_rescale_a_compaction_and_a_migration(place: Path) -> None:
    run(shop(place, compact_every=2), batches=2)
    app = shop(place, partitions=5, compact_every=2)
    run(app, batches=1)
    app.compact()
    run(app)
    assert rebuild(app, "total", switch=True) == [] and rebuild(app, "by ten") == []

    def newer(folder: Path) -> mp.App:
        app = mp.App("orders", str(folder / "state"), local_dir=str(folder / "local"))
        rows = app.stream("rows", mp.sources.files(folder / "in"), timestamp="at").key_by("k")
        total = rows.stateful_map(
            "total",
            lambda k, row, n: (None, {"n": n["n"] + row["v"]}),
            initial={"n": 0},
            version=2,
            migrate={1: lambda n: {"n": n}},
        )
        total.to("out", mp.sinks.discard())
        total.to("windows", mp.sinks.discard())
        return app

    run(newer(place))
    assert rebuild(newer(place), "total", switch=True) == []


def test_bounds_that_are_no_longer_kept_are_said_to_be_so(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(4, 12):
        feed(place, number)
    app = shop(place, keep=3, compact_every=2)
    run(app)
    floor = Ledger(open_storage(app.state_dir), "orders", SystemClock()).floor()
    assert floor > 1
    feed(place, 12)
    with caplog.at_level(logging.WARNING, "millpond"):
        found = rebuild(app, "total", switch=True)
    assert found == [] and found.unknown is not None and found.unknown >= floor
    assert "are no longer kept" in caplog.text
    assert sum(state(app).values()) == 12 * 55
    run(app)
    assert sum(state(app).values()) == 13 * 55
    own = shop(place, name="own", keep=3, compact_every=2, source=Numbers(100))
    run(own)
    with pytest.raises(mp.errors.InvalidUse, match="its source has no method plan_to"):
        rebuild(own, "total")


def test_what_a_savepoint_brought_along_has_no_bounds(place: Path) -> None:
    run(shop(place), batches=2)
    shop(place).savepoint(place / "saved")
    other = shop(place, name="other")
    other.restore(place / "saved")
    run(other)
    found = rebuild(other, "total", switch=True)
    assert found == [] and found.unknown is not None
    assert sum(state(other).values()) == 4 * 55


def test_a_step_that_is_new_is_filled_from_the_beginning(place: Path) -> None:
    run(shop(place))

    def with_one_more() -> mp.App:
        app = shop(place)
        rows = app.stream("again", mp.sources.rows([])).key_by("k")
        assert rows is not None
        read = app._graph.nodes[0]
        keyed = mp.Stream(app._graph, read).key_by("k")
        keyed.stateful_map("count", lambda k, row, n: (None, n + 1), initial=0)
        return app

    found = rebuild(with_one_more(), "count", switch=True)
    assert {d.key: (d.live, d.rebuilt) for d in found} == {f"k{n}": (None, 8) for n in range(5)}
    assert state(with_one_more(), "count") == {f"k{n}": 8 for n in range(5)}
    run(with_one_more())


def test_a_step_or_an_app_that_is_not_there_is_refused(place: Path) -> None:
    with pytest.raises(mp.errors.InvalidUse, match="has never run"):
        rebuild(shop(place), "total")
    run(shop(place))
    with pytest.raises(mp.errors.InvalidUse, match="no step of that name; it has: total, by ten, late"):
        rebuild(shop(place), "totals")


def test_what_changed_in_the_shape_of_a_value_is_a_difference() -> None:
    def app(value: Any) -> mp.App:
        app = mp.App("orders", partitions=1)
        rows = app.stream("rows", mp.sources.rows([])).key_by("k")
        rows.stateful_map("value", lambda k, row, n: (None, value), initial=0)
        return app

    with mp.testing.TestDriver(app(float("nan"))) as driver:
        driver.send("rows", [{"k": "a"}])
        assert driver.rebuild("value") == []
    with mp.testing.TestDriver(app(1)) as driver:
        driver.send("rows", [{"k": "a"}])
        driver.restart(app(True))
        [found] = driver.rebuild("value")
        assert (found.live, found.rebuilt) == (1, True) and found.rebuilt is True
