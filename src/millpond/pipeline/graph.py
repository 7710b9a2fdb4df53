"""The graph of a program: nodes, the operators at its edges, and the program that is compiled from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from functools import cached_property
from typing import Any

from millpond.codec import Codec
from millpond.codec.shapes import Shapes, shapes_of
from millpond.codec.user_types import is_storable
from millpond.errors import InvalidUse
from millpond.log.paths import check_name
from millpond.pipeline.epoch import MessageTime
from millpond.replica.local_stores import ONLY_LMDB, LocalStores
from millpond.rows.rows import Rows
from millpond.sinks.base import Sink
from millpond.steps.failure import OnError, Retry, is_needed_again
from millpond.steps.kind import Step
from millpond.steps.operator import Operator, OperatorContext
from millpond.steps.state.table_rows import RowCache
from millpond.timing import Duration


@dataclass(frozen=True)
class Read(Operator):
    """The rows of a source enter here."""

    verb = "stream"
    may_change_rows = False

    stream: str
    source: Any  # a Source, or a streaming DataFrame that a runtime knows how to take
    timestamp: str | Callable[[Any], Any] | MessageTime | None = None
    type: Any = None
    disorder: Duration = 0  # how much older than the newest row a row may be without being late
    idle_after: float | None = None  # seconds without a row after which a partition no longer holds the watermark back
    ahead: Duration | None = timedelta(days=366)  # how far in the future an event time may be

    @property
    def name(self) -> str:
        return self.stream

    @property
    def label(self) -> str:
        return f"stream {self.stream!r}"


@dataclass(frozen=True)
class DeadLetters(Operator):
    """The rows that failed, from everywhere, enter here."""

    verb = "dead_letters"
    may_change_rows = False


@dataclass(frozen=True)
class StatefulStep(Operator):
    """Rows meet their key's state, or the rows of a table."""

    verb = "step"
    has_state = True

    step: Step
    table: int | None = None  # the node of the table that it looks into; it has no state of its own then
    tables: tuple[int, ...] = ()  # the nodes of all tables that it reads; their changes come before its rows in a batch

    @property
    def name(self) -> str:
        return self.step.name

    @property
    def label(self) -> str:
        return f"{self.step.kind} {self.step.name!r}"

    @property
    def own_policy(self) -> OnError:
        return self.step.on_error


@dataclass(frozen=True)
class JoinInput(Operator):
    """One of the two inputs of a join, or the input of a lookup into a table.

    Rows wait here for the stage of the step: the other input, or the table, may be complete only then.
    """

    verb = "join"
    passes_rows_unchanged = True
    is_exchange = True

    index: int
    step_name: str  # of the step that it is an input of
    on_error: OnError

    @property
    def name(self) -> str:
        return self.step_name

    @property
    def exchange_name(self) -> str:
        return self.step_name

    @property
    def own_policy(self) -> OnError:
        return self.on_error

    def start(self, context: OperatorContext) -> JoinInput:
        return self

    def run(self, rows: Rows, side: int = 0) -> Rows:
        return rows


@dataclass(frozen=True)
class SideOutput(Operator):
    """Stands for the rows that a step puts aside, such as the late rows of a window."""

    verb = "late"
    may_change_rows = False

    @property
    def port(self) -> str:
        return ASIDE


ASIDE = "aside"  # the output of a step that its `SideOutput` reads
CHANGES = "changes"  # the output of a step that its `StepChanges` reads


@dataclass(frozen=True)
class StepChanges(Operator):
    """Stands for the changes of a step's state: a row per key and batch, with the whole value after the batch."""

    verb = "changes"
    may_change_rows = False

    step_name: str

    @property
    def name(self) -> str:
        return f"changes of {self.step_name}"

    @property
    def port(self) -> str:
        return CHANGES


@dataclass(frozen=True)
class Deliver(Operator):
    """Rows leave the program here, through a sink."""

    verb = "to"
    may_change_rows = False
    is_sink = True

    sink_name: str
    sink: Sink

    @property
    def name(self) -> str:
        return self.sink_name

    @property
    def label(self) -> str:
        return f"sink {self.sink_name!r}"


@dataclass(frozen=True)
class Node:
    """One operator and the nodes that its rows come from."""

    id: int
    op: Operator
    inputs: tuple[int, ...]
    keyed: tuple[str, ...] | None  # the names of the key's parts; None for rows without a key
    on_error: OnError  # of the stream

    @cached_property
    def name(self) -> str:
        """The operator's name in errors and counters."""
        return self.op.name

    @cached_property
    def policy(self) -> OnError:
        """The error policy of the operator: its own, or else that of the stream."""
        return self.op.own_policy or self.on_error


