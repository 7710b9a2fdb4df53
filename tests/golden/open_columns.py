"""Outputs in columns that were committed and never delivered: as dicts, as a dataclass, and beside rows that are text.

    cd tests && python -m golden.open_columns

It wrote the folder `open-columns` once; do not change either. The driver died before its first delivery.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from golden.program import run

import millpond as mp
from millpond.clock import ManualClock
from millpond.driver.commit import Driver
from millpond.driver.settings import Controls, DriverSettings
from millpond.runtimes.local import LocalRuntime
from millpond.sources.base import Limit

HERE = Path(__file__).parent / "open-columns"
BEGIN = datetime(2024, 1, 1, 12, tzinfo=UTC)
ROWS = [{"k": "ab"[n % 2], "n": n} for n in range(7)]
SINKS = {"totals": "jsonl", "typed": "parquet", "shipments": "jsonl", "mixed": "jsonl"}


@dataclass
class Shipment:
    order: str
    weight: float | None


def total(key: str, row: dict[str, Any], held: int) -> tuple[Any, int]:
    return {"customer": key, "order": row["n"], "total": held + row["n"], "half": row["n"] / 2}, held + row["n"]


def typed(row: dict[str, Any]) -> dict[str, Any]:
    n = row["n"]
    at = BEGIN + timedelta(hours=n)
    return {
        "s": f"größe {n}",
        "i": n - 3,
        "f": float("nan") if n == 3 else n / 3,
        "b": n > 3,
        "raw": bytes([n, 255]),
        "on": at.date(),
        "naive": at.replace(tzinfo=None),
        "at": None if n == 5 else at,
        "nothing": None,
    }


def odd(row: dict[str, Any]) -> Any:
    return [row, {**row, "k": Decimal("1.10")}, (row["n"],)][row["n"] % 3]


def app(folder: Path) -> mp.App:
    """One program for all of it."""
    made = mp.App("columns", str(folder / "state"), 2, local_dir=str(folder / "local"))
    rows = made.stream("rows", mp.sources.files(folder / "in.jsonl"))
    sinks = {name: mp.sinks.files(folder / "out" / name, format) for name, format in SINKS.items()}  # type: ignore[arg-type]
    rows.key_by("k").stateful_map("total", total, initial=0).to("totals", sinks["totals"])
    rows.map(typed).to("typed", sinks["typed"])
    rows.map(lambda row: Shipment(f"o{row['n']}", row["n"] * 1.5 if row["n"] else None)).to(
        "shipments", sinks["shipments"]
    )
    one, other = (rows.filter(lambda row, k=k: row["k"] == k) for k in "ab")  # type: ignore[misc]
    one.union(other.map(odd)).to("mixed", sinks["mixed"])
    return made


class Died(Exception):
    """The end of the driver, in the place of a crash."""


def die(step: str, when: str) -> None:
    if (step, when) == ("deliver", "before"):
        raise Died


def write(target: Path) -> None:
    """Run the program up to its first delivery, and keep what is there."""
    target.mkdir()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
        made, clock = app(folder), ManualClock()
        driver = Driver.start(
            mp.lowlevel.program(made),
            LocalRuntime(mp.lowlevel.storage(made), clock),
            mp.lowlevel.storage(made),
            clock,
            DriverSettings(partitions=2, home=made.local_dir, threaded=False, bounded=False),
            Controls(hook=die),
        )
        try:
            driver.batch(Limit(1 << 30, 1 << 30))
        except Died:
            driver.close()
        for kept in ("state", "in.jsonl"):
            copy = shutil.copytree if (folder / kept).is_dir() else shutil.copy
            copy(folder / kept, target / kept)
        for beat in target.rglob("heartbeat.json"):
            beat.unlink()
        run(made)
        found = {sink: delivered(folder / "out" / sink) for sink in SINKS}
        (target / "expected.json").write_text(json.dumps(found, indent=1) + "\n")


def delivered(folder: Path) -> list[str]:
    """The rows in the files of a sink, as text."""
    lines: list[str] = []
    for path in sorted(folder.glob("*.jsonl")):
        lines += path.read_text().splitlines()
    for path in sorted(folder.glob("*.parquet")):
        table = pq.ParquetFile(path).read()
        lines += [f"{field.name}: {field.type}" for field in table.schema]
        lines += [str([str(value) for value in row.values()]) for row in table.to_pylist()]
    return lines


if __name__ == "__main__":
    write(HERE)
