"""`millpond demo`: kill workers and drivers, and see that nothing is lost."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from millpond.demo.play import DemoSettings, Outcome, check_java, play
from millpond.demo.screen import screen_for
from millpond.errors import MillpondError


def demo(
    rows: Annotated[int, typer.Option(min=1_000, help="The number of payments.")] = DemoSettings.rows,
    cards: Annotated[int, typer.Option(min=1, help="The number of cards.")] = DemoSettings.cards,
    seed: Annotated[int, typer.Option(help="The same seed gives the same payments.")] = DemoSettings.seed,
    kills: Annotated[
        int, typer.Option(min=0, max=20, help="How often a worker, and then the driver, is killed.")
    ] = DemoSettings.kills,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the folder with input, state and output.")] = False,
) -> None:
    """Sum card payments on Spark, kill -9 workers and drivers meanwhile, and count the lost and doubled rows: none.

    Takes about a minute and needs a Java runtime, 17 or newer.
    """
    check_java()
    console = Console(highlight=False)
    folder = Path(tempfile.mkdtemp(prefix="millpond-demo-"))
    keep_folder = True  # after a failure it can be inspected
    try:
        with screen_for(console) as screen:
            outcome = play(DemoSettings(rows, cards, seed, kills), folder, screen)
        keep_folder = keep or not outcome.verdict.good
        console.print(describe_outcome(outcome), soft_wrap=True, markup=False)
    except MillpondError:
        raise
    except BaseException:  # stopped by hand
        keep_folder = keep
        raise
    finally:
        if keep_folder:
            console.print(f"input, state and output are in {folder}", soft_wrap=True, markup=False)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    if not outcome.verdict.good:
        raise typer.Exit(1)


def describe_outcome(outcome: Outcome) -> str:
    """Return the outcome in words; the last line has the counts.

    >>> from millpond.demo.verdict import DemoVerdict
    >>> print(describe_outcome(Outcome(DemoVerdict(2000, lost=0, doubled=0, wrong=0), crashes=4, seconds=61.2)))
    The state and the sink are what a loop in plain Python over the same 2,000 payments gives (61 s).
    rows 2,000, crashes 4, lost 0, doubled 0
    """
    verdict = outcome.verdict
    over = f"a loop in plain Python over the same {verdict.rows:,} payments gives ({outcome.seconds:.0f} s)."
    head = "The state and the sink are what" if verdict.good else "The state or the sink is NOT what"
    counts = f"rows {verdict.rows:,}, crashes {outcome.crashes}, lost {verdict.lost:,}, doubled {verdict.doubled:,}"
    return f"{head} {over}\n{counts}" + ("" if verdict.good else f", wrong {verdict.wrong:,}")
