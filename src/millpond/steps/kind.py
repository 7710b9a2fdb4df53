"""What a kind of step is: a class that describes a step of a program and says what its state can do.

Each verb that keeps state has one, in the verb's file, listed in `steps/registry.py`. The rest of the code asks the
class, never its name: the name is only stored in the ledger and shown in messages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Self

from millpond.codec import Codec
from millpond.replica import View
from millpond.replica.store import Store
from millpond.rows.rows import Rows
from millpond.steps.base import Running, StepContext
from millpond.steps.failure import FAULTS, FailedRow, OnError, is_needed_again, own_copy
from millpond.steps.state.lazy_migration import UNMARKED, RunningOverOldState, UpgradedView
from millpond.steps.state.migration import Migration
from millpond.steps.state.named import is_state
from millpond.steps.state.ttl import TTL
from millpond.timing import Duration


@dataclass(frozen=True, kw_only=True)
class StateSettings:
    """What the user said about a step's state, checked."""

    types: tuple[type, ...] = ()
    ttl: TTL | None = None
    version: int = 1  # state of an older version is migrated
    migrations: Mapping[int, Callable[..., Any]] = field(default_factory=dict)  # from a version to the next
    is_lazy: bool = False  # a key is migrated when it is met, not before the first batch
    renamed_from: str | None = None
    store: Store | None = None  # where the state is kept on a host; None means as the app says


@dataclass(frozen=True)
class StoredKey:
    """One key and the cells that a step holds for it, sorted, as read from the log or a replica."""

    key: Any
    cells: list[tuple[bytes, bytes]]
    codec: Codec
    detail: dict[str, Any]  # the step's detail in the record


@dataclass(frozen=True, kw_only=True)
class Step(ABC):
    """A stateful operator of a program: what is the same in every batch. Subclasses are the kinds of steps."""

    kind: ClassVar[str]  # as the ledger stores it: never change one
    layout: ClassVar[str | None] = None  # kinds of one layout can continue with each other's state; None: of its own
    can_expire: ClassVar[bool] = False  # the state may have a TTL
    migration: ClassVar[type[Migration] | None] = None  # how the user's migrations are applied; None: not at all
    changes_rows: ClassVar[bool] = False  # the user's function is meant to change its row in place
    shows_results: ClassVar[bool] = False  # `show` computes the value, so that other cells may show the same one
    emits_own_rows: ClassVar[bool] = False  # the outputs are rows of the step's own making, not the user's

    name: str
    on_error: OnError = "stop"
    state: StateSettings = StateSettings()

    def start(self, context: StepContext) -> Running:
        """Start the step for one batch of one partition."""
        oldest = (context.previous_detail or {}).get(UNMARKED) if self.state.is_lazy else None
        begin = self.begin_expiring if is_expiring(self, context) else self.begin
        if oldest is None:
            return begin(context)
        view = UpgradedView(context.view, self.name, self.migration_from(oldest, context.codec.types))
        return RunningOverOldState(view, begin, context)

    @abstractmethod
    def begin(self, context: StepContext) -> Running:
        """Start the step over state that is all of the step's version."""

    def begin_expiring(self, context: StepContext) -> Running:
        """Do the same where the state has a TTL, or had one until the batch before."""
        return self.begin(context)

    @cached_property
    def copies_rows(self) -> bool:
        """Whether the user's function gets a copy of each row, because the row is needed as it was if it fails."""
        return self.changes_rows or is_needed_again(self.on_error)

    @property
    def detail(self) -> dict[str, Any]:
        """What the ledger stores of the step's definition: needed to read its state, or to notice that it changed."""
        return {} if self.state.ttl is None else {"ttl": self.state.ttl.detail}

    @property
    def watermark_lag(self) -> tuple[Duration, ...] | None:
        """By how much, in sum, the watermark of the output is behind that of the input; None: it has none."""
        return ()

    @property
    def fields_read(self) -> tuple[str, ...] | None:
        """The fields that the step reads of rows that are columns of numbers; None: all of them."""
        return None

    @property
    def is_everywhere(self) -> bool:
        """Whether every worker holds all of the state."""
        return False

    @property
    def retracts(self) -> bool:
        """Whether some outputs take earlier ones back."""
        return False

    def state_types(self) -> list[Any]:
        """Return the classes that the step's state is known to hold, from what the program says."""
        return list(self.state.types)

    def check_detail(self, app: str, stored: Mapping[str, Any]) -> None:
        """Raise `Incompatible` if the step cannot continue with state whose detail in the ledger is this."""
        return None

    # --- state of older versions ---

    def migration_from(self, oldest: int, types: tuple[type, ...]) -> Migration:
        """Return what brings a key's state to the step's version; state without a mark is of version `oldest`."""
        assert self.migration is not None
        return self.migration(self.name, self.state.migrations, oldest, self.state.version, types)

    def upgraded_view(self, view: View, oldest: int | None, types: tuple[type, ...]) -> View:
        """Return a view of the step's version of the state, where some of it may be older and is migrated lazily."""
        if oldest is None or not self.state.is_lazy:
            return view
        return UpgradedView(view, self.name, self.migration_from(oldest, types))

    # --- state seen from outside ---

    @classmethod
    def is_shown(cls, cell: bytes) -> bool:
        """Return whether a cell is part of the value that `app.state` shows: timers and TTLs are not."""
        return not cls.can_expire or is_state(cell)

    @classmethod
    @abstractmethod
    def show(cls, stored: StoredKey, step: Self | None) -> Any:
        """Return the value of a key as `app.state` shows it; `step` is the program's, None if there is no program."""


def is_expiring(step: Step, context: StepContext) -> bool:
    """Return whether the state has a TTL, or had one until the batch before, so that entries have times."""
    return step.state.ttl is not None or bool((context.previous_detail or {}).get("ttl"))


def call_for_rows(step: Step, context: StepContext, rows: Rows, once: Callable[[int, int, Any], None]) -> None:
    """Call `once(i, k, row)` for every row i, whose key is the k-th; a row that fails is handled by `on_error`.

    `once` must change nothing when it raises, so that it can be called again.
    """
    keys = rows.keys
    assert keys is not None
    is_copied = step.copies_rows
    for i, (k, row) in enumerate(zip(keys.index, rows.objects(), strict=True)):
        try:
            once(i, k, own_copy(row) if is_copied else row)
        except FAULTS as error:
            context.failures.handle(
                step.on_error,
                step.name,
                error,
                FailedRow(
                    key=keys.objects[k],
                    row=row,
                    order=rows.order[i],
                    again=lambda i=i, k=k, row=row: once(i, k, own_copy(row)),  # type: ignore[misc]
                ),
            )
