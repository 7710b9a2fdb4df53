"""Storage in an object store: S3 and what speaks its protocol, Google Cloud Storage, Azure.

Credentials and endpoint come from the ordinary environment variables (`AWS_ACCESS_KEY_ID`,
`AWS_REGION`, `AWS_ENDPOINT_URL`, `GOOGLE_APPLICATION_CREDENTIALS`, `AZURE_STORAGE_ACCOUNT_NAME`, …) or
from the machine's own role, as obstore reads them when the storage is opened.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from millpond.errors import InvalidUse, MillpondError, Unavailable
from millpond.storage.base import (
    Item,
    as_view,
    check_listing,
    check_path,
    check_paths,
    check_range,
    is_hidden,
)

if TYPE_CHECKING:
    from obstore.store import ObjectStore

# Up to this size a put is one request; above it obstore sends parts side by side and joins them at the end.
_REQUEST_BYTES = 16 * 1024 * 1024
_PAGE_ITEMS = 1_000
_MAX_CONFLICTS = 5

# The process that first used an object store: obstore's threads run in it and in no other.
_client_process: int | None = None


class ObjectStorage:
    """A bucket, or a folder in one: `s3://bucket/folder`, `gs://bucket/folder`, `az://container/folder`.

    A request that fails for a moment is sent again, up to `retries` times within half a minute, before
    `Unavailable` is raised.

    >>> from millpond.storage import ObjectStorage
    >>> ObjectStorage("s3://bucket/state/").url
    's3://bucket/state'
    """

    def __init__(self, url: str, *, retries: int = 8) -> None:
        self.url = url.rstrip("/")
        self._retries = retries
        self._opened = _connect(self.url, retries)

    def __repr__(self) -> str:
        return f"ObjectStorage({self.url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.url, self._retries)

    @property
    def _store(self) -> ObjectStore:
        """The client; raises InvalidUse in a forked process, where it would wait for ever."""
        global _client_process
        if _client_process is None:
            _client_process = os.getpid()
        elif _client_process != os.getpid():
            raise InvalidUse(
                f"state_dir {self.url}: this process was forked from one that had used an object store, and "
                "the client does not survive a fork. Start processes with multiprocessing's 'spawn'."
            )
        return self._opened

    def get(self, path: str) -> bytes | None:
        import obstore

        check_path(path)
        store = self._store
        try:
            return obstore.get(store, path).bytes().to_bytes()
        except Exception as error:
            if _is_missing_object(error):
                return None
            raise _store_error(self.url, "read", error) from error

    def get_range(self, path: str, start: int, length: int) -> bytes | None:
        import obstore

        check_path(path)
        check_range(start, length)
        store = self._store
        if length == 0:  # HTTP has no empty range
            return None if self._size(path) is None else b""
        try:
            return obstore.get_range(store, path, start=start, length=length).to_bytes()
        except Exception as error:
            if _is_missing_object(error):
                return None
            if "status code: 416" in str(error) and start >= (self._size(path) or 0):
                return b""
            raise _store_error(self.url, "read", error) from error

    def put(self, path: str, data: bytes | memoryview) -> None:
        import obstore

        check_path(path)
        store, view = self._store, as_view(data)
        try:
            obstore.put(store, path, view, chunk_size=_REQUEST_BYTES)
        except Exception as error:
            raise _store_error(self.url, "written", error) from error

    def put_new(self, path: str, data: bytes | memoryview) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        check_path(path)
        store, view = self._store, as_view(data)
        for _ in range(_MAX_CONFLICTS):
            try:
                obstore.put(store, path, view, mode="create")
                return True
            except (AlreadyExistsError, PreconditionError):
                # A store also answers "conflict" if two requests collided and neither was kept, and obstore
                # reports that in the same words. So look whether there is an object.
                if self._size(path) is not None:
                    return False
            except Exception as error:
                raise _store_error(self.url, "written", error) from error
        raise Unavailable(
            f"state_dir {self.url}: cannot be written just now: {path} collided with other requests {_MAX_CONFLICTS} "
            "times over, and none of them was kept. Try again."
        )

    def list(self, prefix: str, after: str | None = None) -> Iterator[Item]:
        check_listing(prefix, after)
        return self._list(prefix, after)

    def delete(self, paths: Iterable[str]) -> None:
        import obstore

        store, gone = self._store, check_paths(paths)
        try:
            obstore.delete(store, gone)
        except Exception as error:
            if not _is_missing_object(error):
                raise _store_error(self.url, "deleted", error) from error
            # Some stores stop at the first object that is not there.
            if len(gone) > 1:
                for path in gone:
                    self.delete([path])

    def _list(self, prefix: str, after: str | None) -> Iterator[Item]:
        import obstore

        store, found = self._store, []
        try:
            for page in obstore.list(store, prefix or None, offset=after, chunk_size=_PAGE_ITEMS):
                found += [(meta["path"], meta["size"]) for meta in page]
        except Exception as error:
            raise _store_error(self.url, "listed", error) from error
        # Not every store lists in order, nor does obstore promise it; sorting what is sorted costs little.
        for path, size in sorted(found):
            if path != prefix and not is_hidden(path, prefix):
                yield Item(path, size)

    def _size(self, path: str) -> int | None:
        import obstore

        store = self._store
        try:
            return obstore.head(store, path)["size"]
        except Exception as error:
            if _is_missing_object(error):
                return None
            raise _store_error(self.url, "read", error) from error


def _connect(url: str, retries: int) -> ObjectStore:
    from obstore.store import from_url  # imported here: most programs never open an object store

    try:
        check_path(url.partition("://")[2])
        return from_url(
            url,
            retry_config={
                "max_retries": retries,
                "retry_timeout": timedelta(seconds=30),
                "backoff": {"max_backoff": timedelta(seconds=3)},
            },
        )
    except Exception as error:
        raise InvalidUse(
            f"state_dir {url}: cannot be opened. Expected s3://bucket/folder, gs://bucket/folder or "
            "az://container/folder, and the store's environment variables, such as AWS_REGION, "
            f"GOOGLE_APPLICATION_CREDENTIALS or AZURE_STORAGE_ACCOUNT_NAME; got: {_reason(error)}"
        ) from error


def _reopen(url: str, retries: int) -> ObjectStorage:
    return ObjectStorage(url, retries=retries)


_NO_BUCKET = re.compile("NoSuchBucket|ContainerNotFound|specified bucket does not exist")
# The addresses at which a client looks for the machine's role if it was given no keys.
_ROLE_SERVICE = re.compile(
    r"169\.254\.\d+\.\d+|/latest/api/token|/latest/meta-data|metadata\.google\.internal|/computeMetadata|"
    r"/metadata/identity|/oauth2/token"
)
_FORBIDDEN = re.compile(r"status code: 40[13]")
_REFUSED = re.compile(r"status code: 4(?!08|09|25|29)\d\d")


def _is_missing_object(error: Exception) -> bool:
    return isinstance(error, FileNotFoundError) and not _NO_BUCKET.search(str(error))


def _reason(error: Exception) -> str:
    """Return the readable part of obstore's message; the rest repeats it as Rust prints it."""
    return " ".join(str(error).partition("\n\nDebug source:")[0].split())


