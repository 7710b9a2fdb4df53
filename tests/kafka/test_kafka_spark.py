"""The Kafka source on Spark, and Spark's own Kafka connector as a stream."""

from __future__ import annotations

import json
from pathlib import Path

from kafka_broker import Broker, spark_connector_jars
from processes import Program

PROGRAM = """
import json
import sys

import millpond as mp
from pyspark.sql import SparkSession

kind, address, topic, folder, jars = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.jars", jars)
    .config("spark.driver.host", "127.0.0.1").config("spark.log.level", "OFF").getOrCreate()
)
app = mp.App("count", state_dir=folder + "/state", partitions=2)
if kind == "connector":
    frame = (
        spark.readStream.format("kafka").option("kafka.bootstrap.servers", address).option("subscribe", topic)
        .option("startingOffsets", "earliest").load().selectExpr("CAST(value AS STRING) AS value")
    )
    rows = app.stream("orders", frame).map(lambda row: json.loads(row["value"]))
else:
    rows = app.stream("orders", mp.sources.kafka(topic, servers=address))
rows.key_by("k").stateful_map("total", lambda key, row, n: (None, n + row["n"]), initial=0)
for _ in range(2):
    app.run(spark=spark, until="caught-up", max_rows=40)
print("totals", json.dumps({str(key): total for key, total in app.state("total").items()}))
"""


def run(kind: str, broker: Broker, topic: str, folder: Path, jars: str = "") -> str:
    script = folder / f"{kind}.py"
    script.write_text(PROGRAM)
    program = Program(script, kind, broker.address, topic, folder, jars, logs=folder / "logs")
    try:
        return program.succeed()
    finally:
        program.destroy()


def fill(broker: Broker, topic: str) -> str:
    broker.create_topic(topic, partitions=3)
    broker.send(topic, [{"k": f"k{i % 5}", "n": i} for i in range(200)])
    totals = {f"k{k}": sum(range(k, 200, 5)) for k in range(5)}
    return "totals " + json.dumps(totals)


def printed(output: str) -> object:
    line = next(line for line in output.splitlines() if line.startswith("totals "))
    return json.loads(line.removeprefix("totals "))


def test_the_source_is_read_on_spark(broker: Broker, topic: str, tmp_path: Path) -> None:
    expected = fill(broker, topic)
    assert printed(run("source", broker, topic, tmp_path)) == printed(expected)


def test_a_stream_of_sparks_connector_is_read(broker: Broker, topic: str, tmp_path: Path) -> None:
    expected = fill(broker, topic)
    jars = ",".join(map(str, spark_connector_jars()))
    assert printed(run("connector", broker, topic, tmp_path, jars)) == printed(expected)
