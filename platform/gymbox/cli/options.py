"""Options that several commands have: declared once, so that they read and mean the same in each."""

from __future__ import annotations

import math

import typer


def finite(value: float) -> float:
    """What an option that no range bounds was given.

    Raises:
        BadParameter: it is nan, with which nothing compares, or infinite.
    """
    if not math.isfinite(value):
        raise typer.BadParameter(f"{value} is no finite number")
    return value


AsJson = typer.Option(False, "--json", help="Print JSON.")
Folders = typer.Option(
    [], "--folder", "-f", help="Where environments are (default: ./environments and those of gymbox); may be repeated."
)

# --- of runs and their figures

Run_ = typer.Argument(
    metavar="RUN",
    help="Folder of a run, or a JSONL file of rollouts; NeMo Gym's, too. DIR:AGENT is one of a run's several agents.",
)
Rename = typer.Option(
    [], "--rename", metavar="OLD=NEW", help="Another name for an environment (in NeMo Gym's files, an agent)."
)
Missing_ = typer.Option(
    "excluded", "--missing", help="Rollouts without a reward: `excluded`, or `as_failure` (a reward of 0)."
)
Success = typer.Option(1.0, "--success", callback=finite, help="A reward from which on a try has succeeded.")
Level = typer.Option(0.95, "--level", min=0.5, max=0.9999, help="Of the intervals.")
Tries = typer.Option([], "--k", min=1, help="Tries for pass@k and the like; may be repeated.")
Alpha = typer.Option(0.05, "--alpha", min=0, max=1, help="p-value (Holm) below which a difference counts.")
Common = typer.Option(False, "--common", help="Compare the tasks that both have, where they differ.")
By = typer.Option("", "--by", help="Field whose values tell subsets apart, as verifier_metadata.city.")
Own = typer.Option(False, "--own", help="Also run the environments' own metrics.py, in this process.")
