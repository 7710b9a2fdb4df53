"""The graph that streams build: nodes, and what each does to rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any

from millpond.codec.shapes import Shapes, annotated, shapes_of
from millpond.codec.user_types import is_storable
from millpond.errors import InvalidUse
from millpond.log.paths import check_name
from millpond.sinks.base import Sink
from millpond.steps.base import Step
from millpond.steps.failure import OnError, Retry
from millpond.steps.verbs.external import Cache
from millpond.steps.verbs.external_lookup import ExternalLookup
from millpond.steps.verbs.map_async import MapAsync
from millpond.timing import Duration


@dataclass(frozen=True)
class Read:
    """The rows of a source enter here."""

    stream: str
    source: Any  # a Source, or a streaming DataFrame that a runtime knows how to take
    timestamp: str | Callable[[Any], Any] | None = None
    type: Any = None
    disorder: Duration = 0  # how much older than the newest row one may come without being late
    idle_after: float | None = None  # seconds of quiet after which a partition holds nothing back
    ahead: Duration | None = timedelta(days=366)  # how far in the future a time may lie, and be believed


@dataclass(frozen=True)
class Map:
    f: Callable[[Any], Any]


@dataclass(frozen=True)
class Filter:
    f: Callable[[Any], Any]


@dataclass(frozen=True)
class FlatMap:
    f: Callable[[Any], Any]


@dataclass(frozen=True)
class Inspect:
    f: Callable[[Any], Any]


@dataclass(frozen=True)
class WithTime:
    f: Callable[[Any], Any]


@dataclass(frozen=True)
class Branch:
    """Each row goes to the first predicate it meets; `Pick` takes one branch's rows from here."""

    predicates: tuple[tuple[str, Callable[[Any], Any]], ...]


@dataclass(frozen=True)
class Pick:
    branch: str


@dataclass(frozen=True)
class Union:
    """The rows of several streams, and nothing of their keys."""


@dataclass(frozen=True)
class LateSplit:
    """The rows that are late, or those that are not, by the watermark that the batch began with."""

    late: bool


@dataclass(frozen=True)
class JoinInput:
    """One of the two inputs of a step that has two, or the input of one that looks into a table."""

    index: int


@dataclass(frozen=True)
class SideOutput:
    """What a step puts aside, as the late rows of a window."""


@dataclass(frozen=True)
class KeyBy:
    """From here on rows belong to keys: they go to the partition that owns theirs."""

    by: tuple[str | Callable[[Any], Any], ...]
    names: tuple[str, ...]


@dataclass(frozen=True)
class StatefulStep:
    """A step: rows meet their key's state, or the rows of a table."""

    step: Step
    table: int | None = None  # the node of the table that it looks into; it has no state of its own then


@dataclass(frozen=True)
class Deliver:
    """Rows leave here, through a sink."""

    name: str
    sink: Sink


@dataclass(frozen=True)
class DeadLetters:
    """The rows that failed, from everywhere."""


Op = (
    Read
    | Map
    | Filter
    | FlatMap
    | Inspect
    | WithTime
    | MapAsync
    | ExternalLookup
    | Branch
    | Pick
    | Union
    | LateSplit
    | JoinInput
    | SideOutput
    | KeyBy
    | StatefulStep
    | Deliver
    | DeadLetters
)

# Behind these a function of the user's may change a row in place; some hand on the very rows they were given.
MAY_CHANGE = (
    Map,
    Filter,
    FlatMap,
    Inspect,
    WithTime,
    MapAsync,
    ExternalLookup,
    Branch,
    StatefulStep,
    Union,
    LateSplit,
    JoinInput,
)


@dataclass(frozen=True)
class Node:
    """One operation and where its rows come from."""

    id: int
    op: Op
    inputs: tuple[int, ...]
    keyed: tuple[str, ...] | None  # the names of the key's parts, where rows have a key
    on_error: OnError


@dataclass
class Graph:
    """What an app has built so far. Nodes are only ever added, after those that they read from."""

    nodes: list[Node] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)  # name → what it names
    unfinished: dict[str, str] = field(default_factory=dict)  # name → what is still to be said of it

    def add(
        self,
        op: Op,
        inputs: tuple[int, ...] = (),
        *,
        keyed: tuple[str, ...] | None = None,
        on_error: OnError = "stop",
    ) -> Node:
        node = Node(len(self.nodes), op, inputs, keyed, on_error)
        self.nodes.append(node)
        return node

    def claim(self, name: str, what: str) -> str:
        """Take a name for something durable; each is given once in an app."""
        check_name(name, what)
        if name in self.names:
            raise InvalidUse(
                f"{what} {name!r}: the name belongs to a {self.names[name]} already. Names own what is stored "
                "under them, so each is given once in an app."
            )
        self.names[name] = what
        return name


