"""The joins of two keyed streams."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from millpond.pipeline import joins
from millpond.pipeline.stepping import Stepping
from millpond.steps.failure import OnError
from millpond.steps.joins.asof import JoinAsof
from millpond.steps.joins.interval import JoinInterval
from millpond.steps.joins.window import JoinWindow
from millpond.steps.windows.definitions import MISSING, Hopping

if TYPE_CHECKING:
    from millpond.pipeline.keyed import JoinedStream, KeyedStream

R = TypeVar("R")
K = TypeVar("K")


class Joining(Stepping[K, R], Generic[K, R]):
    """A keyed stream that can be joined with another."""

    def join_interval(
        self,
        name: str,
        other: KeyedStream[K, Any],
        *,
        before: str | int | timedelta = 0,
        after: str | int | timedelta = 0,
        grace: str | int | timedelta = MISSING,
        how: Literal["inner", "left", "right", "outer"] = "inner",
        merge: Callable[[Any, Any], Any] | None = None,
        type: Any = None,
        on_error: OnError | None = None,
    ) -> JoinedStream[K, Any]:
        """Pairs of a row and one of the other stream, of one key, whose times are near each other.

        The other row's time lies from `before` before this one's to `after` after it, both included. Each pair comes
        once, with the later of its times, when the second of its rows comes. With `how` "left", "right" or "outer" a
        row of that side, or of either, that has met none comes once, with its own time, when no partner can come any
        more: when the watermark of both streams is past its reach and the `grace`.

        `merge` is given both rows, `None` for a missing one. Without it the output has the fields of both; those of the
        right that clash and differ get `_right`. If it raises, `on_error` is given both rows, and that pair is all
        that is lost: the two have met, and may meet others.

        Rows older than the watermark by more than `grace` join nothing and are on `.late`.

        >>> import millpond as mp
        >>> app = mp.App("shop")
        >>> orders = app.stream("orders", mp.sources.rows([]), timestamp="at").key_by("order")
        >>> payments = app.stream("payments", mp.sources.rows([]), timestamp="at").key_by("order")
        >>> paid = orders.join_interval("paid", payments, after=10, grace=mp.NO_GRACE, how="left")
        >>> out = paid.to("out", mp.sinks.memory())
        >>> with mp.testing.TestDriver(app) as driver:
        ...     driver.send("orders", [{"order": 1, "at": 5}, {"order": 2, "at": 6}])
        ...     driver.send("payments", [{"order": 1, "at": 8, "by": "card"}])
        ...     driver.finish()
        ...     driver.output("out")
        [{'order': 1, 'at': 5, 'at_right': 8, 'by': 'card'}, {'order': 2, 'at': 6}]
        """
        options = joins.interval(name, before, after, grace, how, merge)
        holds = joins.interval_holds(options)
        return self._joined(JoinInterval, name, "join_interval", other, options, type, on_error, holds)

    def join_asof(
        self,
        name: str,
        other: KeyedStream[K, Any],
        *,
        keep: str | int | timedelta = MISSING,
        how: Literal["inner", "left"] = "inner",
        wait: bool = False,
        merge: Callable[[Any, Any], Any] | None = None,
        type: Any = None,
        on_error: OnError | None = None,
    ) -> JoinedStream[K, Any]:
        """Each row with the newest row of the other stream, of its key, at or before its time.

        That is the newest that has arrived, with the same batch at the latest; of several of one time, the last to
        arrive. With `wait=True` the row waits until the watermark of both streams has passed it, so that all have. A
        row more than `keep` older is no match, and rows of the other stream leave when the watermark is that far ahead.
        With `how="left"` a row without a match comes too.

        A row behind the watermark joins if its match is still kept; if none is, it is on `.late`, for there may have
        been one. So is a row of the other stream that is older than the watermark by more than `keep`.

        >>> import millpond as mp
        >>> app = mp.App("market")
        >>> trades = app.stream("trades", mp.sources.rows([]), timestamp="at").key_by("paper")
        >>> quotes = app.stream("quotes", mp.sources.rows([]), timestamp="at").key_by("paper")
        >>> quoted = trades.join_asof("quoted", quotes, keep=1000, how="left")
        >>> out = quoted.to("out", mp.sinks.memory())
        >>> with mp.testing.TestDriver(app) as driver:
        ...     driver.send("quotes", [{"paper": "X", "at": 1, "bid": 9}, {"paper": "X", "at": 4, "bid": 8}])
        ...     driver.send("trades", [{"paper": "X", "at": 3}, {"paper": "Y", "at": 3}])
        ...     driver.output("out")
        [{'paper': 'X', 'at': 3, 'at_right': 1, 'bid': 9}, {'paper': 'Y', 'at': 3}]
        """
        options = joins.asof(name, keep, how, wait, merge)
        return self._joined(JoinAsof, name, "join_asof", other, options, type, on_error, ())

    def join_window(
        self,
        name: str,
        other: KeyedStream[K, Any],
        window: Hopping,
        *,
        grace: str | int | timedelta = MISSING,
        how: Literal["inner", "left", "right", "outer"] = "inner",
        merge: Callable[[Any, Any], Any] | None = None,
        type: Any = None,
        on_error: OnError | None = None,
    ) -> JoinedStream[K, Any]:
        """Every pair of a row and one of the other stream, of one key, that are in the same window.

        The windows are `mp.tumbling` or `mp.hopping`. Pairs come when their window closes: when the watermark of both
        streams has passed its end by `grace`. Where windows overlap, a pair comes once for each window that holds
        both. With `how` "left", "right" or "outer" a row that meets none in a window comes alone, for that window.
        An output has the later of its rows' times. `merge` is as in `join_interval`.

        A row that missed a window is on `.late`, with `missed`, and counts in the windows that are open.

        >>> import millpond as mp
        >>> app = mp.App("site")
        >>> views = app.stream("views", mp.sources.rows([]), timestamp="at").key_by("user")
        >>> clicks = app.stream("clicks", mp.sources.rows([]), timestamp="at").key_by("user")
        >>> seen = views.join_window("seen", clicks, mp.tumbling(10), grace=mp.NO_GRACE)
        >>> out = seen.to("out", mp.sinks.memory())
        >>> with mp.testing.TestDriver(app) as driver:
        ...     driver.send({
        ...         "views": [{"user": "ann", "at": 1, "page": "a"}, {"user": "ann", "at": 11, "page": "b"}],
        ...         "clicks": [{"user": "ann", "at": 9}],
        ...     })
        ...     driver.finish()
        ...     driver.output("out")
        [{'user': 'ann', 'at': 1, 'page': 'a', 'at_right': 9}]
        """
        options = joins.window(name, window, grace, how, merge)
        holds = (window.size, options["grace"])
        return self._joined(JoinWindow, name, "join_window", other, options, type, on_error, holds)
