"""How a program reaches the tasks: one serialisation, for Spark and for tests.

Functions and classes of the program file travel by value, however the program was started; those of other modules by
name, and the module is imported where they arrive. The program file is never run in a worker. cloudpickle does most of
it; this module adds what it gets wrong for classes (fields of Structs, required fields and default factories of
dataclasses, annotations that name other classes of the file) and says in words what cannot travel.
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
from millpond.codec.refusal import type_name
from millpond.codec.tagging import name_program_module
from millpond.errors import InvalidUse, short_repr
from millpond.pipeline import graph as g
from millpond.sinks.base import Delivery
from millpond.sources.base import Source
from millpond.steps.operator import Operator

cloudpickle: Any = _cloudpickle  # it has no types


@dataclass
class Elsewhere:
    """Stands in for a sink that no worker calls."""

    where: Literal["driver", "workers", "session", "nowhere"]

    def deliver(self, rows: list[Any], delivery: Delivery) -> None:
        raise AssertionError("this sink is not called in a worker")


@dataclass(frozen=True)
class Packed:
    """A program as bytes. `types` are the classes that it stores values of, as this process knows them."""

    data: bytes
    types: tuple[type, ...]


def pack_program(program: g.Program) -> Packed:
    """Serialise what the tasks run. `InvalidUse` names the function, source or sink that cannot be sent.

    The bytes are loaded once here, so that what a worker could not load is found before there is one.
    """
    stripped = replace(program, nodes=tuple(replace(node, op=_without_driver_parts(node.op)) for node in program.nodes))
    try:
        data, types = _dumps(stripped)
        unpack_program(data)
    except Exception as error:
        raise _explained(stripped, error) from error
    return Packed(data, tuple(dict.fromkeys([*program.types, *types])))


def unpack_program(data: bytes) -> g.Program:
    """The program, where its tasks run. Its classes are copies, also in the process that packed them."""
    program: g.Program
    program, types = _loads(data)
    return replace(program, types=tuple(dict.fromkeys([*program.types, *types])))


def dumps(value: Any) -> bytes:
    """Serialise a value that holds functions or classes of the program, such as a migration."""
    return _dumps(value)[0]


def loads(data: bytes) -> Any:
    """The value that `dumps` was given."""
    return _loads(data)[0]


def _without_driver_parts(op: Operator) -> Operator:
    if isinstance(op, g.Read) and not isinstance(op.source, Source):
        return replace(op, source=None)  # a streaming DataFrame
    if isinstance(op, g.Deliver) and op.sink.where != "workers":
        return replace(op, sink=Elsewhere(op.sink.where))
    return op


# --- to bytes and back ---


def _dumps(value: Any) -> tuple[bytes, tuple[type, ...]]:
    file = io.BytesIO()
    pickler = _Pickler(file)
    modules = user_types.program_modules()
    with _by_value(modules):
        pickler.dump((value, modules, _Met(pickler)))
    return file.getvalue(), tuple(pickler.met)


def _loads(data: bytes) -> tuple[Any, tuple[type, ...]]:
    value, modules, types = _Unpickler(io.BytesIO(data)).load()
    for name, path in modules.items():
        name_program_module(name, path)
    return value, types


_REGISTRY = threading.Lock()


@contextlib.contextmanager
def _by_value(modules: Mapping[str, str | None]) -> Iterator[None]:
    """cloudpickle's registry belongs to the process, so it is changed only while something is written."""
    found = [sys.modules[name] for name in modules if name != "__main__" and name in sys.modules]
    with _REGISTRY:
        before = cloudpickle.list_registry_pickle_by_value()
        own = [module for module in found if module.__name__ not in before]
        for module in own:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in own:
                cloudpickle.unregister_pickle_by_value(module)


