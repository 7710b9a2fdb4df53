"""The users' own types: their fields, how a value is built again, and how a type is found by its stored name.

State files are data: no module is imported here, and of the users' code only a Struct's `__post_init__` and the default
factories of fields that stored data lacks ever run.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import os
import sys
import typing
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter, itemgetter
from types import ModuleType
from typing import Any, Protocol

import msgspec

from millpond.codec.refusal import Refused, Unreadable, type_name


class RecordType(Protocol):
    """A type with named fields: a dataclass, a Struct or a namedtuple."""

    def take(self, value: Any) -> dict[str, Any]:
        """Return the fields of a value by name, not copied. Raises `Refused` for attributes that are not fields."""

    def build(self, fields: Mapping[str, Any]) -> Any:
        """Return a value with these fields: missing ones get their defaults, unknown ones are ignored."""

    def replica(self, value: Any, fields: Mapping[str, Any]) -> Any:
        """Return a copy of the value with these fields, all of which are given."""


class DataclassRecord:
    """A dataclass. Values are built with `object.__new__` and `object.__setattr__`, so that frozen and slotted classes
    work, and `__init__` and `__post_init__` do not run again on fields that they have made."""

    def __init__(self, cls: type) -> None:
        self._cls = cls
        self._fields = dataclasses.fields(cls)
        self.names = tuple(field.name for field in self._fields)
        self._all = frozenset(self.names)
        self._known = frozenset(self.names) | _cached_properties(cls)
        # Plain attributes are copied at once; slots and other descriptors one by one.
        self._is_plain = not any(hasattr(type(_class_attribute(cls, name)), "__set__") for name in self.names)

    def take(self, value: Any) -> dict[str, Any]:
        if self._is_plain:
            fields: dict[str, Any] = value.__dict__
            if len(fields) == len(self.names) and fields.keys() == self._all:
                return fields.copy()
        _refuse_extras(value, self._known)
        try:
            return {name: getattr(value, name) for name in self.names}
        except AttributeError:  # a field without a default may not be set yet
            return {name: getattr(value, name) for name in self.names if hasattr(value, name)}

    def take_columns(self, values: Sequence[Any]) -> list[list[Any]] | None:
        """Return the fields of many values, a list for each of `names`; None if a value has more or less than them."""
        if not self._is_plain:
            return _attribute_columns(self._cls, self.names, values)
        fields = list(map(vars, values))
        if set(map(len, fields)) != {len(self.names)}:
            return None
        try:
            return [list(map(itemgetter(name), fields)) for name in self.names]
        except KeyError:
            return None

    def build(self, fields: Mapping[str, Any]) -> Any:
        made: Any = object.__new__(self._cls)
        if self._is_plain and fields.keys() == self._all:
            made.__dict__.update(fields)
            return made
        for field in self._fields:
            name = field.name
            if name in fields:
                object.__setattr__(made, name, fields[name])
            elif field.default is not dataclasses.MISSING:
                object.__setattr__(made, name, field.default)
            elif field.default_factory is not dataclasses.MISSING:
                object.__setattr__(made, name, field.default_factory())
            elif field.init:
                raise _missing_field(self._cls, name)
        return made

    def replica(self, value: Any, fields: Mapping[str, Any]) -> Any:
        return self.build(fields)


class StructRecord:
    """A msgspec Struct. Values are built with the constructor (the only way), so `__post_init__` runs again."""

    def __init__(self, cls: type) -> None:
        self._cls = cls
        self.names: tuple[str, ...] = cls.__struct_fields__  # type: ignore[attr-defined]
        self._known = frozenset(self.names) | _cached_properties(cls)
        self._required = [field.name for field in msgspec.structs.fields(cls) if field.required]

    def take(self, value: Any) -> dict[str, Any]:
        _refuse_extras(value, self._known)
        return {name: getattr(value, name) for name in self.names}

    def take_columns(self, values: Sequence[Any]) -> list[list[Any]] | None:
        """As `DataclassRecord.take_columns`."""
        return _attribute_columns(self._cls, self.names, values)

    def build(self, fields: Mapping[str, Any]) -> Any:
        for name in self._required:
            if name not in fields:
                raise _missing_field(self._cls, name)
        try:
            return self._cls(**{name: fields[name] for name in self.names if name in fields})
        except (TypeError, ValueError) as error:
            raise Unreadable(
                f"stored value of type {type_name(self._cls)}: expected fields that the type takes, "
                f"but its constructor raised {type(error).__name__}: {error}; "
                "let its __post_init__ accept what older versions stored, or migrate the state"
            ) from error

    def replica(self, value: Any, fields: Mapping[str, Any]) -> Any:
        made = copy.copy(value)
        for name, item in fields.items():
            if item is not getattr(made, name):
                msgspec.structs.force_setattr(made, name, item)
        return made


class NamedTupleRecord:
    """A namedtuple. Values are built with `tuple.__new__`, so that the user's `__new__` does not run."""

    def __init__(self, cls: Any) -> None:
        self._cls = cls
        self._names: tuple[str, ...] = cls._fields
        self._defaults: Mapping[str, Any] = getattr(cls, "_field_defaults", {})
        self._known = _cached_properties(cls)

    def take(self, value: Any) -> dict[str, Any]:
        _refuse_extras(value, self._known)
        return dict(zip(self._names, value, strict=True))

    def build(self, fields: Mapping[str, Any]) -> Any:
        items = []
        for name in self._names:
            if name not in fields and name not in self._defaults:
                raise _missing_field(self._cls, name)
            items.append(fields[name] if name in fields else self._defaults[name])
        return tuple.__new__(self._cls, items)

    def replica(self, value: Any, fields: Mapping[str, Any]) -> Any:
        return self.build(fields)


