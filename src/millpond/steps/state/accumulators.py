"""Accumulators of many keys at once: from the texts that are stored to a column per aggregation, and back."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from millpond.aggregations import Aggregation
from millpond.codec import Codec
from millpond.steps.state.state_texts import fill_absent


class StoredAccumulators(NamedTuple):
    """What some keys have stored."""

    columns: list[list[Any]]  # a column per aggregation, an accumulator per key
    whole: list[dict[str, Any]] | None  # of each key: all that is stored; None if it is just these accumulators


class _StoredAccumulator(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    kind: str
    accumulator: Any


class AccumulatorTexts:
    """Decodes and encodes texts such as `{"total":["sum",7.5],"n":["count",3]}`, one per key."""

    def __init__(self, aggregations: dict[str, Aggregation], codec: Codec) -> None:
        self._aggregations, self._codec = aggregations, codec
        heads = [codec.encode(name) + b":[" + codec.encode(a.kind) for name, a in aggregations.items()]
        self._pattern = b"{" + b",".join(head.replace(b"%", b"%%") + b",%b]" for head in heads) + b"}"
        self._slots = [f"a{i}" for i in range(len(aggregations))]
        self._reader = None
        if not any("$" in name or "\\" in codec.encode(name).decode() for name in aggregations):
            shape = msgspec.defstruct(
                "Accumulators",
                [(slot, _StoredAccumulator) for slot in self._slots],
                rename=dict(zip(self._slots, aggregations, strict=True)),
                forbid_unknown_fields=True,
                gc=False,
            )
            self._reader = msgspec.json.Decoder(shape)

    def decode(self, texts: Sequence[bytes | None]) -> StoredAccumulators:
        """Return the accumulators in the texts of keys, None for a key without state.

        An aggregation that is new, or of another kind than what is stored, has its initial value.
        """
        found = self._read_columns([text for text in texts if text is not None])
        if found is not None:
            initial = [a.initial() for a in self._aggregations.values()]  # shared: columns are never changed in place
            if None in texts:
                found = [fill_absent(texts, column, first) for column, first in zip(found, initial, strict=True)]
            return StoredAccumulators(found, None)
        whole = self._codec.decode_lines(b"\n".join([b"{}" if text is None else text for text in texts]))
        return StoredAccumulators([_column(whole, name, a) for name, a in self._aggregations.items()], whole)

    def _read_columns(self, texts: list[bytes]) -> list[list[Any]] | None:
        """Return a column per aggregation, read without a dict per key; None if some keys have stored other things."""
        text = b"\n".join(texts)
        if self._reader is None or b'"$' in text:
            return None
        try:
            stored = self._reader.decode_lines(text)
        except msgspec.MsgspecError:
            return None
        columns = []
        for slot, a in zip(self._slots, self._aggregations.values(), strict=True):
            if stored and set(map(attrgetter(f"{slot}.kind"), stored)) != {a.kind}:
                return None
            columns.append(list(map(attrgetter(f"{slot}.accumulator"), stored)))
        return columns

    def encode(self, before: StoredAccumulators, columns: Sequence[Sequence[Any]]) -> list[bytes]:
        """Return the texts of keys with other accumulators. What else is stored stays."""
        if before.whole is None:
            texts = map(self._codec.encode_many, columns)
            return list(map(self._pattern.__mod__, zip(*texts, strict=True)))
        for (name, a), column in zip(self._aggregations.items(), columns, strict=True):
            for stored, accumulator in zip(before.whole, column, strict=True):
                stored[name] = [a.kind, accumulator]
        return self._codec.encode_many(before.whole)


def _column(whole: list[dict[str, Any]], name: str, a: Aggregation) -> list[Any]:
    found = []
    for stored in whole:
        kind, accumulator = stored.get(name, (None, None))[:2]
        found.append(accumulator if kind == a.kind else a.initial())
    return found
