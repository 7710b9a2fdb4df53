"""One JVM serves all tests of this process; tests that need processes of their own start programs.

`make spark` spreads the tests over two processes, each with its own JVM. The tests of a file stay together, and
slow files come first, so that both processes end at about the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from processes import Program
from pyspark.sql import SparkSession
from spark_sessions import spark_session

PROGRAMS = Path(__file__).parent / "programs"

collect_ignore = ["programs"]  # each is a main script and is run as one


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with spark_session() as session:
        yield session


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Starts `programs/<name>.py` as a process of its own; whatever is left of it ends with the test."""
    started: list[Program] = []

    class Started(Program):
        def __init__(self, name: str, *args: object, **how: object) -> None:
            super().__init__(PROGRAMS / f"{name}.py", *args, logs=tmp_path / "logs", **how)  # type: ignore[arg-type]
            started.append(self)

    yield Started
    for one in started:
        one.destroy()
