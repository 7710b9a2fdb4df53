"""A program that keeps state of every shape, and the rows that it is fed.

What it has left in `format-1` is read by every later version: do not change it. A new shape of state gets a step
in a program, and a folder, of its own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import millpond as mp
from millpond.clock import Clock, ManualClock
from millpond.driver.commit import Driver
from millpond.driver.settings import DriverSettings
from millpond.runtimes.local import LocalRuntime
from millpond.sources.base import Limit

NAME = "shop"
STEPS = ("accounts", "baskets", "last seen", "per hour", "reminders", "prices", "paid", "counts", "once")
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)


@dataclass
class Account:
    """What a customer has spent."""

    orders: int = 0
    spent: Decimal = Decimal(0)


class Reminder:
    """Says when a customer has been quiet for half an hour."""

    def on_row(self, key: Any, row: Any, state: mp.State, timers: mp.Timers) -> None:
        state.set("orders", state.get("orders", 0) + 1)
        timers.set("quiet", after="30m", payload=row["sku"])

    def on_timer(self, key: Any, timer: mp.Timer, state: mp.State, timers: mp.Timers) -> Any:
        return {"customer": key, "quiet_since": timer.payload, "orders": state.get("orders")}


def account(key: Any, row: Any, held: Account) -> tuple[Any, Account]:
    now = Account(held.orders + 1, held.spent + Decimal(row["amount"]))
    return {"customer": key, "spent": now.spent}, now


def basket(row: Any, state: mp.State) -> Any:
    items, counts = state.list("items"), state.map("by sku")
    items.append(row["sku"])
    if len(items) > 3:
        items.popleft()
    counts[row["sku"]] = counts.get(row["sku"], 0) + 1
    state.set("pair", (row["sku"], None))
    return None


def seen(row: Any, state: mp.State) -> Any:
    state.set("at", row["at"], ttl="2h")
    return None


def app(folder: Path, partitions: int | None = None, **how: Any) -> mp.App:
    """The program, with its state, input and output in a folder."""
    made = mp.App(NAME, str(folder / "state"), partitions, local_dir=str(folder / "local"), **how)
    orders = made.stream("orders", mp.sources.files(folder / "orders"), timestamp="at", disorder="1m")
    payments = made.stream("payments", mp.sources.files(folder / "payments"), timestamp="at").key_by("customer")
    keyed = orders.key_by("customer")
    keyed.stateful_map("accounts", account, initial=Account(), type=Account).to("spent", out(folder, "spent"))
    keyed.apply("baskets", basket)
    keyed.apply("last seen", seen)
    keyed.window("per hour", mp.tumbling("1h"), grace="10m").aggregate(n=mp.count(), top=mp.max("amount")).to(
        "hours", out(folder, "hours")
    )
    keyed.process("reminders", Reminder).to("quiet", out(folder, "quiet"))
    keyed.aggregate("counts", n=mp.count(), skus=mp.distinct("sku"))
    keyed.deduplicate("once", by="sku", within="6h").to("first", out(folder, "first"))
    prices = made.table("prices", made.stream("updates", mp.sources.files(folder / "updates")).key_by("sku"), True)
    orders.lookup("price of", prices, on="sku").to("priced", out(folder, "priced"))
    keyed.join_interval("paid", payments, after="1h", grace="5m", how="left").to("payments made", out(folder, "paid"))
    return made


def out(folder: Path, name: str) -> Any:
    return mp.sinks.files(folder / "out" / name)


def feed(folder: Path, batches: range) -> None:
    """Write the input of some batches; each is a file of every stream."""
    for batch in batches:
        for stream, rows in rows_of(batch).items():
            if not rows:
                continue
            (folder / stream).mkdir(parents=True, exist_ok=True)
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (folder / stream / f"{batch:04d}.jsonl").write_text(text)


def rows_of(batch: int) -> dict[str, list[dict[str, Any]]]:
    def at(minutes: float) -> str:
        return (BEGIN + timedelta(minutes=minutes)).isoformat()

    def order(i: int) -> dict[str, Any]:
        n = batch * 7 + i
        return {"customer": f"c{n * 5 % 11}", "sku": f"s{n % 5}", "amount": f"{n % 13}.50", "at": at(20 * batch + i)}

    orders = [order(i) for i in range(7)]
    payments = [{"customer": o["customer"], "paid": o["amount"], "at": at(20 * batch + 9)} for o in orders[::2]]
    updates = [{"sku": f"s{i}", "price": batch + i} for i in range(5)] if batch % 4 == 0 else []
    return {"orders": orders, "payments": payments, "updates": updates}


def run(made: mp.App, clock: Clock | None = None) -> int:
    """Read all that is there, a file of each stream in a batch; the number of the newest record."""
    clock = clock or ManualClock()
    driver = Driver.start(
        mp.lowlevel.program(made),
        LocalRuntime(mp.lowlevel.storage(made), clock),
        mp.lowlevel.storage(made),
        clock,
        DriverSettings(
            partitions=made.partitions,
            home=made.local_dir,
            threaded=False,
            bounded=False,
            keep=made.keep,
            compact_every=made.compact_every,
        ),
    )
    while driver.batch(Limit(7, 1 << 30)):
        pass
    driver.release()
    driver.close()
    return driver.last.number


def shown(made: Any) -> dict[str, dict[str, str]]:
    """All state, as text that can be compared and kept."""
    return {step: {repr(key): repr(value) for key, value in sorted(made.state(step).items())} for step in STEPS}
