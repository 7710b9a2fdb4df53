"""Equal keys, and only equal keys, have equal bytes; and bytes have one owner for ever."""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID
from zlib import crc32
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.codec import decode_key, encode_key, encode_keys, partition_of, partitions_of
from millpond.errors import Corrupt, InvalidUse

zones = st.one_of(st.none(), st.timezones(), st.integers(-86_399, 86_399).map(lambda s: timezone(timedelta(seconds=s))))
datetimes = st.datetimes(datetime(2, 1, 1), datetime(9998, 12, 31), timezones=zones)  # type: ignore[arg-type]
atoms = st.one_of(
    st.text(),
    st.sampled_from(["", "1", "true", "null", '{"$tuple":[1]}', "$", "\x00\n\r\u2028\x7f", "a" * 10_000]),
    st.binary(),
    st.booleans(),
    st.integers(),
    st.integers(-2, 2),
    st.integers(-(10**700), 10**700),
    st.dates(),
    datetimes,
    st.uuids(),
)
keys = st.recursive(atoms, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=5)


def shape(key):
    """What a key is, so that two keys are equal exactly if their shapes are."""
    if isinstance(key, tuple):
        return (tuple, *map(shape, key))
    if isinstance(key, datetime):
        if key.tzinfo is None:
            return ("naive", key.replace(fold=0))
        return ("aware", key.astimezone(UTC).replace(tzinfo=None, fold=0))
    return (type(key), key)


@settings(deadline=None, max_examples=200)
@given(keys)
def test_a_key_comes_back_equal_and_of_the_same_type(key):
    assert shape(decode_key(encode_key(key))) == shape(key)


@settings(deadline=None, max_examples=300)
@given(keys, keys)
def test_two_keys_have_the_same_bytes_exactly_if_they_are_equal(one, other):
    assert (encode_key(one) == encode_key(other)) == (shape(one) == shape(other))
    assert encode_key(one) == encode_key(decode_key(encode_key(one)))


@settings(deadline=None)
@given(keys)
def test_the_bytes_are_one_line_of_json_without_nul(key):
    encoded = encode_key(key)
    assert b"\n" not in encoded and b"\r" not in encoded and b"\0" not in encoded
    json.loads(encoded.decode("utf-8"))


@settings(deadline=None)
@given(
    st.one_of(
        st.lists(keys, max_size=5),
        st.lists(st.text(), max_size=5),
        st.lists(st.one_of(st.integers(), st.booleans(), st.integers(10**650, 10**651)), max_size=5),
        st.lists(st.tuples(st.text(), st.integers()), max_size=5),
        st.lists(st.tuples(st.one_of(st.integers(10**650, 10**651), st.booleans())), max_size=5),
    )
)
def test_keys_in_bulk_have_the_same_bytes_and_owners_as_one_by_one(many):
    encoded = encode_keys(many)
    assert encoded == [encode_key(key) for key in many]
    places = partitions_of(encoded, 7)
    assert places.dtype == np.int32
    assert places.tolist() == [partition_of(one, 7) for one in encoded]


PINNED = [
    ("", b'""', 3),
    ("a", b'"a"', 2),
    ("1", b'"1"', 8),
    ('é\x00\n\x1f\x7f/\\"\u2028😀', b'"\xc3\xa9\\u0000\\n\\u001f\x7f/\\\\\\"\xe2\x80\xa8\xf0\x9f\x98\x80"', 9),
    (1, b"1", 4),
    (-7, b"-7", 10),
    (1 << 64, b"18446744073709551616", 10),
    (True, b"true", 8),
    (False, b"false", 0),
    ((), b'{"$tuple":[]}', 7),
    ((1,), b'{"$tuple":[1]}', 9),
    (("a", (1, True)), b'{"$tuple":["a",{"$tuple":[1,true]}]}', 0),
    (b"\x00a", b'{"$bytes":"AGE="}', 9),
    (date(2024, 2, 29), b'{"$date":"2024-02-29"}', 1),
    (datetime(2024, 2, 29, 1, 2, 3), b'{"$datetime":"2024-02-29T01:02:03"}', 4),
    (datetime(2024, 2, 29, 1, 2, 3, 4, UTC), b'{"$datetime":"2024-02-29T01:02:03.000004Z"}', 5),
    (UUID(int=255), b'{"$uuid":"00000000-0000-0000-0000-0000000000ff"}', 0),
]


@pytest.mark.parametrize(("key", "encoded", "partition"), PINNED)
def test_the_bytes_and_the_owner_of_a_key_never_change(key, encoded, partition):
    assert encode_key(key) == encoded
    assert partition_of(encoded, 11) == partition


def test_keys_that_python_calls_equal_but_people_do_not_are_four_keys():
    four = [1, "1", True, (1,)]
    assert len({encode_key(key) for key in four}) == len(set(encode_keys(four))) == 4


def test_the_same_instant_is_the_same_key_in_every_zone():
    instants = [
        datetime(2024, 7, 1, 12, tzinfo=UTC),
        datetime(2024, 7, 1, 14, tzinfo=ZoneInfo("Europe/Berlin")),
        datetime(2024, 7, 1, 7, tzinfo=timezone(timedelta(hours=-5))),
    ]
    assert len({encode_key(key) for key in instants}) == 1
    assert encode_key(datetime(2024, 7, 1, 12)) != encode_key(instants[0])
    assert encode_key(datetime(2024, 7, 1, 12, fold=1)) == encode_key(datetime(2024, 7, 1, 12))
    doubled = [datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=fold) for fold in (0, 1)]
    assert encode_key(doubled[0]) != encode_key(doubled[1])


