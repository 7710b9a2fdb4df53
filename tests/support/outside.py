"""Things outside of an app that its functions reach, as they reach a server: they are not copied with a program."""

from __future__ import annotations

from typing import Any

_HELD: dict[int, Any] = {}


class Outside:
    """An object that the functions of an app share with the test. A pickle holds its address, not its contents."""

    def __reduce__(self) -> Any:
        _HELD[id(self)] = self
        return _held, (id(self),)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__reduce__()


class Calls(Outside, list[Any]):
    """A list that functions append to and a test reads."""


def _held(address: int) -> Any:
    return _HELD[address]
