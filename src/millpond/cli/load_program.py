"""Loads the app from a user's file: executed like a script, except for its `if __name__ == "__main__"`."""

from __future__ import annotations

import ast
import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from types import CodeType, ModuleType

from millpond.admin import Admin
from millpond.app import App
from millpond.cli.app_option import administer_chosen, open_chosen
from millpond.errors import InvalidUse, MillpondError
from millpond.reader import ReadOnlyApp


@contextlib.contextmanager
def load_app(target: str, what: str = "run") -> Iterator[App]:
    """Execute `file.py` or `file.py:name` and yield its app. The module is in place until the context ends.

    The file becomes the module `__main__`, as under `python file.py`: its functions and classes are sent to the workers
    by value, and state names the classes as that command does, so that an app can be run in both ways. Its folder is
    the first in `sys.path`. `__name__ == "__main__"` is false in it, so that it does not run the app itself.
    """
    path, name = _parse_target(target, what)
    code = _compile(path)
    module = ModuleType("__main__")
    module.__file__ = path
    before = sys.modules.get("__main__"), sys.argv, list(sys.path)
    sys.modules["__main__"], sys.argv = module, [path]
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    try:
        try:
            exec(code, vars(module))
        except InvalidUse as error:
            raise InvalidUse(f"{_place_of(path, error)}: {error}") from error
        except MillpondError:
            raise
        except Exception as error:
            what = f"it raised {type(error).__name__}: {error}"
            raise InvalidUse(f"{_place_of(path, error)}: the file could not be loaded, {what}") from error
        yield _find_app(module, path, name)
    finally:
        main, sys.argv, sys.path[:] = before
        if main is not None:
            sys.modules["__main__"] = main


@contextlib.contextmanager
def load_or_open(program: str | None, state_dir: str, app: str | None) -> Iterator[App | ReadOnlyApp]:
    """Yield the app of a program, which determines where its state is; without a program, the app in a state_dir."""
    if program is None:
        yield open_chosen(state_dir, app)
        return
    with _load_named(program, app) as found:
        yield found


@contextlib.contextmanager
def load_or_administer(program: str | None, state_dir: str, app: str | None) -> Iterator[App | Admin]:
    """Do the same for a command that changes the state."""
    if program is None:
        yield administer_chosen(state_dir, app)
        return
    with _load_named(program, app) as found:
        yield found


@contextlib.contextmanager
def _load_named(program: str, app: str | None) -> Iterator[App]:
    with load_app(program, "--program") as found:
        if app not in (None, found.name):
            raise InvalidUse(f"{program}: expected app {app!r}, as --app says, but it is {found.name!r}")
        yield found


def _parse_target(target: str, what: str) -> tuple[str, str | None]:
    path, colon, name = target.rpartition(":")
    if not colon or os.path.exists(target):
        path, name = target, ""
    if not os.path.isfile(path):
        raise InvalidUse(
            f"{what} {target}: expected a Python file, as in app.py or app.py:name, but there is no file {path!r}"
        )
    if colon and path != target and not name.isidentifier():
        raise InvalidUse(f"{what} {target}: expected a name after the colon, as in app.py:name, got {name!r}")
    return path, name or None


def _compile(path: str) -> CodeType:
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read(), path)
        return compile(ast.fix_missing_locations(_NotMain().visit(tree)), path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise InvalidUse(
            f"{path}{f', line {line}' if line else ''}: this is not Python: {getattr(error, 'msg', error)}"
        ) from error


class _NotMain(ast.NodeTransformer):
    """Makes every `__name__ == "__main__"` in a file false.

    Another module name would do that, too, but it would be part of the name of every class in the state.
    """

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        match node:
            case ast.Compare(ast.Name("__name__"), [op], [ast.Constant("__main__")]) | ast.Compare(
                ast.Constant("__main__"), [op], [ast.Name("__name__")]
            ) if isinstance(op, ast.Eq | ast.NotEq):
                return ast.copy_location(ast.Constant(isinstance(op, ast.NotEq)), node)
        return self.generic_visit(node)


def _place_of(path: str, error: Exception) -> str:
    """Return the file, and the line in it that an error came through."""
    frames = traceback.extract_tb(error.__traceback__)
    line = next((frame.lineno for frame in reversed(frames) if frame.filename == path), None)
    return path if line is None else f"{path}, line {line}"


def _find_app(module: ModuleType, path: str, name: str | None) -> App:
    found = {key: value for key, value in vars(module).items() if isinstance(value, App)}
    listed = ", ".join(found)
    if name is not None:
        if name in found:
            return found[name]
        raise InvalidUse(
            f"{path}: expected an App named {name!r} at its top level; "
            + (f"it has: {listed}" if found else "it has none")
        )
    apps = list({id(app): app for app in found.values()}.values())
    if not apps:
        raise InvalidUse(
            f"{path}: expected an App at its top level, as in app = mp.App('orders'), but found none. An App that is "
            'made in a function or below if __name__ == "__main__" is not seen.'
        )
    if len(apps) > 1:
        raise InvalidUse(f"{path}: found several Apps: {listed}. Choose one, as in {path}:{next(iter(found))}")
    return apps[0]