def test_integers_of_any_length_are_keys():
    for number in (10**5000, -(10**5000), (1 << 2048) - 1, 1 << 2048, -(1 << 2048)):
        assert decode_key(encode_key(number)) == number
        assert encode_keys([number, 1]) == [encode_key(number), b"1"]
        assert encode_keys([(number,)]) == [encode_key((number,))]


def test_keys_are_spread_evenly():
    for many in (list(range(10_000)), [f"card-{i:06d}" for i in range(10_000)], [(f"c{i}", i) for i in range(10_000)]):
        for partitions in (2, 8, 12):
            sizes = np.bincount(partitions_of(encode_keys(many), partitions), minlength=partitions)
            assert sizes.min() > 0.9 * 10_000 / partitions and sizes.max() < 1.1 * 10_000 / partitions


def test_the_owner_follows_from_the_crc32_of_the_bytes():
    assert partition_of(b'"a"', 1 << 31) == crc32(b'"a"') % (1 << 31)


class Name(NamedTuple):
    first: str


class Country(StrEnum):
    BE = "be"


class Text(str):
    pass


class Nowhere(tzinfo):
    def utcoffset(self, when):
        return None


KINDS = "expected a key of str, bytes, int, bool, date, datetime, UUID or a tuple of these, got"


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (
            None,
            "key: a key cannot be None; leave such rows out before key_by, for example with "
            'filter(lambda row: row["customer"] is not None)',
        ),
        (("a", None), "key[1]: a key cannot be None; leave such rows out before key_by"),
        (1.0, f"key: {KINDS} the float 1.0; floats that look equal often are not: round to an int, or use str"),
        (("a", (1.5,)), f"key[1][0]: {KINDS} the float 1.5"),
        ([1], f"key: {KINDS} the list [1]; use a tuple"),
        (Country.BE, f"key: {KINDS} the enum member <Country.BE: 'be'>; use its .value or its .name"),
        (Text("a"), f"key: {KINDS} 'a' of the type test_key_bytes.Text; turn it into a plain str first"),
        (Name("a"), f"key: {KINDS} Name(first='a') of the type test_key_bytes.Name; turn it into a plain tuple"),
        (np.int64(1), f"key: {KINDS} np.int64(1) of the type numpy.int64; use a field of it, or str(…) of it"),
        (np.str_("a"), f"key: {KINDS} np.str_('a') of the type numpy.str_; turn it into a plain str first"),
        (Decimal(1), f"key: {KINDS} Decimal('1') of the type decimal.Decimal; use a field of it, or str(…) of it"),
        ({"a": 1}, f"key: {KINDS} {{'a': 1}} of the type dict; use a field of it, or str(…) of it"),
        ({1}, f"key: {KINDS} {{1}} of the type set"),
        (bytearray(b"a"), f"key: {KINDS} bytearray(b'a') of the type bytearray"),
        (
            "a\ud800",
            "key: expected text that UTF-8 can hold, got 'a\\ud800' with a lone surrogate; replace it, for "
            'example with text.encode("utf-8", "replace").decode(), or use bytes',
        ),
        ((1, "\ud800"), "key: expected text that UTF-8 can hold, got (1, '\\ud800') with a lone surrogate"),
        (
            datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1))),
            "key: expected a datetime that UTC can express, got datetime.datetime(1, 1, 1, 0, 0, tzinfo=",
        ),
    ],
)
def test_what_is_no_key_is_refused_with_a_clear_word(key, text):
    for encode in (encode_key, lambda key: encode_keys([key]), lambda key: encode_keys(["a", key])):
        with pytest.raises(InvalidUse, match=f"^{re.escape(text)}"):
            encode(key)


def test_a_datetime_whose_tzinfo_gives_no_offset_is_refused():
    with pytest.raises(
        InvalidUse, match=r"^key: expected a datetime whose tzinfo gives an offset, got .*; use datetime.timezone"
    ):
        encode_key(datetime(2024, 1, 1, tzinfo=Nowhere()))  # type: ignore[abstract]


def test_tuples_nested_too_deep_are_refused():
    key: tuple[Any, ...] = ()
    for _ in range(99):
        key = (key,)
    assert decode_key(encode_key(key)) == key
    with pytest.raises(InvalidUse, match=r"^key: tuples are nested more than 100 levels deep; flatten the key$"):
        encode_key((key,))


@pytest.mark.parametrize(
    "encoded",
    [b"", b"{", b"null", b"1.5", b"[1]", b"{}", b'{"a":1}', b'{"$set":[1]}', b'{"$tuple":[null]}', b'{"$date":"x"}'],
)
def test_bytes_that_are_no_key_are_called_corrupt_and_shown(encoded):
    with pytest.raises(Corrupt, match=r"^stored key: expected the bytes of a key that Millpond wrote, got b") as e:
        decode_key(encoded)
    assert repr(encoded) in str(e.value) and "restore it from a copy" in str(e.value)
