"""Serve: one sandbox's server on its unix socket, from loading the author's file to SIGTERM."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gymbox_sandbox import files
from gymbox_sandbox.app import build
from gymbox_sandbox.joined import JoinedHttp
from gymbox_sandbox.options import Options
from gymbox_sandbox.problems import Invalid, Problem
from gymbox_sandbox.resources import ResourcesServer, tools_of
from gymbox_sandbox.uvicorn_parts import Config, Server
from gymbox_sandbox.wire import READY_SOCKET, SERVER_SOCKET

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.routing import BaseRoute

    from gymbox_sandbox.commands import Commands

MODULE = "gymbox_environment"
"""Name under which the author's file is imported."""
DRAIN = 1.0
"""Seconds that requests in flight get after SIGTERM."""
KEEP_ALIVE = 120
"""Seconds an idle connection is kept: longer than a client keeps it, so a client never writes to a closing one."""


def serve(options: Options, commands: Commands, server: type[ResourcesServer] | None = None) -> int:
    """Serve until SIGTERM and return the exit code; `server` is given where it has been loaded already.

    The starter learns by READY_SOCKET that it answers, or why it never will.
    """
    try:
        server = server or load(options.server)
        app = build(server, options, commands, [*commands.routes(), *files.routes(commands, options.workspace)])
        listener = listen(Path(options.directory))
    except Problem as problem:
        print(problem.extra.get("log") or problem.detail, file=sys.stderr, flush=True)
        tell(Path(options.directory), f"failed {json.dumps(problem.to_wire())}\n")
        return 1
    asyncio.run(_serve(app, listener, Path(options.directory)))
    return 0


async def _serve(app: Starlette, listener: socket.socket, directory: Path) -> None:
    stop = asyncio.Event()
    with _told_to_end(stop):
        await _Server(app, stop, lambda: tell(directory, "ready\n")).serve(sockets=[listener])


@contextmanager
def _told_to_end(stop: asyncio.Event) -> Iterator[None]:
    """Set `stop` on SIGTERM or SIGINT. What the loop offers for it costs a tenth of the start of a forked server."""
    loop = asyncio.get_running_loop()
    bell, rope = socket.socketpair()  # by which a signal wakes the loop, so that its handler runs
    with bell, rope:
        bell.setblocking(False)
        rope.setblocking(False)
        signal.set_wakeup_fd(rope.fileno(), warn_on_full_buffer=False)
        before = {
            number: signal.signal(number, lambda number, frame: loop.call_soon_threadsafe(stop.set))
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        loop.add_reader(bell, bell.recv, 512)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            loop.remove_reader(bell)
            signal.set_wakeup_fd(-1)


def config(app: Starlette) -> Config:
    """How uvicorn serves a sandbox's app."""
    return Config(
        app,
        http=JoinedHttp,
        ws="auto" if _has_websockets(app.routes) else "none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE,
    )


class _Server(Server):
    """Uvicorn without its ten wake-ups a second, which a thousand idle sandboxes would pay for."""

    def __init__(self, app: Starlette, stop: asyncio.Event, ready: Callable[[], socket.socket | None]) -> None:
        super().__init__(config(app))
        self._stop = stop
        self._ready = ready

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # they are taken where `stop` is

    async def main_loop(self) -> None:
        lifeline = self._ready()
        try:
            await self._stop.wait()
        finally:
            if lifeline is not None:
                lifeline.close()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=DRAIN)


def load(target: str) -> type[ResourcesServer]:
    """The ResourcesServer in `file.py` or `file.py:Class`; modules beside the file can be imported by it.

    Raises:
        Invalid: no file, it fails to import, it has no such class or several; `log` has the traceback.
    """
    file, _, name = target.partition(":")
    path = Path(file).absolute()
    spec = importlib.util.spec_from_file_location(MODULE, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise Invalid(f"there is no server file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    sys.path.append(str(path.parent))  # last: what lies beside the server cannot replace what the server runs on
    try:
        spec.loader.exec_module(module)
        found = {
            name: value
            for name, value in vars(module).items()
            if isinstance(value, type) and issubclass(value, ResourcesServer) and value.__module__ == MODULE
        }
        wanted = [found[name]] if name in found else list(found.values()) if not name else []
        if len(wanted) != 1:
            asked = f"no ResourcesServer {name!r}" if name else f"{len(found)} ResourcesServers (say file.py:Class)"
            raise Invalid(f"{path.name} has {asked}; it has: {', '.join(sorted(found)) or 'none'}")
        tools_of(wanted[0])
    except Problem:
        raise
    except BaseException as error:  # also SystemExit: whatever importing it does, the starter hears why
        log = "".join(traceback.format_exception(error))
        raise Invalid(f"{path.name} cannot be loaded: {type(error).__name__}: {error}", log=log) from error
    return wanted[0]


def listen(directory: Path) -> socket.socket:
    """A listening socket SERVER_SOCKET in `directory`, open to its owner and group.

    Raises:
        Invalid: the directory does not allow it.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o117)
    try:
        with _short(directory, SERVER_SOCKET) as path:
            listener.bind(path)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise Invalid(f"cannot listen on {directory / SERVER_SOCKET}: {error.strerror}") from error
    finally:
        os.umask(before)
    return listener


def tell(directory: Path, line: str) -> socket.socket | None:
    """Write `line` to READY_SOCKET and return the connection, whose end tells the starter that this process ended.

    None: nobody waits there, which is how it is when a person starts the server by hand.
    """
    lifeline = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short(directory, READY_SOCKET) as path:
            lifeline.connect(path)
        lifeline.sendall(line.encode())
    except OSError as error:
        lifeline.close()
        print(f"nobody waits on {directory / READY_SOCKET} ({error.strerror})", file=sys.stderr, flush=True)
        return None
    return lifeline


@contextmanager
def _short(directory: Path, name: str) -> Iterator[str]:
    """A path to `name` in `directory` that fits into the 107 bytes of a socket's address, however deep it lies."""
    if not hasattr(os, "O_PATH"):
        yield str(directory / name)
        return
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


def _has_websockets(routes: Iterable[BaseRoute]) -> bool:
    from starlette.routing import WebSocketRoute

    return any(isinstance(route, WebSocketRoute) or _has_websockets(getattr(route, "routes", ())) for route in routes)
