"""The one reader of fields: a field is a key of a dict or an attribute of any other row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import msgspec

from millpond.rows.rows import BadInput


class MissingField(BadInput, LookupError):
    """A row lacks a field that the program names."""


def read_field(row: Any, name: str) -> Any:
    """Return a field of a row; raise MissingField, which says which fields the row has.

    >>> read_field({"n": 1}, "n")
    1
    """
    if isinstance(row, dict):
        if name in row:
            return row[name]
        names = ", ".join(map(repr, row))
        raise MissingField(f"the row has no field {name!r}; it has: {names or 'none'}")
    try:
        return getattr(row, name)
    except AttributeError:
        raise MissingField(f"the row has no field {name!r}; it is of type {type(row).__name__}") from None


class FieldReader:
    """A function of a row that reads one field. It is pickled to reach the workers."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, row: Any) -> Any:
        return read_field(row, self.name)


def field_reader(name: str, missing: Callable[[Any], Exception]) -> Callable[[Any], Any]:
    """Return a function that reads the field of a row, or raises what `missing(row)` returns."""

    def read(row: Any) -> Any:
        try:
            # The common case without a call: a step calls this for every row.
            return row[name] if type(row) is dict else read_field(row, name)
        except (KeyError, MissingField):
            raise missing(row) from None

    return read


def field_names(row: Any) -> list[str] | None:
    """Return the names of a row's fields, or None if it is a value without fields.

    >>> field_names({"a": 1, "b": 2}), field_names(7)
    (['a', 'b'], None)
    """
    if isinstance(row, Mapping):
        return list(row)
    if is_dataclass(row):
        return [field.name for field in fields(row)]
    names = getattr(row, "__struct_fields__", None) or getattr(row, "_fields", None)
    return None if names is None else list(names)


_DEEP = 400  # calls that a task which decodes lines later may have open beyond those of the one that reads them
_skip = msgspec.json.Decoder(msgspec.Raw)


def _is_deep(line: bytes) -> bool:
    """Return whether a line could not be decoded below some hundred more calls."""
    if len(line) <= 2 * _DEEP or line.count(b"[") + line.count(b"{") <= _DEEP:
        return False
    try:
        _skip.decode(b"[" * _DEEP + line + b"]" * _DEEP)
    except RecursionError:
        return True
    except msgspec.MsgspecError:
        pass  # it is no JSON, which is found where it is read
    return False


_readers: dict[tuple[str, ...], msgspec.json.Decoder[Any]] = {}


def read_json_fields(lines: list[bytes], names: list[str]) -> list[Any]:
    """Return the fields of JSON objects without decoding the others: a list of values, or of tuples for several names.

    Raises an exception of any kind if a line is not an object that has these fields, or is nested so deep that another
    task might not be able to decode it.
    """
    reader = _readers.get(tuple(names))
    if reader is None:
        slots = [f"f{i}" for i in range(len(names))]
        shape = msgspec.defstruct(
            "Fields",
            [(slot, Any) for slot in slots],
            rename=dict(zip(slots, names, strict=True)),
        )
        reader = _readers[tuple(names)] = msgspec.json.Decoder(shape)
    if max(map(len, lines), default=0) > 2 * _DEEP and any(map(_is_deep, lines)):
        raise RecursionError("a line that is nested too deep")
    text = b"\n".join(lines)
    text.decode()  # the fields that are skipped must be UTF-8, too
    found = reader.decode_lines(text)
    if len(found) != len(lines):
        raise ValueError("a line that is not one row")
    if len(names) == 1:
        return [row.f0 for row in found]
    return [msgspec.structs.astuple(row) for row in found]
