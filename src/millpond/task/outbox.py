"""The outbox of a task: rows for the partitions of other stages, packed, and rows for sinks, encoded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import numpy as np

from millpond.codec import Codec
from millpond.log import checked
from millpond.log.paths import Attempt
from millpond.log.segment import OutputBlock, SegmentOrigin, pack_outputs
from millpond.messages import BatchContext, ExchangePiece, TaskOutput
from millpond.pipeline.graph import Program
from millpond.rows.rows import Rows
from millpond.rows.typed_columns import columns_of_rows
from millpond.rows.wire import pack_for_partitions
from millpond.steps.failure import Failed
from millpond.storage import Storage
from millpond.task.column_selection import select_columns, to_columns
from millpond.task.spreading import spread_rows


@dataclass
class Outbox:
    """Collects the rows that leave a task, until the task is done."""

    _program: Program
    _context: BatchContext
    _codec: Codec
    _produced: TaskOutput  # what the task produces besides state; the files are added when they are written
    blobs: dict[int, dict[int, list[bytes]]] = field(default_factory=dict)  # exchange → partition → blobs
    blob_bytes: int = 0
    _outputs: dict[str, tuple[list[Any], list[OutputBlock]]] = field(default_factory=dict)  # sink → orders, rows

    def exchange(self, node: int, rows: Rows, reporter: Callable[[Rows], Failed]) -> None:
        """Pack rows for the partitions that own their keys; rows without keys are spread over all partitions.

        `reporter(rows)` is called if a row cannot be packed, and returns what reports such rows.
        """
        blobs = self.blobs.setdefault(node, {})
        try:
            packed = self._pack(self._narrow(node, rows))
        except Exception:
            packed = self._pack(self._drop_unencodable(rows, reporter(rows)))
        for partition, blob in packed.items():
            blobs.setdefault(partition, []).append(blob)
            self.blob_bytes += len(blob)

    def _narrow(self, node: int, rows: Rows) -> Rows:
        """Return the rows as the columns that their consumers read, if these are numbers; else the rows as they are.

        Raises an exception of any kind if a row cannot be encoded.
        """
        fields = self._program.fields.get(node)
        if fields is None or rows.times is None or node in self._program.needs_failed_rows:
            return rows
        if rows.form == "arrow":
            return select_columns(rows, fields)
        if rows.form == "objects":  # whether a row can be sent must not depend on the rows beside it
            self._codec.encode_lines(rows.data)
        return to_columns(rows, fields)

    def _pack(self, rows: Rows) -> dict[int, bytes]:
        partitions = self._context.log.partitions
        keyed_rows = spread_rows(rows, partitions) if rows.keys is None else rows
        return pack_for_partitions(keyed_rows, self._codec, partitions)

    def deliver(self, sink: str, rows: Rows, reporter: Callable[[Rows], Failed]) -> None:
        """Encode rows for a sink; `reporter(rows)` is called if one cannot be encoded."""
        try:
            block = self._encode(rows)
        except Exception:
            rows = self._drop_unencodable(rows.as_objects(), reporter(rows))
            block = self._encode(rows)
        orders, blocks = self._outputs.setdefault(sink, ([], []))
        orders.append(np.asarray(rows.order, dtype=np.int64))
        blocks.append(block)

    def _encode(self, rows: Rows) -> OutputBlock:
        """Return the rows as columns if they are uniform, and otherwise as text."""
        columns = columns_of_rows(rows)
        return self._codec.encode_lines(rows.objects()) if columns is None else columns

    def _drop_unencodable(self, rows: Rows, failed: Failed) -> Rows:
        """Return the rows that can be encoded; the others have failed."""
        good: list[int] = []
        for i, row in enumerate(rows.objects()):
            try:
                self._codec.encode(row)
                good.append(i)
            except Exception as error:
                failed(i, row, error)
        return rows.pick(good)

    def write_files(self, storage: Storage, partition: int, attempt: Attempt, stage: int) -> TaskOutput:
        """Write a segment for each sink that has rows, and a file with the blobs for stages after `stage`.

        Returns what the task produced besides state. `partition` is the one that the sinks see.
        """
        context, output = self._context, self._produced
        for sink, (orders, blocks) in self._outputs.items():
            origin = SegmentOrigin(context.log.app, sink, partition, context.batch)
            packed = pack_outputs(np.concatenate(orders), blocks, origin, self._codec)
            path = context.log.paths.output(sink, partition, attempt)
            output.outputs[sink] = [checked.write_file(storage, path, packed, sum(map(len, orders)))]
        if any(self._program.stages[exchange] > stage for exchange in self.blobs):
            path = context.log.paths.exchange(attempt)
            data, output.carried = self._join_blobs(path, stage)
            if data:
                storage.put(path, data)
        return output

    def _join_blobs(self, path: str, stage: int) -> tuple[bytes, dict[int, dict[int, list[ExchangePiece]]]]:
        """Return the blobs for stages after `stage` as the data of one file, and the place of each in it."""
        data = bytearray()
        carried: dict[int, dict[int, list[ExchangePiece]]] = {}
        for exchange, partitions in self.blobs.items():
            if self._program.stages[exchange] > stage:
                for partition, blobs in partitions.items():
                    pieces = carried.setdefault(exchange, {}).setdefault(partition, [])
                    for blob in blobs:
                        pieces.append(ExchangePiece(path, len(data), len(blob), crc32(blob)))
                        data += blob
        return bytes(data), carried
