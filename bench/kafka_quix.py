"""The running total in Quix Streams, as its documentation writes a stateful program.

It runs in an environment of its own, until SIGTERM: `python bench/kafka_quix.py SERVERS IN OUT GROUP FOLDER SECONDS`.
A process is ended and started again for every run, and several share the partitions of the topic by their group.
"""

from __future__ import annotations

import sys
from typing import Any

from quixstreams import Application, State


def add_up(row: dict[str, Any], state: State) -> dict[str, Any]:
    total = state.get("total", 0.0) + row["value"]
    state.set("total", total)
    return {"key": row["key"], "offset": row["offset"], "total": total, "at": row["at"]}


def main(servers: str, source: str, target: str, group: str, folder: str, commit_seconds: str) -> None:
    app = Application(
        broker_address=servers,
        consumer_group=group,
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        commit_interval=float(commit_seconds),
        state_dir=folder,
        loglevel="WARNING",
        topic_create_timeout=120,
    )
    rows = app.topic(source, key_deserializer="str", value_deserializer="json")
    totals = app.topic(target, key_serializer="str", value_serializer="json")
    app.dataframe(rows).apply(add_up, stateful=True).to_topic(totals)
    app.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
