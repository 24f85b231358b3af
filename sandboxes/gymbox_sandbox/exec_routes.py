"""Exec routes: `POST /exec` and what can be done to a streamed command, each a translation and nothing more."""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable

from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gymbox_sandbox.bodies import read_as
from gymbox_sandbox.command import Dropped, Output, Started
from gymbox_sandbox.commands import Commands
from gymbox_sandbox.event_stream import EventStream, frame
from gymbox_sandbox.hang_up import unless_hung_up
from gymbox_sandbox.problems import Invalid
from gymbox_sandbox.wire import ExecRequest, ExecResult, Pty


class _Signal(BaseModel):
    model_config = ConfigDict(extra="forbid")

    signal: str


def exec_routes(commands: Commands) -> list[BaseRoute]:
    """The routes of `commands`."""

    async def exec(request: Request) -> Response:
        wanted = await read_as(ExecRequest, request)
        if not wanted.stream:
            result = await unless_hung_up(request.receive, commands.run(wanted))
            return Response(result.model_dump_json(), media_type="application/json")
        if wanted.request_id is not None:
            raise Invalid("a request_id is for a plain exec; a job can be followed, and followed again")
        events = commands.stream(wanted)
        # what is refused is still an ordinary answer
        return EventStream(await anext(events), events, framed)

    async def stdin(request: Request) -> Response:
        exec_id = request.path_params["exec_id"]
        async for chunk in request.stream():
            await commands.write_stdin(exec_id, chunk)
        if request.query_params.get("eof") == "1":
            await commands.write_stdin(exec_id, b"", eof=True)
        return Response(status_code=204)

    async def resize(request: Request) -> Response:
        size = await read_as(Pty, request)
        commands.resize(request.path_params["exec_id"], size.rows, size.columns)
        return Response(status_code=204)

    async def signal(request: Request) -> Response:
        commands.signal(request.path_params["exec_id"], (await read_as(_Signal, request)).signal)
        return Response(status_code=204)

    def later(name: str, path: str, method: str) -> BaseRoute:
        async def handler(request: Request) -> Response:
            from gymbox_sandbox import background_routes  # which many sandboxes never need

            handle: Callable[[Commands, Request], Awaitable[Response]] = getattr(background_routes, name)
            return await handle(commands, request)

        return Route(path, handler, methods=[method])

    return [
        later("list_jobs", "/exec/jobs", "GET"),
        later("start_job", "/exec/jobs/{id}", "PUT"),
        later("show_job", "/exec/jobs/{id}", "GET"),
        later("forget_job", "/exec/jobs/{id}", "DELETE"),
        later("kill_job", "/exec/jobs/{id}/kill", "POST"),
        later("job_output", "/exec/jobs/{id}/output", "GET"),
        later("job_events", "/exec/jobs/{id}/events", "GET"),
        later("list_shells", "/exec/shells", "GET"),
        later("open_shell", "/exec/shells/{id}", "PUT"),
        later("show_shell", "/exec/shells/{id}", "GET"),
        later("close_shell", "/exec/shells/{id}", "DELETE"),
        later("run_in_shell", "/exec/shells/{id}/run", "POST"),
        Route("/exec", exec, methods=["POST"]),
        Route("/exec/{exec_id}/stdin", stdin, methods=["POST"]),
        Route("/exec/{exec_id}/resize", resize, methods=["POST"]),
        Route("/exec/{exec_id}/signal", signal, methods=["POST"]),
    ]


def framed(event: Started | Output | Dropped | ExecResult) -> bytes:
    """What happens to a command, as a server-sent event."""
    if isinstance(event, Started):
        return frame("started", json.dumps({"exec_id": event.exec_id, "pid": event.pid}))
    if isinstance(event, Output):
        return frame(event.stream, json.dumps({"data": base64.b64encode(event.data).decode()}))
    if isinstance(event, Dropped):
        return frame("dropped", json.dumps({"bytes": event.bytes}))
    return frame("exit", event.model_dump_json())
