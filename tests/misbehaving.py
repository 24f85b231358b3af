"""Misbehaving: a model's back end that speaks every dialect and goes wrong on the wire in every way it was seen to.

`MISBEHAVIOURS` says of each by what kind a caller must be told, of a plain and of a streamed answer (None: it is
answered all the same). The way is named in the address: `{url}/{name}/v1`.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote, unquote

from gymbox.errors import ErrorKind

Dialect = Literal["responses", "chat", "messages"]
TEXT = "grüße 🌍"
REFUSED = ErrorKind.MODEL_REFUSED_REQUEST
UNAUTHORIZED = ErrorKind.MODEL_UNAUTHORIZED
LIMITED = ErrorKind.MODEL_RATE_LIMITED
UNAVAILABLE = ErrorKind.MODEL_UNAVAILABLE
TIMED_OUT = ErrorKind.MODEL_TIMED_OUT
BAD = ErrorKind.MODEL_BAD_RESPONSE
PATHS: dict[str, Dialect] = {"/responses": "responses", "/chat/completions": "chat", "/messages": "messages"}


@dataclass
class Wire:
    """One request, and the line on which to answer it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    dialect: Dialect
    stream: bool
    sent: int = 0

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        self.sent += len(data)
        await self.writer.drain()

    async def head(self, status: int = 200, content_type: str = "application/json", **headers: Any) -> None:
        lines = {"Content-Type": content_type, **{name.replace("_", "-"): value for name, value in headers.items()}}
        text = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value is not None)
        await self.write(f"HTTP/1.1 {status} X\r\n{text}\r\n".encode())

    async def answer(self, body: Any, status: int = 200, **headers: Any) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        await self.head(status, Content_Length=len(data), **headers)
        await self.write(data)

    async def chunk(self, data: bytes) -> None:
        await self.write(b"%x\r\n%s\r\n" % (len(data), data))

    async def begin_stream(self) -> None:
        await self.head(content_type="text/event-stream", Transfer_Encoding="chunked")

    async def events(self, blocks: list[bytes]) -> None:
        """A whole, well-formed stream of these events."""
        await self.begin_stream()
        for block in blocks:
            await self.chunk(block)
        await self.write(b"0\r\n\r\n")

    async def good(self) -> None:
        if self.stream:
            await self.events(events(self.dialect))
        else:
            await self.answer(good(self.dialect))

    async def until_gone(self) -> None:
        """Wait for the caller to hang up."""
        while await self.reader.read(65536):
            pass

    def reset(self) -> None:
        self.writer.transport.abort()


Way = Callable[[Wire], Awaitable[None]]


def good(dialect: Dialect, text: str | None = TEXT, **changes: Any) -> dict[str, Any]:
    """A good answer."""
    if dialect == "responses":
        content = [{"type": "output_text", "text": text, "annotations": []}]
        message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}
        usage = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
        found = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "completed"}
        return {**found, "output": [message], "usage": usage, **changes}
    if dialect == "messages":
        found = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn"}
        usage = {"input_tokens": 1, "output_tokens": 2}
        return {**found, "content": [{"type": "text", "text": text}], "usage": usage, **changes}
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    found = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m"}
    return {**found, "choices": [choice], "usage": usage, **changes}


