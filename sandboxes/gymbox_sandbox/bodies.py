"""Bodies: what a request brings, read only as far as the sandbox's memory can hold it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from gymbox_sandbox.problems import Invalid, faults

if TYPE_CHECKING:
    from starlette.types import Message, Receive

MOST = 64 << 20
"""Bytes of a body that the control token may send, but for files, which are never held whole."""
MOST_OF_A_TOOL = 4 << 20
"""Bytes of a body that the tools token may send."""


class TooLarge(Invalid):
    """The body is larger than it may be here."""

    status = 413


async def read(request: Request, limit: int) -> bytearray:
    """
    Raises:
        TooLarge: it has more than `limit` bytes; the rest is not read.
    """
    _refuse_if_over(int(request.headers.get("content-length", 0)), limit)
    body = bytearray()
    async for chunk in request.stream():
        _refuse_if_over(len(body) + len(chunk), limit)
        body += chunk
    return body


async def read_as[Model: BaseModel](model: type[Model], request: Request, limit: int = MOST) -> Model:
    """
    Raises:
        TooLarge: as `read`.
        Invalid: it is not of that form.
    """
    try:
        return model.model_validate_json(await read(request, limit))
    except ValidationError as error:
        raise Invalid(f"{request.url.path}: {faults(error)}") from error


def limited(receive: Receive, limit: int) -> Receive:
    """`receive` of an app that reads its own bodies; it raises TooLarge when there is more than `limit` bytes."""
    seen = 0

    async def receive_some() -> Message:
        nonlocal seen
        message = await receive()
        if message["type"] == "http.request":
            seen += len(message.get("body", b""))
            _refuse_if_over(seen, limit)
        return message

    return receive_some


def _refuse_if_over(size: int, limit: int) -> None:
    if size > limit:
        raise TooLarge(f"the body has more than the {limit} bytes that are allowed here: send large input as a file")
