"""Rows that leave a task: packed for the partitions of another stage, or written down for a sink."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa

from millpond.codec import Codec
from millpond.log.segment import SegmentOrigin, TextBlock, pack_outputs
from millpond.messages import BatchContext, ExchangePiece
from millpond.pipeline.graph import Program
from millpond.rows.rows import Rows
from millpond.rows.wire import drop_key_column, pack_rows
from millpond.steps.failure import Failed
from millpond.task.spreading import split_by_partition, spread


def _trimmed(rows: Rows, fields: tuple[str, ...]) -> Rows:
    """The rows with no more columns than these, if they are there and hold numbers; one at least, to count by."""
    table = rows.data
    kinds = {name: table.schema.field(name).type for name in fields if table.column_names.count(name) == 1}
    if len(kinds) < len(fields) or not all(pa.types.is_integer(k) or pa.types.is_floating(k) for k in kinds.values()):
        return rows
    names = list(fields) or table.column_names[:1]
    return Rows(table.select(names), rows.order, form="arrow", times=rows.times, keys=rows.keys)


class Leaving:
    """What a task has to hand over when it is done."""

    def __init__(self, program: Program, context: BatchContext, codec: Codec) -> None:
        self._program, self._context, self._codec = program, context, codec
        self.blobs: dict[int, dict[int, list[bytes]]] = {}  # exchange → partition → blobs
        self.blob_bytes = 0
        self._outputs: dict[str, tuple[list[Any], list[TextBlock]]] = {}  # sink → orders, and as many texts

    def exchange(self, node: int, rows: Rows, failing: Callable[[], Failed]) -> None:
        """Rows go to the partitions that own their keys, or to any where they have none."""
        blobs = self.blobs.setdefault(node, {})
        fields = self._program.fields.get(node)
        if fields is not None and rows.form == "arrow":
            rows = _trimmed(rows, fields)
        try:
            packed = self._packed(rows)
        except Exception:
            packed = self._packed(self._encodable(rows, failing()))
        for partition, blob in packed.items():
            blobs.setdefault(partition, []).append(blob)
            self.blob_bytes += len(blob)

    def _packed(self, rows: Rows) -> dict[int, bytes]:
        partitions = self._context.partitions
        lean, left_out = drop_key_column(spread(rows, partitions) if rows.keys is None else rows)
        return {p: pack_rows(part, self._codec, left_out) for p, part in split_by_partition(lean, partitions).items()}

    def deliver(self, sink: str, rows: Rows, failing: Callable[[], Failed]) -> None:
        """Rows go to a sink."""
        try:
            block: TextBlock = rows.data if rows.form == "coded" else self._codec.encode_lines(rows.objects())
        except Exception:
            rows = self._encodable(rows.as_objects(), failing())
            block = self._codec.encode_lines(rows.data)
        orders, blocks = self._outputs.setdefault(sink, ([], []))
        orders.append(np.asarray(rows.order, dtype=np.int64))
        blocks.append(block)

    def _encodable(self, rows: Rows, failed: Failed) -> Rows:
        """The rows that can be written down; the others have failed."""
        good: list[int] = []
        for i, row in enumerate(rows.objects()):
            try:
                self._codec.encode(row)
                good.append(i)
            except Exception as error:
                failed(i, row, error)
        return rows.pick(good)

    def outputs(self, partition: int) -> Iterator[tuple[str, memoryview, int]]:
        """The output segment of each sink that has any: its name, its bytes, its rows."""
        for sink, (orders, blocks) in self._outputs.items():
            origin = SegmentOrigin(self._context.app, sink, partition, self._context.batch)
            yield sink, pack_outputs(np.concatenate(orders), blocks, origin), sum(map(len, orders))

    def carry(self, path: str, later_than: int) -> tuple[bytes, dict[int, dict[int, list[ExchangePiece]]]]:
        """The blobs for stages after the next, as one file, and where in it each lies."""
        data = bytearray()
        carried: dict[int, dict[int, list[ExchangePiece]]] = {}
        for exchange, partitions in self.blobs.items():
            if self._program.stages[exchange] > later_than:
                for partition, blobs in partitions.items():
                    pieces = carried.setdefault(exchange, {}).setdefault(partition, [])
                    for blob in blobs:
                        pieces.append(ExchangePiece(path, len(data), len(blob), crc32(blob)))
                        data += blob
        return bytes(data), carried
