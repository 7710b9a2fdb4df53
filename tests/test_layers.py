"""Imports point downward only, and only one package knows Spark."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src"

# From the bottom to the top. A part imports itself and the floors below it, never its own floor or
# one above. `millpond` is the front door, millpond/__init__.py: the program in `demo` is written
# against it as a user's is.
FLOORS = [
    ("errors", "clock"),
    ("backoff", "shares", "user_functions"),
    ("codec", "timing"),
    ("sources.base", "sinks.base", "storage"),
    ("rows",),
    ("kafka",),
    ("log",),
    ("replica", "messages"),
    ("aggregations",),
    ("steps",),
    ("pipeline",),
    ("watermarks", "parcels"),
    ("runtimes.base",),
    ("task", "driver"),  # on one floor: they speak through `messages`
    ("maintenance",),
    ("runtimes",),
    ("sources", "sinks", "spark_source", "state_changes", "state_view", "status"),
    ("follower",),
    ("admin", "reader"),
    ("app",),
    ("lowlevel", "formats"),
    ("testing",),
    ("millpond", "pyspark_millpond"),  # the latter registers the data source with PySpark
    ("demo",),
    ("cli",),
    ("__main__",),
]
FLOOR = {part: number for number, parts in enumerate(FLOORS) for part in parts}
KNOWS_SPARK = "millpond.runtimes.spark"
PICKLES = "millpond.runtimes.pickling"  # with the pickler that comes with Spark, and nothing else of it


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted(SRC.rglob("*.py")):
        parts = path.relative_to(SRC).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports(name: str, source: str, known: set[str], package: bool = False) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every module that `source` imports: at its top, inside functions, for the
    type checker only, or by a call with a name in quotes."""
    here = name if package else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield node.lineno, alias.name
            case ast.ImportFrom(module=module, names=names, level=level):
                base = module or ""
                if level:
                    up = here.split(".")[: len(here.split(".")) - level + 1]
                    base = ".".join([*up, module] if module else up)
                for alias in names:
                    full = f"{base}.{alias.name}"
                    yield node.lineno, full if full in known else base
            case ast.Call(func=ast.Name(id="__import__" | "import_module"), args=[ast.Constant(str(target)), *_]):
                yield node.lineno, target
            case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(str(target)), *_]):
                yield node.lineno, target


def part_of(module: str) -> str:
    """The part of the package that a module belongs to, as FLOORS names it."""
    parts = module.split(".")
    if ".".join(parts[1:3]) in FLOOR:
        return ".".join(parts[1:3])
    return parts[1] if len(parts) > 1 else parts[0]


def is_inside(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def wrong_imports(name: str, source: str, known: set[str], package: bool = False) -> list[str]:
    """What is wrong with a module's imports, a line each."""
    wrong = []
    mine = part_of(name)
    for line, target in dict.fromkeys(imports(name, source, known, package)):
        is_pickler = name == PICKLES and target in ("pyspark", "pyspark.cloudpickle")
        if is_inside(target, "pyspark") and not is_inside(name, KNOWS_SPARK) and not is_pickler:
            wrong.append(f"{name}:{line} imports {target}; only {KNOWS_SPARK} may")
        if is_inside(target, "millpond"):
            theirs = part_of(target)
            if theirs != mine and FLOOR.get(theirs, -1) >= FLOOR.get(mine, len(FLOORS)):
                wrong.append(f"{name}:{line} imports {target}; {theirs} is not below {mine}")
    return wrong


def test_every_part_of_the_package_has_its_floor() -> None:
    assert {part_of(name) for name in MODULES} <= FLOOR.keys(), "give the new part a place in FLOORS"


@pytest.mark.parametrize("name", MODULES)
def test_imports_point_downward_only(name: str) -> None:
    path = MODULES[name]
    wrong = wrong_imports(name, path.read_text(), set(MODULES), package=path.name == "__init__.py")
    assert not wrong, "\n" + "\n".join(wrong)


KNOWN = {
    "millpond",
    "millpond.app",
    "millpond.errors",
    "millpond.log",
    "millpond.log.ledger",
    "millpond.log.paths",
    "millpond.replica",
    "millpond.runtimes.local",
    "millpond.runtimes.spark",
    "millpond.storage",
}


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("millpond.log.ledger", "import millpond.app"),
        ("millpond.log.ledger", "from millpond.app import App"),
        ("millpond.log.ledger", "from millpond import app"),
        ("millpond.log.ledger", "from millpond import App"),
        ("millpond.log.ledger", "from .. import replica"),
        ("millpond.log.ledger", "from ..replica import Replica"),
        ("millpond.log.ledger", "def late():\n    from millpond import replica"),
        ("millpond.log.ledger", "if TYPE_CHECKING:\n    from ..replica import Replica"),
        ("millpond.log.ledger", "importlib.import_module('millpond.replica')"),
        ("millpond.sources.base", "from millpond.storage import Storage"),
        ("millpond.task.router", "from millpond.driver.commit import Driver"),
        ("millpond.driver.commit", "from millpond.task.router import Router"),
        ("millpond.app", "from pyspark.sql import SparkSession"),
        ("millpond.app", "def late():\n    import pyspark.sql as s"),
        ("millpond.app", "__import__('pyspark')"),
        ("millpond.runtimes.local", "import pyspark"),
        ("millpond.runtimes.sparkle", "import pyspark"),
        ("millpond.runtimes.pickling", "from pyspark.sql import SparkSession"),
    ],
)
def test_an_import_that_points_upward_or_at_spark_is_found(name: str, source: str) -> None:
    assert len(wrong_imports(name, source, KNOWN)) == 1


@pytest.mark.parametrize(
    ("name", "source"),
    [
        (
            "millpond.log.ledger",
            "from .paths import record\nfrom ..errors import Fenced",
        ),
        ("millpond.log.ledger", "import json, pyarrow\nfrom millpond import errors, storage"),
        ("millpond.runtimes.spark", "import pyspark"),
        ("millpond.runtimes.pickling", "from pyspark import cloudpickle"),
        ("millpond.runtimes.spark.session", "from pyspark.sql import SparkSession"),
        ("millpond.app", "def late():\n    from millpond.runtimes.spark import Spark"),
        ("millpond.demo", "import millpond as mp"),
        ("millpond.app", "import pyspark_of_another_kind"),
    ],
)
def test_an_import_that_points_downward_passes(name: str, source: str) -> None:
    assert wrong_imports(name, source, KNOWN) == []


def test_a_relative_import_in_a_package_starts_at_the_package_itself() -> None:
    assert (
        wrong_imports("millpond.log", "from . import ledger\nfrom ..errors import Corrupt", KNOWN, package=True) == []
    )
    assert len(wrong_imports("millpond.log", "from .. import app", KNOWN, package=True)) == 1
