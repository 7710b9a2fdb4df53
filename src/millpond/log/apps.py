"""Which apps have their log in a storage."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from millpond.errors import Corrupt, InvalidUse, MillpondError
from millpond.log.ledger import Ledger
from millpond.log.paths import is_cut_name, unquote_name
from millpond.storage import Storage


def list_apps(storage: Storage) -> list[str]:
    """Return the names of the apps that have a ledger in a storage, sorted. Other folders are skipped.

    >>> from millpond.log.apps import list_apps
    >>> from millpond.storage import open_storage
    >>> storage = open_storage("memory://")
    >>> storage.put("orders/ledger/00000000000000000000.json", b"{}")
    >>> storage.put("totals/part-1.jsonl", b"")
    >>> list_apps(storage)
    ['orders']
    """
    found: list[str] = []
    after: str | None = None
    while (item := next(iter(storage.list("", after)), None)) is not None:
        folder, slash, _ = item.path.partition("/")
        if slash and (name := _app_name(storage, folder)) is not None:
            found.append(name)
        # "0" is the character after "/": the next listing begins behind this folder, however many files are in it.
        after = f"{folder}0" if slash else item.path
    return sorted(found)


def _app_name(storage: Storage, folder: str) -> str | None:
    record = next(iter(storage.list(f"{folder}/ledger")), None)
    if record is None:
        return None
    if not is_cut_name(folder):
        return unquote_name(folder)
    for item in storage.list(f"{folder}/ledger"):  # the records contain the full name
        try:
            return str(msgspec.json.decode(storage.get(item.path) or b"")["app"])
        except (msgspec.MsgspecError, KeyError, TypeError):
            continue
    return None


def check_app_exists(ledger: Ledger) -> None:
    """Raise `InvalidUse` if a state directory holds no such app. An app with a damaged ledger exists."""
    with suppress(Corrupt):  # what reads the record will say so; `verify` reads all others, too
        if ledger.newest() is None:
            there: list[str] = []
            with suppress(MillpondError):  # the names only help
                there = list_apps(ledger.storage)
            listed = f"; it holds: {', '.join(map(repr, there))}" if there else ""
            raise InvalidUse(
                f"{ledger.storage.url} holds no app {ledger.app!r}: check state_dir and the app's name{listed}"
            )
