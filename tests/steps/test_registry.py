"""Every kind of step is registered, under the name that ledgers store."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest

from millpond.errors import Incompatible
from millpond.steps.kind import Step
from millpond.steps.registry import KINDS, find_kind, layout_of

STORED = {  # ledgers hold these names: one that is missing here makes old state unreadable
    "stateful_map",
    "apply",
    "flat_apply",
    "update",
    "stateful_filter",
    "apply_batch",
    "aggregate",
    "deduplicate",
    "process",
    "table",
    "lookup",
    "window",
    "join_interval",
    "join_asof",
    "join_window",
}


def subclasses(cls: type) -> Iterator[type]:
    for each in cls.__subclasses__():
        yield each
        yield from subclasses(each)


def test_every_kind_of_step_is_registered_once() -> None:
    kinds = {cls for cls in subclasses(Step) if not inspect.isabstract(cls) and cls.__module__.startswith("millpond.")}
    assert set(KINDS) == kinds and len(KINDS) == len(kinds)


def test_the_names_of_kinds_are_those_that_ledgers_store() -> None:
    assert sorted(kind.kind for kind in KINDS) == sorted(STORED)
    assert all(find_kind(kind.kind) is kind for kind in KINDS)


def test_kinds_with_a_state_handle_can_continue_with_each_others_state_and_others_cannot() -> None:
    assert {layout_of(kind) for kind in ("apply", "flat_apply", "update", "stateful_filter")} == {"apply"}
    assert {layout_of(kind) for kind in STORED} == STORED - {"flat_apply", "update", "stateful_filter"}


def test_a_kind_that_this_version_lacks_is_refused_by_its_name() -> None:
    assert layout_of("telepathy") == "telepathy"
    with pytest.raises(Incompatible, match="kept by a telepathy, a kind of step that this version of Millpond lacks"):
        find_kind("telepathy")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_only_kinds_that_can_expire_hide_cells_of_timers(kind: type[Step]) -> None:
    assert kind.is_shown(b"t:remind") is not kind.can_expire