_record_types: dict[type, RecordType | None] = {}
_encoded_types: dict[str, type] = {}


def record_type_of(cls: type) -> RecordType | None:
    """Return how values of this exact type are taken apart and built; None if it has no named fields."""
    try:
        return _record_types[cls]
    except KeyError:
        record = _record_types[cls] = _new_record(cls)
        return record


def is_storable(cls: Any) -> bool:
    """Return whether stored data may name this type: a dataclass, Struct, namedtuple or Enum."""
    return isinstance(cls, type) and (issubclass(cls, enum.Enum) or record_type_of(cls) is not None)


MAIN = "__main__"

_program_files: dict[str, str | None] = {}  # module in which an App was made → its file, without .py


def program_modules() -> dict[str, str | None]:
    """Return the modules in which Apps were made, and their files without .py."""
    return dict(_program_files)


def is_program_module(name: str) -> bool:
    """Return whether a module is a program file, or the main module."""
    return name == MAIN or name in _program_files


def add_program_module(name: str, path: str | None) -> None:
    """Declare that a module is a program file: its classes are stored as those of `__main__`.

    The same file is `__main__` under `python app.py` and `millpond run app.py`, `app` if it is imported, and `pkg.app`
    in a package. Stored data names its classes in one way, whichever of them wrote it.
    """
    if path is not None:
        path = os.path.splitext(os.path.abspath(path))[0].removesuffix(f"{os.sep}__init__")
    if name not in _program_files or path is not None:
        _program_files[name] = path


# Public types of Millpond that may be stored in state: the name in stored data, and where the type is defined now.
# Stored names never change, so that a type can move to another module and old state still opens.
_OWN_TYPES = {
    "millpond.flow:Limit": "millpond.sources.base:Limit",
    "millpond.flow:Split": "millpond.sources.base:Split",
    "millpond.flow:JsonLines": "millpond.sources.base:JsonLines",
    "millpond.flow:BadRow": "millpond.sources.base:BadRow",
    "millpond.flow:Chunk": "millpond.sources.base:Chunk",
    "millpond.flow:Delivery": "millpond.sinks.base:Delivery",
    "millpond.flow:Registration": "millpond.sinks.base:Registration",
    "millpond.run.loop:Settings": "millpond.driver.loop:Settings",
    "millpond.run.maintenance:Verdict": "millpond.maintenance.verify:Verdict",
    "millpond.run.rebuild:Difference": "millpond.maintenance.rebuild:Difference",
    "millpond.run.retention:Keep": "millpond.log.retention:Keep",
    "millpond.steps.external:External": "millpond.steps.verbs.external:External",
    "millpond.steps.timers:Timer": "millpond.steps.state.timers:Timer",
    "millpond.steps.ttl:TTL": "millpond.steps.state.ttl:TTL",
    "millpond.upkeep:StateChange": "millpond.state_changes:StateChange",
    "millpond.view:Moment": "millpond.state_view:Moment",
    "millpond.windows.kinds:Hopping": "millpond.steps.windows.definitions:Hopping",
    "millpond.windows.kinds:Session": "millpond.steps.windows.definitions:Session",
    "millpond.windows.kinds:Sliding": "millpond.steps.windows.definitions:Sliding",
    "millpond.windows.kinds:Global": "millpond.steps.windows.definitions:Global",
    "millpond.windows.kinds:Counting": "millpond.steps.windows.definitions:Counting",
    "millpond.windows.triggers:Event": "millpond.steps.windows.triggers:Event",
    "millpond.windows.triggers:Trigger": "millpond.steps.windows.triggers:Trigger",
}
_STORED_AS = {now: stored for stored, now in _OWN_TYPES.items()}


