"""`millpond run` on Spark."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import millpond as mp

pytestmark = pytest.mark.slow

APP = """
from __future__ import annotations

from dataclasses import dataclass

import millpond as mp
from prices_beside import in_cents

app = mp.App("orders", state_dir="state", partitions=2)


@dataclass
class Spent:
    times: int = 0
    cents: int = 0


def add_up(customer, order, spent):
    spent = Spent(spent.times + 1, spent.cents + in_cents(order))
    return {"customer": customer, "cents": spent.cents}, spent


orders = app.stream("orders", mp.sources.files("orders", format="jsonl"))
orders.key_by("customer").stateful_map("spent", add_up, initial=Spent).to("totals", mp.sinks.console())

if __name__ == "__main__":
    app.run(until="caught-up")
    print("the script came to its end")
"""


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "MILLPOND_LOCAL_DIR": str(folder / "replicas")}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=600)


def add(folder: Path, name: str, *orders: tuple[str, int]) -> None:
    (folder / "orders").mkdir(exist_ok=True)
    lines = [json.dumps({"customer": who, "euros": euros}) for who, euros in orders]
    (folder / "orders" / name).write_text("\n".join(lines) + "\n")


def test_a_file_runs_with_millpond_run_and_with_python_by_turns(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "app.py").write_text(APP)
    (tmp_path / "sub" / "prices_beside.py").write_text("def in_cents(order):\n    return order['euros'] * 100\n")
    caught_up = ["-m", "millpond", "run", "sub/app.py", "--until", "caught-up"]

    add(tmp_path, "a.jsonl", ("ann", 3), ("bob", 5), ("ann", 4))
    first = python(tmp_path, *caught_up, "--max-rows", "1000", "--restarts", "1", "--every", "100ms")
    assert first.returncode == 0, first.stderr
    assert sorted(first.stdout.splitlines()) == [
        'totals: {"customer": "ann", "cents": 300}',
        'totals: {"customer": "ann", "cents": 700}',
        'totals: {"customer": "bob", "cents": 500}',
    ]
    assert first.stderr.startswith(f"running app 'orders'; its state is in {tmp_path / 'state'}\n")
    assert re.search(r"app 'orders' has caught up: 3 rows in 1 batch, \d+\.\d s\n", first.stderr)

    add(tmp_path, "b.jsonl", ("ann", 1))
    second = python(tmp_path, "sub/app.py")
    assert second.stdout.splitlines() == ['totals: {"customer": "ann", "cents": 800}', "the script came to its end"]

    add(tmp_path, "c.jsonl", ("bob", 2))
    third = python(tmp_path, *caught_up)
    assert third.stdout.splitlines() == ['totals: {"customer": "bob", "cents": 700}'], third.stderr
    found = dict(mp.open(str(tmp_path / "state"), "orders").state("spent").items())
    assert found == {"ann": {"times": 3, "cents": 800}, "bob": {"times": 2, "cents": 700}}

    add(tmp_path, "d.jsonl", ("bob", "two"))  # type: ignore[arg-type]
    failed = python(tmp_path, *caught_up)
    assert failed.returncode == 1
    assert "\nerror: step 'spent', batch " in failed.stderr
    assert "\n  key: 'bob'\n  row: {'customer': 'bob', 'euros': 'two'}\n" in failed.stderr