@dataclass
class Graph:
    """What an app has built so far. Nodes are only added, each after the nodes that it reads from."""

    nodes: list[Node] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)  # name → what it names
    unfinished: dict[str, str] = field(default_factory=dict)  # name → what the program still has to do with it

    def add(
        self,
        op: Operator,
        inputs: tuple[int, ...] = (),
        *,
        keyed: tuple[str, ...] | None = None,
        on_error: OnError = "stop",
    ) -> Node:
        node = Node(len(self.nodes), op, inputs, keyed, on_error)
        self.nodes.append(node)
        return node

    def claim(self, name: str, what: str) -> str:
        """Return a name for something durable; InvalidUse if the app has given it to something else."""
        check_name(name, what)
        if name in self.names:
            raise InvalidUse(
                f"{what} {name!r}: the name belongs to a {self.names[name]} already. State and deliveries "
                "are stored under these names, so each is given once in an app: give one of the two another name."
            )
        self.names[name] = what
        return name


@dataclass(frozen=True)
class Route:
    """How rows get from a node to one of its consumers within a task."""

    consumer: int
    side: int  # the number of the consumer's input
    needs_copy: bool  # the consumer may change rows that others are given, too
    has_state: bool
    is_sink: bool


@dataclass(frozen=True)
class Program:
    """A graph that is ready to run: the consumers of each node, and the stage of a batch in which it runs.

    Stage 0 runs in the tasks that read the sources. A row that passes a `KeyBy` goes on in the next stage, in the task
    of the partition that owns its key. A row that waits at a `JoinInput` goes on in the stage of the other input.
    """

    app: str
    nodes: tuple[Node, ...]
    consumers: tuple[tuple[int, ...], ...]
    stages: tuple[int, ...]  # the stage in which a node's output goes on: of an exchange, the one that it leads to
    types: tuple[type, ...]
    stores: LocalStores = ONLY_LMDB  # as the app says; `local_stores` adds what its steps say

    def __getstate__(self) -> dict[str, Any]:
        """Only the fields travel to the workers: what is computed from them is computed there again."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @cached_property
    def routes(self) -> tuple[tuple[Route, ...], ...]:
        """For each node, the way to every consumer of its main output.

        Of the consumers that may change rows, the last one is given the rows themselves, unless others only read them.
        """
        found = []
        for node, consumers in enumerate(self.consumers):
            readers = [i for i in consumers if self.nodes[i].op.port is None]
            changers = [i for i in readers if self.nodes[i].op.may_change_rows]
            sharers = set(changers[:-1] if len(changers) == len(readers) else changers)
            found.append(
                tuple(
                    Route(i, self.nodes[i].inputs.index(node), i in sharers, op.has_state, op.is_sink)
                    for i, op in ((i, self.nodes[i].op) for i in readers)
                )
            )
        return tuple(found)

    @cached_property
    def ports(self) -> dict[tuple[int, str], tuple[int, ...]]:
        """The nodes that stand for each named output of a node."""
        found: dict[tuple[int, str], tuple[int, ...]] = {}
        for node in self.nodes:
            if node.op.port is not None:
                place = (node.inputs[0], node.op.port)
                found[place] = (*found.get(place, ()), node.id)
        return found

    @cached_property
    def exchange_stages(self) -> tuple[int, ...]:
        """For each node, the first stage in which its output stays in the task; 0 if it is no exchange."""
        return tuple(stage if node.op.is_exchange else 0 for node, stage in zip(self.nodes, self.stages, strict=True))

    @cached_property
    def consumers_read_text(self) -> tuple[bool, ...]:
        """For each node, whether all of its consumers take rows that are still lines of JSON."""
        return tuple(all(self.nodes[i].op.can_read_json_text for i in consumers) for consumers in self.consumers)

    @cached_property
    def clocks(self) -> dict[int, tuple[str, Read]]:
        """For each node of stage 0 that gives rows their event times: the name of that time, and the source."""
        found: dict[int, tuple[str, Read]] = {}
        origin: dict[int, Read] = {}
        for node in self.nodes:
            if isinstance(node.op, Read):
                origin[node.id] = node.op
                if node.op.timestamp is not None:
                    found[node.id] = (node.op.stream, node.op)
            elif self.stages[node.id] == 0 and node.inputs and node.inputs[0] in origin:
                read = origin[node.id] = origin[node.inputs[0]]
                if node.op.sets_times:
                    number = sum(name.startswith(f"{read.stream} with_time") for name, _ in found.values())
                    found[node.id] = (f"{read.stream} with_time {number}", read)
        return found

    @cached_property
    def leading_out(self) -> frozenset[int]:
        """The nodes whose output goes to sinks and nowhere else."""
        ends = {node.id for node in self.nodes if node.op.is_sink or node.op.port is not None}
        return frozenset(i for i, readers in enumerate(self.consumers) if ends.issuperset(readers))

    @cached_property
    def change_readers(self) -> dict[int, tuple[str, tuple[str, ...]]]:
        """For each `StepChanges` node: its step, and the names of the sinks and steps that its rows come to first."""
        found: dict[int, tuple[str, tuple[str, ...]]] = {}
        for node in self.nodes:
            if not isinstance(node.op, StepChanges):
                continue
            names: dict[str, None] = {}
            to_visit = list(self.consumers[node.id])
            while to_visit:
                each = self.nodes[to_visit.pop()]
                if each.op.is_sink or each.op.has_state:
                    names[each.name] = None
                else:
                    to_visit += self.consumers[each.id]
            found[node.id] = (node.op.step_name, tuple(sorted(names)))
        return found

    @cached_property
    def fields(self) -> dict[int, tuple[str, ...]]:
        """For each `key_by` node, the fields that its consumers read where they are numbers; others are not shuffled.

        A node is missing if one of its consumers may need whole rows: it is not a step, it has a side output, or it
        does not say which fields it reads.
        """
        found: dict[int, tuple[str, ...]] = {}
        for node in self.nodes:
            if not node.op.starts_stage or not self.consumers[node.id]:
                continue
            fields: dict[str, None] = {}
            for consumer in self.consumers[node.id]:
                op = self.nodes[consumer].op
                read = op.step.fields_read if isinstance(op, StatefulStep) else None
                if read is None or (consumer, ASIDE) in self.ports:
                    break
                fields.update(dict.fromkeys(read))
            else:
                found[node.id] = tuple(fields)
        return found

    @cached_property
    def needs_failed_rows(self) -> frozenset[int]:
        """The nodes with a consumer that needs a failed row as it was: to try it again, or to make it a dead letter."""
        needing = {node.id for node in self.nodes if is_needed_again(node.policy)}
        return frozenset(i for i, readers in enumerate(self.consumers) if needing.intersection(readers))

    @cached_property
    def shapes(self) -> dict[str, Shapes]:
        """The classes that each step's state may hold, from `type=`, `initial=` and the function's annotations."""
        return {name: shapes_of(step.state_types()) for name, step in self.steps.items()}

    @cached_property
    def caches(self) -> dict[int, Any]:
        """What each operator remembers in this process from batch to batch, by node."""
        return {node.id: cache for node in self.nodes if (cache := node.op.make_cache()) is not None}

    @cached_property
    def table_caches(self) -> dict[str, RowCache]:
        """What this process remembers of tables that are everywhere, by the name of the table.

        It belongs to the program, because the rows may be of classes that came with it.
        """
        return {}

    @cached_property
    def codec(self) -> Codec:
        """The codec for the program's types. It may be shared by all tasks of a process."""
        return Codec(self.types)

    @cached_property
    def last_stage(self) -> int:
        return max(1, *self.stages) if self.stages else 1

    @cached_property
    def reads(self) -> Mapping[str, Node]:
        """The node of each stream."""
        return {node.op.stream: node for node in self.nodes if isinstance(node.op, Read)}

    @cached_property
    def steps(self) -> Mapping[str, Step]:
        """The steps with state, by name."""
        ops = [node.op for node in self.nodes if isinstance(node.op, StatefulStep) and node.op.table is None]
        return {op.step.name: op.step for op in ops}

    @cached_property
    def local_stores(self) -> LocalStores:
        """The local stores of the state of all steps."""
        own = {name: step.state.store for name, step in self.steps.items() if step.state.store is not None}
        return replace(self.stores, of_steps=own) if own else self.stores

    @cached_property
    def sinks(self) -> Mapping[str, Sink]:
        return {node.op.sink_name: node.op.sink for node in self.nodes if isinstance(node.op, Deliver)}

    @cached_property
    def dead_letters(self) -> int | None:
        """The node of `app.dead_letters`; None if the program does not use it."""
        return next((node.id for node in self.nodes if isinstance(node.op, DeadLetters)), None)

    @cached_property
    def whole_tables(self) -> dict[int, list[str]]:
        """For each stage, the tables that its steps read as a whole, sorted."""
        found: dict[int, set[str]] = {}
        for node in self.nodes:
            for i in node.op.tables if isinstance(node.op, StatefulStep) else ():
                table = self.nodes[i].op
                if isinstance(table, StatefulStep) and table.step.is_everywhere:
                    found.setdefault(self.stages[node.id], set()).add(table.step.name)
        return {stage: sorted(tables) for stage, tables in found.items()}


