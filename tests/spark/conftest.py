"""One JVM serves all tests of this process; tests that need processes of their own start programs.

`make spark` spreads the tests over two processes, each with its own JVM. The tests of a file stay together, and
slow files come first, so that both processes end at about the same time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from processes import Program
from pyspark.sql import SparkSession

PROGRAMS = Path(__file__).parent / "programs"

collect_ignore = ["programs"]  # each is a main script and is run as one


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session as a user makes it, who has never heard of PYSPARK_PYTHON."""
    os.environ.pop("PYSPARK_PYTHON", None)
    builder = SparkSession.builder.master("local[2,4]").appName("tests")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",  # starts sooner; no test measures the JVM
        "spark.log.level": "OFF",  # what fails on purpose fails in words of ours
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    yield session
    session.stop()


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
