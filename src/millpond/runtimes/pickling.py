"""Serialise a program for its tasks, in the same way for Spark and for tests.

Functions and classes of the program file are pickled by value, however the program was started; those of other modules
by name, and the module is imported where they are loaded. The program file is never run in a worker. cloudpickle does
most of it; this module corrects what it gets wrong for classes: fields of Structs, required fields and default
factories of dataclasses, annotations that name other classes of the file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import importlib
import inspect
import io
import pickle
import sys
import threading
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec
from pyspark import cloudpickle as _cloudpickle

from millpond.codec import user_types
from millpond.codec.tagging import name_program_module
from millpond.pipeline import graph as g
from millpond.runtimes.unpicklable import explain_unpicklable
from millpond.sinks.base import Delivery
from millpond.sources.base import Source
from millpond.steps.operator import Operator

cloudpickle: Any = _cloudpickle  # it has no types


@dataclass
class SinkElsewhere:
    """Takes the place of a sink that no worker calls."""

    where: Literal["driver", "workers", "session", "nowhere"]

    def deliver(self, rows: list[Any], delivery: Delivery) -> None:
        raise AssertionError("this sink is not called in a worker")


@dataclass(frozen=True)
class PackedProgram:
    """A program as bytes. `types` are the classes that it stores values of, as this process knows them."""

    data: bytes
    types: tuple[type, ...]


def pack_program(program: g.Program) -> PackedProgram:
    """Serialise what the tasks run. `InvalidUse` names the function, source or sink that cannot be sent.

    The bytes are loaded once on the driver, so that what a worker could not load is found before one is started.
    """
    stripped = replace(program, nodes=tuple(replace(node, op=_without_driver_parts(node.op)) for node in program.nodes))
    try:
        data, types = _pickle_with_types(stripped)
        unpack_program(data)
    except Exception as error:
        raise explain_unpicklable(stripped, error, _pickling_error) from error
    return PackedProgram(data, tuple(dict.fromkeys([*program.types, *types])))


def unpack_program(data: bytes) -> g.Program:
    """Load a program where its tasks run. Its classes are copies, also in the process that packed them."""
    program: g.Program
    program, types = _unpickle_with_types(data)
    return replace(program, types=tuple(dict.fromkeys([*program.types, *types])))


def pickle_value(value: Any) -> bytes:
    """Serialise a value that holds functions or classes of the program, such as a migration."""
    return _pickle_with_types(value)[0]


def unpickle_value(data: bytes) -> Any:
    """Load what `pickle_value` has serialised."""
    return _unpickle_with_types(data)[0]


def _without_driver_parts(op: Operator) -> Operator:
    if isinstance(op, g.Read) and not isinstance(op.source, Source):
        return replace(op, source=None)  # a streaming DataFrame
    if isinstance(op, g.Deliver) and op.sink.where != "workers":
        return replace(op, sink=SinkElsewhere(op.sink.where))
    return op


# --- to bytes and back ---


def _pickle_with_types(value: Any) -> tuple[bytes, tuple[type, ...]]:
    file = io.BytesIO()
    pickler = _Pickler(file)
    modules = user_types.program_modules()
    with _register_by_value(modules):
        pickler.dump((value, modules, _TypesByValue(pickler)))
    return file.getvalue(), tuple(pickler.met)


def _unpickle_with_types(data: bytes) -> tuple[Any, tuple[type, ...]]:
    value, modules, types = _Unpickler(io.BytesIO(data)).load()
    for name, path in modules.items():
        name_program_module(name, path)
    return value, types


_REGISTRY_LOCK = threading.Lock()


@contextlib.contextmanager
def _register_by_value(modules: Mapping[str, str | None]) -> Iterator[None]:
    """Let cloudpickle write these modules by value. Its registry is global, so it is changed only while we pickle."""
    found = [sys.modules[name] for name in modules if name != "__main__" and name in sys.modules]
    with _REGISTRY_LOCK:
        before = cloudpickle.list_registry_pickle_by_value()
        own = [module for module in found if module.__name__ not in before]
        for module in own:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in own:
                cloudpickle.unregister_pickle_by_value(module)


class _TypesByValue:
    """The classes that were pickled by value. It is pickled last, when all of them are known."""

    def __init__(self, pickler: _Pickler) -> None:
        self._pickler = pickler

    def __reduce__(self) -> Any:
        return tuple, (list(self._pickler.met),)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if user_types.is_program_module(module):
            raise pickle.PicklingError(f"{name} is known by name only, and workers do not run the program file")
        return super().find_class(module, name)


_SINGLETONS = {
    id(vars(dataclasses)[name]): name
    for name in ("MISSING", "KW_ONLY", "_HAS_DEFAULT_FACTORY")
    if name in vars(dataclasses)
}
_TYPE_ALIAS = getattr(typing, "TypeAliasType", ())  # Python 3.12


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.met: dict[type, None] = {}

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type):
            return self._class(obj)
        if id(obj) in _SINGLETONS:  # compared by identity, so there must be one in a process
            return getattr, (dataclasses, _SINGLETONS[id(obj)])
        if isinstance(obj, types.ModuleType) and sys.modules.get(obj.__name__) is obj:
            return importlib.import_module, (obj.__name__,)
        if isinstance(obj, io.TextIOWrapper):
            return _reduce_standard_stream(obj)
        if isinstance(obj, functools._lru_cache_wrapper) and _is_of_program(obj):
            return _make_cached, (obj.__wrapped__, obj.cache_parameters())
        if isinstance(obj, typing.NewType) and _is_of_program(obj):
            return typing.NewType, (obj.__name__, obj.__supertype__)
        if _TYPE_ALIAS and isinstance(obj, _TYPE_ALIAS) and _is_of_program(obj):
            return _TYPE_ALIAS, (obj.__name__, obj.__value__)
        return super().reducer_override(obj)

    def _class(self, cls: Any) -> Any:
        reduced = super().reducer_override(cls)
        if not isinstance(reduced, tuple) or len(reduced) < 6:
            return reduced  # by name
        if user_types.is_storable(cls):
            self.met[cls] = None
        make, args, (attributes, _), *_ = reduced
        *args, _tracker, extra = args  # without the tracker's id a new class is made, also in its own process
        attributes.pop("__msgspec_cache__", None)  # made again when msgspec needs it
        if "__annotations__" in attributes:
            attributes["__annotations__"] = _resolve_annotations(cls, attributes["__annotations__"])
        if isinstance(cls, type(msgspec.Struct)):
            for name in ("__slots__", "__post_init__", "__weakref__"):
                attributes.pop(name, None)
            make, args = _make_struct, _reduce_struct(cls, args[2])
        elif typing.is_typeddict(cls):
            own = {name: attributes.pop(name) for name in list(attributes) if name in _TYPED_DICT}
            make, args, attributes = _make_typed_dict, (cls.__name__, cls.__module__, cls.__qualname__), own
        else:
            if isinstance(cls, enum.EnumMeta):
                members: dict[str, Any] = dict(cls.__members__)  # aliases too
                args[3] = {name: member.value for name, member in members.items()}
                attributes = {name: value for name, value in attributes.items() if name not in members}
                attributes[_ENUM_MEMBERS] = {name: _instance_attributes(member) for name, member in members.items()}
            else:
                args[3] = {**args[3], "__qualname__": cls.__qualname__}
                if "__slots__" in attributes and user_types.is_storable(cls):
                    args[2], args[3]["__slots__"] = cls.__bases__, attributes.pop("__slots__")
            args = (*args, None, extra)
        return make, tuple(args), (attributes, reduced[5]), None, None, _fill_class


def _reduce_standard_stream(obj: Any) -> Any:
    """Pickle standard output and error by name: they are those of the process that runs the function.

    Other open files are refused; cloudpickle would send their contents.
    """
    for name in ("stdout", "stderr"):
        if obj is getattr(sys, name):
            return getattr, (sys, name)
    raise pickle.PicklingError(f"cannot pickle the open file {obj.name!r}")


def _is_of_program(obj: Any) -> bool:
    return user_types.is_program_module(obj.__module__)


def _make_cached(function: Callable[..., Any], parameters: Mapping[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


_ENUM_MEMBERS = "members of the enum"


def _instance_attributes(member: Any) -> dict[str, Any]:
    """Return what the enum's own `__init__` or `__new__` has set on a member: neither is called again."""
    own = ("_value_", "_name_", "__objclass__", "_sort_order_")
    return {name: value for name, value in getattr(member, "__dict__", {}).items() if name not in own}


