"""Multipart: the files of a `multipart/form-data` body, read as they come.

Source: RFC 7578, RFC 2046 (5.1.1); how names are escaped: HTML Living Standard, multipart/form-data.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator
from email.message import Message

from gymbox.errors import Invalid

MOST_HEAD = 16_384
"""Bytes of a part's headers."""
MOST_PARTS = 1000
_NAME = re.compile(r'(?:^|;)\s*filename="([^"]*)"', re.IGNORECASE)
_ESCAPED = re.compile(r"%22|%0D|%0A|\\\\", re.IGNORECASE)
_MEANT = {"%22": '"', "%0D": "\r", "%0A": "\n", "\\\\": "\\"}


def boundary_of(content_type: str) -> bytes:
    """
    Raises:
        Invalid: there is none.
    """
    header = Message()
    header["content-type"] = content_type
    boundary = header.get_param("boundary")
    if not isinstance(boundary, str) or not 0 < len(boundary) <= 200 or not boundary.isascii():
        raise Invalid("a multipart body needs a boundary")
    return boundary.encode()


class Parts:
    """The parts of a body, one after the other.

        while (name := await parts.next()) is not None:
            async for piece in parts.pieces(): …

    Args:
        source: the body.
    """

    def __init__(self, source: AsyncIterator[bytes], boundary: bytes) -> None:
        self._source = source
        self._delimiter = b"\r\n--" + boundary
        self._rest = b"\r\n"  # as if a line had ended before the first boundary
        self._parts = 0
        self._within = True
        """What comes belongs to a part, or to what is before the first one."""

    async def next(self) -> str | None:
        """The file name of the next part, `""` where it has none; None: there is no other. What was not read of the
        part before is skipped.

        Raises:
            Invalid: the body is none.
        """
        async for _ in self.pieces():
            pass
        while len(self._rest) < 2:
            await self._more()
        if self._rest.startswith(b"--"):
            return None
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise Invalid(f"more than {MOST_PARTS} parts")
        while (end := self._rest.find(b"\r\n\r\n")) < 0:
            if len(self._rest) > MOST_HEAD:
                raise Invalid("the headers of a part are too long")
            await self._more()
        # the line break stays, in case that the part is empty: the next boundary begins with it
        head, self._rest = self._rest[:end], self._rest[end + 4 :]
        self._within = True
        return _file_name(head.decode("utf-8", "replace"))

    async def pieces(self) -> AsyncGenerator[bytes]:
        """What is left of the part, as it comes.

        Raises:
            Invalid: the body ends in its midst.
        """
        while self._within:
            at = self._rest.find(self._delimiter)
            # what may be the beginning of a boundary waits for what follows
            cut = at if at >= 0 else max(0, len(self._rest) - len(self._delimiter) + 1)
            piece = self._rest[:cut]
            if at >= 0:
                self._within = False
                self._rest = self._rest[at + len(self._delimiter) :]
            else:
                self._rest = self._rest[cut:]
            if piece:
                yield piece
            if at < 0:
                await self._more()

    async def _more(self) -> None:
        try:
            self._rest += await anext(self._source)
        except StopAsyncIteration:
            raise Invalid("the multipart body is not whole") from None


def _file_name(head: str) -> str:
    for line in head.split("\r\n"):
        name, _, value = line.partition(":")
        if name.strip().lower() == "content-disposition" and (found := _NAME.search(value)):
            return _ESCAPED.sub(lambda escaped: _MEANT[escaped[0].upper()], found[1])
    return ""
