"""Parcels: the outputs of one batch and partition for one sink, on their way from the segments to the sink.

A sink is given a table if it takes tables and all rows are uniform, and otherwise a list of objects. It is called on
the driver or in a worker, as its `where` says; `hand_over` is the same for both.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from millpond.codec import Codec
from millpond.errors import MillpondError, StepFailed
from millpond.log import checked
from millpond.log.record import Record
from millpond.log.segment import OutputRows, unpack_outputs
from millpond.messages import Parcel
from millpond.rows.typed_columns import merge_columns
from millpond.sinks.base import Delivery, Sink, TableSink
from millpond.steps.failure import FAULTS
from millpond.storage import Storage


def parcels_of(record: Record, sink: str, claim: tuple[int, str] | None = None) -> list[Parcel]:
    """Return the deliveries of one sink in one record, one for each partition that has outputs for it.

    `claim` is that of the driver that makes them.
    """
    outputs, attempt = record.outputs.get(sink, {}), record.delivery_attempt
    return [
        Parcel(
            sink,
            Delivery(record.app, record.incarnation, sink, record.number, partition, attempt, claim),
            tuple(outputs[partition]),
        )
        for partition in sorted(outputs)
    ]


class ParcelRows:
    """The rows of a parcel, in the order of the rows that caused them: as a table if all are uniform, or as objects."""

    def __init__(self, segments: Sequence[OutputRows], codec: Codec) -> None:
        self._segments, self._codec = segments, codec
        orders = np.concatenate([rows.orders for rows in segments])
        is_sorted = len(orders) < 2 or not (np.diff(orders) < 0).any()
        self._places = None if is_sorted else np.argsort(orders, kind="stable")

    def objects(self) -> list[Any]:
        """Return the rows as Python objects, new ones at each call."""
        rows = [row for part in self._segments for row in part.objects(self._codec)]
        return rows if self._places is None else [rows[i] for i in self._places.tolist()]

    def table(self) -> pa.Table | None:
        """Return the rows as a table with a column per field; None if they are not uniform, or if there are none."""
        parts = [part for part in self._segments if len(part.orders)]
        columns = [part.uniform for part in parts if part.uniform is not None]
        together = merge_columns(columns) if columns and len(columns) == len(parts) else None
        if together is None:
            return None
        return together.table if self._places is None else together.table.take(self._places)


def read_parcel(storage: Storage, codec: Codec, parcel: Parcel) -> ParcelRows:
    """Read the rows of a parcel."""
    return ParcelRows([unpack_outputs(checked.read_file(storage, part)) for part in parcel.segments], codec)


def hand_over(storage: Storage, codec: Codec, sink: Sink, parcel: Parcel) -> None:
    """Read the rows of a parcel and give them to the sink. Runs on the driver or in a worker.

    What the sink raises becomes `StepFailed`; errors of Millpond, such as `Unavailable`, are raised as they are.
    """
    rows = read_parcel(storage, codec, parcel)
    if isinstance(sink, TableSink) and (table := rows.table()) is not None:
        deliver = partial(sink.deliver_table, table, parcel.delivery)
    else:
        deliver = partial(sink.deliver, rows.objects(), parcel.delivery)
    try:
        deliver()
    except MillpondError:
        raise
    except FAULTS as error:
        raise sink_failure(parcel, error) from error


def sink_failure(parcel: Parcel, error: BaseException) -> StepFailed:
    """Return the error that names the sink and the batch, for one that a sink raised."""
    message = f"{type(error).__name__}: {error}"
    trace = "".join(traceback.format_exception(error))
    return StepFailed(parcel.sink, batch=parcel.delivery.batch, error=message, traceback=trace)
