"""Encode and decode typical values: tagged JSON as we store it, against MessagePack with the same tags.

    python bench/codec.py [rows]

Prints a table in Markdown: microseconds per value, the best of several rounds, in bulk as a batch does it.
"Of it JSON" is msgspec writing or reading the text alone, "MessagePack" is what it would take in its place;
size is bytes of JSON / MessagePack.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from time import perf_counter
from typing import Any

import msgspec

from millpond.codec import Codec, copy_value, encode_keys, partitions_of


@dataclass
class Account:
    owner: str
    balance: int
    opened: datetime


def best(run: Callable[[], Any], rounds: int = 15) -> float:
    """The shortest of some rounds, with the garbage collector quiet, as it is during a batch."""
    times = []
    gc.collect()
    gc.disable()
    for _ in range(rounds):
        begin = perf_counter()
        run()
        times.append(perf_counter() - begin)
    gc.enable()
    return min(times)


def cases(count: int) -> dict[str, list[Any]]:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    return {
        "a whole number": list(range(count)),
        "row of 3 fields (str, int, float)": [
            {"customer": f"c{i % 1000}", "amount": i * 0.25, "n": i} for i in range(count)
        ],
        "the same with a null in it": [
            {"customer": f"c{i % 1000}", "amount": i * 0.25, "note": None} for i in range(count)
        ],
        "row of 8 fields, nested": [
            {
                "id": i,
                "customer": f"c{i % 1000}",
                "paid": True,
                "total": i * 0.5,
                "currency": "EUR",
                "items": [{"sku": "a", "n": 1}, {"sku": "b", "n": 2}],
                "address": {"city": "Ghent", "zip": "9000"},
                "note": None,
            }
            for i in range(count)
        ],
        "row of 4 fields, datetime and Decimal": [
            {
                "customer": f"c{i % 1000}",
                "amount": Decimal(i) / 100,
                "at": start + timedelta(seconds=i),
                "n": i,
            }
            for i in range(count)
        ],
        "tuple of 2": [(f"c{i}", i) for i in range(count)],
        "dataclass of 3 fields, one datetime": [
            Account(f"c{i}", i, start + timedelta(seconds=i)) for i in range(count)
        ],
    }


def main(count: int) -> None:
    codec = Codec()
    write, read = msgspec.json.Encoder(), msgspec.json.Decoder()
    pack, unpack = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder()
    us = 1e6 / count
    print(f"{count:,} values in bulk, microseconds per value\n")
    print("| value | encode | of it JSON | MessagePack | decode | of it JSON | MessagePack | copy | size |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, values in cases(count).items():
        texts = codec.encode_many(values)
        assert codec.decode_many(texts) == values
        # The checks and the tags are the same work whatever writes the bytes: so the same trees for both.
        trees = [read.decode(text) for text in texts]
        packed = [pack.encode(tree) for tree in trees]
        times = [
            best(lambda values=values: codec.encode_many(values)),
            best(lambda trees=trees: write.encode_lines(trees).split(b"\n")),
            best(lambda trees=trees: list(map(pack.encode, trees))),
            best(lambda texts=texts: codec.decode_many(texts)),
            best(lambda texts=texts: list(map(read.decode, texts))),
            best(lambda packed=packed: list(map(unpack.decode, packed))),
            best(lambda values=values: list(map(copy_value, values))),
        ]
        columns = " | ".join(f"{time * us:.2f}" for time in times)
        size = f"{sum(map(len, texts)) / count:.0f} / {sum(map(len, packed)) / count:.0f}"
        print(f"| {name} | {columns} | {size} |")

    print("\n| keys | encode | partition |\n|---|---|---|")
    for name, keys in {
        "str": [f"card-{i}" for i in range(count)],
        "int": list(range(count)),
        "tuple (str, int)": [(f"c{i}", i) for i in range(count)],
        "datetime": [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=i) for i in range(count)],
    }.items():
        encoded = encode_keys(keys)
        encode = best(lambda keys=keys: encode_keys(keys))
        place = best(lambda encoded=encoded: partitions_of(encoded, 16))
        print(f"| {name} | {encode * 1e6 / count:.2f} | {place * 1e6 / count:.2f} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
