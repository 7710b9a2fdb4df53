"""Count what one row costs in one batch of the local runtime: calls, switches between modules, modules, frames.

    python scripts/trace_row.py             one row: JSON lines → key_by → stateful_map → files
    python scripts/trace_row.py --window    one window that closes: tumbling, count and sum, shown on close;
                                            or --window session, hopping, sliding, early (a trigger fires, too)
    python scripts/trace_row.py --list      also each module, in the order in which the batch enters it
    python scripts/trace_row.py --tree      also every call, indented by its depth

The first batch fills the caches; the second one, with one row, is traced. Only functions of the package count, each
comprehension as one call (as CPython 3.11 runs it) and each generator once, when it starts. A switch is a call from a
function of one module straight into a function of another; the return is not counted again. `frames` is how many frames
of the package the program's function has above it, up to and without `Driver.batch`. With `--window` the trace covers
one call: the `end()` of the window step, from the watermark to the rows of the closed window.

Counted this way, the code base before it was sorted into folders had 834 calls, 279 switches, 54 modules and 21 frames
(CPython 3.11).
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import millpond as mp
from millpond.clock import SystemClock
from millpond.driver.commit import Driver
from millpond.driver.settings import DriverSettings
from millpond.runtimes.local import LocalRuntime
from millpond.sources.base import Limit
from millpond.storage import open_storage

PACKAGE = Path(mp.__file__).parent


class Trace:
    """Counts the calls within the first call of a function for which `covers(frame)` is true."""

    def __init__(self, covers: Callable[[FrameType], bool]) -> None:
        self.calls = self.switches = self.frames = 0
        self.modules: Counter[str] = Counter()  # module → calls, in the order in which they are entered
        self.entries: Counter[str] = Counter()  # module → switches to it
        self.tree: list[str] = []
        self._covers = covers
        self._top: FrameType | None = None
        self._is_over = False
        self._modules: dict[CodeType, str | None] = {}

    def __enter__(self) -> Trace:
        sys.setprofile(self._notice)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)

    def _notice(self, frame: FrameType, event: str, arg: Any) -> None:
        if self._is_over or event not in ("call", "return"):
            return
        if event == "return":
            self._is_over = frame is self._top
            return
        if self._top is None:
            if not self._covers(frame):
                return
            self._top = frame
        code, module = frame.f_code, self._module_of(frame)
        if code is add_to_total.__code__:
            self.frames = self._depth(frame) - 1
        if module is None or _goes_on(frame):
            return
        self.calls += 1
        self.modules[module] += 1
        caller = None if frame is self._top or frame.f_back is None else self._module_of(frame.f_back)
        if caller is not None and caller != module:
            self.switches += 1
            self.entries[module] += 1
        self.tree.append(f"{'  ' * self._depth(frame)}{module}.{code.co_qualname}")

    def _module_of(self, frame: FrameType) -> str | None:
        code = frame.f_code
        if code not in self._modules:
            file = Path(code.co_filename)
            is_ours = file.is_relative_to(PACKAGE)
            self._modules[code] = ".".join(file.relative_to(PACKAGE).with_suffix("").parts) if is_ours else None
        return self._modules[code]

    def _depth(self, frame: FrameType | None) -> int:
        """How many frames there are from the top of the trace to this one, the top not counted."""
        depth = 0
        while frame is not None and frame is not self._top:
            depth += 1
            frame = frame.f_back
        return depth


def _goes_on(frame: FrameType) -> bool:
    """Whether a call event is a generator that goes on after a `yield`: the argument of its RESUME is not 0."""
    return bool(frame.f_code.co_flags & inspect.CO_GENERATOR) and frame.f_code.co_code[frame.f_lasti + 1] != 0


def add_to_total(key: Any, row: Any, total: int) -> tuple[Any, int]:
    """The program's function: it is what `frames` counts down to."""
    total += row["n"]
    return {"who": key, "total": total}, total


WINDOWS: dict[str, Callable[[], dict[str, Any]]] = {
    "tumbling": lambda: {"window": mp.tumbling(10)},
    "hopping": lambda: {"window": mp.hopping(10, 5)},
    "session": lambda: {"window": mp.session(5)},
    "sliding": lambda: {"window": mp.sliding(10)},
    "early": lambda: {"window": mp.tumbling(10), "trigger": mp.triggers.every_rows(2)},
}


def program(place: Path, window: str | None) -> mp.App:
    """The app that is traced, with its state, input and output below a folder."""
    app = mp.App("traced", state_dir=str(place / "state"), partitions=1, local_dir=str(place / "local"))
    rows = mp.sources.files(str(place / "rows"))
    found: Any
    if window is not None:
        keyed = app.stream("rows", rows, timestamp="at").key_by("who")
        found = keyed.window("totals", **WINDOWS[window](), grace=0).aggregate(rows=mp.count(), total=mp.sum("n"))
    else:
        found = app.stream("rows", rows).key_by("who").stateful_map("total", add_to_total, initial=0)
    found.to("out", mp.sinks.files(str(place / "out")))
    return app


def trace_batch(place: Path, window: str | None) -> Trace:
    """Run two batches of one row each, and trace the second."""
    (place / "rows").mkdir()
    app, storage, clock = program(place, window), open_storage(str(place / "state")), SystemClock()
    settings = DriverSettings(partitions=1, home=str(place / "local"), threaded=False)
    driver = Driver.start(mp.lowlevel.program(app), LocalRuntime(storage, clock), storage, clock, settings)
    trace = Trace(_runs_batch if window is None else _ends_step)
    write_row(place, 0)
    driver.batch(Limit(1000, 1 << 20))
    write_row(place, 1)
    with trace:
        driver.batch(Limit(1000, 1 << 20))
    driver.release()
    driver.close()
    delivered = "".join(file.read_text() for file in sorted((place / "out").rglob("*.jsonl")))
    if not trace.calls or not delivered:
        raise SystemExit(f"nothing was traced, or nothing was delivered: {delivered!r}")
    return trace


def write_row(place: Path, number: int) -> None:
    """A file with one row; its time closes the window of the row before it."""
    row = {"who": "ann", "n": number, "at": 20 * number}
    (place / "rows" / f"{number}.jsonl").write_text(json.dumps(row) + "\n")


def _runs_batch(frame: FrameType) -> bool:
    return frame.f_code is Driver.batch.__code__


def _ends_step(frame: FrameType) -> bool:
    return frame.f_code.co_name == "end" and Path(frame.f_code.co_filename).is_relative_to(PACKAGE / "steps")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--window", nargs="?", const="tumbling", choices=WINDOWS, help="trace a window that closes")
    parser.add_argument("--list", action="store_true", help="list the modules, in the order in which they are entered")
    parser.add_argument("--tree", action="store_true", help="list the calls")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trace-row-") as place:
        trace = trace_batch(Path(place), options.window)
    table = {"calls": trace.calls, "switches": trace.switches, "modules": len(trace.modules), "frames": trace.frames}
    if options.window is not None:
        del table["frames"]
    for name, figure in table.items():
        print(f"{name:10s}{figure:6d}")
    if options.list:
        print(f"\n{'module':40s}{'calls':>8s}{'switches to it':>18s}")
        for module, calls in trace.modules.items():
            print(f"{module:40s}{calls:8d}{trace.entries[module]:18d}")
    if options.tree:
        print("", *trace.tree, sep="\n")


if __name__ == "__main__":
    main()
