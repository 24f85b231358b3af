"""`gymbox sandbox`: list, show, remove, enter and read the sandboxes of a running controller."""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import sys
import time
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, Literal

import typer
from gymbox_sandbox.lifecycle import SandboxView
from gymbox_sandbox.wire import ExecRequest, ExecResult, Pty

from gymbox.cli import Commands, jobs
from gymbox.cli.controllers import Controller, Id, ask
from gymbox.cli.env import print_json, print_table
from gymbox.cli.options import AsJson
from gymbox.cli.output import say
from gymbox.cli.terminals import LONGEST, exit_code, follow, input_descriptor, is_terminal, raw_terminal, terminal_size
from gymbox.errors import ConfigError, NotFound
from gymbox.requests import in_path, request_of
from gymbox.sdk.trees import pack, unpack

if TYPE_CHECKING:  # imported where they are used, so that --help is quick
    from gymbox.client import ControllerClient
    from gymbox.sandbox_client import SandboxClient

app = typer.Typer(
    cls=Commands,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Work with the sandboxes of a running controller.",
)

for _command in (jobs.jobs, jobs.attach, jobs.kill, jobs.watch):
    app.command()(_command)
FilesOnly = typer.Option(False, "--files-only", help="Leave out what the environment knows of the task.")


@app.command()
def ls(
    environment: str = typer.Option("", "--environment", "-e", help="Only those of this environment."),
    all_: bool = typer.Option(False, "--all", "-a", help="Also those that have ended."),
    controller: str = Controller,
    as_json: bool = AsJson,
) -> None:
    """List sandboxes."""
    found = ask(controller, lambda client: client.sandboxes(environment=environment or None))
    views = [view for view in found if all_ or view.status != "ended"]
    if as_json:
        print_json([view.model_dump(mode="json") for view in views])
        return
    columns = ["id", "environment", "status", "network", "age", "expires in", "container"]
    print_table(columns, (_row(view) for view in views))


@app.command()
def show(id: str = Id, controller: str = Controller) -> None:
    """Show all that is known about a sandbox, its tokens included, as JSON."""
    print_json(ask(controller, lambda client: client.get(id)).model_dump(mode="json"))


@app.command()
def rm(
    ids: list[str] = typer.Argument(None, metavar="ID...", help="Ids of sandboxes."),
    all_: bool = typer.Option(False, "--all", help="All of them."),
    controller: str = Controller,
) -> None:
    """Remove sandboxes."""
    if bool(ids) == all_:
        raise ConfigError("say which sandboxes to remove: their ids, or --all")
    for id in ids or ():
        in_path(id, "sandbox")  # of several, none is removed where one is no id

    async def remove(client: ControllerClient) -> list[str]:
        chosen = ids or [view.id for view in await client.sandboxes() if view.status != "ended"]
        outcomes = await asyncio.gather(*(client.delete(id) for id in chosen), return_exceptions=True)
        for id, outcome in zip(chosen, outcomes, strict=True):
            if outcome is None:
                say(id)
            elif not isinstance(outcome, NotFound):
                raise outcome
        return [id for id, outcome in zip(chosen, outcomes, strict=True) if outcome is not None]

    missing = ask(controller, remove)
    if missing:
        raise NotFound(f"there is no sandbox {', '.join(missing)}")


@app.command()
def snapshot(
    id: str = Id,
    name: str = typer.Option("", "--name", "-n", help="Id of the snapshot (default: one is made up)."),
    files_only: bool = FilesOnly,
    controller: str = Controller,
) -> None:
    """Save a sandbox's files and what its environment knows of the task; prints the snapshot's id."""
    view = ask(controller, lambda client: client.snapshot(id, name=name or None, files_only=files_only))
    say(view.id)


@app.command()
def fork(
    id: str = Id,
    n: int = typer.Option(1, "-n", min=1, max=64, help="How many."),
    name: str = typer.Option("", "--name", help="They are NAME.0, NAME.1, … (default: one is made up)."),
    files_only: bool = FilesOnly,
    controller: str = Controller,
) -> None:
    """Make sandboxes that begin where this one is, all or none; prints their ids."""
    for view in ask(controller, lambda client: client.fork(id, n, name=name or None, files_only=files_only)):
        say(view.id)


