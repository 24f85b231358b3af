"""`gymbox pool`: how many started containers of which environment wait for requests on a running controller."""

from __future__ import annotations

import typer
from gymbox_sandbox.lifecycle import PoolSettings, PoolView
from pydantic import ValidationError

from gymbox.cli import Commands
from gymbox.cli.controllers import Controller, ask
from gymbox.cli.env import print_json, print_table
from gymbox.cli.options import AsJson
from gymbox.cli.output import say
from gymbox.errors import ConfigError

app = typer.Typer(
    cls=Commands,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Started containers that wait for requests on a running controller.",
)


@app.command()
def ls(controller: str = Controller, as_json: bool = AsJson) -> None:
    """List pools: how many are wanted and why, how many are there, and how often they were of use."""
    views = ask(controller, lambda client: client.pools())
    if as_json:
        print_json([view.model_dump(mode="json") for view in views])
        return
    columns = ["environment", "target", "ceiling", "wanted", "ready", "starting", "hits", "misses", "fault"]
    print_table(columns, (_row(view) for view in views))


@app.command("set")
def set_(
    environment: str = typer.Argument(help="Name of the environment."),
    target: int = typer.Argument(help="That are kept at any time; 0 (with no ceiling) ends the pool."),
    ceiling: int = typer.Option(None, help="To which demand may raise their number; default: four times the target."),
    decay: float = typer.Option(60, help="Seconds without a request after which what demand has raised is halved."),
    controller: str = Controller,
    as_json: bool = AsJson,
) -> None:
    """Have so many containers of an environment wait, from now on and after a restart of the controller.

    \b
    gymbox pool set counter 4 --ceiling 16
    """
    try:
        settings = PoolSettings(target=target, ceiling=ceiling, decay=decay)
    except ValidationError as error:
        told = "; ".join(
            f"{'.'.join(map(str, fault['loc'])) or 'ceiling'}: {fault['msg'].removeprefix('Value error, ')}"
            for fault in error.errors(include_url=False)
        )
        raise ConfigError(f"there can be no such pool: {told}") from error
    view = ask(controller, lambda client: client.set_pool(environment, settings))
    if as_json:
        print_json(view.model_dump(mode="json"))
    else:
        say(f"{view.environment}: {view.ready} ready, {view.wanted} wanted, at most {view.most}")


def _row(view: PoolView) -> list[str]:
    numbers = (view.target, view.most, view.wanted, view.ready, view.starting, view.hits, view.misses)
    return [view.environment, *map(str, numbers), view.error.partition("\n")[0]]
