"""Functions that cannot be called as they will be are refused where the program is written."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import pytest

import millpond as mp
from millpond.user_functions import check_function


def takes_anything(*args: Any, **how: Any) -> Any:
    """Takes anything."""


def two(a: int, b: int = 3) -> int:
    return a + b


def wrapped(f: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator whose functions take one argument less than those that it is put on."""

    @functools.wraps(f)
    def call(row: Any) -> Any:
        return f(row, "of the decorator")

    return call


@wrapped
def with_help(row: Any, help: str) -> Any:
    return row, help


@dataclass
class Order:
    id: int


class Caller:
    def __call__(self, row: Any) -> Any:
        return row


class Odd:
    @property
    def __signature__(self) -> Any:
        raise RuntimeError("no")

    def __call__(self, row: Any) -> Any:
        return row


def by_hand(row: Any) -> Any:
    return row


by_hand.__signature__ = inspect.signature(lambda a, b, c: None)  # type: ignore[attr-defined]


def with_text_signature(*rows: Any) -> Any:
    return rows


with_text_signature.__text_signature__ = "()"  # type: ignore[attr-defined]


class StaticCaller:
    __call__ = staticmethod(by_hand)


class ClassCaller:
    @classmethod
    def __call__(cls, row: Any) -> Any:
        return row


class PartialCaller:
    __call__ = functools.partial(lambda n, row: row, 1)


class MakesAnother:
    def __new__(cls, row: Any) -> Any:
        return row


class NeverInitialised(MakesAnother):
    def __init__(self) -> None:
        """Is not called, because `__new__` returns no object of this class."""


class Meta(type):
    def __call__(cls, row: Any) -> Any:
        return row


class OfMeta(metaclass=Meta):
    def __init__(self) -> None:
        """Is not called."""


class WithMethods:
    def __init__(self, row: Any) -> None:
        self.row = row

    @staticmethod
    def static(row: Any) -> Any:
        return row

    @classmethod
    def of_class(cls, row: Any) -> Any:
        return row

    of_partial = functools.partialmethod(lambda self, n, row: row, 1)

    def two_more(self, a: Any, b: Any) -> Any:
        return a, b


class NoRow:
    def __call__(self) -> None:
        """Takes nothing."""


class NeedsTwo:
    def __init__(self, a: Any, b: Any) -> None:
        self.both = a, b


@pytest.mark.parametrize(
    "f",
    [
        takes_anything,
        two,
        with_help,
        Order,
        Caller(),
        Odd(),
        by_hand,
        functools.partial(by_hand),
        with_text_signature,
        StaticCaller(),
        ClassCaller(),
        PartialCaller(),
        MakesAnother,
        NeverInitialised,
        OfMeta,
        WithMethods,
        WithMethods.static,
        WithMethods.of_class,
        WithMethods(1).of_partial,
        str.split,
        print,
        max,
        int,
        dict,
        list,
        np.sqrt,
        operator.itemgetter("a"),
        functools.partial(two, 1),
        functools.lru_cache(lambda row: row),
        mock.Mock(),
        mock.create_autospec(two),
        Caller().__call__,
        lambda *rows: rows,
        lambda row, n=3, *, more=1: row,
    ],
    ids=lambda f: getattr(f, "__name__", type(f).__name__),
)
def test_what_can_be_called_with_a_row_is_taken(f: Any) -> None:
    assert check_function(f, "map", "row") is f


@pytest.mark.parametrize(
    ("f", "text"),
    [
        (3, "map: expected a function, got 3"),
        (lambda: 1, r"of 1 argument \(row\), got <lambda>\(\), which takes none$"),
        (lambda a, b: 1, r"got <lambda>\(a, b\), which takes 2$"),
        (lambda a, b, c=1: 1, r"got <lambda>\(a, b, c=1\), which takes 2 to 3$"),
        (lambda a, b, *c: 1, r"got <lambda>\(a, b, \*c\), which takes at least 2$"),
        (lambda row, *, b: 1, r"got <lambda>\(row, \*, b\), which needs the keyword argument 'b'$"),
        (lambda row, *, b, c: 1, r"which needs the keyword arguments 'b', 'c'$"),
        (functools.partial(two, 1, 2), r"got functools.partial\(.*\) with the parameters \(\), which takes none$"),
        (WithMethods(1).two_more, r"got two_more\(a, b\), which takes 2$"),
        (NoRow(), r"got .*NoRow object.* with the parameters \(\), which takes none$"),
        (NeedsTwo, r"got NeedsTwo\(a, b\), which takes 2$"),
    ],
)
def test_what_cannot_is_refused_with_its_signature(f: Any, text: str) -> None:
    with pytest.raises(mp.errors.InvalidUse, match=text):
        check_function(f, "map", "row")


class Processor:
    def on_row(self, key, row, state):
        return None


class OnTimer:
    def on_row(self, key, row, state, timers):
        return None

    def on_timer(self, timer):
        return None


class NeedsArguments:
    def __init__(self, url):
        self.url = url

    def on_row(self, key, row, state, timers):
        return None


def of_nothing() -> None:
    """Takes nothing, while every function of the verbs below gets something."""


def of_one(row):
    return row


# Type checkers find these mistakes, too.
none: Any = of_nothing
one: Any = of_one
anything: Any = takes_anything


