"""`millpond demo`: see it crash, and see that nothing is lost."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from millpond.demo.play import Outcome, Settings, check_java, play
from millpond.demo.screen import screen_for
from millpond.errors import MillpondError


def demo(
    rows: Annotated[int, typer.Option(min=1_000, help="How many payments come in.")] = Settings.rows,
    cards: Annotated[int, typer.Option(min=1, help="How many cards they are made with.")] = Settings.cards,
    seed: Annotated[int, typer.Option(help="The same seed gives the same payments.")] = Settings.seed,
    kills: Annotated[
        int, typer.Option(min=0, max=20, help="How often a worker, and then the driver, is killed.")
    ] = Settings.kills,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the folder with input, state and output.")] = False,
) -> None:
    """Sum up card payments on Spark, kill -9 workers and drivers meanwhile, and count what is lost: nothing.

    Takes about a minute and needs a Java runtime, 17 or newer.
    """
    check_java()
    console = Console(highlight=False)
    folder = Path(tempfile.mkdtemp(prefix="millpond-demo-"))
    kept = True  # what has failed can be looked at
    try:
        with screen_for(console) as screen:
            outcome = play(Settings(rows, cards, seed, kills), folder, screen)
        kept = keep or not outcome.verdict.good
        console.print(told(outcome), soft_wrap=True, markup=False)
    except MillpondError:
        raise
    except BaseException:  # it was stopped by hand
        kept = keep
        raise
    finally:
        if kept:
            console.print(f"input, state and output are in {folder}", soft_wrap=True, markup=False)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    if not outcome.verdict.good:
        raise typer.Exit(1)


def told(outcome: Outcome) -> str:
    """The outcome in words; its last line is the one to look at.

    >>> from millpond.demo.verdict import Verdict
    >>> print(told(Outcome(Verdict(2000, lost=0, doubled=0, wrong=0), crashes=4, seconds=61.2)))
    The state and the sink are what a fold in plain Python over the same 2,000 payments gives (61 s).
    rows 2,000, crashes 4, lost 0, doubled 0
    """
    verdict = outcome.verdict
    over = f"a fold in plain Python over the same {verdict.rows:,} payments gives ({outcome.seconds:.0f} s)."
    head = "The state and the sink are what" if verdict.good else "The state or the sink is NOT what"
    counts = f"rows {verdict.rows:,}, crashes {outcome.crashes}, lost {verdict.lost:,}, doubled {verdict.doubled:,}"
    return f"{head} {over}\n{counts}" + ("" if verdict.good else f", wrong {verdict.wrong:,}")
