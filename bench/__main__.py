"""`make bench`: Millpond's speed, mostly as ratios, in one run and one table.

Medians of the seconds per batch, on two cores, durable and exactly once; lines about functions over columns, and about
Python alone, compare processor time in one process. `harness.py` says how ways are compared.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import aggregate
import apply_batch
import batch_sizes
import driver_takeover
import global_table
import kafka
import live_rescale
import map_batch
import python_alone
import read_replica
import replicas
import running_total
import sources
import stores
import windows
from harness import Bench

SUBJECTS: dict[str, list[Callable[[Bench], None]]] = {
    "total": [running_total.against_spark],
    "python": [python_alone.python_alone],
    "aggregate": [aggregate.running_aggregates],
    "apply_batch": [apply_batch.moving_average],
    "map_batch": [map_batch.scaled_column],
    "windows": [windows.hot_key, windows.against_spark],
    "keys": [running_total.many_keys_against_few],
    "batches": [batch_sizes.small_batches, batch_sizes.large_batches],
    "replicas-table": [global_table.million_entries],
    "sources": [sources.json_lines, sources.streaming_dataframe],
    "replicas-reads": [read_replica.beside_a_stream],
    "replicas-stores": [stores.replicas_stores],
}
# Only when they are asked for: they start a broker, and their peer is in an environment of its own.
WITH_BROKER: dict[str, list[Callable[[Bench], None]]] = {
    "kafka": [kafka.once_against_quix, kafka.latency, kafka.source_against_files],
    "kafka-once": [kafka.once_against_quix],
    "kafka-latency": [kafka.latency],
    "kafka-source": [kafka.source_against_files],
}
# Only when they are asked for: they start drivers in processes of their own, and kill them.
WITH_PROCESSES: dict[str, list[Callable[[Bench], None]]] = {
    "replicas-driver": [driver_takeover.against_cold_start],
    "replicas-rescale": [live_rescale.pauses],
    "replicas-standbys": [replicas.take_over, replicas.cost_of_standbys, replicas.warm_restart],
    "replicas-take-over": [replicas.take_over],
    "replicas-cost": [replicas.cost_of_standbys],
    "replicas-restart": [replicas.warm_restart],
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python bench", description="The speed of Millpond.")
    known = SUBJECTS | WITH_BROKER | WITH_PROCESSES
    parser.add_argument("--only", nargs="+", choices=known, metavar="NAME", help=", ".join(known))
    parser.add_argument("--quick", action="store_true", help="fewer batches: a check that it runs, not a measurement")
    parser.add_argument("--no-peers", action="store_true", help="Millpond alone, for tuning")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        bench = Bench(Path(place), is_quick=options.quick, has_peers=not options.no_peers)
        try:
            for name in options.only or SUBJECTS:
                for measure in known[name]:
                    measure(bench)
        finally:
            bench.end()  # with what there is, if a benchmark fails


main()
