"""What must happen to the state before a changed program can go on with it: moved, renamed, migrated."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from millpond.codec import Codec, decode_key, encode_key
from millpond.errors import Incompatible, InvalidUse
from millpond.log.record import Record, StepInfo
from millpond.log.segment import Change
from millpond.pipeline.graph import Program
from millpond.run.rewrite import Upgrade
from millpond.steps.base import Step
from millpond.steps.state import cell_of, name_of


@dataclass(frozen=True)
class Adaptation:
    """Nothing, as a rule: names that change, migrations to run, another count of partitions."""

    partitions: int | None = None
    names: dict[str, str] = field(default_factory=dict)  # the name that state is kept under → the new one
    upgrades: dict[str, Upgrade] = field(default_factory=dict)  # the name that it is kept under → what changes it

    def __bool__(self) -> bool:
        return self.partitions is not None or bool(self.names or self.upgrades)

    @property
    def why(self) -> str:
        parts = [f"rescale to {self.partitions} partitions"] if self.partitions is not None else []
        parts += [f"rename {old} to {new}" for old, new in self.names.items()]
        parts += [f"migrate {self.names.get(step, step)}" for step in self.upgrades]
        return ", ".join(parts)


def adaptation(program: Program, last: Record, partitions: int | None) -> Adaptation:
    """What the program needs of the state that the last record speaks of."""
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
    moved = partitions if partitions is not None and partitions != last.partitions else None
    return Adaptation(moved, names, upgrades)


def _kept_as(program: Program, step: Step, last: Record) -> str | None:
    """The name that a step's state is kept under; nothing if it has none yet."""
    old = step.renamed_from
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
    if info.version == step.version:
        return None
    where = f"app {program.app!r}: step {step.name!r}"
    if info.version > step.version:
        raise Incompatible(
            f"{where} keeps state of version {info.version}, and the program says version={step.version}. Run the "
            "newer program, or roll back to a batch before the migration; nothing was changed."
        )
    missing = [v for v in range(info.version, step.version) if v not in step.migrate]
    if missing:
        raise Incompatible(
            f"{where} keeps state of version {info.version}, and the program says version={step.version} without a "
            f"way from {missing[0]} to {missing[0] + 1}. Add migrate={{{missing[0]}: function}}, say "
            f"version={info.version}, or give the step another name; nothing was changed."
        )
    functions = [step.migrate[v] for v in range(info.version, step.version)]
    return Migration(step.name, step.kind, functions, program.types)


@dataclass(frozen=True)
class Migration:
    """The user's functions over the cells of one key."""

    step: str
    kind: str
    functions: list[Callable[..., Any]]
    types: tuple[type, ...]

    def __call__(self, cells: list[Change]) -> list[Change]:
        codec = Codec(self.types, unknown="plain")
        key = decode_key(cells[0].key)
        if self.kind in ("stateful_map", "table"):
            found = [cell for cell in cells if not cell.cell]
            if found:
                key, value = self._run(key, codec.decode(found[0].value or b"null"))
                if value is None:
                    return []
                found = [found[0]._replace(value=codec.encode(value))]
            beside = [cell for cell in cells if cell.cell]  # the time of a table's row
            return [cell._replace(key=encode_key(key)) for cell in found + beside]
        named = {cell.cell: codec.decode(cell.value or b"null") for cell in cells if cell.cell.startswith(b"v:")}
        names = {name_of(cell): cell for cell in named}
        key, changed = self._run(key, {name: named[cell] for name, cell in names.items()})
        encoded = encode_key(key)
        if changed is None:
            return []
        kept = [cell._replace(key=encoded) for cell in cells if not cell.cell.startswith(b"v:")]
        times = {cell.cell: cell for cell in cells}
        for name, value in changed.items():
            cell = cell_of("v", name)
            before = times.get(cell)
            due, wall = (None, None) if before is None else (before.due, before.wall)
            kept.append(Change(encoded, cell, codec.encode(value), due, wall))
        return kept

    def _run(self, key: Any, value: Any) -> tuple[Any, Any]:
        for function in self.functions:
            try:
                if takes_key(function):
                    key, value = function(key, value)
                else:
                    value = function(value)
            except Exception as error:
                raise Incompatible(
                    f"step {self.step!r}: its migration raised {type(error).__name__}: {error}, for the key {key!r} "
                    f"and the value {value!r}. Nothing was changed."
                ) from error
            if value is None:
                break
        return key, value


def takes_key(function: Callable[..., Any]) -> bool:
    """Whether a migration is of a key and its value, and not of the value alone."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return sum(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters) == 2
