"""A moving average per sensor, computed by polars over all readings of a batch at once.

Reads JSON lines from readings/ and writes to averages/. Run it, add lines or files, run it again. It needs polars,
which the extra `millpond[polars]` installs as described in the README:

    mkdir -p readings
    echo '{"sensor": "a", "celsius": 20.5}' >> readings/monday.jsonl
    python examples/sensors.py
    cat averages/*.jsonl
"""

from __future__ import annotations

import polars as pl

import millpond as mp


def smooth(rows: pl.DataFrame, states: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Compute the averages as if the last average of each sensor were its first reading of the batch.

    Readings that are null or not finite have no average and change none.
    """
    celsius = pl.col("celsius").cast(pl.Float64)
    readings = rows.select("sensor", celsius=pl.when(celsius.is_finite()).then(celsius))
    before = states.drop_nulls("ema").select("sensor", celsius="ema")
    ema = pl.col("celsius").ewm_mean(alpha=0.5, adjust=False, ignore_nulls=True).over("sensor")
    together = pl.concat([before, readings]).with_columns(ema=ema)
    after = together.drop_nulls("ema").group_by("sensor").agg(pl.col("ema").last())
    return rows.with_columns(together["ema"].slice(len(before))), after


app = mp.App("sensors", state_dir="state")
readings = app.stream("readings", mp.sources.files("readings"))
averages = readings.key_by("sensor").apply_batch("ema", smooth, state={"ema": float})
averages.to("averages", mp.sinks.files("averages"))

if __name__ == "__main__":
    app.run(until="caught-up")
    for sensor, state in sorted(app.state("ema").items()):
        print(f"{sensor}: {state['ema']:.2f}")
