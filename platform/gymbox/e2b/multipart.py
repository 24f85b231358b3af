"""Multipart: the files of a `multipart/form-data` body, read as they come.

Source: RFC 7578; how names are escaped: HTML Living Standard, multipart/form-data.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from email.message import Message

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser

from gymbox.errors import Invalid

MOST_HEAD = 16_384
"""Bytes of one of a part's headers."""
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
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_begin": self._begin_header,
                "on_header_field": self._header_name,
                "on_header_value": self._header_value,
                "on_header_end": self._end_header,
                "on_headers_finished": lambda: self._read.append(self._file),
                "on_part_data": lambda data, start, end: self._read.append(data[start:end]),
                "on_end": lambda: self._read.append(None),
            },
            max_header_size=MOST_HEAD,
        )
        self._read: deque[str | bytes | None] = deque()
        """What was read and not asked for yet: a part's file name, then its pieces; None: there is no other part."""
        self._parts = 0
        self._file = ""
        self._field, self._value = bytearray(), bytearray()

    async def next(self) -> str | None:
        """The file name of the next part, `""` where it has none; None: there is no other. What was not read of the
        part before is skipped.

        Raises:
            Invalid: the body is none.
        """
        async for _ in self.pieces():
            pass
        name = await self._ahead()
        assert not isinstance(name, bytes)
        if name is not None:
            self._read.popleft()
        return name

    async def pieces(self) -> AsyncGenerator[bytes]:
        """What is left of the part, as it comes.

        Raises:
            Invalid: the body ends in its midst.
        """
        while isinstance(piece := await self._ahead(), bytes):
            self._read.popleft()
            yield piece

    async def _ahead(self) -> str | bytes | None:
        while not self._read:
            try:
                self._parser.write(await anext(self._source))
            except StopAsyncIteration:
                raise Invalid("the multipart body is not whole") from None
            except MultipartParseError as error:
                raise Invalid(f"the multipart body is none: {error}") from error
        return self._read[0]

    def _begin(self) -> None:
        self._file = ""
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise Invalid(f"more than {MOST_PARTS} parts")

    def _begin_header(self) -> None:
        self._field.clear()
        self._value.clear()

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        if self._field.lower() != b"content-disposition":
            return
        # the library's own reading of options takes a name with backslashes for an old browser's path, and cuts it
        if found := _NAME.search(self._value.decode("utf-8", "replace")):
            self._file = _ESCAPED.sub(lambda escaped: _MEANT[escaped[0].upper()], found[1])
