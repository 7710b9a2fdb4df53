"""A program travels to its tasks: what arrives of its classes, what cannot be sent, and what names state has for it."""

from __future__ import annotations

import datetime as dt
import enum
import functools
import json
import re
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, NewType, TypedDict

import msgspec
import pyarrow.parquet as pq
import pytest
from small_programs import piped

import millpond as mp
from millpond.codec import Codec, user_types
from millpond.errors import InvalidUse, StepFailed
from millpond.log.retention import Keep
from millpond.testing import TestDriver

# --- classes of the program file ---


class Color(enum.Enum):
    RED = 1
    SCARLET = 1
    BLUE = 2


class Planet(enum.Enum):
    EARTH = (5.9, 6378)

    def __init__(self, mass: float, radius: int) -> None:
        self.radius = radius


class Line(msgspec.Struct, rename="camel", omit_defaults=True):
    sku_code: str
    count: int = 1
    tags: list[str] = []
    previous: Line | None = None

    def doubled(self) -> Line:
        return Line(self.sku_code, self.count * 2)


class Priced(Line, kw_only=True, frozen=True, tag="priced"):  # type: ignore[misc]
    price: int
    notes: dict[str, str] = msgspec.field(default_factory=dict, name="remarks")

    def __post_init__(self) -> None:
        if self.price < 0:
            raise ValueError("a price is 0 or more")


@dataclass
class Order:
    id: int
    lines: list[Line] = field(default_factory=list)
    color: Color = Color.RED
    secret: int = field(default=0, repr=False)


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = 2


class Pair(NamedTuple):
    left: int
    right: Order | None = None


class Options(TypedDict, total=False):
    order: Order
    size: int


UserId = NewType("UserId", int)


@functools.lru_cache(maxsize=7)
def cached(n: int) -> int:
    return 1 if n < 2 else n * cached(n - 1)


def test_rows_of_a_struct_have_all_their_fields_and_bad_ones_are_told() -> None:
    app = mp.App("rows")
    rows = app.stream("rows", mp.sources.rows([]), type=Line, on_error="dead-letter")
    rows.map(lambda line: (line.doubled(), line.tags, line.previous)).to("out", mp.sinks.memory())
    app.dead_letters.to("dead", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [{"skuCode": "a", "previous": {"skuCode": "b"}}, {"count": 3}, Line("c", 4)])
        assert driver.output("out") == [(Line("a", 2), [], Line("b")), (Line("c", 8), [], None)]
        [letter] = driver.output("dead")
        assert (letter["row"], "skuCode" in letter["error"]) == ({"count": 3}, True)


def test_rows_of_a_dataclass_keep_what_is_required_and_default_factories() -> None:
    app = mp.App("rows")
    rows = app.stream("rows", mp.sources.rows([]), type=Order, on_error="dead-letter")
    rows.to("out", mp.sinks.memory())
    app.dead_letters.to("dead", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [{"id": 1}, {"lines": []}, {"id": 2, "lines": [{"skuCode": "a"}], "color": 2}])
        assert driver.output("out") == [Order(1), Order(2, [Line("a")], Color.BLUE)]
        [letter] = driver.output("dead")
        assert letter["row"] == {"lines": []} and "id" in letter["error"]


def make_struct(n: int) -> Any:
    return Priced(sku_code="a", price=n), msgspec.json.encode(Priced(sku_code="a", price=n))


def make_bad_struct(n: int) -> Any:
    try:
        return Priced(sku_code="a", price=-n)
    except ValueError as error:
        return str(error)


def make_point(n: int) -> Any:
    return Point(n), hasattr(Point(n), "__dict__")


def make_options(n: int) -> Any:
    return msgspec.convert({"order": {"id": n}}, Options)


def make_user(n: int) -> Any:
    return msgspec.convert(n, UserId), UserId(n)


def required(n: int) -> Any:
    try:
        return Order()  # type: ignore[call-arg]
    except TypeError as error:
        return "required" in str(error)


