"""With MILLPOND_NO_SKIPS=1 a skipped test fails the run, in one process and in several."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("conftest.py")
TESTS = {
    "test_one.py": "import pytest\ndef test_skipped(): pytest.skip('no reason')\ndef test_passed(): pass\n",
    "test_other.py": "import pytest\npytest.skip('no module', allow_module_level=True)\n",
    "test_allowed.py": "import pytest\ndef test_source(): pytest.skip('this source has no ability')\n",
}


def run_pytest(folder: Path, no_skips: str, *options: str) -> tuple[int, str]:
    """Run all tests of a folder; return the exit code and the output."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-p", "no:cacheprovider", *options]
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "MILLPOND_NO_SKIPS": no_skips, "COLUMNS": "200"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_run_with_skipped_tests_fails_and_lists_them(tmp_path: Path, workers: str) -> None:
    shutil.copy(CONFTEST, tmp_path)
    for name, text in TESTS.items():
        (tmp_path / name).write_text(text)
    code, shown = run_pytest(tmp_path, "1", "-n", workers)
    assert code == pytest.ExitCode.TESTS_FAILED, shown
    listed = shown.partition("FAILED: tests were skipped")[2].splitlines()
    assert [line for line in listed if line.startswith("test_")] == [
        "test_other.py: no module",
        "test_one.py::test_skipped: no reason",
    ]
    assert "1 passed, 3 skipped" in shown
    assert run_pytest(tmp_path, "", "-n", workers)[0] == pytest.ExitCode.OK
