"""Log lines about replicas that are built from a manifest: how much there is, and how long it takes."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from millpond.clock import elapsed
from millpond.log.checked import Pointer
from millpond.log.recovery import RecoveryFile, remaining_text

log = logging.getLogger("millpond")

REPORT_SECONDS = 5.0  # between two lines about what is left


class FillProgress:
    """Logs at level INFO what is left to load into a replica, every few seconds, and at the end how long it took.

    With `report`, the same is written to a file, for the driver.
    """

    def __init__(
        self, app: str, partition: int | None, files: Sequence[Pointer], report: RecoveryFile | None = None
    ) -> None:
        self._report = report
        self._what = f"{app}: all partitions" if partition is None else f"{app}: partition {partition}"
        self._files, self._done = len(files), 0
        self._cells, self._bytes = sum(file.rows for file in files), sum(file.bytes for file in files)
        self._read = self._read_bytes = 0
        self._began = self._reported = elapsed()

    def done(self, file: Pointer) -> None:
        """Report that a file has been applied."""
        self._done += 1
        self._read += file.rows
        self._read_bytes += file.bytes
        now = elapsed()
        if self._done == self._files:
            log.info("%s: %s", self._what, summary_text(self._cells, self._bytes, now - self._began))
        elif now - self._reported >= REPORT_SECONDS:
            self._reported = now
            log.info("%s: %s", self._what, remaining_text(self._read, self._cells, now - self._began))
            if self._report is not None:
                self._report.write(self._read, self._cells, now - self._began)

    def close(self) -> None:
        """Remove the report: nothing is loaded any more, because it is complete or has failed."""
        if self._report is not None:
            self._report.remove()


def summary_text(cells: int, size: int, seconds: float) -> str:
    """Return what was loaded into a replica, in words.

    >>> summary_text(1_000_000, 120_000_000, 2.13)
    '1,000,000 cells, 120.0 MB in 2.1 s'
    """
    return f"{cells:,} cells, {size / 1e6:.1f} MB in {seconds:.1f} s"
