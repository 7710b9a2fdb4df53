"""Rows of Protobuf messages: dicts with the names of the .proto file, read from messages and written to them.

Functions are made once per message type. A message type is known by its descriptor; nothing here imports
google.protobuf.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from millpond.kafka.mismatch import Mismatch, as_dict, is_double, is_float, is_whole
from millpond.timing import EPOCH

ValueReader = Callable[[Any], Any]  # message or scalar -> value
Fill = Callable[[Any, Any], None]  # message, value: writes the value into the message

# Of descriptors: FieldDescriptor.CPPTYPE_* and TYPE_BYTES.
_INT32, _INT64, _UINT32, _UINT64, _DOUBLE, _FLOAT, _BOOL, _ENUM, _STRING, _MESSAGE = range(1, 11)
_TYPE_BYTES = 12

_MICROSECOND = timedelta(microseconds=1)
_WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)


def make_reader(descriptor: Any) -> ValueReader:
    """Return a function that returns the row of a message of this type."""
    return _Readers().of(descriptor)


def make_filler(descriptor: Any) -> Fill:
    """Return a function that writes a row into an empty message of this type, or raises Mismatch."""
    return _Fillers().of(descriptor)


def _is_repeated(field: Any) -> bool:
    repeated = getattr(field, "is_repeated", None)  # protobuf 6.31 has it, and warns of `label`
    return bool(field.label == 3 if repeated is None else repeated)


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _oneof_of(field: Any) -> str | None:
    """Return the name of the oneof that a field is in. A field that is `optional` in proto3 is in none."""
    oneof = field.containing_oneof
    if oneof is None or (len(oneof.fields) == 1 and oneof.name.lstrip("X") == f"_{field.name}"):
        return None
    return str(oneof.name)


# --- reading ---


class _Readers:
    """Makes the readers of message types, each once: a type may contain itself."""

    def __init__(self) -> None:
        self._made: dict[str, ValueReader] = {}

    def of(self, descriptor: Any) -> ValueReader:
        name = descriptor.full_name
        known = _READ_WELL_KNOWN.get(name)
        if known is not None:
            return known
        if name in _WRAPPERS:
            return lambda message: message.value
        if name not in self._made:
            self._made[name] = lambda message: self._made[name](message)
            self._made[name] = self._of_fields(descriptor)
        return self._made[name]

    def _of_fields(self, descriptor: Any) -> ValueReader:
        getters = [(field.name, self._of_field(field)) for field in descriptor.fields]
        return lambda message: {name: get(message) for name, get in getters}

    def _of_field(self, field: Any) -> ValueReader:
        name = field.name
        if _is_map(field):
            read_value = self._of_single(field.message_type.fields_by_name["value"])
            return lambda message: {key: read_value(value) for key, value in getattr(message, name).items()}
        read = self._of_single(field)
        if _is_repeated(field):
            return lambda message: [read(item) for item in getattr(message, name)]
        if field.cpp_type == _MESSAGE or _oneof_of(field) is not None:
            return lambda message: read(getattr(message, name)) if message.HasField(name) else None
        return lambda message: read(getattr(message, name))

    def _of_single(self, field: Any) -> ValueReader:
        if field.cpp_type == _MESSAGE:
            return self.of(field.message_type)
        if field.cpp_type == _ENUM:
            names = {value.number: value.name for value in reversed(list(field.enum_type.values))}
            return lambda number: names.get(number, number)
        return lambda value: value


def _read_timestamp(message: Any) -> datetime:
    try:
        return EPOCH + timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)
    except OverflowError:
        raise ValueError(
            f"expected a timestamp between the years 1 and 9999, got {message.seconds} seconds after 1970"
        ) from None


def _read_duration(message: Any) -> timedelta:
    micros = abs(message.nanos) // 1000
    return timedelta(seconds=message.seconds, microseconds=micros if message.nanos >= 0 else -micros)


def _read_struct(message: Any) -> dict[str, Any]:
    return {key: _read_json_value(value) for key, value in message.fields.items()}


def _read_list(message: Any) -> list[Any]:
    return [_read_json_value(value) for value in message.values]


def _read_json_value(message: Any) -> Any:
    kind = message.WhichOneof("kind")
    if kind is None or kind == "null_value":
        return None
    value = getattr(message, kind)
    if kind == "struct_value":
        return _read_struct(value)
    return _read_list(value) if kind == "list_value" else value


_READ_WELL_KNOWN: dict[str, ValueReader] = {
    "google.protobuf.Timestamp": _read_timestamp,
    "google.protobuf.Duration": _read_duration,
    "google.protobuf.Struct": _read_struct,
    "google.protobuf.ListValue": _read_list,
    "google.protobuf.Value": _read_json_value,
}


# --- writing ---


class _Fillers:
    """Makes the functions that write into messages, one per message type."""

    def __init__(self) -> None:
        self._made: dict[str, Fill] = {}

    def of(self, descriptor: Any) -> Fill:
        name = descriptor.full_name
        known = _FILL_WELL_KNOWN.get(name)
        if known is not None:
            return known
        if name in _WRAPPERS:
            return self._of_field(descriptor.fields_by_name["value"])
        if name not in self._made:
            self._made[name] = lambda message, row: self._made[name](message, row)
            self._made[name] = self._of_fields(descriptor)
        return self._made[name]

    def _of_fields(self, descriptor: Any) -> Fill:
        fillers = {field.name: self._of_field(field) for field in descriptor.fields}
        oneofs = {field.name: oneof for field in descriptor.fields if (oneof := _oneof_of(field)) is not None}
        known = ", ".join(map(repr, list(fillers)[:20])) or "none"
        type_name = descriptor.full_name

        def fill(message: Any, row: Any) -> None:
            fields = as_dict(row)
            if fields is None:
                raise Mismatch(f"message {type_name} (a dict, dataclass or Struct)", row)
            chosen: dict[str, str] = {}
            for name, value in fields.items():
                fill_field = fillers.get(name)
                if fill_field is None:
                    raise Mismatch(f"a field of message {type_name}, which has {known}", name)
                if value is None:
                    continue
                if name in oneofs and chosen.setdefault(oneofs[name], name) != name:
                    raise Mismatch(f"one field of the oneof {oneofs[name]!r} at most", [chosen[oneofs[name]], name])
                with_path(f".{name}", fill_field, message, value)

        return fill

    def _of_field(self, field: Any) -> Fill:
        if _is_map(field):
            return self._of_map(field)
        name = field.name
        if field.cpp_type == _MESSAGE:
            fill = self.of(field.message_type)
            if not _is_repeated(field):
                return lambda message, value: _fill_inner(getattr(message, name), value, fill)
            return _repeated(lambda message, item: fill(getattr(message, name).add(), item))
        convert = _converter(field)
        if _is_repeated(field):
            return _repeated(lambda message, item: getattr(message, name).append(convert(item)))
        return lambda message, value: setattr(message, name, convert(value))

    def _of_map(self, field: Any) -> Fill:
        name, entry = field.name, field.message_type
        convert_key = _converter(entry.fields_by_name["key"])
        value_field = entry.fields_by_name["value"]
        is_message = value_field.cpp_type == _MESSAGE
        fill = self.of(value_field.message_type) if is_message else None
        convert = None if is_message else _converter(value_field)

        def put(target: Any, key: Any, inner: Any) -> None:
            if fill is not None:
                fill(target[key], inner)  # what is not there is made
            elif convert is not None:
                target[key] = convert(inner)

        def fill_map(message: Any, value: Any) -> None:
            if not isinstance(value, dict):
                raise Mismatch("map (a dict)", value)
            target = getattr(message, name)
            for key, inner in value.items():
                with_path(f"[{key!r}]", put, target, convert_key(key), inner)

        return fill_map


def with_path(path: str, call: Callable[..., None], *arguments: Any) -> None:
    """Call a function, and put `path` before the path of a Mismatch that it raises."""
    try:
        call(*arguments)
    except Mismatch as error:
        error.path = path + error.path
        raise


def _fill_inner(message: Any, value: Any, fill: Fill) -> None:
    message.SetInParent()  # a message without fields is set, too
    fill(message, value)


def _repeated(add: Callable[[Any, Any], None]) -> Fill:
    def fill(message: Any, value: Any) -> None:
        if not isinstance(value, list | tuple):
            raise Mismatch("repeated (a list)", value)
        for index, item in enumerate(value):
            with_path(f"[{index}]", add, message, item)

    return fill


def _converter(field: Any) -> ValueReader:
    """Return a function that returns the value of a scalar field as the message takes it, or raises Mismatch."""
    if field.cpp_type == _ENUM:
        return _enum_converter(field.enum_type)
    if field.type == _TYPE_BYTES:
        expected, accepts = _BYTES
    else:
        expected, accepts = _SCALARS[field.cpp_type]

    def convert(value: Any) -> Any:
        if accepts(value):
            return value
        raise Mismatch(expected, value)

    return convert


def _enum_converter(enum: Any) -> ValueReader:
    numbers: dict[str, int] = {value.name: value.number for value in enum.values}
    expected = f"a name of enum {enum.full_name} ({', '.join(map(repr, list(numbers)[:20]))}) or its number"

    def convert(value: Any) -> int:
        if isinstance(value, str) and value in numbers:
            return numbers[value]
        if is_whole(value, 32):
            return int(value)
        raise Mismatch(expected, value)

    return convert


_SCALARS: dict[int, tuple[str, Callable[[Any], bool]]] = {
    _INT32: ("a whole number of 32 bits", lambda value: is_whole(value, 32)),
    _INT64: ("a whole number of 64 bits", lambda value: is_whole(value, 64)),
    _UINT32: ("a whole number of 32 bits, not negative", lambda value: is_whole(value, 32, is_signed=False)),
    _UINT64: ("a whole number of 64 bits, not negative", lambda value: is_whole(value, 64, is_signed=False)),
    _DOUBLE: ("a number that 64 bits hold", is_double),
    _FLOAT: ("a number of 32 bits", is_float),
    _BOOL: ("True or False", lambda value: isinstance(value, bool)),
    _STRING: ("str", lambda value: isinstance(value, str)),
}
_BYTES: tuple[str, Callable[[Any], bool]] = ("bytes", lambda value: isinstance(value, bytes))


def _fill_timestamp(message: Any, value: Any) -> None:
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise Mismatch("timestamp (a datetime with a time zone)", value)
    _fill_seconds(message, (value - EPOCH) // _MICROSECOND, is_floored=True)


def _fill_duration(message: Any, value: Any) -> None:
    if not isinstance(value, timedelta):
        raise Mismatch("duration (a timedelta)", value)
    _fill_seconds(message, value // _MICROSECOND, is_floored=False)


def _fill_seconds(message: Any, micros: int, is_floored: bool) -> None:
    """Write seconds and nanoseconds: those of a timestamp are never negative, those of a duration share its sign."""
    sign = -1 if micros < 0 and not is_floored else 1
    seconds, rest = divmod(micros * sign, 1_000_000)
    message.seconds, message.nanos = sign * seconds, sign * rest * 1000


def _fill_struct(message: Any, value: Any) -> None:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise Mismatch("google.protobuf.Struct (a dict whose keys are str)", value)
    for key, inner in value.items():
        with_path(f"[{key!r}]", _fill_json_value, message.fields[key], inner)


def _fill_list(message: Any, value: Any) -> None:
    if not isinstance(value, list | tuple):
        raise Mismatch("google.protobuf.ListValue (a list)", value)
    for index, item in enumerate(value):
        with_path(f"[{index}]", _fill_json_value, message.values.add(), item)


def _fill_json_value(message: Any, value: Any) -> None:
    if value is None:
        message.null_value = 0
    elif isinstance(value, bool):
        message.bool_value = value
    elif isinstance(value, str):
        message.string_value = value
    elif is_double(value):
        message.number_value = value
    elif isinstance(value, dict):
        _fill_inner(message.struct_value, value, _fill_struct)
    elif isinstance(value, list | tuple):
        _fill_inner(message.list_value, value, _fill_list)
    else:
        raise Mismatch("a JSON value (None, bool, number, str, list, dict)", value)


_FILL_WELL_KNOWN: dict[str, Fill] = {
    "google.protobuf.Timestamp": _fill_timestamp,
    "google.protobuf.Duration": _fill_duration,
    "google.protobuf.Struct": _fill_struct,
    "google.protobuf.ListValue": _fill_list,
    "google.protobuf.Value": _fill_json_value,
}
