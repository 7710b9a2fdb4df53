"""Checks of the functions that a program gives, when it is built: that they can be called as they will be."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

from millpond.errors import InvalidUse

_MAX_SHOWN = 120  # characters of a signature in a message


def check_function(f: Any, where: str, *arguments: str) -> Any:
    """Return `f` if it can be called with these positional arguments, which are given by their names, else raise.

    >>> check_function(lambda row: row, "map", "row")({"n": 1})
    {'n': 1}
    >>> check_function(lambda key, row: None, "stateful_map('total')", "key", "row", "state")
    Traceback (most recent call last):
    ...
    millpond.errors.InvalidUse: stateful_map('total'): expected a function of 3 arguments (key, row, state), got \
<lambda>(key, row): too many positional arguments
    """
    if not callable(f):
        raise InvalidUse(f"{where}: expected a function, got {f!r}")
    signature = _signature(f)
    if signature is None:
        return f
    try:
        signature.bind(*arguments)
    except TypeError as error:
        count = f"{len(arguments)} argument{'' if len(arguments) == 1 else 's'} ({', '.join(arguments)})"
        raise InvalidUse(
            f"{where}: expected a function of {count if arguments else 'no arguments'}, got "
            f"{_describe(f, signature)}: {error}"
        ) from None
    return f


def _signature(f: Any) -> inspect.Signature | None:
    """Return the signature of what is called; None if it cannot be read, or if somebody has made it by hand.

    A decorated function has the signature of its decorator, which may take other arguments than the function inside.
    """
    try:
        if getattr(f, "__signature__", None) is not None:
            return None
        try:
            return inspect.signature(f, follow_wrapped=False)
        except NameError:  # from Python 3.14 on, for an annotation that is imported for type checkers only
            sign: Any = inspect.signature
            formats: Any = import_module("annotationlib")
            return sign(f, follow_wrapped=False, annotation_format=formats.Format.STRING)  # type: ignore[no-any-return]
    except Exception:  # not written in Python, or an object with attributes of its own making
        return None


def _describe(f: Any, signature: inspect.Signature) -> str:
    name = getattr(f, "__name__", None)
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    shown = str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))
    shown = shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}…"
    return f"{name}{shown}" if isinstance(name, str) else f"{f!r} with the parameters {shown}"
