"""The `State` handle: values, lists and maps, and what of them is written."""

from __future__ import annotations

from typing import Any

import pytest
from outside import Calls
from small_programs import applied

import millpond as mp


def test_values_are_set_got_deleted_and_asked_for():
    def f(row, state):
        before = (state.exists("x"), state.get("x"), state.get("x", "none"))
        if row is None:
            state.delete("x")
        else:
            state.set("x", row)
        return (*before, state.exists("x"), state.get("x"))

    outputs, state, last = applied(f, [1, [2]], [None, None], [0])
    assert outputs == [
        (False, None, "none", True, 1),
        (True, 1, 1, True, [2]),
        (True, [2], [2], False, None),
        (False, None, "none", False, None),
        (False, None, "none", True, 0),
    ]
    assert state == {"x": 0}
    assert last == [("v:x", "0")]


def test_a_value_that_is_none_is_a_value():
    def f(row, state):
        found = state.exists("x"), state.get("x", "default")
        state.set("x", None)
        return found

    assert applied(f, [1, 2], [3])[0] == [(False, "default"), (True, None), (True, None)]


def test_what_get_returns_is_the_callers_own():
    def f(row, state):
        if row == "set":
            value: dict[str, list[Any]] = {"list": [1]}
            state.set("x", value)
            value["list"].append("changed after set")
        else:
            state.get("x")["list"].append("changed after get")
            state.map("m").get("a", []).append("lost")
            state.list("l").extend([[1]] if len(state.list("l")) == 0 else [])
            state.list("l")[0].append("lost")
        return state.get("x")

    outputs, state, _ = applied(f, ["set", "get"], ["get", "get"])
    assert outputs == [{"list": [1]}] * 4
    assert state == {"x": {"list": [1]}, "l": [[1]]}


def test_the_handle_knows_its_key_and_its_time():
    seen = Calls()

    def f(row, state):
        seen.append((state.key, state.time, state.watermark))

    applied(f, [1], key=("a", 1))
    assert seen[0] == (("a", 1), None, None)


def test_clear_drops_values_lists_and_maps_and_they_begin_anew():
    def f(row, state):
        if row == "clear":
            state.clear()
        else:
            state.set("v", row)
            state.list("l").append(row)
            state.map("m")[row] = row
        return len(state.list("l")), len(state.map("m")), state.exists("v")

    outputs, state, last = applied(f, [1, 2], [3, "clear", 4])
    assert outputs == [(1, 1, True), (2, 2, True), (3, 3, True), (0, 0, False), (1, 1, True)]
    assert state == {"v": 4, "l": [4], "m": {4: 4}}
    assert [cell for cell, value in last if value is None] == [
        "l:l:0000000000000001",
        "l:l:0000000000000002",
        "m:m:1",
        "m:m:2",
        "m:m:3",
    ]
    outputs, state, last = applied(f, [1, 2], ["clear"])
    assert state is None
    assert {value for _, value in last} == {None}


def test_a_list_does_what_lists_do():
    def f(row, state):
        items = state.list("items")
        items.append(row)
        items.extend(x for x in ("a", "b"))
        items[0] = "first"
        items[-1] = "last"
        found = [len(items), items[0], items[-1], items[1], list(items), items.popleft(), repr(items)]
        for bad in (5, -6):
            with pytest.raises(IndexError):
                items[bad]
        with pytest.raises(IndexError):
            items[9] = 1
        return found

    outputs, state, _ = applied(f, [1])
    assert outputs == [[3, "first", "last", "a", ["first", "a", "last"], "first", "StateList(['a', 'last'])"]]
    assert state == {"items": ["a", "last"]}


def test_popleft_of_an_empty_list_is_an_index_error():
    with pytest.raises(mp.errors.StepFailed, match="IndexError: popleft from an empty list"):
        applied(lambda row, state: state.list("x").popleft(), [1])


