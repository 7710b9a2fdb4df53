"""A file that is truncated while it is read, and then is as long as before, is read on."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from small_drivers import WHOLE, driver_of

import millpond as mp
from millpond.sources import csv, jsonl, lines
from millpond.storage import open_storage

ROWS = 60_000  # more than a gzip file reads ahead: 128 KiB from Python 3.12 on


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is read in many pieces, as one of many megabytes is."""
    for module in (csv, jsonl, lines):
        monkeypatch.setattr(module, "BLOCK", 16 << 10)
    monkeypatch.setattr(jsonl, "CHUNK_ROWS", 100)
    monkeypatch.setattr(csv, "CHUNK_ROWS", 100)


def content(name: str) -> bytes:
    numbers = [b"%06d" % (n + 100_000) for n in range(ROWS)]
    if name.startswith("a.csv"):
        data = b"n\n" + b"\n".join(numbers) + b"\n"
    else:
        data = b"".join(b'{"n": %s}\n' % number for number in numbers)
    return gzip.compress(data, 0) if name.endswith(".gz") else data


@pytest.mark.parametrize("keep", [0, 5_000])
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.jsonl.gz", "a.csv.gz"])
def test_it_is_an_error_and_then_every_row_comes_once(tmp_path: Path, name: str, keep: int) -> None:
    path, storage, out, seen = tmp_path / name, open_storage("memory://"), [], []
    data = content(name)
    path.write_bytes(data)

    def truncate(row: Any) -> None:
        if not seen:
            seen.append(row)
            with path.open("r+b") as file:
                file.truncate(keep)

    app = mp.App("truncated", partitions=1)
    rows = app.stream("rows", mp.sources.files(path))
    rows.inspect(truncate).to("out", mp.sinks.function(lambda rows, delivery: out.extend(rows)))
    with pytest.raises(mp.errors.InvalidUse, match=f"{name}: expected at least {len(data)} bytes.*has {keep}"):
        driver_of(app, storage, tmp_path / "local").batch(WHOLE)

    path.write_bytes(data)
    driver = driver_of(app, storage, tmp_path / "local")
    while driver.batch(WHOLE):
        pass
    assert [int(row["n"]) for row in out] == list(range(100_000, 100_000 + ROWS))
