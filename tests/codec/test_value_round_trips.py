"""What goes in comes out equal and of the same exact type."""

from __future__ import annotations

import json
import sys
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal, localcontext
from math import copysign, inf, isnan, nan
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest
from codec_samples import MIXED, plain_values, same, values
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.codec import Codec
from millpond.errors import Corrupt, Incompatible

codec = Codec()
BERLIN = ZoneInfo("Europe/Berlin")


@settings(deadline=None, max_examples=200)
@given(values)
def test_any_value_comes_back_as_it_went_in(value):
    assert same(codec.decode(codec.encode(value)), value)


@settings(deadline=None)
@given(st.lists(values, max_size=5))
def test_many_values_come_back_as_they_went_in(many):
    assert same(codec.decode_many(codec.encode_many(many)), many)
    assert same(codec.decode_lines(codec.encode_lines(many)), many)


@settings(deadline=None)
@given(st.lists(plain_values, max_size=5))
def test_plain_values_are_plain_json_but_for_infinities_and_keys_like_tags(many):
    texts = codec.encode_many(many)
    assert same(codec.decode_many(texts), many)
    for text, value in zip(texts, many, strict=True):
        if b'"$' not in text:
            assert same(json.loads(text), value)


@settings(deadline=None)
@given(st.lists(st.one_of(values, plain_values), max_size=6))
def test_bulk_and_single_encoding_give_the_same_text(many):
    assert codec.encode_many(many) == [codec.encode(value) for value in many]


@settings(deadline=None)
@given(values)
def test_the_text_is_one_line_of_utf8_without_nul(value):
    text = codec.encode(value)
    assert b"\n" not in text and b"\0" not in text
    json.loads(text.decode("utf-8"))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        ({"a": [1, 2.5, "x", True]}, '{"a":[1,2.5,"x",true]}'),
        ((1, "a"), '{"$tuple":[1,"a"]}'),
        ({1: 2}, '{"$dict":[[1,2]]}'),
        ({"$tuple": [1]}, '{"$dict":[["$tuple",[1]]]}'),
        ({"b", "a"}, '{"$set":["a","b"]}'),
        (frozenset({2, 1}), '{"$frozenset":[1,2]}'),
        (b"\x00\x01", '{"$bytes":"AAE="}'),
        (bytearray(b"\x00"), '{"$bytearray":"AA=="}'),
        (Decimal("1.10"), '{"$decimal":"1.10"}'),
        (nan, '{"$float":"nan"}'),
        (-inf, '{"$float":"-inf"}'),
        (date(2024, 2, 29), '{"$date":"2024-02-29"}'),
        (datetime(1, 2, 3), '{"$datetime":"0001-02-03T00:00:00"}'),
        (datetime(2024, 2, 3, 4, 5, 6, 7, tzinfo=UTC), '{"$datetime":"2024-02-03T04:05:06.000007Z"}'),
        (
            datetime(2024, 7, 1, tzinfo=BERLIN),
            '{"$datetime":"2024-07-01T00:00:00+02:00","zone":"Europe/Berlin"}',
        ),
        (time(1, 2), '{"$time":"01:02:00"}'),
        (timedelta(days=-1, seconds=2, microseconds=3), '{"$timedelta":[-1,2,3]}'),
        (UUID(int=1), '{"$uuid":"00000000-0000-0000-0000-000000000001"}'),
        (msgspec.UNSET, '{"$unset":true}'),
    ],
)
def test_the_text_of_each_kind_is_the_file_format_and_stays(value, text):
    assert codec.encode(value) == text.encode()
    assert same(codec.decode(text.encode()), value)


def test_many_rows_of_which_one_needs_tags_are_encoded_alike():
    rows = [{"n": n, "x": n / 4} for n in range(5000)]
    rows[4321]["x"] = nan
    rows[17] = {"$n": 1}
    back = codec.decode_many(codec.encode_many(rows))
    assert isnan(back[4321]["x"]) and back[17] == {"$n": 1}
    assert [row for i, row in enumerate(back) if i != 4321] == [r for i, r in enumerate(rows) if i != 4321]


def test_no_values_give_no_text():
    assert codec.encode_many([]) == [] == codec.decode_many([])
    assert codec.encode_lines([]) == b""
    assert codec.decode_lines(b"") == []


def test_null_beside_infinity_is_told_apart():
    back = codec.decode_many(codec.encode_many([{"a": None, "b": inf}, {"a": None, "b": 1.0}]))
    assert back == [{"a": None, "b": inf}, {"a": None, "b": 1.0}]


def test_the_sign_of_zero_stays():
    assert copysign(1, codec.decode(codec.encode(-0.0))) == -1


def test_a_long_list_and_a_short_one_are_encoded_alike():
    for items in ([0.5] * 10, [0.5] * 1000, [nan] * 1000, [(1,)] * 1000):
        assert same(codec.decode(codec.encode(items)), items)