@pytest.mark.parametrize(
    ("f", "expected"),
    [
        (make_struct, (Priced(sku_code="a", price=3), b'{"type":"priced","skuCode":"a","price":3}')),
        (make_bad_struct, "a price is 0 or more"),
        (make_point, (Point(3), False)),
        (lambda n: Pair(n, Order(n)), Pair(3, Order(3))),
        (make_options, {"order": Order(3)}),
        (make_user, (3, 3)),
        (lambda n: (Color["SCARLET"], Color(1).name, Planet.EARTH.radius), (Color.RED, "RED", 6378)),
        (required, True),
        (lambda n: repr(Order(n, secret=4)), "Order(id=3, lines=[], color=<Color.RED: 1>)"),
        (cached, 6),
        (lambda n: msgspec.json.decode(b'{"skuCode":"a","previous":{"skuCode":"b"}}', type=Line).previous, Line("b")),
    ],
)
def test_a_class_of_the_program_file_does_in_a_task_what_it_does_at_home(f: Any, expected: Any) -> None:
    assert piped(lambda s: s.map(f), [3]) == [expected]


def test_classes_of_a_function_come_back_as_they_are() -> None:
    @dataclass
    class Local:
        n: int
        items: list[int] = field(default_factory=list)

    def count(key: Any, n: int, state: Local | None) -> tuple[Any, Local]:
        state = state or Local(0)
        state.items.append(n)
        return Local(n), state

    app = mp.App("local")
    rows = app.stream("rows", mp.sources.rows([])).key_by(k=lambda n: 0)
    rows.stateful_map("step", count).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [1, 2])
        driver.restart(lose_replicas=True)
        driver.send("rows", [3])
        assert driver.output("out") == [Local(1), Local(2), Local(3)]
        assert driver.state("step").get(0) == Local(0, [1, 2, 3])


def test_a_class_is_not_changed_by_a_test_that_uses_it() -> None:
    class Counter:
        calls: ClassVar[list[int]] = []

        def on_row(self, key: Any, n: int, state: Any, timers: Any) -> Any:
            Counter.calls.append(n)
            return n

    before = dict(vars(Counter))
    assert piped(lambda s: s.key_by(k=lambda n: 0).process("p", Counter), [1, 2]) == [1, 2]
    assert dict(vars(Counter)) == before
    assert Counter.calls == [], "what a task changes is its own copy, as in another process"


# --- what cannot travel ---

LOCK = threading.Lock()


def locked(row: Any) -> Any:
    with LOCK:
        return row


def through(row: Any) -> Any:
    return locked(row)


class Connected:
    """A source or a sink with a connection."""

    where = "workers"

    def __init__(self) -> None:
        self.connection = threading.Lock()

    def plan(self, position: Any, limit: Any, now: Any) -> list[Any]:
        return []

    def read(self, split: Any) -> Any:
        yield from ()

    def deliver(self, rows: Any, delivery: Any) -> None:
        raise AssertionError


class OwnMethods:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def on_row(self, key: Any, row: Any, state: Any, timers: Any) -> Any:
        return row


def numbers(app: mp.App, source: Any = None, **how: Any) -> Any:
    return app.stream("rows", source or mp.sources.rows([]), **how)


