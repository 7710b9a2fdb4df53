"""Storages hold the log: whole files under paths, on a disk, in memory or in an object store."""

from millpond.storage.address import is_local, open_storage
from millpond.storage.base import Item, Storage
from millpond.storage.disk import LocalStorage
from millpond.storage.in_memory import MemoryStorage
from millpond.storage.objects import ObjectStorage

__all__ = [
    "Item",
    "LocalStorage",
    "MemoryStorage",
    "ObjectStorage",
    "Storage",
    "is_local",
    "open_storage",
]
