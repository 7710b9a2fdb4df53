"""What would not come back as it went in is refused: what it is, where it stands, what to do."""

from __future__ import annotations

import pickle
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from datetime import datetime, time, tzinfo
from enum import Enum
from typing import Any

import numpy as np
import pandas as pd
import pytest
from codec_samples import Account, Pair, Plain, Point

from millpond.codec import Codec, NotEncodable, copy_value
from millpond.errors import InvalidUse

codec = Codec()


class Text(str):
    pass


class Number(int):
    pass


class Silent:
    def __repr__(self):
        raise RuntimeError("no")


def refusal(value: Any) -> str:
    """The text of the refusal, the same for a single value and in bulk."""
    texts = []
    for encode in (codec.encode, lambda v: codec.encode_many([1, v]), lambda v: codec.encode_lines([{}, v])):
        with pytest.raises(NotEncodable) as e:
            encode(value)
        texts.append(str(e.value))
    assert len(set(texts)) == 1
    return texts[0]


AS_PLAIN = "it would come back as a plain {0}: store {0}(…) of it instead"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Text("a"), f"value: cannot store a value of type test_refusals.Text, here 'a'; {AS_PLAIN.format('str')}"),
        (Number(1), f"value: cannot store a value of type test_refusals.Number, here 1; {AS_PLAIN.format('int')}"),
        (
            Counter("aa"),
            "value: cannot store a value of type collections.Counter, here Counter({'a': 2}); "
            + AS_PLAIN.format("dict"),
        ),
        (
            1j,
            "value: cannot store a value of type complex, here 1j; store plain values, dataclasses or msgspec Structs "
            "instead",
        ),
        (range(2), "value: cannot store a value of type range, here range(0, 2); store list(…) of it instead"),
        (
            len,
            "value: cannot store a value of type builtin_function_or_method, here <built-in function len>; functions "
            "and classes are code, not data: store a name for it instead",
        ),
        (
            np.float64(1.5),
            "value: cannot store a value of type numpy.float64, here np.float64(1.5); turn it into a Python value with "
            ".item(), or .tolist() for an array",
        ),
        (
            pd.Timestamp("2024-01-01"),
            "value: cannot store a value of type pandas._libs.tslibs.timestamps.Timestamp, here "
            "Timestamp('2024-01-01 00:00:00'); turn it into a datetime with .to_pydatetime()",
        ),
        (
            Silent(),
            "value: cannot store a value of type test_refusals.Silent, here <test_refusals.Silent without a repr>; "
            "store plain values, dataclasses or msgspec Structs instead",
        ),
    ],
)
def test_a_type_that_cannot_be_stored_is_named_with_what_to_do(value, text):
    assert refusal(value) == text


@pytest.mark.parametrize(
    "value",
    [
        OrderedDict(a=1),
        defaultdict(int),
        deque([1]),
        np.int64(1),
        np.str_("a"),
        np.bool_(True),
        np.array([1]),
        object(),
        Point,
        Enum,
        memoryview(b"a"),
        {}.keys(),
        iter([]),
        Ellipsis,
        NotImplemented,
        ValueError("x"),
        type("SubFloat", (float,), {})(1.0),
        type("SubList", (list,), {})([1]),
        type("SubTuple", (tuple,), {})((1,)),
        type("SubBytes", (bytes,), {})(b"a"),
        type("SubDatetime", (datetime,), {})(2024, 1, 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_not_of_an_exact_known_type_is_refused(value):
    assert refusal(value).startswith("value: cannot store a value of type ")
    assert refusal({"a": value}).startswith('value["a"]: cannot store a ')
    assert refusal([[value]]).startswith("value[0][0]: cannot store a value of type ")


def test_a_spark_row_is_refused_with_what_to_do():
    from pyspark.sql import Row

    assert refusal(Row(a=1)).endswith("turn it into a dict with .asDict(recursive=True)")


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"items": [1, 2, 3, object()]}, 'value["items"][3]'),
        ({"a": {1: (2, object())}}, 'value["a"][1][1]'),
        (Account("ada", 1, [Point(1, {"z": object()})]), 'value.history[0].y["z"]'),
        (Plain("a", Pair(1, object())), "value.value.right"),
        ({Text("k"): 1}, "value, key 'k'"),
        ({"a": 1, Text("k"): 1}, "value, key 'k'"),
        ({(1, Text("k")): 1}, "value, key (1, 'k')[1]"),
        ({Text("k")}, "value, element 'k'"),
        ([frozenset({(Text("k"),)})], "value[0], element ('k',)[0]"),
        ({"$a": object()}, 'value["$a"]'),
    ],
)
def test_the_place_inside_the_value_is_named(value, where):
    assert refusal(value).startswith(f"{where}: cannot store a value of type ")


