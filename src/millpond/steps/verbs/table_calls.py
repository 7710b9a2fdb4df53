"""What `map_batch` and `apply_batch` share: they call a function with tables of rows, and take tables back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pyarrow as pa

from millpond.clock import Clock
from millpond.errors import InvalidUse
from millpond.rows.arrow_tables import TableUse, rows_to_table
from millpond.rows.arrow_types import readable_table
from millpond.rows.rows import Keys, Rows
from millpond.steps.failure import FAULTS, OnError, Retry

T = TypeVar("T")


def call_with_retries(policy: OnError, clock: Clock, call: Callable[[], T]) -> T:
    """Return what `call()` returns, called again as a `Retry` says; raise what the last attempt raised."""
    for attempt in range(policy.times if isinstance(policy, Retry) else 0):
        try:
            return call()
        except FAULTS:
            assert isinstance(policy, Retry)
            clock.sleep(policy.backoff * 2**attempt)
    return call()


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Let a panic of a library that is written in Rust be an error of the call: it is no `Exception`."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, (*FAULTS, KeyboardInterrupt)):
            raise
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


def table_of(rows: Rows, use: TableUse) -> pa.Table:
    """Return rows as a table; InvalidUse if a table cannot hold them as they are."""
    return rows.data if rows.form == "arrow" else rows_to_table(rows.objects(), use)


def checked_table(table: pa.Table) -> pa.Table:
    """Return a table of outputs, whose columns can become Python objects; InvalidUse says what is wrong with it."""
    check_names(table)
    return readable_table(table.replace_schema_metadata(None))


def check_names(table: pa.Table) -> None:
    """Raise InvalidUse unless a table has columns, all with different names."""
    names = table.column_names
    if not names:
        raise InvalidUse("expected the function to return a table with columns, got one without any")
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise InvalidUse(
            f"expected the function to return columns with different names, got {', '.join(map(repr, twice))} more "
            "than once. Rename or drop one of them."
        )


def keys_of_outputs(keys: Keys | None) -> Keys | None:
    """Return the keys of rows for their outputs: the function may have changed the column that holds them."""
    return keys if keys is None or keys.field is None else Keys(keys.encoded, keys.array, keys.objects)
