"""Sse: server-sent events, read from bytes as they come, and written. Source: HTML Living Standard, 9.2."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, cast

import aiohttp

from gymbox.errors import Invalid
from gymbox.models.strict_json import json_bytes, strict_json, without_halves

LARGEST_EVENT = 16 * 1024 * 1024
"""Bytes of one event."""
_LINE_END = re.compile(rb"\r\n|\n|\r")
DONE = b"data: [DONE]\n\n"
"""How a Chat stream ends."""


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event; `data` has its lines joined by line feeds, `id` is the last one that the stream has told."""

    data: str
    event: str = ""
    id: str = ""
    ended: bool = True
    """Whether the empty line came that ends it; else the stream ended first, perhaps in its midst."""


class Reader:
    """Takes bytes, cut anywhere, and gives the events that are whole."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._looked = 0
        self._data: list[bytes] = []
        self._event = b""
        self._id = ""
        self._size = 0
        self._first = True

    def add(self, part: bytes) -> list[ServerSentEvent]:
        """The events that end in these bytes.

        Raises:
            Invalid: an event is larger than `LARGEST_EVENT`.
        """
        self._rest += part
        found: list[ServerSentEvent] = []
        begin = 0
        for end in _LINE_END.finditer(self._rest, self._looked):
            if end[0] == b"\r" and end.end() == len(self._rest):
                break  # its line feed may be still to come
            self._take(bytes(self._rest[begin : end.start()]), found)
            begin = end.end()
        del self._rest[:begin]
        self._looked = max(0, len(self._rest) - 1)
        if len(self._rest) + self._size > LARGEST_EVENT:
            raise Invalid(f"an event of the stream is larger than {LARGEST_EVENT >> 20} MiB")
        return found

    def end(self) -> list[ServerSentEvent]:
        """The event that the stream ended in, where only the empty line after it is missing."""
        found: list[ServerSentEvent] = []
        rest = bytes(self._rest).removesuffix(b"\r")
        self._rest.clear()
        self._take(rest, found)
        self._take(b"", found)
        return [replace(event, ended=False) for event in found]

    def _take(self, line: bytes, found: list[ServerSentEvent]) -> None:
        if self._first:
            self._first, line = False, line.removeprefix(b"\xef\xbb\xbf")
        if not line:
            if self._data:
                data = b"\n".join(self._data).decode("utf-8", "replace")
                found.append(ServerSentEvent(data, self._event.decode("utf-8", "replace"), self._id))
            self._data, self._event, self._size = [], b"", 0
            return
        self._size += len(line)
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._event = value
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode("utf-8", "replace")
        # a comment has no name; times of retries mean nothing here


async def events_in(parts: AsyncIterator[bytes]) -> AsyncIterator[ServerSentEvent]:
    """The events of a stream of bytes, each as soon as it is whole.

    Raises:
        Invalid: an event is too large.
    """
    reader = Reader()
    async with aclosing(cast(Any, parts)) as source:
        async for part in source:
            for event in reader.add(part):
                yield event
    for event in reader.end():
        yield event


async def events_of(answer: aiohttp.ClientResponse) -> AsyncIterator[ServerSentEvent]:
    """The events of an answer, each as soon as it is whole; one that the answer breaks off in is none.

    Raises:
        Invalid: an event is too large.
    """
    parts = (part async for part in answer.content.iter_any())
    async with aclosing(cast(Any, events_in(parts))) as events:
        async for event in events:
            if event.ended:
                yield event


async def objects_in(parts: AsyncIterator[bytes]) -> AsyncIterator[dict[str, Any]]:
    """The JSON objects that a stream of bytes has as its events' data, up to `[DONE]`. The event's name stands in for
    a missing `type`. One that the stream broke off in is none.

    Raises:
        Invalid: something there is no JSON object.
    """
    async with aclosing(cast(Any, events_in(parts))) as events:
        async for event in events:
            if event.data.strip() == "[DONE]":
                return
            if not event.data.strip():
                continue
            try:
                found = without_halves(strict_json(event.data), event.data)
            except (ValueError, RecursionError) as error:
                if not event.ended:
                    return
                raise Invalid(f"an event of the stream is no JSON: {event.data!r:.200}") from error
            if not isinstance(found, dict):
                raise Invalid(f"an event of the stream is no JSON object: {event.data!r:.200}")
            if event.event and "type" not in found:
                found["type"] = event.event
            yield found


def event_bytes(data: dict[str, Any], *, event: str | None = None) -> bytes:
    """One event on the wire."""
    named = b"event: %b\n" % event.encode() if event is not None else b""
    return b"%bdata: %b\n\n" % (named, json_bytes(data))