def told(dialect: Dialect, text: str = TEXT) -> list[dict[str, Any]]:
    """The events of a good stream, decoded; in the dialect's own form."""
    halves = [text[: len(text) // 2], text[len(text) // 2 :]]
    if dialect == "responses":
        whole = good(dialect, text)
        item = {**whole["output"][0], "status": "in_progress", "content": []}
        at = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
        found = [
            {"type": "response.created", "response": {**whole, "status": "in_progress", "output": [], "usage": None}},
            {"type": "response.output_item.added", "output_index": 0, "item": item},
            {
                "type": "response.content_part.added",
                **at,
                "part": {"type": "output_text", "text": "", "annotations": []},
            },
            *({"type": "response.output_text.delta", **at, "delta": half} for half in halves),
            {"type": "response.output_text.done", **at, "text": text},
            {"type": "response.content_part.done", **at, "part": whole["output"][0]["content"][0]},
            {"type": "response.output_item.done", "output_index": 0, "item": whole["output"][0]},
            {"type": "response.completed", "response": whole},
        ]
        return [{**event, "sequence_number": number} for number, event in enumerate(found)]
    if dialect == "messages":
        message = {
            **good(dialect),
            "content": [],
            "stop_reason": None,
            "usage": {"input_tokens": 1, "output_tokens": 0},
        }
        return [
            {"type": "message_start", "message": message},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            *(
                {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": half}}
                for half in halves
            ),
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
            {"type": "message_stop"},
        ]
    return [
        piece({"role": "assistant", "content": ""}),
        *(piece({"content": half}) for half in halves),
        piece({}, "stop"),
        {**piece({}), "choices": [], "usage": good(dialect)["usage"]},
    ]


def piece(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    """A Chat chunk."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def block(event: dict[str, Any] | str) -> bytes:
    """An event as it stands in a stream."""
    if isinstance(event, str):
        return f"data: {event}\n\n".encode()
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {json.dumps(event, ensure_ascii=False)}\n\n".encode()


def events(dialect: Dialect, text: str = TEXT) -> list[bytes]:
    """The events of a good stream."""
    blocks = [block(event) for event in told(dialect, text)]
    return [*blocks, block("[DONE]")] if dialect == "chat" else blocks


def error_event(dialect: Dialect, code: str, message: str = "no more") -> bytes:
    """The dialect's event for an error in mid-stream."""
    if dialect == "responses":
        return block({"type": "error", "code": code, "message": message, "param": None})
    error = {"error": {"type": code, "code": code, "message": message}}
    return block({"type": "error", **error} if dialect == "messages" else error)


def _status(status: int, body: Any = None, **headers: Any) -> Way:
    error = {"error": {"message": f"status {status}"}}

    async def way(wire: Wire) -> None:
        await wire.answer(error if body is None else body, status, **headers)

    return way


def _body(body: bytes | Callable[[Dialect], Any], **headers: Any) -> Way:
    async def way(wire: Wire) -> None:
        await wire.answer(body if isinstance(body, bytes) else body(wire.dialect), **headers)

    return way


def _stream(blocks: Callable[[Dialect], list[bytes]]) -> Way:
    async def way(wire: Wire) -> None:
        await wire.events(blocks(wire.dialect))

    return way


async def _resets(wire: Wire) -> None:
    wire.reset()


async def _closes(wire: Wire) -> None:
    return


async def _resets_after_head(wire: Wire) -> None:
    await wire.head(content_type="text/event-stream" if wire.stream else "application/json", Content_Length=1000)
    wire.reset()


async def _speaks_no_http(wire: Wire) -> None:
    await wire.write(b"SSH-2.0-OpenSSH_9.2\r\n")


async def _half_a_head(wire: Wire) -> None:
    await wire.write(b"HTTP/1.1 200 OK\r\nContent-Ty")


async def _huge_header(wire: Wire) -> None:
    await wire.head(X_Filler="x" * 100_000)
    await wire.good()


async def _short_body(wire: Wire) -> None:
    await wire.head(Content_Length=1000)
    await wire.write(b'{"id": ')


async def _broken_chunks(wire: Wire) -> None:
    await wire.head(Transfer_Encoding="chunked")
    await wire.write(b'100\r\n{"id": ')


async def _no_chunks(wire: Wire) -> None:
    await wire.head(Transfer_Encoding="chunked")
    await wire.write(b"this is no chunk\r\n")


async def _hangs(wire: Wire) -> None:
    await wire.until_gone()


async def _hangs_after_head(wire: Wire) -> None:
    await wire.head(Content_Length=1000)
    await wire.until_gone()


async def _endless(wire: Wire) -> None:
    """A body without an end; of a stream: comments and pings without an event."""
    await wire.head(content_type="text/event-stream" if wire.stream else "application/json")
    filler = (b": ping\n\n" if wire.stream else b'{"x": "' + b" " * 64) * 512
    while not wire.writer.is_closing():
        await wire.write(filler)


async def _drips(wire: Wire) -> None:
    """Everything, byte by byte."""
    if wire.stream:
        await wire.begin_stream()
        for byte in b"".join(events(wire.dialect)):
            await wire.chunk(bytes([byte]))
        await wire.write(b"0\r\n\r\n")
        return
    data = json.dumps(good(wire.dialect)).encode()
    await wire.head(Content_Length=len(data))
    for byte in data:
        await wire.write(bytes([byte]))


async def _redirects(wire: Wire) -> None:
    await wire.answer(b"", 307, Location="/round/and/round")


async def _zipped(wire: Wire) -> None:
    if wire.stream:
        data = gzip.compress(b"".join(events(wire.dialect)))
        await wire.answer(data, content_type="text/event-stream", Content_Encoding="gzip")
    else:
        await wire.answer(gzip.compress(json.dumps(good(wire.dialect)).encode()), Content_Encoding="gzip")


async def _zip_bomb(wire: Wire) -> None:
    await wire.answer(gzip.compress(b'{"x": "' + b" " * (1 << 24)), Content_Encoding="gzip")


async def _silent_at_the_end(wire: Wire) -> None:
    await wire.begin_stream()
    for each in events(wire.dialect):
        await wire.chunk(each)
    await wire.until_gone()


async def _goes_on_after_the_end(wire: Wire) -> None:
    await wire.begin_stream()
    for each in events(wire.dialect):
        await wire.chunk(each)
    while not wire.writer.is_closing():
        await wire.chunk(b": ping\n\n")


async def _stops_in_the_midst(wire: Wire) -> None:
    await wire.begin_stream()
    for each in events(wire.dialect)[:3]:
        await wire.chunk(each)
    await wire.until_gone()


async def _goes_on_for_ever(wire: Wire) -> None:
    """Pieces of an answer without an end."""
    middle = events(wire.dialect)[-4 if wire.dialect == "chat" else 3]
    await wire.begin_stream()
    for each in events(wire.dialect)[:3]:
        await wire.chunk(each)
    while not wire.writer.is_closing():
        await wire.chunk(middle * 16)


def _cut(where: float | int, *, reset: bool = False, inside: bool = False) -> Way:
    """Break off after so many events, or a part of them."""

    async def way(wire: Wire) -> None:
        blocks = events(wire.dialect)
        count = where if isinstance(where, int) else int(where * len(blocks))
        await wire.begin_stream()
        for each in blocks[:count]:
            await wire.chunk(each)
        if inside:
            half = next(each for each in blocks if b"\xc3" in each)
            await wire.chunk(half[: half.index(b"\xc3") + 1])
        if reset:
            wire.reset()

    return way


def _ends_early(count: int) -> Way:
    """A stream that ends well on the wire, after so many events before the last one that matters."""
    return _stream(lambda dialect: [each for each in events(dialect) if each != block("[DONE]")][:count])


def _with_error(code: str, *, first: bool) -> Way:
    return _stream(lambda dialect: [*([] if first else events(dialect)[:3]), error_event(dialect, code)])


def _instead(event: bytes) -> Way:
    """This in the place of the fourth event, and then nothing that could end the answer."""
    return _stream(lambda dialect: [*events(dialect)[:3], event])


def _without(body: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in body.items() if key != name}


_ANSWER = {"responses": "output", "chat": "choices", "messages": "content"}


def _nothing_in_it(dialect: Dialect) -> dict[str, Any]:
    if dialect == "chat":
        message = {"role": "assistant", "content": None}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return good(dialect, choices=[choice])
    return good(dialect, **{_ANSWER[dialect]: []})


def _wrong_schema(dialect: Dialect) -> dict[str, Any]:
    wrong = {"responses": [{"type": "function_call"}], "chat": [{"message": "hi"}], "messages": [{"type": "tool_use"}]}
    return good(dialect, **{_ANSWER[dialect]: wrong[dialect]})


def _unknown_reason(dialect: Dialect) -> dict[str, Any]:
    if dialect == "messages":
        return good(dialect, stop_reason="full_moon")
    if dialect == "responses":
        return good(dialect, status="full_moon")
    found = good(dialect)
    found["choices"][0]["finish_reason"] = "full_moon"
    return found


def _with_half_a_pair(dialect: Dialect) -> bytes:
    return json.dumps(good(dialect, "HERE")).replace("HERE", "h\\ud83d").encode()


def _crlf(dialect: Dialect) -> list[bytes]:
    return [each.replace(b"\n", b"\r\n") for each in events(dialect)]


def _commented(dialect: Dialect) -> list[bytes]:
    return [b"\xef\xbb\xbf: hello\n\n", b"retry: 5\n\n", *(b": ping\n" + each for each in events(dialect))]


def _unnamed(dialect: Dialect) -> list[bytes]:
    """Without `event:` lines and without a space after the colon."""
    return [b"data:" + each.split(b"data: ", 1)[1] for each in events(dialect)]


def _split_data(dialect: Dialect) -> list[bytes]:
    """Each event's data over several lines, which are to be joined."""
    return [each.replace(b'{"', b'{\ndata: "', 1) for each in events(dialect)]


@dataclass(frozen=True)
class Expected:
    """A way to misbehave, and how its caller must be told."""

    way: Way
    plain: ErrorKind | None = None
    streamed: ErrorKind | None = None
    only: Literal["plain", "streamed"] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    """The model's settings."""
    largest: int | None = None
    """Bytes that an answer may have."""
    differs: dict[str, ErrorKind | None] = field(default_factory=dict)
    """The outcome in a dialect that has its own."""

    def kind(self, dialect: Dialect, *, stream: bool) -> ErrorKind | None:
        """By what it is told; None: it is answered all the same."""
        return self.differs.get(dialect, self.streamed if stream else self.plain)


def _both(way: Way, kind: ErrorKind | None, **more: Any) -> Expected:
    return Expected(way, kind, kind, **more)


def _plain(way: Way, kind: ErrorKind | None, **more: Any) -> Expected:
    return Expected(way, plain=kind, only="plain", **more)


def _streamed(way: Way, kind: ErrorKind | None, **more: Any) -> Expected:
    return Expected(way, streamed=kind, only="streamed", **more)


_SOON = {"timeout": 0.3}
_QUOTA = {"error": {"message": "pay first", "code": "insufficient_quota"}}
MISBEHAVIOURS: dict[str, Expected] = {
    # by status
    "400": _both(_status(400), REFUSED),
    "400 text": _both(_status(400, b"prompt too long", content_type="text/plain"), REFUSED),
    "401": _both(_status(401), UNAUTHORIZED),
    "402": _both(_status(402), UNAUTHORIZED),
    "403": _both(_status(403), UNAUTHORIZED),
    "404": _both(_status(404), REFUSED),
    "405": _both(_status(405), REFUSED),
    "408": _both(_status(408), TIMED_OUT),
    "409": _both(_status(409), UNAVAILABLE),
    "413": _both(_status(413), REFUSED),
    "422": _both(_status(422, {"detail": [{"loc": ["body"]}]}), REFUSED),
    "425": _both(_status(425), UNAVAILABLE),
    "429": _both(_status(429), LIMITED),
    "429 in seconds": _both(_status(429, Retry_After="0.01"), LIMITED),
    "429 in milliseconds": _both(_status(429, retry_after_ms="10"), LIMITED),
    "429 by date": _both(_status(429, Retry_After="Sun, 29 Nov 2020 01:00:00 GMT"), LIMITED),
    "429 soon": _both(_status(429, Retry_After="soon"), LIMITED),
    "429 unpaid": _both(_status(429, _QUOTA), UNAUTHORIZED),
    "500": _both(_status(500), UNAVAILABLE),
    "500 huge": _both(_status(500, b"x" * 2_000_000), UNAVAILABLE),
    "502 HTML": _both(_status(502, b"<html>bad gateway</html>", content_type="text/html"), UNAVAILABLE),
    "503 empty": _both(_status(503, b""), UNAVAILABLE),
    "504": _both(_status(504), TIMED_OUT),
    "529": _both(_status(529), UNAVAILABLE),
    "204": _both(_status(204, b""), BAD),
    "206": _both(_status(206), BAD),
    "redirect loop": _both(_redirects, BAD),
    # on the wire
    "reset": _both(_resets, UNAVAILABLE),
    "reset after the head": _both(_resets_after_head, UNAVAILABLE),
    "closes": _both(_closes, UNAVAILABLE),
    "no HTTP": _both(_speaks_no_http, BAD),
    "half a head": _both(_half_a_head, UNAVAILABLE),
    "huge header": _both(_huge_header, BAD),
    "short body": _both(_short_body, UNAVAILABLE),
    "broken chunks": _both(_broken_chunks, UNAVAILABLE),
    "no chunks": _both(_no_chunks, BAD),
    "hangs": _both(_hangs, TIMED_OUT, options=_SOON),
    "hangs after the head": _both(_hangs_after_head, TIMED_OUT, options=_SOON),
    "endless": _both(_endless, BAD, largest=1 << 20),
    "drips": _both(_drips, None),
    "gzip": _both(_zipped, None),
    "broken gzip": _both(_body(b"\x1f\x8bno gzip", Content_Encoding="gzip"), BAD),
    "gzip bomb": _both(_zip_bomb, BAD, largest=1 << 20),
    # in the body
    "empty": _both(_body(b""), BAD),
    "blank": _both(_body(b" \n "), BAD),
    "HTML": _both(_body(b"<html>welcome</html>", content_type="text/html"), BAD),
    "half JSON": _both(_body(lambda dialect: json.dumps(good(dialect)).encode()[:70]), BAD),
    "NaN": _both(_body(lambda dialect: json.dumps(good(dialect, x=float("nan"))).encode()), BAD),
    "deep": _both(_body(b"[" * 200_000), BAD),
    "list": _both(_body(b"[1]"), BAD),
    "null": _both(_body(b"null"), BAD),
    "text": _both(_body(b'"hello"'), BAD),
    "no UTF-8": _both(_body(b'{"id": "\xff\xfe"}'), BAD),
    "half a pair": _both(_body(_with_half_a_pair), None),
    "as text/plain": _both(_body(good, content_type="text/plain"), None),
    "as octets": _both(_body(good, content_type="application/octet-stream"), None),
    "error in 200": _both(_body(b'{"error": {"message": "x"}}'), UNAVAILABLE),
    "error text in 200": _both(_body(b'{"error": "x"}'), UNAVAILABLE),
    "rate limit in 200": _both(_body(b'{"error": {"code": "rate_limit_exceeded"}}'), LIMITED),
    "bad request in 200": _both(_body(b'{"error": {"code": 400, "message": "x"}}'), REFUSED),
    "no answer in it": _both(_body(lambda dialect: _without(good(dialect), _ANSWER[dialect])), BAD),
    "null answer": _both(_body(lambda dialect: good(dialect, **{_ANSWER[dialect]: None})), BAD),
    # a model may end its turn at once
    "nothing in it": _both(_body(_nothing_in_it), None, differs={"responses": BAD}),
    "wrong schema": _both(_body(_wrong_schema), BAD),
    "unknown reason": _both(_body(_unknown_reason), BAD),
    "no id": _both(_body(lambda dialect: _without(good(dialect), "id")), None),
    "30 MB": _both(_body(lambda dialect: good(dialect, "x" * 30_000_000)), None),
    # in the stream
    "no terminal": _streamed(_ends_early(3), UNAVAILABLE),
    "cut after the first event": _streamed(_cut(1), UNAVAILABLE),
    "cut in the midst": _streamed(_cut(0.5), UNAVAILABLE),
    "reset in the midst": _streamed(_cut(0.5, reset=True), UNAVAILABLE),
    "cut inside a character": _streamed(_cut(3, inside=True), UNAVAILABLE),
    "no event": _streamed(_stream(lambda _: []), BAD),
    "only [DONE]": _streamed(_stream(lambda _: [block("[DONE]")]), BAD),
    "only pings": _streamed(_stream(lambda _: [b": ping\n\n"] * 3), BAD),
    "silent at the end": _streamed(_silent_at_the_end, None),
    "goes on after the end": _streamed(_goes_on_after_the_end, None),
    "stops in the midst": _streamed(_stops_in_the_midst, TIMED_OUT, options=_SOON),
    "goes on for ever": _streamed(_goes_on_for_ever, BAD, largest=1 << 20),
    "error first": _streamed(_with_error("server_error", first=True), UNAVAILABLE),
    "overloaded first": _streamed(_with_error("overloaded_error", first=True), UNAVAILABLE),
    "rate limit first": _streamed(_with_error("rate_limit_error", first=True), LIMITED),
    "error in the midst": _streamed(_with_error("server_error", first=False), UNAVAILABLE),
    "rate limit in the midst": _streamed(_with_error("rate_limit_error", first=False), LIMITED),
    "half JSON in an event": _streamed(_instead(b'data: {"half": \n\n'), BAD),
    "NaN in an event": _streamed(_instead(b'data: {"type": NaN}\n\n'), BAD),
    "a list for an event": _streamed(_instead(b"data: [1]\n\n"), BAD),
    "CRLF": _streamed(_stream(_crlf), None),
    "CR": _streamed(_stream(lambda dialect: [each.replace(b"\n", b"\r") for each in events(dialect)]), None),
    "comments": _streamed(_stream(_commented), None),
    "unnamed events": _streamed(_stream(_unnamed), None),
    "data on two lines": _streamed(_stream(_split_data), None),
    "a whole answer": _streamed(_body(good), None),
    "long pieces": _streamed(_stream(lambda dialect: events(dialect, "x" * 3_000_000)), None),
}
"""Every way by its name."""


class MisbehavingServer:
    """Serves each way under its own address; counts the requests and the bytes that it could send."""

    def __init__(self, ways: Mapping[str, Way]) -> None:
        self.ways = ways
        self.url = ""
        self.requests: list[dict[str, Any]] = []
        self.sent = 0
        self.idle = asyncio.Event()
        """Set while no request is being answered."""
        self._open = 0

    def base_url(self, name: str) -> str:
        """Where it misbehaves in this way."""
        return f"{self.url}/{quote(name, safe='')}/v1"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        self.idle.clear()
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            path = unquote(head.split(b" ", 2)[1].decode())
            lines = dict(line.lower().split(": ", 1) for line in head.decode().split("\r\n")[1:] if ": " in line)
            body = json.loads(await reader.readexactly(int(lines.get("content-length", 0))) or b"null")
            self.requests.append(body)
            name, rest = path[1:].split("/v1", 1)
            dialect = PATHS[rest.split("?")[0]]
            wire = Wire(reader, writer, dialect, bool((body or {}).get("stream")))
            try:
                await self.ways[name](wire)
            finally:
                self.sent = wire.sent
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the caller has had enough
        finally:
            self._open -= 1
            if not self._open:
                self.idle.set()
            writer.close()


@asynccontextmanager
async def misbehaving_server(ways: Mapping[str, Way] | None = None) -> AsyncIterator[MisbehavingServer]:
    """A server on a free loopback port; it knows all of `MISBEHAVIOURS`, or these ways by their names."""
    served = MisbehavingServer({name: each.way for name, each in MISBEHAVIOURS.items()} if ways is None else ways)
    server = await asyncio.start_server(served.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    served.url = f"http://{host}:{port}"
    try:
        yield served
    finally:
        server.close()
