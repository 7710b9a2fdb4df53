"""Programs whose classes are in the program file, started in every way on the same state."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from folders import held, write

pytestmark = pytest.mark.slow

PROGRAMS = Path(__file__).parent / "programs"
FILE = PROGRAMS / "shop" / "accounts.py"
IMPORTED = "from accounts import app, report; app.run(until='caught-up'); report()"

STARTS: dict[str, tuple[list[str], Path]] = {
    "python accounts.py": ([sys.executable, str(FILE)], PROGRAMS),
    "millpond run accounts.py": (
        [sys.executable, "-m", "millpond", "run", str(FILE), "--until", "caught-up"],
        PROGRAMS,
    ),
    "from accounts import app": ([sys.executable, "-c", IMPORTED], FILE.parent),
    "python -m shop.accounts": ([sys.executable, "-m", "shop.accounts"], PROGRAMS),
    "a notebook": ([sys.executable, "-c", FILE.read_text()], PROGRAMS),
}


def start(folder: Path, how: str) -> str:
    """Run the program once to the end of its input; what it printed."""
    command, cwd = STARTS[how]
    env = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    env |= {"SHOP_FOLDER": str(folder), "TMPDIR": str(folder), "SPARK_LOCAL_DIRS": str(folder)}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{how}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout


def feed(folder: Path, name: str, **fields: Any) -> None:
    write(folder / "in" / name, [{"customer": "ann", "amount": 1, **fields}, {"customer": "bob", "amount": 2}])


def type_names(folder: Path) -> set[str]:
    """The names of classes in all state segments."""
    found: set[str] = set()
    for file in (folder / "state").rglob("steps/**/*.parquet"):
        text = " ".join(str(value) for value in pq.read_table(file).column("value").to_pylist())
        found |= set(re.findall(r'\$(?:type|enum)": ?"([^"]+)"', text))
    return found


def test_every_way_to_start_a_program_opens_the_state_of_every_other(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    write(tmp_path / "notes" / "a.jsonl", [{"text": "hello"}, {"labels": ["no text"]}])
    for number, how in enumerate([*STARTS, "python accounts.py"], start=1):
        feed(tmp_path, f"{number}.jsonl", paidWith="cash" if number == 2 else "card")
        said = start(tmp_path, how)
        if how != "millpond run accounts.py":
            kinds = "['CARD', 'CASH']" if number >= 2 else "['CARD']"
            assert f"ann {number} {kinds} {number}\nbob {number} ['CARD'] {2 * number}\n" in said, how
    assert len(held(tmp_path / "out")) == 12
    # Rows with all their fields are no dead letters, and a row without a required one is nothing else.
    assert held(tmp_path / "noted") == [{"text": "hello", "labels": []}]
    assert [letter["row"] for letter in held(tmp_path / "dead")] in (
        [{"labels": ["no text"]}],
        ['{"labels":["no text"]}'],
        ['{"labels": ["no text"]}'],
    )
    assert type_names(tmp_path) == {f"__main__:{name}" for name in ("Account", "Paid", "Total", "Kind")}
