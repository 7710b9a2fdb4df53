"""Migrations: the user's functions over state of older versions, run on all of it at once or key by key.

State that is migrated lazily is stored in several versions side by side. A key whose state was written since the
version changed has one more cell:

    ~   the version of the key's state; where it is missing, the record says which version the state has
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from millpond.codec import Codec, decode_key, encode_key
from millpond.errors import Incompatible, InvalidUse, short_repr
from millpond.log.segment import Change
from millpond.steps.failure import FAULTS
from millpond.steps.state.named import cell_for, cell_name

MARK = b"~"


class Lazily(dict[int, Callable[..., Any]]):
    """Migrations that run on a key's state when it is next needed, not before the first batch."""


def lazily(migrate: Mapping[int, Callable[..., Any]]) -> Lazily:
    """Return a `migrate=` that rewrites nothing at the start: a key's state is migrated when it is next needed.

    The first row, timer or expiry of a key with an older version migrates its state, and that batch stores it in the
    new version. Readers (`app.state`, a `lookup`) get the migrated value. The functions must take the value alone: a
    function of key and value may move state to another partition, which is possible only for all state at once.

    >>> import millpond as mp
    >>> app = mp.App("orders")
    >>> orders = app.stream("orders", mp.sources.rows([])).key_by("customer")
    >>> def add_up(customer, order, account):
    ...     return None, {"total": account["total"] + order["amount"]}
    >>> def upgrade(total):
    ...     return {"total": total}
    >>> totals = orders.stateful_map(
    ...     "total", add_up, initial={"total": 0}, version=2, migrate=mp.lazily({1: upgrade})
    ... )
    """
    if not isinstance(migrate, Mapping):
        raise InvalidUse(f"lazily: expected migrations by version such as {{1: upgrade}}, got {migrate!r}")
    for version, function in migrate.items():
        if callable(function) and takes_key(function):
            raise InvalidUse(
                f"lazily: the migration from version {version} is a function of key and value, and a key that changes "
                "must move before the first row of its new name comes. Say migrate= without lazily, or make it a "
                "function of the value alone."
            )
    return Lazily(migrate)


@dataclass(frozen=True)
class Migration(ABC):
    """The user's functions over the cells of one key."""

    is_single_value: ClassVar[bool]  # a key has one value, in the cell ""

    step: str
    functions: Mapping[int, Callable[..., Any]]
    oldest: int  # the version of state that has no mark
    version: int  # the one that it is brought to
    types: tuple[type, ...] = ()

    @cached_property
    def _codec(self) -> Codec:
        return Codec(self.types, unknown="plain")

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_codec"}

    def version_of(self, mark: bytes | None) -> int:
        """Return the version of a key's state, given the value of its mark."""
        return self.oldest if mark is None else int(mark)

    def __call__(self, cells: list[Change]) -> list[Change]:
        """Return the cells that replace those of a key; no mark is among them."""
        version = self.version_of(next((cell.value for cell in cells if cell.cell == MARK), None))
        cells = [cell for cell in cells if cell.cell != MARK]
        return cells if not cells or version >= self.version else self._migrate(cells, version)

    @abstractmethod
    def _migrate(self, cells: list[Change], version: int) -> list[Change]: ...

    def _run(self, key: Any, value: Any, version: int) -> tuple[Any, Any]:
        """Call the user's functions one after the other; a value of None ends that, and drops the key's state."""
        for number in range(version, self.version):
            function = self.functions[number]
            try:
                if takes_key(function):
                    key, value = _pair(function(key, value))
                else:
                    value = function(value)
            except FAULTS as error:
                raise Incompatible(
                    f"step {self.step!r}: its migration raised {type(error).__name__}: {error}, for the key "
                    f"{short_repr(key)} and the value {short_repr(value, 500)}. Nothing was changed."
                ) from error
            if value is None:
                break
        return key, value


class SingleValueMigration(Migration):
    """For steps that keep one value per key: the functions get and return that value."""

    is_single_value = True

    def _migrate(self, cells: list[Change], version: int) -> list[Change]:
        key = decode_key(cells[0].key)
        found = [cell for cell in cells if not cell.cell]
        if found:
            key, value = self._run(key, self._codec.decode(found[0].value or b"null"), version)
            if value is None:
                return []
            found = [found[0]._replace(value=self._codec.encode(value))]
        beside = [cell for cell in cells if cell.cell]  # the time of a table's row
        return [cell._replace(key=encode_key(key)) for cell in found + beside]


class ColumnsMigration(SingleValueMigration):
    """For state in columns: a dict with None in all columns is no state, as where a function returns it."""

    def _run(self, key: Any, value: Any, version: int) -> tuple[Any, Any]:
        key, value = super()._run(key, value, version)
        is_gone = type(value) is dict and all(column is None for column in value.values())
        return key, None if is_gone else value


class NamedValuesMigration(Migration):
    """For steps with a `State` handle: the functions get and return the named values as a dict; lists, maps and
    timers stay as they are."""

    is_single_value = False

    def _migrate(self, cells: list[Change], version: int) -> list[Change]:
        named = {
            cell_name(cell.cell): self._codec.decode(cell.value or b"null")
            for cell in cells
            if cell.cell.startswith(b"v:")
        }
        key, changed = self._run(decode_key(cells[0].key), named, version)
        encoded = encode_key(key)
        if changed is None:
            return []
        migrated = [cell._replace(key=encoded) for cell in cells if not cell.cell.startswith(b"v:")]
        times = {cell.cell: (cell.due, cell.wall) for cell in cells}
        for name, value in changed.items():
            place = cell_for("v", name)
            migrated.append(Change(encoded, place, self._codec.encode(value), *times.get(place, (None, None))))
        return migrated


def _pair(result: Any) -> tuple[Any, Any]:
    if result.__class__ is tuple and len(result) == 2:
        return result
    raise TypeError(f"expected (key, value), a tuple of two, and the function returned {short_repr(result)}")


def takes_key(function: Callable[..., Any]) -> bool:
    """Return whether a migration takes a key and its value, not the value alone."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return sum(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters) == 2
