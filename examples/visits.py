"""Visits per page, from a streaming Spark DataFrame.

Any streaming DataFrame can be a source: Kafka, Delta, a socket, or, as here, files that Spark reads with a schema:

    mkdir -p visits
    echo '{"user": "ann", "page": "/", "ms": 12}' >> visits/monday.json
    python examples/visits.py
"""

from __future__ import annotations

from pyspark.sql import SparkSession

import millpond as mp

spark = SparkSession.builder.master("local[*,4]").getOrCreate()
frame = spark.readStream.schema("user string, page string, ms long").json("visits")

app = mp.App("visits", state_dir="state")
visits = app.stream("visits", frame.where("ms IS NOT NULL"))
pages = visits.key_by("page").aggregate("pages", n=mp.count(), slowest=mp.max("ms"), slow=mp.top(2, "user", by="ms"))
pages.to("counts", mp.sinks.files("counts", format="parquet"))

if __name__ == "__main__":
    app.run(until="caught-up", spark=spark)
    for page, found in sorted(app.state("pages").items()):
        print(page, found["n"], found["slowest"], found["slow"])
