"""What must happen to the state before a changed program can use it: it is moved, renamed or migrated."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from millpond.codec import Codec, Unreadable, decode_key
from millpond.codec.shapes import can_read_shape
from millpond.driver.settings import DeclaredPartitions
from millpond.errors import Corrupt, Incompatible, InvalidUse
from millpond.log import segment
from millpond.log.record import Record, StepInfo
from millpond.log.rewrite import RewriteJob, Rewriter, Upgrade, read_living_cells
from millpond.pipeline.graph import Program
from millpond.steps.failure import unreadable_state
from millpond.steps.kind import Step
from millpond.steps.registry import layout_of
from millpond.steps.state.lazy_migration import UNMARKED
from millpond.storage import Storage

log = logging.getLogger("millpond")


@dataclass(frozen=True)
class Adaptation:
    """The changes that the state needs, which are usually none: new names, migrations, another number of partitions."""

    partitions: int | None = None
    names: dict[str, str] = field(default_factory=dict)  # stored name → new name
    upgrades: dict[str, Upgrade] = field(default_factory=dict)  # stored name → its migration

    def __bool__(self) -> bool:
        return self.partitions is not None or bool(self.names or self.upgrades)

    @property
    def why(self) -> str:
        parts = [f"rescale to {self.partitions} partitions"] if self.partitions is not None else []
        parts += [f"rename {old} to {new}" for old, new in self.names.items()]
        parts += [f"migrate {self.names.get(step, step)}" for step in self.upgrades]
        return ", ".join(parts)


def check_steps(program: Program, last: Record) -> None:
    """Raise `Incompatible` if a step cannot continue with the state that is stored under its name."""
    for name, step in program.steps.items():
        info = last.steps.get(name) or last.steps.get(step.state.renamed_from or "")
        if info is not None and layout_of(info.kind) != layout_of(step.kind):
            raise Incompatible(
                f"app {program.app!r}: step {name!r} is of kind {step.kind} in the program, and its state is of kind "
                f"{info.kind}. Give the new step another name, or clear the app's state; nothing was changed."
            )
        if info is not None and info.oldest == step.state.version:  # older state is migrated first
            step.check_detail(program.app, info.detail)
    renamed = {step.state.renamed_from for step in program.steps.values()}
    for name in sorted(set(last.steps) - set(program.steps) - renamed):
        log.warning(
            "%s: step %r is no longer in the program; its state is kept. If the step has another name now, stop "
            "the app and write renamed_from=%r there.",
            program.app,
            name,
            name,
        )
    for name, step in program.steps.items():
        old = step.state.renamed_from
        if old is not None and last.steps and name not in last.steps and old not in last.steps:
            log.warning(
                "%s: step %r begins without state: renamed_from=%r is no step of the stored state, which has %s",
                program.app,
                name,
                old,
                ", ".join(map(repr, sorted(last.steps))),
            )


def check_streams(program: Program, positions: Collection[str]) -> None:
    """Log a warning if a stream may have been renamed: its rows would be read, and counted, again."""
    gone, new = sorted(set(positions) - set(program.reads)), sorted(set(program.reads) - set(positions))
    if gone and new:
        log.warning(
            "%s: %s no longer in the program, and %s new and read from the beginning. A stream that has another name "
            "now is read again, and its rows count twice: give it its old name, and roll the app back.",
            program.app,
            _named_streams(gone),
            _named_streams(new),
        )


def _named_streams(names: list[str]) -> str:
    listed = ", ".join(map(repr, names))
    return f"stream {listed} is" if len(names) == 1 else f"streams {listed} are"


def wanted_partitions(last: Record, declared: DeclaredPartitions) -> int | None:
    """Return the number of partitions that a start moves the state to; None if the state stays where it is.

    The number in a program counts when it is new there. If it was followed before, and the state has another number
    since, somebody has rescaled the app on purpose, and that stays.
    """
    if not isinstance(declared, int) or declared == last.declared or declared == last.partitions:
        return None
    return declared


def plan_adaptation(program: Program, last: Record, partitions: DeclaredPartitions) -> Adaptation:
    """Return the changes that the state at a record needs before the program can use it."""
    names: dict[str, str] = {}
    upgrades: dict[str, Upgrade] = {}
    for name, step in program.steps.items():
        old = _kept_as(program, step, last)
        if old is None:
            continue
        if old != name:
            names[old] = name
        upgrade = _upgrade(program, step, last.steps[old])
        if upgrade is not None:
            upgrades[old] = upgrade
    return Adaptation(wanted_partitions(last, partitions), names, upgrades)


def _kept_as(program: Program, step: Step, last: Record) -> str | None:
    """Return the name under which a step's state is stored; None if it has none yet."""
    old = step.state.renamed_from
    if step.name in last.steps:
        if old is not None and old in last.steps and old not in program.steps:
            raise Incompatible(
                f"app {program.app!r}: step {step.name!r} says renamed_from={old!r}, and there is state of both "
                "names. Leave renamed_from out to go on with the new one's, or drop one of them with "
                "app.drop_step(name); nothing was changed."
            )
        return step.name
    if old is None or old not in last.steps:
        return None
    if old in program.steps:
        raise InvalidUse(f"step {step.name!r}: renamed_from={old!r} is the name of another step of the program")
    return old


