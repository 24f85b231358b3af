"""Process service: `process.Process`, E2B's RPCs for commands and terminals."""

from __future__ import annotations

import asyncio
import base64
import math
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from gymbox.e2b.messages import (
    Selected,
    SendInputRequest,
    SendSignalRequest,
    StartRequest,
    StreamInputRequest,
    UpdateRequest,
    read,
)
from gymbox.e2b.paths import in_sandbox
from gymbox.e2b.processes import End, Listener, Output, Process
from gymbox.e2b.refusals import Code, Refused, Unserved
from gymbox.e2b.rpc import Call, Service
from gymbox.e2b.sandboxes import Sandbox

KEEPALIVE_HEADER = "Keepalive-Ping-Interval"
KEEPALIVE = 90.0
"""Seconds of silence after which a sign of life is sent to who does not say how often."""


def process_service() -> Service:
    """Its methods, by name."""
    return Service(
        "process.Process",
        unary={
            "List": _list,
            "SendInput": _send_input,
            "SendSignal": _send_signal,
            "CloseStdin": _close_stdin,
            "Update": _update,
        },
        server_stream={"Start": _start, "Connect": _connect},
        client_stream={"StreamInput": _stream_input},
    )


async def _list(sandbox: Sandbox, call: Call) -> dict[str, Any]:
    return {"processes": [_shown(pid, process) for pid, process in sandbox.processes.running()]}


def _shown(pid: int, process: Process) -> dict[str, Any]:
    request = process.request
    config = request.process.model_dump(exclude_none=True)
    return {"pid": pid, "config": config} | ({"tag": request.tag} if request.tag is not None else {})


async def _send_input(sandbox: Sandbox, call: Call) -> dict[str, Any]:
    request = read(SendInputRequest, call.body)
    await sandbox.processes[request.process][1].write(request.input)
    return {}


async def _send_signal(sandbox: Sandbox, call: Call) -> dict[str, Any]:
    request = read(SendSignalRequest, call.body)
    _, process = sandbox.processes[request.process]
    if request.signal in ("SIGNAL_SIGKILL", 9):
        await process.kill()
    elif request.signal in ("SIGNAL_SIGTERM", 15):
        await process.terminate()
    else:
        raise Refused(Code.INVALID_ARGUMENT, f"there is no signal {request.signal!r:.40} here")
    return {}


async def _close_stdin(sandbox: Sandbox, call: Call) -> dict[str, Any]:
    await sandbox.processes[read(Selected, call.body).process][1].close_stdin()
    return {}


async def _update(sandbox: Sandbox, call: Call) -> dict[str, Any]:
    request = read(UpdateRequest, call.body)
    _, process = sandbox.processes[request.process]
    if request.pty is None:
        raise Unserved("nothing of a process can be changed but the size of its terminal")
    await process.resize(request.pty.size.rows, request.pty.size.cols)
    return {}


async def _start(sandbox: Sandbox, call: Call) -> AsyncGenerator[dict[str, Any]]:
    request = read(StartRequest, call.body)
    cwd = in_sandbox(request.process.cwd or "", sandbox.home)
    async with sandbox.processes.start(request, cwd, call.seconds) as (pid, _, listener):
        async with aclosing(_followed(pid, listener, _keepalive(call))) as events:
            async for event in events:
                yield event


async def _connect(sandbox: Sandbox, call: Call) -> AsyncGenerator[dict[str, Any]]:
    pid, process = sandbox.processes[read(Selected, call.body).process]
    with process.listener() as listener:
        async with aclosing(_followed(pid, listener, _keepalive(call), call.seconds)) as events:
            async for event in events:
                yield event


async def _stream_input(sandbox: Sandbox, call: Call, sent: AsyncIterator[bytes]) -> dict[str, Any]:
    process: Process | None = None
    async for body in sent:
        request = read(StreamInputRequest, body)
        if request.start is not None:
            _, process = sandbox.processes[request.start.process]
        elif request.data is not None:
            if process is None:
                raise Refused(Code.INVALID_ARGUMENT, "the stream does not begin with the process that it is for")
            await process.write(request.data.input)
    return {}


async def _followed(
    pid: int, listener: Listener, keepalive: float, seconds: float | None = None
) -> AsyncGenerator[dict[str, Any]]:
    """All that is to be told of a process, as messages, until it has ended.

    Raises:
        Refused: it could not be followed to its end, or still runs after so many seconds.
    """
    clock = asyncio.get_running_loop().time
    until = clock() + seconds if seconds is not None else math.inf
    yield {"event": {"start": {"pid": pid}}}
    while True:
        try:
            async with asyncio.timeout(min(keepalive, until - clock())):
                event = await listener.next()
        except TimeoutError:
            if clock() >= until:
                raise Refused(Code.DEADLINE_EXCEEDED, f"the command still runs after {seconds:g} s") from None
            yield {"event": {"keepalive": {}}}
            continue
        if isinstance(event, Output):
            yield {"event": {"data": {event.stream: base64.b64encode(event.data).decode()}}}
        elif isinstance(event, End):
            yield {"event": {"end": _ended(event)}}
            return
        else:
            raise event


def _ended(end: End) -> dict[str, Any]:
    told = {"exitCode": end.exit_code, "exited": end.exited, "status": end.status}
    return told | ({"error": end.status} if end.exit_code else {})


def _keepalive(call: Call) -> float:
    value = call.headers.get(KEEPALIVE_HEADER, "")
    if value.isascii() and value.isdecimal() and 0 < len(value) < 6:
        return max(1.0, float(value))
    return KEEPALIVE
