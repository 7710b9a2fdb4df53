"""`millpond state get|list|history`: the state of a step, from the shell."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import millpond as mp
from cli.samples import order

Millpond = Callable[..., Result]
Running = Callable[..., mp.testing.TestDriver]


def lines(result: Result) -> list[Any]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_get_shows_the_value_of_a_key_as_a_table(millpond: Millpond, running: Running) -> None:
    running().send("orders", [order("ann", 3), order("bob", 5), order("ann", 4)])
    result = millpond("state", "get", "total", "ann")
    assert result.exit_code == 0
    [row] = [line for line in result.stdout.splitlines() if "'ann'" in line]
    assert row.replace("│", " ").split() == ["'ann'", "7"]
    assert "bob" not in result.stdout


def test_get_prints_a_line_of_json_for_programs(millpond: Millpond, running: Running) -> None:
    running().send("orders", [order("ann", 3)])
    assert lines(millpond("state", "get", "total", "ann", "--format", "json")) == [{"key": "ann", "value": 3}]


@pytest.mark.parametrize(
    ("key", "text"),
    [(1, "1"), ("1", '"1"'), (True, "true"), ((1, "a"), '{"$tuple":[1,"a"]}')],
)
def test_a_key_of_any_type_is_given_as_the_json_that_list_prints(
    key: Any, text: str, millpond: Millpond, running: Running
) -> None:
    kinds = [1, "1", True, (1, "a")]
    running().send("orders", [order(kind, place + 1) for place, kind in enumerate(kinds)])
    printed = millpond("state", "list", "total", "--format", "json").stdout.splitlines()
    value = [type(kind) for kind in kinds].index(type(key)) + 1
    assert f'{{"key":{text},"value":{value}}}' in printed
    got = millpond("state", "get", "total", text, "--json", "--format", "json")
    assert got.stdout.splitlines() == [f'{{"key":{text},"value":{value}}}']


def test_a_plain_key_is_text_whatever_it_looks_like(millpond: Millpond, running: Running) -> None:
    running().send("orders", [order(1, 10), order("1", 20), order("true", 30)])
    assert lines(millpond("state", "get", "total", "1", "--format", "json"))[0]["value"] == 20
    assert lines(millpond("state", "get", "total", "true", "--format", "json"))[0]["value"] == 30


def test_json_keeps_what_json_lacks_under_tags(millpond: Millpond, running: Running) -> None:
    app = mp.App("prices")
    prices = app.stream("prices", mp.sources.rows([])).key_by("sku")
    prices.stateful_map("price", lambda key, row, state: (None, (Decimal("1.10"), row["n"])), initial=None)
    with mp.testing.TestDriver(app, storage="state") as driver:
        driver.send("prices", [{"sku": "a", "n": 1}])
    assert lines(millpond("state", "get", "price", "a", "--format", "json")) == [
        {"key": "a", "value": {"$tuple": [{"$decimal": "1.10"}, 1]}}
    ]
    assert "(Decimal('1.10'), 1)" in millpond("state", "get", "price", "a").stdout


def test_what_looks_like_markup_is_shown_as_it_is(millpond: Millpond, running: Running) -> None:
    running().send("orders", [order("[red]ann[/red]", 3)])
    assert "'[red]ann[/red]'" in millpond("state", "list", "total").stdout


def test_get_at_a_batch_shows_what_was_then(millpond: Millpond, running: Running) -> None:
    driver = running()
    driver.send("orders", [order("ann", 3)])
    driver.send("orders", [order("ann", 4), order("bob", 1)])
    first, second = [moment.batch for moment in driver.state("total").history("ann")]
    for batch, value in [(first, 3), (second, 7)]:
        got = millpond("state", "get", "total", "ann", "--at", str(batch), "--format", "json")
        assert lines(got) == [{"key": "ann", "value": value}]
    listed = millpond("state", "list", "total", "--at", str(first), "--format", "json")
    assert lines(listed) == [{"key": "ann", "value": 3}]


def test_a_batch_that_is_not_there_is_an_error(millpond: Millpond, running: Running) -> None:
    running().send("orders", [order("ann", 3)])
    result = millpond("state", "get", "total", "ann", "--at", "77")
    assert (result.exit_code, result.stderr) == (1, "error: app 'orders': there is no batch 77\n")


def test_list_shows_every_key(millpond: Millpond, running: Running) -> None:
    running().send("orders", [order(name, amount) for amount, name in enumerate("abcde")])
    found = lines(millpond("state", "list", "total", "--format", "json"))
    assert sorted((each["key"], each["value"]) for each in found) == list(zip("abcde", range(5), strict=True))
    table = millpond("state", "list", "total").stdout
    assert all(f"'{name}'" in table for name in "abcde")


def test_list_is_limited_on_request(millpond: Millpond, running: Running) -> None:
    running().send("orders", [order(name, 1) for name in "abcde"])
    assert len(lines(millpond("state", "list", "total", "--limit", "2", "--format", "json"))) == 2
    result = millpond("state", "list", "total", "--limit", "2")
    assert sum(f"'{name}'" in result.stdout for name in "abcde") == 2
    assert "There are more than 2 keys: --limit N shows more, --format json all of them." in result.stderr


def test_a_table_says_that_there_is_more_and_json_has_all(millpond: Millpond, running: Running) -> None:
    running().send("orders", [order(str(number), 1) for number in range(101)])
    assert "There are more than 100 keys" in millpond("state", "list", "total").stderr
    assert len(lines(millpond("state", "list", "total", "--format", "json"))) == 101
    assert millpond("state", "list", "total", "--limit", "101").stderr == ""


def test_history_shows_every_value_oldest_first_and_deletions(millpond: Millpond, running: Running) -> None:
    driver = running()
    driver.send("orders", [order("ann", 3)])
    driver.advance("90s")
    driver.send("orders", [order("ann", 4), order("bob", 9)])
    driver.send("orders", [order("ann", 1, last=True)])
    found = lines(millpond("state", "history", "total", "ann", "--format", "json"))
    assert [(moment["value"], moment["deleted"]) for moment in found] == [(3, False), (7, False), (None, True)]
    assert [moment["batch"] for moment in found] == sorted({moment["batch"] for moment in found})
    assert [moment["time"] for moment in found[:2]] == ["2023-11-14T22:13:20Z", "2023-11-14T22:14:50Z"]
    table = millpond("state", "history", "total", "ann").stdout
    assert "(deleted)" in table
    assert "2023-11-14 22:14:50" in table


def test_a_key_that_is_not_there_is_an_error_that_mentions_json(millpond: Millpond, running: Running) -> None:
    running().send("orders", [order(1, 3)])
    text = "error: step 'total' has no state for key '1'. Give a key that is not text with --json, as in --json 1\n"
    for verb in ("get", "history"):
        result = millpond("state", verb, "total", "1")
        assert (result.exit_code, result.stdout, result.stderr) == (1, "", text)
    result = millpond("state", "get", "total", "2", "--json")
    assert (result.exit_code, result.stderr) == (1, "error: step 'total' has no state for key 2\n")


def test_a_key_that_is_no_json_is_an_error(millpond: Millpond, running: Running) -> None:
    running().send("orders", [order("ann", 3)])
    result = millpond("state", "get", "total", "ann", "--json")
    assert result.exit_code == 1
    assert result.stderr == (
        'error: KEY: with --json expected a key as in the log, such as 1, "a" or {"$tuple":[1,"a"]}, got ann\n'
    )


def test_a_step_that_is_not_there_is_an_error_that_names_those_that_are(millpond: Millpond, running: Running) -> None:
    running().send("orders", [order("ann", 3)])
    for verb in (["get", "sum", "ann"], ["list", "sum"], ["history", "sum", "ann"]):
        result = millpond("state", *verb)
        assert (result.exit_code, result.stderr) == (1, "error: app 'orders' has no step 'sum'; it has: total\n")


def test_a_limit_below_zero_is_wrong_usage(millpond: Millpond, running: Running) -> None:
    running().send("orders", [order("ann", 3)])
    assert millpond("state", "list", "total", "--limit", "-1").exit_code == 2


PROGRAM = """
import millpond as mp

app = mp.App("orders", state_dir="state", partitions=2)
orders = app.stream("orders", mp.sources.rows([])).key_by("customer")
migrate = mp.lazily({1: lambda total: {"sum": total}})
orders.stateful_map("total", lambda key, row, state: (None, state), initial=None, version=2, migrate=migrate)
"""


def test_with_the_program_values_are_shown_as_it_reads_them(millpond: Millpond, running: Running) -> None:
    running().send("orders", [order("ann", 3), order("bob", 5)])
    Path("newer.py").write_text(PROGRAM)
    given = ("--program", "newer.py", "--format", "json")
    assert lines(millpond("state", "get", "total", "ann", *given)) == [{"key": "ann", "value": {"sum": 3}}]
    assert len(lines(millpond("state", "list", "total", *given))) == 2
    assert lines(millpond("state", "get", "total", "ann", "--format", "json")) == [{"key": "ann", "value": 3}]
