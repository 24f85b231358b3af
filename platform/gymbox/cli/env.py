"""`gymbox env`: list, show, make, test and start environments."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer
import yaml
from gymbox_sandbox.wire import ID_PATTERN
from rich.console import Console
from rich.table import Table

from gymbox.environment import MANIFEST, Catalog, Environment
from gymbox.errors import ConfigError, nearest

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="List, show, make, test and start environments.")

TEMPLATE = Path(__file__).parent / "new_environment"
Folders = typer.Option(
    [Path("environments")], "--folder", "-f", help="Where environments are; may be given several times."
)
AsJson = typer.Option(False, "--json", help="Print JSON.")


@app.command("list")
def list_(folder: list[Path] = Folders, as_json: bool = AsJson) -> None:
    """List the environments."""
    catalog = Catalog(folder)
    summaries = [summary(catalog[name]) for name in catalog.names()]
    if as_json:
        print_json(summaries)
        return
    if not summaries:
        typer.echo(f"no environments in {', '.join(map(str, folder))}; make one with: gymbox env init NAME")
        return
    columns = ["name", "domain", "tasks", "verified", "description"]
    print_table(columns, ([said(row[column]) for column in columns] for row in summaries))


@app.command()
def show(name: str, folder: list[Path] = Folders, as_json: bool = AsJson) -> None:
    """Show one environment: what it is, where it is, what the first task asks."""
    environment = find(name, folder)
    about = {**summary(environment), "folder": str(environment.folder), "first_task": first_request(environment)}
    if as_json:
        print_json(about)
        return
    for key, value in about.items():
        typer.echo(f"{key.replace('_', ' ') + ':':<12} {said(value)}")


@app.command()
def resolve(name: str, folder: list[Path] = Folders, as_json: bool = AsJson) -> None:
    """Print the manifest as gymbox understands it, defaults filled in."""
    environment = find(name, folder)
    manifest = environment.manifest.model_dump(mode="json")
    resolved = {**manifest, "dataset": str(environment.dataset), "digest": environment.digest}
    if as_json:
        print_json(resolved)
    else:
        typer.echo(yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True), nl=False)


@app.command()
def init(name: str, folder: list[Path] = Folders) -> None:
    """Make a new environment that works: manifest, server, tasks with gold replies, README, tests."""
    if not re.match(ID_PATTERN, name):
        raise ConfigError(f"{name!r} is no name for an environment: use letters, digits, '.', '_' and '-'")
    target = folder[0] / name
    if target.exists():
        raise ConfigError(f"{target} exists already; choose another name, or another --folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    class_name = "".join(part[:1].upper() + part[1:] for part in re.split(r"[^A-Za-z0-9]+", name))
    if not class_name[0].isalpha():
        class_name = f"Environment{class_name}"
    shutil.copytree(TEMPLATE, target, ignore=shutil.ignore_patterns("__pycache__"))
    for path in [path for path in target.rglob("*") if path.is_file()]:
        text = path.read_text().replace("new_environment", name).replace("NewEnvironment", class_name)
        path.write_text(text)
        path.rename(path.with_name(path.name.replace("new_environment", re.sub(r"\W", "_", name))))
    typer.echo(f"made {target}: its tasks are in {target / 'data'}, its tools and rewards in {target / 'server.py'}")
    typer.echo(f"next: gymbox env test {name}{'' if folder == [Path('environments')] else f' --folder {folder[0]}'}")


def find(name: str, folders: list[Path]) -> Environment:
    """The environment called `name`, or the one in the folder `name`.

    Raises:
        ConfigError: there is none (the nearest is named), or its manifest is wrong.
    """
    if "/" in name or (Path(name) / MANIFEST).is_file():
        return Environment.load(Path(name).resolve())
    return Catalog(folders)[name]


def summary(environment: Environment) -> dict[str, Any]:
    """What a list shows of it."""
    manifest = environment.manifest
    return {
        "name": environment.name,
        "domain": manifest.domain,
        "description": manifest.description,
        "tasks": len(lines(environment)),
        "verified": manifest.verified,
        "license": manifest.license,
        "sessions": manifest.sessions,
        "network": manifest.network,
    }


def lines(environment: Environment) -> list[bytes]:
    """The rows of its dataset as they stand in the file; none where there is no file."""
    if not environment.dataset.is_file():
        return []
    return [line for line in environment.dataset.read_bytes().split(b"\n") if line.strip()]


def first_request(environment: Environment) -> str:
    """What the first row's last message says; `""` where that cannot be told."""
    from gymbox_sandbox.responses import ResponsesParams
    from pydantic import ValidationError

    try:
        params = json.loads(lines(environment)[0])["responses_create_params"]
        return str(getattr(ResponsesParams.model_validate(params).items[-1], "text", ""))
    except (IndexError, KeyError, TypeError, ValueError, ValidationError):
        return ""


def said(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(columns: list[str], rows: Iterable[list[str]]) -> None:
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*row)
    Console(soft_wrap=False).print(table)