def _store_error(url: str, verb: str, error: Exception) -> MillpondError:
    """Return the error to raise for one of obstore's: the address, what is wrong, the reason, what to do."""
    reason = _reason(error)
    kind, what, todo = _diagnose(error, reason)
    shown = reason if len(reason) <= 500 else reason[:500] + "…"
    return kind(f"state_dir {url}: cannot be {verb}: {what} ({shown}). {todo}")


def _diagnose(error: Exception, reason: str) -> tuple[type[InvalidUse] | type[Unavailable], str, str]:
    """Return the kind of error, what is wrong and what to do."""
    from obstore.exceptions import NotSupportedError, PermissionDeniedError, UnauthenticatedError

    if isinstance(error, FileNotFoundError) or _NO_BUCKET.search(reason):
        return InvalidUse, "the bucket does not exist", "Create it, or choose another one."
    if isinstance(error, PermissionDeniedError | UnauthenticatedError) or _FORBIDDEN.search(reason):
        todo = "Expected credentials in the environment that may read, write, list and delete objects there."
        return InvalidUse, "these credentials are not allowed to", todo
    if _ROLE_SERVICE.search(reason):
        todo = "Set the store's environment variables, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
        return InvalidUse, "no credentials were found, and this machine has no role", todo
    if isinstance(error, NotImplementedError | NotSupportedError) or "status code: 501" in reason:
        todo = "A ledger needs it: choose a store that has it, and leave AWS_CONDITIONAL_PUT unset."
        return InvalidUse, "the store has no put-if-absent, or it is switched off", todo
    if "builder error" in reason:
        todo = "Expected an https:// address, or an http:// one and AWS_ALLOW_HTTP=true."
        return InvalidUse, "the endpoint cannot be used", todo
    if isinstance(error, ValueError) or ("RequestTimeout" not in reason and _REFUSED.search(reason)):
        return InvalidUse, "the store refused", "Check the address, the region and the credentials."
    return Unavailable, "no answer", "Try again; if it stays, look at the network and the store."
