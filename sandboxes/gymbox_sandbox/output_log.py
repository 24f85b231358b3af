"""Output log: the last bytes that a command printed, in the order in which they came, and how many there were."""

from __future__ import annotations

import base64
import codecs
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_PIECE = 1 << 16
_LEAST = 128
"""Bytes for which even the smallest piece counts, so that many of them need no more memory than a few large ones."""


class Kept:
    """The first bytes of a stream, and how many there were."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.data = bytearray()
        self.size = 0

    def add(self, data: bytes | bytearray) -> None:
        self.size += len(data)
        self.data += data[: self._limit - len(self.data)]

    @property
    def truncated(self) -> bool:
        return self.size > len(self.data)

    def read(self, encoding: str) -> str:
        if encoding == "base64":
            return base64.b64encode(self.data).decode()
        # a character that the limit cuts in two is left out whole
        return codecs.getincrementaldecoder("utf-8")("replace").decode(bytes(self.data), final=not self.truncated)


class Piece(NamedTuple):
    """What was printed on one stream without a break."""

    stream: str
    data: bytearray


class OutputLog:
    """Pieces from `begin` to `end`, both counted in bytes from the very first on, over both streams."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: deque[Piece] = deque()
        self._cost = 0
        self.begin = 0
        self.end = 0

    def add(self, stream: str, data: bytes) -> None:
        """Append, and drop from the front what is too much."""
        self.end += len(data)
        last = self._pieces[-1] if self._pieces else None
        if last is not None and last.stream == stream and len(last.data) < _PIECE:
            self._cost -= _cost(last)
            last.data.extend(data)
        else:
            last = Piece(stream, bytearray(data))
            self._pieces.append(last)
        self._cost += _cost(last)
        while self._cost > self._limit:
            self._drop(self._cost - self._limit)

    def _drop(self, excess: int) -> None:
        first = self._pieces[0]
        self._cost -= _cost(first)
        dropped = excess if len(first.data) - excess >= _LEAST else len(first.data)
        self.begin += dropped
        del first.data[:dropped]
        if first.data:
            self._cost += _cost(first)
        else:
            self._pieces.popleft()

    def since(self, offset: int) -> tuple[int, Sequence[tuple[str, bytes]]]:
        """Where what is kept from `offset` on begins, and what that is."""
        start = min(max(offset, self.begin), self.end)
        return start, list(self._from(start))

    def _from(self, start: int) -> Iterator[tuple[str, bytes]]:
        at = self.begin
        for stream, data in self._pieces:
            if at + len(data) > start:
                yield stream, bytes(memoryview(data)[max(0, start - at) :])
            at += len(data)


def _cost(piece: Piece) -> int:
    return max(_LEAST, len(piece.data))
