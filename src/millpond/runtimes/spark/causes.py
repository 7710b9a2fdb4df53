"""Why a job failed, read from what Spark says about it: thousands of lines, of which a few are about the cause."""

from __future__ import annotations

import re

LINES = 12  # of a worker's last words

# A worker says these when its own process is set up wrong. What a user's function raises is caught in the task.
_MISSING = re.compile(r"^\s*((?:ModuleNotFoundError|ImportError|pickle\.UnpicklingError): .*)$", re.MULTILINE)
_VERSION = re.compile(r"^.*(\[PYTHON_VERSION_MISMATCH\].*)$", re.MULTILINE)
_PROGRAM = re.compile(r"(Cannot run program \".*)")
_STDERR = re.compile(r"Error from python worker:\n(.*?)\n(?:PYTHONPATH was:|\S)", re.DOTALL)
_FRAME = re.compile(r"^(?:at |\.\.\. \d+ more|File \"|\^+$|~*\^)")


def worker_trouble(text: str) -> str:
    """What keeps Python workers from starting, in their own last words; nothing if that is not what is wrong."""
    said = _STDERR.search(text)
    if said is not None:
        lines = [line.rstrip() for line in said[1].splitlines() if line.strip()]
        return "\n".join(lines[-LINES:])
    for pattern in (_PROGRAM, _VERSION, _MISSING):
        found = pattern.search(text)
        if found is not None:
            return found[1].strip()
    return ""


def cause(text: str) -> str:
    """The line that says most: the last error of a Python worker, or else of the JVM; no stack frame."""
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not _FRAME.match(line)]
    errors = [line for line in lines if re.search(r"(?:Error|Exception|Incomplete)\b", line)]
    python = [
        line for line in errors if re.match(r"[\w.]+(?:: |$)", line) and not re.match(r"(?:org|java|py4j)\.", line)
    ]
    return (python or errors or lines or [""])[-1][:500]
