"""README and docs are true: their blocks run, their links lead somewhere, and nothing public is left out of them.

Blocks that need Spark run in tests/spark/test_docs_on_spark.py, pages that need Kafka in
tests/kafka/test_kafka_docs_spark.py.
"""

from __future__ import annotations

import inspect
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from doc_pages import DOCS, README, ROOT, Block, Failed, blocks, pages, run_page

import millpond as mp
from millpond.cli import commands
from millpond.kafka.clients import RESERVED_OPTIONS
from millpond.kafka.reader import CONSUMER_DEFAULTS
from millpond.kafka.transactions import PRODUCER_DEFAULTS
from millpond.log.heartbeat import Beat
from millpond.log.manifest import Manifest
from millpond.log.record import FORMAT, Record
from millpond.maintenance.savepoint import Savepoint
from millpond.sinks.base import Registration

REFERENCE = sorted((DOCS / "reference").glob("*.md"))
COMMAND: Any = typer.main.get_command(commands)
UsageError: Any = typer.BadParameter.__base__  # of the click that typer brings along


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


# --- every block runs ---


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_the_blocks_of_a_page_run_and_print_what_it_says(page: Path, tmp_path: Path) -> None:
    run_page([block for block in blocks(page) if not block.spark and not block.kafka], tmp_path, "a_page")


def test_there_are_blocks_to_run() -> None:
    found = [block for page in pages() for block in blocks(page)]
    assert sum(block.language == "python" and not block.spark for block in found) > 20
    assert sum(block.output is not None for block in found) > 20