def compile_program(app: str, graph: Graph, types: tuple[type, ...] = (), stores: LocalStores = ONLY_LMDB) -> Program:
    """Return the program of a graph; InvalidUse if it cannot run."""
    behind_letters = _behind_letters(graph)
    _check_letters(app, [graph.nodes[i] for i in sorted(behind_letters)])
    # Letters come after everything else in a batch, and so do the nodes behind them.
    ordered = sorted(graph.nodes, key=lambda node: node.id in behind_letters)
    consumers: list[list[int]] = [[] for _ in graph.nodes]
    for node in ordered:
        for source in node.inputs:
            consumers[source].append(node.id)
    stage_of = _stages(app, graph, ordered, behind_letters)
    for name, left in graph.unfinished.items():
        raise InvalidUse(f"app {app!r}: {name!r} does nothing yet: {left}")
    if not any(isinstance(node.op, Read) for node in graph.nodes):
        raise InvalidUse(f"app {app!r} has no stream: add one with app.stream(name, source)")
    steps = [node.op.step for node in graph.nodes if isinstance(node.op, StatefulStep)]
    step_types = [t for step in steps for t in (*step.state.types, *filter(is_storable, step.state_types()))]
    return Program(
        app,
        tuple(graph.nodes),
        tuple(map(tuple, consumers)),
        tuple(stage_of[node.id] for node in graph.nodes),
        tuple(dict.fromkeys([*types, *step_types])),
        stores,
    )


