"""Jobs: the commands of `gymbox sandbox` for what runs in the background, and for watching folders."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING

import typer
from gymbox_sandbox.background import JobView
from gymbox_sandbox.wire import ExecResult

from gymbox.cli.controllers import Controller, Id, ask
from gymbox.cli.env import print_json, print_table
from gymbox.cli.options import AsJson
from gymbox.cli.output import say
from gymbox.cli.terminals import (
    Detached,
    exit_code,
    follow,
    input_descriptor,
    is_terminal,
    raw_terminal,
    terminal_size,
)

if TYPE_CHECKING:  # imported where they are used, so that --help is quick
    from gymbox.client import ControllerClient
    from gymbox.sandbox_client import SandboxClient

Name = typer.Argument(metavar="JOB", help="Name of the job.")


def jobs(id: str = Id, controller: str = Controller, as_json: bool = AsJson) -> None:
    """List the jobs of a sandbox: commands in the background, started by exec -d or shell --name."""

    async def find(client: ControllerClient) -> list[JobView]:
        return await (await client.attach(id)).jobs.list()

    found = ask(controller, find)
    if as_json:
        print_json([view.model_dump(mode="json") for view in found])
    else:
        print_table(["job", "status", "age", "output", "command"], map(_row, found))


def attach(
    id: str = Id,
    job: str = Name,
    interactive: bool = typer.Option(False, "--interactive", "-i", help="Pass this input on to the job."),
    controller: str = Controller,
) -> None:
    """Follow a job: what it printed, as far as it is kept, and what it prints; exits with its exit code.

    A job on a terminal gets this one, and Ctrl-] leaves it. Ending this command leaves the job alone.
    """

    async def run(client: ControllerClient) -> ExecResult:
        sandbox = await client.attach(id)
        if (await sandbox.jobs.get(job)).terminal and is_terminal(sys.stdin):
            return await on_terminal(sandbox, job)
        async with sandbox.jobs.follow(job) as execution:
            return await follow(execution, input_descriptor() if interactive else None)

    raise typer.Exit(code_or_left(lambda: ask(controller, run)))


def kill(
    id: str = Id,
    job: str = Name,
    forget: bool = typer.Option(False, "--forget", help="Forget it, too: neither output nor exit code are kept."),
    controller: str = Controller,
) -> None:
    """Kill a job with its whole tree."""

    async def run(client: ControllerClient) -> None:
        sandbox = await client.attach(id)
        await (sandbox.jobs.forget(job) if forget else sandbox.jobs.kill(job))

    ask(controller, run)


def watch(
    id: str = Id,
    path: str = typer.Argument(".", metavar="[PATH]", help="A folder; default: the workspace."),
    recursive: bool = typer.Option(True, help="Watch the folders below it, too."),
    as_json: bool = AsJson,
    controller: str = Controller,
) -> None:
    """Print what changes in a folder of a sandbox as it happens, until Ctrl-C."""

    async def run(client: ControllerClient) -> None:
        sandbox = await client.attach(id)
        async with sandbox.watch(path, recursive=recursive) as changes:
            async for change in changes:
                if as_json:
                    fields = {"kind": change.kind, "path": change.path, "folder": change.folder, "to": change.to}
                    print_json(fields)
                else:
                    moved = f" -> {change.to}" if change.to is not None else ""
                    say(f"{change.kind:10} {change.path}{'/' if change.folder else ''}{moved}".rstrip())
                sys.stdout.flush()

    ask(controller, run)


async def on_terminal(sandbox: SandboxClient, job: str) -> ExecResult:
    """Follow a job that runs on a terminal, on this one.

    Raises:
        Detached: the user left it.
    """
    size = terminal_size()
    async with sandbox.jobs.follow(job) as execution:
        execution.id = job
        if (await sandbox.jobs.get(job)).status == "running":
            await execution.resize(size.rows, size.columns)
        with raw_terminal() if is_terminal(sys.stdin) else nullcontext():
            return await follow(execution, input_descriptor(), resizes=True, leaves=True)


def code_or_left(run: Callable[[], ExecResult]) -> int:
    """The exit code of what was run; 0 if the user left it running."""
    try:
        return exit_code(run())
    except Detached:
        say("left running; come back with: gymbox sandbox attach", err=True)
        return 0


def _row(view: JobView) -> list[str]:
    status = "running"
    if view.result is not None:
        status = f"exited {exit_code(view.result)}"
    elif view.status == "ended":
        status = "lost"
    age = str(timedelta(seconds=max(0, round(time.time() - view.started_at))))
    command = view.command if isinstance(view.command, str) else " ".join(view.command)
    return [view.id, status, age, str(view.output_bytes), command.splitlines()[0][:60] if command else ""]