LIE = "```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LIE, "a.md:2: the page says\n3\n\nand it printed\n2"),
        ("```python\nx = 1\n```\n\n```python\nx.y\n```\n", "a.md:6: Traceback"),
        ("```python\n# a.py\nimport nothing_there\n```\n", "No module named 'nothing_there'"),
        ("```console\n$ echo 1; exit 3\n```\n\n```text\n1\n```\n", "ended with code 3"),
    ],
)
def test_a_page_that_is_not_true_is_found(text: str, message: str, tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text(text)
    with pytest.raises(Failed, match=re.escape(message)):
        run_page(blocks(page), tmp_path, "a_page")


def test_a_page_whose_blocks_build_on_each_other_runs(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text(
        "```python\n# a.py\nX = 2\n```\n```python\nfrom a import X\n```\n```python\nprint(X)\n```\n"
        "```text\n2\n```\n```console\n$ cat a.py | \\\n  wc -l\n```\n```text\n2\n```\n"
    )
    run_page(blocks(page), tmp_path, "a_page")
    assert "a" not in sys.modules


def test_a_block_marked_for_spark_is_known(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text("<!-- spark -->\n```python\n1\n```\n\n```python\n2\n```\n")
    assert [block.spark for block in blocks(page)] == [True, False]


def test_all_blocks_of_a_page_for_kafka_are_known(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text("# A\n<!-- kafka -->\n\n```python\n1\n```\n\n```python\n2\n```\n")
    assert [block.kafka for block in blocks(page)] == [True, True]


# --- commands are there ---


def wrong_with(command: str) -> str | None:
    """What a shell line says of `millpond` or `make` that is not so."""
    for part in re.split(r"&&|[|;&]", command):
        words = shlex.split(part, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words.pop(0)
        if words[:1] == ["millpond"]:
            try:
                _check_millpond(words[1:])
            except UsageError as error:
                return f"{part.strip()}: {error.format_message()}"
        elif words[:1] == ["make"]:
            makefile = (ROOT / "Makefile").read_text()
            for target in [word for word in words[1:] if "=" not in word]:
                if not re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE):
                    return f"{part.strip()}: the Makefile has no {target}"
    return None


def _check_millpond(words: list[str]) -> None:
    command = COMMAND
    while hasattr(command, "commands") and words:
        name = words.pop(0)
        command = command.commands.get(name)
        if command is None:
            raise UsageError(f"there is no command {name}")
    command.make_context("millpond", words)


CONSOLE = [block for page in pages() for block in blocks(page) if block.language == "console"]


@pytest.mark.parametrize("block", CONSOLE, ids=lambda block: block.where)
def test_the_commands_of_a_page_exist_with_their_options(block: Block) -> None:
    assert block.commands, "a console block without a line that begins with '$ '"
    assert [wrong for command in block.commands if (wrong := wrong_with(command))] == []


@pytest.mark.parametrize(
    "command",
    ["millpond stat", "millpond state get total", "MILLPOND_TRACE=1 millpond run a.py --till x | wc", "make coffee"],
)
def test_a_command_that_is_not_there_is_found(command: str) -> None:
    assert wrong_with(command) is not None


# --- nothing public is left out of the reference ---


def reference() -> str:
    return "\n".join(page.read_text() for page in REFERENCE)


def in_code(name: str, text: str) -> bool:
    """Whether a page speaks of a name in code: in backticks or in a block."""
    return re.search(rf"`[^`\n]*(?<![\w]){re.escape(name)}(?!\w)[^`\n]*`", text) is not None


def public_names() -> Iterator[str]:
    modules = {"errors", "sinks", "sources", "testing"}
    yield from (f"mp.{name}" for name in mp.__all__ if name not in modules)
    for module in (mp.formats, mp.sinks, mp.sources, mp.testing):
        yield from (f"mp.{module.__name__.rpartition('.')[2]}.{name}" for name in module.__all__)
    for name, thing in vars(mp.errors).items():
        if inspect.isclass(thing) and issubclass(thing, mp.errors.MillpondError):
            yield name


def public_members() -> Iterator[str]:
    owners: list[type] = [mp.App, mp.Stream, mp.KeyedStream, mp.State, mp.StateList, mp.StateMap, mp.StateTable]
    owners += [mp.JoinedStream, mp.WindowedStream, mp.Timers, mp.Timer]
    owners += [mp.Follower, mp.Commit, mp.CommitState]
    for owner in [*owners, mp.StateView, mp.Moment, mp.lowlevel.Delivery, mp.testing.TestDriver]:
        for name in {*vars(owner), *getattr(owner, "__annotations__", {}), *getattr(owner, "__slots__", ())}:
            if not name.startswith("_"):
                yield f"{owner.__name__}.{name}"
    yield from (f"triggers.{name}" for name in mp.triggers.__all__)


@pytest.mark.parametrize("name", sorted(set(public_names())))
def test_every_public_name_is_in_the_reference(name: str) -> None:
    assert in_code(name, reference()), f"{name} is nowhere in docs/reference"


@pytest.mark.parametrize("name", sorted(set(public_members())))
def test_every_member_of_a_public_class_is_in_the_reference(name: str) -> None:
    assert in_code(name.partition(".")[2], reference()), f"{name} is nowhere in docs/reference"


def arguments() -> Iterator[tuple[str, str]]:
    found: dict[str, Any] = {"App": mp.App, "stream": mp.App.stream, "run": mp.App.run, "retry": mp.retry}
    found |= {f"sources.{name}": getattr(mp.sources, name) for name in mp.sources.__all__}
    found |= {f"formats.{name}": getattr(mp.formats, name) for name in mp.formats.__all__}
    found |= {f"sinks.{name}": getattr(mp.sinks, name) for name in mp.sinks.__all__}
    found |= {f"triggers.{name}": getattr(mp.triggers, name) for name in mp.triggers.__all__ if name.islower()}
    found |= {name: getattr(mp, name) for name in mp.__all__ if inspect.isfunction(getattr(mp, name))}
    found |= {"table": mp.App.table, "set": mp.Timers.set, "set_wall": mp.Timers.set_wall}
    for name, function in inspect.getmembers(mp.KeyedStream, inspect.isfunction):
        if not name.startswith("_") and "on_error" in inspect.signature(function).parameters:
            found[name] = function
    for name, function in found.items():
        for argument in inspect.signature(function).parameters:
            if argument not in ("self", "f"):
                yield name, argument


@pytest.mark.parametrize(("owner", "argument"), sorted(arguments()))
def test_every_argument_is_in_the_reference(owner: str, argument: str) -> None:
    assert in_code(argument, reference()), f"{owner}({argument}=) is nowhere in docs/reference"


def cli() -> Iterator[tuple[str, list[str]]]:
    def walk(path: str, command: Any) -> Iterator[tuple[str, list[str]]]:
        if hasattr(command, "commands"):
            for name, inner in command.commands.items():
                yield from walk(f"{path} {name}", inner)
        else:
            yield path, [o for p in command.params for o in p.opts if o.startswith("--") and o != "--help"]

    yield from walk("millpond", COMMAND)


@pytest.mark.parametrize(("command", "options"), list(cli()), ids=[command for command, _ in cli()])
def test_every_command_and_option_is_in_the_reference(command: str, options: list[str]) -> None:
    page = (DOCS / "reference" / "cli.md").read_text()
    assert in_code(command, page) or re.search(rf"^## {re.escape(command)}$", page, re.MULTILINE)
    assert [option for option in options if not in_code(option, page)] == []


def test_the_reference_knows_no_option_that_is_not_there() -> None:
    page = (DOCS / "reference" / "cli.md").read_text()
    there = {option for _, options in cli() for option in options} | {"--help"}
    assert set(re.findall(r"--[a-z-]+", re.sub(r"^\|[-|]+\|$", "", page, flags=re.MULTILINE))) - there == set()


def test_the_errors_page_tells_of_every_kind_and_of_no_other() -> None:
    page = (DOCS / "reference" / "errors.md").read_text()
    kinds = {
        name
        for name, thing in vars(mp.errors).items()
        if inspect.isclass(thing)
        and issubclass(thing, mp.errors.MillpondError)
        and thing is not mp.errors.MillpondError
    }
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == kinds


def test_every_environment_variable_is_in_the_reference_and_read_somewhere() -> None:
    def used(*places: Path) -> set[str]:
        files = [f for place in places for f in ([place] if place.is_file() else place.rglob("*.py"))]
        return {name for file in files for name in re.findall(r"\bMILLPOND_[A-Z_]+[A-Z]\b", file.read_text())}

    page = (DOCS / "reference" / "settings.md").read_text()
    documented = set(re.findall(r"\bMILLPOND_[A-Z_]+[A-Z]\b", page))
    assert used(ROOT / "src") - documented == set(), "read in src, and not in docs/reference/settings.md"
    assert documented - used(ROOT / "src", ROOT / "tests", ROOT / "Makefile") == set(), "documented, and read nowhere"


def test_the_settings_page_tells_the_session_that_is_made() -> None:
    source = (ROOT / "src/millpond/runtimes/spark/session.py").read_text()
    page = (DOCS / "reference" / "settings.md").read_text()
    for name, value in re.findall(r'^    "(spark\.[\w.]+)": "(.*)",(?:  #.*)?$', source, re.MULTILINE):
        documented = [line for line in page.splitlines() if line.startswith("|") and f"`{name}`" in line]
        assert len(documented) == 1 and f"`{value}`" in documented[0], f"{name} is {value}, not {documented}"


def test_the_storage_page_has_every_field_of_the_small_files() -> None:
    page = (DOCS / "explanation" / "storage.md").read_text()
    fields = {
        name
        for struct in (Record, Manifest, Savepoint, Beat, Registration)
        for name in inspect.signature(struct).parameters
    }
    assert [name for name in sorted(fields) if not in_code(name, page)] == []
    assert f"format {FORMAT}." in page


def test_the_kafka_page_has_every_setting_that_has_another_default_or_is_refused() -> None:
    page = (DOCS / "reference" / "kafka.md").read_text().split("## Options")[1]
    settings = [*RESERVED_OPTIONS, *CONSUMER_DEFAULTS, *PRODUCER_DEFAULTS]
    assert [name for name in settings if f"`{name}`" not in page] == []


# --- pages hang together ---


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def broken_links(page: Path) -> Iterator[str]:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        if not found.exists() or (anchor and anchor not in anchors(found)):
            yield target
        elif DOCS in page.parents and DOCS not in found.parents:
            yield f"{target} leads out of the docs, where the site cannot follow"


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert list(broken_links(page)) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text("# One head\n[a](b.md) [b](#one-head) [c](#two) [d](a.md#one-head)\n")
    assert list(broken_links(page)) == ["b.md", "#two"]


def test_the_site_has_every_page() -> None:
    nav = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(nav) == sorted(str(page.relative_to(DOCS)) for page in pages() if page != README)


DIALECT = re.compile(r"\b(anew|nobody|whoever|befalls?|mends?|mended|upto|is told|are told|for ever)\b", re.IGNORECASE)


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_a_page_is_written_in_plain_words(page: Path) -> None:
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    assert DIALECT.findall(prose) == []


def test_every_page_can_be_reached_from_the_readme_and_from_the_index() -> None:
    def linked(page: Path) -> set[Path]:
        found = re.findall(r"\]\(([^)\s#]+)", page.read_text())
        return {(page.parent / target).resolve() for target in found if "://" not in target}

    index, decisions = DOCS / "index.md", DOCS / "decisions" / "index.md"
    assert index in linked(README)
    assert {page for page in pages() if page != README} - linked(index) - linked(decisions) == {index}


def test_every_decision_is_listed_and_has_its_four_parts() -> None:
    index = (DOCS / "decisions" / "index.md").read_text()
    records = sorted((DOCS / "decisions").glob("[0-9]*.md"))
    assert [int(record.name[:4]) for record in records] == list(range(1, len(records) + 1))
    for record in records:
        heads = re.findall(r"^## (.+)$", record.read_text(), re.MULTILINE)
        assert [head for head in heads if head in {"Context", "Options", "Choice", "Consequences"}] == [
            "Context",
            "Options",
            "Choice",
            "Consequences",
        ], record.name
        assert f"({record.name})" in index


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) < 150


def test_the_readme_has_a_place_for_the_bench() -> None:
    assert re.search(r"<!-- bench -->.*<!-- /bench -->", README.read_text(), re.DOTALL)


# --- examples ---


def test_the_examples_pass_the_strict_type_checker() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "examples"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_an_example_says_how_to_try_it(example: Path) -> None:
    doc = inspect.cleandoc(re.findall(r'\A"""(.*?)"""', example.read_text(), re.DOTALL)[0])
    assert f"python examples/{example.name}" in doc
