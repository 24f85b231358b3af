"""Framing: Connect's envelopes, in which the messages of a stream come and go.

Each is one byte of flags, four of a length (big-endian), and so many bytes of JSON. The last one of an answer is
flagged as its end and says whether it has failed, since the status was sent long before.

Source: the Connect protocol's reference.
"""

from __future__ import annotations

import json
import struct
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from gymbox.e2b.refusals import Code, Refused

UNARY = "application/json"
STREAM = "application/connect+json"
MOST = 4 << 20
"""Bytes of one message."""
TIMEOUT_HEADER = "Connect-Timeout-Ms"
_HEAD = struct.Struct(">BI")
_COMPRESSED, _END = 1, 2


def envelope(message: dict[str, Any]) -> bytes:
    """One message of a stream."""
    return _enveloped(0, message)


def ending(error: Refused | None = None) -> bytes:
    """The last envelope of an answer."""
    return _enveloped(_END, {} if error is None else {"error": {"code": error.code, "message": error.message}})


def _enveloped(flags: int, message: dict[str, Any]) -> bytes:
    body = json.dumps(message, separators=(",", ":")).encode()
    return _HEAD.pack(flags, len(body)) + body


class Envelopes:
    """Takes the bytes of a stream, cut anywhere, and gives the messages that are whole.

    Args:
        most: bytes that one may have.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._rest = bytearray()

    def add(self, part: bytes) -> list[bytes]:
        """The messages that end in these bytes.

        Raises:
            Refused: one says that it is compressed, or longer than it may be.
        """
        self._rest += part
        found = []
        while len(self._rest) >= _HEAD.size:
            flags, length = _HEAD.unpack_from(self._rest)
            if flags:
                raise Refused(Code.INVALID_ARGUMENT, f"an envelope has the flags {flags:#x}; only plain ones are read")
            if length > self._most:
                raise Refused(Code.RESOURCE_EXHAUSTED, f"a message has {length} bytes, more than {self._most}")
            end = _HEAD.size + length
            if len(self._rest) < end:
                break
            found.append(bytes(self._rest[_HEAD.size : end]))
            del self._rest[:end]
        return found

    def end(self) -> None:
        """Nothing comes any more.

        Raises:
            Refused: the last message is not whole.
        """
        if self._rest:
            raise Refused(Code.INVALID_ARGUMENT, "the stream ends in the midst of an envelope")


async def messages(parts: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """The messages of a request's stream.

    Raises:
        Refused: it is no stream of envelopes.
    """
    envelopes = Envelopes()
    async for part in parts:
        for message in envelopes.add(part):
            yield message
    envelopes.end()


def deadline(value: str | None) -> float | None:
    """Seconds that a call may take by its header; None: any number.

    Raises:
        Refused: the header is wrong.
    """
    if value is None:
        return None
    if not (value.isascii() and value.isdecimal() and 0 < len(value) <= 10):
        raise Refused(Code.INVALID_ARGUMENT, f"{TIMEOUT_HEADER} is a number of up to ten digits, not {value!r:.40}")
    return int(value) / 1000
