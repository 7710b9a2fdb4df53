"""What `collect` and `distinct` gather in one batch: values with their numbers in the order of arrival.

Their accumulators grow with every row, so a window stores what each batch adds by itself. `unite` puts the
values of several batches together again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from millpond.aggregations.base import Aggregation

Numbered = tuple[int, Any]  # a value after its number


class Gathered(ABC):
    """The values that one aggregation has gathered in one batch, in the order of arrival: a list or a dict."""

    @abstractmethod
    def __init__(self, pairs: Iterable[Numbered] = ()) -> None: ...

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def add(self, a: Aggregation, row: Any, time: Any, number: int) -> Sequence[Any]:
        """Add what the aggregation takes from a row. Return the values that are new."""

    @abstractmethod
    def truncate(self, length: int) -> None:
        """Remove all values but the first ones."""

    @abstractmethod
    def pairs(self) -> list[Numbered]:
        """Return the values with their numbers."""

    @abstractmethod
    def merge(self, other: Self) -> Self:
        """Return the values of both; neither changes."""

    @staticmethod
    @abstractmethod
    def unite(a: Aggregation, values: list[Any]) -> list[Any]:
        """Return the result of values that several batches have gathered, given in the order of arrival."""


class GatheredList(list[Numbered], Gathered):
    """All values, for `collect`: pairs of a number and a value."""

    def add(self, a: Aggregation, row: Any, time: Any, number: int) -> Sequence[Any]:
        added: list[Any] = a.update([], row, time)
        self.append((number, added[0]))
        return added

    def truncate(self, length: int) -> None:
        del self[length:]

    def pairs(self) -> list[Numbered]:
        return self

    def merge(self, other: GatheredList) -> GatheredList:
        return GatheredList(sorted(self + other, key=lambda pair: pair[0]))

    @staticmethod
    def unite(a: Aggregation, values: list[Any]) -> list[Any]:
        return values


class GatheredSet(dict[Any, int], Gathered):
    """Each value once, for `distinct`: numbers by value."""

    def __init__(self, pairs: Iterable[Numbered] = ()) -> None:
        for number, value in pairs:
            self.setdefault(value, number)

    def add(self, a: Aggregation, row: Any, time: Any, number: int) -> Sequence[Any]:
        before = len(self)
        a.update(self, row, time)
        if len(self) == before:
            return ()
        value = next(reversed(self))
        self[value] = number
        return (value,)

    def truncate(self, length: int) -> None:
        while len(self) > length:
            self.popitem()

    def pairs(self) -> list[Numbered]:
        return [(number, value) for value, number in self.items()]

    def merge(self, other: GatheredSet) -> GatheredSet:
        return GatheredSet(sorted(self.pairs() + other.pairs(), key=lambda pair: pair[0]))

    @staticmethod
    def unite(a: Aggregation, values: list[Any]) -> list[Any]:
        found = a.initial()
        for value in values:
            found = a.merge(found, {value: None})
        return list(found)
