"""Readers: the runs that a command line names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gymbox.errors import ConfigError

if TYPE_CHECKING:
    from gymbox.evaluation.rollouts import RunReader

Run_ = typer.Argument(
    metavar="RUN",
    help="Folder of a run, or a JSONL file of rollouts; NeMo Gym's, too. DIR:AGENT is one of a run's several agents.",
)
Rename = typer.Option(
    [], "--rename", metavar="OLD=NEW", help="Another name for an environment (in NeMo Gym's files, an agent)."
)
AsJson = typer.Option(False, "--json", help="Print JSON.")


def finite(value: float) -> float:
    """What an option that no range bounds was given.

    Raises:
        BadParameter: it is nan, with which nothing compares, or infinite.
    """
    if not math.isfinite(value):
        raise typer.BadParameter(f"{value} is no finite number")
    return value


def reader_of(run: Path, rename: Sequence[str] = ()) -> RunReader:
    """
    Raises:
        ConfigError: it holds no rollouts, it has no such agent, or a new name is not written OLD=NEW.
    """
    from gymbox.evaluation.rollouts import RunReader

    pairs = [text.partition("=") for text in rename]
    if wrong := [text for text, (old, _, new) in zip(rename, pairs, strict=True) if not old or not new]:
        raise ConfigError(f"--rename {wrong[0]}: write OLD=NEW, as simple_agent=counter")
    names = {old: new for old, _, new in pairs}
    path, colon, agent = str(run).rpartition(":")
    one = colon and path and not run.exists()
    return RunReader(Path(path), agent, names=names) if one else RunReader(run, names=names)
