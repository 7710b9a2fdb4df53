"""State that the program cannot read any more: it is said so, whatever happens to rows, and it can be migrated."""

from __future__ import annotations

import dataclasses
import enum
import functools
from typing import Any

import msgspec
import pytest

import millpond as mp


@functools.cache
def account(kind: str, version: int) -> Any:
    """The class of the state: in version 2 it has one more field, which a value must have."""
    fields = [("total", int)] if version == 1 else [("total", int), ("currency", str)]
    if kind == "dataclass":
        made: Any = dataclasses.make_dataclass("Account", fields)
    else:
        made = msgspec.defstruct("Account", fields)
    made.__module__, made.__qualname__ = __name__, "Account"
    return made


ON_ERROR = ["stop", "skip", "dead-letter", mp.retry(2, 0.001, then="skip")]
POLICIES = pytest.mark.parametrize("on_error", ON_ERROR, ids=["stop", "skip", "dead-letter", "retry"])
CLASSES = pytest.mark.parametrize("kind", ["dataclass", "struct"])
VERBS = ["stateful_map", "stateful_map with ttl", "apply", "process", "timer", "table", "window", "join"]


def app(verb: str, kind: str, shape: int, on_error: Any = "stop", **how: Any) -> mp.App:
    """A program that keeps an Account for every key, in one way or another."""
    cls = account(kind, shape)
    app = mp.App("accounts", partitions=2)
    rows = app.stream("rows", mp.sources.rows([]), timestamp="at", on_error=on_error).key_by("k")
    app.stream("typed", mp.sources.rows([]), type=cls)  # it is known, but not as the class of the state

    def new(total: int) -> Any:
        return cls(total) if shape == 1 else cls(total, "EUR")

    def add(key: str, row: Any, state: Any) -> Any:
        total = row["v"] + (0 if state is None else state.total)
        return total, new(total)

    def put(row: Any, state: mp.State) -> Any:
        old = state.get("account")
        total = row["v"] + (0 if old is None else old.total)
        state.set("account", new(total))
        return total

    class Later:
        def on_row(self, key: str, row: Any, state: mp.State, timers: mp.Timers) -> Any:
            if verb == "process":
                return put(row, state)
            if shape == 1:
                state.set("account", new(row["v"]))
                timers.set("later", at=100)
            return None

        def on_timer(self, key: str, timer: mp.Timer, state: mp.State, timers: mp.Timers) -> Any:
            return state.get("account").total

    if verb.startswith("stateful_map"):
        lives: dict[str, Any] = {"ttl": 1000} if "ttl" in verb else {}
        rows.stateful_map("account", add, initial=None, **lives, **how).to("out", mp.sinks.memory())
    elif verb == "apply":
        rows.apply("account", put, **how).to("out", mp.sinks.memory())
    elif verb in ("process", "timer"):
        rows.process("account", Later, **how).to("out", mp.sinks.memory())
    elif verb == "window":
        windowed = rows.window("account", mp.global_window(), trigger=mp.triggers.on_update())
        total = mp.aggregation(initial=list, update=lambda acc, row: [add("", row, acc[0] if acc else None)[1]])
        windowed.aggregate(total=total).map(lambda row: row["total"][0].total).to("out", mp.sinks.memory())
    elif verb == "join":
        made = rows.map(lambda row: new(row["v"]) if row["v"] == 1 else {**row}).with_time(lambda row: 5).key_by(k=_any)
        other = app.stream("other", mp.sources.rows([]), timestamp="at").key_by(k=_any)
        made.join_interval("account", other, before=10, after=10, grace=0, merge=lambda a, b: a.total).to(
            "out", mp.sinks.memory()
        )
    else:
        table = app.table("account", rows.map(lambda row: new(row["v"])).key_by(k=_any), **how)
        asked = app.stream("asked", mp.sources.rows([]), on_error=on_error).key_by(k=_any)
        asked.lookup("with", table, merge=lambda row, found: found.total).to("out", mp.sinks.memory())
    app.dead_letters.to("dead", mp.sinks.memory())
    return app


def _any(row: Any) -> str:
    return "a"


def meet(driver: mp.testing.TestDriver, verb: str) -> None:
    """A row, or a moment, that needs what is kept for the key."""
    if verb == "table":
        driver.send("asked", [{"k": "a"}])
    elif verb == "join":
        driver.send("other", [{"k": "a", "at": 5}])
    else:
        driver.send("rows", [{"k": "a", "v": 2, "at": 200 if verb == "timer" else 2}])


