"""Rescale: move all state to another number of partitions, in one commit."""

from __future__ import annotations

from millpond.driver.commit import MOST_PARTITIONS
from millpond.errors import InvalidUse
from millpond.log.published import after_rewrite
from millpond.log.rewrite import rewrite_fields
from millpond.maintenance.stopped_app import StoppedApp, describe_amount, detect_fencing


def check_partitions(partitions: object) -> None:
    """Raise `InvalidUse` if it is not a number of partitions that an app can have."""
    if type(partitions) is not int or not 1 <= partitions <= MOST_PARTITIONS:
        raise InvalidUse(
            f"rescale: expected a whole number of partitions from 1 to {MOST_PARTITIONS}, got {partitions!r}"
        )


@detect_fencing
def rescale_app(app: StoppedApp, partitions: int, *, dry_run: bool = False) -> str:
    """Move all state to another number of partitions, and say how much it is."""
    check_partitions(partitions)
    last = app.newest("rescale")
    if partitions == last.partitions:
        return f"it has {partitions} partitions already"
    jobs = app.rewriter.plan_jobs(last, last, partitions=partitions)
    text = f"{last.partitions} to {partitions} partitions, {describe_amount(jobs)}"
    if dry_run:
        return text
    last = app.write("claim", last)  # right after the record that was looked at, or `Fenced`
    jobs = app.rewriter.plan_jobs(last, last, partitions=partitions)
    manifest = app.rewriter.rewrite(jobs, last)
    own = rewrite_fields(
        manifest,
        last,
        f"rescale to {partitions} partitions",
        partitions=partitions,
        published=after_rewrite(app.ledger, last),
    )
    app.write("release", app.write("rewrite", last, **own))
    return text
