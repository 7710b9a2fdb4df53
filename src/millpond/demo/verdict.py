"""Compares state and sink with the expected result: nothing lost, nothing doubled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from millpond.demo.payments import Expected


@dataclass(frozen=True)
class DemoVerdict:
    """The payments that the sink lacks, its surplus rows, and the wrong totals in state or sink."""

    rows: int
    lost: int
    doubled: int
    wrong: int

    @property
    def good(self) -> bool:
        """Whether state and sink are as expected."""
        return not (self.lost or self.doubled or self.wrong)


def compare(expected: Expected, state: Mapping[str, int], outputs: Iterable[Mapping[str, Any]]) -> DemoVerdict:
    """Compare the state and every row of the sink with the expected result.

    >>> expected = Expected(totals={"a": 7}, after=[3, 7])
    >>> compare(expected, {"a": 7}, [{"id": 0, "card": "a", "total": 3}, {"id": 1, "card": "a", "total": 7}])
    DemoVerdict(rows=2, lost=0, doubled=0, wrong=0)
    >>> compare(expected, {"a": 10}, [{"id": 1, "card": "a", "total": 10}] * 2)
    DemoVerdict(rows=2, lost=1, doubled=1, wrong=3)
    """
    seen = [0] * len(expected.after)
    wrong = sum(state.get(card) != expected.totals.get(card) for card in {*state, *expected.totals})
    for row in outputs:
        number = row["id"]
        if not 0 <= number < len(seen):
            wrong += 1
            continue
        seen[number] += 1
        wrong += row["total"] != expected.after[number]
    return DemoVerdict(len(seen), seen.count(0), sum(times - 1 for times in seen if times > 1), wrong)


def read_sink_rows(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a folder that the file sink wrote."""
    for file in sorted(folder.glob("*.jsonl")):
        yield from msgspec.json.Decoder().decode_lines(file.read_bytes())
