"""Payments, each counted once: duplicates are dropped, bad rows become dead letters, cards over their limit alert.

Reads CSV files from payments/, in which a payment may occur more than once, and writes alerts to alerts/ and
rows that could not be processed to dead/:

    mkdir -p payments
    printf 'id,card,cents\\n1,visa-7,60000\\n1,visa-7,60000\\n2,visa-7,-5\\n3,visa-7,50000\\n' > payments/monday.csv
    python examples/payments.py
    cat alerts/*.jsonl dead/*.jsonl
"""

from __future__ import annotations

from dataclasses import dataclass

import millpond as mp

LIMIT = 100_000  # cents


@dataclass
class Payment:
    id: int
    card: str
    cents: int


@dataclass
class Alert:
    card: str
    spent: int
    recent: list[int]


def watch(payment: Payment, state: mp.State) -> Alert | None:
    """An alert, once per card, when it has spent more than the limit."""
    if payment.cents <= 0:
        raise ValueError(f"a payment of {payment.cents} cents")
    spent = state.get("spent", 0) + payment.cents
    state.set("spent", spent)
    recent = state.list("recent")
    recent.append(payment.id)
    if len(recent) > 3:
        recent.popleft()
    if spent <= LIMIT or state.exists("alerted"):
        return None
    state.set("alerted", True)
    return Alert(payment.card, spent, list(recent))


app = mp.App("payments", state_dir="state")
payments = app.stream("payments", mp.sources.files("payments"), type=Payment, on_error="dead-letter")
once = payments.key_by("card").deduplicate("once", by="id")
once.apply("limit", watch).to("alerts", mp.sinks.files("alerts"))
app.dead_letters.to("dead", mp.sinks.files("dead"))

if __name__ == "__main__":
    app.run(until="caught-up")
