"""Classes of the main script in rows and in state, and functions of modules that lie beside it."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

import beside  # type: ignore[import-not-found]
import nested.deep  # type: ignore[import-not-found]

import millpond as mp

folder = Path(sys.argv[1])


@dataclass
class Paid:
    who: str
    amount: int


@dataclass
class Account:
    owner: str
    spent: int = 0
    payments: list[Paid] = field(default_factory=list)


def pay(who: str, paid: Paid, account: Account | None) -> tuple[dict[str, str], Account]:
    account = account or Account(who)
    account.spent = beside.plus(account.spent, paid.amount)
    account.payments.append(paid)
    return {"label": nested.deep.label(who, account.spent)}, account


app = mp.App("accounts", str(folder / "state"), partitions=2, local_dir=str(folder / "local"))
rows = app.stream("rows", mp.sources.files(folder / "in"), type=Paid)
rows.key_by("who").stateful_map("account", pay, initial=None, type=Account).to("out", mp.sinks.files(folder / "out"))

if __name__ == "__main__":
    app.run(until="caught-up")
    for who, account in app.state("account").items():
        assert type(account) is Account and all(type(paid) is Paid for paid in account.payments)
        print(who, account)