def stored_name(cls: type) -> str:
    """Return the name of a type in stored data: `shop.orders:Order`, or `__main__:Order` for the program file."""
    module = MAIN if cls.__module__ in _program_files else cls.__module__
    name = f"{module}:{cls.__qualname__}"
    return _STORED_AS.get(name, name)


def known_names(name: str) -> list[str]:
    """Return the names that a type of this stored name may have in this process, the likeliest first.

    State that was written before program files had one name may contain the module's own, such as `app:Order`.
    """
    module, _, path = name.partition(":")
    suffix = os.sep + module.replace(".", os.sep)
    if module in _program_files or any(file is not None and file.endswith(suffix) for file in _program_files.values()):
        return [name, f"{MAIN}:{path}"]
    return [name]


def remember_type(cls: type) -> str:
    """Return the stored name of a type that is encoded for the first time, and remember the type by it."""
    name = stored_name(cls)
    _encoded_types[name] = cls
    return name


def find_type(name: str) -> type | None:
    """Return the type of that name in a loaded module, or else among the types that this process has encoded.

    Names are looked up in plain dictionaries only: a module's `__getattr__` may import, so it is never called.
    """
    module_name, _, path = _OWN_TYPES.get(name, name).partition(":")
    modules = [*reversed(_program_files), MAIN] if module_name == MAIN else [module_name]
    for module in modules:
        found: Any = sys.modules.get(module)
        for part in path.split("."):
            found = vars(found).get(part) if isinstance(found, (ModuleType, type)) else None
        if is_storable(found):
            return found  # type: ignore[no-any-return]
    return _encoded_types.get(name)


def reachable_types(types: Iterable[Any]) -> dict[str, type]:
    """Return the storable types among these and in the annotations of their fields, by name.

    Other types are searched for storable ones (`dict[str, Order]`) or skipped (`int`). Annotations that cannot be
    resolved are skipped, too: types behind them have to be given explicitly.
    """
    found: dict[str, type] = {}
    seen: set[type] = set()
    waiting = list(types)[::-1]  # if two have one name, the first counts
    while waiting:
        cls = waiting.pop()
        waiting.extend(arg for arg in typing.get_args(cls) if not isinstance(arg, str))
        if not is_storable(cls) or cls in seen:
            continue
        seen.add(cls)
        found.setdefault(stored_name(cls), cls)
        if not issubclass(cls, enum.Enum):
            waiting.extend(_field_types(cls))
    return found


def _new_record(cls: type) -> RecordType | None:
    if issubclass(cls, enum.Enum):
        return None
    if issubclass(cls, msgspec.Struct):
        return StructRecord(cls)
    if issubclass(cls, tuple):
        named = isinstance(getattr(cls, "_fields", None), tuple) and hasattr(cls, "_make")
        return NamedTupleRecord(cls) if named else None
    if not dataclasses.is_dataclass(cls):
        return None
    try:
        object.__new__(cls)
    except TypeError:  # a dataclass that is a dict, an exception, …: it has more than its fields
        return None
    return DataclassRecord(cls)


def _field_types(cls: type) -> list[Any]:
    try:
        return list(typing.get_type_hints(cls).values())
    except Exception:  # resolving a forward reference may raise anything
        return [hint for hint in getattr(cls, "__annotations__", {}).values() if not isinstance(hint, str)]


def _class_attribute(cls: type, name: str) -> Any:
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)


def _cached_properties(cls: type) -> frozenset[str]:
    return frozenset(
        name
        for base in cls.__mro__
        for name, attribute in vars(base).items()
        if isinstance(attribute, functools.cached_property)
    )


def _attribute_columns(cls: type, names: tuple[str, ...], values: Sequence[Any]) -> list[list[Any]] | None:
    if cls.__dictoffset__ or not all(map(str.isidentifier, names)):  # there may be attributes that are not fields
        return None
    try:
        return [list(map(attrgetter(name), values)) for name in names]
    except AttributeError:
        return None


def _refuse_extras(value: Any, known: frozenset[str]) -> None:
    extras: dict[str, Any] | None = getattr(value, "__dict__", None)
    if extras and not known.issuperset(extras):
        name = next(name for name in extras if name not in known)
        what = f"cannot store the attribute {name!r} of {type_name(type(value))}, which is not a field"
        raise Refused(value, what, f"declare it as a field, for example {name}: … = field(init=False)")


def _missing_field(cls: type, name: str) -> Unreadable:
    return Unreadable(
        f"stored value of type {type_name(cls)}: expected a field {name!r}, which the stored value lacks; "
        "give the field a default, or migrate the state"
    )
