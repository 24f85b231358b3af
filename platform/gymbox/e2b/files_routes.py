"""Files routes: `/files`, the bytes of files in and out of a sandbox, as they come."""

from __future__ import annotations

import logging
import posixpath
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

from gymbox_sandbox.hang_up import unless_hung_up
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gymbox.e2b.multipart import Parts, boundary_of
from gymbox.e2b.paths import check_user
from gymbox.e2b.refusals import Unserved, as_away
from gymbox.e2b.sandboxes import Sandbox
from gymbox.errors import Invalid, Problem
from gymbox.streamed_files import Download

log = logging.getLogger(__name__)

PIECE = 1 << 18
"""Bytes that are unpacked at once."""
_METADATA = "x-metadata-"

Find = Callable[[Request], Sandbox]
"""The sandbox that a request is for, whose token it brings."""


def files_routes(find: Find) -> list[Route]:
    """`GET /files` and `POST /files`."""

    async def read(request: Request) -> Response:
        sandbox = _asked(find, request)
        path = request.query_params.get("path", "")
        async with AsyncExitStack() as stack:
            try:
                download = await stack.enter_async_context(sandbox.client.files.download(sandbox.filesystem.at(path)))
            except Problem as error:
                raise as_away(error, sandbox.id) from error
            return _Download(download, stack.pop_all())

    async def write(request: Request) -> Response:
        sandbox = _asked(find, request)
        if any(name.startswith(_METADATA) for name in request.headers):
            raise Unserved("metadata of files is not served here")
        kind = request.headers.get("content-type", "")
        try:
            if kind.startswith("multipart/form-data"):
                return JSONResponse(await _write_parts(sandbox, request, boundary_of(kind)))
            if kind.startswith("application/octet-stream"):
                path = request.query_params.get("path", "")
                return JSONResponse([await _written(sandbox, path, _unpacked(request))])
        except Problem as error:
            raise as_away(error, sandbox.id) from error
        raise Invalid(f"a file comes as multipart/form-data or application/octet-stream, not {kind!r:.60}")

    return [Route("/files", read, methods=["GET"]), Route("/files", write, methods=["POST"])]


def _asked(find: Find, request: Request) -> Sandbox:
    sandbox = find(request)
    check_user(request.query_params.get("username"))
    return sandbox


async def _write_parts(sandbox: Sandbox, request: Request, boundary: bytes) -> list[dict[str, Any]]:
    path = request.query_params.get("path", "")
    parts = Parts(_unpacked(request), boundary)
    written: list[dict[str, Any]] = []
    while (name := await parts.next()) is not None:
        if not name and not path:
            continue  # a field of the form that is no file
        if path and written:
            raise Invalid("several files need their names: leave ?path= out")
        written.append(await _written(sandbox, path or name, parts.pieces()))
    if not written:
        raise Invalid("there is no file in the body")
    return written


async def _written(sandbox: Sandbox, path: str, pieces: AsyncIterator[bytes]) -> dict[str, Any]:
    if not path:
        raise Invalid("say where the file goes: ?path=…")
    at = sandbox.filesystem.at(path)
    await sandbox.client.files.upload(at, pieces)
    return {"name": posixpath.basename(at), "type": "file", "path": at}


async def _unpacked(request: Request) -> AsyncGenerator[bytes]:
    """A request's body, without its compression.

    Raises:
        Invalid: it is not what its header says.
    """
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding == "identity":
        async for part in request.stream():
            if part:
                yield part
        return
    if encoding != "gzip":
        raise Invalid(f"a body with the encoding {encoding!r:.60} is not read here, but gzip is")
    unpack = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        async for part in request.stream():
            while part:
                if unpacked := unpack.decompress(part, PIECE):
                    yield unpacked
                part = unpack.unconsumed_tail
            if unpack.unused_data:
                raise Invalid("something stands behind the body's gzip")
        if rest := unpack.flush():
            yield rest
    except zlib.error as error:
        raise Invalid(f"the body is no gzip: {error}") from error
    if not unpack.eof:
        raise Invalid("the body's gzip is not whole")


class _Download(Response):
    """A file, as it comes. Where it breaks off the connection is cut, so that no caller takes a part for all."""

    def __init__(self, download: Download, stack: AsyncExitStack) -> None:
        super().__init__(media_type="application/octet-stream")
        del self.headers["content-length"]
        if download.size is not None:
            self.headers["content-length"] = str(download.size)
        self._download = download
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with self._stack:
                with suppress(ClientDisconnect):
                    await unless_hung_up(receive, self._send(send))
        except Problem as error:
            log.warning("a download was cut short: %s", error.detail)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for piece in self._download.pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
