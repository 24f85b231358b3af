"""`gymbox image`: the images that environments run from, on this machine's Docker engine."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gymbox.cli import Commands
from gymbox.cli.env import print_json, print_table, said
from gymbox.cli.options import AsJson, Folders
from gymbox.cli.output import say
from gymbox.cli.places import environment_folders
from gymbox.environment import Catalog, Environment
from gymbox.errors import ConfigError, Problem

if TYPE_CHECKING:  # imported where they are used, since they bring the Docker SDK along
    from gymbox.providers.docker import DockerProvider
    from gymbox.providers.engine import Engine
    from gymbox.providers.images import Images
    from gymbox.providers.stock import Item

app = typer.Typer(
    cls=Commands,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List, build and remove the images that environments run from.",
)
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
Overrides = typer.Argument(None, metavar="[NAME=VALUE]...", help="Settings as for `gymbox run`: provider.host=…")


@app.command("ls")
def ls(overrides: list[str] = Overrides, folder: list[Path] = Folders, as_json: bool = AsJson) -> None:
    """List the images that were built here, and what each is kept for."""
    items = asyncio.run(_with_stock(overrides, folder, lambda stock, wanted: stock.items(wanted)))
    if as_json:
        print_json([asdict(item) for item in items])
    else:
        _print(items)


@app.command()
def build(
    names: list[str] = typer.Argument(None, metavar="[ENVIRONMENT]... [NAME=VALUE]...", help="Default: all of them."),
    folder: list[Path] = Folders,
    as_json: bool = AsJson,
) -> None:
    """Build the images of environments, where they are missing; what they are based on is pulled.

    Exit code 1: one could not be built; the others are.
    """
    overrides = [word for word in names or [] if "=" in word]
    catalog = Catalog(folder or environment_folders())
    chosen = [word for word in names or [] if "=" not in word] or catalog.names()
    environments = [catalog.find(name) for name in chosen]
    built = asyncio.run(_build(environments, overrides))
    if as_json:
        print_json(built)
    else:
        columns = ["environment", "image", "base"]
        print_table(columns, ([said(row[column] or "") for column in columns] for row in built if not row["error"]))
    for row in built:
        if row["error"]:
            say(f"gymbox: {row['environment']}: {row['error']}", err=True)
    raise typer.Exit(1 if any(row["error"] for row in built) else 0)


@app.command()
def prune(
    overrides: list[str] = Overrides,
    folder: list[Path] = Folders,
    older_than: str = typer.Option("1d", help="Keep what was made less long ago: 90s, 30m, 12h, 7d, 2w; 0 for none."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Only say what would go."),
    as_json: bool = AsJson,
) -> None:
    """Remove the images that no environment has now and nothing uses; only such as were built here."""
    seconds = duration(older_than)
    gone = asyncio.run(_with_stock(overrides, folder, lambda stock, wanted: stock.prune(wanted, seconds, dry=dry_run)))
    if as_json:
        print_json([asdict(item) for item in gone])
    else:
        _print(gone)
        say(f"{'would remove' if dry_run else 'removed'} {len(gone)} images")


def duration(text: str) -> float:
    """Seconds.

    Raises:
        ConfigError: it is none.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw]?)", text)
    if match is None or (match[2] == "" and float(match[1]) != 0):
        raise ConfigError(f"{text!r} is no time: write 90s, 30m, 12h, 7d or 2w")
    return float(match[1]) * UNITS.get(match[2], 1)


def _print(items: Sequence[Item]) -> None:
    now = time.time()
    print_table(
        ["image", "size", "age", "kept for"],
        (
            [item.image, f"{item.size / 1e6:.0f} MB", str(timedelta(seconds=int(now - item.created))), item.used_by]
            for item in items
        ),
    )


async def _build(environments: Sequence[Environment], overrides: Sequence[str]) -> list[dict[str, str | None]]:
    async with _opened(overrides) as (engine, images):

        async def one(environment: Environment) -> dict[str, str | None]:
            found: dict[str, str | None] = dict.fromkeys(("image", "base", "error"))
            try:
                found["image"] = await engine.call_aside("build an image", lambda: images.ensure(environment))
                found["base"] = images.base_of(environment)
            except Problem as problem:
                found["error"] = f"{problem.detail}\n{problem.extra.get('log', '')}".rstrip()
            return {"environment": environment.name, **found}

        return list(await asyncio.gather(*map(one, environments)))


async def _with_stock(
    overrides: Sequence[str] | None, folders: Sequence[Path], asked: Callable[..., list[Item]]
) -> list[Item]:
    from gymbox.providers.stock import Stock

    catalog = Catalog(folders or environment_folders())
    environments = [catalog[name] for name in catalog.names()]
    async with _opened(overrides) as (engine, images):

        def ask() -> list[Item]:
            wanted = {environment.name: images.tags(environment) for environment in environments}
            return asked(Stock(engine.api), wanted)

        return await engine.call("look at images", ask)


@asynccontextmanager
async def _opened(overrides: Sequence[str] | None) -> AsyncIterator[tuple[Engine, Images]]:
    """The engine that the settings name, and its images.

    Raises:
        ConfigError: an override is wrong, or these settings have no engine.
        Unavailable: it does not answer.
    """
    from gymbox.providers.engine import Engine

    provider = _provider(overrides or ())
    engine = Engine(provider.host, provider.threads)
    try:
        await engine.connect()
        yield engine, provider.images(engine.api)
    finally:
        engine.close()


def _provider(overrides: Sequence[str]) -> DockerProvider:
    from gymbox.config import compose
    from gymbox.providers.auto import AutoProvider
    from gymbox.providers.docker import DockerProvider

    provider = compose(["environment=any", "model=scripted", *overrides]).provider
    if isinstance(provider, AutoProvider):
        return provider.docker
    if isinstance(provider, DockerProvider):
        return provider
    raise ConfigError(f"provider={provider.name} has no images; leave it out, or write provider=docker")
