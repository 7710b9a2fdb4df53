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
    """The card's total with this payment, as a row for the sink and as the new state."""
    total += payment["cents"]
    return {"id": payment["id"], "card": card, "total": total}, total


def app_in(folder: Path) -> mp.App:
    """The app that reads `payments/` in a folder, keeps its state in `state/` and writes to `totals/`.

    >>> app_in(Path("demo")).name
    'payments'
    """
    app = mp.App(NAME, state_dir=str(folder / "state"), local_dir=str(folder / "replicas"))
    payments = app.stream("payments", mp.sources.files(folder / "payments", format="jsonl"))
    totals = payments.key_by("card").stateful_map(STEP, add_up, initial=0)
    totals.to("totals", mp.sinks.files(folder / "totals"))
    return app


def _end_with_parent() -> None:
    """Nobody writes to our standard input: when it ends, whoever started us is gone, however that happened."""
    while os.read(0, 1):  # unbuffered: a thread that holds a buffer's lock would break the interpreter's own end
        pass
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Run the app until SIGTERM, or until the process that started this one is gone."""
    folder, max_rows = Path(sys.argv[1]), int(sys.argv[2])
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        app_in(folder).run(every=0.1, max_rows=max_rows)
    except mp.errors.MillpondError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