def test_a_key_that_only_equals_text_is_refused_beside_plain_rows():
    with pytest.raises(NotEncodable, match="key 'k'"):
        codec.encode_many([{"k": 1}, {"k": 2}, {Text("k"): 3}])


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ("a\ud800", "value"),
        ({"a": ["b", "\udfff"]}, 'value["a"][1]'),
        ({"\ud800": 1}, "value, key '\\ud800'"),
        (("\ud800",), "value[0]"),
        (Account("\ud800"), "value.owner"),
    ],
)
def test_text_that_is_no_unicode_is_refused(value, where):
    assert refusal(value) == (
        f"{where}: cannot store text with a lone surrogate, which is not Unicode; replace it, for example with "
        'text.encode("utf-8", "replace").decode(), or store bytes'
    )


def cycles():
    items: list[Any] = [1]
    items.append(items)
    yield items, "value[1]"
    wide: list[Any] = []
    wide.extend([wide] * 1000)
    yield wide, "value[0]"
    row: dict[str, Any] = {"a": {"b": []}}
    row["a"]["b"].append(row["a"])
    yield row, 'value["a"]["b"][0]'
    account = Account("ada")
    account.history.append((account,))
    yield account, "value.history[0][0]"
    struct = Plain("a")
    struct.value = {1: struct}
    yield struct, "value.value[1]"


@pytest.mark.parametrize(("value", "where"), list(cycles()), ids=["list", "wide", "dict", "dataclass", "struct"])
def test_a_value_that_contains_itself_is_refused(value, where):
    text = (
        f"{where}: cannot store a value that contains itself; store a reference, for example a key, instead of "
        "the value that is already above it"
    )
    assert refusal(value) == text
    with pytest.raises(NotEncodable) as e:
        copy_value(value)
    assert str(e.value) == text


@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: (v,), lambda v: {"a": v}, lambda v: {1: v}, Point])
@pytest.mark.parametrize("levels", [101, 1500])
def test_a_value_nested_too_deep_is_refused(wrap, levels):
    value: Any = 1
    for _ in range(levels):
        value = wrap(value, 1) if wrap is Point else wrap(value)
    assert refusal(value) == (
        "value: cannot store what is nested more than 100 levels deep; flatten it, for example into a list or "
        "a dict of its parts"
    )


def test_a_tzinfo_without_an_offset_is_refused():
    class Nowhere(tzinfo):
        def utcoffset(self, when):
            return None

    for value in (datetime(2024, 1, 1, tzinfo=Nowhere()), time(1, tzinfo=Nowhere())):  # type: ignore[abstract]
        assert refusal([value]) == (
            "value[0]: cannot store a time whose tzinfo gives no offset; use datetime.timezone, "
            "zoneinfo.ZoneInfo or a time without tzinfo"
        )


def test_in_bulk_the_index_of_the_value_is_told():
    for culprit in (object(), "\ud800"):
        with pytest.raises(NotEncodable) as e:
            codec.encode_many([*range(2500), culprit, 1])
        assert e.value.index == 2500
        with pytest.raises(NotEncodable) as e:
            codec.encode(culprit)
        assert e.value.index is None


def test_a_refusal_is_a_mistake_in_the_program_and_travels_between_processes():
    with pytest.raises(InvalidUse) as e:
        codec.encode_many([1, {2j}])
    other = pickle.loads(pickle.dumps(e.value))
    assert str(other) == str(e.value) and other.index == 1


def test_what_was_refused_once_is_refused_again():
    @dataclass
    class Holder:
        what: Any

    for _ in range(2):
        assert refusal(Holder({1j})).startswith("value.what, element 1j: cannot store a value of type complex")
