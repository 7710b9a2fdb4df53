"""Parcels: the outputs of one batch and partition for one sink, on their way from the segments to the sink.

A sink is called on the driver or in a worker, as its `where` says; `hand_over` is the same for both.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Any

import numpy as np

from millpond.codec import Codec
from millpond.errors import MillpondError, StepFailed
from millpond.log import checked, segment
from millpond.log.checked import Pointer
from millpond.log.record import Record
from millpond.sinks.base import Delivery, Sink
from millpond.steps.failure import FAULTS
from millpond.storage import Storage


@dataclass(frozen=True)
class Parcel:
    """One delivery to make: the output segments of one sink, batch and partition."""

    sink: str
    delivery: Delivery
    segments: tuple[Pointer, ...]

    @property
    def has_rows(self) -> bool:
        """Whether there is any row in it."""
        return any(file.rows for file in self.segments)


def parcels_of(record: Record, sink: str) -> list[Parcel]:
    """Return the deliveries of one sink in one record, one for each partition that has outputs for it."""
    outputs = record.outputs.get(sink, {})
    return [
        Parcel(
            sink,
            Delivery(record.app, record.incarnation, sink, record.number, partition, record.delivery_attempt),
            tuple(outputs[partition]),
        )
        for partition in sorted(outputs)
    ]


def read_parcel(storage: Storage, codec: Codec, parcel: Parcel) -> list[Any]:
    """Read the rows of a parcel, in the order of the rows that caused them."""
    orders, texts = [], []
    for part in parcel.segments:
        order, rows = segment.unpack_outputs(checked.read_file(storage, part))
        orders.append(order)
        texts += rows
    place = np.concatenate(orders)
    if len(place) > 1 and (np.diff(place) < 0).any():
        texts = [texts[i] for i in np.argsort(place, kind="stable").tolist()]
    return codec.decode_many(texts)


def hand_over(storage: Storage, codec: Codec, sink: Sink, parcel: Parcel) -> None:
    """Read the rows of a parcel and give them to the sink. Runs on the driver or in a worker.

    What the sink raises becomes `StepFailed`; errors of Millpond, such as `Unavailable`, are raised as they are.
    """
    rows = read_parcel(storage, codec, parcel)
    try:
        sink.deliver(rows, parcel.delivery)
    except MillpondError:
        raise
    except FAULTS as error:
        raise sink_failure(parcel, error) from error


def sink_failure(parcel: Parcel, error: BaseException) -> StepFailed:
    """Return the error that names the sink and the batch, for one that a sink raised."""
    message = f"{type(error).__name__}: {error}"
    trace = "".join(traceback.format_exception(error))
    return StepFailed(parcel.sink, batch=parcel.delivery.batch, error=message, traceback=trace)
