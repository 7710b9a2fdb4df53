"""Small programs that join two streams, and the histories that they live through."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

import millpond as mp
from millpond.testing import Crashed, TestDriver

STEPS = ["plan", "compute", "commit", "deliver", "acknowledge", "tidy"]
WHENS = ["before", "during", "after"]
EVERYWHERE = [(at, when) for at in STEPS for when in WHENS]

HISTORIES = settings(
    max_examples=60, deadline=None, database=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)


def ids(left: Any, right: Any) -> Any:
    """A pair as the ids of its rows."""
    return (left and left["id"], right and right["id"])


def joined(
    verb: str = "join_interval", *, partitions: int = 1, disorder: Any = 0, first: str = "left", **how: Any
) -> mp.App:
    """Two streams of rows {k, at, id}, joined by k; the pairs go to "out", the late rows to "late"."""
    app = mp.App("joined", partitions=partitions)
    sides = {}
    for name in ("left", "right") if first == "left" else ("right", "left"):
        sides[name] = app.stream(name, mp.sources.rows([]), timestamp="at", disorder=disorder).key_by("k")
    found = getattr(sides["left"], verb)("j", sides["right"], **how)
    found.to("out", mp.sinks.memory())
    found.late.to("late", mp.sinks.memory())
    return app


def row(id: Any, at: Any, k: Any = "a", **more: Any) -> dict[str, Any]:
    return {"k": k, "at": at, "id": id, **more}


def send(driver: TestDriver, left: list[Any] = (), right: list[Any] = ()) -> None:  # type: ignore[assignment]
    """One batch of rows (id, at) or (id, at, key)."""
    driver.send({"left": [row(*r) for r in left], "right": [row(*r) for r in right]})


# A batch is two lists of rows, and perhaps a point at which it dies and whether the replicas are lost then.
points = st.one_of(st.none(), st.tuples(st.sampled_from(EVERYWHERE), st.booleans()))


@st.composite
def histories(draw: Any, disorder: int, crashes: bool = True, keys: str = "ab") -> list[Any]:
    """Batches of rows none of which comes more than `disorder` after a newer one."""
    clock, number, batches = 0, 0, []
    for _ in range(draw(st.integers(1, 5))):
        sides: tuple[list[Any], list[Any]] = ([], [])
        for side, step, back, key in draw(
            st.lists(
                st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, disorder), st.sampled_from(keys)),
                max_size=6,
            )
        ):
            clock, number = clock + step, number + 1
            sides[side].append((number, clock - back, key))
        batches.append((*sides, draw(points) if crashes else None))
    return batches


def live_through(driver: TestDriver, history: list[Any]) -> tuple[list[Any], list[Any]]:
    """Let it all happen, and the input end; the rows of both sides."""
    for left, right, dies in history:
        if dies is None:
            send(driver, left, right)
            continue
        (at, when), lose_replicas = dies
        driver.crash(at=at, when=when)
        with pytest.raises(Crashed):
            send(driver, left, right)
            raise Crashed("nothing", "to do")
        driver.restart(lose_replicas=lose_replicas)
    driver.finish()
    return [r for left, _, _ in history for r in left], [r for _, right, _ in history for r in right]


def counted(pairs: list[Any]) -> Counter[Any]:
    return Counter(map(tuple, pairs))
