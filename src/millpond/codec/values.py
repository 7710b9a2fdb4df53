"""Encodes values as JSON text; a decoded value is equal and of the same exact type.

JSON has `None`, `bool`, `int`, `float`, `str`, lists and dicts with text for keys. Everything else is
written as an object whose first key is a tag, a word that begins with "$":

    (1, 2)                  {"$tuple":[1,2]}
    {3: "c"}                {"$dict":[[3,"c"]]}            so is a dict with a key that begins with "$"
    Order(id=7)             {"$type":"shop:Order","fields":{"id":7}}
    Color.RED               {"$enum":"shop:Color","name":"RED"}

Scalars are in `tags`, the users' own types in `user_types`. The text never contains a raw newline or NUL. msgspec
encodes plain values in one call. It would silently write values that it cannot restore (a tuple as a list, nan as
null), so types are checked before, in bulk.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import chain
from math import isfinite
from typing import Any, Literal

import msgspec

from millpond.codec import user_types
from millpond.codec.copies import IMMUTABLE, copy_value
from millpond.codec.locate import explain, explain_text
from millpond.codec.plain_check import survey_of
from millpond.codec.refusal import NotEncodable, Refused, TooDeep, Unreadable
from millpond.codec.tagging import AS_IS, tree_of, with_big_ints
from millpond.codec.tags import BIG_INT, READ, Tag, tag_datetime
from millpond.errors import Corrupt, MillpondError, short_repr

__all__ = ["IMMUTABLE", "Codec", "NotEncodable", "copy_value"]

_value_encoder = msgspec.json.Encoder()
_value_decoder = msgspec.json.Decoder()
_encode, _encode_lines = _value_encoder.encode, _value_encoder.encode_lines
_decode, _decode_lines = _value_decoder.decode, _value_decoder.decode_lines

# Values are encoded in chunks: they stay in the processor's cache from the check to the text, and one value that is not
# plain slows down its own chunk only.
_CHUNK_VALUES = 1000
_BULK_TYPES = (dict, list)
_MIN_SURVEY_ITEMS = 30  # below, checking each item is faster than a check in bulk


class Codec:
    """Encodes and decodes values; safe to share between threads, and cheap to make.

    A type that stored data names is looked for among `types` (and the types that their fields are
    annotated with), in the loaded modules, and among the types that this process has encoded. No module is
    imported, and a type that was found once is remembered. If a type is not found, or cannot hold the stored
    fields, decoding raises `Incompatible`; with `unknown="plain"` it returns the dict of the fields (for an enum
    member, its name).

    >>> from millpond.codec import Codec
    >>> codec = Codec()
    >>> codec.encode({"id": 7, "tags": {"new"}})
    b'{"id":7,"tags":{"$set":["new"]}}'
    >>> codec.decode(_)
    {'id': 7, 'tags': {'new'}}
    """

    def __init__(self, types: Iterable[Any] = (), unknown: Literal["raise", "plain"] = "raise") -> None:
        self._types = user_types.reachable_types(types)
        self._unknown = unknown
        self._builds: dict[str, Callable[[Any], Any]] = {}
        self._read: dict[str, Callable[[Tag], Any]] = {
            **READ,
            "$tuple": lambda tag: tuple(self._untag(tag["$tuple"])),
            "$set": lambda tag: self._build_hashable(set, tag["$set"]),
            "$frozenset": lambda tag: self._build_hashable(frozenset, tag["$frozenset"]),
            "$dict": lambda tag: self._build_hashable(dict, tag["$dict"]),
            "$type": self._read_record,
            "$enum": self._read_enum,
        }

    @property
    def types(self) -> tuple[type, ...]:
        """The types that were given, and those in their annotations: for another codec of the same types.

        >>> from millpond.codec import Codec
        >>> Codec().types
        ()
        """
        return tuple(self._types.values())

    def find(self, name: str) -> type | None:
        """Return the type of this stored name, or None if this program does not have it.

        >>> from millpond.codec import Codec
        >>> Codec().find("gone:Pallet")
        """
        return self._find(name) if self._unknown == "plain" else Codec(self.types, unknown="plain").find(name)

    def encode(self, value: Any) -> bytes:
        """Return one value as JSON text. Raises `NotEncodable` if it would not be decoded as it is.

        >>> Codec().encode((1, b"x"))
        b'{"$tuple":[1,{"$bytes":"eA=="}]}'
        """
        cls = type(value)
        try:
            if cls in AS_IS:
                return _encode(value)
            if cls not in _BULK_TYPES or len(value) < _MIN_SURVEY_ITEMS:
                return _encode(tree_of(value))
        except (ValueError, RecursionError, Refused):
            pass  # rare: encoded in another way below, or explained
        try:
            return _encode_chunk((value,), 0)[:-1]
        except NotEncodable as error:
            error.index = None
            raise

    def decode(self, data: bytes) -> Any:
        """Return the value of a text that `encode` made. The text must be ours: tags are obeyed.

        >>> Codec().decode(b'{"$decimal":"1.10"}')
        Decimal('1.10')
        """
        try:
            value = _decode(data)
        except Exception as error:
            raise _corrupt_value(error, data) from error
        return self._untag_text(value, data) if _may_be_tagged(data) else value

    def encode_many(self, values: Sequence[Any]) -> list[bytes]:
        """Return the texts of many values, several times faster than one by one.

        >>> Codec().encode_many([1, "a", None])
        [b'1', b'"a"', b'null']
        """
        lines = self.encode_lines(values).split(b"\n")
        lines.pop()
        return lines

    def decode_many(self, data: Sequence[bytes]) -> list[Any]:
        """Return the values of many texts, in their order.

        >>> Codec().decode_many([b"1", b'{"$tuple":[]}'])
        [1, ()]
        """
        values: list[Any] = []
        try:
            values.extend(map(_decode, data))
        except Exception as error:
            raise _corrupt_value(error, data[len(values)]) from error
        if _may_be_tagged(b"".join(data)):
            for index, text in enumerate(data):
                if b'"$' in text:
                    values[index] = self._untag_text(values[index], text)
        return values

    def encode_lines(self, values: Sequence[Any]) -> bytes:
        r"""Return the texts of many values in one piece, with a newline after each.

        >>> Codec().encode_lines([1, "a\nb"])
        b'1\n"a\\nb"\n'
        """
        if len(values) <= _CHUNK_VALUES:
            return _encode_chunk(values, 0)
        starts = range(0, len(values), _CHUNK_VALUES)
        return b"".join([_encode_chunk(values[start : start + _CHUNK_VALUES], start) for start in starts])

    def decode_lines(self, data: bytes) -> list[Any]:
        """Return the values of a piece that `encode_lines` made.

        >>> Codec().decode_lines(b'1\\n{"$set":[2]}\\n')
        [1, {2}]
        """
        try:
            values = _decode_lines(data)
        except Exception as error:
            raise _corrupt_value(error, data) from error
        return self._untag_text(values, data) if _may_be_tagged(data) else values

    def build_records(self, name: str, fields: Sequence[dict[str, Any]]) -> list[Any]:
        """Return values of the type of a stored name, one of each dict of fields.

        >>> Codec(unknown="plain").build_records("gone:Pallet", [{"id": 7}])
        [{'id': 7}]
        """
        build = self._builder(name)
        return [self._build(build, each) for each in fields]

    def _untag_text(self, value: Any, text: bytes) -> Any:
        try:
            return self._untag(value)
        except MillpondError:
            raise
        except Exception as error:
            raise _corrupt_value(error, text) from error

    def _untag(self, value: Any) -> Any:
        """Replace tags by their values; containers are fresh from the parser and changed in place."""
        cls = type(value)
        if cls is dict:
            for word in value:  # a tag has its word first, and no other dict begins with a "$"
                if word[:1] == "$":
                    read = self._read.get(word)
                    if read is None:
                        raise _unknown_tag_error(word)
                    return read(value)
                break
            for key, item in value.items():
                cls = type(item)
                if cls is dict or cls is list:
                    value[key] = self._untag(item)
        elif cls is list:
            for index, item in enumerate(value):
                cls = type(item)
                if cls is dict or cls is list:
                    value[index] = self._untag(item)
        return value

    def _build_hashable(self, make: Callable[[Any], Any], payload: Any) -> Any:
        items = self._untag(payload)
        try:
            return make(items)
        except TypeError:
            if self._unknown == "plain":  # an unknown type has become a dict, which has no hash
                return items
            raise

    def _read_record(self, tag: Tag) -> Any:
        build = self._builder(tag["$type"])
        return self._build(build, self._untag(tag["fields"]))

    def _builder(self, name: str) -> Callable[[Any], Any] | None:
        """Return the function that makes values of a stored type of their fields; None if it is unknown here."""
        build = self._builds.get(name)
        if build is None:
            cls = self._find(name)
            record = None if cls is None else user_types.record_type_of(cls)
            if record is not None:
                build = self._builds[name] = record.build
            elif self._unknown != "plain":
                raise _changed_kind_error(name, "a type with fields")
        return build

    def _build(self, build: Callable[[Any], Any] | None, fields: Any) -> Any:
        if build is None:
            return fields
        try:
            return build(fields)
        except Unreadable:
            if self._unknown == "plain":
                return fields
            raise

    def _read_enum(self, tag: Tag) -> Any:
        cls: Any = self._find(tag["$enum"])
        if cls is None:
            return tag["name"] if "name" in tag else tag["value"]
        member = tag["name"] if "name" in tag else tag["value"]
        if not issubclass(cls, enum.Enum):
            if self._unknown == "plain":
                return member
            raise _changed_kind_error(tag["$enum"], "an Enum")
        try:
            return cls(tag["value"]) if "value" in tag else cls.__members__[tag["name"]]
        except (KeyError, ValueError):
            if self._unknown == "plain":
                return member
            raise Unreadable(
                f"stored value: expected a member {member!r} in {tag['$enum']!r}, "
                f"which has {', '.join(cls.__members__)}; add it again, or migrate the state"
            ) from None

    def _find(self, name: str) -> type | None:
        cls = self._types.get(name)
        if cls is None:
            names = user_types.known_names(name)
            found = (look(each) for look in (self._types.get, user_types.find_type) for each in names)
            cls = next((each for each in found if each is not None), None) or self._find_nested(name)
            if cls is not None:
                self._types[name] = cls
        if cls is None and self._unknown == "raise":
            raise Unreadable(
                f"stored value: expected the type {name!r} in this process, but no loaded module has it; "
                "import its module first, or name the class where the state or stream is declared (type=…)"
            )
        return cls

    def _find_nested(self, name: str) -> type | None:
        """Return the class inside a class that older workers stored by its last name; None if there are several."""
        module, _, path = name.partition(":")
        if module != user_types.MAIN:
            return None
        found = [cls for known, cls in self._types.items() if known.endswith(f".{path}")]
        return found[0] if len(found) == 1 else None


def _may_be_tagged(text: bytes) -> bool:
    return b"$" in text and b'"$' in text  # finding one byte is many times faster than two


def _encode_chunk(values: Sequence[Any], start: int) -> bytes:
    """Encode one chunk of values; `start` is the place of its first value in the whole."""
    survey = survey_of(values)
    if survey is not None:
        try:
            lines = _encode_lines(values)
        except (ValueError, RecursionError):
            return _encode_tagged(values, start)
        # msgspec writes nan and inf as null: if there is no null, there was none of them.
        if not (
            (survey.floats and b"null" in lines and survey.has_infinite())
            or (_may_be_tagged(lines) and survey.has_tag_like())
        ):
            return lines
    else:
        with_times = _encode_flat_rows(values)
        if with_times is not None:
            return with_times
    return _encode_tagged(values, start)


_FLAT_TYPES = frozenset({str, int, bool, type(None), float, datetime})


def _encode_flat_rows(values: Sequence[Any]) -> bytes | None:
    """Encode flat dicts of plain values and datetimes, such as outputs of windows; return None for other values.

    The bytes are those of `_encode_tagged`, made in a third of the time.
    """
    if set(map(type, values)) != {dict} or set(map(type, chain.from_iterable(values))) - {str}:
        return None
    names = set(chain.from_iterable(values))
    flat = list(chain.from_iterable(map(dict.values, values)))
    types = set(map(type, flat))
    if (
        not types <= _FLAT_TYPES
        or any(name[:1] == "$" for name in names)
        or (float in types and not all(map(isfinite, [value for value in flat if type(value) is float])))
        or (int in types and not all(-BIG_INT < value < BIG_INT for value in flat if type(value) is int))
    ):
        return None
    tags: dict[datetime, Any] = {}  # most rows share them; only in UTC, since equal times may have different zones
    for value in flat:
        if type(value) is datetime and value.tzinfo is UTC and value not in tags:
            tags[value] = tag_datetime(value)
    try:
        return _encode_lines(
            [
                {
                    name: item
                    if type(item) is not datetime
                    else tags[item]
                    if item.tzinfo is UTC
                    else tag_datetime(item)
                    for name, item in row.items()
                }
                for row in values
            ]
        )
    except (ValueError, RecursionError, Refused):
        return None


def _encode_tagged(values: Sequence[Any], start: int) -> bytes:
    trees: list[Any] = []
    try:
        trees.extend(map(tree_of, values))
    except Refused as refused:
        raise explain(refused, values[len(trees)], start + len(trees)) from None
    except RecursionError:
        raise explain(TooDeep(values[len(trees)]), values[len(trees)], start + len(trees)) from None
    try:
        return _encode_lines(trees)
    except UnicodeEncodeError:
        raise explain_text(values, start) from None
    except ValueError:  # an integer with more digits than Python converts to text
        return _encode_lines([with_big_ints(tree) for tree in trees])


def _corrupt_value(error: Exception, data: bytes) -> Corrupt:
    return Corrupt(
        f"stored value: expected JSON text that Millpond wrote, got {short_repr(bytes(data[:80]))} "
        f"({type(error).__name__}: {error}); the file is damaged or was edited: restore it from a copy"
    )


def _unknown_tag_error(word: str) -> Unreadable:
    return Unreadable(
        f"stored value: expected a tag that this version of Millpond knows, got {word!r}; "
        "it was written by a newer version: upgrade"
    )


def _changed_kind_error(name: str, stored: str) -> Unreadable:
    return Unreadable(
        f"stored value: expected {name!r} to be {stored}, as it was when the value was stored, "
        "but now it is something else; rename the new type, or migrate the state"
    )
