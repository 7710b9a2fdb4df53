"""A point of an app's log: one record, and what its readers know of the log before it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from millpond.log.checked import Pointer
from millpond.log.paths import Paths
from millpond.log.record import Record

SegmentsByStep = dict[str, list[Pointer]]  # step or sink → files


@dataclass(frozen=True)
class RecordLink:
    """The place of a record in its ledger. A copy of the ledger may have another record with the same number."""

    number: int
    checksum: str
    previous: str

    @classmethod
    def of(cls, record: Record) -> RecordLink:
        return cls(record.number, record.checksum, record.previous)


@dataclass(frozen=True)
class LogPoint:
    """The record that a replica must have reached, with all that is needed to read the log up to it.

    >>> import millpond as mp
    >>> def catch_up_with_newest(replica: mp.lowlevel.LogReplica, state_dir: str, name: str):
    ...     return replica.catch_up(mp.lowlevel.LogPoint.of(mp.open(state_dir, name).newest))
    """

    app: str
    incarnation: str
    partitions: int
    number: int  # of the record
    born: int  # the first record of the app's state
    epoch: int = 0
    manifest: Pointer | None = None  # the state at an earlier record: a replica that lacks it begins there
    recent: dict[int, dict[int, SegmentsByStep]] = field(default_factory=dict)  # record → partition → segments
    links: dict[int, RecordLink] = field(default_factory=dict)  # of those records, and of the record itself

    @classmethod
    def of(cls, record: Record) -> LogPoint:
        """Return the point of a record; of no other record it knows the segments.

        >>> import millpond as mp
        >>> def newest_point(): return mp.lowlevel.LogPoint.of(mp.open("state", "orders").newest)
        """
        return cls(
            record.app,
            record.incarnation,
            record.partitions,
            record.number,
            record.born,
            record.epoch,
            record.manifest,
            recent={record.number: segments_by_partition(record)},
            links={record.number: RecordLink.of(record)},
        )

    @cached_property
    def paths(self) -> Paths:
        return Paths(self.app)

    def followed_by(self, record: Record, most: int) -> LogPoint:
        """Return the point of the record after this one, with the segments of the newest records, at most `most`.

        >>> import millpond as mp
        >>> def next_point(point, record): return point.followed_by(record, most=100)
        """
        point = LogPoint.of(record)
        numbers = [*self.links, record.number][-most:]
        recent, links = {**self.recent, **point.recent}, {**self.links, **point.links}
        return replace(point, recent={n: recent[n] for n in numbers}, links={n: links[n] for n in numbers})


def segments_by_partition(record: Record) -> dict[int, SegmentsByStep]:
    """Return the segments of a record: partition → step → files."""
    found: dict[int, SegmentsByStep] = {}
    for step, partitions in record.segments.items():
        for partition, pointers in partitions.items():
            found.setdefault(partition, {})[step] = pointers
    return found
