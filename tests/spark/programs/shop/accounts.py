"""Classes of the program file as rows and as state, in a program that can be started in every way that there is."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import msgspec

import millpond as mp

folder = Path(os.environ["SHOP_FOLDER"])


class Kind(Enum):
    CARD = "card"
    CASH = "cash"


class Paid(msgspec.Struct, rename="camel"):
    customer: str
    amount: int
    paid_with: Kind = Kind.CARD
    tags: list[str] = []


@dataclass
class Account:
    owner: str  # required
    payments: list[Paid] = field(default_factory=list)
    kinds: set[Kind] = field(default_factory=set)


class Total(msgspec.Struct):
    customer: str
    last: Paid
    spent: int = 0


@dataclass
class Note:
    text: str  # required: a row without it is no Note
    labels: list[str] = field(default_factory=list)


def pay(customer: str, paid: Paid, account: Account | None) -> tuple[dict[str, object], Account]:
    account = account or Account(customer)
    account.payments.append(paid)
    account.kinds.add(paid.paid_with)
    return {"customer": customer, "payments": len(account.payments)}, account


def add_up(customer: str, paid: Paid, total: Total | None) -> tuple[None, Total]:
    before = 0 if total is None else total.spent
    return None, Total(customer, paid, before + paid.amount)


app = mp.App("accounts", str(folder / "state"), partitions=2, local_dir=str(folder / "local"))
rows = app.stream("rows", mp.sources.files(folder / "in"), type=Paid, on_error="dead-letter").key_by("customer")
rows.stateful_map("account", pay, initial=None).to("out", mp.sinks.files(folder / "out"))
rows.stateful_map("total", add_up, initial=None)
notes = app.stream("notes", mp.sources.files(folder / "notes"), type=Note, on_error="dead-letter")
notes.to("noted", mp.sinks.files(folder / "noted"))
app.dead_letters.map(lambda letter: {"row": letter["row"]}).to("dead", mp.sinks.files(folder / "dead"))


def report() -> None:
    """Print what is kept, and of which types it is."""
    for who, account in sorted(app.state("account").items()):
        assert type(account) is Account and all(type(paid) is Paid for paid in account.payments), account
        total = app.state("total").get(who)
        assert type(total) is Total and type(total.last) is Paid, total
        print(who, len(account.payments), sorted(kind.name for kind in account.kinds), total.spent)


if __name__ == "__main__":
    app.run(until="caught-up")
    report()
