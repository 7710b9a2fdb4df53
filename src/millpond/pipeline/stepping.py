"""What all verbs that keep state have in common: a step, and what it says of itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from millpond.errors import InvalidUse
from millpond.log.paths import check_name
from millpond.pipeline import graph as g
from millpond.pipeline import joins
from millpond.pipeline.state_options import checked_versions
from millpond.pipeline.stream import Stream
from millpond.steps.base import Step
from millpond.steps.failure import OnError, checked
from millpond.steps.state.lazy_migration import begin_lazily
from millpond.steps.state.migration import Lazily
from millpond.steps.state.ttl import Lifetime, checked_ttl
from millpond.timing import Duration

if TYPE_CHECKING:
    from millpond.pipeline.keyed import JoinedStream, KeyedStream

R = TypeVar("R")
K = TypeVar("K")
_CLASS = type


class Stepping(Stream[R], Generic[K, R]):
    """A keyed stream that knows how steps are made, and none of the verbs that make them."""

    def _aside(self) -> Stream[Any]:
        """What the step that this stream comes from puts aside."""
        return Stream(self._graph, self._same(g.SideOutput()))

    def _step(
        self,
        begin: Any,
        name: str,
        kind: str,
        options: dict[str, Any],
        *,
        type: Any = None,
        ttl: Lifetime | None = None,
        version: int = 1,
        migrate: Mapping[int, Callable[..., Any]] | None = None,
        renamed_from: str | None = None,
        on_error: OnError | None = None,
        other: Stepping[Any, Any] | None = None,
        holds: tuple[Duration, ...] | None = (),
        reads: tuple[str, ...] | None = None,
        **detail: Any,
    ) -> KeyedStream[K, Any]:
        """A step over this stream's rows, and over those of another that is keyed alike, if there is one."""
        self._graph.claim(name, "step")
        if renamed_from is not None:
            check_name(renamed_from, f"{kind}({name!r}, renamed_from)")
        lives = checked_ttl(ttl, f"{kind}({name!r}, ttl)")
        if lives is not None:
            options, detail = {**options, "ttl": lives}, {**detail, "ttl": lives.detail}
        policy: OnError = self._node.on_error if on_error is None else checked(on_error, f"{kind}({name!r})")
        types = () if type is None else ((type,) if isinstance(type, _CLASS) else tuple(type))
        migrations = checked_versions(version, migrate, f"{kind}({name!r})")
        is_lazy = isinstance(migrate, Lazily)
        if is_lazy:
            begin = partial(begin_lazily, begin)
        step = Step(
            name,
            kind,
            begin,
            options,
            policy,
            types,
            detail,
            version,
            migrations,
            renamed_from,
            holds,
            is_lazy,
            reads,
        )
        inputs: tuple[int, ...] = (self._node.id,)
        if other is not None:
            inputs = tuple(
                stream._same(g.JoinInput(side, name, policy)).id for side, stream in enumerate((self, other))
            )
        node = self._graph.add(g.StatefulStep(step), inputs, keyed=self._node.keyed, on_error=self._node.on_error)
        from millpond.pipeline.keyed import KeyedStream

        return KeyedStream(self._graph, node)

    def _joined(
        self,
        begin: Any,
        name: str,
        kind: str,
        other: Any,
        options: dict[str, Any],
        type: Any,
        on_error: Any,
        holds: Any,
    ) -> JoinedStream[K, Any]:
        from millpond.pipeline.keyed import JoinedStream

        where = f"{kind}({name!r})"
        if not isinstance(other, Stepping) or other._graph is not self._graph:
            raise InvalidUse(f"{where}: expected as the other side a keyed stream of the same app, got {other!r}")
        joins.keyed_alike(where, self._node, other._node)
        found = self._step(
            begin, name, kind, options, type=type, on_error=on_error, other=other, holds=holds, how=options["how"]
        )
        return JoinedStream(self._graph, found._node)
