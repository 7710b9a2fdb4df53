"""The contract of local stores as tests, to run against your own store.

# test_my_store.py
import pytest
from millpond.testing.store_suite import StoreSuite

class TestMyStore(StoreSuite):
    @pytest.fixture
    def store(self):
        return MyStore()
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

import pytest

from millpond.log.segment import Change, SingleCellChanges, changes_table
from millpond.replica.cell_format import Damaged, store_key
from millpond.replica.store import OpenStore, RecordChanges, Replaced, ShrinkingStore, Store, Stuck
from millpond.replica.view import Entry, View
from millpond.timing import MAX_TICKS

Cells = dict[tuple[str, bytes, bytes], Change]
STEPS = ("total", "named", "timed")
KEYS = 60
TIMEOUT = 120.0  # seconds that another process may take on a busy machine


def key_of(number: int) -> bytes:
    """Return a key of the example log; some are longer than a store's own keys may be.

    >>> from millpond.testing.store_suite import key_of
    >>> key_of(4), len(key_of(7))
    (b'"key-0004"', 410)
    """
    return b'"key-%04d%s"' % (number, b"x" * 400 if number % 20 == 7 else b"")


def example_log(count: int, seed: int = 7) -> list[RecordChanges]:
    """Return records that set, change and delete cells: unnamed ones, named ones, and ones with times.

    >>> from millpond.testing.store_suite import example_log
    >>> [record.number for record in example_log(3)]
    [0, 1, 2]
    """
    chance = random.Random(seed)
    found: list[RecordChanges] = []
    for number in range(count):
        keys = sorted(key_of(i) for i in (range(KEYS) if number == 0 else chance.sample(range(KEYS), 20)))
        values = [None if number and chance.random() < 0.2 else b"%d" % (1000 * number + i) for i in range(len(keys))]
        named = [
            Change(key, b"c:%d%s" % (n, b"n" * 300 if n == 3 else b""), None if chance.random() < 0.3 else b"v" * n)
            for key in keys[::3]
            for n in range(4)
        ]
        timed = [
            Change(key, b"t", None)
            if chance.random() < 0.3
            else Change(key, b"t", b"at", chance.randrange(-50, 50) or None, chance.randrange(50) or None)
            for key in keys[::2]
        ]
        changes: dict[str, Sequence[Change]] = {"total": SingleCellChanges(keys, values), "named": named}
        if number != 1:
            changes["timed"] = timed
        found.append(RecordChanges(number, changes, f"record-{number}", f"record-{number - 1}" if number else ""))
    return found


def fold_log(log: Sequence[RecordChanges]) -> Cells:
    """Return the cells that the records of a log come to.

    >>> from millpond.testing.store_suite import example_log, fold_log
    >>> len(fold_log(example_log(1)[:0]))
    0
    """
    cells: Cells = {}
    for record in log:
        assert isinstance(record.changes, Mapping)
        for step, changes in record.changes.items():
            for change in changes:
                cells.pop((step, change.key, change.cell), None)
                if change.value is not None:
                    cells[step, change.key, change.cell] = change
    return cells


def find_difference(view: View, log: Sequence[RecordChanges]) -> str:
    """Return what a view shows otherwise than the records up to its position; "" if all is right.

    >>> from millpond.testing.store_suite import find_difference
    >>> def check(view, log): assert find_difference(view, log) == ""
    """
    cells = fold_log(log[: view.position + 1])
    for step in STEPS:
        own = {(key, cell): Entry(*change) for (at, key, cell), change in cells.items() if at == step}  # type: ignore[arg-type]
        for compare in (_difference_of_scans, _difference_of_keys, _difference_of_lookups, _difference_of_times):
            if difference := compare(view, step, own):
                return difference
    return ""


_Own = dict[tuple[bytes, bytes], Entry]


def _keys() -> list[bytes]:
    return [key_of(i) for i in range(KEYS)] + [b'"absent"', b'"key-0000"x', b'"zzz"']


def _difference_of_scans(view: View, step: str, own: _Own) -> str:
    shown = list(view.entries(step))
    if {(entry.key, entry.cell): entry for entry in shown} != own or len(shown) != len(own):
        return f"entries of {step}"
    if sorted(view.scan(step)) != sorted((entry.key, entry.cell, entry.value) for entry in own.values()):
        return f"scan of {step}"
    if len([key for key, _ in groupby(entry.key for entry in shown)]) != len({key for key, _ in own}):
        return f"cells of one key of {step} are apart"
    return "" if view.count(step) == len(own) else f"count of {step}"


def _difference_of_keys(view: View, step: str, own: _Own) -> str:
    """Compare the cells of each key: all, those whose names begin alike, and those of a range."""
    for key in _keys():
        mine = {cell: own[at, cell] for at, cell in sorted(own) if at == key}
        if {entry.cell: entry for entry in view.entries(step, key)} != mine:
            return f"entries of {step}, {key[:20]!r}"
        if sorted(entry.cell for entry in view.entries(step, key, b"c:1")) != [c for c in mine if c.startswith(b"c:1")]:
            return f"entries of {step}, {key[:20]!r}, that begin with c:1"
        if len(key) < 200:  # a range has no long names
            inside = [entry for cell, entry in mine.items() if b"c:1" <= cell <= b"c:2"]
            if list(view.range(step, key, b"c:1", b"c:2")) != inside:
                return f"range of {step}, {key[:20]!r}"
            if view.last(step, key, b"c:1", b"c:2") != (inside[-1] if inside else None):
                return f"last of {step}, {key[:20]!r}"
    return ""


def _difference_of_lookups(view: View, step: str, own: _Own) -> str:
    names = sorted({cell for _, cell in own} | {b"", b"none"})
    keys, places = _keys(), [(key, cell) for key in _keys() for cell in names]
    values = [own[place].value if place in own else None for place in places]
    if [view.get(step, *place) for place in places] != values:
        return f"get of {step}"
    if [view.entry(step, *place) for place in places] != [own.get(place) for place in places]:
        return f"entry of {step}"
    if view.get_cells(step, [key for key, _ in places], [cell for _, cell in places]) != values:
        return f"get_cells of {step}"
    for beginning in {b"", *(key[:size] for key in keys for size in (1, len(key) - 1, len(key)))}:
        begins = sorted(
            (key, entry.value) for (key, cell), entry in own.items() if not cell and key.startswith(beginning)
        )
        if sorted(view.scan_keys(step, beginning)) != begins:
            return f"scan_keys of {step}, {beginning[:20]!r}"
    unnamed = [own[key, b""].value if (key, b"") in own else None for key in keys]
    return "" if view.get_many(step, keys) == unnamed else f"get_many of {step}"


def _difference_of_times(view: View, step: str, cells: _Own) -> str:
    own = list(cells.values())
    if not any(entry.due is not None or entry.wall is not None for entry in own):
        return "" if not list(view.due(step, MAX_TICKS)) else f"due of {step}, which has no times"
    latest = view.latest(step)
    if latest is not None and any(entry.due is not None and entry.due > latest for entry in own):
        return f"latest of {step}"
    for wall in (False, True):
        times = [(entry.wall if wall else entry.due, entry) for entry in own]
        for after, until in ((None, 10), (-10, 30), (0, MAX_TICKS - 1)):
            expected = [(t, e) for t, e in times if t is not None and t <= until and (after is None or t > after)]
            found = list(view.due(step, until, wall=wall, after=after))
            if sorted(found) != sorted(entry for _, entry in expected):
                return f"due of {step} from {after} to {until}, wall={wall}"
            shown = [entry.wall if wall else entry.due for entry in found]
            if shown != sorted(shown):  # type: ignore[type-var]
                return f"due of {step} is not in order"
    due = sorted((e.key, e.cell, e.value) for e in own if e.due is not None and e.due <= 10)
    if sorted(zip(*view.all_due(step, 10), strict=True)) != due:
        return f"all_due of {step}"
    without = {store_key(key, cell) for key, cell, _ in due[::2]}
    if sorted(e.key for e in view.due(step, 10, exclude=without)) != [key for key, *_ in due[1::2]]:
        return f"due of {step}, without some"
    return (
        "" if len(view.all_due(step, 10, exclude=without)[0]) == len(due[1::2]) else f"all_due of {step}, without some"
    )


class Interrupted(Exception):
    """Raised by the suite while a store iterates over the changes of a record.

    >>> from millpond.testing.store_suite import Interrupted
    >>> str(Interrupted("stop"))
    'stop'
    """


class StoreSuite:
    """The contract of `mp.lowlevel.Store` and `mp.lowlevel.OpenStore`, one test for each promise.

    Override the fixture `store`: return your store. Folders below pytest's `tmp_path` are used.

    >>> from millpond.testing.store_suite import StoreSuite
    >>> class TestMine(StoreSuite): pass
    >>> StoreSuite.__test__, TestMine.__test__
    (False, True)
    """

    __test__: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__test__" not in cls.__dict__:
            cls.__test__ = True

    @pytest.fixture
    def store(self) -> Store:
        """Return the store to test."""
        raise NotImplementedError("StoreSuite: override the fixture `store` with one that returns yours")

    @pytest.fixture
    def path(self, store: Store, tmp_path: Path) -> Iterator[Path]:
        """Return a folder that does not exist yet, where the store wants to be."""
        home = Path(store.home(str(tmp_path)), "suite")
        yield home / "store"
        shutil.rmtree(home, ignore_errors=True)

    # The store itself

    def test_a_store_is_a_value_that_travels_to_workers(self, store: Store) -> None:
        assert isinstance(store, Store)
        assert pickle.loads(pickle.dumps(store)).name == store.name
        store.check()

    def test_a_new_store_is_empty_and_before_the_first_record(self, store: Store, path: Path) -> None:
        opened = store.open(path, create=True)
        assert opened.usable and opened.users == 0 and opened.path == path
        assert opened.newest_record() == (-1, "")
        with opened.view() as view:
            assert (view.position, view.record, set(view.timed_steps)) == (-1, "", set())
            assert view.get("total", b"1") is None and list(view.entries("total")) == []
            assert view.get_many("total", [b"1", b"2"]) == [None, None]
            assert view.latest("total") == -MAX_TICKS
        opened.close()

    def test_a_store_that_is_not_there_is_not_made(self, store: Store, path: Path) -> None:
        with pytest.raises(Replaced):
            store.open(path, create=False)
        path.mkdir(parents=True)
        with pytest.raises(BaseException) as raised:
            store.open(path, create=False)
        assert isinstance(raised.value, Damaged | Replaced)

    # Applying and reading

    def test_views_show_what_the_records_come_to(self, store: Store, path: Path) -> None:
        log, opened = example_log(12), store.open(path, create=True)
        for record in log:
            assert opened.apply(record) == record.number
            with opened.view() as view:
                assert (view.position, view.record) == (record.number, record.record)
                assert find_difference(view, log) == ""
        assert opened.newest_record() == (11, "record-11")
        opened.close()

    def test_many_records_are_as_right_as_few(self, store: Store, path: Path) -> None:
        log, opened = example_log(60, seed=3), store.open(path, create=True)
        for record in log:
            opened.apply(record)
        with opened.view() as view:
            assert find_difference(view, log) == ""
        opened.close()

    def test_a_store_that_is_opened_again_goes_on(self, store: Store, path: Path) -> None:
        log = example_log(6)
        for number in range(6):
            opened = store.open(path, create=number == 0)
            assert opened.newest_record()[0] == number - 1
            opened.apply(log[number])
            opened.close()
        opened = store.open(path, create=False)
        with opened.view() as view:
            assert find_difference(view, log) == ""
        opened.close()

    def test_a_record_that_was_applied_is_passed_over(self, store: Store, path: Path) -> None:
        log, opened = example_log(4), store.open(path, create=True)
        assert [opened.apply(record) for record in log] == [0, 1, 2, 3]
        assert [opened.apply(record) for record in log[:3]] == [3, 3, 3]
        with opened.view() as view:
            assert find_difference(view, log) == ""
        opened.close()

    def test_a_record_that_does_not_follow_is_refused(self, store: Store, path: Path) -> None:
        log, opened = example_log(4), store.open(path, create=True)
        opened.apply(log[0])
        for other in (log[2], log[1]._replace(previous="another history")):
            with pytest.raises(Damaged):
                opened.apply(other)
        with opened.view() as view:
            assert view.position == 0 and find_difference(view, log) == ""
        opened.close()

    def test_the_first_record_may_have_any_number_and_come_in_pieces(self, store: Store, path: Path) -> None:
        log = example_log(5)
        pieces = [(step, changes) for record in log for step, changes in record.changes.items()]  # type: ignore[union-attr]
        tables = [(step, changes_table(list(changes))) for step, changes in pieces]
        opened = store.open(path, create=True)
        assert opened.apply(RecordChanges(4, iter(tables), "record-4")) == 4
        with opened.view() as view:
            assert find_difference(view, log) == ""
        opened.close()

    def test_an_error_while_changes_are_iterated_leaves_the_store_as_it_was(self, store: Store, path: Path) -> None:
        log, opened = example_log(3), store.open(path, create=True)
        for before in (-1, 0):

            def stop(before: int = before) -> Iterator[tuple[str, Sequence[Change]]]:
                yield from list(log[before + 1].changes.items())[:1]  # type: ignore[union-attr]
                raise Interrupted

            with pytest.raises(Interrupted):
                opened.apply(log[before + 1]._replace(changes=stop()))
            with opened.view() as view:
                assert view.position == before and find_difference(view, log) == ""
            opened.apply(log[before + 1])
        opened.close()

    def test_values_and_keys_may_be_empty_or_long(self, store: Store, path: Path) -> None:
        opened = store.open(path, create=True)
        long, longer = b"k" * 5000, b"k" * 5001
        values = {(b"", b""): b"", (b"", b"c"): b"1", (long, b""): b"v" * 200_000, (longer, b"c" * 3000): b""}
        opened.apply(RecordChanges(0, {"s": [Change(*place, value) for place, value in sorted(values.items())]}))
        with opened.view() as view:
            assert {place: view.get("s", *place) for place in values} == values
            assert {entry[:2]: entry.value for entry in view.entries("s")} == values
            assert [entry.cell for entry in view.entries("s", longer)] == [b"c" * 3000]
            assert view.get("s", longer) is None
        opened.close()

    def test_many_steps_do_not_see_each_other(self, store: Store, path: Path) -> None:
        opened, steps = store.open(path, create=True), [f"step {n} é" for n in range(120)]
        opened.apply(RecordChanges(0, {step: [Change(b"k", b"", step.encode())] for step in steps}, "0"))
        opened.apply(RecordChanges(1, {step: [Change(b"k", b"", None)] for step in steps[::2]}, "1", "0"))
        with opened.view() as view:
            expected = [None if n % 2 == 0 else step.encode() for n, step in enumerate(steps)]
            assert [view.get(step, b"k") for step in steps] == expected
            assert [view.count(step) for step in steps] == [n % 2 for n in range(120)]
        opened.close()

    # Views

    def test_a_view_stays_as_it_is_while_the_store_goes_on(self, store: Store, path: Path) -> None:
        log, opened = example_log(30), store.open(path, create=True)
        opened.apply(log[0])
        with opened.view() as first:
            entries = first.entries("total")
            began = next(entries)
            for record in log[1:]:
                opened.apply(record)
            with opened.view() as last:
                assert last.position == 29 and find_difference(last, log) == ""
            assert first.position == 0 and find_difference(first, log) == ""
            assert len([began, *entries]) == KEYS
        opened.close()

    def test_a_view_can_be_read_when_the_folder_is_gone(self, store: Store, path: Path) -> None:
        log, opened = example_log(3), store.open(path, create=True)
        for record in log:
            opened.apply(record)
        with opened.view() as view:
            shutil.rmtree(path)
            assert find_difference(view, log) == ""
        assert not opened.usable
        opened.close()

    # Files

    def test_a_store_stays_open_when_its_folder_is_renamed(self, store: Store, path: Path) -> None:
        log, opened = example_log(3), store.open(path, create=True)
        opened.apply(log[0])
        with opened.view() as view:
            opened.move(path.with_name("moved"))
            assert find_difference(view, log) == ""
        assert opened.path == path.with_name("moved") and opened.usable
        opened.apply(log[1])
        with opened.view() as view:
            assert find_difference(view, log) == "" and view.position == 1
        full = path.with_name("full")
        (full / "file").mkdir(parents=True)
        with pytest.raises(OSError):
            opened.move(full)
        opened.close()

    def test_a_store_that_another_took_the_place_of_is_not_usable(self, store: Store, path: Path) -> None:
        opened = store.open(path, create=True)
        path.rename(path.with_name("aside"))
        store.open(path, create=True).close()
        assert not opened.usable
        opened.close()

    def test_the_size_of_a_store_grows_with_its_content(self, store: Store, path: Path) -> None:
        opened = store.open(path, create=True)
        before = opened.room()
        values = [random.Random(n).randbytes(5000).hex().encode() for n in range(200)]
        opened.apply(RecordChanges(0, {"s": [Change(b"%04d" % n, b"", value) for n, value in enumerate(values)]}))
        after = opened.room()
        assert 0 <= before.free <= before.size and 0 <= after.free <= after.size
        assert after.size - after.free > before.size - before.free + 500_000
        opened.close()

    def test_a_store_that_can_shrink_has_the_same_content_afterwards(self, store: Store, path: Path) -> None:
        log, opened = example_log(8), store.open(path, create=True)
        for record in log[:7]:
            opened.apply(record)
        if isinstance(opened, ShrinkingStore):
            opened.copy_shrunk(path.with_name("copy"))
            copy = store.open(path.with_name("copy"), create=False)
            assert copy.newest_record() == opened.newest_record()
            copy.apply(log[7])
            with copy.view() as view:
                assert view.position == 7 and find_difference(view, log) == ""
            copy.close()
        opened.close()

    # Other processes

    def test_processes_take_turns(self, store: Store, path: Path) -> None:
        log, opened = example_log(20), store.open(path, create=True)
        opened.apply(log[0])
        worker = _process(_apply_all, store, path, 20)
        while opened.newest_record()[0] < 19 and worker.exitcode is None:
            with opened.view() as view:
                assert find_difference(view, log) == ""
        assert _exit_code(worker) == 0
        with opened.view() as view:
            assert view.position == 19 and find_difference(view, log) == ""
        opened.close()

    @pytest.mark.parametrize("at", ["in the first piece", "in the second piece", "after it", "with a view"])
    def test_a_process_that_is_killed_leaves_a_whole_record(self, store: Store, path: Path, at: str) -> None:
        log = example_log(6)
        assert _exit_code(_process(_apply_and_die, store, path, at)) == -signal.SIGKILL
        opened = store.open(path, create=False)
        with opened.view() as view:
            assert view.position == (2 if at in ("after it", "with a view") else 1)
            assert find_difference(view, log) == ""
        for record in log[1:]:
            opened.apply(record)
        with opened.view() as view:
            assert view.position == 5 and find_difference(view, log) == ""
        opened.close()

    def test_a_process_that_is_killed_at_any_time_leaves_a_whole_record(self, store: Store, path: Path) -> None:
        """It may also leave a store that is `Damaged`, and so is built from the log, but never half a record."""
        log, opened = example_log(400), store.open(path, create=True)
        opened.apply(log[0])
        opened.close()
        chance = random.Random(11)
        for _ in range(2):
            worker = _process(_apply_all, store, path, 400)
            reader = store.open(path, create=False)
            start = reader.newest_record()[0]
            while worker.exitcode is None and reader.newest_record()[0] < start + 2:
                worker.join(0.01)
            worker.join(chance.random() / 20)
            worker.kill()
            _exit_code(worker)
            with reader.view() as view:
                assert view.position >= start and find_difference(view, log) == ""
            reader.close()
            try:
                store.open(path, create=False).close()
            except Damaged:
                return

    # Damage

    def test_flipped_bytes_are_noticed_or_do_no_harm(self, store: Store, path: Path) -> None:
        opened = store.open(path, create=True)
        for record in example_log(10):
            opened.apply(record)
        opened.close()
        worker = _process(_flip_bytes, store, path, 40)
        assert _exit_code(worker) == 0, "what it printed says where a flipped byte was believed"


def _process(work: Any, *args: Any) -> Any:
    process = multiprocessing.get_context("spawn").Process(target=work, args=args)
    process.start()
    return process


def _exit_code(process: Any) -> int | None:
    process.join(TIMEOUT)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise AssertionError(f"the other process has not ended within {TIMEOUT:g} s")
    code: int | None = process.exitcode
    return code


def _apply_all(store: Store, path: Path, count: int) -> None:
    opened = store.open(path, create=False)
    for record in example_log(count):
        opened.apply(record)
    opened.close()


def _apply_and_die(store: Store, path: Path, at: str) -> None:
    log, opened = example_log(3), store.open(path, create=True)
    opened.apply(log[0])
    opened.apply(log[1])

    def changes() -> Iterator[tuple[str, Sequence[Change]]]:
        for place, piece in enumerate(log[2].changes.items()):  # type: ignore[union-attr]
            if at == ("in the first piece", "in the second piece", "")[place]:
                os.kill(os.getpid(), signal.SIGKILL)
            yield piece

    opened.apply(log[2]._replace(changes=changes()))
    if at == "after it":
        os.kill(os.getpid(), signal.SIGKILL)
    with opened.view() as view:
        view.get("total", key_of(1))
        os.kill(os.getpid(), signal.SIGKILL)


def _flip_bytes(store: Store, path: Path, flips: int) -> None:
    """Flip bytes in copies of a store, one at a time, and read all of each copy."""
    log, chance = example_log(10), random.Random(5)
    for flip in range(flips):
        copy = path.with_name(f"flipped-{flip}")
        shutil.copytree(path, copy)
        files = [file for file in sorted(copy.rglob("*")) if file.is_file() and file.stat().st_size]
        sizes = [min(file.stat().st_size, 1 << 20) for file in files]
        (file,) = chance.choices(files, sizes) if flip % 2 else [chance.choice(files)]
        data = bytearray(file.read_bytes())
        at = chance.randrange(len(data))
        data[at] ^= chance.choice([0xFF, 1 << chance.randrange(8)])
        file.write_bytes(data)
        opened: OpenStore | None = None
        try:
            opened = store.open(copy, create=False)
            with opened.view() as view:
                problem = find_difference(view, log)
            if problem:
                raise SystemExit(f"byte {at} of {file.name} is believed: {problem}")
        except (Damaged, Replaced, Stuck):
            pass
        finally:
            if opened is not None:
                opened.close()
            shutil.rmtree(copy, ignore_errors=True)
