"""What every verb that keeps state of the user's own may be told about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from millpond.errors import InvalidUse
from millpond.steps.failure import OnError
from millpond.steps.state.ttl import Lifetime


class Kept(TypedDict, total=False):
    """Options of a step's state.

    `type` is the class of the state, or several, where workers must be told of it. `ttl` is how long it lives.
    `version` says which shape of it the program knows, and `migrate[v]` makes version v + 1 of version v: a
    function of the value, or of key and value that returns both; `mp.lazily` lets them wait until they are needed.
    `renamed_from` is the name that the state was
    kept under before. `on_error` says what happens to rows that fail.
    """

    type: Any
    ttl: Lifetime | None
    version: int
    migrate: Mapping[int, Callable[..., Any]] | None
    renamed_from: str | None
    on_error: OnError | None


def checked_versions(version: Any, migrate: Any, where: str) -> dict[int, Callable[..., Any]]:
    """The migrations, if they are some."""
    if type(version) is not int or version < 1:
        raise InvalidUse(f"{where}: version= is a whole number from 1, got {version!r}")
    found = dict(migrate or {})
    wrong = [v for v, f in found.items() if type(v) is not int or not 1 <= v < version or not callable(f)]
    if wrong:
        raise InvalidUse(
            f"{where}: migrate= maps a version below {version} to the function that makes the next one of it, "
            f"for example migrate={{1: upgrade}} with version=2; got {wrong[0]!r}"
        )
    return found
