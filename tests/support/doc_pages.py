"""README and docs as programs: their fenced blocks, and what it takes to run them as a reader would.

- A ```python block runs in the page's own module, in order. One that begins with `# name.py` is a file of that
  name: it is written to the working folder, and run as an import of it would.
- A ```text block is what the block before it prints; `…` in it stands for anything.
- A ```console block holds commands behind `$ `. It is run by bash if a ```text block follows; if not, its
  commands are only compared with what `millpond` and the Makefile offer.
- `<!-- spark -->` above a block says that it needs Spark, or what a block that needs Spark has made.
- `<!-- kafka -->` on a page says that all of its blocks need a Kafka broker at localhost:9092, and perhaps Spark and a
  schema registry at http://localhost:8081. Tests replace these two addresses, in the text of the blocks.
- Other blocks are pictures, and are left alone.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
SPARK = "<!-- spark -->"
KAFKA = "<!-- kafka -->"
KAFKA_ADDRESS = "localhost:9092"
REGISTRY_ADDRESS = "http://localhost:8081"
LONGEST = 300.0  # seconds that one block of commands may take

_FENCE = re.compile(r"^```(\w*)\s*$")
_FILE = re.compile(r"\A# ([\w/]+\.py)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One fenced block of a page, and what it prints if the page says so."""

    page: Path
    line: int
    language: str
    text: str
    spark: bool = False
    output: str | None = None
    kafka: bool = False

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT) if self.page.is_relative_to(ROOT) else self.page}:{self.line}"

    @property
    def file(self) -> str | None:
        """The name of the file that the block is, if it is one."""
        found = _FILE.match(self.text)
        return found[1] if found and self.language == "python" else None

    @property
    def commands(self) -> list[str]:
        """What stands behind `$ `, with lines that end in a backslash joined to the next."""
        joined = self.text.replace("\\\n", " ")
        return [line[2:] for line in joined.splitlines() if line.startswith("$ ")]


def pages() -> list[Path]:
    """README and every page of the docs."""
    return [README, *sorted(DOCS.rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """The python and console blocks of a page, each with its output."""
    found: list[Block] = []
    lines = page.read_text().splitlines()
    before, i, needs_kafka = "", 0, KAFKA in lines
    while i < len(lines):
        fence = _FENCE.match(lines[i])
        if fence is None:
            before, i = lines[i].strip() or before, i + 1
            continue
        end = next((j for j in range(i + 1, len(lines)) if lines[j].rstrip() == "```"), None)
        if end is None:
            raise ValueError(f"{page}:{i + 1}: a block that never ends")
        block = Block(page, i + 2, fence[1], "\n".join(lines[i + 1 : end]), before == SPARK, kafka=needs_kafka)
        if block.language == "text":
            if not found or found[-1].output is not None:
                raise ValueError(f"{page}:{i + 1}: an output without a block that prints it")
            found[-1] = replace(found[-1], output=block.text)
        elif block.language in ("python", "console"):
            found.append(block)
        before, i = "", end + 1
    return found


def matches(expected: str, printed: str) -> bool:
    """Whether a block printed what its page says.

    >>> matches("3 passed in …", "3 passed in 0.1s\\n"), matches("3 passed", "2 passed")
    (True, False)
    """
    pattern = re.escape(_tidy(expected)).replace(re.escape("…"), ".*?")
    return re.fullmatch(pattern, _tidy(printed), re.DOTALL) is not None


def _tidy(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


class Failed(Exception):
    """A block raised, or printed something else than its page says."""


@contextlib.contextmanager
def working_in(folder: Path, name: str) -> Iterator[ModuleType]:
    """A module for a page's blocks, with `folder` as the place where they read, write and import."""
    module = ModuleType(name)
    before, path, cwd, loaded = sys.modules.get(name), list(sys.path), os.getcwd(), set(sys.modules)
    home = os.environ.get("MILLPOND_LOCAL_DIR")
    os.environ["MILLPOND_LOCAL_DIR"] = str(folder / ".replicas")
    sys.modules[name] = module
    sys.path.insert(0, str(folder))
    os.chdir(folder)
    try:
        yield module
    finally:
        os.chdir(cwd)
        os.environ.pop("MILLPOND_LOCAL_DIR")
        if home is not None:
            os.environ["MILLPOND_LOCAL_DIR"] = home
        sys.path[:] = path
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
        for other in set(sys.modules) - loaded:
            if Path(getattr(sys.modules[other], "__file__", None) or "/").is_relative_to(folder):
                del sys.modules[other]


def run_page(found: list[Block], folder: Path, name: str) -> None:
    """Run blocks in order in a folder, their module called `name`; raises `Failed` at the first that is not true."""
    with working_in(folder, name) as module:
        for block in found:
            if block.language == "python":
                printed = _run_python(block, module)
            elif block.output is not None:
                printed = _run_commands(block)
            else:
                continue
            if block.output is not None and not matches(block.output, printed):
                raise Failed(f"{block.where}: the page says\n{block.output}\n\nand it printed\n{printed}")


def _run_python(block: Block, module: ModuleType) -> str:
    namespace = vars(module)
    if block.file is not None:
        path = Path(block.file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text + "\n")
        namespace = {"__name__": path.stem, "__file__": block.file}
    printed = io.StringIO()
    try:
        code = compile("\n" * (block.line - 1) + block.text, str(block.page), "exec", dont_inherit=True)
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
    except Exception:
        raise Failed(f"{block.where}: {traceback.format_exc()}") from None
    return printed.getvalue()


def _run_commands(block: Block) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", "\n".join(block.commands)],
        capture_output=True,
        text=True,
        timeout=LONGEST,
        env={**os.environ, "PATH": path, "COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"},
    )
    if done.returncode != 0:
        raise Failed(f"{block.where}: ended with code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def with_addresses(found: list[Block], addresses: Mapping[str, str]) -> list[Block]:
    """The same blocks with the addresses of this machine in place of those that the page names.

    >>> block = Block(Path("a.md"), 1, "python", 'SERVERS = "localhost:9092"')
    >>> with_addresses([block], {"localhost:9092": "127.0.0.1:5555"})[0].text
    'SERVERS = "127.0.0.1:5555"'
    """

    def replaced(text: str) -> str:
        for name, address in addresses.items():
            text = text.replace(name, address)
        return text

    return [
        replace(block, text=replaced(block.text), output=None if block.output is None else replaced(block.output))
        for block in found
    ]


def main() -> None:
    """`python doc_pages.py PAGE [ADDRESS=OTHER …]`: run a whole page in this process and folder, as `__main__`."""
    # What a program defines in __main__ travels to Spark's workers by value, as it does for a script.
    addresses = dict(argument.split("=", 1) for argument in sys.argv[2:])
    try:
        run_page(with_addresses(blocks(Path(sys.argv[1])), addresses), Path.cwd(), "__main__")
    except Failed as error:
        sys.exit(f"FAILED {error}")


if __name__ == "__main__":
    main()
