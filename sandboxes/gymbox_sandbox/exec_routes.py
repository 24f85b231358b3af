"""Exec routes: `POST /exec` and what can be done to a streamed command, each a translation and nothing more."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing

from pydantic import BaseModel, ConfigDict
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from gymbox_sandbox.bodies import read_as
from gymbox_sandbox.command import Output, Started
from gymbox_sandbox.commands import Commands
from gymbox_sandbox.hang_up import unless_hung_up
from gymbox_sandbox.problems import Problem
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
        events = commands.stream(wanted)
        # what is refused is still an ordinary answer
        return _EventStream(await anext(events), events)

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

    return [
        Route("/exec", exec, methods=["POST"]),
        Route("/exec/{exec_id}/stdin", stdin, methods=["POST"]),
        Route("/exec/{exec_id}/resize", resize, methods=["POST"]),
        Route("/exec/{exec_id}/signal", signal, methods=["POST"]),
    ]


class _EventStream(Response):
    """A streamed exec as server-sent events. It ends with `exit`, or with `error` and a problem."""

    def __init__(
        self,
        first: Started | Output | ExecResult,
        events: AsyncGenerator[Started | Output | ExecResult],
    ) -> None:
        super().__init__(media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        del self.headers["content-length"]
        self._first = first
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events):  # which kills the command, if it still runs
            with contextlib.suppress(ClientDisconnect):
                await unless_hung_up(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await _send_event(send, _framed(self._first))
        try:
            async for event in self._events:
                await _send_event(send, _framed(event))
        except Problem as problem:
            await _send_event(send, _frame("error", json.dumps(problem.to_wire())))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_event(send: Send, event: bytes) -> None:
    await send({"type": "http.response.body", "body": event, "more_body": True})


def _framed(event: Started | Output | ExecResult) -> bytes:
    if isinstance(event, Started):
        return _frame("started", json.dumps({"exec_id": event.exec_id, "pid": event.pid}))
    if isinstance(event, Output):
        return _frame(event.stream, json.dumps({"data": base64.b64encode(event.data).decode()}))
    return _frame("exit", event.model_dump_json())


def _frame(name: str, data: str) -> bytes:
    return f"event: {name}\ndata: {data}\n\n".encode()
