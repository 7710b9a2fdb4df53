"""The view: what steps read of their state. A view shows the state of one partition at one record."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence, Set
from typing import NamedTuple, Protocol


class Entry(NamedTuple):
    """A cell of state: its key, its name within the key, its value, and its times if it has any.

    >>> import millpond as mp
    >>> mp.lowlevel.Entry(b'"ann"', b"", b"3", due=None, wall=None).value
    b'3'
    """

    key: bytes
    cell: bytes
    value: bytes
    due: int | None  # event time in ticks
    wall: int | None  # time of the clock in microseconds


class View(Protocol):
    """The state of one partition at one record, for reading. It does not change while others write.

    A store implements it; others wrap a view to show the same state in another way, such as after a migration.

    >>> import millpond as mp
    >>> def show(view: mp.lowlevel.View, step: str, key: bytes) -> None:
    ...     print(view.position, view.record, view.timed_steps, view.count(step), view.latest(step))
    ...     print(view.get(step, key), view.get_many(step, [key]), view.get_cells(step, [key], [b"cell"]))
    ...     print(view.entry(step, key), list(view.entries(step)), list(view.scan(step, key)))
    ...     print(list(view.range(step, key, b"a", b"b")), view.last(step, key, b"a", b"b"))
    ...     print(list(view.due(step, until=10)), view.all_due(step, until=10))
    """

    @property
    def position(self) -> int:
        """The number of the record; -1 before the first."""
        ...

    @property
    def record(self) -> str:
        """The checksum of that record."""
        ...

    @property
    def timed_steps(self) -> Set[str]:
        """The steps of which a cell has ever had a time."""
        ...

    def get(self, step: str, key: bytes, cell: bytes = b"") -> bytes | None:
        """Return the value of a cell, or None if there is no such cell."""
        ...

    def get_many(self, step: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of the unnamed cells of many keys, at a third of the cost of as many calls of `get`."""
        ...

    def get_cells(self, step: str, keys: Sequence[bytes], cells: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of many cells: the i-th is `cells[i]` of `keys[i]`."""
        ...

    def entry(self, step: str, key: bytes, cell: bytes = b"") -> Entry | None:
        """Return a cell with its times, or None if there is no such cell."""
        ...

    def entries(self, step: str, key: bytes | None = None, cell: bytes = b"") -> Iterator[Entry]:
        """Return all cells of a step, or of one key, or those of its cells whose names begin with `cell`.

        The cells of one key come together, and in order unless the name of one of them is a long one.
        """
        ...

    def scan(self, step: str, key: bytes | None = None, cell: bytes = b"") -> Iterator[tuple[bytes, bytes, bytes]]:
        """Return key, cell and value of the same cells."""
        ...

    def scan_keys(self, step: str, beginning: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Return the keys that begin with these bytes and have an unnamed cell, each with the value of that cell.

        They come in no certain order.

        >>> import millpond as mp
        >>> def count_users(view: mp.lowlevel.View) -> int: return sum(1 for _ in view.scan_keys("total", b"user-"))
        """
        ...

    def range(self, step: str, key: bytes, first: bytes, last: bytes) -> Iterator[Entry]:
        """Return the cells of a key from the first to the last, both included, in order. None may have a long name."""
        ...

    def last(self, step: str, key: bytes, first: bytes, last: bytes) -> Entry | None:
        """Return the last cell of such a range, or None if it is empty."""
        ...

    def latest(self, step: str) -> int | None:
        """Return a time that no event time in the step's cells is after; None if that is not known."""
        ...

    def due(
        self, step: str, until: int, *, wall: bool = False, after: int | None = None, exclude: Container[bytes] = ()
    ) -> Iterator[Entry]:
        """Return the cells with an event time after `after` and at most `until`, in the order of these times.

        With `wall` the times of the clock count instead. Cells at the places in `exclude` are left out.
        """
        ...

    def all_due(
        self, step: str, until: int, *, exclude: Container[bytes] = ()
    ) -> tuple[list[bytes], list[bytes], list[bytes]]:
        """Return keys, cells and values of what `due` returns by event time, at half its cost for many cells."""
        ...

    def count(self, step: str) -> int:
        """Return how many cells a step has."""
        ...
