"""A verb that comes too early says which one is missing before it."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import millpond as mp
from millpond.pipeline.keyed import KeyedStream
from millpond.pipeline.stream import Stream
from millpond.pipeline.windowed import WindowedStream

KEYED_ONLY = sorted(name for name in set(dir(KeyedStream)) - set(dir(Stream)) if not name.startswith("_"))


def a_stream() -> Any:
    return mp.App("a").stream("rows", mp.sources.rows([]), timestamp="at")


def a_window() -> Any:
    return a_stream().key_by("k").window("ten", mp.tumbling(10), grace=0)


def test_the_verbs_with_state_are_those_of_keyed_streams() -> None:
    assert {"stateful_map", "apply", "window", "join_interval", "aggregate", "process"} <= set(KEYED_ONLY)


@pytest.mark.parametrize("verb", KEYED_ONLY)
def test_a_verb_of_keyed_streams_asks_for_key_by(verb: str) -> None:
    with pytest.raises(AttributeError, match=rf"^{verb} needs rows with a key, .* call key_by first") as raised:
        getattr(a_stream(), verb)
    assert raised.value.name == verb


@pytest.mark.parametrize("verb", ["to", "map", "key_by", "stateful_map"])
def test_a_verb_of_streams_asks_for_aggregate(verb: str) -> None:
    with pytest.raises(AttributeError, match=rf"^{verb} needs a stream, .* call aggregate first"):
        getattr(a_window(), verb)


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (
            lambda keyed: keyed.to(mp.sinks.memory(), "out"),
            r"^to: expected a name before the sink, as in to\('out', sink\)",
        ),
        (lambda keyed: a_stream().to(mp.sinks.memory(), "out"), r"^to: expected a name before the sink"),
        (
            lambda keyed: keyed.stateful_map(lambda k, row, n: (n, n), "total", initial=0),
            r"^stateful_map: expected a name before the function, as in stateful_map\('total', f\), got <function",
        ),
        (lambda keyed: keyed.apply(lambda row, state: row, "a"), r"^apply: expected a name before the function"),
    ],
)
def test_a_verb_whose_first_argument_is_no_name_says_so(use: Any, says: str) -> None:
    with pytest.raises(mp.errors.InvalidUse, match=says):
        use(a_stream().key_by("k"))


@pytest.mark.parametrize("made", [a_stream, a_window, lambda: a_stream().key_by("k")])
def test_any_other_name_is_missing_as_usual(made: Any) -> None:
    there = made()
    assert not hasattr(there, "nonsense") and not hasattr(there, "_repr_html_") and not hasattr(there, "__deepcopy__")
    with pytest.raises(AttributeError, match=f"'{type(there).__name__}' object has no attribute 'nonsense'"):
        there.nonsense  # noqa: B018


@pytest.mark.parametrize("cls", [Stream, WindowedStream])
def test_names_and_copies_are_as_if_nothing_were_there(cls: Any) -> None:
    there = a_stream() if cls is Stream else a_window()
    assert not hasattr(there, "join_interval") and "join_interval" not in dir(there)
    empty = cls.__new__(cls)
    assert copy.copy(empty).__dict__ == pickle.loads(pickle.dumps(empty)).__dict__ == {}


@pytest.mark.parametrize("verb", ["stateful_map", "apply", "flat_apply", "update", "stateful_filter", "process"])
def test_a_misspelled_option_of_state_is_refused(verb: str) -> None:
    rows = mp.App("orders").stream("rows", mp.sources.rows([])).key_by("key")
    with pytest.raises(mp.errors.InvalidUse, match=rf"{verb}\('n'\): {verb} has no argument 'tll'.* ttl, "):
        getattr(rows, verb)("n", lambda *given: None, tll="1d")


def test_a_misspelled_option_of_a_table_is_refused() -> None:
    app = mp.App("orders")
    rows = app.stream("rows", mp.sources.rows([])).key_by("key")
    with pytest.raises(mp.errors.InvalidUse, match=r"table\('t'\): table has no argument 'every_where'"):
        app.table("t", rows, every_where=True)  # type: ignore[call-arg]


def test_tables_are_refused_by_a_verb_whose_function_has_no_handle_of_state() -> None:
    app = mp.App("orders")
    rows = app.stream("rows", mp.sources.rows([])).key_by("key")
    rules = app.table("rules", app.stream("changes", mp.sources.rows([])).key_by("rule"), everywhere=True)
    with pytest.raises(mp.errors.InvalidUse, match="stateful_map has no argument 'tables'"):
        rows.stateful_map("n", lambda key, row, n: (None, n), tables=[rules])  # type: ignore[call-arg]
