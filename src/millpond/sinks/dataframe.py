"""A sink that passes each batch's outputs as a Spark DataFrame to a function of the user."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from millpond.errors import InvalidUse
from millpond.sinks.base import Delivery
from millpond.user_functions import check_function


class DataFrameSink:
    """Made by `millpond.sinks.dataframe`; called on the driver, once per batch with outputs, for all partitions."""

    def __init__(self, f: Callable[[Any, Delivery], Any], schema: Any = None) -> None:
        if not callable(f):
            raise InvalidUse(f"sinks.dataframe: expected a function of a DataFrame and a delivery, got {f!r}")
        check_function(f, "sinks.dataframe", "frame", "delivery")
        self.f, self.schema = f, schema
        self.where: Literal["driver", "workers", "session", "nowhere"] = "session"

    def deliver(self, rows: list[Any], delivery: Delivery) -> None:
        raise InvalidUse("sinks.dataframe needs Spark: run the app with app.run()")

    def deliver_frame(self, spark: Any, lines: Any, delivery: Delivery) -> None:
        """Call the function with a DataFrame of rows that are JSON text."""
        reader = spark.read if self.schema is None else spark.read.schema(self.schema)
        self.f(reader.json(lines), delivery)
