"""As much of Google Cloud Storage's XML protocol as obstore speaks, in memory.

Unlike S3 it answers 404 when what is to be deleted is not there, and it can be told to answer the
next puts with 409, as stores do when two requests meet and neither is kept, to lose the replies to
them, and to list backwards, as no store is known to do but none is obliged not to.
"""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_HEADERS = {"ETag": '"1"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT", "x-goog-generation": "1"}


class GcsServer:
    """One bucket called "bucket" on a free port of 127.0.0.1."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.conflicts = 0
        self.lost_replies = 0
        self.backwards = False
        self.lock = Lock()
        server = self

        class Handler(_Handler):
            gcs = server

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> GcsServer:
        Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._http.shutdown()
        self._http.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    gcs: GcsServer

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        bucket, _, name = unquote(url.path).lstrip("/").partition("/")
        if bucket != "bucket":
            return self._answer(404, b"<Error><Code>NoSuchBucket</Code></Error>")
        if not name:
            return self._list(parse_qs(url.query))
        data = self.gcs.objects.get(name)
        if data is None:
            return self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        wanted = self.headers.get("Range")
        if wanted is None:
            return self._answer(200, data)
        first, last = (int(number) for number in wanted.removeprefix("bytes=").split("-"))
        if first >= len(data):
            return self._answer(416, b"")
        last = min(last, len(data) - 1)
        return self._answer(206, data[first : last + 1], {"Content-Range": f"bytes {first}-{last}/{len(data)}"})

    do_HEAD = do_GET

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        name = unquote(urlsplit(self.path).path).removeprefix("/bucket/")
        with self.gcs.lock:
            if self.gcs.conflicts:
                self.gcs.conflicts -= 1
                return self._answer(409, b"<Error><Code>Conflict</Code></Error>")
            if self.headers.get("x-goog-if-generation-match") == "0" and name in self.gcs.objects:
                return self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            self.gcs.objects[name] = data
            if self.gcs.lost_replies:
                self.gcs.lost_replies -= 1
                self.close_connection = True
                return None
        return self._answer(200, b"")

    def do_DELETE(self) -> None:
        name = unquote(urlsplit(self.path).path).removeprefix("/bucket/")
        with self.gcs.lock:
            gone = self.gcs.objects.pop(name, None)
        self._answer(204 if gone is not None else 404, b"")

    def _list(self, query: dict[str, list[str]]) -> None:
        prefix, after = query.get("prefix", [""])[0], query.get("start-after", [""])[0]
        with self.gcs.lock:
            found = sorted(name for name in self.gcs.objects if name.startswith(prefix) and name > after)
            rows = [
                f"<Contents><Key>{escape(name)}</Key><Size>{len(self.gcs.objects[name])}</Size>"
                "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
                for name in (reversed(found) if self.gcs.backwards else found)
            ]
        self._answer(200, f"<ListBucketResult>{''.join(rows)}</ListBucketResult>".encode())

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, **(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass
