"""What an object store promises beyond the common contract, and words for what goes wrong."""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from gcs_server import GcsServer

from millpond.errors import InvalidUse, Unavailable
from millpond.storage import ObjectStorage, Storage, open_storage
from millpond.testing.storage_suite import paths


def every_verb(storage: Storage) -> list[Callable[[], object]]:
    return [
        lambda: storage.get("a"),
        lambda: storage.get_range("a", 0, 1),
        lambda: storage.put("a", b"1"),
        lambda: storage.put_new("a", b"1"),
        lambda: [*storage.list("")],
        lambda: storage.delete(["a"]),
    ]


@pytest.fixture
def closed_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.fixture
def refusing(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, str], Storage]]:
    """Makes storages behind a server that answers everything with one status."""
    servers = []

    def start(status: int, body: str) -> Storage:
        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body.encode())

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

            def log_message(self, format: str, *args: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_address[1]}")
        return ObjectStorage(s3_url, retries=0)

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_folders_of_one_bucket_are_places_of_their_own(s3_url: str) -> None:
    one, other, both = open_storage(f"{s3_url}/one/"), open_storage(f"{s3_url}/other"), open_storage(s3_url)
    one.put("a", b"1")
    assert other.get("a") is None
    assert paths(both.list("")) == ["one/a"]
    assert one.url == f"{s3_url}/one"


def test_a_whole_bucket_is_a_place(s3_url: str) -> None:
    storage = open_storage(s3_url.removesuffix("/some/folder"))
    open_storage(s3_url).put("a/b", b"1")
    assert paths(storage.list("")) == ["some/folder/a/b"]
    assert storage.get("some/folder/a/b") == b"1"


def test_a_file_that_is_sent_in_parts_comes_back_whole(s3_url: str) -> None:
    storage = open_storage(s3_url)
    data = bytes(range(256)) * (40 * 4096)
    storage.put("a", data)
    assert storage.get("a") == data


def test_more_files_than_one_answer_holds_are_listed(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "4")
    storage = open_storage(s3_url)
    names = [f"a/{number}" for number in range(10)]
    for name in names:
        storage.put(name, b"")
    assert paths(storage.list("a")) == names
    assert paths(storage.list("a", after="a/2")) == names[3:]


def test_a_store_that_lists_out_of_order_is_put_in_order(gcs: GcsServer) -> None:
    storage = open_storage("gs://bucket/state")
    for name in ("a/1", "a/2", "a/3"):
        storage.put(name, b"")
    gcs.backwards = True
    assert paths(storage.list("a")) == ["a/1", "a/2", "a/3"]
    assert paths(storage.list("a", after="a/1")) == ["a/2", "a/3"]


def test_the_mark_that_a_console_leaves_for_a_folder_is_no_file_in_it(s3_url: str, s3_endpoint: str) -> None:
    key = s3_url.removeprefix("s3://") + "/ledger/"
    urllib.request.urlopen(urllib.request.Request(f"{s3_endpoint}/{key}", data=b"", method="PUT")).close()
    storage = open_storage(s3_url)
    storage.put("ledger/1", b"1")
    assert paths(storage.list("ledger")) == ["ledger/1"]


def test_a_conflict_that_left_nothing_there_is_tried_again(gcs: GcsServer) -> None:
    storage = open_storage("gs://bucket/state")
    gcs.conflicts = 2
    assert storage.put_new("a", b"one") is True
    assert storage.get("a") == b"one"


def test_conflicts_without_end_are_no_answer(gcs: GcsServer) -> None:
    storage = open_storage("gs://bucket/state")
    gcs.conflicts = 1_000
    with pytest.raises(Unavailable, match=r"a collided with other requests 5 times over, and none of them was kept"):
        storage.put_new("a", b"one")


def test_a_lost_reply_is_never_taken_for_success_or_for_nothing(gcs: GcsServer) -> None:
    storage = open_storage("gs://bucket/state")
    gcs.lost_replies = 1
    with suppress(Unavailable):
        assert storage.put_new("a", b"ours") is False
    assert storage.get("a") == b"ours"


def test_the_copy_in_another_process_is_the_same_place(s3_url: str) -> None:
    storage = open_storage(s3_url)
    program = "import pickle, sys; pickle.load(sys.stdin.buffer).put('a', b'from there')"
    subprocess.run([sys.executable, "-c", program], input=pickle.dumps(storage), check=True)
    assert storage.get("a") == b"from there"


