"""Names of apps, streams, steps, tables and sinks: one rule, and any name that keeps it works everywhere."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_drivers import WHOLE, Lanes, driver_of
from small_rebuilds import rebuild

import millpond as mp
from millpond.log.apps import list_apps
from millpond.log.paths import MOST_ELEMENT, check_name, is_cut_name, quote_name, unquote_name
from millpond.sinks.base import Delivery
from millpond.sinks.files import file_name
from millpond.storage import open_storage

BAD: dict[str, tuple[Any, str]] = {
    "no string": (7, "a name is a string"),
    "empty": ("", "it is empty"),
    "blank": (" \t", "it is empty"),
    "NUL": ("a\x00b", "NUL"),
    "lone surrogate": ("a\ud800", "half of a surrogate pair"),
    "surrogateescape": (b"\xe9t\xe9".decode("utf-8", "surrogateescape"), "half of a surrogate pair"),
    "long": ("x" * 121, "it has 121 bytes"),
    "long in UTF-8": ("ж" * 61, "it has 122 bytes"),
}


def keyed(name: str = "rows") -> Any:
    return mp.App("named").stream(name, mp.sources.rows([]), timestamp="at").key_by("k")


GIVEN: dict[str, Callable[[Any], Any]] = {
    "app": lambda name: mp.App(name),
    "stream": lambda name: mp.App("named").stream(name, mp.sources.rows([])),
    "step": lambda name: keyed().stateful_map(name, lambda k, row, n: (n, n), initial=0),
    "window": lambda name: keyed().window(name, mp.tumbling(1), grace=0).aggregate(n=mp.count()),
    "table": lambda name: (app := mp.App("a")).table(name, app.stream("s", mp.sources.rows([])).key_by("k")),
    "sink": lambda name: keyed().to(name, mp.sinks.memory()),
    "renamed_from": lambda name: keyed().stateful_map("s", lambda k, row, n: (n, n), initial=0, renamed_from=name),
    "open": lambda name: mp.open("memory://names", name),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("where", GIVEN)
def test_a_bad_name_is_refused_when_it_is_given(where: str, bad: str) -> None:
    name, why = BAD[bad]
    with pytest.raises(mp.errors.InvalidUse) as caught:
        GIVEN[where](name)
    text = str(caught.value)
    assert "expected a plain name of 1 to 120 bytes" in text and why in text
    text.encode()  # which can be shown and logged


LONG = {"ASCII": "n" * 120, "Cyrillic": "ж" * 60, "Chinese": "名" * 40, "emoji": "🐟" * 30, "blanks": "a " * 59 + "bc"}


@pytest.mark.parametrize("long", LONG)
@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_the_longest_names_work_everywhere(tmp_path: Path, long: str, format: Any) -> None:
    def name(what: str) -> str:
        return LONG[long][: -len(what)] + what

    def an_app(rows: list[Any]) -> mp.App:
        app = mp.App(name("a"), str(tmp_path / "state"), partitions=2, local_dir=str(tmp_path / "local"))
        stream = app.stream(name("s"), Lanes({"0": rows}, width=1)).key_by("k")
        totals = stream.stateful_map(name("t"), lambda k, row, n: (n + row["v"], n + row["v"]), initial=0)
        table = app.table(name("b"), stream, everywhere=True)
        looked = stream.lookup(name("l"), table, on="k")
        totals.map(lambda n: {"n": n}).to(name("o"), mp.sinks.files(tmp_path / "out", format=format))
        looked.to(name("p"), mp.sinks.files(tmp_path / "out", format=format))
        return app

    rows = [{"k": "x", "v": 1}, {"k": "x", "v": 2}, {"k": "y", "v": 5}]
    app = an_app(rows)
    driver = driver_of(app, open_storage(app.state_dir), tmp_path / "local")
    while driver.batch(WHOLE):
        pass
    driver.release()
    driver.close()
    assert sum(not path.name.startswith("_") for path in (tmp_path / "out").iterdir()) == 6
    assert list_apps(open_storage(app.state_dir)) == [name("a")]
    opened = mp.open(app.state_dir, name("a"))
    admin = mp.admin(app.state_dir, name("a"))
    assert dict(opened.state(name("t")).items()) == {"x": 3, "y": 5}
    assert admin.verify().ok
    assert rebuild(app, name("t"), switch=True) == []
    admin.compact()
    admin.rescale(3)
    admin.savepoint(tmp_path / "saved")
    again = mp.App(name("r"), str(tmp_path / "other"), local_dir=str(tmp_path / "local"))
    again.restore(tmp_path / "saved")
    assert dict(mp.open(str(tmp_path / "other"), name("r")).state(name("t")).items()) == {"x": 3, "y": 5}
    an_app(rows).rollback(mp.open(app.state_dir, name("a")).newest.number - 4)
    an_app(rows).clear_state()
    shutil.rmtree(tmp_path / "local", ignore_errors=True)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=120))
@settings(max_examples=200)
def test_every_good_name_has_a_path_element_of_its_own(name: str) -> None:
    try:
        check_name(name, "name")
    except mp.errors.InvalidUse:
        return
    element = quote_name(name)
    assert element.isascii() and len(element) <= MOST_ELEMENT and "/" not in element and not element.startswith(".")
    assert is_cut_name(element) or unquote_name(element) == name
    for format in ("jsonl", "parquet"):
        made = file_name(Delivery("a", "5" * 16, name, 42, 9999, "7" * 16), format)
        assert len(made) <= MOST_ELEMENT


def test_names_that_differ_at_their_end_only_stay_apart() -> None:
    one, other = "名" * 40, "名" * 39 + "前"
    assert is_cut_name(quote_name(one)) and quote_name(one) != quote_name(other)
    names = {file_name(Delivery("a", "5" * 16, name, 42, 3, "7" * 16), "jsonl") for name in (one, other)}
    assert len(names) == 2


def test_names_that_fitted_are_as_they_were() -> None:
    """Or state of an earlier version would not be found."""
    assert quote_name("ж" * 42) == "%D0%B6" * 42
    old = Delivery("a", "5" * 16, "ж" * 33, 42, 3)
    assert file_name(old, "jsonl") == f"{42:020d}-00003-{'5' * 16}-{'%D0%B6' * 33}.jsonl"


def test_the_json_of_a_record_can_hold_every_good_name(tmp_path: Path) -> None:
    app = mp.App('"\\/\n', str(tmp_path), partitions=1, local_dir=str(tmp_path / "local"))
    app.stream("\t.", Lanes({"0": [{"k": 1}]})).key_by("k").aggregate("{}", n=mp.count())
    driver = driver_of(app, open_storage(str(tmp_path)), tmp_path / "local")
    assert driver.batch(WHOLE)
    driver.close()
    assert mp.open(str(tmp_path), '"\\/\n').state("{}").get(1) == {"n": 1}
    assert json.loads(json.dumps(list_apps(open_storage(str(tmp_path))))) == ['"\\/\n']
