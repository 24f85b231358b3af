"""`gymbox env`: list, show, make, test and start environments."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
import yaml
from gymbox_sandbox.lifecycle import ID_PATTERN, SandboxView
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gymbox.cli import Commands
from gymbox.cli.controllers import ask
from gymbox.cli.options import AsJson, Folders
from gymbox.cli.output import say, say_json
from gymbox.cli.places import admin_token, environment_folders, program, state_folder
from gymbox.cli.terminals import is_terminal
from gymbox.environment import Catalog, Environment
from gymbox.errors import ConfigError, Problem
from gymbox.network import told
from gymbox.printable import printable_lines

if TYPE_CHECKING:  # imported where they are used: `env list` needs neither Hydra nor a server
    from gymbox.checks import Finding
    from gymbox.client import ControllerClient
    from gymbox.config import Settings
    from gymbox.embedded import EmbeddedController
    from gymbox.http import HttpClient

app = typer.Typer(
    cls=Commands,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List, show, make, test and start environments.",
)

TEMPLATE = Path(__file__).parent / "new_environment"
WIDEST, LEAST = 100_000, 50
"""Characters: a table where nothing need fit, and what its columns but the first get at least."""
ROWS = 5
"""Tasks that `test` uses where `runner.limit` does not say."""
Overrides = typer.Argument(None, metavar="[NAME=VALUE]...", help="Settings as for `gymbox run`: provider=process, …")


@app.command("list")
def list_(folder: list[Path] = Folders, as_json: bool = AsJson) -> None:
    """List the environments.

    Exit code 1: a manifest is wrong; the others are listed.
    """
    catalog = Catalog(folder or environment_folders())
    summaries, faults = [], []
    for name in catalog.names():
        try:
            summaries.append(summary(catalog[name]))
        except ConfigError as error:
            faults.append(error)
    if as_json:
        print_json(summaries)
    elif summaries:
        columns = ["name", "domain", "tasks", "verified", "description"]
        print_table(columns, ([said(row[column]) for column in columns] for row in summaries))
    elif not faults:
        say(f"there are no environments; make one with: {program()} env init NAME")
    for fault in faults:
        say(f"gymbox: {fault}", err=True)
    if faults:
        raise typer.Exit(1)


@app.command()
def show(name: str, folder: list[Path] = Folders, as_json: bool = AsJson) -> None:
    """Show one environment: what it is, where it is, what the first task asks."""
    environment = Catalog(folder or environment_folders()).find(name)
    about = {**summary(environment), "folder": str(environment.folder), "first_task": first_request(environment)}
    if as_json:
        print_json(about)
        return
    for key, value in about.items():
        say(f"{key.replace('_', ' ') + ':':<12} {said(value)}")


@app.command()
def resolve(name: str, folder: list[Path] = Folders, as_json: bool = AsJson) -> None:
    """Print the manifest as gymbox understands it, defaults filled in."""
    environment = Catalog(folder or environment_folders()).find(name)
    manifest = environment.manifest.model_dump(mode="json")
    resolved = {**manifest, "dataset": str(environment.dataset), "digest": environment.digest}
    if as_json:
        print_json(resolved)
    else:
        say(yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True), nl=False)


@app.command()
def init(name: str, folder: list[Path] = Folders) -> None:
    """Make a new environment that works: manifest, server, tasks with gold replies, README, tests."""
    if not re.fullmatch(ID_PATTERN, name):
        raise ConfigError(f"{name!r} is no name for an environment: use letters, digits, '.', '_' and '-'")
    target = (folder[0] if folder else Path("environments")) / name
    if target.exists():
        raise ConfigError(f"{target} exists already; choose another name, or another --folder")
    class_name = "".join(part[:1].upper() + part[1:] for part in re.split(r"[^A-Za-z0-9]+", name))
    if not class_name[0].isalpha():
        class_name = f"Environment{class_name}"
    shutil.copytree(TEMPLATE, target, ignore=shutil.ignore_patterns("__pycache__"))
    for path in [path for path in target.rglob("*") if path.is_file()]:
        path.write_text(path.read_text().replace("new_environment", name).replace("NewEnvironment", class_name))
        path.rename(path.with_name(path.name.replace("new_environment", re.sub(r"\W", "_", name))))
    say(f"made {target}: tasks in {target / 'data'}, tools and rewards in {target / 'server.py'}")
    say(f"next: {program()} env test {name if not folder else shlex.quote(str(target))}")


@app.command()
def test(name: str, overrides: list[str] = Overrides, folder: list[Path] = Folders, as_json: bool = AsJson) -> None:
    """Check an environment in real sandboxes: gold replies score 1.0, doing nothing does not, and more.

    \b
    gymbox env test counter
    gymbox env test ./mine provider=process runner.limit=100

    Exit code 0: every check passed. 1: one did not. 2: its manifest or a row is wrong, nothing was started.
    """
    environment = Catalog(folder or environment_folders()).find(name)
    findings = asyncio.run(_test(environment, _settings(environment, overrides)))
    if as_json:
        keys = ("check", "tried", "passed", "faults")
        print_json([{key: getattr(finding, key) for key in keys} for finding in findings])
    else:
        columns = ["check", "tried", "result", ""]
        print_table(
            columns,
            ([one.check, str(one.tried), "passed" if one.passed else "FAILED", one.detail] for one in findings),
        )
    raise typer.Exit(0 if all(finding.passed for finding in findings) else 1)


async def _test(environment: Environment, settings: Settings) -> list[Finding]:
    from gymbox.checks import Checks, Finding
    from gymbox.dataset import open_datasets
    from gymbox.http import HttpClient

    [dataset] = open_datasets([environment])
    try:
        rows = [
            dataset[index] for index in range(min(len(dataset), settings.runner.limit_of(environment.name) or ROWS))
        ]
        findings = [Finding("manifest and rows are valid", len(dataset))]
        async with HttpClient() as http, _controller(environment, settings, http) as controller:
            checks = Checks(environment, rows, controller, http, concurrency=settings.runner.concurrency)
            async for finding in checks.run():
                findings.append(finding)
                if is_terminal(sys.stderr):  # in containers it takes a while
                    mark = "ok" if finding.passed else "FAILED"
                    say(f"{mark:<6} {finding.check} ({finding.tried})", err=True)
    finally:
        dataset.close()
    return findings


@app.command()
def start(name: str, overrides: list[str] = Overrides, folder: list[Path] = Folders) -> None:
    """Start a sandbox of an environment, ready for its first task; print how to call it; remove it on Ctrl-C."""
    environment = Catalog(folder or environment_folders()).find(name)
    asyncio.run(_start(environment, _settings(environment, overrides)))


async def _start(environment: Environment, settings: Settings) -> None:
    from gymbox.client import ControllerClient
    from gymbox.http import HttpClient

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    first = next(rows(environment), None)
    row = json.loads(first) if first else {"responses_create_params": {"input": "hello"}}
    async with HttpClient() as http, _controller(environment, settings, http) as controller:
        url = settings.controller or controller.url
        client = ControllerClient(url, admin_token(), http)
        async with client.sandbox(environment) as sandbox:
            await sandbox.reset(environment.public(row))
            view = await client.get(sandbox.id)
            say(how_to_call(view, sandbox.tools.definitions, environment.for_verify(row)))
            await stop.wait()
            say(f"removing {sandbox.id}")


def how_to_call(view: SandboxView, tools: Sequence[dict[str, Any]], task: dict[str, Any]) -> str:
    """What to type to play with a sandbox."""
    assert view.tokens is not None and view.url is not None

    def curl(path: str, body: Any = None) -> str:
        data = "" if body is None else f" -d {shlex.quote(json.dumps(body, ensure_ascii=False))}"
        token = "$CONTROL" if path == "/verify" else "$TOOLS"
        return f'curl -s -H "Authorization: Bearer {token}"{data} {view.url}{path}'

    calls = [curl(f"/tools/{tool['name']}", example(tool.get("parameters", {}))) for tool in tools]
    return "\n".join(
        [
            f"{view.id} is ready for the first task: {view.url}",
            "",
            f"export TOOLS={view.tokens.tools} CONTROL={view.tokens.control}",
            curl("/tools"),
            *calls,
            curl("/verify", {"task": task, "response": {"output": []}}),
            "",
            "Ctrl-C removes it.",
        ]
    )


def example(schema: dict[str, Any]) -> dict[str, Any]:
    """Arguments of the right types for a tool's parameters."""
    values: dict[str, Any] = {"integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}}
    return {name: values.get(part.get("type"), "text") for name, part in schema.get("properties", {}).items()}


@app.command()
def status(
    controller: str = typer.Option("", help="Address of the controller; default: the one that runs here."),
    as_json: bool = AsJson,
) -> None:
    """Count the sandboxes of each environment on a running controller."""
    counted = ask(controller, _status)
    if as_json:
        print_json(counted)
    else:
        columns = ["environment", "queued", "starting", "ready", "ended"]
        print_table(columns, ([said(row[column]) for column in columns] for row in counted))


async def _status(client: ControllerClient) -> list[dict[str, Any]]:
    names = [manifest.name for manifest in await client.environments()]
    counts: Counter[tuple[str, str]] = Counter((view.environment, view.status) for view in await client.sandboxes())
    stages = ("queued", "starting", "ready", "ended")
    return [{"environment": name, **{stage: counts[name, stage] for stage in stages}} for name in names]


def _settings(environment: Environment, overrides: Sequence[str] | None) -> Settings:
    """Those of a run of this environment with its gold replies.

    Raises:
        ConfigError: an override is wrong.
    """
    from gymbox import logs
    from gymbox.config import compose

    sys.path.append("")  # so that _target_ finds a class in the working directory
    logs.setup(level="WARNING")
    # where a controller is named, its proxy's judge is as good as none: gold judgements are what is to be checked
    judge = ["judge=scripted"] if environment.manifest.judge is not None else []
    return compose([f"environment={environment.folder}", "model=scripted", *judge, *(overrides or [])])


@asynccontextmanager
async def _controller(
    environment: Environment, settings: Settings, http: HttpClient
) -> AsyncIterator[ControllerClient | EmbeddedController]:
    """The running controller that the settings name, or one in this process.

    Raises:
        ConfigError: it cannot be used or started.
    """
    from gymbox.client import ControllerClient
    from gymbox.embedded import EmbeddedController
    from gymbox.judge import Judge
    from gymbox.runs.reach import check_controller

    judge = Judge(settings.judge, http) if settings.judge is not None else None
    if settings.controller:
        client = ControllerClient(settings.controller, admin_token(), http, judge=judge)
        await check_controller(client, [environment])
        yield client
        return
    catalog = Catalog([environment.folder.parent])
    try:
        embedded = EmbeddedController(settings.provider, catalog, state_folder(), admin_token(), http, judge=judge)
        await embedded.__aenter__()
    except Problem as error:
        raise ConfigError(error.detail) from error
    try:
        yield embedded
    finally:
        await embedded.__aexit__(None, None, None)


def summary(environment: Environment) -> dict[str, Any]:
    """What a list shows of it."""
    manifest = environment.manifest
    return {
        "name": environment.name,
        "domain": manifest.domain,
        "description": manifest.description,
        "tasks": sum(1 for _ in rows(environment)),
        "verified": manifest.verified,
        "license": manifest.license,
        "sessions": manifest.sessions,
        "network": told(manifest.network),
    }


def rows(environment: Environment) -> Iterator[bytes]:
    """The rows of its dataset as they stand in the file; none where there is no file."""
    from gymbox.dataset import lines_of

    if environment.dataset.is_file():
        yield from (line for _, line in lines_of(environment.dataset))


def first_request(environment: Environment) -> str:
    """What the first row's last message says; `""` where that cannot be told."""
    from gymbox_sandbox.responses import ResponsesParams
    from pydantic import ValidationError

    try:
        params = json.loads(next(rows(environment)))["responses_create_params"]
        return str(getattr(ResponsesParams.model_validate(params).items[-1], "text", ""))
    except (StopIteration, KeyError, TypeError, ValueError, ValidationError):
        return ""


def said(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def print_json(value: Any) -> None:
    say_json(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(columns: list[str], rows: Iterable[list[str]]) -> None:
    """Print a table. Its first column is never broken, for it is what other commands take; the others are folded to
    fit a terminal, and stay whole where the output is none."""
    console, found = Console(), list(rows)
    first = max((len(row[0]) for row in found), default=0)
    if not console.is_terminal:
        console.width = WIDEST
    elif first + LEAST > console.width:
        console.width = first + LEAST  # the terminal breaks the lines, and a copy of them is whole
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(Text(column), overflow="fold", no_wrap=number == 0, min_width=0 if number else first)
    for row in found:
        table.add_row(*(Text(printable_lines(cell)) for cell in row))
    console.print(table)
