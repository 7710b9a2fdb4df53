"""The options that all verbs with state take, and their checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from millpond.errors import InvalidUse
from millpond.log.paths import check_name
from millpond.pipeline import graph as g
from millpond.pipeline.event_time import check_has_times
from millpond.replica.local_stores import find_store
from millpond.replica.store import Store
from millpond.steps.failure import OnError, check_on_error
from millpond.steps.kind import StateSettings
from millpond.steps.state.migration import Lazily, takes_key
from millpond.steps.state.ttl import Lifetime, check_ttl
from millpond.user_functions import check_function


class StateOptions(TypedDict, total=False):
    """Options of a step's state.

    `type` is the class of the state, or several; needed where workers could not find it by themselves. `ttl` is how
    long state lives. `version` is the version of the state's shape that the program knows, and `migrate[v]` makes
    version v + 1 of version v: a function of the value, or of key and value that returns both. `mp.lazily` postpones
    the migrations until a key is needed. `renamed_from` is the name under which the state was stored before.
    `on_error` says what happens to rows that fail. `store` is the local store in which workers keep the state: "lmdb",
    "rocksdb", "memory" or an `mp.lowlevel.Store`; None means the one of the app.
    """

    type: Any
    ttl: Lifetime | None
    version: int
    migrate: Mapping[int, Callable[..., Any]] | None
    renamed_from: str | None
    on_error: OnError | None
    store: str | Store | None


class StepSettings(TypedDict):
    """The arguments that all kinds of steps have in common."""

    name: str
    on_error: OnError
    state: StateSettings


def step_settings(graph: g.Graph, node: g.Node, verb: str, name: str, options: StateOptions) -> StepSettings:
    """Claim the name and check the options of a step that is added after a node."""
    where, renamed_from = f"{verb}({name!r}", options.get("renamed_from")
    unknown = [option for option in options if option not in StateOptions.__annotations__]
    if unknown:  # Python refuses unknown arguments only where there is no **how
        known = ", ".join(StateOptions.__annotations__)
        raise InvalidUse(
            f"{where}): {verb} has no argument {unknown[0]!r}. Beside its own it has the options of state: {known}"
        )
    graph.claim(name, "step")
    if renamed_from is not None:
        check_name(renamed_from, f"{where}, renamed_from)")
    ttl = check_ttl(options.get("ttl"), f"{where}, ttl)")
    if ttl is not None and ttl.clock == "event":
        check_has_times(graph, node, f'{where}, ttl) with clock="event"')
    on_error = options.get("on_error")
    policy = node.on_error if on_error is None else check_on_error(on_error, f"{where})")
    version, migrate = options.get("version", 1), options.get("migrate")
    store = options.get("store")
    state = StateSettings(
        types=_as_types(options.get("type")),
        ttl=ttl,
        version=version,
        migrations=_check_migrations(version, migrate, f"{where})"),
        is_lazy=isinstance(migrate, Lazily),
        renamed_from=renamed_from,
        store=None if store is None else find_store(store, f"{where}, store)"),
    )
    return {"name": name, "on_error": policy, "state": state}


def _as_types(given: Any) -> tuple[type, ...]:
    if given is None:
        return ()
    return (given,) if isinstance(given, type) else tuple(given)


def _check_migrations(version: Any, migrate: Any, where: str) -> dict[int, Callable[..., Any]]:
    if type(version) is not int or version < 1:
        raise InvalidUse(f"{where}: version= is a whole number from 1, got {version!r}")
    found = dict(migrate or {})
    wrong = [v for v, f in found.items() if type(v) is not int or not 1 <= v < version or not callable(f)]
    if wrong:
        raise InvalidUse(
            f"{where}: migrate= maps a version below {version} to the function that makes the next one of it, "
            f"for example migrate={{1: upgrade}} with version=2; got {wrong[0]!r}"
        )
    for number, f in found.items():
        check_function(f, f"{where}, migrate={{{number}: …}}", *(("key", "value") if takes_key(f) else ("value",)))
    return found
