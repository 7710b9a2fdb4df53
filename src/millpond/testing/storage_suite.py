"""The contract of storages as tests, to run against your own storage.

# test_my_storage.py
import pytest
from millpond.testing.storage_suite import StorageSuite

class TestMyStorage(StorageSuite):
    @pytest.fixture
    def storage(self, tmp_path):
        return MyStorage(tmp_path)
"""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from threading import Barrier, Event
from typing import Any, ClassVar

import pytest

from millpond.errors import InvalidUse
from millpond.storage import Item, Storage, open_storage

MEGABYTE = 1024 * 1024

BAD_PATHS = [
    "",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "../a",
    "a/../b",
    "a/./b",
    "a/..",
    "a\x00b",
    "a\nb",
    "a\ud800b",
]

# In the order in which they must be listed: that of their UTF-8 bytes, where "-" and "." come before
# "/", and the letters that UTF-16 would put last do not.
ORDERED = ["n/a-b/z", "n/a.b", "n/a/b", "n/a/c/d", "n/a0", "n/b", "n/é", "n/\uffee", "n/😀"]


def paths(items: Iterator[Item]) -> list[str]:
    """Return the paths that a storage lists.

    >>> from millpond.storage import Item
    >>> from millpond.testing.storage_suite import paths
    >>> paths(iter([Item("a", 1), Item("b", 2)]))
    ['a', 'b']
    """
    return [item.path for item in items]


