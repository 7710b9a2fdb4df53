"""The Spark session that an app runs on: the user's, or a local one of our making."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from typing import Any

from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from millpond.errors import InvalidUse

LOCAL = {
    # Without retries a task that dies would take its job along: local[*] retries nothing.
    "spark.master": "local[*,4]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.shuffle.reduceLocality.enabled": "false",
    "spark.shuffle.compress": "false",  # what is moved stays on this machine
    # This JVM schedules and moves; the rows are in Python. What its second compiler would gain, it would
    # take minutes to earn back. These are the options before the user's own (spark.driver.extraJavaOptions).
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.sql.session.timeZone": "UTC",
    "spark.log.level": "ERROR",
}


def session(given: Any) -> SparkSession:
    """The session to run on, checked; workers run this very Python unless the user has said other."""
    said = "PYSPARK_PYTHON" in os.environ
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    found = given if given is not None else _local()
    if not isinstance(found, SparkSession):
        raise InvalidUse(
            f"run(spark): expected a classic SparkSession, got {type(found).__module__}.{type(found).__name__}. A "
            "Spark Connect session has no RDDs, and Millpond moves its rows through them: make the session with, "
            "for example, SparkSession.builder.master('local[*,4]')."
        )
    if not said:
        found.sparkContext.pythonExec = sys.executable  # a session of the user's took any "python3" that there is
    if found.sparkContext.getConf().get("spark.speculation", "false").lower() == "true":
        raise InvalidUse(
            "run(spark): spark.speculation is on, and two attempts at one delivery would fence each other. "
            "Make the session with spark.speculation=false."
        )
    return found


@contextlib.contextmanager
def quietly(context: SparkContext) -> Iterator[None]:
    """Let Spark write nothing about jobs that fail here; only where it was said how much it is to write."""
    level = context.getConf().get("spark.log.level", "")
    if level:
        context.setLogLevel("OFF")
    try:
        yield
    finally:
        if level:
            with contextlib.suppress(Exception):  # the JVM may be gone
                context.setLogLevel(level)


def _local() -> SparkSession:
    beside = os.path.join(sys.prefix, "java")  # where `make` puts a Java if this machine has none
    if not os.environ.get("JAVA_HOME") and shutil.which("java") is None and os.path.exists(f"{beside}/bin/java"):
        os.environ["JAVA_HOME"] = beside
    builder: Any = SparkSession.builder.appName("millpond")
    if SparkSession.getActiveSession() is None:
        for name, value in LOCAL.items():
            builder = builder.config(name, value)
        builder = builder.config("spark.driver.memory", _memory())
    try:
        made: SparkSession = builder.getOrCreate()
        atexit.register(_end, made)
        return made
    except (PySparkException, RuntimeError, FileNotFoundError) as error:
        raise InvalidUse(
            f"Spark could not be started: {error}. It needs a Java runtime, 17 or newer: install one "
            "(Debian: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17) or set JAVA_HOME."
        ) from error


def _end(made: SparkSession) -> None:
    with contextlib.suppress(Exception):  # the JVM may be gone before us
        made.stop()


def _memory() -> str:
    """A quarter of this machine, between one and four gigabytes: the rows themselves live in Python."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return "1g"
    return f"{min(4, max(1, total // (4 << 30)))}g"