@dataclass(frozen=True)
class Program:
    """A graph made ready to run: who reads from whom, and in which stage of a batch.

    Stage 0 runs in the tasks that read the sources. A row that passes a `KeyBy` goes on in the next stage, in
    the task of the partition that owns its key; one that waits at a `JoinInput` in that of the other side.
    """

    app: str
    nodes: tuple[Node, ...]
    consumers: tuple[tuple[int, ...], ...]
    stages: tuple[
        int, ...
    ]  # the stage in which each node's rows come to be; of a KeyBy or a JoinInput, the one after it
    types: tuple[type, ...]

    @cached_property
    def clocks(self) -> dict[int, tuple[str, Read]]:
        """The nodes that give rows their times, where sources are read: the name of that time, and the source."""
        found: dict[int, tuple[str, Read]] = {}
        origin: dict[int, Read] = {}
        for node in self.nodes:
            if isinstance(node.op, Read):
                origin[node.id] = node.op
                if node.op.timestamp is not None:
                    found[node.id] = (node.op.stream, node.op)
            elif self.stages[node.id] == 0 and node.inputs and node.inputs[0] in origin:
                read = origin[node.id] = origin[node.inputs[0]]
                if isinstance(node.op, WithTime):
                    number = sum(name.startswith(f"{read.stream} with_time") for name, _ in found.values())
                    found[node.id] = (f"{read.stream} with_time {number}", read)
        return found

    @cached_property
    def leading_out(self) -> frozenset[int]:
        """The nodes whose rows go to sinks alone."""
        ends = {node.id for node in self.nodes if isinstance(node.op, (Deliver, SideOutput))}
        return frozenset(i for i, readers in enumerate(self.consumers) if ends.issuperset(readers))

    @cached_property
    def fields(self) -> dict[int, tuple[str, ...]]:
        """Of a `key_by` after which only some fields of the rows are looked at, where they are numbers: which."""
        found: dict[int, tuple[str, ...]] = {}
        for node in self.nodes:
            readers = [self.nodes[reader] for reader in self.consumers[node.id]]
            steps = [reader.op.step for reader in readers if isinstance(reader.op, StatefulStep)]
            aside = any(
                isinstance(self.nodes[i].op, SideOutput) for reader in readers for i in self.consumers[reader.id]
            )
            told = isinstance(node.op, KeyBy) and len(steps) == len(readers) and not aside
            if told and steps and all(step.reads is not None for step in steps):
                found[node.id] = tuple(dict.fromkeys(field for step in steps for field in step.reads or ()))
        return found

    @cached_property
    def shapes(self) -> dict[str, Shapes]:
        """The classes that each step is known to keep, from `type=`, `initial=` and the function's annotations."""
        return {name: shapes_of(_kept_types(step)) for name, step in self.steps.items()}

    @cached_property
    def caches(self) -> dict[int, Cache]:
        """What this process remembers from batch to batch, by node; it is lost with the process."""
        return {node.id: Cache(node.op.external) for node in self.nodes if isinstance(node.op, ExternalLookup)}

    @property
    def last_stage(self) -> int:
        return max(1, *self.stages) if self.stages else 1

    @property
    def reads(self) -> dict[str, Node]:
        return {node.op.stream: node for node in self.nodes if isinstance(node.op, Read)}

    @property
    def steps(self) -> dict[str, Step]:
        """Those that have state."""
        ops = [node.op for node in self.nodes if isinstance(node.op, StatefulStep) and node.op.table is None]
        return {op.step.name: op.step for op in ops}

    def tables_everywhere(self, stage: int) -> list[str]:
        """The tables that steps of a stage need as a whole."""
        found = []
        for node in self.nodes:
            if isinstance(node.op, StatefulStep) and node.op.table is not None and self.stages[node.id] == stage:
                table = self.nodes[node.op.table].op
                if isinstance(table, StatefulStep) and is_everywhere(table):
                    found.append(table.step.name)
        return sorted(set(found))

    @property
    def sinks(self) -> dict[str, Sink]:
        return {node.op.name: node.op.sink for node in self.nodes if isinstance(node.op, Deliver)}

    @property
    def dead_letters(self) -> int | None:
        found = [node.id for node in self.nodes if isinstance(node.op, DeadLetters)]
        return found[0] if found else None