@POLICIES
@CLASSES
@pytest.mark.parametrize("verb", VERBS)
def test_state_that_cannot_be_read_is_incompatible_whatever_on_error_says(verb: str, kind: str, on_error: Any) -> None:
    with mp.testing.TestDriver(app(verb, kind, 1)) as control:
        control.send("rows", [{"k": "a", "v": 1, "at": 1}])
        meet(control, verb)
        expected = control.output("out"), dict(control.state("account").items())
    with mp.testing.TestDriver(app(verb, kind, 1)) as driver:
        driver.send("rows", [{"k": "a", "v": 1, "at": 1}])
        with pytest.raises(mp.errors.Incompatible) as raised:
            driver.restart(app(verb, kind, 2, on_error))
            meet(driver, verb)
        text = str(raised.value)
        assert "step 'account'" in text and "'currency'" in text
        assert "key 'a'" in text or verb == "join"
        assert "migrate=" in text and "app.rebuild('account', switch=True)" in text
        driver.restart(app(verb, kind, 1))  # no row and no state was lost
        assert (driver.output("out"), dict(driver.state("account").items())) == expected
        assert driver.output("dead") == []


def test_a_function_that_catches_the_error_does_not_hide_it() -> None:
    def careless(cls: Any) -> mp.App:
        app = mp.App("accounts", partitions=1)
        rows = app.stream("rows", mp.sources.rows([]), on_error="skip").key_by("k")

        def put(row: Any, state: mp.State) -> None:
            try:
                state.get("account")
            except Exception:
                if row["v"] == 3:
                    raise ValueError("another error") from None
            state.set("account", row["v"] if cls is None else cls(row["v"]))

        rows.apply("account", put)
        return app

    for value in (2, 3):
        with mp.testing.TestDriver(careless(account("dataclass", 1))) as driver:
            driver.send("rows", [{"k": "a", "v": 1}])
            changed = careless(None)
            changed.stream("typed", mp.sources.rows([]), type=account("dataclass", 2))
            with pytest.raises(mp.errors.Incompatible, match=r"step 'account', key 'a': its state cannot be read"):
                driver.restart(changed)
                driver.send("rows", [{"k": "a", "v": value}])


def with_currency(old: Any) -> Any:
    """As `migrate=` has it: the class of now cannot hold what was stored, so the function is given its fields."""
    assert old == {"total": 1}
    return {"total": old["total"] * 100, "currency": "EUR"}


@pytest.mark.parametrize("way", ["at once", "lazily"])
@CLASSES
@pytest.mark.parametrize("verb", ["stateful_map", "stateful_map with ttl", "apply", "process", "table"])
def test_a_class_that_gained_a_required_field_is_migrated(verb: str, kind: str, way: str) -> None:
    cls = account(kind, 2)

    def value(old: Any) -> Any:
        return cls(**with_currency(old))

    def names(old: Any) -> Any:
        return {"account": cls(**with_currency(old["account"]))}

    migrate: Any = {1: names if verb in ("apply", "process") else value}
    migrate = mp.lazily(migrate) if way == "lazily" else migrate
    with mp.testing.TestDriver(app(verb, kind, 1)) as driver:
        driver.send("rows", [{"k": "a", "v": 1, "at": 1}, {"k": "b", "v": 1, "at": 1}])
        driver.restart(app(verb, kind, 2, "skip", version=2, migrate=migrate, type=cls))
        shown = driver.state("account").get("a")
        assert (shown["account"] if verb in ("apply", "process") else shown) == cls(100, "EUR")
        meet(driver, verb)
        assert driver.output("out")[-1] == (100 if verb == "table" else 102)
        driver.restart(app(verb, kind, 2, version=2, migrate=migrate, type=cls), lose_replicas=True)
        assert len(dict(driver.state("account").items())) == (1 if verb == "table" else 2)


@pytest.mark.parametrize("verb", ["stateful_map", "apply", "window", "table"])
def test_a_value_that_cannot_be_read_is_shown_by_its_fields_and_can_be_rebuilt(verb: str) -> None:
    with mp.testing.TestDriver(app(verb, "dataclass", 1)) as driver:
        driver.send("rows", [{"k": "a", "v": 1, "at": 1}])
        with pytest.raises(mp.errors.Incompatible):
            driver.restart(app(verb, "dataclass", 2))
            meet(driver, verb)
        shown = driver.state("account").get("a")
        assert "{'total': 1}" in str(shown)
        [found] = driver.rebuild("account", switch=True)
        assert found.live == shown
        assert "Account(total=1, currency='EUR')" in str(found.rebuilt)
        driver.restart()
        assert driver.output("out")[-1] == (1 if verb == "table" else 3)


