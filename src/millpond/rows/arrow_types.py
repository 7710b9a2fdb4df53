"""Arrow types of tables that a program returns: which can become Python objects, or each other, without a loss."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from millpond.errors import InvalidUse

_PLAIN_ARROW_TYPES = (
    pa.types.is_null,
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
    pa.types.is_date,
    pa.types.is_time32,
)


def readable_table(table: pa.Table) -> pa.Table:
    """Return the table with types whose values become Python objects; InvalidUse names a column that has none.

    Durations, times of day and nested times are cast to microseconds, the resolution of Python's own types. Times in
    nanoseconds that are a column of their own stay: their rows are checked one by one.
    """
    for i, field in enumerate(table.schema):
        try:
            kind = field.type if pa.types.is_timestamp(field.type) else _readable_type(field.type)
            _check_zone(field.type)
            if kind != field.type:
                table = table.set_column(i, field.name, table.column(i).cast(kind))
        except (InvalidUse, pa.ArrowException, ValueError, OverflowError) as error:
            raise InvalidUse(
                f"expected the function to return columns that can become Python objects, got column {field.name!r} "
                f"of type {field.type}: {error}. Cast or drop it."
            ) from error
    return table


def _readable_type(kind: Any) -> Any:
    """Return the type that a column of this type is cast to; InvalidUse if there is none."""
    if kind == pa.uuid():
        return kind
    if isinstance(kind, pa.BaseExtensionType):
        raise InvalidUse("it is an extension type")
    if any(is_plain(kind) for is_plain in _PLAIN_ARROW_TYPES):
        return kind
    if pa.types.is_timestamp(kind):
        _check_zone(kind)
        return pa.timestamp("us", kind.tz) if kind.unit == "ns" else kind
    if pa.types.is_duration(kind):
        return pa.duration("us")
    if pa.types.is_time64(kind):
        return pa.time64("us")
    return _readable_nested_type(kind)


def _readable_nested_type(kind: Any) -> Any:
    if pa.types.is_dictionary(kind):
        inner = _readable_type(kind.value_type)
        return kind if inner == kind.value_type else inner
    if pa.types.is_list(kind):
        return pa.list_(_readable_type(kind.value_type))
    if pa.types.is_large_list(kind):
        return pa.large_list(_readable_type(kind.value_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_readable_type(kind.value_type), kind.list_size)
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        if len({field.name for field in fields}) < len(fields):
            raise InvalidUse("it has two fields of one name")
        return pa.struct([pa.field(field.name, _readable_type(field.type)) for field in fields])
    if pa.types.is_map(kind):
        if (_readable_type(kind.key_type), _readable_type(kind.item_type)) != (kind.key_type, kind.item_type):
            raise InvalidUse("its values are not in microseconds")
        return kind
    raise InvalidUse("there is no Python type for it")


def is_readable_type(kind: Any) -> bool:
    """Return whether all values of a type become Python objects that Arrow makes the same values of."""
    try:
        return bool(_readable_type(kind) == kind and not pa.types.is_dictionary(kind) and kind != pa.uuid())
    except InvalidUse:
        return False


def cast_column(column: Any, kind: Any) -> Any:
    """Return a column as another type of the same values; InvalidUse if they would become other values.

    Numbers become numbers, text becomes text, and so on: text that looks like a number stays text.
    """
    if column.type == kind:
        return column
    if pa.types.is_null(column.type) or _family(column.type) == _family(kind):
        try:
            return column.cast(kind)
        except (pa.ArrowException, OverflowError) as error:
            raise InvalidUse(f"{column.type} cannot become {kind}: {error}") from error
    raise InvalidUse(f"{column.type} cannot become {kind}")


_FAMILIES = {
    "number": (pa.types.is_integer, pa.types.is_floating),
    "decimal": (pa.types.is_decimal,),
    "text": (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    "bytes": (
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_binary_view,
        pa.types.is_fixed_size_binary,
    ),
    "date": (pa.types.is_date,),
    "time of day": (pa.types.is_time,),
    "duration": (pa.types.is_duration,),
}


def _family(kind: Any) -> str:
    """Return what the values of a type are, however they are stored."""
    if pa.types.is_dictionary(kind):
        return _family(kind.value_type)
    if pa.types.is_timestamp(kind):
        return "time without a zone" if kind.tz is None else "instant"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return f"list of {_family(kind.value_type)}"
    if pa.types.is_struct(kind):
        return f"struct of {[(kind.field(i).name, _family(kind.field(i).type)) for i in range(kind.num_fields)]}"
    return next((name for name, tests in _FAMILIES.items() if any(test(kind) for test in tests)), str(kind))


def _check_zone(kind: Any) -> None:
    """Raise InvalidUse for a timestamp whose time zone this machine does not know."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        try:
            pa.lib.string_to_tzinfo(kind.tz)
        except Exception as error:  # what it raises depends on the library that knows the zones
            raise InvalidUse(f"the time zone {kind.tz!r} is not known here") from error