def _behind_letters(graph: Graph) -> set[int]:
    """Return the node of the dead letters, and all nodes that rows reach from there."""
    found: set[int] = set()
    for node in graph.nodes:
        if isinstance(node.op, DeadLetters) or found.intersection(node.inputs):
            found.add(node.id)
    return found


def _stages(app: str, graph: Graph, ordered: list[Node], behind_letters: set[int]) -> dict[int, int]:
    """Return the stage in which the output of each node goes on."""
    stage_of: dict[int, int] = {}
    for node in ordered:
        if isinstance(node.op, DeadLetters):  # a letter may come from any stage of the nodes before it
            stage_of[node.id] = max((s for i, s in stage_of.items() if i not in behind_letters), default=0)
            continue
        before = max((stage_of[i] for i in node.inputs), default=0)
        for table in node.op.tables if isinstance(node.op, StatefulStep) else ():
            before = max(before, _after_table(app, graph, node, table, behind_letters, stage_of))
        stage_of[node.id] = before + 1 if node.op.starts_stage else before
        for i in node.inputs:
            if isinstance(graph.nodes[i].op, JoinInput):  # one input waits for the other
                stage_of[i] = before
    return stage_of


def _after_table(
    app: str, graph: Graph, node: Node, table_node: int, behind_letters: set[int], stage_of: dict[int, int]
) -> int:
    """Return the first stage in which a step meets all changes that the batch makes to a table that it reads."""
    reader, table = node.op, graph.nodes[table_node].op
    assert isinstance(reader, StatefulStep) and isinstance(table, StatefulStep)
    is_behind = node.id in behind_letters
    if table_node in behind_letters and not is_behind:
        raise InvalidUse(
            f"app {app!r}: {reader.step.kind}({reader.step.name!r}) looks into table {table.step.name!r}, which is "
            "made of dead letters; letters come after all else in a batch, so only what stands behind "
            "app.dead_letters may do that"
        )
    after = stage_of[table_node] + (1 if table.step.is_everywhere else 0)
    if is_behind:  # a letter may come when the steps of its stage have ended
        letters = [stage_of[node.id] for node in graph.nodes if isinstance(node.op, DeadLetters)]
        return max(after, *(stage + 1 for stage in letters))
    return after


def _check_letters(app: str, behind: list[Node]) -> None:
    """Raise InvalidUse if a dead letter that fails would become one again: it would never come to an end."""
    for node in behind:
        policy = node.policy
        if (policy.then if isinstance(policy, Retry) else policy) == "dead-letter":
            raise InvalidUse(
                f'app {app!r}: what stands behind app.dead_letters cannot have on_error="dead-letter". Say '
                '"stop" or "skip" there; in a union, begin with app.dead_letters, for the first stream decides.'
            )