def _fill_class(cls: Any, state: tuple[dict[str, Any], Callable[..., Any]]) -> None:
    attributes, fill = state
    for name, values in attributes.pop(_ENUM_MEMBERS, {}).items():
        if values:
            vars(cls.__members__[name]).update(values)
    fill(cls, (attributes, {}))


def _resolve_annotations(cls: type, annotations: Mapping[str, Any]) -> dict[str, Any]:
    """Replace names of the program file in annotations by what they mean: a worker cannot look them up."""
    found = dict(annotations)
    scope = vars(sys.modules.get(cls.__module__, types))
    for name, hint in annotations.items():
        holder = type("Holder", (), {"__annotations__": {name: hint}})
        with contextlib.suppress(Exception):  # to resolve a forward reference may raise anything
            found[name] = typing.get_type_hints(holder, scope, dict(vars(cls)), include_extras=True)[name]
    return found


def _reduce_struct(cls: Any, bases: tuple[type, ...]) -> tuple[Any, ...]:
    """Return the arguments of `_make_struct` for a Struct. msgspec lays out fields when a class is made, not later."""
    own = [name for name in inspect.get_annotations(cls) if name in cls.__struct_fields__]
    names, defaults = cls.__struct_fields__, cls.__struct_defaults__
    default = dict(zip(reversed(names), reversed(defaults), strict=False))
    fields = {}
    for name, encoded in zip(names, cls.__struct_encode_fields__, strict=True):
        if name in own:
            value = default.get(name, msgspec.NODEFAULT)
            factory = getattr(value, "factory", None) if type(value).__name__ == "Factory" else None
            fields[name] = (encoded, msgspec.NODEFAULT if factory else value, factory or msgspec.NODEFAULT)
    config = {name: getattr(cls.__struct_config__, name) for name in _struct_options(cls)}
    config["kw_only"] = bool(own) and not set(own) & set(cls.__match_args__)
    place = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    hooks = {"__post_init__": vars(cls)["__post_init__"]} if "__post_init__" in vars(cls) else {}
    return type(cls), cls.__name__, bases, config, {name: fields[name] for name in own}, {**place, **hooks}


