"""`gymbox snapshot`: list and remove the snapshots of a running controller."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import typer

from gymbox.cli import Commands
from gymbox.cli.controllers import Controller, ask
from gymbox.cli.env import print_json, print_table
from gymbox.cli.options import AsJson
from gymbox.cli.output import say
from gymbox.cli.sandbox import said

if TYPE_CHECKING:  # imported where it is used, so that --help is quick
    from gymbox.client import ControllerClient

app = typer.Typer(
    cls=Commands,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List and remove the snapshots of a running controller; `gymbox sandbox snapshot` takes one.",
)


@app.command()
def ls(
    environment: str = typer.Option("", "--environment", "-e", help="Only those of this environment."),
    controller: str = Controller,
    as_json: bool = AsJson,
) -> None:
    """List snapshots, oldest first."""
    views = ask(controller, lambda client: client.snapshots(environment=environment or None))
    if as_json:
        print_json([view.model_dump(mode="json") for view in views])
        return
    now = time.time()
    rows = (
        [
            view.id,
            view.environment,
            view.sandbox,
            said(now - view.created_at),
            f"{view.size / 1e6:.1f} MB",
            view.state,
            str(len(view.used_by)),
        ]
        for view in views
    )
    print_table(["id", "environment", "of sandbox", "age", "size", "state", "used by"], rows)


@app.command()
def rm(
    ids: list[str] = typer.Argument(metavar="ID...", help="Ids of snapshots."), controller: str = Controller
) -> None:
    """Remove snapshots; sandboxes that began with them live on."""
    for id in ids:
        ask(controller, partial(_remove, id))
        say(id)


async def _remove(id: str, client: ControllerClient) -> None:
    await client.delete_snapshot(id)
