"""Every path that Millpond writes below `state_dir` is built here.

<app>/ledger/00000000000000000042.json     one record
<app>/steps/<step>/<partition>/…           state segments
<app>/outputs/<sink>/<partition>/…         output segments
<app>/exchange/<batch>-<driver>/…          rows between two keyed stages of one batch; gone with it
<app>/positions/<stream>/…                 positions that are too long for a record
<app>/spark/<stream>/…                     Spark's own checkpoint files, where it is a source
<app>/manifests/…                          the state at some record, as lists of segments
<app>/ledger/floor                         the number below which records may be gone
<app>/heartbeat.json                       who seems to be running
<app>/recovery/00003.json                  how much of a partition's replica a worker has rebuilt; gone with it
<app>/standby-drivers/<id>.json            which drivers wait to take over
<app>/requests/<id>.json                   what a command asks the driver to do, until it is answered
<app>/requests/<id>.answer.json            the driver's answer, until the command has read it
<app>/rebuild/<id>/…                       all of the above, of an app that rebuilds a step of this one
savepoint.json                             what a savepoint is, in the place that it was written to

`FILE_KINDS` lists them as patterns. Beside these there are only hidden files, whose names begin with a dot and which
are never read: a probe whether the place can be written, and files on their way into place.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Literal
from urllib.parse import quote, unquote

from millpond.errors import InvalidUse

SAVEPOINT = "savepoint.json"


MOST_NAME = 120  # bytes of UTF-8
MOST_ELEMENT = 255  # bytes of one element of a path, on every file system in use
_CUT = "%~"  # the hash of a name that is too long follows; a quoted name never contains this


def check_name(name: object, what: str) -> str:
    """Return a name of an app, stream, step, table or sink if it is valid, or raise `InvalidUse`.

    >>> from millpond.log.paths import check_name
    >>> check_name("заказы", "App(name)")
    'заказы'
    """
    trouble = ""
    if not isinstance(name, str):
        trouble = "a name is a string"
    elif not name.strip():
        trouble = "it is empty"
    elif "\x00" in name:
        trouble = "it contains a NUL character"
    elif any("\ud800" <= c <= "\udfff" for c in name):
        trouble = "it contains half of a surrogate pair, which is no text"
    elif len(name.encode()) > MOST_NAME:
        trouble = f"it has {len(name.encode())} bytes in UTF-8"
    if trouble:
        raise InvalidUse(
            f"{what}: expected a plain name of 1 to {MOST_NAME} bytes such as 'orders', got {name!r}: {trouble}. "
            "Choose another one."
        )
    assert isinstance(name, str)
    return name


def quote_name(name: str, most: int = MOST_ELEMENT) -> str:
    """Quote a user's name as one path element that is readable and can be reversed.

    Each byte of a character outside ASCII becomes three. A name that is then longer than `most` is cut and ends with a
    hash.

    >>> from millpond.log.paths import quote_name
    >>> quote_name("per minute"), quote_name("naïve")
    ('per minute', 'na%C3%AFve')
    >>> len(quote_name("ж" * 60))
    255
    """
    text = quote(name, safe=" !#$&'()+,;=@[]^`{}~")
    return cut_name("%2E" + text[1:] if text.startswith(".") else text, most)


def cut_name(quoted: str, most: int) -> str:
    """Return a quoted name if it has at most `most` bytes, or else its beginning and its hash."""
    if len(quoted) <= most:
        return quoted
    ending = _CUT + blake2b(quoted.encode(), digest_size=16).hexdigest()
    return quoted[: most - len(ending)] + ending


def is_cut_name(element: str) -> bool:
    """Return whether a path element is that of a name that was too long: `unquote_name` does not give it back."""
    return _CUT in element


def unquote_name(element: str) -> str:
    """Return the user's name in a path element."""
    return unquote(element)


@dataclass(frozen=True)
class Attempt:
    """The unique part of a file's name: the batch, the driver and a nonce."""

    batch: int
    driver: str
    nonce: str

    def __str__(self) -> str:
        return f"{self.batch:020d}-{self.driver}-{self.nonce}"


_SHADOW = "\x00"  # which no name of a user's app contains


def shadow_of(app: str, id: str) -> str:
    """Return the name of the app that rebuilds a step of another. Its files are below those of the other.

    No app of a user can have such a name.

    >>> from millpond.log.paths import Paths, shadow_of
    >>> Paths(shadow_of("orders", "5e1f")).root
    'orders/rebuild/5e1f'
    """
    return f"{app}{_SHADOW}{id}"


