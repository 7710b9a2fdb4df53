"""The contract of sinks as tests, to run against your own sink.

# test_my_sink.py
import pytest
from millpond.testing.sink_suite import SinkSuite

class TestMySink(SinkSuite):
    @pytest.fixture
    def make_sink(self, tmp_path):
        return lambda: MySink(tmp_path / "out")

    @pytest.fixture
    def held(self, tmp_path):
        return lambda sink: read_back(tmp_path / "out")
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from millpond.errors import Fenced, InvalidUse, MillpondError
from millpond.rows.typed_columns import columns_of_objects
from millpond.sinks.base import Delivery, FencingSink, RegisteredSink, Registration, RollbackSink, Sink, TableSink

SinkRows = list[Any]

FIRST_DELIVERY = Delivery("orders", "5e1f", "totals", 42, 0, "a7c0")
CLAIM = Registration("orders", "5e1f", "totals", 40, "c1a1", 40, "c1a1")


class SinkSuite:
    """The contract of `mp.lowlevel.Sink`, one test for each promise. Subclass it and override `make_sink` and `held`.

    >>> from millpond.testing.sink_suite import SinkSuite
    >>> class TestConsole(SinkSuite):
    ...     counts_once = False
    """

    counts_once: ClassVar[bool] = True
    """Whether a repeated delivery counts once: False for a sink that is documented not to ensure it."""

    can_take_back: ClassVar[bool] = True
    """Whether a registered sink can make deliveries void: False for one whose `take_back` raises `InvalidUse`."""

    @pytest.fixture
    def make_sink(self) -> Callable[[], Sink]:
        """Override: return a function that makes a new sink at each call, always for the same target."""
        raise NotImplementedError("override the fixture make_sink")

    @pytest.fixture
    def held(self) -> Callable[[Sink], SinkRows]:
        """Override: return a function that reads the rows in the sink's target, by batch and partition."""
        raise NotImplementedError("override the fixture held")

    def some_rows(self, first: int, count: int) -> SinkRows:
        """Override if the sink cannot take such rows: return `count` rows from number `first` on."""
        return [{"id": str(i), "text": f"row {i}"} for i in range(first, first + count)]

    def some_table(self, first: int, count: int) -> pa.Table:
        """Override if `some_rows` are not uniform: return uniform ones as the table that the sink would be given."""
        columns = columns_of_objects(self.some_rows(first, count))
        assert columns is not None, "some_rows are not uniform: override some_rows or some_table"
        return columns.table

    def test_it_is_a_sink(self, make_sink: Callable[[], Sink]) -> None:
        sink = make_sink()
        assert isinstance(sink, Sink)
        assert sink.where in ("driver", "workers")

    def test_rows_arrive_in_their_order(self, make_sink: Callable[[], Sink], held: Callable[[Sink], SinkRows]) -> None:
        sink, rows = make_sink(), self.some_rows(0, 20)
        sink.deliver(rows, FIRST_DELIVERY)
        assert held(sink) == rows

    def test_batches_arrive_in_their_order(
        self, make_sink: Callable[[], Sink], held: Callable[[Sink], SinkRows]
    ) -> None:
        sink = make_sink()
        for i in range(8, 12):  # one digit, then two: sorted as text they would be in another order
            sink.deliver(self.some_rows(i * 3, 3), replace(FIRST_DELIVERY, batch=i))
        assert held(sink) == self.some_rows(24, 12)

    def test_a_delivery_that_is_repeated_counts_once(
        self, make_sink: Callable[[], Sink], held: Callable[[Sink], SinkRows]
    ) -> None:
        sink, rows = make_sink(), self.some_rows(0, 3)
        sink.deliver(rows, FIRST_DELIVERY)
        sink.deliver(self.some_rows(3, 2), replace(FIRST_DELIVERY, batch=43))
        sink.deliver(rows, FIRST_DELIVERY)
        sink.deliver(rows, replace(FIRST_DELIVERY))  # the same id, another object
        assert len(held(sink)) == 5 if self.counts_once else len(held(sink)) >= 5

    def test_a_delivery_that_a_new_process_repeats_counts_once(
        self, make_sink: Callable[[], Sink], held: Callable[[Sink], SinkRows]
    ) -> None:
        rows = self.some_rows(0, 3)
        make_sink().deliver(rows, FIRST_DELIVERY)
        sink = make_sink()
        sink.deliver(rows, FIRST_DELIVERY)
        assert held(sink) == rows if self.counts_once else held(sink)[:3] == rows

    @pytest.mark.parametrize(
        "other",
        [
            replace(FIRST_DELIVERY, batch=43),
            replace(FIRST_DELIVERY, partition=1),
            replace(FIRST_DELIVERY, sink="sums"),
            replace(FIRST_DELIVERY, incarnation="77aa"),
            replace(FIRST_DELIVERY, attempt="b0b0"),
        ],
        ids=["batch", "partition", "sink", "incarnation", "attempt"],
    )
    def test_deliveries_that_differ_in_one_thing_are_two(
        self, make_sink: Callable[[], Sink], held: Callable[[Sink], SinkRows], other: Delivery
    ) -> None:
        sink, rows = make_sink(), self.some_rows(0, 3)
        sink.deliver(rows, FIRST_DELIVERY)
        sink.deliver(rows, other)
        assert held(sink) == rows + rows

    def test_an_empty_delivery_leaves_no_row(
        self, make_sink: Callable[[], Sink], held: Callable[[Sink], SinkRows]
    ) -> None:
        sink = make_sink()
        sink.deliver([], FIRST_DELIVERY)
        assert held(sink) == []
        sink.deliver(self.some_rows(0, 3), replace(FIRST_DELIVERY, batch=43))
        assert held(sink) == self.some_rows(0, 3)

    def test_the_rows_stay_as_they_are(self, make_sink: Callable[[], Sink]) -> None:
        rows = self.some_rows(0, 3)
        before = copy.deepcopy(rows)
        make_sink().deliver(rows, FIRST_DELIVERY)
        assert rows == before

    def test_it_survives_the_way_to_a_worker(
        self, make_sink: Callable[[], Sink], held: Callable[[Sink], SinkRows]
    ) -> None:
        sink, rows = make_sink(), self.some_rows(0, 3)
        there = pickle.loads(pickle.dumps(sink))
        assert there.where == sink.where
        if sink.where == "workers":
            there.deliver(rows, FIRST_DELIVERY)
            assert held(sink) == rows

    # --- optional: tables ---

    def test_a_table_leaves_what_its_rows_leave(
        self, make_sink: Callable[[], Sink], held: Callable[[Sink], SinkRows]
    ) -> None:
        sink = make_sink()
        if not isinstance(sink, TableSink):
            assert not hasattr(sink, "deliver_table"), "it must have the arguments that mp.lowlevel.TableSink has"
            return
        sink.deliver_table(self.some_table(0, 20), FIRST_DELIVERY)
        sink.deliver(self.some_rows(20, 3), replace(FIRST_DELIVERY, batch=43))
        sink.deliver_table(self.some_table(23, 3), replace(FIRST_DELIVERY, batch=44))
        assert held(sink) == self.some_rows(0, 26)

    @pytest.mark.parametrize("second", ["rows", "table"])
    @pytest.mark.parametrize("first", ["rows", "table"])
    def test_a_delivery_that_is_repeated_the_other_way_counts_once(
        self, make_sink: Callable[[], Sink], held: Callable[[Sink], SinkRows], first: str, second: str
    ) -> None:
        if not isinstance(make_sink(), TableSink):
            return
        for how in (first, second):  # each in a process of its own, the second after an upgrade
            self._deliver(make_sink(), how, FIRST_DELIVERY)
        found = held(make_sink())
        assert found == self.some_rows(0, 3) if self.counts_once else found[:3] == self.some_rows(0, 3)

    def test_a_table_survives_the_way_to_a_worker(
        self, make_sink: Callable[[], Sink], held: Callable[[Sink], SinkRows]
    ) -> None:
        sink = make_sink()
        if isinstance(sink, TableSink) and sink.where == "workers":
            self._deliver(pickle.loads(pickle.dumps(sink)), "table", FIRST_DELIVERY)
            assert held(sink) == self.some_rows(0, 3)

    def test_a_table_of_a_void_delivery_adds_no_row(
        self, make_sink: Callable[[], Sink], held: Callable[[Sink], SinkRows]
    ) -> None:
        sink = make_sink()
        if not isinstance(sink, TableSink) or not isinstance(sink, RollbackSink):
            return
        late = replace(FIRST_DELIVERY, batch=43)
        self._deliver(sink, "table", FIRST_DELIVERY)
        sink.rollback([FIRST_DELIVERY, late], lambda delivery: self.some_rows(0, 3))
        assert held(sink) == []
        for delivery in (FIRST_DELIVERY, late):  # a driver that was paused
            self._deliver(make_sink(), "table", delivery)
        assert held(sink) == []
        if isinstance(sink, RegisteredSink):
            sink.revive(self.some_rows(0, 3), late)
            self._deliver(make_sink(), "table", late)
            assert held(sink) == self.some_rows(0, 3)

    def _deliver(self, sink: Sink, how: str, delivery: Delivery) -> None:
        """Deliver three rows, as a list or as a table."""
        if how == "table":
            assert isinstance(sink, TableSink)
            sink.deliver_table(self.some_table(0, 3), delivery)
        else:
            sink.deliver(self.some_rows(0, 3), delivery)

    # --- optional: rollback ---

    def test_deliveries_that_are_rolled_back_are_void_for_ever(
        self, make_sink: Callable[[], Sink], held: Callable[[Sink], SinkRows]
    ) -> None:
        sink = make_sink()
        if not isinstance(sink, RollbackSink):
            assert not hasattr(sink, "rollback"), "it must have the arguments that mp.lowlevel.RollbackSink has"
            return
        deliveries = [replace(FIRST_DELIVERY, batch=42 + i) for i in range(4)]
        for i in (0, 1, 3):  # the third never arrives
            sink.deliver(self.some_rows(i, 1), deliveries[i])
        given_up = {deliveries[1]: self.some_rows(1, 1), deliveries[2]: self.some_rows(2, 1)}
        for _ in range(2):  # a process that was paused repeats it
            sink.rollback(list(given_up), lambda delivery: given_up[delivery])
            assert held(sink) == [*self.some_rows(0, 1), *self.some_rows(3, 1)]
            for delivery, rows in given_up.items():  # a driver that was paused
                make_sink().deliver(rows, delivery)
            assert held(sink) == [*self.some_rows(0, 1), *self.some_rows(3, 1)]

    def test_a_rollback_needs_no_rows(self, make_sink: Callable[[], Sink], held: Callable[[Sink], SinkRows]) -> None:
        sink = make_sink()
        if isinstance(sink, RollbackSink):
            sink.rollback([FIRST_DELIVERY], lambda delivery: [])
            sink.deliver(self.some_rows(0, 1), FIRST_DELIVERY)
            assert held(sink) == []

    # --- optional: registration ---

    def test_a_target_remembers_its_registration(self, make_sink: Callable[[], Sink]) -> None:
        sink = make_sink()
        if not isinstance(sink, RegisteredSink):
            assert not hasattr(sink, "register"), "it must have all that mp.lowlevel.RegisteredSink has"
            return
        assert list(sink.registrations("orders", "5e1f", "totals")) == []
        for written in (CLAIM, replace(CLAIM, batch=42, attempt="a7c0")):
            sink.register(written)
            other = make_sink()
            assert isinstance(other, RegisteredSink)
            assert list(other.registrations("orders", "5e1f", "totals")) == [written]
            assert other.target == sink.target
        assert not sink.registrations("orders", "77aa", "totals")
        assert not sink.registrations("orders", "5e1f", "sums")

    def test_a_claim_registers_beside_others(self, make_sink: Callable[[], Sink]) -> None:
        sink = make_sink()
        if isinstance(sink, RegisteredSink):
            newer = replace(CLAIM, claim=50, claim_attempt="d0d0", batch=51)
            sink.register(newer)
            sink.register(CLAIM)  # by a driver that was paused
            assert sorted(r.claim for r in sink.registrations("orders", "5e1f", "totals")) == [40, 50]
            sink.forget([CLAIM])
            sink.forget([CLAIM])
            assert list(sink.registrations("orders", "5e1f", "totals")) == [newer]

    def test_a_target_knows_what_it_holds(self, make_sink: Callable[[], Sink]) -> None:
        sink = make_sink()
        if isinstance(sink, RegisteredSink):
            assert sink.status(FIRST_DELIVERY) == "gone"
            sink.deliver(self.some_rows(0, 1), FIRST_DELIVERY)
            assert sink.status(FIRST_DELIVERY) == "held"
            for other in (replace(FIRST_DELIVERY, attempt="b0b0"), replace(FIRST_DELIVERY, batch=43)):
                assert sink.status(other) == "gone"

    def test_a_target_gives_up_what_the_ledger_does_not_contain(
        self, make_sink: Callable[[], Sink], held: Callable[[Sink], SinkRows]
    ) -> None:
        sink = make_sink()
        if not isinstance(sink, RegisteredSink):
            return
        if not self.can_take_back:
            with pytest.raises(InvalidUse, match="accept"):
                sink.take_back(CLAIM, lambda batch, attempt: True)
            return
        known = [FIRST_DELIVERY, replace(FIRST_DELIVERY, batch=43), replace(FIRST_DELIVERY, batch=44, sink="sums")]
        foreign = [replace(FIRST_DELIVERY, batch=43, attempt="b0b0"), replace(FIRST_DELIVERY, batch=44, partition=1)]
        for i, delivery in enumerate([*known, *foreign]):
            sink.deliver(self.some_rows(i, 1), delivery)
        give_up = sink.take_back(CLAIM, lambda batch, attempt: (batch, attempt) in {(42, "a7c0"), (43, "a7c0")})
        newer = replace(FIRST_DELIVERY, batch=45)
        sink.deliver(self.some_rows(9, 1), newer)  # a delivery after the search is not voided
        assert len(give_up()) == 2
        left = [*self.some_rows(0, 3), *self.some_rows(9, 1)]
        assert sorted(map(str, held(sink))) == sorted(map(str, left))

    def test_a_delivery_that_another_copy_rolled_back_can_be_delivered_again(
        self, make_sink: Callable[[], Sink], held: Callable[[Sink], SinkRows]
    ) -> None:
        sink = make_sink()
        if not isinstance(sink, RegisteredSink) or not isinstance(sink, RollbackSink):
            return
        second, third = replace(FIRST_DELIVERY, batch=43), replace(FIRST_DELIVERY, batch=44)
        rows = {FIRST_DELIVERY: self.some_rows(0, 2), second: self.some_rows(2, 2), third: self.some_rows(4, 2)}
        for delivery in (FIRST_DELIVERY, second):
            sink.deliver(rows[delivery], delivery)
        sink.rollback([second, third], lambda delivery: rows[delivery])
        sink.deliver(rows[second], second)
        assert sorted(map(str, held(sink))) == sorted(map(str, rows[FIRST_DELIVERY])), "it is void until its id is free"
        assert [sink.status(delivery) for delivery in (FIRST_DELIVERY, second, third)] == ["held", "void", "void"]
        sink.revive(rows[second], second)
        assert [sink.status(delivery) for delivery in (FIRST_DELIVERY, second, third)] == ["held", "held", "void"]
        for delivery in (FIRST_DELIVERY, second, third):
            sink.deliver(rows[delivery], delivery)
        assert sorted(map(str, held(sink))) == sorted(map(str, rows[FIRST_DELIVERY] + rows[second]))

    # --- optional: fencing ---

    def test_a_target_refuses_all_claims_but_the_newest(
        self, make_sink: Callable[[], Sink], held: Callable[[Sink], SinkRows]
    ) -> None:
        sink = make_sink()
        if not isinstance(sink, FencingSink):
            return
        assert isinstance(sink, RegisteredSink), "a sink that fences must be a RegisteredSink, too"
        newer = replace(CLAIM, claim=50, claim_attempt="d0d0", batch=50, attempt="d0d0")
        old, new = (replace(FIRST_DELIVERY, claim=(one.claim, one.claim_attempt)) for one in (CLAIM, newer))
        sink.register(CLAIM)
        sink.fence(CLAIM, 2)
        sink.deliver(self.some_rows(0, 3), old)
        other = make_sink()
        assert isinstance(other, FencingSink) and isinstance(other, RegisteredSink)
        other.register(newer)
        other.fence(newer, 1)
        for partition in (0, 1):  # the second was used by the older claim alone
            with pytest.raises(Fenced):
                sink.deliver(self.some_rows(3, 3), replace(old, batch=43, partition=partition))
        other.deliver(self.some_rows(0, 3), new)  # the same delivery, by the newer driver
        other.deliver(self.some_rows(3, 3), replace(new, batch=51))
        assert held(sink) == self.some_rows(0, 6)
        with pytest.raises(Fenced):  # a driver that was paused before it had registered
            sink.fence(CLAIM, 2)
        other.deliver(self.some_rows(6, 3), replace(new, batch=52))
        assert held(sink) == self.some_rows(0, 9)

    def test_a_claim_of_another_copy_is_refused_unless_it_is_accepted(
        self, make_sink: Callable[[], Sink], held: Callable[[Sink], SinkRows]
    ) -> None:
        sink = make_sink()
        if not isinstance(sink, FencingSink) or not isinstance(sink, RegisteredSink):
            return
        copy = replace(CLAIM, claim=35, claim_attempt="beef", batch=35, attempt="beef")
        sink.register(CLAIM)
        sink.fence(CLAIM, 1)
        with pytest.raises(Fenced):
            sink.fence(copy, 1)
        sink.fence(copy, 1, over=[CLAIM])
        with pytest.raises(MillpondError, match="copy"):
            sink.deliver(self.some_rows(0, 1), replace(FIRST_DELIVERY, claim=(CLAIM.claim, CLAIM.claim_attempt)))
        sink.deliver(self.some_rows(1, 1), replace(FIRST_DELIVERY, claim=(copy.claim, copy.claim_attempt)))
        assert held(sink) == self.some_rows(1, 1)
