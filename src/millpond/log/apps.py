"""Which apps have their log in a storage."""

from __future__ import annotations

from millpond.log.paths import Paths, unsafe
from millpond.storage import Storage


def apps(storage: Storage) -> list[str]:
    """The names of the apps whose ledger lies in a storage, sorted; other folders beside them are passed over.

    >>> from millpond.log.apps import apps
    >>> from millpond.storage import open_storage
    >>> storage = open_storage("memory://")
    >>> storage.put("orders/ledger/00000000000000000000.json", b"{}")
    >>> storage.put("totals/part-1.jsonl", b"")
    >>> apps(storage)
    ['orders']
    """
    found: list[str] = []
    after: str | None = None
    while (item := next(iter(storage.list("", after)), None)) is not None:
        folder, slash, _ = item.path.partition("/")
        name = unsafe(folder)
        if slash and next(iter(storage.list(Paths(name).ledger)), None) is not None:
            found.append(name)
        # "0" comes right behind "/": so the next look is at what follows this folder, however much it holds.
        after = f"{folder}0" if slash else item.path
    return sorted(found)
