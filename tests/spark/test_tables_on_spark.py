"""Tables, lookups and functions that wait, on Spark: workers that share a host share its copy of a table."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from folders import held, write
from pyspark.sql import SparkSession

import millpond as mp

SKUS = [f"s{n}" for n in range(50)]


def regions(codes: list[int]) -> dict[int, dict[str, Any]]:
    return {code: {"region": f"r{code}"} for code in codes if code < 3}


async def doubled(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "twice": 2 * row["n"]}


def shop(folder: Path, updates: Any, sink: Any = None) -> mp.App:
    app = mp.App("shop", str(folder / "state"), partitions=4, local_dir=str(folder / "local"))
    changed = app.stream("updates", updates).key_by("sku")
    here = app.table("prices here", changed, deleted=lambda row: row["price"] is None)
    everywhere = app.table("prices everywhere", changed, everywhere=True, deleted=lambda row: row["price"] is None)
    orders = app.stream("orders", mp.sources.files(folder / "orders", format="jsonl"))
    found = orders.lookup(
        "everywhere", everywhere, on="article", merge=lambda row, found: {**row, "there": price(found)}
    )
    known = found.lookup("region", mp.external(regions), on="code").map_async(doubled)
    both = known.key_by(sku=lambda row: row["article"])
    both.lookup("here", here, merge=lambda row, found: {**row, "here": price(found)}).to(
        "out", sink or mp.sinks.files(folder / "out")
    )
    return app


def price(found: dict[str, Any] | None) -> int | None:
    return None if found is None else found["price"]


def prices(first: int, gone: int) -> list[dict[str, Any]]:
    return [{"sku": sku, "price": None if n % gone == 0 else first + n} for n, sku in enumerate(SKUS)]


def orders(first: int) -> list[dict[str, Any]]:
    return [{"n": first + n, "article": f"s{n % 60}", "code": n % 4} for n in range(300)]


def expected(rows: list[dict[str, Any]], table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    held = {row["sku"]: row["price"] for row in table}
    found = []
    for row in rows:
        amount = held.get(row["article"])
        region = {} if row["code"] == 3 else {"region": f"r{row['code']}"}
        found.append({**row, "there": amount, **region, "twice": 2 * row["n"], "here": amount})
    return found


def by_n(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["n"])


def test_rows_find_what_tables_hold_in_every_run(spark: SparkSession, tmp_path: Path) -> None:
    source = mp.sources.files(tmp_path / "updates", format="jsonl")
    write(tmp_path / "updates" / "1.jsonl", [*prices(1000, 2), *prices(0, 7)])
    write(tmp_path / "orders" / "1.jsonl", orders(0))
    shop(tmp_path, source).run(until="caught-up", spark=spark, max_rows=100)
    assert by_n(held(tmp_path / "out")) == expected(orders(0), prices(0, 7)), "the tables were read first"

    write(tmp_path / "updates" / "2.jsonl", prices(500, 3))
    write(tmp_path / "orders" / "2.jsonl", orders(1000))
    shop(tmp_path, source).run(until="caught-up", spark=spark)
    shutil.rmtree(tmp_path / "local")
    write(tmp_path / "orders" / "3.jsonl", orders(2000))
    last = shop(tmp_path, source)
    last.run(until="caught-up", spark=spark)
    assert by_n(held(tmp_path / "out"))[300:] == expected([*orders(1000), *orders(2000)], prices(500, 3))
    left = {row["sku"]: row for row in prices(500, 3) if row["price"] is not None}
    assert dict(last.state("prices here").items()) == dict(last.state("prices everywhere").items()) == left


def test_a_streaming_dataframe_feeds_a_table_before_others_are_read(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / "updates" / f"{number}.jsonl", [{"sku": sku, "price": number} for sku in SKUS])
        # Spark reads files in the order of their times, and those of one millisecond in any.
        os.utime(tmp_path / "updates" / f"{number}.jsonl", (1_700_000_000 + number,) * 2)
    write(tmp_path / "orders" / "1.jsonl", orders(0))
    reader = spark.readStream.schema("sku string, price int").option("maxFilesPerTrigger", 1)
    sink = mp.sinks.memory()
    shop(tmp_path, reader.json(str(tmp_path / "updates")), sink).run(until="caught-up", spark=spark)
    assert by_n(sink.rows) == expected(orders(0), [{"sku": sku, "price": 2} for sku in SKUS])


CHUNKS, RULES, READINGS = 6, 40, 60


class Paced:
    """Readings, or versions of all rules: with each batch that reads readings, a version of the rules is released.

    `plan` is called in the driver, where the two streams share what was released.
    """

    released = 1

    def __init__(self, is_rules: bool) -> None:
        self.is_rules = is_rules

    def plan(self, position: Any, limit: mp.lowlevel.Limit, now: float) -> list[mp.lowlevel.Split]:
        start = position.get("all", 0)
        if not self.is_rules:
            Paced.released = max(Paced.released, start + 2)
        end = Paced.released if self.is_rules else CHUNKS
        return [mp.lowlevel.Split("all", start, start + 1)] if start < min(end, CHUNKS) else []

    def read(self, split: mp.lowlevel.Split) -> Any:
        if self.is_rules:
            rows = [{"rule": f"r{n}", "version": split.start} for n in range(RULES)]
        else:
            rows = [{"n": split.start * READINGS + n, "sensor": f"s{n}"} for n in range(READINGS)]
        yield mp.lowlevel.Chunk(rows, split.stop)


def name_version(reading: dict[str, Any], state: mp.State) -> dict[str, Any]:
    rules = state.table("rules")
    versions = {rule["version"] for _, rule in rules.items()} | {rules.get(f"r{reading['n'] % RULES}")["version"]}
    return {**reading, "versions": sorted(versions), "batch": rules.batch, "worker": os.getpid()}


def test_each_output_names_the_rules_that_it_saw_and_all_workers_agree(spark: SparkSession, tmp_path: Path) -> None:
    app = mp.App("rules", str(tmp_path / "state"), partitions=4, local_dir=str(tmp_path / "local"))
    rules = app.table("rules", app.stream("changes", Paced(True)).key_by("rule"), everywhere=True)
    readings = app.stream("readings", Paced(False)).key_by("sensor")
    readings.apply("check", name_version, tables=[rules]).to("out", mp.sinks.files(tmp_path / "out"))
    app.run(until="caught-up", spark=spark)
    found = by_n(held(tmp_path / "out"))
    assert [row["n"] for row in found] == list(range(CHUNKS * READINGS))
    assert len({row["worker"] for row in found}) > 1
    seen: dict[int, set[tuple[int, ...]]] = {}
    for row in found:
        seen.setdefault(row["batch"], set()).add(tuple(row["versions"]))
    assert all(len(versions) == 1 for versions in seen.values()), seen
    [*versions] = (next(iter(each)) for _, each in sorted(seen.items()))
    assert len(set(versions)) == len(versions) > 2, "the rules changed with each batch"
    assert versions == sorted(versions) and all(len(each) == 1 for each in versions)
