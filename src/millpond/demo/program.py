"""The demo's app, as a user would write it. `python -m millpond.demo.program FOLDER MAX_ROWS` runs it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import millpond as mp

NAME, STEP = "payments", "total"


def add_up(card: str, payment: Any, total: int) -> tuple[dict[str, Any], int]:
    """Return the card's total with this payment, as a row for the sink and as the new state."""
    total += payment["cents"]
    return {"id": payment["id"], "card": card, "total": total}, total


def make_app(folder: Path) -> mp.App:
    """Return the app that reads `payments/` in a folder, keeps its state in `state/` and writes to `totals/`.

    >>> make_app(Path("demo")).name
    'payments'
    """
    app = mp.App(NAME, state_dir=str(folder / "state"), local_dir=str(folder / "replicas"))
    payments = app.stream("payments", mp.sources.files(folder / "payments", format="jsonl"))
    totals = payments.key_by("card").stateful_map(STEP, add_up, initial=0)
    totals.to("totals", mp.sinks.files(folder / "totals"))
    return app


def _end_with_parent() -> None:
    """End this process group when standard input closes: then the process that started this one has ended."""
    while os.read(0, 1):  # unbuffered: a thread that holds a buffer's lock would break the interpreter's exit
        pass
    os.killpg(0, signal.SIGKILL)


def run_program() -> None:
    """Run the app until SIGTERM, or until the process that started this one has ended."""
    folder, max_rows = Path(sys.argv[1]), int(sys.argv[2])
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        make_app(folder).run(every=0.1, max_rows=max_rows)
    except mp.errors.MillpondError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    run_program()