def _kept_types(step: Step) -> list[Any]:
    """What a program says of the classes that a step keeps."""
    initial, f = step.options.get("initial"), step.options.get("f")
    told = [*step.types, initial if isinstance(initial, type) else type(initial)]
    return [*told, *(annotated(f) if callable(f) else [])]


def compile_program(app: str, graph: Graph, types: tuple[type, ...] = ()) -> Program:
    """The program that a graph stands for, if it is one that can run."""
    consumers: list[list[int]] = [[] for _ in graph.nodes]
    stages: list[int] = []
    # A letter may come from any stage but those behind the dead letters themselves, which must
    # therefore lie behind all others.
    behind_letters: set[int] = set()
    for node in graph.nodes:
        if isinstance(node.op, DeadLetters) or behind_letters.intersection(node.inputs):
            behind_letters.add(node.id)
    _check_letters(app, [graph.nodes[i] for i in behind_letters])
    own = [node.op.step for node in graph.nodes if isinstance(node.op, StatefulStep)]
    told = [t for step in own for t in (*step.types, *filter(is_storable, _kept_types(step)))]
    found_types = dict.fromkeys([*types, *told])
    for part in (False, True):
        for node in graph.nodes:
            if (node.id in behind_letters) is part:
                for source in node.inputs:
                    consumers[source].append(node.id)
    stage_of: dict[int, int] = {}
    for part in (False, True):
        for node in graph.nodes:
            if (node.id in behind_letters) is not part:
                continue
            if isinstance(node.op, DeadLetters):
                stage_of[node.id] = max((s for i, s in stage_of.items() if i not in behind_letters), default=0)
            else:
                before = max((stage_of[i] for i in node.inputs), default=0)
                if isinstance(node.op, StatefulStep) and node.op.table is not None:
                    before = max(before, _after_table(app, graph, node.op, behind_letters, stage_of, part))
                stage_of[node.id] = before + 1 if isinstance(node.op, KeyBy) else before
                for i in node.inputs:
                    if isinstance(graph.nodes[i].op, JoinInput):  # where one side comes later, the other waits for it
                        stage_of[i] = before
    stages = [stage_of[node.id] for node in graph.nodes]
    for name, left in graph.unfinished.items():
        raise InvalidUse(f"app {app!r}: {name!r} does nothing yet: {left}")
    if not any(isinstance(node.op, Read) for node in graph.nodes):
        raise InvalidUse(f"app {app!r} has no stream: add one with app.stream(name, source)")
    return Program(app, tuple(graph.nodes), tuple(tuple(c) for c in consumers), tuple(stages), tuple(found_types))


def is_everywhere(table: StatefulStep) -> bool:
    """Whether a table lies as a whole wherever rows look into it."""
    return bool(table.step.options["everywhere"])


def _after_table(
    app: str, graph: Graph, lookup: StatefulStep, behind: set[int], stage_of: dict[int, int], is_behind: bool
) -> int:
    """The first stage in which a table has all changes of the batch, where a row may meet them."""
    assert lookup.table is not None
    table = graph.nodes[lookup.table].op
    assert isinstance(table, StatefulStep)
    if lookup.table in behind and not is_behind:
        raise InvalidUse(
            f"app {app!r}: lookup({lookup.step.name!r}) looks into table {table.step.name!r}, which is made of dead "
            "letters; letters come after all else in a batch, so only what stands behind app.dead_letters may do that"
        )
    after = stage_of[lookup.table] + (1 if is_everywhere(table) else 0)
    if is_behind:  # a letter may come when the steps of its stage have ended
        letters = [stage_of[node.id] for node in graph.nodes if isinstance(node.op, DeadLetters)]
        return max(after, *(stage + 1 for stage in letters))
    return after


def _check_letters(app: str, behind: list[Node]) -> None:
    """A dead letter that fails cannot become one again: it would go round for ever, or be lost on its way back."""
    for node in behind:
        policy = (
            node.op.step.on_error if isinstance(node.op, StatefulStep) else getattr(node.op, "on_error", node.on_error)
        )
        if (policy.then if isinstance(policy, Retry) else policy) == "dead-letter":
            raise InvalidUse(
                f'app {app!r}: what stands behind app.dead_letters cannot have on_error="dead-letter". Say '
                '"stop" or "skip" there; in a union, begin with app.dead_letters, for the first stream decides.'
            )