CANNOT = {
    "map": (lambda app, f: numbers(app).map(through), r"map: function through, variable locked, variable LOCK, "),
    "key_by": (lambda app, f: numbers(app).key_by(k=locked), r"key_by\(k\): function locked, variable LOCK, "),
    "timestamp": (lambda app, f: numbers(app, timestamp=locked), r"stream 'rows': function locked, variable LOCK, "),
    "source": (
        lambda app, f: numbers(app, Connected()),
        r"stream 'rows': attribute connection, a value of type _thread.lock",
    ),
    "sink": (
        lambda app, f: numbers(app).to("out", Connected()),
        r"sink 'out': attribute connection, a value of type _thread.lock",
    ),
    "step": (
        lambda app, f: numbers(app).key_by("k").stateful_map("total", lambda k, row, s: locked(row)),
        r"stateful_map 'total': .*function .*<lambda>, variable locked, variable LOCK, ",
    ),
    "migration": (
        lambda app, f: numbers(app).key_by("k").apply("a", lambda row, s: row, version=2, migrate={1: locked}),
        r"apply 'a': function locked, variable LOCK, ",
    ),
    "processor": (
        lambda app, f: numbers(app).key_by("k").process("p", OwnMethods()),
        r"process 'p': .*variable processor, attribute lock, a value of type _thread.lock",
    ),
    "default": (lambda app, f: numbers(app).map(lambda row, lock=LOCK: row), r"map: function .*, a default value, "),
    "open file": (
        lambda app, f: numbers(app).map(lambda row: f.name),
        r"map: function .*, variable f, a value of type _io.TextIO",
    ),
    "bytes file": (
        lambda app, f: numbers(app).map(lambda row, f=f.buffer: f.name),
        r"map: function .*, a default value, a value of type _io.BufferedReader",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", CANNOT)
def test_what_cannot_be_sent_fails_in_the_test_and_is_named(what: str) -> None:
    build, text = CANNOT[what]
    app = mp.App("cannot")
    with open(__file__) as opened:
        build(app, opened)
        with pytest.raises(InvalidUse, match=rf"app 'cannot', {text}.*cannot be sent to the workers: ") as caught:
            TestDriver(app)
    assert "make them inside the function, when it is first called" in str(caught.value)


def test_a_sink_of_the_driver_is_not_sent() -> None:
    lock, seen = threading.Lock(), []

    def take(rows: list[Any], delivery: Any) -> None:
        with lock:
            seen.extend(rows)

    app = mp.App("driver")
    numbers(app).to("out", mp.sinks.function(take))
    with TestDriver(app) as driver:
        driver.send("rows", [1, 2])
    assert seen == [1, 2]


def test_a_function_has_copies_of_its_variables_as_it_has_in_a_worker() -> None:
    seen: list[int] = []

    def note(n: int) -> int:
        seen.append(n)
        return len(seen)

    assert piped(lambda s: s.map(note), [1, 2]) == [1, 2]
    assert seen == []


def test_standard_output_is_that_of_whoever_runs_the_function() -> None:
    out = sys.stdout
    assert piped(lambda s: s.map(lambda n: out is sys.stdout), [1]) == [True]


# --- one name for a class, however the program is started ---

PROGRAM = """
from __future__ import annotations
import sys
from dataclasses import dataclass, field
from enum import Enum
import msgspec
import millpond as mp

class Kind(Enum):
    CARD = "card"

@dataclass
class Account:
    owner: str
    paid: list[Paid] = field(default_factory=list)

class Paid(msgspec.Struct):
    who: str
    amount: int = 1
    kind: Kind = Kind.CARD

def pay(who, paid, account):
    account = account or Account(who)
    account.paid.append(paid)
    return paid, account

app = mp.App("accounts", "STATE", partitions=2, local_dir="STATE.local")
rows = app.stream("rows", mp.sources.files("in"), type=Paid).key_by("who")
rows.stateful_map("account", pay, initial=None).to("out", mp.sinks.memory())

def once():
    from millpond.clock import SystemClock
    from millpond.driver.commit import Driver
    from millpond.driver.settings import DriverSettings
    from millpond.runtimes.local import LocalRuntime
    from millpond.runtimes.pickling import pack_program, unpack_program
    program, clock = mp.lowlevel.program(app), SystemClock()
    runtime = LocalRuntime(mp.lowlevel.storage(app), clock, shipped=unpack_program(pack_program(program).data))
    settings = DriverSettings(2, app.local_dir, threaded=False)
    driver = Driver.start(program, runtime, mp.lowlevel.storage(app), clock, settings)
    assert driver.batch(mp.lowlevel.Limit(100, 1 << 20))
    driver.release()
    for who, account in app.state("account").items():
        assert type(account) is Account and all(type(p) is Paid for p in account.paid), account
        print(who, len(account.paid), {p.kind for p in account.paid} == {Kind.CARD})

if __name__ == "__main__":
    once()
"""
LOADED = """
from millpond.cli.load_program import load_app
import sys
with load_app("pkg/app.py") as app:
    sys.modules["__main__"].once()
"""
STARTS = {
    "python pkg/app.py": ["pkg/app.py"],
    "python -m pkg.app": ["-m", "pkg.app"],
    "millpond run pkg/app.py": ["-c", LOADED],
    "from pkg.app import app": ["-c", "from pkg.app import once; once()"],
    "from app import app": ["-c", "import sys; sys.path.insert(0, 'pkg'); from app import once; once()"],
    "a notebook": ["-c", "exec(compile(open('pkg/app.py').read(), '<cell>', 'exec'))"],
}


def started(folder: Path, how: str) -> str:
    done = subprocess.run([sys.executable, *STARTS[how]], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{how}: {done.stderr}"
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "app.py").write_text(PROGRAM.replace("STATE", str(tmp_path / "state")))
    return tmp_path


def stored_names(folder: Path) -> set[str]:
    found: set[str] = set()
    for file in (folder / "state").rglob("steps/**/*.parquet"):
        text = " ".join(str(value) for value in pq.read_table(file).column("value").to_pylist())
        found |= set(re.findall(r'\$(?:type|enum)": ?"([^"]+)"', text))
    return found


def test_state_of_every_way_to_start_a_program_opens_in_every_other(folder: Path) -> None:
    (folder / "in").mkdir()
    for number, how in enumerate([*STARTS, "python pkg/app.py"], start=1):
        (folder / "in" / f"{number:02}.jsonl").write_text('{"who": "ann"}\n{"who": "bob"}\n')
        assert started(folder, how) == f"ann {number} True\nbob {number} True\n", how
    assert stored_names(folder) == {"__main__:Account", "__main__:Paid", "__main__:Kind"}


@pytest.mark.parametrize("how", STARTS)
def test_state_that_names_the_module_of_the_program_file_still_opens(folder: Path, how: str) -> None:
    modules = {"__main__", "app", "pkg.app"}
    if how == "a notebook":  # a cell does not know of which file it is a copy
        modules = {"__main__"}
    texts = []
    for module in modules:
        kind = {"$enum": f"{module}:Kind", "name": "CARD"}
        texts.append(json.dumps({"$type": f"{module}:Paid", "fields": {"who": "ann", "kind": kind}}).encode())
    opened = (
        "from millpond.codec import Codec\n"
        f"def once():\n    print({{repr(Codec(mp.lowlevel.program(app).types).decode(text)) for text in {texts}}})\n"
    )
    file = folder / "pkg" / "app.py"
    file.write_text(file.read_text().replace("if __name__", f"{opened}\nif __name__"))
    assert started(folder, how) == """{"Paid(who='ann', amount=1, kind=<Kind.CARD: 'card'>)"}\n"""


def test_a_class_within_a_class_has_its_whole_name_in_a_task_and_the_short_one_still_opens() -> None:
    class Outer:
        @dataclass
        class Inner:
            n: int

    app = mp.App("nested")
    rows = numbers(app).key_by(k=lambda n: 0)
    rows.stateful_map("step", lambda k, n, s: (None, Outer.Inner(n)), type=Outer.Inner)
    with TestDriver(app) as driver:
        driver.send("rows", [1])
        assert driver.state("step").get(0) == Outer.Inner(1)
    short = b'{"$type":"__main__:Inner","fields":{"n":2}}'
    assert Codec([Outer.Inner]).decode(short) == Outer.Inner(2)


ARRIVED = """
import msgspec
from millpond.runtimes.pickling import unpack_program
types = {cls.__name__: cls for cls in unpack_program(open("packed", "rb").read()).types}
print(msgspec.json.decode(b'{"owner": "ann", "paid": [{"who": "ann", "kind": "card"}]}', type=types["Account"]))
"""


def test_a_class_arrives_whole_where_its_file_was_never_run(folder: Path) -> None:
    """Its annotations are text that names other classes of the file."""
    packs = (
        "from millpond.runtimes.pickling import pack_program\n"
        "def once():\n    open('packed', 'wb').write(pack_program(mp.lowlevel.program(app)).data)\n"
    )
    file = folder / "pkg" / "app.py"
    file.write_text(file.read_text().replace("if __name__", f"{packs}\nif __name__"))
    started(folder, "python pkg/app.py")
    file.unlink()
    done = subprocess.run([sys.executable, "-c", ARRIVED], cwd=folder, capture_output=True, text=True, check=False)
    assert done.stdout == "Account(owner='ann', paid=[Paid(who='ann', amount=1, kind=<Kind.CARD: 'card'>)])\n", (
        done.stderr
    )


MOMENT, HOUR = dt.datetime(2030, 1, 2, tzinfo=dt.UTC), '{"$timedelta":[0,3600,0]}'
AT = '{"$datetime":"2030-01-02T00:00:00Z"}'

# What version 0.1 has written to state for values of Millpond's own types: type, fields, and the value.
STORED_VALUES: list[tuple[str, str, Any]] = [
    (
        "millpond.flow:Split",
        '{"place":"a","start":0,"stop":1,"partition":"0","weight":1,"detail":{},"rows":null,"may_join":false}',
        mp.lowlevel.Split("a", 0, 1),
    ),
    ("millpond.flow:Limit", '{"rows":1,"bytes":2}', mp.lowlevel.Limit(1, 2)),
    ("millpond.flow:JsonLines", '{"lines":[{"$bytes":"e30="}]}', mp.lowlevel.JsonLines([b"{}"])),
    (
        "millpond.flow:Chunk",
        '{"rows":[1],"position":2,"where":null,"bad":[],"times":null,"size":0}',
        mp.lowlevel.Chunk([1], 2),
    ),
    (
        "millpond.flow:Delivery",
        '{"app":"app","incarnation":"0","sink":"out","batch":1,"partition":0,"attempt":"","claim":null}',
        mp.lowlevel.Delivery("app", "0", "out", 1, 0),
    ),
    (
        "millpond.run.loop:Settings",
        '{"until":null,"every":1.0,"max_rows":100000,"max_bytes":268435456,"restarts":0,"close_at_end":false,"standby":false}',
        mp.lowlevel.Settings(),
    ),
    ("millpond.run.rebuild:Difference", '{"key":"k","live":1,"rebuilt":2}', mp.Difference("k", 1, 2)),
    ("millpond.steps.failure:Retry", '{"times":3,"backoff":0.1,"then":"stop"}', mp.retry(3)),
    ("millpond.steps.timers:Timer", f'{{"name":"n","at":{AT},"payload":null}}', mp.Timer("n", MOMENT)),
    ("millpond.steps.ttl:TTL", f'{{"after":{HOUR},"refresh":"write","clock":null}}', mp.ttl("1h")),
    (
        "millpond.upkeep:StateChange",
        f'{{"batch":7,"time":{AT},"key":"ann","cell":"","value":3,"deleted":false}}',
        mp.StateChange(7, MOMENT, "ann", "", 3),
    ),
    ("millpond.view:Moment", f'{{"batch":7,"time":{AT},"value":3,"deleted":false}}', mp.Moment(7, MOMENT, value=3)),
    (
        "millpond.windows.kinds:Hopping",
        f'{{"label":"mp.tumbling(\'1h\')","size":{HOUR},"every":{HOUR},"offset":0}}',
        mp.tumbling("1h"),
    ),
    ("millpond.windows.kinds:Session", f'{{"label":"mp.session(\'1h\')","gap":{HOUR}}}', mp.session("1h")),
    ("millpond.windows.kinds:Sliding", f'{{"label":"mp.sliding(\'1h\')","size":{HOUR}}}', mp.sliding("1h")),
    ("millpond.windows.kinds:Global", '{"label":"mp.global_window()"}', mp.global_window()),
    (
        "millpond.windows.kinds:Counting",
        '{"label":"mp.count_tumbling(3)","size":3,"every":3}',
        mp.count_tumbling(3),
    ),
]


@pytest.mark.parametrize(("name", "fields", "value"), STORED_VALUES, ids=[name for name, _, _ in STORED_VALUES])
def test_a_value_of_a_public_type_is_stored_as_it_was_before_its_module_moved(
    name: str, fields: str, value: Any
) -> None:
    text = f'{{"$type":"{name}","fields":{fields}}}'.encode()
    assert Codec().encode(value) == text
    back = Codec().decode(text)
    assert back == value and type(back) is type(value)


BEFORE_NEW_FIELDS = [
    (
        "millpond.run.loop:Settings",
        '{"until":null,"every":1.0,"max_rows":100000,"max_bytes":268435456,"restarts":0,"close_at_end":false}',
        mp.lowlevel.Settings(),
    ),
    (
        "millpond.flow:Split",
        '{"place":"a","start":0,"stop":1,"partition":"0","weight":1,"detail":{},"rows":null}',
        mp.lowlevel.Split("a", 0, 1),
    ),
    ("millpond.flow:Chunk", '{"rows":[1],"position":2,"where":null,"bad":[]}', mp.lowlevel.Chunk([1], 2)),
    (
        "millpond.flow:Delivery",
        '{"app":"app","incarnation":"0","sink":"out","batch":1,"partition":0,"attempt":""}',
        mp.lowlevel.Delivery("app", "0", "out", 1, 0),
    ),
]


@pytest.mark.parametrize(("name", "fields", "value"), BEFORE_NEW_FIELDS, ids=[name for name, _, _ in BEFORE_NEW_FIELDS])
def test_a_value_that_was_stored_before_its_type_had_its_newest_fields_is_read(
    name: str, fields: str, value: Any
) -> None:
    assert Codec().decode(f'{{"$type":"{name}","fields":{fields}}}'.encode()) == value


# Public types whose values cannot be written in one line, or hold functions: only their names are held here.
STORED_NAMES: dict[str, type] = {
    "millpond.aggregations.base:Aggregation": mp.Aggregation,
    "millpond.flow:BadRow": mp.lowlevel.BadRow,
    "millpond.flow:Registration": mp.lowlevel.Registration,
    "millpond.log.point:LogPoint": mp.lowlevel.LogPoint,
    "millpond.log.segment:Change": mp.lowlevel.Change,
    "millpond.replica.protocol:ReplicaPosition": mp.lowlevel.ReplicaPosition,
    "millpond.replica.store:RecordChanges": mp.lowlevel.RecordChanges,
    "millpond.replica.store:Room": mp.lowlevel.Room,
    "millpond.replica.view:Entry": mp.lowlevel.Entry,
    "millpond.run.maintenance:Verdict": mp.Verdict,
    "millpond.run.retention:Keep": Keep,
    "millpond.steps.external:External": type(mp.external(len)),
    "millpond.windows.triggers:Event": mp.triggers.Event,
    "millpond.windows.triggers:Trigger": mp.triggers.Trigger,
}


@pytest.mark.parametrize(("stored", "cls"), STORED_NAMES.items())
def test_a_public_type_keeps_its_stored_name_when_its_module_moves(stored: str, cls: type) -> None:
    assert user_types.stored_name(cls) == stored
    assert user_types.find_type(stored) is cls


def test_every_public_type_that_can_be_stored_has_a_name_in_these_lists() -> None:
    listed = {name for name, _, _ in STORED_VALUES} | STORED_NAMES.keys()
    public = [getattr(space, name) for space in (mp, mp.lowlevel, mp.triggers) for name in dir(space)]
    assert {user_types.stored_name(cls) for cls in public if user_types.is_storable(cls)} <= listed
    assert user_types._OWN_TYPES.keys() <= listed


def test_a_failure_in_a_program_file_says_where(folder: Path) -> None:
    with pytest.raises(StepFailed) as caught:
        piped(lambda s: s.map(lambda n: Order(1 // n)), [0])
    assert "test_program_files.py" in caught.value.traceback
