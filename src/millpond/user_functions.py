"""Checks of the functions that a program gives, when it is built: that they can be called as they will be."""

from __future__ import annotations

import inspect
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from millpond.errors import InvalidUse

_MAX_SIGNATURE = 120  # characters of a signature in a message


def check_function(f: Any, where: str, *arguments: str) -> Any:
    """Return `f` if it can be called with these positional arguments, which are given by their names, else raise.

    A callable whose arguments plain functions do not decide, such as one written in C, is returned unchecked.

    >>> check_function(lambda row: row, "map", "row")({"n": 1})
    {'n': 1}
    >>> check_function(lambda key, row: None, "stateful_map('total')", "key", "row", "state")
    Traceback (most recent call last):
    ...
    millpond.errors.InvalidUse: stateful_map('total'): expected a function of 3 arguments (key, row, state), got \
<lambda>(key, row), which takes 2
    """
    if not callable(f):
        raise InvalidUse(f"{where}: expected a function, got {f!r}")
    signature = _checkable_signature(f)
    if signature is None:
        return f
    try:
        signature.bind(*arguments)
    except TypeError:
        count = f"{len(arguments)} argument{'' if len(arguments) == 1 else 's'} ({', '.join(arguments)})"
        raise InvalidUse(
            f"{where}: expected a function of {count if arguments else 'no arguments'}, got "
            f"{_describe(f, signature)}, which {_needs(signature, len(arguments))}"
        ) from None
    return f


def has_parameter(f: Any, name: str) -> bool:
    """Return whether `f` has a parameter of this name that can be given by it; False if that is not sure.

    >>> has_parameter(lambda start=0: None, "start"), has_parameter(lambda **others: None, "start")
    (True, False)
    """
    signature = _checkable_signature(f)
    found = None if signature is None else signature.parameters.get(name)
    return found is not None and found.kind in (found.POSITIONAL_OR_KEYWORD, found.KEYWORD_ONLY)


def check_step_function(f: Any, verb: str, name: Any, *arguments: str) -> Any:
    """Return the function of a step, checked as `check_function` does. If it was given without a name, say so."""
    if callable(name):
        raise InvalidUse(
            f"{verb}: expected a name before the function, as in {verb}('total', f), got {name!r} in its place. "
            "State is stored under the name."
        )
    return check_function(f, f"{verb}({name!r})", *arguments)


def _checkable_signature(f: Any) -> inspect.Signature | None:
    """Return the signature of what is called; None if that is not sure.

    It is read from the code that runs, because attributes such as `__signature__` and `__wrapped__` may say anything.
    """
    called = _code_to_call(f)
    try:
        return None if called is None else inspect.signature(called)
    except ValueError:  # a partial with other arguments than its function takes
        return None


def _code_to_call(f: Any) -> Any:
    """Return a callable that takes what `f` takes and has no attributes; None unless plain functions decide that."""
    if type(f) is FunctionType:
        bare = FunctionType(f.__code__, {}, f.__name__, f.__defaults__, f.__closure__)
        bare.__kwdefaults__ = f.__kwdefaults__
        return bare
    if type(f) is partial:
        inner = _code_to_call(f.func)
        return None if inner is None else partial(inner, *f.args, **f.keywords)
    if type(f) is MethodType:
        return _bind_method(f.__func__)
    if isinstance(f, type):
        is_plain = type(f) is type and _find_definition(f, "__new__") is _find_definition(object, "__new__")
        return _bind_method(_find_definition(f, "__init__")) if is_plain else None
    return _bind_method(_find_definition(type(f), "__call__"))


def _bind_method(function: Any) -> Any:
    return MethodType(_code_to_call(function), object()) if type(function) is FunctionType else None


def _find_definition(cls: type, name: str) -> Any:
    """Return an attribute as it is written in a class or the nearest of its bases."""
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)


def _needs(signature: inspect.Signature, count: int) -> str:
    """Say why a call with `count` positional arguments does not fit."""
    parameters = list(signature.parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = sum(p.default is p.empty for p in positional)
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        does_fit, taken = required <= count, f"takes at least {required}"
    else:
        does_fit = required <= count <= len(positional)
        taken = f"takes {f'{required} to ' if required < len(positional) else ''}{len(positional) or 'none'}"
    if not does_fit:
        return taken
    names = [repr(p.name) for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    return f"needs the keyword argument{'' if len(names) == 1 else 's'} {', '.join(names)}"


def _describe(f: Any, signature: inspect.Signature) -> str:
    name, shown = getattr(f, "__name__", None), str(signature)
    shown = shown if len(shown) <= _MAX_SIGNATURE else f"{shown[:_MAX_SIGNATURE]}…"
    return f"{name}{shown}" if isinstance(name, str) else f"{f!r} with the parameters {shown}"
