"""What a user installs: the wheel and the sdist, in an environment that has nothing else.

These tests install from a package index, with the versions in requirements/dev.txt; pip's cache makes the second
run fast.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROJECT: Any = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]

# The module of the package that uses the libraries of an extra.
USERS = {
    "kafka": "millpond.sources.kafka",
    "polars": "millpond.rows.frame_kinds",
    "rocksdb": "millpond.replica.rocksdb_store",
}

pytestmark = pytest.mark.slow

# A program and its test, as in a user's own project.
PROGRAM = """
import millpond as mp

app = mp.App("orders")
orders = app.stream("orders", mp.sources.rows([]))


def add_up(customer, order, total):
    total += order["amount"]
    return {"customer": customer, "total": total}, total


orders.key_by("customer").stateful_map("total", add_up, initial=0).to("totals", mp.sinks.memory())

with mp.testing.TestDriver(app) as driver:
    driver.send("orders", [{"customer": "ann", "amount": 3}])
    driver.crash(at="commit", when="after")
    try:
        driver.send("orders", [{"customer": "ann", "amount": 4}])
    except mp.testing.Crashed:
        driver.restart()
    print(driver.output("totals")[-1], mp.__file__)
"""


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command outside the repository, without its sources on the path; return what it printed."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    env |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONNOUSERSITE": "1", "NO_COLOR": "1", "TERM": "dumb"}
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist of this working copy."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    return next(dist.glob("millpond-*.whl"))


@pytest.fixture(scope="module")
def unpacked_sdist(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(next(dist.glob("millpond-*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    return next(folder.iterdir())


@pytest.fixture(scope="module")
def user_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment into which the wheel was installed with every extra.

    What is installed is what the wheel's own metadata asks for; only the versions come from the lock.
    """
    folder = tmp_path_factory.mktemp("user")
    locked = re.findall(r"^([a-z0-9].*?) \\$", (ROOT / "requirements" / "dev.txt").read_text(), re.MULTILINE)
    (folder / "constraints.txt").write_text("\n".join(locked) + "\n")
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    asked = f"millpond[{','.join(EXTRAS)}] @ {wheel.as_uri()}"
    run(python, "-m", "pip", "install", "-q", "--no-compile", "-c", "constraints.txt", asked, cwd=folder)
    return python


def test_the_wheel_holds_the_package_with_its_type_marker_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    package = ROOT / "src"
    expected = {str(file.relative_to(package)) for file in package.rglob("*") if file.suffix in (".py", ".typed")}
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert "millpond/py.typed" in expected


def test_every_extra_installs_something() -> None:
    assert EXTRAS
    assert [name for name, libraries in EXTRAS.items() if not libraries] == []


def test_every_extra_is_used_by_the_package() -> None:
    source = "\n".join(file.read_text() for file in (ROOT / "src").rglob("*.py"))
    libraries = [re.split(r"[^\w-]", library)[0].replace("-", "_") for each in EXTRAS.values() for library in each]
    # "confluent_kafka.schema_registry" and "google.protobuf" are names of modules in quotes, too
    unused = [each for each in libraries if not re.search(rf"\bimport {each}\b|[\"'.]{each}[\"'.]", source)]
    assert not unused, f"an extra in pyproject.toml installs {', '.join(unused)}, which nothing in src uses"


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_code_that_uses_an_extra_is_in_the_wheel(extra: str, user_python: Path, tmp_path: Path) -> None:
    assert extra in USERS, f"add the module that uses the extra {extra} to USERS"
    module = USERS[extra]
    path = ROOT / "src" / module.replace(".", "/")
    assert path.is_dir() or path.with_suffix(".py").exists(), (
        f"the extra {extra} in pyproject.toml is for {module}, which does not exist: write it, or change USERS"
    )
    run(user_python, "-c", f"import {module}", cwd=tmp_path)


def test_an_environment_with_the_wheel_is_complete(user_python: Path, tmp_path: Path) -> None:
    assert run(user_python, "-m", "pip", "check", cwd=tmp_path) == "No broken requirements found.\n"


def test_the_command_line_works_from_the_wheel(user_python: Path, tmp_path: Path) -> None:
    shown = run(user_python.with_name("millpond"), "--help", cwd=tmp_path)
    assert "Usage: millpond" in shown
    assert PROJECT["version"] in run(user_python, "-c", "import millpond; print(millpond.__version__)", cwd=tmp_path)


def test_a_program_and_its_test_run_from_the_wheel(user_python: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    output, _, module = run(user_python, "program.py", cwd=tmp_path).strip().rpartition(" ")
    assert output == "{'customer': 'ann', 'total': 7}"
    assert Path(module).is_relative_to(user_python.parents[1]), "the program ran with another millpond"


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_libraries_of_an_extra_are_installed(extra: str, user_python: Path, tmp_path: Path) -> None:
    for library in EXTRAS[extra]:
        run(user_python, "-m", "pip", "show", "-q", re.split(r"[^\w-]", library)[0], cwd=tmp_path)


def test_a_path_can_be_installed(unpacked_sdist: Path, tmp_path: Path, wheel: Path) -> None:
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", "made", unpacked_sdist, cwd=tmp_path)
    assert same_content(tmp_path / "made" / wheel.name, wheel)


def test_a_git_url_can_be_installed(unpacked_sdist: Path, tmp_path: Path, wheel: Path) -> None:
    author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    run("git", "init", "-q", tmp_path / "repository", cwd=tmp_path)
    run("cp", "-R", f"{unpacked_sdist}/.", "repository", cwd=tmp_path)
    run("git", "add", ".", cwd=tmp_path / "repository")
    run("git", *author, "commit", "-q", "-m", "All", cwd=tmp_path / "repository")
    address = f"git+{(tmp_path / 'repository').as_uri()}"
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", "made", address, cwd=tmp_path)
    assert same_content(tmp_path / "made" / wheel.name, wheel)


def same_content(one: Path, other: Path) -> bool:
    """Whether two wheels hold the same files."""
    with zipfile.ZipFile(one) as a, zipfile.ZipFile(other) as b:
        return {item.filename: item.CRC for item in a.infolist()} == {item.filename: item.CRC for item in b.infolist()}
