"""Card payments, determined by a seed, and the expected result."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypedDict


class Payment(TypedDict):
    """One payment; amounts are whole cents."""

    id: int
    card: str
    cents: int


def payments(rows: int, cards: int, seed: int) -> Iterator[Payment]:
    """Yield `rows` payments made with `cards` cards.

    >>> list(payments(2, cards=10, seed=1))
    [{'id': 0, 'card': 'card-00002', 'cents': 18652}, {'id': 1, 'card': 'card-00001', 'cents': 8359}]
    """
    chance = random.Random(seed)
    for number in range(rows):
        yield {"id": number, "card": f"card-{chance.randrange(cards):05d}", "cents": chance.randint(1, 20_000)}


@dataclass(frozen=True)
class Expected:
    """The final total of every card, and the total after each payment, by its id."""

    totals: dict[str, int]
    after: list[int]


def expected_totals(rows: Iterable[Payment]) -> Expected:
    """Compute the expected result for payments whose ids count from 0, in plain Python.

    >>> expected_totals([{"id": 0, "card": "a", "cents": 3}, {"id": 1, "card": "a", "cents": 4}])
    Expected(totals={'a': 7}, after=[3, 7])
    """
    totals: dict[str, int] = {}
    after: list[int] = []
    for row in rows:
        totals[row["card"]] = total = totals.get(row["card"], 0) + row["cents"]
        after.append(total)
    return Expected(totals, after)
