"""Find out why a job failed, from the thousands of lines that Spark reports about it."""

from __future__ import annotations

import re

LAST_LINES = 12  # of what a worker has written to stderr

# A worker reports these if its process is set up wrong. What a user's function raises is caught in the task.
_IMPORT_ERROR = re.compile(r"^\s*((?:ModuleNotFoundError|ImportError|pickle\.UnpicklingError): .*)$", re.MULTILINE)
_VERSION = re.compile(r"^.*(\[PYTHON_VERSION_MISMATCH\].*)$", re.MULTILINE)
_PROGRAM = re.compile(r"(Cannot run program \".*)")
_STDERR = re.compile(r"Error from python worker:\n(.*?)\n(?:PYTHONPATH was:|\S)", re.DOTALL)
_FRAME = re.compile(r"^(?:at |\.\.\. \d+ more|File \"|\^+$|~*\^)")


def find_worker_failure(text: str) -> str:
    """Return the last lines of a Python worker that could not start; an empty text if that is not the cause."""
    said = _STDERR.search(text)
    if said is not None:
        lines = [line.rstrip() for line in said[1].splitlines() if line.strip()]
        return "\n".join(lines[-LAST_LINES:])
    for pattern in (_PROGRAM, _VERSION, _IMPORT_ERROR):
        found = pattern.search(text)
        if found is not None:
            return found[1].strip()
    return ""


def find_cause(text: str) -> str:
    """Return the most telling line: the last error of a Python worker, or else of the JVM; no stack frame."""
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not _FRAME.match(line)]
    errors = [line for line in lines if re.search(r"(?:Error|Exception|Incomplete)\b", line)]
    python = [
        line for line in errors if re.match(r"[\w.]+(?:: |$)", line) and not re.match(r"(?:org|java|py4j)\.", line)
    ]
    return (python or errors or lines or [""])[-1][:500]
