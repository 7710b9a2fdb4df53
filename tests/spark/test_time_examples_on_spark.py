"""The examples of windows, triggers, joins and timers print on Spark what the text above them says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from time_examples import EXAMPLES, documented_output, name_of

pytestmark = pytest.mark.slow

# These go by the clock, and on until they are stopped.
ENDLESS = {"triggers/every.py", "timers/basket.py"}
ENDING = [example for example in EXAMPLES if name_of(example) not in ENDLESS]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What each example prints. One process for all of them, because starting Spark is what takes time."""
    folder = tmp_path_factory.mktemp("examples")
    program = folder / "all.py"
    program.write_text(
        "import runpy, sys\n"
        "for path in sys.argv[1:]:\n"
        "    print('example', path, flush=True)\n"
        "    runpy.run_path(path, run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, str(program), *map(str, ENDING)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "MILLPOND_LOCAL_DIR": str(folder / "replicas")},
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-6000:]}"
    parts = re.split(r"^example (.+)\n", done.stdout, flags=re.MULTILINE)[1:]
    return {path: text.splitlines() for path, text in zip(parts[::2], parts[1::2], strict=True)}


@pytest.mark.parametrize("example", ENDING, ids=name_of)
def test_an_example_prints_the_same_on_spark(example: Path, printed: dict[str, list[str]]) -> None:
    # Between keys there is no order, so what came is compared, not when.
    assert sorted(printed[str(example)]) == sorted(documented_output(example))
