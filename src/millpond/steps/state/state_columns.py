"""The columns of a step's state: their types, and states as columns and back.

A key without state has null in all columns, and a key all of whose columns are null has no state: both are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from operator import attrgetter, countOf
from types import NoneType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.codec import Unreadable
from millpond.errors import InvalidUse, short_repr
from millpond.rows.arrow_objects import column_to_list
from millpond.rows.arrow_types import cast_column, is_readable_type
from millpond.rows.rows import Keys
from millpond.steps.failure import unreadable_state
from millpond.steps.state.state_texts import StateValues

_ARROW_TYPES = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    date: pa.date32(),
    datetime: pa.timestamp("us", "UTC"),
    time: pa.time64("us"),
    timedelta: pa.duration("us"),
}
_PYTHON_NAMES = {kind: cls.__name__ for cls, kind in _ARROW_TYPES.items()}
_PYTHON_TYPES = {pa.timestamp("us"): datetime} | {kind: cls for cls, kind in _ARROW_TYPES.items()}


class ReturnedStates(NamedTuple):
    """The states that a function returned, in their order."""

    values: StateValues
    gone: list[int]  # the places of those all of whose columns are null


@dataclass(frozen=True)
class StateColumns:
    """The columns of a step's state and their Arrow types."""

    types: Mapping[str, Any]

    @property
    def type_names(self) -> dict[str, str]:
        """The type of each column, in words that the ledger stores: never change one."""
        return {name: _PYTHON_NAMES.get(kind, str(kind)) for name, kind in self.types.items()}

    def to_arrays(self, step: str, keys: Keys, states: StateValues) -> dict[str, Any]:
        """Return the states of some keys as columns; a key without state, or a column that is new, has null there.

        Raises `Incompatible` for a value that its column would change, such as a float in a column of integers: from a
        migration, or from a column that was removed and came back with another type.
        """
        found = {}
        for name, kind in self.types.items():
            values = states[name]
            try:
                found[name] = _to_array(values, kind)
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                raise self._misfit(step, keys, name, values) from None
        return found

    def _misfit(self, step: str, keys: Keys, name: str, values: list[Any]) -> Exception:
        kind = self.types[name]
        for i, value in enumerate(values):
            try:
                _to_array([value], kind)
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                why = f"column {name!r}: expected {self.type_names[name]}, got {short_repr(value)}"
                return unreadable_state(step, Unreadable(why), keys.objects[i])
        return unreadable_state(step, Unreadable(f"column {name!r}: expected {self.type_names[name]}"))

    def read_returned(self, table: pa.Table) -> ReturnedStates:
        """Return the states in the columns of a table that a function returned.

        InvalidUse names a column that does not have its type.
        """
        columns = {name: self._returned_column(name, table.column(name)) for name in self.types}
        is_gone = np.logical_and.reduce([np.asarray(pc.is_null(column)) for column in columns.values()])
        try:
            values = {name: column_to_list(column) for name, column in columns.items()}
        except (ValueError, OverflowError) as error:
            raise InvalidUse(f"a returned state cannot be made into Python objects: {error}") from error
        return ReturnedStates(values, np.flatnonzero(is_gone).tolist())

    def _returned_column(self, name: str, column: Any) -> Any:
        try:
            return cast_column(column, self.types[name])
        except InvalidUse as error:
            raise InvalidUse(
                f"expected the column {name!r} of the returned states as {self.type_names[name]}: {error}. Cast it, or "
                "give it another type in state=."
            ) from error


def _to_array(values: list[Any], kind: Any) -> Any:
    """Return values as a column of a type; ValueError, or what Arrow raises, for a value that the column would change.

    An integer may be in a column of floats that can express it.
    """
    array = pa.array(values, kind)
    if not _are_surely_unchanged(values, kind) and not all(map(_is_unchanged, values, array.to_pylist())):
        raise ValueError("another value")
    return array


def _are_surely_unchanged(values: list[Any], kind: Any) -> bool:
    """Return whether no value can change in a column of this type; if not, each must be compared."""
    types = set(map(type, values)) - {NoneType}
    if types and types != {_PYTHON_TYPES.get(kind)}:
        return False
    if not types & {datetime, time}:
        return True
    there = list(filter(None, values))
    zoned = len(there) - countOf(map(attrgetter("tzinfo"), there), None)
    return zoned == (0 if getattr(kind, "tz", None) is None else len(there))


def _is_unchanged(given: Any, found: Any) -> bool:
    """Return whether a value of a column is the one that was put there."""
    if isinstance(found, float):
        return type(given) in (int, float) and (given == found or (given != given and found != found))
    if type(given) is not type(found):
        return False
    if isinstance(found, dict):
        return given.keys() <= found.keys() and all(_is_unchanged(given.get(name), found[name]) for name in found)
    if isinstance(found, list | tuple):
        return len(given) == len(found) and all(map(_is_unchanged, given, found))
    return bool(given == found)


def check_columns(given: Any, key_names: Sequence[str], where: str) -> StateColumns:
    """Return the columns that a user gave as `state=`, checked."""
    if not isinstance(given, Mapping) or not given:
        raise InvalidUse(f"{where}, state: expected columns and their types, as in {{'n': int}}, got {given!r}")
    types = {}
    for name, kind in given.items():
        if not isinstance(name, str):
            raise InvalidUse(f"{where}, state: expected a text as the name of a column, got {name!r}")
        if name in key_names:
            raise InvalidUse(f"{where}, state: expected columns with other names than the key has, got {name!r}")
        types[name] = _ARROW_TYPES.get(kind) if isinstance(kind, type) else kind
        if not isinstance(types[name], pa.DataType) or not is_readable_type(types[name]):
            raise InvalidUse(
                f"{where}, state: expected for {name!r} one of the types "
                f"{', '.join(_PYTHON_NAMES.values())}, or a pyarrow.DataType whose values can become Python objects "
                f"and back, got {kind!r}"
            )
    return StateColumns(types)