VERBS: dict[str, tuple[Callable[[Any, Any, Any], Any], str]] = {
    "map": (lambda s, k, app: s.map(none), "map: "),
    "filter": (lambda s, k, app: k.filter(none), "filter: "),
    "flat_map": (lambda s, k, app: s.flat_map(none), "flat_map: "),
    "inspect": (lambda s, k, app: k.inspect(none), "inspect: "),
    "with_time": (lambda s, k, app: s.with_time(none), "with_time: "),
    "map_async": (lambda s, k, app: k.map_async(none), "map_async: "),
    "map_batch": (lambda s, k, app: s.map_batch(none), r"map_batch: .*\(table\)"),
    "branch": (lambda s, k, app: s.branch(small=none), r"branch\(small\): "),
    "key_by": (lambda s, k, app: s.key_by(none), "key_by: "),
    "key_by named": (lambda s, k, app: s.key_by(size=none), r"key_by\(size=\): "),
    "timestamp": (lambda s, k, app: app.stream("x", mp.sources.rows([]), timestamp=none), r"stream\('x', timestamp\)"),
    "stateful_map": (lambda s, k, app: k.stateful_map("x", one), r"stateful_map\('x'\): .*\(key, row, state\)"),
    "initial": (
        lambda s, k, app: k.stateful_map("x", lambda key, row, state: None, initial=one),
        r"stateful_map\('x', initial\): expected a function of no arguments",
    ),
    "migrate": (
        lambda s, k, app: k.apply("x", lambda row, state: None, version=2, migrate={1: none}),
        r"apply\('x'\), migrate=\{1: …\}: .*\(value\)",
    ),
    "apply": (lambda s, k, app: k.apply("x", one), r"apply\('x'\): .*\(row, state\)"),
    "apply_batch": (
        lambda s, k, app: k.apply_batch("x", one, state={"n": int}),
        r"apply_batch\('x'\): .*\(rows, states\)",
    ),
    "flat_apply": (lambda s, k, app: k.flat_apply("x", one), r"flat_apply\('x'\): "),
    "update": (lambda s, k, app: k.update("x", one), r"update\('x'\): "),
    "stateful_filter": (lambda s, k, app: k.stateful_filter("x", one), r"stateful_filter\('x'\): "),
    "deduplicate": (lambda s, k, app: k.deduplicate("x", none), r"deduplicate\('x', by\): "),
    "process": (lambda s, k, app: k.process("x", one), r"process\('x'\): expected a function of no arguments"),
    "process class": (
        lambda s, k, app: k.process("x", Processor),
        r"process\('x'\), on_row: expected a function of 5 arguments \(self, key, row, state, timers\)",
    ),
    "process object": (lambda s, k, app: k.process("x", Processor()), r"on_row: .*\(key, row, state, timers\)"),
    "on_timer": (lambda s, k, app: k.process("x", OnTimer()), r"on_timer: .*\(key, timer, state, timers\)"),
    "process init": (lambda s, k, app: k.process("x", NeedsArguments), r"NeedsArguments\(url\), which takes 1"),
    "join": (
        lambda s, k, app: k.join_interval("x", k, grace=0, merge=one),
        r"join_interval\('x', merge\): .*\(left, right\)",
    ),
    "table": (lambda s, k, app: app.table("x", k, deleted=none), r"table\('x', deleted\): "),
    "lookup on": (
        lambda s, k, app: s.lookup("x", app.table("t", k, everywhere=True), on=none),
        r"lookup\('x', on\): ",
    ),
    "lookup merge": (
        lambda s, k, app: s.lookup("x", app.table("t", k, everywhere=True), on="k", merge=one),
        r"lookup\('x', merge\): .*\(row, table_row\)",
    ),
    "external": (lambda s, k, app: mp.external(none), r"external\(fetch\): .*\(keys\)"),
    "sum": (lambda s, k, app: mp.sum(none), "sum"),
    "aggregation": (lambda s, k, app: mp.aggregation(initial=0, update=one), r"aggregation\(update=\): .*\(acc, row\)"),
    "merge": (
        lambda s, k, app: mp.aggregation(initial=0, update=anything, merge=one),
        r"aggregation\(merge=\): .*\(acc, acc\)",
    ),
    "initial of an aggregation": (lambda s, k, app: mp.aggregation(initial=one, update=anything), "no arguments"),
    "on_match": (lambda s, k, app: mp.triggers.on_match(none), "on_match"),
    "when": (lambda s, k, app: mp.triggers.when(one), r"when\(f\): .*\(result, row\)"),
    "custom": (
        lambda s, k, app: mp.triggers.custom(advance=anything, fires=one),
        r"custom\(fires=\): .*\(state, event\)",
    ),
    "sink": (lambda s, k, app: mp.sinks.function(one), r"\(rows, delivery\)"),
    "dataframe sink": (lambda s, k, app: mp.sinks.dataframe(one), r"\(frame, delivery\)"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_refuses_a_function_of_other_arguments(verb: str) -> None:
    build, text = VERBS[verb]
    app = mp.App("shop")
    rows = app.stream("rows", mp.sources.rows([]), timestamp="at")
    with pytest.raises(mp.errors.InvalidUse, match=text):
        build(rows, rows.key_by("k"), app)
