"""What `import millpond as mp` offers: pinned by name, and shown by an example each."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import millpond as mp

PINNED = Path(__file__).parent / "public_names.txt"
MODULES = [
    name for name in ("errors", "formats", "lowlevel", "sinks", "sources", "testing", "triggers") if hasattr(mp, name)
]
LOWLEVEL = "lowlevel."  # how the pinned file names what is in mp.lowlevel
HOW_TO_PIN = "A public name stays for ever. If the change is meant, correct tests/public_names.txt."


def test_the_public_names_are_the_pinned_ones() -> None:
    pinned = PINNED.read_text().split()
    there = sorted([*mp.__all__, *(LOWLEVEL + name for name in mp.lowlevel.__all__)])
    diff = "\n".join(
        difflib.unified_diff(pinned, there, "tests/public_names.txt", "millpond.__all__", lineterm="", n=0)
    )
    assert not diff, f"\n{diff}\n{HOW_TO_PIN}"


def is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def test_no_module_leaks_into_the_namespace() -> None:
    assert [name for name in dir(mp) if not is_dunder(name)] == sorted(mp.__all__)
    for name in ("errors", "formats", "lowlevel", "sinks", "sources", "testing", "triggers"):
        module = getattr(mp, name)
        assert [inner for inner in dir(module) if not is_dunder(inner)] == sorted(module.__all__), name


def test_a_module_that_is_not_shown_can_be_imported_all_the_same() -> None:
    import millpond.codec

    assert millpond.codec.Codec is not None and "codec" not in dir(millpond)


def test_every_public_name_is_there() -> None:
    assert [name for name in mp.__all__ if not hasattr(mp, name)] == []


def test_the_public_modules_are_there() -> None:
    assert set(MODULES) >= {"errors", "lowlevel", "sinks", "sources", "testing"}


def is_ours(thing: Any) -> bool:
    return (getattr(thing, "__module__", None) or "").split(".")[0] == "millpond"


def public_names(module: ModuleType) -> list[str]:
    """What a module says is public, or else what it defines without an underscore."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [name for name, thing in vars(module).items() if not name.startswith("_") and is_ours(thing)]


def members(owner: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties that a class has from us, its own and inherited."""
    for name, member in inspect.getmembers_static(owner):
        if name.startswith("_"):
            continue
        if isinstance(member, staticmethod | classmethod):
            member = member.__func__
        if isinstance(member, property):
            if is_ours(member.fget):
                yield name, member
        elif inspect.isfunction(member) and is_ours(member):
            yield name, member


def has_example(doc: str | None) -> bool:
    return ">>>" in (doc or "")


def uses(doc: str | None, name: str) -> bool:
    """Whether an example in `doc` goes through the member `name`."""
    return any(f".{name}" in line for line in (doc or "").splitlines() if line.lstrip().startswith((">>>", "...")))


def without_example(name: str, thing: Any) -> Iterator[str]:
    """The names, from `thing` down, that no example shows."""
    if isinstance(thing, ModuleType):
        for inner in public_names(thing):
            yield from without_example(f"{name}.{inner}", getattr(thing, inner))
    elif inspect.isclass(thing) and is_ours(thing):
        doc = inspect.cleandoc(thing.__doc__ or "")
        if not has_example(doc):
            yield name
        # An exception's attributes, a property and what a user implements are shown where they are
        # used: in the example of their class.
        shown_by_class = getattr(thing, "_is_protocol", False)
        for inner, member in members(thing):
            own = inspect.getdoc(getattr(thing, inner)) if inspect.isfunction(member) else member.__doc__
            in_class = (shown_by_class or isinstance(member, property)) and bool(own) and uses(doc, inner)
            if not has_example(own) and not in_class:
                yield f"{name}.{inner}"
    elif inspect.isroutine(thing) and not has_example(thing.__doc__):
        yield name


@pytest.mark.parametrize("name", sorted({*mp.__all__, *MODULES}))
def test_every_public_name_has_an_example(name: str) -> None:
    missing = list(without_example(f"mp.{name}", getattr(mp, name)))
    assert not missing, "\n" + "\n".join(f"{each}: no example (>>>) in its docstring" for each in missing)


class Shown:
    """A class.

    >>> Shown().size
    1
    """

    @property
    def size(self) -> int:
        """How large."""
        return 1

    def bare(self) -> None:
        """Says nothing by example."""

    def told(self) -> None:
        """Says it.

        >>> Shown().told()
        """


def test_a_name_without_an_example_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for thing in (Shown, Shown.bare, Shown.told, Shown.size.fget):  # type: ignore[attr-defined]
        monkeypatch.setattr(thing, "__module__", "millpond.somewhere")
    assert list(without_example("mp.Shown", Shown)) == ["mp.Shown.bare"]
    assert list(without_example("mp.bare", Shown.bare)) == ["mp.bare"]
    module = ModuleType("millpond.somewhere")
    module.__all__ = ["bare"]  # type: ignore[attr-defined]
    module.bare = Shown.bare  # type: ignore[attr-defined]
    assert list(without_example("mp.somewhere", module)) == ["mp.somewhere.bare"]


@pytest.mark.parametrize("wrong", [5, "", "s3://bucket/replicas", b"local", True])
def test_a_local_dir_that_is_no_path_is_refused(wrong: Any) -> None:
    with pytest.raises(mp.errors.InvalidUse, match=r"App\(local_dir\): expected the path of a folder on a local disk"):
        mp.App("orders", local_dir=wrong)


def test_a_relative_local_dir_begins_where_the_program_runs_and_not_where_workers_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert mp.App("orders", local_dir="local").local_dir == str(tmp_path / "local")
    assert mp.App("orders", local_dir=Path("local")).local_dir == str(tmp_path / "local")
