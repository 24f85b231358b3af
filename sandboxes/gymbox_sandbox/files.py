"""Files: files and whole trees in and out of a sandbox, streamed, and read and written by the agent's user.

A transfer is a command like any other (see transfer), so memory stays constant in both directions: the slower side
sets the pace.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from gymbox_sandbox.command import Command, Ended, Output
from gymbox_sandbox.commands import Commands
from gymbox_sandbox.hang_up import unless_hung_up
from gymbox_sandbox.problems import KINDS, AtCapacity, Conflict, Internal, Invalid, NotFound, Problem
from gymbox_sandbox.spawn import Spawn

log = logging.getLogger(__name__)
MOST_BYTES = 8 << 30
"""Bytes of one upload; of an archive, of its files together."""
MOST_FILES = 200_000
"""Members of one uploaded archive."""
MOST_WATCHES = 16
AGAIN = 0.5
"""Seconds after which a transfer that was cut off is told again."""
_TIMEOUT = 86_400
"""Seconds; in effect the end of the connection ends a transfer."""


def routes(
    commands: Commands, workspace: str, *, most_bytes: int = MOST_BYTES, most_files: int = MOST_FILES
) -> list[BaseRoute]:
    """`/files` and `/archive`, as `wire` lists them; a relative path is one in the workspace."""

    def transfer(request: Request, verb: str, *limits: str) -> Spawn:
        path = request.query_params.get("path")
        if not path:
            raise Invalid("say which: ?path=…")
        return Spawn([verb, path, *limits], env={}, cwd=workspace, timeout=_TIMEOUT, transfer=True)

    async def get_file(request: Request) -> Response:
        return await _download(commands, transfer(request, "read"), "application/octet-stream")

    async def put_file(request: Request) -> Response:
        mode = request.query_params.get("mode", "644")
        if not mode.isdecimal() or not set(mode) <= set("01234567") or int(mode, 8) > 0o777:
            raise Invalid(f"{mode!r} is no mode: say it as octal digits, like 644")
        size = await _upload(request, commands, transfer(request, "write", mode, str(most_bytes)))
        return JSONResponse({"size": size})

    async def watch(request: Request) -> Response:
        recursive = request.query_params.get("recursive", "1")
        if recursive not in ("0", "1"):
            raise Invalid(f"recursive is 0 or 1, not {recursive!r}")
        return await watched(commands, transfer(request, "watch", recursive))

    async def get_archive(request: Request) -> Response:
        only = request.query_params.getlist("only")
        packing = transfer(request, "pack", *only)
        if only:  # not in the workspace: an agent that has closed it to itself is to be scored nevertheless
            verb, path, *rest = packing.argv
            packing = packing._replace(argv=[verb, os.path.join(workspace, path), *rest], cwd="/")
        return await _download(commands, packing, "application/x-tar")

    async def put_archive(request: Request) -> Response:
        spawn = transfer(request, "unpack", str(most_bytes), str(most_files))
        return JSONResponse({"files": await _upload(request, commands, spawn)})

    return [
        Route("/files", get_file, methods=["GET"]),
        Route("/files", put_file, methods=["PUT"]),
        Route("/files/watch", watch, methods=["GET"]),
        Route("/archive", get_archive, methods=["GET"]),
        Route("/archive", put_archive, methods=["PUT"]),
    ]


async def _upload(request: Request, commands: Commands, spawn: Spawn) -> int:
    """Hand the request's body to a transfer; the number that it answers."""
    async with commands.start(spawn, stdin=True) as command:
        try:
            async for chunk in request.stream():
                # it may have failed already; the caller hears why once everything is sent
                with contextlib.suppress(Conflict):
                    await command.write(chunk)
        except ClientDisconnect:
            await _cut_off(command)
            raise
        await command.write_end()
        return int(await outcome(command))