def test_a_list_writes_only_the_elements_that_changed():
    def f(row, state):
        items = state.list("items")
        if row == "fill":
            items.extend(range(1000))
        elif row == "set":
            items[500] = "changed"
        elif row == "pop":
            items.popleft()
        else:
            items.append(row)

    bounds = "l:items"
    assert applied(f, ["fill"], ["new"])[2] == [(bounds, "[0,1001]"), ("l:items:0000000000001000", '"new"')]
    assert applied(f, ["fill"], ["set"])[2] == [("l:items:0000000000000500", '"changed"')]
    assert applied(f, ["fill"], ["pop"])[2] == [(bounds, "[1,1000]"), ("l:items:0000000000000000", None)]
    _, state, last = applied(f, ["fill"], ["pop", "x", "set"])
    assert len(last) == 4
    assert state["items"][-1] == "x"
    assert state["items"][500] == "changed"
    assert len(state["items"]) == 1000


def test_a_map_does_what_mappings_do():
    def f(row, state):
        found = state.map("m")
        found.update({"a": 1, 2: "two", (3, "x"): [3]})
        found["a"] = found.get("a", 0) + 10
        found.setdefault("new", []).append("lost, as with get")
        with pytest.raises(KeyError):
            found["missing"]
        with pytest.raises(KeyError):
            del found["missing"]
        del found[2]
        popped = found.pop("new")
        return [len(found), sorted(map(str, found)), dict(found), popped, "a" in found, 2 in found, repr(found)]

    outputs, state, _ = applied(f, [1])
    assert outputs == [
        [2, ["(3, 'x')", "a"], {"a": 11, (3, "x"): [3]}, [], True, False, "StateMap({'a': 11, (3, 'x'): [3]})"]
    ]
    assert state == {"m": {"a": 11, (3, "x"): [3]}}


def test_a_map_writes_only_the_keys_that_changed():
    def f(row, state):
        pages = state.map("pages")
        if row == "fill":
            pages.update((n, n) for n in range(1000))
        elif row == "drop":
            del pages[7]
        else:
            pages[row] = pages.get(row, 0) + 1

    assert applied(f, ["fill"], [500])[2] == [("m:pages:500", "501")]
    assert applied(f, ["fill"], ["drop"])[2] == [("m:pages:7", None)]
    _, state, last = applied(f, ["fill"], ["drop", 1, "new"])
    assert last == [('m:pages:"new"', "1"), ("m:pages:1", "2"), ("m:pages:7", None)]
    assert len(state["pages"]) == 1000


def test_a_map_sees_what_was_written_before_and_in_this_batch_alike():
    def f(row, state):
        found = state.map("m")
        if row in found:
            del found[row]
        else:
            found[row] = row
        return sorted(found)

    outputs, _, _ = applied(f, [1, 2, 3], [2, 4, 1], [1])
    assert outputs == [[1], [1, 2], [1, 2, 3], [1, 3], [1, 3, 4], [3, 4], [1, 3, 4]]


def test_names_with_colons_slashes_and_letters_of_all_kinds_stay_apart():
    names = ["a", "a:b", "a/b", "a%3Ab", "é", " ", "l:a", "0000000000000001"]

    def f(row, state):
        for i, name in enumerate(names):
            state.set(name, i)
            state.list(name + "-list").append(i)
            state.map(name + "-map")[name] = i

    _, state, _ = applied(f, [1])
    assert state == {
        **{name: i for i, name in enumerate(names)},
        **{f"{name}-list": [i] for i, name in enumerate(names)},
        **{f"{name}-map": {name: i} for i, name in enumerate(names)},
    }


def test_one_name_is_one_kind_of_state():
    def f(row, state):
        state.set("x", 1)
        state.list("x").append(1)

    with pytest.raises(
        mp.errors.StepFailed, match="state 'x' is a value and was used as a list: give each its own name"
    ):
        applied(f, [1])