@app.command()
def pause(id: str = Id, controller: str = Controller) -> None:
    """Hold all processes of a sandbox; calls of it are refused until it is unpaused. Its lease goes on."""
    say(ask(controller, lambda client: client.pause(id)).id)


@app.command()
def unpause(id: str = Id, controller: str = Controller) -> None:
    """Let a paused sandbox go on."""
    say(ask(controller, lambda client: client.unpause(id)).id)


@app.command()
def logs(
    id: str = Id,
    tail: int = typer.Option(100, "--tail", "-n", min=1, help="Lines."),
    controller: str = Controller,
) -> None:
    """Print the last lines that a sandbox's server printed."""
    typer.echo(ask(controller, lambda client: client.logs(id, tail)), nl=False)


@app.command()
def network(id: str = Id, controller: str = Controller) -> None:
    """Show, as JSON, what a sandbox's network policy let through and refused so far."""
    print_json(ask(controller, lambda client: client.traffic(id)).model_dump(mode="json"))


@app.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def exec_(
    id: str = Id,
    command: list[str] = typer.Argument(metavar="COMMAND...", help="Program and arguments."),
    interactive: bool = typer.Option(False, "--interactive", "-i", help="Pass this input on to the command."),
    tty: bool = typer.Option(False, "--tty", "-t", help="Run it on a terminal."),
    detach: bool = typer.Option(False, "--detach", "-d", help="Leave it in the background, and print its job's name."),
    name: str = typer.Option("", "--name", "-n", help="Name of the job (with --detach); default: a random one."),
    in_shell: str = typer.Option("", "--shell", "-s", help="Run it in the shell of this name, which is kept."),
    workdir: str = typer.Option("", "--workdir", "-w", help="Where it runs (default: the workspace)."),
    env: list[str] = typer.Option([], "--env", "-e", help="NAME=VALUE; may be repeated."),
    timeout: float = typer.Option(LONGEST, help="Seconds, then it is killed (exit code 124)."),
    controller: str = Controller,
) -> None:
    """Run a command in a sandbox, with its output as it comes; exits with the command's exit code.

    \b
    gymbox sandbox exec ID -- ls -la
    tar c . | gymbox sandbox exec -i ID -- tar x
    gymbox sandbox exec -it ID -- python3
    gymbox sandbox exec -d --name train ID -- python3 train.py
    gymbox sandbox exec --shell s1 ID -- 'cd /tmp; export A=1'
    """
    words = command[1:] if command[0] == "--" else command
    settings: dict[str, Any] = {"cwd": workdir or None, "env": dict(pair.partition("=")[::2] for pair in env)}
    if in_shell and (interactive or tty or detach):
        raise ConfigError("a command in a shell has no input and no terminal of its own: leave out -i, -t and -d")
    if name and not detach:
        raise ConfigError("--name is for --detach")
    if in_shell:

        async def run_in_shell(client: ControllerClient) -> ExecResult:
            return await _run_in_shell(await client.attach(id), in_shell, words, settings, timeout)

        raise typer.Exit(exit_code(ask(controller, run_in_shell)))
    here = interactive and tty and is_terminal(sys.stdin, sys.stdout)
    fields: dict[str, Any] = {**settings, "command": words, "timeout": timeout, "stdin_open": interactive}
    if tty:
        fields["pty"] = terminal_size() if is_terminal(sys.stdout) else Pty(rows=24, columns=80)

    given = input_descriptor() if interactive else None

    async def run(client: ControllerClient) -> ExecResult | str:
        sandbox = await client.attach(id)
        if detach:
            return (await sandbox.jobs.start(name or f"job-{secrets.token_hex(4)}", **fields)).id
        async with sandbox.exec_stream(request_of(ExecRequest, **fields, stream=True)) as execution:
            with raw_terminal() if here else nullcontext():
                return await follow(execution, given, resizes=here)

    found = ask(controller, run)
    if isinstance(found, str):
        say(found)
    else:
        raise typer.Exit(exit_code(found))


