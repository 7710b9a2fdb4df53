"""docs/architecture.md agrees with the tree, with the layers, and with what a batch really calls."""

from __future__ import annotations

import importlib
import re
import runpy
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from doc_pages import DOCS, ROOT

PACKAGE = ROOT / "src" / "millpond"
PAGE = (DOCS / "architecture.md").read_text()
FLOORS: list[tuple[str, ...]] = runpy.run_path(str(ROOT / "tests" / "test_layers.py"))["FLOORS"]


def section(head: str) -> str:
    """The text of one section of the page, up to the next heading."""
    found = re.search(rf"^## {re.escape(head)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, f"the page has no section {head!r}"
    return found[1]


def table(head: str) -> dict[str, list[str]]:
    """The rows of a section's tables, by the code in their first column."""
    rows = re.findall(r"^\| `([^`]+)` \|(.*)\|$", section(head), re.MULTILINE)
    return {name: [cell.strip() for cell in rest.split(" | ")] for name, rest in rows}


def steps_of(head: str) -> list[str]:
    """The functions that a section lists as numbered steps, in their order."""
    return re.findall(r"^\d+\. `([\w.]+)`", section(head), re.MULTILINE)


def find(name: str) -> Any:
    """What a dotted name below `millpond` stands for; raises if there is no such thing."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(["millpond", *parts[:end]]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            found = getattr(found, part)
        return found
    raise AttributeError(name)


def test_every_folder_is_named_with_its_role() -> None:
    folders = {f"{path.parent.relative_to(PACKAGE)}/" for path in PACKAGE.rglob("__init__.py")} - {"./"}
    named = table("Folders")
    assert set(named) - {name for name in named if name.endswith(".py")} == folders
    assert [name for name, cells in named.items() if len(cells) != 2 or not all(cells)] == []


def test_every_module_beside_the_folders_is_named_with_its_role() -> None:
    modules = {path.name for path in PACKAGE.glob("*.py") if path.name != "__init__.py"}
    assert {name for name in table("Folders") if name.endswith(".py")} == modules


def test_every_file_that_the_page_names_exists() -> None:
    paths = re.findall(r"`((?:[\w<>-]+/)+(?:[\w<>-]+\.\w+)?)`", PAGE)
    assert len(paths) > 20
    missing = [path for path in paths if "<" not in path and not any((top / path).exists() for top in (PACKAGE, ROOT))]
    assert missing == []


def test_every_dotted_name_on_the_page_exists() -> None:
    tops = {path.stem for path in PACKAGE.iterdir()}
    names = [name for name in re.findall(r"`([\w]+(?:\.\w+)+)`", PAGE) if name.partition(".")[0] in tops]
    names = [name for name in names if not name.endswith((".py", ".md"))]
    assert len(names) > 20
    for name in names:
        try:
            find(name)
        except AttributeError:
            pytest.fail(f"docs/architecture.md names {name}, which does not exist")


@cache
def trace() -> Any:
    """The trace of one row through one batch of the local runtime."""
    tracer = runpy.run_path(str(ROOT / "scripts" / "trace_row.py"), run_name="tracer")
    with tempfile.TemporaryDirectory() as place:
        return tracer["trace_batch"](Path(place), None)


@pytest.mark.parametrize("head", ["The path of a row", "The path of a commit"])
def test_the_functions_of_a_path_are_called_in_its_order(head: str) -> None:
    names = steps_of(head)
    assert len(names) >= 6
    rest = (line.strip() for line in trace().tree)
    late = [name for name in names if not any(call == name for call in rest)]
    assert late[:1] == [], f"not called, or not after the step before it: {late[:1]}"


def test_the_path_of_a_row_is_short() -> None:
    # In a process of its own: what other tests have left in caches changes the count.
    script = [sys.executable, str(ROOT / "scripts" / "trace_row.py")]
    printed = subprocess.run(script, stdout=subprocess.PIPE, text=True, check=True).stdout
    counts = {name: int(count) for name, count in map(str.split, printed.splitlines())}
    assert counts["switches"] <= 128
    assert counts["modules"] <= 52
    assert counts["frames"] <= 14


def test_the_layers_of_the_page_are_those_that_are_tested() -> None:
    block = re.search(r"^```\n(.*?)^```", section("Layers"), re.MULTILINE | re.DOTALL)
    assert block is not None
    lines = [tuple(line.partition("#")[0].split()) for line in block[1].splitlines()]
    assert list(reversed(lines)) == FLOORS
