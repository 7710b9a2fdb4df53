"""The states of `apply_batch` as texts: by columns they come to the very same as a dict per key."""

from __future__ import annotations

import datetime as dt
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.codec import Codec, Unreadable
from millpond.steps.state.state_texts import StateTexts

CODEC = Codec()
NAMES = st.sampled_from(["n", "größe", "50%", "%b", 'a "b"', "back\\slash", "$n", "$dict", "a$", "", "line\nfeed"])
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(max_size=4),
    st.sampled_from(["$", '"$n"', "%b", "\x00"]),
    st.binary(max_size=3),
    st.dates(),
    st.datetimes(timezones=st.just(dt.UTC)),
    st.lists(st.integers(), max_size=2),
    st.fixed_dictionaries({"$a": st.integers()}),
)


def columns_of(names: list[str], states: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [state.get(name) for state in states] for name in names}


@given(st.data(), st.lists(NAMES, min_size=1, max_size=3, unique=True))
def test_texts_are_those_of_dicts_and_come_back(data, names):
    rows = data.draw(st.lists(st.tuples(*[VALUES for _ in names]), max_size=5))
    states = [dict(zip(names, row, strict=True)) for row in rows]
    texts = StateTexts(names, CODEC)
    encoded = texts.encode(columns_of(names, states))
    assert encoded == CODEC.encode_many(states)
    there = data.draw(st.lists(st.booleans(), min_size=len(states), max_size=len(states)))
    found = texts.decode([text if is_there else None for text, is_there in zip(encoded, there, strict=True)])
    expected = [state if is_there else {} for state, is_there in zip(states, there, strict=True)]
    assert repr(found) == repr(columns_of(names, expected))


@given(st.lists(st.dictionaries(NAMES, VALUES, max_size=3), max_size=5))
def test_columns_may_be_new_or_gone(states):
    found = StateTexts(["n", "größe"], CODEC).decode(CODEC.encode_many(states))
    assert repr(found) == repr(columns_of(["n", "größe"], states))


def test_numbers_and_texts_need_no_dict_per_key():
    texts = StateTexts(["n", "who"], CODEC)
    with (
        patch.object(Codec, "decode_lines", side_effect=AssertionError("dicts")),
        patch.object(StateTexts, "to_columns", side_effect=AssertionError("dicts")),
    ):
        assert texts.decode([b'{"n":1,"who":"ann"}', None, b'{"n":2.5}']) == {
            "n": [1, None, 2.5],
            "who": ["ann", None, None],
        }


@pytest.mark.parametrize("stored", [b"7", b"[1]", b'"x"', b"null"])
def test_a_state_that_is_no_dict_is_refused(stored):
    with pytest.raises(Unreadable, match="expected the columns of a key as a dict"):
        StateTexts(["n"], CODEC).decode([b'{"n":1}', stored])