async def _run_in_shell(
    sandbox: SandboxClient, name: str, words: list[str], settings: dict[str, Any], timeout: float
) -> ExecResult:
    """Run a command in a shell that is kept, opened if it is new."""
    shell = await sandbox.shells.open(name, **settings)
    result = await shell.run(words[0] if len(words) == 1 else shlex.join(words), timeout=timeout)
    typer.echo(result.stdout, nl=False)
    typer.echo(result.stderr, nl=False, err=True)
    if result.state_lost:
        say(f"the shell {name} has ended, and its state is lost", err=True)
    return result


@app.command()
def shell(
    id: str = Id,
    name: str = typer.Option(
        "", "--name", "-n", help="Come back to the shell of this name, or open it; Ctrl-] leaves it running."
    ),
    controller: str = Controller,
) -> None:
    """Open a shell in a sandbox, on this terminal."""
    if not is_terminal(sys.stdin, sys.stdout):
        raise ConfigError("a shell needs a terminal; to run one command: gymbox sandbox exec ID -- COMMAND")
    fields: dict[str, Any] = {
        "command": "if command -v bash >/dev/null; then exec bash; else exec sh; fi",
        "env": {"TERM": os.environ.get("TERM", "xterm")},
        "stdin_open": True,
        "timeout": LONGEST,
        "pty": terminal_size(),
    }

    async def run(client: ControllerClient) -> ExecResult:
        sandbox = await client.attach(id)
        if name:
            if all(job.id != name for job in await sandbox.jobs.list()):
                await sandbox.jobs.start(name, **fields)
            return await jobs.on_terminal(sandbox, name)
        async with sandbox.exec_stream(request_of(ExecRequest, **fields, stream=True)) as execution:
            with raw_terminal():
                return await follow(execution, input_descriptor(), resizes=True)

    raise typer.Exit(jobs.code_or_left(lambda: ask(controller, run)))


@app.command()
def cp(
    source: str = typer.Argument(metavar="SOURCE", help="A path here, or ID:PATH."),
    target: str = typer.Argument(metavar="TARGET", help="A path here, or ID:PATH."),
    controller: str = Controller,
) -> None:
    """Copy a file or a folder into a sandbox, or out of one. A target that ends with / is a folder to put it into."""
    from_id, from_path = _place(source)
    to_id, to_path = _place(target)
    if (from_id is None) == (to_id is None):
        raise ConfigError("one of SOURCE and TARGET is in a sandbox: ID:PATH")
    with TemporaryFile() as file:
        if to_id is not None:
            mode = pack(Path(from_path), file)
            path = to_path + Path(from_path).resolve().name if to_path.endswith("/") or not to_path else to_path

            async def put(client: ControllerClient) -> None:
                sandbox = await client.attach(to_id)
                await sandbox.put(path, file, tree=mode is None, mode=mode or 0)

            ask(controller, put)
        elif from_id is not None:

            async def save(client: ControllerClient) -> Literal["tree", "file"]:
                return await (await client.attach(from_id)).save(from_path, file)

            here = Path(to_path)
            into = to_path.endswith("/") or here.is_dir()
            unpack(ask(controller, save), file, here / Path(from_path).name if into else here)


def _row(view: SandboxView) -> list[str]:
    now = time.time()
    left = view.ended.cause if view.ended else said(view.expires_at - now)
    age = said(now - view.created_at)
    return [view.id, view.environment, view.status, view.network, age, left, view.container or ""]


def said(seconds: float) -> str:
    """A time as people read it."""
    return str(timedelta(seconds=max(0, round(seconds))))


def _place(text: str) -> tuple[str | None, str]:
    """The sandbox and the path in `ID:PATH`; a path here has a / before its first colon, or no colon."""
    id, colon, path = text.partition(":")
    return (id, path) if colon and id and "/" not in id else (None, text)