def test_an_enum_that_lost_a_member_is_incompatible_and_can_be_migrated() -> None:
    def paint(kinds: Any, **how: Any) -> mp.App:
        app = mp.App("paint", partitions=1)
        rows = app.stream("rows", mp.sources.rows([]), on_error="skip").key_by("k")
        rows.stateful_map("color", lambda k, row, old: (None, kinds[row["c"]]), initial=None, type=kinds, **how)
        return app

    more: Any = enum.Enum("Color", {"RED": "red", "BLUE": "blue"}, module=__name__)  # type: ignore[misc]
    fewer: Any = enum.Enum("Color", {"RED": "red"}, module=__name__)  # type: ignore[misc]
    with mp.testing.TestDriver(paint(more)) as driver:
        driver.send("rows", [{"k": "a", "c": "BLUE"}])
        with pytest.raises(mp.errors.Incompatible, match=r"step 'color', key 'a': .* a member 'BLUE'"):
            driver.restart(paint(fewer))
            driver.send("rows", [{"k": "a", "c": "RED"}])
        known = {"BLUE": fewer.RED}
        driver.restart(paint(fewer, version=2, migrate={1: lambda name: known[name]}))
        assert driver.state("color").get("a") is fewer.RED


# --- before the first batch, where the record tells what the classes looked like ---


def kept(cls: Any, way: str, name: str = "account", partitions: int = 2, **how: Any) -> mp.App:
    """A program that says in one of several ways of which class its state is."""
    app = mp.App("kept", partitions=partitions)
    rows = app.stream("rows", mp.sources.rows([])).key_by("k")

    def add(key: str, row: Any, state: Any) -> Any:
        return None, row["v"] if isinstance(row["v"], str) else cls(*[row["v"], "EUR"][: len(cls.__annotations__)])

    if way == "annotation":
        add.__annotations__ = {"state": cls}
        rows.stateful_map(name, add, initial=None, **how)
    elif way == "initial":
        rows.stateful_map(name, add, initial=cls(*[0, "EUR"][: len(cls.__annotations__)]), **how)
    elif way == "nested":
        rows.stateful_map(name, lambda k, row, old: (None, [add(k, row, old)[1]]), initial=None, type=list[cls], **how)
    else:
        rows.stateful_map(name, add, initial=None, type=cls, **how)
    return app


@pytest.mark.parametrize("way", ["type", "initial", "annotation", "nested"])
def test_a_program_that_cannot_read_its_state_is_refused_before_its_first_batch(way: str) -> None:
    old, new = account("dataclass", 1), account("dataclass", 2)
    with mp.testing.TestDriver(kept(old, way)) as driver:
        driver.send("rows", [{"k": "b", "v": "none"}, {"k": "a", "v": 1}])
        for changed in (kept(new, way), kept(new, way, partitions=5), kept(new, way, "other", renamed_from="account")):
            with pytest.raises(mp.errors.Incompatible, match=r"', key 'a': its state cannot be read .*'currency'"):
                driver.restart(changed)
        driver.restart(kept(old, way))
        driver.send("rows", [{"k": "a", "v": 2}])
        shown = driver.state("account").get("a")
        assert (shown[0] if way == "nested" else shown).total == 2


def test_a_class_that_no_stored_value_has_may_change() -> None:
    old, new = account("struct", 1), account("struct", 2)
    with mp.testing.TestDriver(kept(old, "type")) as driver:
        driver.send("rows", [{"k": "a", "v": "none"}])
        driver.restart(kept(new, "type"))
        driver.send("rows", [{"k": "a", "v": 1}])
        assert driver.state("account").get("a") == new(1, "EUR")


def test_a_field_with_a_default_is_no_reason_to_look_at_the_state() -> None:
    old = account("dataclass", 1)
    tags = dataclasses.field(default_factory=list)
    new: Any = dataclasses.make_dataclass("Account", [("total", int), ("tags", list, tags)])
    new.__module__, new.__qualname__ = __name__, "Account"
    with mp.testing.TestDriver(kept(old, "type")) as driver:
        driver.send("rows", [{"k": "a", "v": 1}])
        driver.restart(kept(new, "type"))
        assert driver.state("account").get("a") == new(1, [])


