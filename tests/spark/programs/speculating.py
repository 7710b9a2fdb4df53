"""A session that lets two attempts at one task run at once."""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

import millpond as mp

folder = Path(sys.argv[1])
app = mp.App("wrong", str(folder / "state"))
app.stream("rows", mp.sources.files(folder / "in")).key_by("key").aggregate("n", n=mp.count())

if __name__ == "__main__":
    spark = SparkSession.builder.master("local[1]").config("spark.speculation", "True").getOrCreate()
    try:
        app.run(until="caught-up", spark=spark)
    except mp.errors.InvalidUse as error:
        print(f"InvalidUse: {error}")
