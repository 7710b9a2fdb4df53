"""What README, docs and examples say of running on Spark is true: it is run, and the stateful parts twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import doc_pages
import pyarrow.parquet as pq
import pytest
from doc_pages import README, ROOT, blocks, pages, run_page

pytestmark = pytest.mark.slow

ON_SPARK = [page for page in pages() if page != README and any(block.spark for block in blocks(page))]


def python(*arguments: str | Path, cwd: Path) -> str:
    """Run a program in a process of its own; what it printed."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "MILLPOND_LOCAL_DIR": str(cwd / "replicas")},
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-6000:]}"
    return done.stdout


def rows_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()]


def write(file: Path, *lines: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{line}\n" for line in lines))


def test_the_readme_does_what_it_shows_and_survives_its_kill(tmp_path: Path) -> None:
    run_page(blocks(README), tmp_path, "a_page")


@pytest.mark.parametrize("page", ON_SPARK, ids=lambda page: page.name)
def test_a_page_that_needs_spark_prints_what_it_says(page: Path, tmp_path: Path) -> None:
    python(doc_pages.__file__, page, cwd=tmp_path)


def test_some_pages_need_spark() -> None:
    assert len(ON_SPARK) >= 3


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The examples, run over a little input; then, in a new process, over a little more."""
    folder = tmp_path_factory.mktemp("examples")
    program = folder / "all.py"
    # One process for all of them, because starting Spark is what takes time; each is __main__ in its turn.
    program.write_text("import runpy, sys\nfor path in sys.argv[1:]:\n    runpy.run_path(path, run_name='__main__')\n")
    # tests/kafka runs the example that needs a broker.
    examples = sorted(path for path in (ROOT / "examples").glob("*.py") if not path.name.startswith("kafka"))
    assert [example.name for example in examples] == ["orders.py", "payments.py", "sensors.py", "visits.py"]
    printed = []

    write(folder / "orders/1.jsonl", '{"customer": "ann", "amount": 3}', '{"customer": "bob", "amount": 5}')
    write(folder / "payments/1.csv", "id,card,cents", "1,visa,60000", "1,visa,60000", "2,visa,-5", "x,visa,1")
    write(folder / "readings/1.jsonl", '{"sensor": "a", "celsius": 20.0}', '{"sensor": "b", "celsius": 10.0}')
    write(folder / "visits/1.json", '{"user": "ann", "page": "/", "ms": 12}', '{"user": "bob", "page": "/"}')
    printed.append(python(program, *examples, cwd=folder))

    write(folder / "orders/2.jsonl", '{"customer": "ann", "amount": 4}')
    write(folder / "payments/2.csv", "id,card,cents", "1,visa,60000", "3,visa,50000", "4,visa,1")
    write(folder / "readings/2.jsonl", '{"sensor": "a", "celsius": 22.0}', '{"sensor": "a", "celsius": 24.0}')
    write(folder / "visits/2.json", '{"user": "cyd", "page": "/", "ms": 30}', '{"user": "ann", "page": "/a", "ms": 1}')
    printed.append(python(program, *examples, cwd=folder))
    return folder, printed


def test_the_orders_example_goes_on_with_its_totals(twice: tuple[Path, list[str]]) -> None:
    folder, printed = twice
    assert "ann: 3.00\nbob: 5.00\n" in printed[0]
    assert "ann: 7.00\nbob: 5.00\n" in printed[1]
    found = sorted((row["customer"], row["total"]) for row in rows_in(folder / "totals"))
    assert found == [("ann", 3), ("ann", 7), ("bob", 5)]


def test_the_payments_example_takes_each_payment_once_and_sets_bad_ones_aside(twice: tuple[Path, list[str]]) -> None:
    folder, _ = twice
    assert rows_in(folder / "alerts") == [{"card": "visa", "spent": 110_000, "recent": [1, 3]}]
    letters = rows_in(folder / "dead")
    assert sorted(letter["step"] for letter in letters) == ["limit", "payments"]
    assert any("a payment of -5 cents" in letter["error"] for letter in letters)


def test_the_sensors_example_goes_on_with_its_averages(twice: tuple[Path, list[str]]) -> None:
    folder, printed = twice
    assert "a: 20.00\nb: 10.00\n" in printed[0]
    assert "a: 22.50\nb: 10.00\n" in printed[1]
    assert sorted(row["ema"] for row in rows_in(folder / "averages")) == [10, 20, 21, 22.5]


def test_the_visits_example_goes_on_where_spark_was(twice: tuple[Path, list[str]]) -> None:
    folder, printed = twice
    assert "/ 1 12 ['ann']\n" in printed[0]
    assert "/ 2 30 ['cyd', 'ann']\n/a 1 1 ['ann']\n" in printed[1]
    counts = [row for file in sorted((folder / "counts").glob("*.parquet")) for row in pq.read_table(file).to_pylist()]
    assert sorted((row["page"], row["n"]) for row in counts) == [("/", 1), ("/", 2), ("/a", 1)]
