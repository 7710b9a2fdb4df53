"""Frames: the kinds of table that a function over many rows can take and return.

pyarrow is always there. polars and pandas are imported only if a function asks for one of their frames.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol

import pyarrow as pa

from millpond.errors import InvalidUse
from millpond.rows.arrow_tables import TableUse, strict_column


class FrameKind(Protocol):
    """One kind of table. Objects of it are pickled and sent to workers."""

    label: str  # of the class, such as `polars.DataFrame`

    def check_installed(self) -> None:
        """Raise InvalidUse if the library cannot be imported here."""
        ...

    def from_arrow(self, table: pa.Table) -> Any:
        """Return the frame; values are the same, and no Python objects are made of them.

        InvalidUse names a column that the frame cannot hold.
        """
        ...

    def to_arrow(self, frame: Any) -> pa.Table:
        """Return the table of a frame that a function has returned; InvalidUse if it is no such frame."""
        ...


class ArrowTables:
    """`pyarrow.Table`, the rows as they are."""

    label = "pyarrow.Table"

    def check_installed(self) -> None:
        pass

    def from_arrow(self, table: pa.Table) -> Any:
        return table

    def to_arrow(self, frame: Any) -> pa.Table:
        if not isinstance(frame, pa.Table):
            raise _wrong_return(self, frame)
        return frame


class PolarsFrames:
    """`polars.DataFrame`, which shares the memory of the table."""

    label = "polars.DataFrame"

    def check_installed(self) -> None:
        _import_library("polars")

    def from_arrow(self, table: pa.Table) -> Any:
        polars = _import_library("polars")
        errors = (polars.exceptions.PolarsError, polars.exceptions.PanicException)
        try:
            return polars.from_arrow(table)
        except errors as error:
            reason = _first_line(error)
        for field in table.schema:
            try:
                polars.from_arrow(table.select([field.name]))
            except errors as error:
                reason = f"it cannot hold column {field.name!r} of type {field.type}: {_first_line(error)}"
                break
        raise InvalidUse(
            f"the rows cannot become a {self.label}: {reason}. Convert the column with map() before, or let the "
            "function take a pyarrow.Table."
        )

    def to_arrow(self, frame: Any) -> pa.Table:
        polars = _import_library("polars")
        if not isinstance(frame, polars.DataFrame):
            raise _wrong_return(self, frame)
        for name, kind in frame.schema.items():
            if "Object" in repr(kind):  # to_arrow would return the addresses of the objects
                raise InvalidUse(f"expected columns without Python objects, got column {name!r} of type {kind!r}")
        return frame.to_arrow(compat_level=polars.CompatLevel.oldest())


class PandasFrames:
    """`pandas.DataFrame` with Arrow-backed columns, so that a column of integers with nulls stays one of integers."""

    label = "pandas.DataFrame"

    def check_installed(self) -> None:
        _import_library("pandas")

    def from_arrow(self, table: pa.Table) -> Any:
        pandas = _import_library("pandas")
        return table.to_pandas(types_mapper=pandas.ArrowDtype, ignore_metadata=True)

    def to_arrow(self, frame: Any) -> pa.Table:
        """Return the columns without the index. NaN stays NaN, and `pandas.NA`, NaT and None become null."""
        pandas = _import_library("pandas")
        if not isinstance(frame, pandas.DataFrame):
            raise _wrong_return(self, frame)
        names = list(frame.columns)
        for name in names:
            if not isinstance(name, str):
                raise InvalidUse(f"expected columns with strings as names, got {name!r}: rename it with frame.rename()")
        columns = [self._column(pandas, name, frame.iloc[:, i]) for i, name in enumerate(names)]
        return pa.Table.from_arrays(columns, names=names)

    def _column(self, pandas: Any, name: str, series: Any) -> Any:
        if series.dtype == object:
            is_missing = [value is None or value is pandas.NA or value is pandas.NaT for value in series]
            values = [None if missing else value for missing, value in zip(is_missing, series, strict=True)]
            return strict_column(name, values, _RETURNED)
        if series.dtype.kind == "f" and not pandas.api.types.is_extension_array_dtype(series.dtype):
            return pa.array(series.to_numpy(), from_pandas=False)
        return pa.Array.from_pandas(series)


_RETURNED = TableUse("a returned frame", "a column", "return it as another type", is_exact=True, takes_foreign=True)

_KINDS: tuple[FrameKind, ...] = (ArrowTables(), PolarsFrames(), PandasFrames())


def frame_kind(f: Callable[..., Any], where: str, parameters: int = 1) -> FrameKind:
    """Return the kind of frame that a function takes, by the annotation of its first parameter.

    A parameter without an annotation, or with `Any`, takes a `pyarrow.Table`. If the function has several parameters
    for frames, each of them that has an annotation must have the same one.

    >>> def add(frame: "polars.DataFrame") -> "polars.DataFrame":
    ...     return frame
    >>> frame_kind(add, "map_batch").label
    'polars.DataFrame'
    """
    texts = [_annotation_text(f, annotation) for annotation in _annotations(f)[:parameters] if annotation is not None]
    text = texts[0] if texts else _KINDS[0].label
    if len(set(texts)) > 1:
        raise InvalidUse(f"{where}: expected a function that takes frames of one kind, got {' and '.join(texts)}")
    for kind in _KINDS:
        if text == kind.label:
            kind.check_installed()
            return kind
    labels = ", ".join(kind.label for kind in _KINDS)
    raise InvalidUse(
        f"{where}: expected a function whose first parameter has one of the annotations {labels}, or none, got {text}"
    )


_ALIASES = {"pa": "pyarrow", "pl": "polars", "pd": "pandas"}  # as everyone imports them


def _annotations(f: Callable[..., Any]) -> list[Any]:
    """Return the annotation of each parameter, None where there is none. They may be text."""
    try:
        parameters = _signature(f).parameters.values()
    except (TypeError, ValueError):  # a function that is not written in Python
        return []
    return [None if p.annotation is inspect.Parameter.empty else p.annotation for p in parameters]


def _signature(f: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(f)
    except NameError:  # from Python 3.14 on, for a name that is imported for type checkers only
        formats: Any = import_module("annotationlib")
        sign: Any = inspect.signature
        return sign(f, annotation_format=formats.Format.STRING)  # type: ignore[no-any-return]


def _annotation_text(f: Callable[..., Any], annotation: Any) -> str:
    """Return an annotation as the library and the class, such as `polars.DataFrame`."""
    if isinstance(annotation, str):
        text = annotation.strip("'\" ")
        try:
            annotation = eval(text, getattr(inspect.unwrap(f), "__globals__", {}))
        except Exception:  # a name that is imported for type checkers only
            library, _, name = text.rpartition(".")
            return f"{_ALIASES.get(library, library)}.{name}" if library else name
    if annotation is Any:
        return _KINDS[0].label
    if isinstance(annotation, type):
        return f"{annotation.__module__.partition('.')[0]}.{annotation.__qualname__}"
    return str(annotation)


def _import_library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise InvalidUse(
            f"a function takes a frame of {name}, which cannot be imported: {error}. Install it with "
            f"`pip install {name}`, also where the workers run."
        ) from error


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0].removesuffix(".")


def _wrong_return(kind: FrameKind, frame: Any) -> InvalidUse:
    found = type(frame)
    return InvalidUse(
        f"expected the function to return a {kind.label}, got {found.__module__}.{found.__qualname__}. Its first "
        "parameter's annotation says which kind of frame it takes and returns."
    )