FORK = """
import os, sys
from millpond.errors import MillpondError
from millpond.storage import ObjectStorage

def ask():
    try:
        ObjectStorage(sys.argv[1], retries=0).get("a")
    except MillpondError as error:
        print(type(error).__name__, error, flush=True)

ask()
if os.fork() == 0:
    ask()
    os._exit(0)
os.wait()
"""


def test_a_forked_process_is_told_so_and_does_not_wait_for_ever(
    s3_url: str, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{closed_port}")
    done = subprocess.run([sys.executable, "-c", FORK, s3_url], check=True, capture_output=True, text=True, timeout=60)
    parent, child = done.stdout.splitlines()
    assert parent.startswith("Unavailable")
    assert child.startswith(f"InvalidUse state_dir {s3_url}: this process was forked")
    assert "'spawn'" in child


def test_obstore_is_not_loaded_before_it_is_needed() -> None:
    program = "import sys, millpond.storage; print('obstore' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert answer.stdout.strip() == "False"


def test_a_missing_bucket_is_said_in_words(s3_url: str) -> None:
    for call in every_verb(open_storage("s3://nowhere/state")):
        with pytest.raises(InvalidUse, match=r"state_dir s3://nowhere/state: .* bucket does not exist .*Create it"):
            call()


def test_missing_credentials_are_said_in_words(s3_url: str, closed_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{closed_port}")
    for call in every_verb(ObjectStorage(s3_url, retries=0)):
        with pytest.raises(InvalidUse, match=r"no credentials were found.*AWS_ACCESS_KEY_ID"):
            call()


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (403, "AccessDenied", "these credentials are not allowed to"),
        (401, "who", "these credentials are not allowed to"),
        (400, "AuthorizationHeaderMalformed", "the store refused .* Check the address, the region"),
        (501, "NotImplemented", "no put-if-absent"),
    ],
)
def test_what_a_person_must_change_is_said_in_words(
    refusing: Callable[[int, str], Storage], status: int, body: str, words: str
) -> None:
    for call in every_verb(refusing(status, body)):
        with pytest.raises(InvalidUse, match=words):
            call()


@pytest.mark.parametrize(
    ("status", "body"), [(500, "InternalError"), (503, "SlowDown"), (429, "Slow"), (400, "RequestTimeout")]
)
def test_what_may_pass_is_unavailable(refusing: Callable[[int, str], Storage], status: int, body: str) -> None:
    for call in every_verb(refusing(status, body)):
        with pytest.raises(Unavailable, match=f"no answer .*{status}.* Try again"):
            call()


def test_a_name_with_416_in_it_is_not_taken_for_an_answer(refusing: Callable[[int, str], Storage]) -> None:
    with pytest.raises(Unavailable, match="no answer"):
        refusing(400, "RequestTimeout").get_range("41631", 0, 1)


def test_a_network_that_is_down_is_unavailable(s3_url: str, closed_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{closed_port}")
    for call in every_verb(ObjectStorage(s3_url, retries=0)):
        with pytest.raises(Unavailable, match=r"no answer .*look at the network"):
            call()


def test_a_store_that_was_away_for_a_moment_is_asked_again(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    statuses = iter([503, 500])

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(next(statuses, 200))
            self.send_header("ETag", '"1"')
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_address[1]}")
        open_storage(s3_url).put("a", b"1")
        server.shutdown()
    assert next(statuses, None) is None


def test_put_if_absent_that_is_switched_off_is_said_in_words(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    with pytest.raises(InvalidUse, match=r"no put-if-absent, or it is switched off .*AWS_CONDITIONAL_PUT unset"):
        open_storage(s3_url).put_new("a", b"1")


def test_an_endpoint_without_encryption_must_be_allowed(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    with pytest.raises(InvalidUse, match="AWS_ALLOW_HTTP=true"):
        open_storage(s3_url).put("a", b"1")


def test_azure_needs_its_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(InvalidUse, match=r"az://container/state: cannot be opened.*AZURE_STORAGE_ACCOUNT_NAME"):
        open_storage("az://container/state")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    storage = open_storage("az://container/state")
    assert pickle.loads(pickle.dumps(storage)).url == storage.url == "az://container/state"


@pytest.mark.parametrize("url", ["s3://", "s3:///", "s3:///a", "gs://", "s3://bucket/../other", "s3://b//c"])
def test_a_url_without_a_proper_bucket_and_folder_is_refused(url: str) -> None:
    with pytest.raises(InvalidUse, match=r"cannot be opened.* Expected s3://bucket/folder"):
        open_storage(url)
