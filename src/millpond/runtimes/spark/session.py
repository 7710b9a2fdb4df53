"""The Spark session that an app runs on: the user's, or a local one that is started here."""

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

LOCAL_SETTINGS = {
    # local[*] retries nothing, so that one failed task would fail its job.
    "spark.master": "local[*,4]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.shuffle.reduceLocality.enabled": "false",
    "spark.shuffle.compress": "false",  # what is moved stays on this machine
    # This JVM only schedules tasks and moves blobs. Its second compiler would need minutes to pay off. The user's own
    # options (spark.driver.extraJavaOptions) come after these.
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.sql.session.timeZone": "UTC",
    "spark.log.level": "ERROR",
}


def open_session(given: Any) -> SparkSession:
    """Return the session to run on, checked. Workers run this Python, unless PYSPARK_PYTHON says otherwise."""
    is_python_set = "PYSPARK_PYTHON" in os.environ
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    found = given if given is not None else _open_local_session()
    if not isinstance(found, SparkSession):
        raise InvalidUse(
            f"run(spark): expected a classic SparkSession, got {type(found).__module__}.{type(found).__name__}. A "
            "Spark Connect session has no RDDs, and Millpond moves its rows through them: make the session with, "
            "for example, SparkSession.builder.master('local[*,4]')."
        )
    if not is_python_set:
        found.sparkContext.pythonExec = (
            sys.executable
        )  # a session of the user's has taken the first "python3" of its path
    if found.sparkContext.getConf().get("spark.speculation", "false").lower() == "true":
        raise InvalidUse(
            "run(spark): spark.speculation is on, and two attempts at one delivery would fence each other. "
            "Make the session with spark.speculation=false."
        )
    return found


@contextlib.contextmanager
def without_spark_logs(context: SparkContext) -> Iterator[None]:
    """Let Spark log nothing about jobs that fail here, if the session sets a log level that can be restored."""
    level = context.getConf().get("spark.log.level", "")
    if level:
        context.setLogLevel("OFF")
    try:
        yield
    finally:
        if level:
            with contextlib.suppress(Exception):  # the JVM may be gone
                context.setLogLevel(level)


def _open_local_session() -> SparkSession:
    beside = os.path.join(sys.prefix, "java")  # where `make` puts a Java if this machine has none
    if not os.environ.get("JAVA_HOME") and shutil.which("java") is None and os.path.exists(f"{beside}/bin/java"):
        os.environ["JAVA_HOME"] = beside
    builder: Any = SparkSession.builder.appName("millpond")
    if SparkSession.getActiveSession() is None:
        for name, value in LOCAL_SETTINGS.items():
            builder = builder.config(name, value)
        builder = builder.config("spark.driver.memory", _driver_memory())
    try:
        made: SparkSession = builder.getOrCreate()
        atexit.register(_stop_session, made)
        return made
    except (PySparkException, RuntimeError, FileNotFoundError) as error:
        raise InvalidUse(
            f"Spark could not be started: {str(error).rstrip('.')}. It needs a Java runtime, 17 or newer: install one "
            "(Debian: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17) or set JAVA_HOME."
        ) from error


def _stop_session(made: SparkSession) -> None:
    with contextlib.suppress(Exception):  # the JVM may be gone before us
        made.stop()


def _driver_memory() -> str:
    """Return a quarter of the memory of this machine, from one to four gigabytes: the rows themselves are in Python."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return "1g"
    return f"{min(4, max(1, total // (4 << 30)))}g"
