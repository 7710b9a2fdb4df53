"""Finds where inside a value the refused part is. Only called when an error is raised, so it may be slow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from millpond.codec.refusal import NotEncodable, Refused, TooDeep
from millpond.codec.user_types import record_type_of
from millpond.errors import short_repr


def explain(refused: Refused, root: Any, index: int | None = None) -> NotEncodable:
    """Return the error for a refused value, with the path from the whole value to the refused part."""
    what, advice = refused.what, refused.advice
    if isinstance(refused, TooDeep):
        path = _find_path(root, lambda _, cyclic: cyclic)
        if path is not None:
            what = "cannot store a value that contains itself"
            advice = "store a reference, for example a key, instead of the value that is already above it"
    else:
        path = _find_path(root, lambda value, _: value is refused.culprit)
    return _not_encodable(f"{path or 'value'}: {what}; {advice}", index)


def explain_text(values: Sequence[Any], start: int) -> NotEncodable:
    """Return the error for the first text that UTF-8 cannot express; the first value has the index `start`."""
    paths = (_find_path(root, lambda value, _: type(value) is str and not _is_utf8(value)) for root in values)
    index, path = next((index, path) for index, path in enumerate(paths, start) if path is not None)
    return _not_encodable(
        f"{path}: cannot store text with a lone surrogate, which is not Unicode; replace it, for example "
        'with text.encode("utf-8", "replace").decode(), or store bytes',
        index,
    )


def _not_encodable(text: str, index: int | None) -> NotEncodable:
    error = NotEncodable(text)
    error.index = index
    return error


def _find_path(root: Any, wanted: Callable[[Any, bool], bool]) -> str | None:
    """Return the path of the first part for which `wanted` is true, depth first; each container is entered once."""
    entered: set[int] = set()
    on_path: list[int] = []
    stack: list[Iterator[tuple[str, Any]]] = [iter([("value", root)])]
    while stack:
        step = next(stack[-1], None)
        if step is None:
            stack.pop()
            if on_path:
                on_path.pop()
            continue
        path, value = step
        if wanted(value, id(value) in on_path):
            return path
        if id(value) not in entered:
            entered.add(id(value))
            on_path.append(id(value))
            stack.append(_children(path, value))
    return None


def _children(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    cls = type(value)
    if cls is dict:
        for key, item in value.items():
            yield f"{path}, key {short_repr(key)}", key
            yield f'{path}["{key}"]' if type(key) is str else f"{path}[{short_repr(key)}]", item
    elif cls is list or cls is tuple:
        for number, item in enumerate(value):
            yield f"{path}[{number}]", item
    elif cls is set or cls is frozenset:
        for item in value:
            yield f"{path}, element {short_repr(item)}", item
    else:
        record = record_type_of(cls)
        try:
            fields = record.take(value) if record else {}
        except Refused:
            fields = {}
        for name, item in fields.items():
            yield f"{path}.{name}", item


def _is_utf8(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