# --- state of another shape, of types that can always be read ---


def total_of(shape: str, ttl: str | None = None, on_error: Any = "stop", initial: Any = 0, **how: Any) -> mp.App:
    def add(key: str, row: Any, state: Any) -> Any:
        if shape == "number":
            return None, state + row["v"]
        return None, {"total": state["total"] + row["v"]}

    app = mp.App("totals", partitions=1)
    rows = app.stream("rows", mp.sources.rows([]), on_error=on_error).key_by("k")
    rows.stateful_map("total", add, initial=initial, ttl=ttl, **how)
    app.dead_letters.to("dead", mp.sinks.memory())
    return app


ROW = [{"k": "a", "v": 1}]


@pytest.mark.parametrize("ttl", [None, "1h"])
@pytest.mark.parametrize("on_error", ["stop", "dead-letter", mp.retry(1, 0.001, then="dead-letter")], ids=str)
def test_a_function_that_fails_on_state_of_another_type_gets_a_hint(ttl: str | None, on_error: Any) -> None:
    hint = (
        "The state of this key is 1, of type int, where initial= is of type dict. If an earlier version of the program "
        "has written it, give step 'total' a version= and a function in migrate= that converts it."
    )
    with mp.testing.TestDriver(total_of("number", ttl)) as driver:
        driver.send("rows", ROW)
        driver.restart(total_of("dict", ttl, on_error, initial={"total": 0}))
        if on_error == "stop":
            with pytest.raises(mp.errors.StepFailed, match="a function raised TypeError") as caught:
                driver.send("rows", ROW)
            text = str(caught.value)
        else:
            driver.send("rows", ROW)
            text = driver.output("dead")[0]["traceback"]
        assert text.endswith(hint)
        assert driver.state("total").get("a") == 1


def test_a_dict_that_lacks_what_initial_has_gets_a_hint() -> None:
    with mp.testing.TestDriver(total_of("dict", initial={"total": 0})) as driver:
        driver.send("rows", ROW)
        driver.restart(total_of("other", initial={"total": 0, "n": 0}))
        driver.send("rows", ROW)  # a function that knows both is left alone
        app = mp.App("totals", partitions=1)
        rows = app.stream("rows", mp.sources.rows([])).key_by("k")
        rows.stateful_map("total", lambda key, row, state: (None, {"n": state["n"] + 1}), initial={"n": 0})
        driver.restart(app)
        text = r"\nThe state of this key is \{'total': 2\}, without 'n', which initial= has\. If an earlier"
        with pytest.raises(mp.errors.StepFailed, match=text):
            driver.send("rows", ROW)


@pytest.mark.parametrize("ttl", [None, "1h"])
@pytest.mark.parametrize("shape", ["number", "dict"])
def test_a_function_that_fails_on_the_none_that_a_key_starts_with_gets_a_hint(shape: str, ttl: str | None) -> None:
    hint = (
        "The state of this key is None, because step 'total' has no initial=. Give the state that a key starts with, "
        "such as initial=0, or let the function handle None."
    )
    with mp.testing.TestDriver(total_of(shape, ttl, initial=None)) as driver:
        with pytest.raises(mp.errors.StepFailed, match=r"a function raised TypeError.*NoneType") as caught:
            driver.send("rows", ROW)
        assert str(caught.value).endswith(hint)
    with mp.testing.TestDriver(total_of(shape, ttl, initial="text")) as driver:
        with pytest.raises(mp.errors.StepFailed, match="a function raised TypeError") as caught:
            driver.send("rows", ROW)
        assert "initial=" not in str(caught.value)


@pytest.mark.parametrize("initial", [0, 0.5, None], ids=str)
def test_a_function_that_fails_on_a_state_like_its_initial_one_gets_no_hint(initial: Any) -> None:
    def add(key: str, row: Any, state: Any) -> Any:
        if row["v"] == 2:
            raise ValueError("two")
        return None, 1

    app = mp.App("totals", partitions=1)
    app.stream("rows", mp.sources.rows([])).key_by("k").stateful_map("total", add, initial=initial)
    with mp.testing.TestDriver(app) as driver:
        driver.send("rows", ROW)
        with pytest.raises(mp.errors.StepFailed, match="two") as caught:
            driver.send("rows", [{"k": "a", "v": 2}])
        assert "The state of this key" not in str(caught.value)
