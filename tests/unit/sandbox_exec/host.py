"""A supervised server with the exec and file routes and a few for the tests, on a unix socket.

Usage: host.py SOCKET WORKSPACE [SERVER_UID AGENT_UID]. Writes `ready` when it answers.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

# loaded before the user changes, since that one may have no access to where this Python is installed
import tarfile  # noqa: F401
from concurrent.futures import ThreadPoolExecutor  # noqa: F401
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import uvicorn
from gymbox_sandbox import exec_routes, files, supervisor  # noqa: F401
from gymbox_sandbox.commands import Commands
from gymbox_sandbox.options import Options, User
from gymbox_sandbox.problems import Problem
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from uvicorn.lifespan.off import LifespanOff  # noqa: F401
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


def serve(options: Options, commands: Commands) -> int:
    async def facts(_: Request) -> Response:
        return JSONResponse(
            {
                "pid": os.getpid(),
                "supervisor": os.getppid(),
                "uid": os.getuid(),
                "groups": os.getgroups(),
                "fds": sum(_is_open(fd) for fd in range(1024)),
                "rss": _memory(),
            }
        )

    async def kill_all(_: Request) -> Response:
        await commands.kill_all()
        return Response(status_code=204)

    async def end(request: Request) -> Response:
        os._exit(int(request.query_params["code"]))

    async def problem(_: Request, error: Exception) -> Response:
        assert isinstance(error, Problem)
        return JSONResponse(error.to_wire(), error.status)

    app = Starlette(
        routes=[
            Route("/facts", facts),
            Route("/kill_all", kill_all, methods=["POST"]),
            Route("/end", end, methods=["POST"]),
            *commands.routes(),
            *files.routes(commands, options.workspace, most_bytes=64 << 20, most_files=200),
        ],
        exception_handlers={Problem: problem},
    )

    class Server(uvicorn.Server):
        async def startup(self, sockets: object = None) -> None:
            await super().startup()
            print("ready", flush=True)

        def capture_signals(self) -> AbstractContextManager[None]:
            # uvicorn's own raises the signal anew once all is done
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.handle_exit, signal.SIGTERM, None)
            return nullcontext()

    config = uvicorn.Config(
        app, uds=options.directory, http=HttpToolsProtocol, ws="none", loop="asyncio", lifespan="off", log_config=None
    )
    asyncio.run(Server(config).serve())
    commands.close()
    return 7


def _memory() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    socket, workspace, *users = sys.argv[1:]
    server, agent = (User(int(uid), int(uid)) for uid in users) if users else (None, None)
    os.environ["SECRET"] = "canary"
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    options = Options(
        name="test", server="", directory=socket, workspace=workspace, server_user=server, agent_user=agent
    )
    sys.exit(supervisor.run(options, serve))
