"""Which modules travel to the executors: the user's own, and none of an installed package."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pyarrow
import pytest

from millpond.runtimes.spark.shipping import find_own_modules


def module_at(path: Path) -> ModuleType:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    return module


def test_modules_of_the_user_travel_under_their_names(tmp_path: Path) -> None:
    modules = {"rules": module_at(tmp_path / "rules.py"), "shop": module_at(tmp_path / "shop" / "__init__.py")}
    found = find_own_modules({**modules, "pyarrow": pyarrow, "__main__": module_at(tmp_path / "main.py")})
    assert found == {"rules.py": str(tmp_path / "rules.py"), "shop/__init__.py": str(tmp_path / "shop" / "__init__.py")}


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_packages_of_another_environment_do_not_travel(tmp_path: Path, folder: str) -> None:
    package = tmp_path / "base" / "lib" / folder / "tool" / "__init__.py"
    assert find_own_modules({"tool": module_at(package)}) == {}