def _upgrade(program: Program, step: Step, info: StepInfo) -> Upgrade | None:
    """Return the migration of all of a step's state; None if there is none to run now.

    A lazy migration runs later, but its functions must be there: `Incompatible` if one is missing.
    """
    where = f"app {program.app!r}: step {step.name!r}"
    if info.version > step.state.version:
        raise Incompatible(
            f"{where} keeps state of version {info.version}, and the program says version={step.state.version}. Run "
            "the newer program, or roll back to a batch before the migration; nothing was changed."
        )
    if info.oldest == step.state.version:
        return None
    missing = [v for v in range(info.oldest, step.state.version) if v not in step.state.migrations]
    if missing:
        left = "keeps" if info.unmarked is None else "was migrated lazily, and may still keep"
        says = f"say version={info.version}" if info.version != step.state.version else "bring the function back"
        raise Incompatible(
            f"{where} {left} state of version {info.oldest}, and the program says version={step.state.version} without "
            f"a way from {missing[0]} to {missing[0] + 1}. Add migrate={{{missing[0]}: function}}, {says}, or give the "
            "step another name; nothing was changed."
        )
    return None if step.state.is_lazy else step.migration_from(info.oldest, program.types)


def describe_steps(program: Program, last: Record) -> dict[str, StepInfo]:
    """Return what the next record says about the program's steps."""
    found = {}
    for name, step in program.steps.items():
        before = last.steps.get(name)
        older = before is not None and before.oldest < step.state.version
        unmarked = before.oldest if older and before else None
        found[name] = StepInfo(step.kind, step.state.version, step.detail, program.shapes[name], unmarked)
    return found


def find_suspect_steps(program: Program, last: Record) -> frozenset[str]:
    """Return the steps whose state may hold values that the program's classes cannot read.

    The last record has the fields of the classes. State that is migrated lazily is read by its migrations.
    """
    codec, found = Codec(program.types), set()
    for name, step in program.steps.items():
        info = last.steps.get(name) or last.steps.get(step.state.renamed_from or "")
        if info is None or info.oldest != step.state.version:
            continue
        if not all(can_read_shape(codec.find(cls), shape) for cls, shape in info.types.items()):
            found.add(name)
    return frozenset(found)


def find_unreadable(
    storage: Storage, work: RewriteJob, steps: frozenset[str], types: tuple[type, ...]
) -> tuple[str, bytes, str] | None:
    """Return the first value of some steps that cannot be read: step, key and reason. Runs in a task, per partition."""
    codec = Codec(types)
    for name, runs, fresh in work.steps.values():
        if name in steps:
            for change in (
                change for table in read_living_cells(storage, runs, fresh) for change in segment.read_changes(table)
            ):
                try:
                    codec.decode(change.value or b"null")
                except Unreadable as error:
                    return name, change.key, str(error)
                except Corrupt:
                    continue  # the task that needs it will raise it
    return None


def check_readable(program: Program, last: Record, names: dict[str, str], rewriter: Rewriter) -> None:
    """Raise an error if the program's classes cannot read the state. State is read only if that is likely.

    `names` maps stored names of steps to new ones.
    """
    steps = find_suspect_steps(program, last)
    works = rewriter.plan_jobs(last, last, names=names) if steps else []
    results = rewriter.each(partial(find_unreadable, steps=steps, types=program.types), works) if works else []
    for step, key, error in (found for found in results if found is not None):
        raise unreadable_state(step, Unreadable(error), decode_key(key))


def step_details(program: Program, last: Record) -> dict[str, dict[str, Any]]:
    """Return what the tasks of a batch need to know about the stored state of their steps."""
    found = {name: info.detail for name, info in last.steps.items()}
    for name, step in program.steps.items():
        info = last.steps.get(name)
        if info is not None and info.oldest < step.state.version:
            found[name] = {**info.detail, UNMARKED: info.oldest}
    return found