def test_a_part_that_is_shared_is_no_cycle():
    part = {"n": [1]}
    value = {"a": part, "b": {"c": part, "d": [part, part]}}
    assert codec.decode(codec.encode(value)) == value
    many = [part, {"inner": part}] * 20_000
    assert codec.decode_many(codec.encode_many(many)) == many


def test_values_nested_a_hundred_deep_come_back():
    for wrap in (lambda v: [v], lambda v: (v,), lambda v: {"a": v}, lambda v: {1: v}):
        value: Any = 1
        for _ in range(100):
            value = wrap(value)
        assert codec.decode(codec.encode(value)) == value


def test_decimals_do_not_depend_on_the_context():
    with localcontext() as context:
        context.prec = 2
        assert codec.decode(codec.encode(Decimal("123.4567"))) == Decimal("123.4567")


def test_the_doubled_hour_of_a_zone_comes_back_on_the_same_side():
    for fold in (0, 1):
        moment = datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN, fold=fold)
        back = codec.decode(codec.encode(moment))
        assert back == moment and back.fold == fold and back.utcoffset() == moment.utcoffset()
        assert back.tzinfo is BERLIN


def test_a_zone_that_this_machine_lacks_or_knows_otherwise_leaves_the_instant():
    for zone in ("Nowhere/Atlantis", "Asia/Tokyo", "../etc", "Europe"):
        text = f'{{"$datetime":"2024-07-01T00:00:00+02:00","zone":"{zone}"}}'
        back = codec.decode(text.encode())
        assert back == datetime(2024, 7, 1, tzinfo=timezone(timedelta(hours=2)))
        assert back.utcoffset() == timedelta(hours=2)


def test_a_tzinfo_of_another_make_becomes_a_fixed_offset():
    class Odd(tzinfo):
        def utcoffset(self, when):
            return timedelta(hours=1, minutes=23)

        def dst(self, when):
            return None

        def tzname(self, when):
            return "odd"

    moment = datetime(2024, 7, 1, 12, tzinfo=Odd())
    back = codec.decode(codec.encode(moment))
    assert back == moment and back.utcoffset() == moment.utcoffset()


def test_a_time_in_a_zone_needs_the_zone():
    noon = time(12, tzinfo=BERLIN)
    assert same(codec.decode(codec.encode(noon)), noon)
    with pytest.raises(Incompatible, match=r"expected the time zone 'Nowhere/Atlantis' on this machine.*tzdata"):
        codec.decode(b'{"$time":"12:00:00","zone":"Nowhere/Atlantis"}')


def test_an_unknown_tag_asks_for_an_upgrade():
    with pytest.raises(Incompatible, match=r"knows, got '\$matrix'.*newer version: upgrade"):
        codec.decode(b'{"a":{"$matrix":[]}}')


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"nan",
        b'{"a":1',
        b'"\xff"',
        b'{"$bytes":"?"}',
        b'{"$decimal":"x"}',
        b'{"$uuid":"x"}',
        b'{"$datetime":3}',
        b'{"$tuple":3}',
        b'{"$set":[[1]]}',
        b'{"$dict":[[1]]}',
        b'{"$type":"codec_samples:Point"}',
        b'{"$type":5,"fields":{}}',
        b'{"$timedelta":"1"}',
    ],
)
def test_damaged_text_is_called_corrupt_and_shown(data):
    def text_of(read, argument):
        with pytest.raises(Corrupt, match=r"stored value: expected JSON text that Millpond wrote, got b.*restore") as e:
            read(argument)
        return str(e.value)

    assert repr(data) in text_of(codec.decode, data)
    assert repr(data) in text_of(codec.decode_many, [b"1", data, b"2"])
    if data:
        text_of(codec.decode_lines, data + b"\n")


def test_text_nested_deeper_than_any_of_ours_is_called_corrupt():
    with pytest.raises(Corrupt, match="RecursionError"):
        codec.decode(b"[" * 100_000)


def test_integers_of_thousands_of_digits_are_written_in_hex():
    for number in (1 << 20_000, -(1 << 20_000), [{"n": 1 << 20_000}]):
        text = codec.encode(number)
        assert b"0x1" + b"0" * 5000 in text
        assert same(codec.decode(text), number)
        assert codec.encode_many([1, number])[1] == text


def test_integers_of_any_length_do_not_depend_on_the_limit_for_text():
    number = 10**4200
    text = codec.encode(number)
    assert codec.decode(text) == number
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(700)
    try:
        small = codec.encode({"n": [number]})
        assert codec.decode(small) == {"n": [number]}
    finally:
        sys.set_int_max_str_digits(limit)
    assert codec.decode(small) == {"n": [number]}


def test_encoding_leaves_the_value_alone():
    before = repr(MIXED)
    codec.encode(MIXED)
    codec.encode_many([MIXED] * 3)
    assert repr(MIXED) == before
