"""A moving average per sensor, computed by polars over all readings of a batch at once.

Reads JSON lines from readings/ and writes to averages/. Run it, add lines or files, run it again. It needs polars,
which `pip install "millpond[polars]"` installs:

    mkdir -p readings
    echo '{"sensor": "a", "celsius": 20.5}' >> readings/monday.jsonl
    python examples/sensors.py
    cat averages/*.jsonl
"""

from __future__ import annotations

import polars as pl

import millpond as mp


def smooth(rows: pl.DataFrame, states: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Put the last average of each sensor before its readings, as if it were one, and go on from there."""
    before = states.drop_nulls().select("sensor", celsius="ema")
    together = pl.concat([before, rows.select("sensor", "celsius")])
    together = together.with_columns(ema=pl.col("celsius").ewm_mean(alpha=0.5, adjust=False).over("sensor"))
    return rows.with_columns(together["ema"].slice(len(before))), together.group_by("sensor").agg(pl.col("ema").last())


app = mp.App("sensors", state_dir="state")
readings = app.stream("readings", mp.sources.files("readings"))
averages = readings.key_by("sensor").apply_batch("ema", smooth, state={"ema": float})
averages.to("averages", mp.sinks.files("averages"))

if __name__ == "__main__":
    app.run(until="caught-up")
    for sensor, state in sorted(app.state("ema").items()):
        print(f"{sensor}: {state['ema']:.2f}")
