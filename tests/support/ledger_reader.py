"""What lies in a storage, read with nothing but JSON and Parquet: no code of the library's is trusted here."""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow.parquet as pq

from millpond.storage import Storage


def paths(storage: Storage, below: str) -> list[str]:
    return [item.path for item in storage.list(below)]


def ledger(storage: Storage, app: str) -> list[dict[str, Any]]:
    """The records of an app, oldest first."""
    return [json.loads(storage.get(path) or b"") for path in paths(storage, f"{app}/ledger")]


def rows_of(storage: Storage, path: str) -> list[dict[str, Any]]:
    return pq.read_table(io.BytesIO(storage.get(path) or b"")).to_pylist()


def changes(storage: Storage, app: str, step: str, batch: int = -1) -> list[tuple[str, str, str | None, bool]]:
    """The rows of a step's changelog in one record: key, cell, value, deleted."""
    record = ledger(storage, app)[batch]
    found = []
    for _, pointers in sorted(record.get("segments", {}).get(step, {}).items()):
        for pointer in pointers:
            for row in rows_of(storage, pointer["path"]):
                found.append((row["key"], row["cell"], row["value"], row["deleted"]))
    return found


def commits(storage: Storage, app: str) -> list[dict[str, Any]]:
    return [record for record in ledger(storage, app) if record["kind"] == "commit"]


def named_files(storage: Storage, app: str) -> list[str]:
    """Every segment that some record of the ledger names."""
    return sorted(
        pointer["path"]
        for record in ledger(storage, app)
        for kind in ("segments", "outputs")
        for parts in record.get(kind, {}).values()
        for pointers in parts.values()
        for pointer in pointers
    )
