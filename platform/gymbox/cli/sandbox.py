"""`gymbox sandbox`: list, show, remove, enter and read the sandboxes of a running controller."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import stat
import sys
import tarfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any

import typer
from gymbox_sandbox.lifecycle import SandboxView
from gymbox_sandbox.wire import ExecRequest, ExecResult, Pty

from gymbox.cli import Commands
from gymbox.cli.controllers import ask
from gymbox.cli.env import print_json, print_table
from gymbox.errors import ConfigError, NotFound

if TYPE_CHECKING:  # imported where they are used, so that --help is quick
    from gymbox.client import ControllerClient
    from gymbox.execution import Execution

app = typer.Typer(
    cls=Commands,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Work with the sandboxes of a running controller.",
)

LONGEST = 86_400.0
TIMED_OUT = 124
"""Exit code of a command that was killed for taking too long, as of `timeout`."""
Controller = typer.Option("", "--controller", help="Address of the controller; default: the one that runs here.")
AsJson = typer.Option(False, "--json", help="Print JSON.")
Id = typer.Argument(help="Id of the sandbox.")
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

    async def remove(client: ControllerClient) -> list[str]:
        chosen = ids or [view.id for view in await client.sandboxes() if view.status != "ended"]
        outcomes = await asyncio.gather(*(client.delete(id) for id in chosen), return_exceptions=True)
        for id, outcome in zip(chosen, outcomes, strict=True):
            if outcome is None:
                typer.echo(id)
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
    typer.echo(view.id)


@app.command()
def fork(
    id: str = Id,
    n: int = typer.Option(1, "-n", min=1, max=64, help="How many."),
    name: str = typer.Option("", "--name", help="They are NAME-0, NAME-1, … (default: one is made up)."),
    files_only: bool = FilesOnly,
    controller: str = Controller,
) -> None:
    """Make sandboxes that begin where this one is, all or none; prints their ids."""
    for view in ask(controller, lambda client: client.fork(id, n, name=name or None, files_only=files_only)):
        typer.echo(view.id)


@app.command()
def pause(id: str = Id, controller: str = Controller) -> None:
    """Hold all processes of a sandbox; calls of it are refused until it is unpaused. Its lease goes on."""
    typer.echo(ask(controller, lambda client: client.pause(id)).id)


@app.command()
def unpause(id: str = Id, controller: str = Controller) -> None:
    """Let a paused sandbox go on."""
    typer.echo(ask(controller, lambda client: client.unpause(id)).id)


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
    workdir: str = typer.Option("", "--workdir", "-w", help="Where it runs (default: the workspace)."),
    env: list[str] = typer.Option([], "--env", "-e", help="NAME=VALUE; may be repeated."),
    timeout: float = typer.Option(LONGEST, help="Seconds, then it is killed (exit code 124)."),
    controller: str = Controller,
) -> None:
    """Run a command in a sandbox, with its output as it comes; exits with the command's exit code.

    \b
    gymbox sandbox exec ID -- ls -la
    tar c . | gymbox sandbox exec -i ID -- tar x
    """
    request = ExecRequest(
        command=command[1:] if command[0] == "--" else command,
        stdin_open=interactive,
        cwd=workdir or None,
        env=dict(pair.partition("=")[::2] for pair in env),
        timeout=timeout,
        stream=True,
    )

    async def run(client: ControllerClient) -> ExecResult:
        sandbox = await client.attach(id)
        async with sandbox.exec_stream(request) as execution:
            return await _follow(execution, sys.stdin.fileno() if interactive else None)

    raise typer.Exit(exit_code(ask(controller, run)))


@app.command()
def shell(id: str = Id, controller: str = Controller) -> None:
    """Open a shell in a sandbox, on this terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError("a shell needs a terminal; to run one command: gymbox sandbox exec ID -- COMMAND")

    async def run(client: ControllerClient) -> ExecResult:
        request = ExecRequest(
            command="if command -v bash >/dev/null; then exec bash; else exec sh; fi",
            env={"TERM": os.environ.get("TERM", "xterm")},
            stdin_open=True,
            timeout=LONGEST,
            stream=True,
            pty=_terminal_size(),
        )
        sandbox = await client.attach(id)
        async with sandbox.exec_stream(request) as execution:
            with _raw_terminal():
                return await _follow(execution, sys.stdin.fileno(), resizes=True)

    raise typer.Exit(exit_code(ask(controller, run)))


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
            mode = _pack(Path(from_path), file)
            path = to_path + Path(from_path).resolve().name if to_path.endswith("/") or not to_path else to_path

            async def put(client: ControllerClient) -> None:
                sandbox = await client.attach(to_id)
                await sandbox.put(path, file, tree=mode is None, mode=mode or 0)

            ask(controller, put)
        elif from_id is not None:

            async def save(client: ControllerClient) -> str:
                return await (await client.attach(from_id)).save(from_path, file)

            here = Path(to_path)
            into = to_path.endswith("/") or here.is_dir()
            _unpack(ask(controller, save), file, here / Path(from_path).name if into else here)