def _struct_options(cls: Any) -> list[str]:
    return [name for name in dir(cls.__struct_config__) if not name.startswith("_")]


def _make_struct(
    metaclass: type,
    name: str,
    bases: tuple[type, ...],
    config: dict[str, Any],
    fields: dict[str, tuple[str, Any, Any]],
    attributes: dict[str, Any],
) -> type:
    def body(namespace: dict[str, Any]) -> None:
        namespace.update(attributes)
        namespace["__annotations__"] = dict.fromkeys(fields, Any)  # the real ones may name this very class
        for field, (encoded, default, factory) in fields.items():
            namespace[field] = msgspec.field(default=default, default_factory=factory, name=encoded)  # type: ignore[call-overload]

    return types.new_class(name, bases, {"metaclass": metaclass, **config}, body)


_TYPED_DICT = frozenset(
    {"__annotations__", "__required_keys__", "__optional_keys__", "__total__", "__doc__", "__orig_bases__"}
    | {"__readonly_keys__", "__mutable_keys__"}
)


def _make_typed_dict(name: str, module: str, qualname: str) -> Any:
    make: Any = typing.TypedDict
    made = make(name, {})
    made.__module__, made.__qualname__ = module, qualname
    return made


def _pickling_error(value: Any) -> Exception | None:
    """Return the error with which a value cannot be sent and loaded again; None if it can."""
    try:
        unpickle_value(pickle_value(value))
    except Exception as error:
        return error
    return None