@dataclass(frozen=True)
class Paths:
    """The paths of one app."""

    app: str

    @cached_property
    def root(self) -> str:
        app, _, shadow = self.app.partition(_SHADOW)
        return f"{quote_name(app)}/rebuild/{shadow}" if shadow else quote_name(app)

    @property
    def shadows(self) -> str:
        """The folder of the apps that rebuild steps of this one."""
        return f"{self.root}/rebuild"

    @cached_property
    def ledger(self) -> str:
        return f"{self.root}/ledger"

    @property
    def heartbeat(self) -> str:
        return f"{self.root}/heartbeat.json"

    @property
    def recoveries(self) -> str:
        """The folder of what workers say about replicas that they rebuild."""
        return f"{self.root}/recovery"

    def recovery(self, partition: int) -> str:
        return f"{self.recoveries}/{partition:05d}.json"

    @cached_property
    def standby_drivers(self) -> str:
        """The folder of the files by which standby drivers show that they wait."""
        return f"{self.root}/standby-drivers"

    def standby_driver(self, id: str) -> str:
        return f"{self.standby_drivers}/{id}.json"

    @property
    def requests(self) -> str:
        return f"{self.root}/requests"

    def request(self, id: str) -> str:
        return f"{self.requests}/{id}.json"

    def answer(self, id: str) -> str:
        return f"{self.requests}/{id}.answer.json"

    def request_id(self, path: str) -> str | None:
        """Return the id in the path of a request; None for an answer or another file."""
        found = re.fullmatch(r"([0-9A-Za-z_-]+)\.json", path.rsplit("/", 1)[-1])
        return None if found is None else found[1]

    def record(self, number: int) -> str:
        return f"{self.ledger}/{number:020d}.json"

    def number(self, record: str) -> int | None:
        """Return the number in a record's path; None if the file is not a record."""
        stem = record.rsplit("/", 1)[-1].removesuffix(".json")
        return int(stem) if len(stem) == 20 and stem.isdigit() else None

    def batch(self, path: str) -> int | None:
        """Return the batch in the path of a file that an attempt wrote; None for other files."""
        for element in reversed(path.split("/")):
            if len(element) > 20 and element[:20].isdigit() and element[20] == "-":
                return int(element[:20])
        return None

    def state(self, step: str, partition: int, attempt: Attempt) -> str:
        return f"{self.root}/steps/{quote_name(step)}/{partition:05d}/{attempt}.parquet"

    def manifest(self, attempt: Attempt) -> str:
        return f"{self.root}/manifests/{attempt}.json"

    @cached_property
    def floor(self) -> str:
        return f"{self.ledger}/floor"

    def output(self, sink: str, partition: int, attempt: Attempt) -> str:
        return f"{self.root}/outputs/{quote_name(sink)}/{partition:05d}/{attempt}.parquet"

    def exchange(self, attempt: Attempt) -> str:
        return f"{self.exchanges(attempt.batch, attempt.driver)}/{attempt.nonce}"

    def exchanges(self, batch: int, driver: str) -> str:
        return f"{self.root}/exchange/{batch:020d}-{driver}"

    def position(self, stream: str, attempt: Attempt) -> str:
        return f"{self.root}/positions/{quote_name(stream)}/{attempt}.json"

    def spark(self, stream: str, attempt: Attempt, file: str) -> str:
        return f"{self.root}/spark/{quote_name(stream)}/{attempt}/{file}"


@dataclass(frozen=True)
class FileKind:
    """One kind of file, what its paths look like, and where the checksum of its bytes is.

    `checksum` is "itself" for small files that carry their own (`millpond.log.checked`), "pointer" for immutable
    files whose checksum is in the record, manifest or savepoint that names them, and "task" for rows between two
    stages, whose checksum the driver hands to the tasks that read them.
    """

    name: str
    pattern: re.Pattern[str]
    checksum: Literal["itself", "pointer", "task"]
    folder: str | None = None  # of files that one batch wrote, below the app's own


def _make_kind(name: str, pattern: str, checksum: Literal["itself", "pointer", "task"], folder: str = "") -> FileKind:
    pattern = pattern.replace("<app>", r"[^/]+(?:/rebuild/[^/]+)?").replace("<attempt>", r"\d{20}-[^/]+")
    return FileKind(name, re.compile(pattern), checksum, folder or None)


FILE_KINDS = (
    _make_kind("record", r"<app>/ledger/\d{20}\.json", "itself"),
    _make_kind("floor", r"<app>/ledger/floor", "itself"),
    _make_kind("heartbeat", r"<app>/heartbeat\.json", "itself"),
    _make_kind("recovery progress", r"<app>/recovery/\d{5}\.json", "itself"),
    _make_kind("standby driver", r"<app>/standby-drivers/[^/]+\.json", "itself"),
    _make_kind("request", r"<app>/requests/[0-9A-Za-z_-]+\.json", "itself"),
    _make_kind("answer", r"<app>/requests/[0-9A-Za-z_-]+\.answer\.json", "itself"),
    _make_kind("savepoint", re.escape(SAVEPOINT), "itself"),
    _make_kind("state segment", r"<app>/steps/[^/]+/\d{5}/<attempt>\.parquet", "pointer", "steps"),
    _make_kind("output segment", r"<app>/outputs/[^/]+/\d{5}/<attempt>\.parquet", "pointer", "outputs"),
    _make_kind("position", r"<app>/positions/[^/]+/<attempt>\.json", "pointer", "positions"),
    _make_kind("spark file", r"<app>/spark/[^/]+/<attempt>/.+", "pointer", "spark"),
    _make_kind("manifest", r"<app>/manifests/<attempt>\.json", "pointer", "manifests"),
    _make_kind("exchange file", r"<app>/exchange/<attempt>/[^/]+", "task", "exchange"),
)
FOLDERS = tuple(kind.folder for kind in FILE_KINDS if kind.folder is not None)


def file_kind(path: str) -> FileKind | None:
    """Return the kind of a file, by its path below `state_dir` or a savepoint; None for a file that is not ours.

    >>> from millpond.log.paths import Paths, file_kind
    >>> file_kind(Paths("orders").record(7)).name
    'record'
    >>> file_kind("orders/notes.txt")
    """
    return next((kind for kind in FILE_KINDS if kind.pattern.fullmatch(path)), None)