class StorageSuite:
    """The contract of `mp.lowlevel.Storage`, one test for each promise.

    Override the fixture `storage`: return a new, empty storage each time. Set `across_processes = True` if other
    processes can reach the storage. If `open_storage` does not know its URL, override `reopen`.

    >>> from millpond.testing.storage_suite import StorageSuite
    >>> class TestMine(StorageSuite):
    ...     across_processes = True
    >>> StorageSuite.__test__, TestMine.__test__
    (False, True)
    """

    __test__: ClassVar[bool] = False
    across_processes: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__test__" not in cls.__dict__:
            cls.__test__ = True

    @pytest.fixture
    def storage(self) -> Storage:
        """Return a new, empty storage for one test."""
        raise NotImplementedError("StorageSuite: override the fixture `storage` with one that returns yours")

    def reopen(self, url: str) -> Storage:
        """Open the storage of a URL, as another program would."""
        return open_storage(url)

    # Reading and writing

    def test_what_is_put_comes_back(self, storage: Storage) -> None:
        storage.put("orders/a", b"\x00\xffone")
        assert storage.get("orders/a") == b"\x00\xffone"

    def test_what_is_not_there_reads_as_none(self, storage: Storage) -> None:
        assert storage.get("orders/a") is None
        assert storage.get_range("orders/a", 0, 1) is None
        assert storage.get_range("orders/a", 0, 0) is None

    def test_a_folder_is_no_file(self, storage: Storage) -> None:
        storage.put("orders/a", b"one")
        assert storage.get("orders") is None
        assert storage.get_range("orders", 0, 1) is None

    def test_nothing_lies_below_a_file(self, storage: Storage) -> None:
        storage.put("orders/a", b"one")
        assert storage.get("orders/a/b") is None
        assert paths(storage.list("orders/a")) == []

    def test_put_replaces_by_longer_and_by_shorter(self, storage: Storage) -> None:
        for data in (b"one", b"longer than that", b"2"):
            storage.put("a", data)
            assert storage.get("a") == data

    def test_an_empty_file_is_there(self, storage: Storage) -> None:
        storage.put("a", b"")
        assert storage.put_new("b", b"")
        assert storage.get("a") == storage.get("b") == b""
        assert [*storage.list("")] == [Item("a", 0), Item("b", 0)]

    def test_memory_views_are_taken_as_the_bytes_they_show(self, storage: Storage) -> None:
        numbers = memoryview(bytes(range(12)))
        views = {
            "slice": numbers[3:7],
            "steps": numbers[::4],
            "empty": numbers[:0],
            "shaped": numbers.cast("B", (3, 4)),
            "wider": numbers.cast("i"),
        }
        for name, view in views.items():
            storage.put(f"put/{name}", view)
            assert storage.put_new(f"new/{name}", view)
            assert storage.get(f"put/{name}") == storage.get(f"new/{name}") == view.tobytes()

    def test_what_is_stored_does_not_follow_the_buffer_it_came_from(self, storage: Storage) -> None:
        buffer = bytearray(b"one")
        storage.put("a", memoryview(buffer))
        storage.put_new("b", memoryview(buffer))
        buffer[:] = b"two"
        assert storage.get("a") == storage.get("b") == b"one"

    def test_ten_megabytes_come_back(self, storage: Storage) -> None:
        data = bytes(range(256)) * (10 * MEGABYTE // 256)
        storage.put("put", data)
        assert storage.put_new("new", data)
        assert storage.get("put") == storage.get("new") == data
        assert storage.get_range("new", 9 * MEGABYTE, 256) == bytes(range(256))

    def test_a_range_ends_where_the_file_ends(self, storage: Storage) -> None:
        data = b"0123456789"
        storage.put("a", data)
        for start, length in [(0, 10), (2, 3), (8, 9), (9, 1), (10, 1), (99, 1), (4, 0), (99, 0), (3, 2**62)]:
            assert storage.get_range("a", start, length) == data[start : start + length]

    @pytest.mark.parametrize(("start", "length"), [(-1, 1), (0, -1)])
    def test_a_range_is_not_counted_backwards(self, storage: Storage, start: int, length: int) -> None:
        storage.put("a", b"0123456789")
        with pytest.raises(InvalidUse, match="0 or more"):
            storage.get_range("a", start, length)

    # Put if absent

    def test_put_new_writes_once(self, storage: Storage) -> None:
        assert storage.put_new("ledger/1", b"one") is True
        assert storage.put_new("ledger/1", b"two") is False
        assert storage.get("ledger/1") == b"one"

    def test_put_new_yields_to_a_put(self, storage: Storage) -> None:
        storage.put("a", b"one")
        assert storage.put_new("a", b"two") is False
        assert storage.get("a") == b"one"

    def test_put_replaces_what_put_new_wrote(self, storage: Storage) -> None:
        storage.put_new("a", b"one")
        storage.put("a", b"two")
        assert storage.get("a") == b"two"

    def test_put_new_writes_again_after_a_delete(self, storage: Storage) -> None:
        storage.put_new("a", b"one")
        storage.delete(["a"])
        assert storage.put_new("a", b"two") is True
        assert storage.get("a") == b"two"

    def test_of_many_threads_one_wins(self, storage: Storage) -> None:
        threads, rounds = 8, 10
        start = Barrier(threads)

        def contend(me: int) -> list[bool]:
            won = []
            for number in range(rounds):
                start.wait(timeout=60)
                won.append(storage.put_new(f"ledger/{number}", b"%d" % me))
            return won

        with ThreadPoolExecutor(threads) as pool:
            results = [*pool.map(contend, range(threads))]
        for number in range(rounds):
            winners = [me for me in range(threads) if results[me][number]]
            assert [storage.get(f"ledger/{number}")] == [b"%d" % me for me in winners]

    def test_of_many_processes_one_wins(self, storage: Storage) -> None:
        if not self.across_processes:
            return
        processes, rounds = 3, 50
        spawn = multiprocessing.get_context("spawn")
        barrier = spawn.Barrier(processes)
        with ProcessPoolExecutor(processes, spawn, _start_together, (barrier,)) as pool:
            contenders = [pool.submit(_contend, storage, me, rounds) for me in range(processes)]
            results = [contender.result(timeout=120) for contender in contenders]
        for number in range(rounds):
            winners = [me for me in range(processes) if results[me][number]]
            assert [storage.get(f"ledger/{number}")] == [b"%d" % me for me in winners]

    # Whole or not at all

    def test_a_reader_meets_the_old_file_or_the_new_one(self, storage: Storage) -> None:
        versions = [bytes([letter]) * MEGABYTE for letter in b"abcd"]
        storage.put("a", versions[0])
        done = Event()

        def replace() -> None:
            try:
                for version in versions * 5:
                    storage.put("a", version)
            finally:
                done.set()

        seen = set()
        with ThreadPoolExecutor(1) as pool:
            writer = pool.submit(replace)
            while not done.is_set():
                seen.add(storage.get("a"))
                assert [item.size for item in storage.list("")] == [MEGABYTE]
            writer.result()
        assert seen <= {*versions}

    def test_a_reader_meets_nothing_or_all_of_a_new_file(self, storage: Storage) -> None:
        data = b"a" * MEGABYTE
        done = Event()

        def create() -> None:
            try:
                for number in range(20):
                    storage.put_new(f"new/{number}", data)
            finally:
                done.set()

        with ThreadPoolExecutor(1) as pool:
            writer = pool.submit(create)
            number = 0
            while not done.is_set():
                found = storage.get(f"new/{number}")
                assert found is None or found == data
                assert {item.size for item in storage.list("new")} <= {MEGABYTE}
                number += found is not None
            writer.result()
        assert len(paths(storage.list("new"))) == 20

    # Listing

    def test_list_goes_by_path_through_all_folders(self, storage: Storage) -> None:
        for path in ORDERED[::-1]:
            storage.put(path, b"1")
        assert paths(storage.list("n")) == ORDERED

    def test_list_goes_on_strictly_after_a_path(self, storage: Storage) -> None:
        for path in ORDERED:
            storage.put(path, b"1")
        for after in [*ORDERED, "n/a", "n/a/b/c", "n/a/bb", "n/zz", "a", "n", "z"]:
            assert paths(storage.list("n", after=after)) == [path for path in ORDERED if path > after]

    def test_list_tells_sizes(self, storage: Storage) -> None:
        storage.put("a", b"12345")
        storage.put_new("b/c", b"123")
        storage.put("a", b"12")
        assert [*storage.list("")] == [Item("a", 2), Item("b/c", 3)]

    def test_list_keeps_to_its_folder(self, storage: Storage) -> None:
        for path in (
            "orders/ledger/1",
            "orders/ledger-old/1",
            "orders/ledger.json",
            "orders/led/1",
            "other/1",
        ):
            storage.put(path, b"1")
        assert paths(storage.list("orders/ledger")) == ["orders/ledger/1"]

    def test_list_of_the_root_has_everything(self, storage: Storage) -> None:
        storage.put("a/b", b"1")
        storage.put("c", b"1")
        assert paths(storage.list("")) == ["a/b", "c"]
        assert paths(storage.list("", after="a/b")) == ["c"]

    def test_list_of_a_folder_that_is_not_there_is_empty(self, storage: Storage) -> None:
        assert [*storage.list("nowhere")] == []
        assert [*storage.list("")] == []

    def test_hidden_files_can_be_read_but_are_not_listed(self, storage: Storage) -> None:
        for path in (".probe", "a/.probe", "a/.hidden/b", "a/seen.json"):
            storage.put(path, b"1")
            assert storage.get(path) == b"1"
        assert paths(storage.list("")) == paths(storage.list("a")) == ["a/seen.json"]
        assert paths(storage.list("a/.hidden")) == ["a/.hidden/b"]

    def test_files_may_be_deleted_while_they_are_listed(self, storage: Storage) -> None:
        for number in range(10):
            storage.put(f"a/{number}", b"1")
        for item in storage.list("a"):
            storage.delete([item.path])
        assert [*storage.list("a")] == []

    # Deleting

    def test_delete_removes_these_and_no_others(self, storage: Storage) -> None:
        for path in ("a/1", "a/2", "a/3", "b"):
            storage.put(path, b"1")
        storage.delete(path for path in ("a/1", "a/3"))
        assert paths(storage.list("")) == ["a/2", "b"]
        assert storage.get("a/1") is None

    def test_delete_does_not_mind_what_is_not_there(self, storage: Storage) -> None:
        storage.put("a", b"1")
        storage.put("b/c", b"1")
        storage.delete(["nowhere", "a", "a/below", "b", "nowhere/b"])
        storage.delete([])
        assert paths(storage.list("")) == ["b/c"]

    def test_delete_does_not_take_a_string_for_a_list_of_letters(self, storage: Storage) -> None:
        storage.put("a", b"1")
        with pytest.raises(InvalidUse, match="got the string 'a'"):
            storage.delete("a")
        assert storage.get("a") == b"1"

    # Paths

    @pytest.mark.parametrize(
        "path",
        [
            "naïve/Straße",
            "注文/元帳/1.json",
            "😀",
            "with space",
            "a%20b",
            "a+b=c&d;e,f",
            "(a)[b]{c}",
            "a#b?c",
        ],
    )
    def test_paths_may_hold_any_letters(self, storage: Storage, path: str) -> None:
        storage.put(path, b"one")
        assert storage.put_new(path, b"two") is False
        assert storage.get(path) == b"one"
        assert paths(storage.list("")) == [path]
        assert paths(storage.list("", after=path)) == []
        storage.delete([path])
        assert storage.get(path) is None

    @pytest.mark.parametrize("path", BAD_PATHS)
    def test_a_path_that_leads_elsewhere_is_refused(self, storage: Storage, path: str) -> None:
        storage.put("a", b"1")
        calls: list[Callable[[], object]] = [
            lambda: storage.get(path),
            lambda: storage.get_range(path, 0, 1),
            lambda: storage.put(path, b"2"),
            lambda: storage.put_new(path, b"2"),
            lambda: storage.delete(["a", path]),
            lambda: storage.list("", after=path),
            lambda: storage.list(path or ".."),
        ]
        for call in calls:
            with pytest.raises(InvalidUse, match="expected a relative path"):
                call()
        assert [*storage.list("")] == [Item("a", 1)]

    # The same place again

    def test_its_url_opens_the_same_place(self, storage: Storage) -> None:
        storage.put("a", b"one")
        again = self.reopen(storage.url)
        assert again.get("a") == b"one"
        assert again.put_new("a", b"two") is False
        again.put("b", b"three")
        assert storage.get("b") == b"three"
        assert again.url == storage.url

    def test_a_pickled_copy_is_the_same_place(self, storage: Storage) -> None:
        storage.put("a", b"one")
        again = pickle.loads(pickle.dumps(storage))
        assert again.get("a") == b"one"
        assert again.url == storage.url


_wait_for_all: Callable[[], object]


def _start_together(barrier: Any) -> None:
    """Called once in each process of the pool: a barrier can be passed only when a process starts."""
    global _wait_for_all
    _wait_for_all = partial(barrier.wait, timeout=60)


def _contend(storage: Storage, me: int, rounds: int) -> list[bool]:
    won = []
    for number in range(rounds):
        _wait_for_all()
        won.append(storage.put_new(f"ledger/{number}", b"%d" % me))
    return won
