"""The pictures of the docs, drawn by running the library on some rows: `python scripts/pictures.py`.

Each picture is a plain SVG in docs/pictures. tests/docs/test_pictures.py holds what is there against what this draws.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import millpond as mp
from millpond.clock import SystemClock
from millpond.log.ledger import Ledger
from millpond.log.point import LogPoint
from millpond.replica.folders import table_folder
from millpond.replica.lmdb_store import close_below
from millpond.replica.local_replica import LocalReplica
from millpond.task.tables import TableChanges

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "pictures"
T = mp.triggers

INK, SOFT, FAINT, PAPER = "#1f2933", "#616e7c", "#d9e2ec", "#ffffff"
BLUE, TEAL, PURPLE, GREY, ORANGE, RED = "#2f6fb5", "#1b8a7a", "#7b52ab", "#7b8794", "#c9711a", "#c0352b"


class Svg:
    """A picture as text, one element per line."""

    def __init__(self, width: float, title: str) -> None:
        self.width, self.title = width, title
        self.lines: list[str] = []

    def add(self, tag: str, text: str | None = None, **attributes: Any) -> None:
        given = "".join(f' {name.replace("_", "-")}="{_shown(value)}"' for name, value in attributes.items())
        self.lines.append(f"<{tag}{given}/>" if text is None else f"<{tag}{given}>{_escaped(text)}</{tag}>")

    def text(self, x: float, y: float, text: str, size: float = 12, fill: str = INK, **more: Any) -> None:
        self.add("text", text, x=x, y=y, font_size=size, fill=fill, **more)

    def code(self, x: float, y: float, text: str, size: float = 12.5, **more: Any) -> None:
        self.text(
            x, y, text, size, font_family="ui-monospace, SFMono-Regular, Menlo, 'DejaVu Sans Mono', monospace", **more
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, stroke: str, width: float = 1, **more: Any) -> None:
        self.add("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=stroke, stroke_width=width, **more)

    def dot(self, x: float, y: float, fill: str = INK, r: float = 3.4, **more: Any) -> None:
        self.add("circle", cx=x, cy=y, r=r, fill=fill, **more)

    def done(self, height: float) -> str:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_shown(self.width)} {_shown(height)}" '
            f"font-family=\"Inter, 'Helvetica Neue', Helvetica, Arial, 'DejaVu Sans', sans-serif\" role=\"img\">"
        )
        paper = f'<rect width="{_shown(self.width)}" height="{_shown(height)}" rx="8" fill="{PAPER}"/>'
        return "\n".join([head, f"<title>{_escaped(self.title)}</title>", paper, *self.lines, "</svg>", ""])


def _shown(value: Any) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def windowed(window: Any, **how: Any) -> mp.App:
    """Return an app that counts rows in windows and collects them."""
    app = mp.App("picture")
    rows = app.stream("rows", mp.sources.rows([]), timestamp="at", disorder=how.pop("disorder", 0)).key_by("k")
    step = rows.window("w", window, **how)
    step.aggregate(n=mp.count(), at=mp.collect("at")).to("out", mp.sinks.memory())
    step.late.to("late", mp.sinks.memory())
    rows.apply("watermark", lambda row, state: state.watermark).to("marks", mp.sinks.memory())
    return app


def row(at: int) -> dict[str, Any]:
    return {"k": "a", "at": at}


# --- which windows there are ---

TIMES = [1, 3, 8, 11, 13, 20, 22, 25, 31, 33, 38, 40]


@dataclass
class Kind:
    window: Any
    about: str
    color: str
    ends_included: bool = False
    by_rows: bool = False


KINDS = [
    Kind(mp.tumbling(10), "one after the other", BLUE),
    Kind(mp.hopping(10, every=5), "overlapping, a new one every 5", BLUE),
    Kind(mp.session(5), "ended by a pause of more than 5", TEAL, ends_included=True),
    Kind(mp.sliding(5), "one for each time, 5 back from it", PURPLE, ends_included=True),
    Kind(mp.global_window(), "one, forever", GREY),
    Kind(mp.count_tumbling(5), "5 rows, then the next 5", ORANGE, by_rows=True),
    Kind(mp.count_hopping(5, every=3), "5 rows, a new one every 3", ORANGE, by_rows=True),
    Kind(mp.count_sliding(3), "the last 3 rows, with every row", ORANGE, by_rows=True),
]


def made(kind: Kind) -> list[dict[str, Any]]:
    """Run the library on the rows and return its windows, as output rows."""
    how = {} if kind.by_rows or kind.color == GREY else {"grace": mp.NO_GRACE}
    with mp.testing.TestDriver(windowed(kind.window, **how)) as driver:
        driver.send("rows", [row(at) for at in TIMES])
        driver.finish()
        found = driver.output("out")
    if kind.by_rows:  # those that the end of the input closed before they were full are not typical
        found = [out for out in found if out["n"] == out["window_end"] - out["window_start"]]
    return sorted(found, key=lambda out: (out["at"][0], out["window_start"] or 0))


def lanes(spans: list[tuple[float, float]]) -> list[int]:
    """Return for each span the first lane in which it overlaps no other."""
    ends: list[float] = []
    found = []
    for start, end in spans:
        lane = next((i for i, last in enumerate(ends) if last <= start), len(ends))
        ends[lane:] = [end, *ends[lane + 1 :]] if lane < len(ends) else [*ends[lane:], end]
        found.append(lane)
    return found


def windows() -> str:
    """Draw the windows of each kind for the same rows."""
    left, unit, first, last = 250.0, 13.0, -6, 51
    svg = Svg(left + (last - first) * unit + 16, "The windows that each kind makes of the same twelve rows")

    def x(at: float) -> float:
        return left + (at - first) * unit

    svg.text(20, 30, "twelve rows of one key", 13, font_weight="600")
    svg.text(20, 46, "by event time", 11, SOFT)
    for at in TIMES:
        svg.text(x(at), 28, str(at), 10, SOFT, text_anchor="middle")
        svg.dot(x(at), 40)
    place = len(svg.lines)
    y = 66.0
    for kind in KINDS:
        y = _block(svg, kind, y, x, first, last)
    grid = Svg(0, "")
    for at in range(0, last, 10):
        grid.line(x(at), 54, x(at), y + 4, FAINT)
        grid.text(x(at), y + 19, str(at), 10, SOFT, text_anchor="middle")
    svg.lines[place:place] = grid.lines
    svg.text(
        left,
        y + 40,
        "A thick edge is part of the window, an open one is not. The number is how many rows it contains.",
        11,
        SOFT,
    )
    return svg.done(y + 56)


def _block(svg: Svg, kind: Kind, y: float, x: Any, first: int, last: int) -> float:
    height, gap = 17.0, 4.0
    found = made(kind)
    spans = []
    for out in found:
        start, end = out["window_start"], out["window_end"]
        if kind.by_rows or start is None:
            start, end = (out["at"][0], out["at"][-1]) if kind.by_rows else (first + 1, last)
        pad = 0.55 if kind.ends_included or kind.by_rows else 0.0
        spans.append((start - pad, end + pad))
    svg.line(20, y - 8, svg.width - 16, y - 8, FAINT)
    svg.code(20, y + 13, repr(kind.window))
    svg.text(20, y + 29, kind.about, 11, SOFT)
    room = 1.4 if kind.ends_included or kind.by_rows else 0.0  # for the number behind the edge
    where = lanes([(start, end + room) for start, end in spans])
    for out, (start, end), lane in zip(found, spans, where, strict=True):
        top = y + lane * (height + gap)
        end = min(end, last)
        inset = 1.2 if not kind.ends_included and not kind.by_rows else 0
        svg.add(
            "rect",
            x=x(start),
            y=top,
            width=x(end) - x(start) - inset,
            height=height,
            rx=2,
            fill=kind.color,
            fill_opacity=0.16,
        )
        svg.line(x(start), top, x(start), top + height, kind.color, 2.4)
        if kind.ends_included or kind.by_rows:
            svg.line(x(end), top, x(end), top + height, kind.color, 2.4)
        for at in out["at"]:
            svg.dot(x(at), top + height / 2, kind.color)
        if kind.ends_included or kind.by_rows:
            svg.text(x(end) + 4, top + 12.5, str(out["n"]), 10, kind.color, font_weight="600")
        else:
            svg.text(x(end) - 8, top + 12.5, str(out["n"]), 10, kind.color, font_weight="600", text_anchor="end")
    return y + max(36.0, (max(where) + 1) * (height + gap)) + 16


# --- what a watermark does ---

ARRIVALS = [2, 6, 4, 9, 13, 7, 16, 12, 18, 8, 24, 15, 27, 21, 33]
DISORDER = 4


@dataclass
class Batch:
    """A row that was sent in a batch of its own, and its effect."""

    at: int
    began: int | None
    closed: list[dict[str, Any]]
    late_by: int | None


def history() -> list[Batch]:
    """Run the library on rows out of order, batch by batch."""
    found = []
    with mp.testing.TestDriver(windowed(mp.tumbling(10), grace=mp.NO_GRACE, disorder=DISORDER)) as driver:
        for at in ARRIVALS:
            before = len(driver.output("out")), len(driver.output("late")), len(driver.output("marks"))
            driver.send("rows", [row(at)])
            late = driver.output("late")[before[1] :]
            marks = driver.output("marks")[before[2] :]
            closed = driver.output("out")[before[0] :]
            found.append(Batch(at, marks[0] if marks else None, closed, late[0]["late_by"] if late else None))
    return found


def watermark() -> str:
    """Rows by arrival and by event time, the watermark that follows them, and the windows that it closes."""
    left, unit, tall, top = 66.0, 56.0, 8.4, 64.0
    batches = history()
    low, high, count = -3, 36, len(batches)
    svg = Svg(left + count * unit + 160, "Rows out of order, the watermark behind them, and the windows that it closes")

    def x(n: float) -> float:
        return left + n * unit

    def y(at: float) -> float:
        return top + (high - at) * tall

    stream = f'app.stream(…, timestamp="at", disorder={DISORDER})'
    svg.code(20, 28, f'{stream}.key_by("k").window("w", mp.tumbling(10), grace=mp.NO_GRACE)')
    _bands(svg, batches, x, y, high)
    for at in range(0, high, 10):
        svg.line(left, y(at), x(count), y(at), FAINT)
        svg.text(left - 8, y(at) + 4, str(at), 10.5, SOFT, text_anchor="end")
    _staircase(svg, batches, x, y)
    for n, batch in enumerate(batches):
        color, said = (INK, str(batch.at)) if batch.late_by is None else (RED, f"{batch.at} is late by {batch.late_by}")
        svg.dot(x(n + 0.5), y(batch.at), color, 4.6)
        svg.text(x(n + 0.5) + 8, y(batch.at) - 3, said, 11, color, font_weight="400" if color == INK else "600")
        svg.text(x(n + 0.5), y(low) + 18, str(n + 1), 10.5, SOFT, text_anchor="middle")
    svg.text(x(count / 2), y(low) + 38, "batches, a row each, as they arrive", 12, SOFT, text_anchor="middle")
    svg.text(20, top - 8, "event time", 12, SOFT)
    return svg.done(y(low) + 54)


def _bands(svg: Svg, batches: list[Batch], x: Any, y: Any, high: int) -> None:
    """The windows, from their first row until they close."""
    opened: dict[int, int] = {}
    closed: dict[int, tuple[int, dict[str, Any]]] = {}
    for n, batch in enumerate(batches):
        if batch.late_by is None:
            opened.setdefault(batch.at // 10 * 10, n)
        for out in batch.closed:
            closed[out["window_start"]] = (n, out)
    count = len(batches)
    for start, n in opened.items():
        until = closed[start][0] + 1 if start in closed else count
        head, foot, window = y(min(start + 10, high)), y(start), f"[{start}, {start + 10})"
        svg.add("rect", x=x(n), y=head, width=x(until) - x(n), height=foot - head, fill=BLUE, fill_opacity=0.12)
        if start in closed:
            svg.line(x(until), head, x(until), foot, BLUE, 2.4)
            rows = closed[start][1]["n"]
            svg.text(x(until) + 6, foot - 8, f"{window} closes with {rows} rows", 11.5, BLUE, font_weight="600")
        elif until - n > 2:
            svg.text(x(n) + 6, foot - 8, f"{window} is open", 11.5, BLUE)
        else:
            svg.text(x(n) - 6, foot - 8, f"{window} is open", 11.5, BLUE, text_anchor="end")


def _staircase(svg: Svg, batches: list[Batch], x: Any, y: Any) -> None:
    """The watermark with which each batch began."""
    known = [(n, batch.began) for n, batch in enumerate(batches) if batch.began is not None]
    points = [(x(n + part), y(at)) for n, at in known for part in (0, 1)]
    path = " ".join(f"{_shown(px)},{_shown(py)}" for px, py in points)
    svg.add("polyline", points=path, fill="none", stroke=ORANGE, stroke_width=2.4, stroke_linejoin="round")
    end, level = points[-1]
    for i, words in enumerate(["the watermark with", "which a batch began"]):
        svg.text(end + 8, level - 3 + 15 * i, words, 11.5, ORANGE, font_weight="600")


# --- when panes come ---

SENT = [1, 3, 6, 8, 12, 5, 14, 16]
PAUSE = 4  # seconds of the clock from row to row
GRACE = 5


def is_even(given: dict[str, Any]) -> bool:
    return bool(given["at"] % 2 == 0)


def is_four(result: dict[str, Any], given: dict[str, Any]) -> bool:
    return bool(result["n"] == 4)


TRIGGERS: list[tuple[str, Any, dict[str, Any]]] = [
    ("on_close()", T.on_close(), {}),
    ("on_update()", T.on_update(), {}),
    ("every_rows(2)", T.every_rows(2), {}),
    ('every("10s")', T.every("10s"), {}),
    ("on_match(is_even)", T.on_match(is_even), {}),
    ("at_end()", T.at_end(), {}),
    ("at_end(4)", T.at_end(4), {}),
    ("at_fraction(0.5)", T.at_fraction(0.5), {}),
    ("when(is_four)", T.when(is_four), {}),
    ("when(is_four, before=True)", T.when(is_four, before=True), {}),
    ("any_of(every_rows(3), on_match(is_even))", T.any_of(T.every_rows(3), T.on_match(is_even)), {}),
    ("all_of(every_rows(3), on_match(is_even))", T.all_of(T.every_rows(3), T.on_match(is_even)), {}),
]
PANES = [
    (f'every_rows(2), panes="{panes}"', T.every_rows(2), {"panes": panes})
    for panes in ("accumulate", "discard", "retract")
]


def shown(trigger: Any, how: dict[str, Any]) -> Iterator[tuple[float, dict[str, Any]]]:
    """The panes of the window [0, 10), with its time: n for the nth row, n + ½ for the pause after it."""
    with mp.testing.TestDriver(windowed(mp.tumbling(10), grace=GRACE, trigger=trigger, **how)) as driver:
        held = 0
        for n, at in enumerate(SENT):
            for part in (0.0, 0.5):
                driver.send("rows", [row(at)]) if not part else driver.advance(PAUSE)
                out = driver.output("out")
                yield from ((n + part, pane) for pane in out[held:] if pane["window_start"] == 0)
                held = len(out)


def triggers() -> str:
    """When each trigger emits a pane of the same window."""
    left, unit, tall = 330.0, 70.0, 30.0
    svg = Svg(left + len(SENT) * unit + 20, "When each trigger emits a pane of the same window")

    def x(n: float) -> float:
        return left + (n + 0.5) * unit

    svg.code(20, 30, "mp.tumbling(10), grace=5", 13)
    svg.text(20, 47, f"what the window [0, 10) emits; a row every {PAUSE} seconds", 11, SOFT)
    bottom = 84 + tall * (len(TRIGGERS) + len(PANES))
    for n, at in enumerate(SENT):
        inside = at < 10
        svg.line(x(n), 56, x(n), bottom - 12, FAINT)
        svg.dot(x(n), 44, INK if inside else "#b8c2cc", 4.4)
        svg.text(x(n), 32, str(at), 11.5, INK if inside else SOFT, text_anchor="middle")
    y = 84.0
    for label, trigger, how in TRIGGERS:
        _lane(svg, label, trigger, how, x, y)
        y += tall
    svg.line(20, y - 4, svg.width - 20, y - 4, FAINT)
    y += 14
    for label, trigger, how in PANES:
        _lane(svg, label, trigger, how, x, y)
        y += tall
    _legend(svg, left, y + 10)
    return svg.done(y + 32)


def _lane(svg: Svg, label: str, trigger: Any, how: dict[str, Any], x: Any, y: float) -> None:
    svg.code(20, y + 4, label, 11.8)
    found: dict[float, list[dict[str, Any]]] = {}
    for when, pane in shown(trigger, how):
        found.setdefault(when, []).append(pane)
    for when, panes in found.items():
        for i, pane in enumerate(panes):
            _badge(svg, x(when) + (i - (len(panes) - 1) / 2) * 24, y, pane)


def _badge(svg: Svg, x: float, y: float, pane: dict[str, Any]) -> None:
    taken_back, final = pane.get("retracted", False), pane["final"]
    color = RED if taken_back else BLUE
    svg.dot(x, y, color if final else PAPER, 10.5, stroke=color, stroke_width=1.8)
    svg.text(x, y + 4, str(pane["n"]), 11.5, PAPER if final else color, text_anchor="middle", font_weight="600")
    if taken_back:
        svg.line(x - 7, y + 7, x + 7, y - 7, color, 1.6)


def _legend(svg: Svg, left: float, y: float) -> None:
    for i, (pane, about) in enumerate(
        [
            ({"n": 3, "final": False}, "a pane: how many rows it contains"),
            ({"n": 5, "final": True}, "final: the window has closed"),
            ({"n": 2, "final": False, "retracted": True}, "retracted"),
        ]
    ):
        at = left + (0, 226, 436)[i]
        _badge(svg, at, y, pane)
        svg.text(at + 17, y + 4, about, 11, SOFT)


# --- the kinds of replicas of one log ---


@dataclass(frozen=True)
class Follower:
    """A replica of the picture: what it is for, what it holds, and the record that it was asked to reach."""

    name: str
    place: str
    holds: str
    color: str
    to: int
    replica: LocalReplica


def shop(folder: Path) -> mp.App:
    """Return an app with a step and a table, after some batches."""
    app = mp.App("shop", str(folder / "state"), 2, local_dir=str(folder / "local"))
    orders = app.stream("orders", mp.sources.rows([])).key_by("sku")
    prices = app.table("prices", app.stream("updates", mp.sources.rows([])).key_by("sku"), everywhere=True)
    orders.lookup("priced", prices).aggregate("sold", n=mp.count())
    with mp.testing.TestDriver(app, mp.lowlevel.storage(app)) as driver:
        for n in range(7):
            updates = [{"sku": f"s{n}", "price": n}] if n % 3 == 0 else []
            driver.send({"orders": [{"sku": f"s{n % 3}"}, {"sku": "s9"}], "updates": updates})
    return app


def followers(folder: Path, app: mp.App, newest: int) -> list[Follower]:
    """Return four kinds of replicas. Each has a folder of its own, as on hosts of their own."""
    storage, name = mp.lowlevel.storage(app), app.name
    host = [str(folder / f"host-{n}") for n in range(4)]
    table = LocalReplica(
        storage, name, TableChanges(storage, "prices"), host[2], partial(table_folder, host[2], table="prices")
    )
    partition = partial(LocalReplica.of_partition, storage, name, 0)
    return [
        Follower("local", "worker of host A", "partition 0, all steps", BLUE, newest, partition(host[0])),
        Follower("standby", "host B", "partition 0, all steps", TEAL, newest - 1, partition(host[1])),
        Follower("global table", "every host", "table prices, all partitions", PURPLE, newest, table),
        Follower(
            "reader",
            "any process",
            "all steps, all partitions",
            ORANGE,
            newest - 2,
            LocalReplica.of_app(storage, name, host[3]),
        ),
    ]


def replicas() -> str:
    """Four replicas of one log, and the record that each has reached."""
    svg = Svg(760, "Four kinds of replicas follow one log, and each remembers the record that it has reached")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        folder = Path(place)
        app = shop(folder)
        ledger = Ledger(mp.lowlevel.storage(app), app.name, SystemClock())
        records = list(ledger.between(-1, ledger.numbers()[-1]))
        newest = records[-1]
        wide, left = 54.0, 252.0

        def x(number: float) -> float:
            return left + number * wide

        svg.text(20, 50, "the log", 13.5, font_weight="600")
        svg.text(20, 67, "state_dir, written once", 11, SOFT)
        for record in records:
            is_claim = record.kind == "claim"
            svg.add("rect", x=x(record.number), y=34, width=wide - 8, height=36, rx=5, fill=FAINT if is_claim else INK)
            svg.text(
                x(record.number + 0.43), 50, str(record.number), 13, INK if is_claim else PAPER, text_anchor="middle"
            )
            fill = SOFT if is_claim else FAINT
            svg.text(x(record.number + 0.43), 63, record.kind, 9.5, fill, text_anchor="middle")
        y = 112.0
        for each in followers(folder, app, newest.number):
            reached = each.replica.catch_up(LogPoint.of(records[each.to])).number
            _follower(svg, each, y, x, reached, each.replica.lag(LogPoint.of(newest)))
            y += 62
        close_below(folder)
    svg.text(
        20,
        y + 4,
        "catch_up(to) applies the segments after the position. No replica holds what is not committed.",
        11.5,
        SOFT,
    )
    return svg.done(y + 22)


def _follower(svg: Svg, each: Follower, y: float, x: Any, reached: int, lag: int) -> None:
    svg.text(20, y + 4, each.name, 13.5, each.color, font_weight="600")
    svg.text(20, y + 20, f"{each.place}: {each.holds}", 11, SOFT)
    for number in range(reached + 1):
        svg.add("rect", x=x(number), y=y - 10, width=46, height=18, rx=4, fill=each.color, opacity=0.28)
    at = x(reached) + 46
    svg.line(at, 74, at, y + 12, each.color, 1.4, stroke_dasharray="3 3")
    svg.add("path", d=f"M{_shown(at - 5)} {_shown(y + 18)} l5 -8 l5 8 z", fill=each.color)
    behind = "lag 0" if lag == 0 else f"lag {lag}"
    svg.code(x(0), y + 24, f"position {reached}, {behind}", 11)


def pictures() -> dict[str, str]:
    """All pictures, by the names of their files."""
    return {
        "windows.svg": windows(),
        "watermark.svg": watermark(),
        "triggers.svg": triggers(),
        "replicas.svg": replicas(),
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, picture in pictures().items():
        (FOLDER / name).write_text(picture)
        print(f"docs/pictures/{name}")
