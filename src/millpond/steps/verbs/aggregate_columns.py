"""Running aggregates by columns: the state and the outputs of `aggregate` for all rows of a batch at once.

State and outputs are the same as row by row, so that each batch may go either way.
"""

from __future__ import annotations

import pyarrow as pa

from millpond.aggregations import Aggregation
from millpond.aggregations.kinds import reads_by_name, traits_of
from millpond.aggregations.running_columns import KeyGroups
from millpond.codec import Codec
from millpond.errors import MillpondError
from millpond.rows.number_columns import read_columns
from millpond.rows.rows import Keys, Rows
from millpond.rows.typed_columns import typed_column
from millpond.steps.state.accumulators import AccumulatorTexts
from millpond.steps.state.single import Packed, SingleValues

_KEY_KINDS = frozenset({"str", "int", "bool", "bytes", "date"})  # a table returns times with another UTC than keys have


class ColumnarAggregate:
    """The aggregations of a step over columns, within one batch of one partition.

    Keys have to be text, bytes, dates, truth values or whole numbers of 64 bits, because outputs are columns, too.
    """

    def __init__(
        self, aggregations: dict[str, Aggregation], key_names: tuple[str, ...], values: SingleValues, codec: Codec
    ) -> None:
        self._aggregations, self._key_names, self._values = aggregations, key_names, values
        self._fields = fields_to_read(aggregations) or ()
        self._texts = AccumulatorTexts(aggregations, codec)

    def run(self, rows: Rows) -> Rows | None:
        """Add rows, and return an output for each; None if it has to be done row by row, and nothing has changed."""
        assert rows.keys is not None
        columns = read_columns(rows, self._fields)
        if columns is None:
            return None
        keys = rows.keys.in_order()
        key_columns = _key_columns(keys, self._key_names)
        if key_columns is None:
            return None
        groups = KeyGroups(keys.array, len(keys.encoded))
        before = self._values.load(keys.encoded)
        states = [before[k] for k in groups.keys.tolist()]
        texts = [state.data if state.__class__ is Packed else None for state in states]
        try:
            stored = self._texts.decode(texts)
        except MillpondError:  # of a key that is named row by row
            return None
        outputs, accumulators = key_columns, []
        for (name, a), column in zip(self._aggregations.items(), stored.columns, strict=True):
            run_groups = traits_of(a).run_groups
            assert run_groups is not None
            found = run_groups(groups, columns[a.field] if isinstance(a.field, str) else None, column)
            if found is None:
                return None
            outputs[name] = found.results
            accumulators.append(found.after)
        after = list(before)
        news = zip(groups.keys.tolist(), states, texts, self._texts.encode(stored, accumulators), strict=True)
        for k, state, old, new in news:
            after[k] = state if old == new else Packed(new)
        self._values.save(keys.encoded, before, after)
        is_text = len(self._key_names) == 1 and outputs[self._key_names[0]].type == pa.string()
        keys = Keys(keys.encoded, keys.array, keys.objects, self._key_names[0] if is_text else None)
        return Rows(pa.table(outputs), rows.order, form="arrow", times=rows.times, keys=keys)


def fields_to_read(aggregations: dict[str, Aggregation]) -> tuple[str, ...] | None:
    """Return the fields that aggregations read as columns; None if they have to look at each row."""
    if not all(traits_of(a).run_groups is not None and reads_by_name(a) for a in aggregations.values()):
        return None
    return tuple({a.field: None for a in aggregations.values() if isinstance(a.field, str)})


def _key_columns(keys: Keys, names: tuple[str, ...]) -> dict[str, pa.Array] | None:
    """Return the fields of the keys as columns; None if the values would not come back as they are."""
    parts = [keys.objects] if len(names) == 1 else list(zip(*keys.objects, strict=True))
    found = {}
    for name, values in zip(names, parts, strict=True):
        column = typed_column(values)
        if column is None or column.kind not in _KEY_KINDS:
            return None
        try:
            found[name] = column.values.take(pa.array(keys.array))
        except pa.ArrowException:  # more text than a column can hold
            return None
    return found