async def _cut_off(command: Command) -> None:
    """Have a transfer remove what is half written, and end. It is told until it does: a signal that comes in the
    moment before it waits for more would only be heard once more has come."""
    ending = asyncio.ensure_future(outcome(command))
    try:
        while not ending.done():
            command.signal(signal.SIGTERM)
            await asyncio.wait({ending}, timeout=AGAIN)
        with contextlib.suppress(Problem):
            ending.result()
    finally:
        ending.cancel()


async def _download(commands: Commands, spawn: Spawn, media_type: str) -> Response:
    async with AsyncExitStack() as stack:
        command = await stack.enter_async_context(commands.start(spawn))
        head = b""
        while b"\n" not in head:
            event = await command.next()
            if not isinstance(event, Output) or event.stream == "stderr":
                await outcome(command, event)
            else:
                head += event.data
        size, _, first = head.partition(b"\n")
        return _Download(command, stack.pop_all(), int(size), first, media_type)


async def watched(commands: Commands, spawn: Spawn) -> Response:
    """What a watch says, as server-sent events, until the caller leaves.

    Raises:
        AtCapacity: as many watch as may.
        Problem: it cannot be watched.
    """
    from gymbox_sandbox.event_stream import EventStream, frame  # which many sandboxes never need

    events = _lines(commands, spawn)
    return EventStream(await anext(events), events, lambda line: frame(next(iter(json.loads(line))), line.decode()))


async def _lines(commands: Commands, spawn: Spawn) -> AsyncGenerator[bytes]:
    """The lines that a transfer writes.

    Raises:
        Problem: it failed, or came to its end.
    """
    if commands.watches >= MOST_WATCHES:
        raise AtCapacity(f"{MOST_WATCHES} watches are open, and no more may be", retry_after=1)
    commands.watches += 1
    try:
        async with commands.start(spawn) as command:
            rest = b""
            while isinstance(event := await command.next(), Output) and event.stream == "stdout":
                *lines, rest = (rest + event.data).split(b"\n")
                for line in lines:
                    yield line
            await outcome(command, event)
            raise NotFound("what was watched is gone")
    finally:
        commands.watches -= 1


async def outcome(command: Command, event: Output | Ended | None = None) -> bytes:
    """What a transfer wrote until its end, to its output or else its errors.

    Raises:
        Problem: it failed, of the kind that it names.
    """
    written = {"stdout": b"", "stderr": b""}
    event = event or await command.next()
    while isinstance(event, Output):
        written[event.stream] += event.data
        event = await command.next()
    if event.code < 0:
        raise Conflict("the transfer was killed")
    if event.code > 0:
        raise _problem(written["stderr"].decode(errors="replace"))
    return written["stdout"] or written["stderr"]


def _problem(text: str) -> Problem:
    kind, _, rest = text.partition(" ")
    cause, _, detail = rest.partition(" ")
    if kind not in KINDS:
        return Internal(f"the transfer failed: {text}")
    if cause == "disk_full":
        return KINDS[kind](f"disk_full: {detail}", cause=cause)
    return KINDS[kind](detail) if cause == "-" else KINDS[kind](detail, cause=cause)


class _Download(Response):
    """What a transfer prints. If it fails midway the connection is cut, so that no caller takes a part for all."""

    def __init__(self, command: Command, stack: AsyncExitStack, size: int, first: bytes, media_type: str) -> None:
        super().__init__(media_type=media_type)
        del self.headers["content-length"]
        if size >= 0:
            self.headers["content-length"] = str(size)
        self._command = command
        self._stack = stack
        self._first = first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._stack:
            with contextlib.suppress(ClientDisconnect):
                await unless_hung_up(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self._first, "more_body": True})
        while isinstance(event := await self._command.next(), Output) and event.stream == "stdout":
            await send({"type": "http.response.body", "body": event.data, "more_body": True})
        try:
            await outcome(self._command, event)
        except Problem as problem:
            log.warning("a download was cut short: %s", problem.detail)
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})
