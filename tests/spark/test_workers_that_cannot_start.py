"""A worker that cannot start: its own last words, once, and no stack of the JVM."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from millpond.runtimes.spark.causes import find_cause, find_worker_failure

PROGRAM = """
import millpond as mp
app = mp.App("c", "state", partitions=2, local_dir="local")
rows = app.stream("rows", mp.sources.rows([{"k": 1}])).key_by("k")
rows.aggregate("n", n=mp.count()).to("out", mp.sinks.files("out"))
"""


@pytest.mark.parametrize(
    ("name", "python", "said"),
    [
        ("copy.py", None, "partially initialized module 'copy'"),
        ("shop.py", "/nowhere/python", 'Cannot run program "/nowhere/python"'),
    ],
    ids=["a program that hides a module", "no such Python"],
)
def test_the_error_is_what_the_worker_said(tmp_path: Path, name: str, python: str | None, said: str) -> None:
    (tmp_path / name).write_text(PROGRAM)
    env = {key: value for key, value in os.environ.items() if key != "PYSPARK_PYTHON"}
    env |= {"SPARK_LOCAL_DIRS": str(tmp_path), "COLUMNS": "200"}
    if python is not None:
        env["PYSPARK_PYTHON"] = python
    command = [str(Path(sys.executable).with_name("millpond")), "run", name, "--until", "caught-up"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 1
    assert "error: app 'c': a Python worker of Spark could not be started with " in done.stderr
    assert said in done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) < 60, f"{len(lines)} lines"
    assert not [line for line in lines if line.strip().startswith("at ")], "frames of the JVM"
    assert not (tmp_path / "state").exists(), "the app was not claimed"


WORKER = """Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times: org.apache.spark.SparkException: \n\
Error from python worker:
  Traceback (most recent call last):
    File "/app/copy.py", line 1, in <module>
      import shop
  ImportError: cannot import name 'copy'
PYTHONPATH was:
  /lib/pyspark.zip
org.apache.spark.SparkException: EOFException occurred while reading the port number
\tat org.apache.spark.api.python.PythonWorkerFactory.startDaemon(PythonWorkerFactory.scala:386)
\tat org.apache.spark.util.SparkErrorUtils.tryWithSafeFinally$(SparkErrorUtils.scala:83)
"""
TASK = """An error occurred while calling o1.collect. Job aborted: org.apache.spark.api.python.PythonException:
Traceback (most recent call last):
  File "/lib/pyspark.zip/pyspark/worker.py", line 10, in main
    command = read_command(serializer, file)
              ^^^^^^^^^^^^^^
{error}

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handle(PythonRunner.scala:572)
\tat org.apache.spark.util.SparkErrorUtils.tryWithSafeFinally$(SparkErrorUtils.scala:83)
Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:9)
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
{error}
\t... 1 more
"""
PLAIN = "Job aborted: java.lang.OutOfMemoryError: Java heap space\n\tat org.apache.spark.SparkErrorUtils.f(X.scala:8)"


def test_the_last_words_of_a_worker_are_found() -> None:
    assert find_worker_failure(WORKER).endswith("    import shop\n  ImportError: cannot import name 'copy'")
    missing = TASK.format(error="ModuleNotFoundError: No module named 'shop'")
    assert find_worker_failure(missing) == "ModuleNotFoundError: No module named 'shop'"
    other = TASK.format(error="RuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9")
    assert find_worker_failure(other) == "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9"


@pytest.mark.parametrize("text", [TASK.format(error="ValueError: no"), PLAIN, "", "Incomplete: replica at record 3"])
def test_other_failures_are_tried_again(text: str) -> None:
    assert find_worker_failure(text) == ""


def test_the_cause_of_a_failed_job_is_no_stack_frame() -> None:
    assert find_cause(TASK.format(error="ValueError: no")) == "ValueError: no"
    assert find_cause(TASK.format(error="millpond.messages.Incomplete: replica at record 3")).endswith("at record 3")
    assert find_cause(PLAIN) == "Job aborted: java.lang.OutOfMemoryError: Java heap space"
    assert find_cause("") == ""
