"""Input that grows, and what a file sink holds."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def write(file: Path, rows: Iterable[Any]) -> None:
    """A new file of JSON lines, there at once and whole."""
    file.parent.mkdir(parents=True, exist_ok=True)
    hidden = file.with_name(f".{file.name}")
    hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.replace(hidden, file)


def append(file: Path, rows: Iterable[Any]) -> None:
    """More lines at the end of a file."""
    with open(file, "a") as opened:
        opened.write("".join(json.dumps(row) + "\n" for row in rows))


def held(folder: Path) -> list[Any]:
    """The rows of a file sink, in the order of its files."""
    if not folder.exists():
        return []
    return [json.loads(line) for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()]


def by_key(rows: Iterable[dict[str, Any]], key: str, value: str) -> dict[Any, list[Any]]:
    """The values of each key, in their order: on Spark order holds within a key."""
    found: dict[Any, list[Any]] = {}
    for row in rows:
        found.setdefault(row[key], []).append(row[value])
    return found
