"""Opens the storage at an address: a path or a URL."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote, urlsplit

from millpond.errors import InvalidUse
from millpond.storage.base import Storage
from millpond.storage.disk import LocalStorage
from millpond.storage.in_memory import MemoryStorage
from millpond.storage.objects import ObjectStorage

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def open_storage(url: str | os.PathLike[str]) -> Storage:
    """Open the storage at a path or a URL: `file:///folder`, `s3://bucket/folder`, `gs://bucket/folder`,
    `az://container/folder`, `memory://name`. A relative path becomes absolute at once.

    Nothing is read or written yet: the first put makes the folder, and the first call connects to the bucket.

    >>> from millpond.storage import open_storage
    >>> open_storage("/data/state").url
    '/data/state'
    >>> open_storage("memory://tests").url
    'memory://tests'
    >>> open_storage("ftp://host/state")
    Traceback (most recent call last):
    ...
    millpond.errors.InvalidUse: state_dir ftp://host/state: expected a path, or a URL that begins with \
file://, s3://, gs://, az:// or memory://
    """
    address = os.fspath(url)
    scheme = _scheme(address)
    if scheme == "":
        if not address:
            raise InvalidUse("state_dir: expected a path or a URL, such as 'state' or 's3://bucket/state', got ''")
        return LocalStorage(address)
    if scheme == "file":
        return LocalStorage(_file_path(address))
    if scheme == "memory":
        return MemoryStorage(address.partition("://")[2].strip("/") or None)
    if scheme in ("s3", "gs", "az"):
        return ObjectStorage(address)
    raise InvalidUse(
        f"state_dir {address}: expected a path, or a URL that begins with file://, s3://, gs://, az:// or memory://"
    )


def is_local(url: str | os.PathLike[str]) -> bool:
    """Return whether the address is a folder in the file system of this machine.

    >>> from millpond.storage import is_local
    >>> is_local("state"), is_local("file:///data/state"), is_local("s3://bucket"), is_local("memory://")
    (True, True, False, False)
    """
    return _scheme(os.fspath(url)) in ("", "file")


def _scheme(address: str) -> str:
    found = _SCHEME.match(address)
    return found[1].lower() if found else ""


def _file_path(address: str) -> str:
    parts = urlsplit(address)
    if parts.netloc not in ("", "localhost") or not parts.path or parts.query or parts.fragment:
        raise InvalidUse(f"state_dir {address}: expected file:///folder, with three slashes and an absolute path")
    return unquote(parts.path)