def _pack(source: Path, packed: IO[bytes]) -> int | None:
    """Write a file, or the tar of a tree, into `packed`; returns the mode of a file, None for a tree.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        mode = source.stat().st_mode
        if stat.S_ISDIR(mode):
            with tarfile.open(fileobj=packed, mode="w") as tar:
                tar.add(source, arcname=".")
        else:
            with source.open("rb") as file:
                shutil.copyfileobj(file, packed)
    except OSError as error:
        raise ConfigError(f"cannot read {source}: {error.strerror}") from error
    packed.seek(0)
    return None if stat.S_ISDIR(mode) else mode & 0o777


def _unpack(kind: str, packed: IO[bytes], target: Path) -> None:
    """Write what came from a sandbox to `target`; nothing in it can get outside of that.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        if kind == "tree":
            with tarfile.open(fileobj=packed) as tar:
                tar.extractall(target, filter="data")
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as file:
                shutil.copyfileobj(packed, file)
    except (OSError, tarfile.TarError) as error:
        raise ConfigError(f"cannot write {target}: {error}") from error


def exit_code(result: ExecResult) -> int:
    """What a shell would report for the command."""
    if result.timed_out:
        return TIMED_OUT
    return result.exit_code if result.exit_code is not None else 128 + (result.signal or 0)


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


# --- terminals


async def _follow(execution: Execution, stdin: int | None, *, resizes: bool = False) -> ExecResult:
    """Print a command's output as it comes and, from when it has started, give it what comes in on `stdin`."""
    loop = asyncio.get_running_loop()
    typing: asyncio.Task[None] | None = None
    try:
        async for event in execution.events():
            if event.name == "started" and stdin is not None:
                typing = asyncio.create_task(_type(execution, stdin))
                if resizes:
                    loop.add_signal_handler(signal.SIGWINCH, lambda: asyncio.ensure_future(_resize(execution)))
            elif event.name in ("stdout", "stderr"):
                _write(sys.stdout if event.name == "stdout" else sys.stderr, event.output)
    finally:
        if typing is not None:
            typing.cancel()
            await asyncio.wait({typing})
        if resizes:
            loop.remove_signal_handler(signal.SIGWINCH)
    assert execution.result is not None
    return execution.result


async def _type(execution: Execution, stdin: int) -> None:
    async for content in _chunks(stdin):
        await execution.write(content)
    await execution.close_stdin()


async def _chunks(descriptor: int) -> AsyncIterator[bytes]:
    """What can be read from a descriptor, until its end. Files are read at once: the loop cannot watch them."""
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    while True:
        readable.clear()
        try:
            loop.add_reader(descriptor, readable.set)
        except PermissionError:
            pass  # a file: always readable
        else:
            try:
                await readable.wait()
            finally:
                loop.remove_reader(descriptor)
        content = os.read(descriptor, 64 * 1024)
        if not content:
            return
        yield content


async def _resize(execution: Execution) -> None:
    size = _terminal_size()
    await execution.resize(size.rows, size.columns)


def _terminal_size() -> Pty:
    columns, rows = os.get_terminal_size(sys.stdout.fileno())
    return Pty(rows=max(1, rows), columns=max(1, columns))


@contextmanager
def _raw_terminal() -> Iterator[None]:
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor, termios.TCSADRAIN)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _write(stream: Any, content: bytes) -> None:
    stream.buffer.write(content)
    stream.buffer.flush()
