"""A sink that writes one file per delivery into a folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, Literal, get_args
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from millpond.errors import Corrupt, InvalidUse
from millpond.log.checked import read_checked, write_checked
from millpond.log.paths import MOST_ELEMENT, cut_name
from millpond.rows.arrow_tables import PARQUET, repeating_columns, rows_to_table
from millpond.rows.plain_json import encode_json_lines
from millpond.sinks.base import Delivery, Registration
from millpond.storage import LocalStorage

SinkFormat = Literal["jsonl", "parquet"]

FORMATS: tuple[SinkFormat, ...] = get_args(SinkFormat)

MAX_SINK_BYTES = MOST_ELEMENT - 75  # of the sink's name in a file name; the other parts take up to 69
REGISTER = "_millpond"  # readers of folders skip names that begin with an underscore


class FileSink:
    """Made by `millpond.sinks.files`; writes each delivery exactly once, whatever crashes.

    A delivery is written under a hidden name, synced, and linked to the name that its id determines, unless that name
    is taken. So a file is there whole or not at all, and if two drivers deliver the same, one succeeds. An empty
    delivery leaves no file. A delivery that was rolled back becomes a file without rows, whose name stays taken. A
    process that is killed while it writes leaves a hidden file, which readers of folders skip.

    >>> import tempfile
    >>> from millpond.sinks import files
    >>> files(tempfile.mkdtemp(), format="parquet").where
    'workers'
    """

    where: Literal["driver", "workers"] = "workers"

    def __init__(self, path: str | os.PathLike[str], format: SinkFormat = "jsonl") -> None:
        given = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
        if not isinstance(given, str) or not given:
            raise InvalidUse(f"sinks.files(path): expected a folder, such as 'out/', got {path!r}")
        if "://" in given:
            raise InvalidUse(
                f"sinks.files({given!r}): expected a folder on a disk that every worker sees, got a URL. "
                "Mount it, or write it with a Spark DataFrame."
            )
        if format not in FORMATS:
            raise InvalidUse(f"sinks.files({given!r}): expected format= one of {FORMATS}, got {format!r}")
        self._storage = LocalStorage(given, label="sinks.files")
        self._format = format

    def deliver(self, rows: list[Any], delivery: Delivery) -> None:
        """Write the delivery's file; on return it survives a power loss.

        Raises Unavailable if the disk is full or does not respond, and InvalidUse if the folder cannot be written or
        the format cannot express a row.
        """
        if rows and not self._was_delivered_otherwise(delivery):
            with _naming(delivery):
                data = self._encode_rows(rows)
            self._storage.put_new(file_name(delivery, self._format), data)

    def _was_delivered_otherwise(self, delivery: Delivery) -> bool:
        """Whether the delivery was made before the format in the program was changed."""
        return any(self._exists(file_name(delivery, other)) for other in FORMATS if other != self._format)

    def rollback(self, deliveries: Sequence[Delivery], rows: Callable[[Delivery], list[Any]]) -> None:
        """Replace the file of each delivery by one without rows, or create it, so that the name stays taken."""
        for delivery in deliveries:
            for format in FORMATS:
                name = file_name(delivery, format)
                if format == self._format or self._exists(name):
                    self._make_void(name, lambda delivery=delivery: rows(delivery))  # type: ignore[misc]

    # --- the register: which driver delivers here ---

    @property
    def target(self) -> str:
        """The folder."""
        return self._storage.root

    def registrations(self, app: str, incarnation: str, sink: str) -> list[Registration]:
        """Return the entries in the folder's register, a file for each claim."""
        found = []
        for item in self._storage.list(_register_folder(incarnation, sink)):
            data = read_checked(
                self._storage,
                item.path,
                help="It says which driver delivers here. If no other copy of the app is running, delete that file; it "
                "will be written again.",
            )
            if data is not None:  # it may have been forgotten since it was listed
                found.append(msgspec.json.decode(data, type=Registration))
        return found

    def register(self, registration: Registration) -> None:
        """Write the entry of a claim into the register, which readers of folders skip."""
        write_checked(self._storage, _register_file(registration), registration)

    def forget(self, registrations: Sequence[Registration]) -> None:
        """Remove the entries of some claims."""
        self._storage.delete([_register_file(registration) for registration in registrations])

    def status(self, delivery: Delivery) -> Literal["held", "void", "gone"]:
        """Return whether the delivery's file exists, in any format, and has rows."""
        there = [name for format in FORMATS if self._exists(name := file_name(delivery, format))]
        if not there:
            return "gone"
        return "void" if all(map(self._is_void, there)) else "held"

    def take_back(self, registration: Registration, known: Callable[[int, str], bool]) -> Callable[[], list[str]]:
        """Find the files of deliveries that are not `known`; return a function that empties them."""
        found = [
            name
            for name, batch, attempt in self._deliveries(registration.incarnation, registration.sink)
            if not known(batch, attempt)
        ]

        def empty_files() -> list[str]:
            for name in found:
                self._make_void(name, list)
            return found

        return empty_files

    def revive(self, rows: list[Any], delivery: Delivery) -> None:
        """Replace the delivery's empty file by one with the rows."""
        self._storage.put(file_name(delivery, self._format), self._encode_rows(rows))

    def _deliveries(self, incarnation: str, sink: str) -> Iterator[tuple[str, int, str]]:
        """Yield the name, batch and attempt of every file of one incarnation and sink."""
        for item in self._storage.list(""):
            batch, partition, rest = item.path[:20], item.path[21:26], item.path[27:]
            names = dict.fromkeys([_quote_sink(sink), quote(sink, safe="")])  # as in files of format 1
            ending = next((e for n in names for f in FORMATS if rest.endswith(e := f"-{n}.{f}")), None)
            if ending and batch.isdigit() and partition.isdigit() and rest.startswith(incarnation):
                attempt = rest.removesuffix(ending).removeprefix(incarnation)
                if "-" not in attempt[1:] and attempt[:1] in ("", "-"):
                    yield item.path, int(batch), attempt[1:]

    def _encode_rows(self, rows: list[Any]) -> bytes | memoryview:
        return encode_json_lines(rows) if self._format == "jsonl" else _encode_parquet(rows_to_table(rows))

    def _exists(self, name: str) -> bool:
        return self._storage.get_range(name, 0, 0) is not None

    def _is_void(self, name: str) -> bool:
        if name.endswith(".jsonl"):
            return self._storage.get_range(name, 0, 1) == b""
        data = self._storage.get(name)
        if not data:  # empty: a process was killed while it made the file, and the rows come again as into one of JSON
            return data is not None
        try:
            return bool(pq.read_metadata(pa.BufferReader(data)).num_rows == 0)
        except (pa.ArrowException, OSError) as error:
            raise Corrupt(
                f"{self._storage.root}: {name} is damaged ({str(error).strip()}). It holds what was delivered to a "
                "sink. Delete that file and run the app again: its rows are delivered again from the log."
            ) from error

    def _make_void(self, name: str, rows: Callable[[], list[Any]]) -> None:
        self._storage.put(
            name, b"" if name.endswith(".jsonl") else _encode_parquet(self._schema_of(name, rows).empty_table())
        )

    def _schema_of(self, name: str, rows: Callable[[], list[Any]]) -> pa.Schema:
        data = self._storage.get(name)
        if data is not None:
            with suppress(pa.ArrowException, OSError):  # a damaged file becomes one without rows as well
                return pq.read_schema(pa.BufferReader(data))
        found = rows()
        return rows_to_table(found).schema if found else pa.schema([])

    def __repr__(self) -> str:
        return f"files({self.target!r}, format={self._format!r})"


