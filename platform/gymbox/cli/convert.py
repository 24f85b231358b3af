"""`gymbox eval convert`: runs in the layout of NeMo Gym's rollouts, and back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import typer

from gymbox.cli.figures import print_json
from gymbox.cli.options import AsJson, Rename, Run_
from gymbox.cli.output import say
from gymbox.cli.readers import reader_of
from gymbox.errors import ConfigError, nearest


def convert(
    run: Path = Run_,
    layout: str = typer.Option(
        ..., "--layout", help="`nemo`: a run as NeMo Gym's files. `gymbox`: NeMo Gym's files as the folder of a run."
    ),
    output: Path = typer.Option(
        ..., "--output", "-o", help="nemo: the JSONL file of rollouts, others go beside it. gymbox: a new folder."
    ),
    rename: list[str] = Rename,
    as_json: bool = AsJson,
) -> None:
    """Write a run in the layout of NeMo Gym's rollouts, or those as a run; what is read stays as it is.

    \b
    gymbox eval convert runs/DIR --layout nemo -o results/rollouts.jsonl
    gymbox eval convert results/rollouts.jsonl --layout gymbox -o runs/theirs

    NeMo Gym's files of results/rollouts.jsonl are also rollouts_materialized_inputs.jsonl (the rows),
    rollouts_failures.jsonl (failed attempts) and rollouts_aggregate_metrics.json.
    """
    from gymbox.evaluation.metrics_file import complete_metrics
    from gymbox.evaluation.nemo_import import write_run
    from gymbox.evaluation.nemo_writer import write_nemo

    if layout == "gymbox":
        count = asyncio.run(write_run(reader_of(run, rename), output))
        complete_metrics(output)
        told: dict[str, Any] = {"output": str(output), "rollouts": count}
        text = f"{output}: {count} rollouts"
    elif layout == "nemo":
        if output.suffix != ".jsonl":
            raise ConfigError(f"--output {output}: name the file of rollouts, as results/rollouts.jsonl")
        written = write_nemo(reader_of(run, rename), output)
        told = {
            "output": str(output),
            **{name: getattr(written, name) for name in ("rollouts", "failures", "inputs", "unknown")},
        }
        text = f"{output}: {written.rollouts} rollouts, {written.failures} failed attempts, {written.inputs} rows"
        if written.unknown:
            text += (
                f"; {written.unknown} rollouts were planned and not done, and their rows are not in the run's folder"
            )
    else:
        raise ConfigError(f"--layout {layout}: {nearest(layout, ['nemo', 'gymbox'])}")
    if as_json:
        print_json(told)
    else:
        say(text)
