"""As much of the schema registry's HTTP protocol as confluent_kafka's client speaks, in memory.

Protobuf schemas are registered as base64 of a FileDescriptorProto, as the client sends them, and served in that form if
the request says `format=serialized`; without it the answer is a text that is no base64, as the real registry answers
with .proto text.
"""

from __future__ import annotations

import base64
import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

Schema = dict[str, Any]  # schema, schemaType, references
Answer = tuple[int, Any]

_SUBJECT_NOT_FOUND = 40401, "Subject '{}' not found."
_VERSION_NOT_FOUND = 40402, "Version {} not found."
_SCHEMA_NOT_FOUND = 40403, "Schema {} not found"


class SchemaRegistry:
    """A registry on a free port of 127.0.0.1.

    `user` is the "name:password" that requests must carry. `failure` is a status that every request is answered
    with, and `failure_text` the message beside it.
    `only_text` makes it ignore `format=serialized`, as some registries do. `incompatible` holds the subjects that take
    no other version. `requests` lists what was asked, as "GET /path?query".
    """

    def __init__(self, user: str | None = None) -> None:
        self.user = user
        self.failure: int | None = None
        self.failure_text = "as the test says"
        self.only_text = False
        self.incompatible: set[str] = set()
        self.requests: list[str] = []
        self.schemas: list[Schema] = []
        self.subjects: dict[str, list[int]] = {}  # ids by version
        self._late: dict[int, int] = {}  # how often an id is still unknown
        self._lock = Lock()
        server = self

        class Handler(_Handler):
            registry = server

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> SchemaRegistry:
        Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def settings(self, **others: Any) -> dict[str, Any]:
        """Settings for a client that does not try again."""
        return {"url": self.url, "max.retries": 0, **others}

    def add(self, subject: str, schema: Any, kind: str = "AVRO", references: list[dict[str, Any]] | None = None) -> int:
        """Register a schema from outside and return its id. An Avro schema is JSON data, a Protobuf one a file."""
        text = json.dumps(schema) if kind == "AVRO" else base64.b64encode(schema.SerializeToString()).decode()
        body = {"schema": text, "schemaType": kind, "references": references or []}
        status, answer = self.register(subject, body)
        assert status == 200, answer
        return int(answer["id"])

    def learn_late(self, subject: str, schema: Any, after: int) -> int:
        """Register a schema whose id the registry denies at first, so many times, as one that lags behind another."""
        schema_id = self.add(subject, schema)
        self._late[schema_id] = after
        return schema_id

    def register(self, subject: str, body: Schema) -> Answer:
        schema = {"schemaType": "AVRO", "references": [], **body}
        with self._lock:
            schema_id = self._find(schema)
            ids = self.subjects.get(subject, [])
            if ids and schema_id not in ids and subject in self.incompatible:
                return 409, {"error_code": 409, "message": "Schema being registered is incompatible"}
            if schema_id is None:
                self.schemas.append(schema)
                schema_id = len(self.schemas)
            ids = self.subjects.setdefault(subject, [])
            if schema_id not in ids:
                ids.append(schema_id)
            return 200, {"id": schema_id}

    def lookup(self, subject: str, body: Schema) -> Answer:
        if subject not in self.subjects:
            return _not_found(_SUBJECT_NOT_FOUND, subject)
        schema_id = self._find({"schemaType": "AVRO", "references": [], **body})
        if schema_id not in self.subjects[subject]:
            return _not_found(_SCHEMA_NOT_FOUND, "")
        return 200, self._registered(subject, self.subjects[subject].index(schema_id) + 1, None)

    def by_id(self, schema_id: int, form: str | None) -> Answer:
        if not 0 < schema_id <= len(self.schemas) or self._is_late(schema_id):
            return _not_found(_SCHEMA_NOT_FOUND, schema_id)
        return 200, self._shown(schema_id, form)

    def _is_late(self, schema_id: int) -> bool:
        with self._lock:
            left = self._late.get(schema_id, 0)
            self._late[schema_id] = left - 1
            return left > 0

    def by_version(self, subject: str, version: str, form: str | None) -> Answer:
        ids = self.subjects.get(subject)
        if ids is None:
            return _not_found(_SUBJECT_NOT_FOUND, subject)
        number = len(ids) if version == "latest" else int(version)
        if not 0 < number <= len(ids):
            return _not_found(_VERSION_NOT_FOUND, version)
        return 200, self._registered(subject, number, form)

    def _find(self, schema: Schema) -> int | None:
        wanted = _plain(schema)
        return next((i for i, known in enumerate(self.schemas, 1) if _plain(known) == wanted), None)

    def _registered(self, subject: str, version: int, form: str | None) -> Schema:
        schema_id = self.subjects[subject][version - 1]
        return {"subject": subject, "version": version, "id": schema_id, **self._shown(schema_id, form)}

    def _shown(self, schema_id: int, form: str | None) -> Schema:
        """A schema as an answer has it: without the type if it is Avro, and Protobuf as text unless asked otherwise."""
        schema = dict(self.schemas[schema_id - 1])
        if schema["schemaType"] == "AVRO":
            del schema["schemaType"]
        elif schema["schemaType"] == "PROTOBUF" and (form != "serialized" or self.only_text):
            schema["schema"] = 'syntax = "proto3"; // the text of the file'
        return schema


def _plain(schema: Schema) -> Any:
    text = schema["schema"]
    return (
        schema["schemaType"],
        json.loads(text) if schema["schemaType"] == "AVRO" else text,
        schema["references"],
    )


def _not_found(error: tuple[int, str], what: object) -> Answer:
    code, message = error
    return 404, {"error_code": code, "message": message.format(what)}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    registry: SchemaRegistry

    def do_GET(self) -> None:
        self._answer(*self._handle())

    def do_POST(self) -> None:
        self._answer(*self._handle())

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def _handle(self) -> Answer:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.registry.requests.append(f"{self.command} {self.path}")
        if self.registry.failure is not None:
            return self.registry.failure, {
                "error_code": self.registry.failure * 100 + 1,
                "message": self.registry.failure_text,
            }
        if not self._is_allowed():
            return 401, {"error_code": 401, "message": "Unauthorized"}
        url = urlsplit(self.path)
        form = parse_qs(url.query).get("format", [None])[0]
        if self.command == "GET" and (found := re.fullmatch(r"/schemas/ids/(\d+)", url.path)):
            return self.registry.by_id(int(found[1]), form)
        if self.command == "GET" and (found := re.fullmatch(r"/subjects/([^/]+)/versions/(latest|\d+)", url.path)):
            return self.registry.by_version(unquote(found[1]), found[2], form)
        if self.command == "POST" and (found := re.fullmatch(r"/subjects/([^/]+)/versions", url.path)):
            return self.registry.register(unquote(found[1]), json.loads(body))
        if self.command == "POST" and (found := re.fullmatch(r"/subjects/([^/]+)", url.path)):
            return self.registry.lookup(unquote(found[1]), json.loads(body))
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _is_allowed(self) -> bool:
        user = self.registry.user
        wanted = None if user is None else "Basic " + base64.b64encode(user.encode()).decode()
        return wanted is None or self.headers.get("Authorization") == wanted

    def _answer(self, status: int, answer: Any) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
