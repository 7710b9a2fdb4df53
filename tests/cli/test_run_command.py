"""`millpond run`: which app of which file is meant. What it does on Spark is in tests/spark."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

import millpond as mp
from millpond.cli.load_program import load_app

Millpond = Callable[..., Result]

ONE = """
import millpond as mp

app = mp.App("orders")
"""


def write(text: str, name: str = "app.py") -> str:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return name


def error_of(result: Result) -> str:
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    return result.stderr.removeprefix("error: ").rstrip("\n")


def test_the_only_app_of_a_file_is_found_under_any_name() -> None:
    with load_app(write(ONE.replace("app =", "pipeline ="))) as app:
        assert app.name == "orders"


def test_an_app_with_two_names_is_one_app() -> None:
    with load_app(write(ONE + "same = app\n")) as app:
        assert app.name == "orders"


def test_one_of_several_apps_is_found_by_its_name() -> None:
    path = write(ONE + "other = mp.App('payments')\n")
    for name, found in [("app", "orders"), ("other", "payments")]:
        with load_app(f"{path}:{name}") as app:
            assert app.name == found


def test_what_a_script_does_at_its_end_is_not_done() -> None:
    guards = ['__name__ == "__main__"', '"__main__" == __name__', '__name__ == "__main__" and True']
    text = ONE + "".join(f"if {guard}:\n    raise SystemExit(3)\n" for guard in guards)
    text += 'if __name__ != "__main__":\n    app = mp.App("imported")\n'
    with load_app(write(text)) as app:
        assert app.name == "imported"


def test_types_are_named_as_python_names_those_of_a_script() -> None:
    text = "from __future__ import annotations\nfrom dataclasses import dataclass\n" + ONE
    text += "@dataclass\nclass Order:\n    id: int\n"
    text += "orders = app.stream('orders', mp.sources.rows([]), type=Order)\n"
    with load_app(write(text)) as app:
        assert [f"{each.__module__}:{each.__qualname__}" for each in mp.lowlevel.program(app).types] == [
            "__main__:Order"
        ]


def test_modules_beside_the_file_are_found_and_python_is_left_as_it_was() -> None:
    write("NAME = 'from beside'\n", "sub/beside_the_app.py")
    path = write("import millpond as mp\nfrom beside_the_app import NAME\napp = mp.App(NAME)\n", "sub/app.py")
    before = sys.modules["__main__"], list(sys.path), list(sys.argv)
    try:
        with load_app(path) as app:
            assert app.name == "from beside"
            assert sys.argv == [path]
    finally:
        sys.modules.pop("beside_the_app", None)
    assert (sys.modules["__main__"], sys.path, sys.argv) == before


def test_a_file_that_is_not_there_is_an_error(millpond: Millpond) -> None:
    for target, path in [("nothing.py", "nothing.py"), ("nothing.py:app", "nothing.py"), (".", ".")]:
        assert error_of(millpond("run", target)) == (
            f"run {target}: expected a Python file, as in app.py or app.py:name, but there is no file {path!r}"
        )


def test_a_name_that_cannot_be_one_is_an_error(millpond: Millpond) -> None:
    for name in ("", "a-b"):
        target = f"{write(ONE)}:{name}"
        assert error_of(millpond("run", target)) == (
            f"run {target}: expected a name after the colon, as in app.py:name, got {name!r}"
        )


def test_a_file_without_an_app_is_an_error(millpond: Millpond) -> None:
    path = write("import millpond as mp\nif __name__ == '__main__':\n    app = mp.App('orders')\n")
    assert error_of(millpond("run", path)) == (
        "app.py: expected an App at its top level, as in app = mp.App('orders'), but found none. An App that is made "
        'in a function or below if __name__ == "__main__" is not seen.'
    )


def test_a_file_with_several_apps_is_an_error_that_names_them(millpond: Millpond) -> None:
    path = write(ONE + "other = mp.App('payments')\n")
    assert error_of(millpond("run", path)) == "app.py: found several Apps: app, other. Choose one, as in app.py:app"


def test_a_name_that_is_no_app_is_an_error(millpond: Millpond) -> None:
    assert error_of(millpond("run", f"{write(ONE)}:mp")) == (
        "app.py: expected an App named 'mp' at its top level; it has: app"
    )
    assert error_of(millpond("run", f"{write('', 'empty.py')}:app")) == (
        "empty.py: expected an App named 'app' at its top level; it has none"
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = 1\ny = x +\n", "app.py, line 2: this is not Python: invalid syntax"),
        (
            "def f():\n    return nothing\nf()\n",
            "app.py, line 2: the file could not be loaded, it raised NameError: name 'nothing' is not defined",
        ),
        (
            "import no_such_module_anywhere",
            "app.py, line 1: the file could not be loaded, it raised ModuleNotFoundError: No module named "
            "'no_such_module_anywhere'",
        ),
        (
            "import millpond as mp\napp = mp.App('')\n",
            "app.py, line 2: App(name): expected a plain name of 1 to 120 bytes such as 'orders', got '': it is empty. "
            "Choose another one.",
        ),
    ],
)
def test_a_file_that_cannot_be_loaded_is_an_error_with_its_line(text: str, told: str, millpond: Millpond) -> None:
    assert error_of(millpond("run", write(text))) == told


def test_what_a_run_logs_for_people_is_printed_while_it_runs(
    millpond: Millpond, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = logging.getLogger("millpond.run")

    def run(app: mp.App, **how: object) -> None:
        log.info("app %r has caught up: %s", app.name, "3 rows in 1 batch, 0.1 s")

    before = log.level, list(log.handlers)
    monkeypatch.setattr(mp.App, "run", run)
    result = millpond("run", write(ONE))
    assert result.exit_code == 0 and result.stdout == ""
    assert result.stderr.splitlines()[1:] == ["app 'orders' has caught up: 3 rows in 1 batch, 0.1 s"]
    assert (log.level, log.handlers) == before


def test_an_app_that_cannot_run_is_an_error(millpond: Millpond) -> None:
    result = millpond("run", write(ONE))
    assert result.exit_code == 1
    assert "error: app 'orders' has no stream: add one with app.stream(name, source)\n" in result.stderr


def test_an_interval_that_is_none_is_an_error(millpond: Millpond) -> None:
    result = millpond("run", write(ONE), "--every", "soon")
    assert result.exit_code == 1
    assert "error: run(every): expected a duration such as" in result.stderr


def test_a_standby_driver_runs_until_it_is_stopped(millpond: Millpond) -> None:
    result = millpond("run", write(ONE), "--standby", "--until", "caught-up")
    assert result.exit_code == 1
    assert "error: run(standby): a standby driver runs until it is stopped, got until='caught-up'" in result.stderr


@pytest.mark.parametrize(
    "options", [["--until", "tomorrow"], ["--max-rows", "0"], ["--max-rows", "many"], ["--restarts", "-1"]]
)
def test_options_that_make_no_sense_are_wrong_usage(options: list[str], millpond: Millpond) -> None:
    result = millpond("run", write(ONE), *options)
    assert result.exit_code == 2
    assert options[0] in result.stderr


def test_the_app_is_the_very_one_that_the_file_made() -> None:
    with load_app(write(ONE)) as app:
        assert app is vars(sys.modules["__main__"])["app"]
        assert isinstance(app, mp.App)
