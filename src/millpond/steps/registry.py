"""The kinds of steps, by the name that the ledger stores. A new verb that keeps state is listed here."""

from __future__ import annotations

from millpond.errors import Incompatible
from millpond.steps.joins.asof import AsofJoinStep
from millpond.steps.joins.interval import IntervalJoinStep
from millpond.steps.joins.window import WindowJoinStep
from millpond.steps.kind import Step
from millpond.steps.verbs.aggregate import AggregateStep
from millpond.steps.verbs.apply import ApplyStep, FlatApplyStep, StatefulFilterStep, UpdateStep
from millpond.steps.verbs.apply_batch import ApplyBatchStep
from millpond.steps.verbs.deduplicate import DeduplicateStep
from millpond.steps.verbs.lookup import LookupStep
from millpond.steps.verbs.process import ProcessStep
from millpond.steps.verbs.stateful_map import StatefulMapStep
from millpond.steps.verbs.table import TableStep
from millpond.steps.windows.window_step import WindowStep

KINDS: tuple[type[Step], ...] = (
    StatefulMapStep,
    ApplyStep,
    FlatApplyStep,
    UpdateStep,
    StatefulFilterStep,
    ApplyBatchStep,
    AggregateStep,
    DeduplicateStep,
    ProcessStep,
    TableStep,
    LookupStep,
    WindowStep,
    IntervalJoinStep,
    AsofJoinStep,
    WindowJoinStep,
)
_BY_NAME = {kind.kind: kind for kind in KINDS}


def find_kind(name: str) -> type[Step]:
    """Return the class of a kind that a ledger names."""
    found = _BY_NAME.get(name)
    if found is None:
        raise Incompatible(f"the state was kept by a {name}, a kind of step that this version of Millpond lacks")
    return found


def layout_of(name: str) -> str:
    """Return the layout of the state of a kind; a kind that is not known has one of its own."""
    found = _BY_NAME.get(name)
    return name if found is None or found.layout is None else found.layout
