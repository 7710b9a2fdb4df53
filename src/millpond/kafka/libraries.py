"""Loading of the optional libraries of `millpond[kafka]`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from millpond.errors import InvalidUse


def load_library(module: str, purpose: str) -> Any:
    """Import and return a module of an optional library. Raises InvalidUse with the `pip install` command if it is
    missing.

    >>> load_library("no_such_library", "Avro")
    Traceback (most recent call last):
    ...
    millpond.errors.InvalidUse: Avro: expected the library no_such_library, got "No module named 'no_such_library'". \
Run: pip install 'millpond[kafka]'
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise InvalidUse(
            f"{purpose}: expected the library {module}, got \"{error}\". Run: pip install 'millpond[kafka]'"
        ) from None
