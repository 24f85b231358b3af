"""`gymbox merge`: the shards of one run, put together."""

from __future__ import annotations

from pathlib import Path

import typer

from gymbox.cli.output import say

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def merge(
    folders: list[Path] = typer.Argument(metavar="DIR...", help="Folders of the shards."),
    output: Path = typer.Option(..., "--output", "-o", help="Folder for the whole run; a new one."),
    partial: bool = typer.Option(False, "--partial", help="Also where shards are missing or have not finished."),
) -> None:
    """Put the shards of one run together into a folder of its own; the shards stay as they are.

    \b
    gymbox run environment=counter runner.shard=1/2 runner.output=runs/one …
    gymbox run environment=counter runner.shard=2/2 runner.output=runs/two …
    gymbox merge runs/one runs/two -o runs/whole
    """
    from gymbox.evaluation.metrics_file import complete_metrics
    from gymbox.merge import merged

    manifest = merged(folders, output, partial=partial)
    complete_metrics(output)
    say(f"{output}: {manifest.done} of {manifest.planned} rollouts, {manifest.scored} with a reward")
