"""Drop the state of a step that is no longer in the program, or outputs that are not to be delivered."""

from __future__ import annotations

from millpond.errors import InvalidUse
from millpond.log.published import after_rewrite, with_given_up
from millpond.log.record import Record
from millpond.log.rewrite import rewrite_fields
from millpond.maintenance.stopped_app import StoppedApp, describe_amount, detect_fencing
from millpond.maintenance.void_outputs import give_up_outputs, undelivered_ranges, with_ranges
from millpond.pipeline.graph import Program


@detect_fencing
def drop_step_state(app: StoppedApp, step: str, program: Program | None = None, *, dry_run: bool = False) -> str:
    """Remove the state of a step, and say how much it was; InvalidUse if the program, where it is known, uses it."""
    last = app.newest("drop_step")
    if step not in last.steps:
        raise InvalidUse(f"drop_step: app {app.name!r} has no state of {step!r}; it has: {', '.join(last.steps)}")
    if program is not None and (user := _user_of(step, program, last)) is not None:
        was = "" if user == step else f", as that of step {user!r}, which has renamed_from={step!r}"
        raise InvalidUse(
            f"drop_step: the program of app {app.name!r} uses the state of {step!r}{was}. Remove the step from the "
            f"program first; nothing was changed. To let the step start again without state, call "
            f"mp.admin(state_dir, {app.name!r}).drop_step({step!r}), which does not read the program."
        )
    jobs = app.rewriter.plan_jobs(last, last)
    text = f"step {step}: {describe_amount(jobs, step)}"
    if dry_run:
        return text
    last = app.write("claim", last)  # right after the record that was looked at, or `Fenced`
    jobs = app.rewriter.plan_jobs(last, last)
    for job in jobs:
        job.steps.pop(step, None)
    manifest = app.rewriter.rewrite(jobs, last)
    others = {name: {s: v for s, v in getattr(last, name).items() if s != step} for name in ("steps", "reached", "due")}
    published = after_rewrite(app.ledger, last, {step})
    own = rewrite_fields(manifest, last, f"drop {step}", published=published, **others)
    app.write("release", app.write("rewrite", last, **own))
    return text


def _user_of(step: str, program: Program, last: Record) -> str | None:
    """Return the step of the program whose next run continues with the state that is stored as `step`, if any.

    If there is state of a step's name and of its `renamed_from`, the program starts only after one of them is dropped:
    it uses neither.
    """
    for name, each in program.steps.items():
        old = each.state.renamed_from
        has_old = old in last.steps and old not in program.steps
        if name in last.steps:
            if step == name and not has_old:
                return name
        elif step == old and has_old:
            return name
    return None


def drop_sink_outputs(app: StoppedApp, sink: str, program: Program | None) -> None:
    """Give up the outputs that were not delivered to a sink; `program` is None if its sinks are not known here."""
    last = app.find_newest("drop_outputs")
    if last is None or sink not in last.deliveries:
        return
    dropped = {sink: undelivered_ranges(app.ledger, last)[sink]}
    record = app.write(
        "release",
        last,
        deliveries={**last.deliveries, sink: last.number},
        published=with_given_up(last, {sink: last.deliveries[sink]}),
        void=with_ranges(last.void_ranges, dropped),
    )
    give_up_outputs(app.ledger, record, record.incarnation, dropped, program)