class _Met:
    """The classes that were written by value; reduced last, when all of them are known."""

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
_ALIAS = getattr(typing, "TypeAliasType", ())  # Python 3.12


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
            return _stream(obj)
        if isinstance(obj, functools._lru_cache_wrapper) and _is_of_program(obj):
            return _cached, (obj.__wrapped__, obj.cache_parameters())
        if isinstance(obj, typing.NewType) and _is_of_program(obj):
            return typing.NewType, (obj.__name__, obj.__supertype__)
        if _ALIAS and isinstance(obj, _ALIAS) and _is_of_program(obj):
            return _ALIAS, (obj.__name__, obj.__value__)
        return super().reducer_override(obj)

    def _class(self, cls: Any) -> Any:
        reduced = super().reducer_override(cls)
        if not isinstance(reduced, tuple) or len(reduced) < 6:
            return reduced  # by name
        if user_types.is_storable(cls):
            self.met[cls] = None
        make, args, (attributes, _), *_ = reduced
        *args, _tracker, extra = args  # without the tracker's id a class is made anew, also in its own process
        attributes.pop("__msgspec_cache__", None)  # made again when msgspec needs it
        if "__annotations__" in attributes:
            attributes["__annotations__"] = _resolved(cls, attributes["__annotations__"])
        if isinstance(cls, type(msgspec.Struct)):
            for name in ("__slots__", "__post_init__", "__weakref__"):
                attributes.pop(name, None)
            make, args = _make_struct, _struct_parts(cls, args[2])
        elif typing.is_typeddict(cls):
            own = {name: attributes.pop(name) for name in list(attributes) if name in _TYPED_DICT}
            make, args, attributes = _make_typed_dict, (cls.__name__, cls.__module__, cls.__qualname__), own
        else:
            if isinstance(cls, enum.EnumMeta):
                members: dict[str, Any] = dict(cls.__members__)  # aliases too
                args[3] = {name: member.value for name, member in members.items()}
                attributes = {name: value for name, value in attributes.items() if name not in members}
                attributes[_MEMBERS] = {name: _set_by_init(member) for name, member in members.items()}
            else:
                args[3] = {**args[3], "__qualname__": cls.__qualname__}
                if "__slots__" in attributes and user_types.is_storable(cls):
                    args[2], args[3]["__slots__"] = cls.__bases__, attributes.pop("__slots__")
            args = (*args, None, extra)
        return make, tuple(args), (attributes, reduced[5]), None, None, _fill_class


def _stream(obj: Any) -> Any:
    """Standard output is that of whoever runs the function; cloudpickle would send the contents of other files."""
    for name in ("stdout", "stderr"):
        if obj is getattr(sys, name):
            return getattr, (sys, name)
    raise pickle.PicklingError(f"cannot pickle the open file {obj.name!r}")


def _is_of_program(obj: Any) -> bool:
    return user_types.is_program_module(obj.__module__)


