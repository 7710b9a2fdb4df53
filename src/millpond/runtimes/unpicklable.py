"""Find what of a program cannot be sent to the workers, and say where it is."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from millpond.codec import user_types
from millpond.codec.refusal import type_name
from millpond.errors import InvalidUse, short_repr
from millpond.pipeline import graph as g

PicklingError = Callable[[Any], Exception | None]


def explain_unpicklable(program: g.Program, error: Exception, pickling_error: PicklingError) -> InvalidUse:
    """Return the error that says what cannot be sent: which part of the program, which function, which variable.

    `pickling_error(value)` tries to send a value, and returns None if that works.
    """
    where, path, culprit = "", [""], None
    for node in program.nodes:
        found = pickling_error(node.op)
        if found is not None:
            where = node.op.label
            path, culprit, error = _find_culprit(node.op, [], found, pickling_error, set())
            break
    what = f"{where}: {_describe_path(path)}" if where else "a function, source or sink"
    kind = "" if culprit is None else f", a value of type {type_name(type(culprit))} ({short_repr(culprit)}),"
    return InvalidUse(
        f"app {program.app!r}, {what}{kind} cannot be sent to the workers: {type(error).__name__}: {error}. "
        "What functions, sources and sinks refer to is copied to other processes. Open files, locks, connections and "
        "the SparkSession cannot be: make them inside the function, when it is first called."
    )


def _find_culprit(
    value: Any, path: list[str], error: Exception, pickling_error: PicklingError, seen: set[int]
) -> tuple[list[str], Any, Exception]:
    """Return the innermost part of a value that cannot be sent, the names on the way to it, and its error."""
    seen.add(id(value))
    for label, part in _parts_of(value):
        if id(part) not in seen and (found := pickling_error(part)) is not None:
            return _find_culprit(part, [*path, label], found, pickling_error, seen)
    return path, value, error


def _parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a value refers to, each with a description."""
    if isinstance(value, types.FunctionType):
        yield from _variables_of(value)
    elif isinstance(value, types.MethodType):
        yield f"method {value.__func__.__qualname__}", value.__func__
        yield "self", value.__self__
    elif isinstance(value, functools.partial):
        yield _describe_callable(value.func), value.func
        yield from ((f"argument {i}", item) for i, item in enumerate(value.args))
        yield from ((f"argument {name}", item) for name, item in value.keywords.items())
    elif isinstance(value, Mapping):
        yield from ((_describe_callable(item, f"[{key!r}]"), item) for key, item in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((_describe_callable(item, f"[{i}]"), item) for i, item in enumerate(value))
    elif isinstance(value, type):
        yield from ((_describe_callable(item, f"attribute {name}"), item) for name, item in vars(value).items())
    else:
        held = dict(getattr(value, "__dict__", {}))
        ours = type(value).__module__.startswith("millpond.")
        yield from (
            (_describe_callable(item, "" if ours else f"attribute {name}"), item) for name, item in held.items()
        )
        if user_types.is_program_module(type(value).__module__):
            yield f"class {type(value).__qualname__}", type(value)


def _variables_of(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
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


def _describe_callable(value: Any, otherwise: str = "") -> str:
    if isinstance(value, types.FunctionType | types.MethodType | functools._lru_cache_wrapper):
        return f"function {value.__qualname__}"
    return f"class {value.__qualname__}" if isinstance(value, type) else otherwise


def _describe_path(path: list[str]) -> str:
    return ", ".join(dict.fromkeys(part for part in path if part)) or "a part of it"
