"""States of many keys at once: from the texts that are stored to a list of values per column, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from millpond.codec import Codec, Unreadable
from millpond.errors import short_repr

StateValues = dict[str, list[Any]]  # column → a value per key; None where the key has none


class StateTexts:
    """Decodes and encodes texts such as `{"n":3,"mean":1.5}`, one per key, without a dict per key where it can."""

    def __init__(self, names: Iterable[str], codec: Codec) -> None:
        self._names, self._codec = list(names), codec
        heads = [codec.encode(name) + b":" for name in self._names]
        self._pattern = b"{" + b",".join(head.replace(b"%", b"%%") + b"%b" for head in heads) + b"}"
        self._slots = [f"a{i}" for i in range(len(heads))]
        self._reader = None
        if not any(b"$" in head or b"\\" in head for head in heads):
            fields = [(slot, Any, None) for slot in self._slots]  # a column that is new has no value yet
            rename = dict(zip(self._slots, self._names, strict=True))
            self._reader = msgspec.json.Decoder(msgspec.defstruct("State", fields, rename=rename, gc=False))

    def decode(self, texts: Sequence[bytes | None]) -> StateValues:
        """Return the values in the texts of keys, None for a key without state. Columns of other names are left out."""
        there = texts if None not in texts else [text for text in texts if text is not None]
        data = b"\n".join(there)  # type: ignore[arg-type]
        found = self._read_columns(data)
        if found is None:
            states = self._codec.decode_lines(data)
            if not {dict}.issuperset(map(type, states)):
                raise no_dict(next(state for state in states if type(state) is not dict))
            found = self.to_columns(states)
        if len(there) < len(texts):
            found = {name: fill_absent(texts, column) for name, column in found.items()}
        return found

    def _read_columns(self, data: bytes) -> StateValues | None:
        """Return the values without a dict per key; None if some have tags, or are no states."""
        if self._reader is None or b'"$' in data:
            return None
        try:
            states = self._reader.decode_lines(data)
        except msgspec.MsgspecError:
            return None
        return {name: list(map(attrgetter(slot), states)) for name, slot in zip(self._names, self._slots, strict=True)}

    def to_columns(self, states: Sequence[dict[str, Any]]) -> StateValues:
        """Return the values of states that are dicts."""
        return {name: [state.get(name) for state in states] for name in self._names}

    def encode(self, values: Mapping[str, Sequence[Any]]) -> list[bytes]:
        """Return the texts of states. They are those of dicts with these columns."""
        if self._reader is not None:
            texts = (self._codec.encode_many(values[name]) for name in self._names)
            return list(map(self._pattern.__mod__, zip(*texts, strict=True)))
        columns = (values[name] for name in self._names)
        return self._codec.encode_many([dict(zip(self._names, row, strict=True)) for row in zip(*columns, strict=True)])


def no_dict(value: Any) -> Unreadable:
    """Return the error for a stored state that is no dict of columns."""
    return Unreadable(
        f"expected the columns of a key as a dict, as a migration has to return them, got {short_repr(value)}"
    )


def fill_absent(texts: Sequence[bytes | None], column: list[Any], initial: Any = None) -> list[Any]:
    """Return the column of the keys that have a text, with an initial value for each key without one."""
    left = iter(column)
    return [initial if text is None else next(left) for text in texts]