class ParquetFileSink(FileSink):
    """Made by `millpond.sinks.files` for Parquet; uniform rows are written from their columns.

    >>> import tempfile
    >>> from millpond.sinks import files
    >>> files(tempfile.mkdtemp(), format="parquet")  # doctest: +ELLIPSIS
    files('...', format='parquet')
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path, "parquet")

    def deliver_table(self, table: pa.Table, delivery: Delivery) -> None:
        """Write the delivery's file, with the same columns and values as `deliver` does."""
        if len(table) and not self._was_delivered_otherwise(delivery):
            with _naming(delivery):
                data = _encode_parquet(table)
            self._storage.put_new(file_name(delivery, "parquet"), data)


@contextmanager
def _naming(delivery: Delivery) -> Iterator[None]:
    """Name the delivery in an error about rows that the format cannot express, and the way out of it."""
    try:
        yield
    except InvalidUse as error:
        raise InvalidUse(
            f"sink {delivery.sink!r}, batch {delivery.batch}: {error} The outputs of this batch are committed, so a "
            "changed program does not change them. To deliver them, run the app once with format='jsonl' for this sink."
        ) from error


def file_name(delivery: Delivery, format: str) -> str:
    """Return the name of the delivery's file, which no other has; names sort by batch, then by partition.

    >>> file_name(Delivery("orders", "5e1f", "totals", 42, 3, "a7c0"), "jsonl")
    '00000000000000000042-00003-5e1f-a7c0-totals.jsonl'
    """
    # No two apps share an incarnation, so the app's name is not needed. Two sinks may share a folder.
    attempt = f"{delivery.attempt}-" if delivery.attempt else ""  # records of format 1 have none
    sink = _quote_sink(delivery.sink) if delivery.attempt else quote(delivery.sink, safe="")
    return f"{delivery.batch:020d}-{delivery.partition:05d}-{delivery.incarnation}-{attempt}{sink}.{format}"


@lru_cache(maxsize=256)
def _quote_sink(sink: str) -> str:
    """Return a sink's name as part of a file name, cut if it is too long for that."""
    return cut_name(quote(sink, safe=""), MAX_SINK_BYTES)


def _register_folder(incarnation: str, sink: str) -> str:
    return f"{REGISTER}/{incarnation}-{_quote_sink(sink)}"


def _register_file(registration: Registration) -> str:
    folder = _register_folder(registration.incarnation, registration.sink)
    return f"{folder}/{registration.claim:020d}-{registration.claim_attempt}.json"


def _encode_parquet(table: pa.Table) -> memoryview:
    """Return the table as a Parquet file; InvalidUse, with the field, if Parquet has no type for a column."""
    buffer = pa.BufferOutputStream()
    try:
        pq.write_table(table, buffer, use_dictionary=_dictionary_columns(table))
    except pa.ArrowNotImplementedError:
        for field in table.schema:
            _check_parquet_type(field)
        raise
    return memoryview(buffer.getvalue())


def _check_parquet_type(field: pa.Field) -> None:
    try:
        pq.write_table(pa.schema([field]).empty_table(), pa.BufferOutputStream())
    except pa.ArrowNotImplementedError as error:
        reason = str(error).partition(". ")[0]
        raise InvalidUse(
            f"field {field.name!r} cannot be {PARQUET.column}: {reason}. Convert it with map(), or {PARQUET.otherwise}."
        ) from None


def _dictionary_columns(table: pa.Table) -> list[str] | bool:
    """Return the columns that get a dictionary; True means all of them."""
    return True if any(map(pa.types.is_nested, table.schema.types)) else repeating_columns(table)