def _cached(function: Callable[..., Any], parameters: Mapping[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


_MEMBERS = "members of the enum"


def _set_by_init(member: Any) -> dict[str, Any]:
    """What the enum's own `__init__` or `__new__` set on a member: neither runs again."""
    own = ("_value_", "_name_", "__objclass__", "_sort_order_")
    return {name: value for name, value in getattr(member, "__dict__", {}).items() if name not in own}


def _fill_class(cls: Any, state: tuple[dict[str, Any], Callable[..., Any]]) -> None:
    attributes, fill = state
    for name, values in attributes.pop(_MEMBERS, {}).items():
        if values:
            vars(cls.__members__[name]).update(values)
    fill(cls, (attributes, {}))


def _resolved(cls: type, annotations: Mapping[str, Any]) -> dict[str, Any]:
    """Annotations without names of the program file, which no worker could look up there."""
    found = dict(annotations)
    scope = vars(sys.modules.get(cls.__module__, types))
    for name, hint in annotations.items():
        holder = type("Holder", (), {"__annotations__": {name: hint}})
        with contextlib.suppress(Exception):  # whatever resolving a forward reference of the user's may raise
            found[name] = typing.get_type_hints(holder, scope, dict(vars(cls)), include_extras=True)[name]
    return found


def _struct_parts(cls: Any, bases: tuple[type, ...]) -> tuple[Any, ...]:
    """What makes the same Struct again. msgspec lays out fields when a class is made, and not later."""
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


# --- what cannot travel, in words ---


def _explained(program: g.Program, error: Exception) -> InvalidUse:
    """The error with the place of what cannot be sent: which part of the program, which function, which variable."""
    where, path, culprit = "", [""], None
    for node in program.nodes:
        if _fails(node.op):
            where = node.op.label
            path, culprit, error = _followed(node.op, [], _fails(node.op) or error, set())
            break
    what = f"{where}: {_spelled(path)}" if where else "a function, source or sink"
    kind = "" if culprit is None else f", a {type_name(type(culprit))} ({short_repr(culprit)}),"
    return InvalidUse(
        f"app {program.app!r}, {what}{kind} cannot be sent to the workers: {type(error).__name__}: {error}. "
        "What functions, sources and sinks refer to is copied to other processes. Open files, locks, connections and "
        "the SparkSession cannot be: make them inside the function, when it is first called."
    )


def _fails(value: Any) -> Exception | None:
    try:
        loads(dumps(value))
    except Exception as error:
        return error
    return None


def _followed(value: Any, path: list[str], error: Exception, seen: set[int]) -> tuple[list[str], Any, Exception]:
    """The innermost part of a value that cannot be sent, and the names on the way to it."""
    seen.add(id(value))
    for label, part in _parts(value):
        if id(part) not in seen and (found := _fails(part)) is not None:
            return _followed(part, [*path, label], found, seen)
    return path, value, error


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, types.FunctionType):
        yield from _variables(value)
    elif isinstance(value, types.MethodType):
        yield f"method {value.__func__.__qualname__}", value.__func__
        yield "self", value.__self__
    elif isinstance(value, functools.partial):
        yield _called(value.func), value.func
        yield from ((f"argument {i}", item) for i, item in enumerate(value.args))
        yield from ((f"argument {name}", item) for name, item in value.keywords.items())
    elif isinstance(value, Mapping):
        yield from ((_called(item, f"[{key!r}]"), item) for key, item in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((_called(item, f"[{i}]"), item) for i, item in enumerate(value))
    elif isinstance(value, type):
        yield from ((_called(item, f"attribute {name}"), item) for name, item in vars(value).items())
    else:
        held = dict(getattr(value, "__dict__", {}))
        ours = type(value).__module__.startswith("millpond.")
        yield from ((_called(item, "" if ours else f"attribute {name}"), item) for name, item in held.items())
        if _is_of_program(type(value)):
            yield f"class {type(value).__qualname__}", type(value)


def _variables(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        with contextlib.suppress(ValueError):  # a variable that has no value yet
            yield f"variable {name}", cell.cell_contents
    for name in _global_names(function.__code__):
        if name in function.__globals__:
            yield f"variable {name}", function.__globals__[name]
    yield from (("a default value", item) for item in function.__defaults__ or ())
    yield from ((f"default of {name}", item) for name, item in (function.__kwdefaults__ or {}).items())
    yield from ((f"attribute {name}", item) for name, item in vars(function).items())


def _global_names(code: types.CodeType) -> dict[str, None]:
    found = dict.fromkeys(code.co_names)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            found.update(_global_names(const))
    return found


def _called(value: Any, otherwise: str = "") -> str:
    if isinstance(value, types.FunctionType | types.MethodType | functools._lru_cache_wrapper):
        return f"function {value.__qualname__}"
    return f"class {value.__qualname__}" if isinstance(value, type) else otherwise


def _spelled(path: list[str]) -> str:
    return ", ".join(dict.fromkeys(part for part in path if part)) or "a part of it"
