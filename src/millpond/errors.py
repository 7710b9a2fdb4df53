"""The kinds of errors, chosen by what the reader does next.

    Exception
    └── MillpondError       every error that Millpond raises on purpose
        ├── InvalidUse      correct the program, its input or its set-up
        │   └── NotEncodable    (millpond.codec) a value that cannot be stored
        ├── StepFailed      a user's function raised, or a row is bad: step, key, row, batch
        ├── Unavailable     try again, after `retry_after` seconds
        ├── Fenced          another driver owns the app; this one has stopped
        ├── Corrupt         stored data is damaged: a person has to look at it
        └── Incompatible    stored data does not fit this program or version: migrate or upgrade
            └── Unreadable      (millpond.codec) a stored value whose class is gone or has other fields

A message has four parts: where, what was expected, what was found, and what to do.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "Corrupt",
    "Fenced",
    "Incompatible",
    "InvalidUse",
    "MillpondError",
    "StepFailed",
    "Unavailable",
]


def __dir__() -> list[str]:
    return __all__


_MAX_SHOWN = 500  # characters of a key or a row in a message


class MillpondError(Exception):
    """The base class of every error that Millpond raises on purpose.

    >>> from millpond import errors
    >>> issubclass(errors.Fenced, errors.MillpondError)
    True
    """


class InvalidUse(MillpondError):
    """The program, its input or its set-up is wrong. A person has to correct it.

    >>> import millpond as mp
    >>> mp.App("")
    Traceback (most recent call last):
    ...
    millpond.errors.InvalidUse: App(name): expected a plain name of 1 to 120 bytes such as 'orders', got '': it is \
empty. Choose another one.
    """


class StepFailed(MillpondError):
    """A user's function raised on a row, or the row is not as the program expects. The row changed no state.

    >>> from millpond import errors
    >>> error = errors.StepFailed("total", key="a", row={"n": 1}, batch=7, error="ValueError: no")
    >>> error.step, error.key, error.batch
    ('total', 'a', 7)
    >>> print(error)
    step 'total', batch 7: a function raised ValueError: no
      key: 'a'
      row: {'n': 1}
      Fix the function, or let the row pass with on_error="skip" or "dead-letter".

    `where` says where the row came from, or is None. If `is_input` is true, no function has raised: the row is bad. If
    `is_raised` is false, no function has raised either: what it returned, or how it used Millpond, is wrong.

    >>> said = "a.jsonl, line 3: the row has no field 'customer'; it has: 'amount'"
    >>> print(errors.StepFailed("key_by(customer)", row={"amount": 1}, batch=7, error=said, is_input=True))
    'key_by(customer)', batch 7: a.jsonl, line 3: the row has no field 'customer'; it has: 'amount'
      row: {'amount': 1}
      Correct the input or what the program expects of it, or let the row pass with on_error="skip" or "dead-letter".
    """

    def __init__(
        self,
        step: str,
        *,
        key: Any = None,
        row: Any = None,
        batch: int | None = None,
        error: str = "",
        traceback: str = "",
        where: str | None = None,
        is_input: bool = False,
        is_raised: bool = True,
    ) -> None:
        self.step, self.key, self.row, self.batch = step, key, row, batch
        self.error, self.traceback, self.where = error, traceback, where
        self.is_input, self.is_raised = is_input, is_raised
        what = f"a function raised {error}" if is_raised else error
        if is_input:
            shown = "" if key is None else f"  key: {short_repr(key, _MAX_SHOWN)}\n"
            text = (
                f"{step!r}, batch {batch}: {error}\n{shown}  row: {short_repr(row, _MAX_SHOWN)}\n"
                "  Correct the input or what the program expects of it, or let the row pass with "
                'on_error="skip" or "dead-letter".'
            )
        elif key is None and row is None:  # a sink's function gets many rows at once
            text = f"{step!r}, batch {batch}: {what}"
        else:
            text = (
                f"step {step!r}, batch {batch}: {what}\n"
                f"  key: {short_repr(key, _MAX_SHOWN)}\n  row: {short_repr(row, _MAX_SHOWN)}\n"
                + ("" if where is None else f"  from: {where}\n")
                + '  Fix the function, or let the row pass with on_error="skip" or "dead-letter".'
            )
        super().__init__(text + (f"\n{traceback}" if traceback else ""))

    def __reduce__(self) -> Any:
        fields = {name: getattr(self, name) for name in ("key", "row", "batch", "where", "is_input", "is_raised")}
        return _unpickle_step_failed, (self.step, fields, self.error, self.traceback)


class Unavailable(MillpondError):
    """Something outside does not respond; the same call may work later, after `retry_after` seconds if that is known.

    >>> from millpond import errors
    >>> errors.Unavailable("the broker is busy", retry_after=1.5).retry_after
    1.5
    """

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after

    def __reduce__(self) -> Any:
        return _unpickle_unavailable, (str(self), self.retry_after)


class Fenced(MillpondError):
    """Another driver owns the app now; this one has stopped and has changed nothing since.

    >>> from millpond import errors
    >>> str(errors.Fenced("app 'orders': a newer driver owns it"))
    "app 'orders': a newer driver owns it"
    """


class Corrupt(MillpondError):
    """Stored data is damaged, and no replica can repair it. A person has to look at it.

    >>> from millpond import errors
    >>> issubclass(errors.Corrupt, errors.MillpondError)
    True
    """


class Incompatible(MillpondError):
    """Stored data does not fit this program or this version. Migrate the state, or upgrade.

    >>> from millpond import errors
    >>> issubclass(errors.Incompatible, errors.MillpondError)
    True
    """


def short_repr(value: Any, limit: int = 80) -> str:
    """Return a `repr` that fits into a message, at most `limit` characters and an ellipsis. It never raises.

    >>> from millpond.errors import short_repr
    >>> short_repr("a" * 100, limit=5)
    "'aaaa…"
    """
    try:
        text = repr(value)
    except Exception:
        cls = type(value)
        name = cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
        return f"<{name} without a repr>"
    return text if len(text) <= limit else text[:limit] + "…"


def _unpickle_step_failed(step: str, fields: dict[str, Any], error: str, traceback: str) -> StepFailed:
    return StepFailed(step, error=error, traceback=traceback, **fields)


def _unpickle_unavailable(message: str, retry_after: float | None) -> Unavailable:
    return Unavailable(message, retry_after=retry_after)
