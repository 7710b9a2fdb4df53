"""The folders of tests/ are the folders of src/millpond/, so that the tests of a module are easy to find."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "src" / "millpond"

# Folders without a counterpart in the package, and why they exist.
OTHERS = {
    "chaos": "drivers, admins and readers as processes, under random signals",
    "docs": "README, docs/ and examples/ are true",
    "golden": "state that earlier versions wrote, and the tests that open it",
    "packaging": "the wheel and the sdist in a fresh environment",
    "protocol": "a model of the commit protocol, under every schedule",
    "soak": "random actions under load",
    "spark": "everything that starts a JVM, in one place because it is slow",
    "support": "helpers of several folders; it has no tests",
}


def folders(root: Path) -> set[str]:
    """The folders below `root` that hold Python files, as paths relative to it."""
    found = {path.parent.relative_to(root) for path in root.rglob("*.py")}
    return {str(path) for path in found if path != Path(".")}


def unexpected(tests: set[str], package: set[str]) -> list[str]:
    """The folders of tests that are neither in the package nor in OTHERS, nor inside one that is in OTHERS."""
    return sorted(path for path in tests - package if path.split("/")[0] not in OTHERS)


def test_every_folder_of_tests_is_a_folder_of_the_package() -> None:
    wrong = unexpected(folders(TESTS), folders(PACKAGE))
    assert not wrong, f"{wrong}: name it like a folder of src/millpond, or add it to OTHERS with the reason"


def test_the_list_of_other_folders_is_no_longer_than_needed() -> None:
    top = {path.split("/")[0] for path in folders(TESTS)}
    assert sorted(OTHERS.keys() - top) == []
    assert sorted(OTHERS.keys() & folders(PACKAGE)) == []


def test_a_folder_that_mirrors_nothing_is_found() -> None:
    package = {"steps", "steps/windows"}
    assert unexpected({"steps/windows", "spark/programs", "run", "steps/joins"}, package) == ["run", "steps/joins"]
