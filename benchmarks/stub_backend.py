"""Stub back end: answers model calls with fixed bytes, so leanly that it is never the limit of what stands before it.

`python stub_backend.py PORT`: Responses, Chat Completions and Messages by the path's last part, streamed where the
request asks so: the first event leaves at once, the others `PACE` seconds after it. Below `/slow` every answer takes
`SLOW` seconds. `GET /peak` tells how many slow requests were held at once at most.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from gymbox.lifetime import raise_file_limit

SLOW = 8.0
PACE = 0.02
TEXT = "The answer is that it depends. " * 40
"""About 1.2 kB: with what stands around it an answer is about 2 kB."""
FIRST = "first token"
"""The first text of every stream."""


def _response(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}
    usage = {
        "input_tokens": 500,
        "output_tokens": 300,
        "total_tokens": 800,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    echoed = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    made = {"id": "resp_1", "object": "response", "created_at": 1.0, "model": "stub", "status": "completed"}
    return made | echoed | {"output": [message], "usage": usage}


def _chat(text: str) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop", "logprobs": None}
    usage = {"prompt_tokens": 500, "completion_tokens": 300, "total_tokens": 800}
    made = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "stub"}
    return made | {"choices": [choice], "usage": usage}


def _messages(text: str) -> dict[str, Any]:
    usage = {"input_tokens": 500, "output_tokens": 300}
    made = {"id": "msg_1", "type": "message", "role": "assistant", "model": "stub", "stop_sequence": None}
    return made | {"content": [{"type": "text", "text": text}], "stop_reason": "end_turn", "usage": usage}


def _response_events() -> list[dict[str, Any]]:
    """The events of a streamed Response, the first text in the fourth."""
    whole = _response(FIRST + TEXT)
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    item = whole["output"][0]
    part = {"type": "output_text", "text": "", "annotations": []}
    at = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    events = [
        {"type": "response.created", "response": begun},
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {**item, "status": "in_progress", "content": []},
        },
        {"type": "response.content_part.added", **at, "part": part},
        {"type": "response.output_text.delta", **at, "delta": FIRST, "logprobs": []},
        {"type": "response.output_text.delta", **at, "delta": TEXT, "logprobs": []},
        {"type": "response.output_text.done", **at, "text": FIRST + TEXT, "logprobs": []},
        {"type": "response.content_part.done", **at, "part": item["content"][0]},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": whole},
    ]
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def _chat_chunks() -> list[dict[str, Any]]:
    def chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
        made = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "stub"}
        return made | {"choices": [choice]}

    return [chunk({"role": "assistant", "content": FIRST}), chunk({"content": TEXT}), chunk({}, "stop")]


def _whole_bytes(content: dict[str, Any]) -> bytes:
    body = json.dumps(content).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def _chunked(events: list[dict[str, Any]], *, named: bool) -> bytes:
    sent = b""
    for event in events:
        name = f"event: {event['type']}\n" if named else ""
        text = f"{name}data: {json.dumps(event)}\n\n".encode()
        sent += b"%x\r\n%b\r\n" % (len(text), text)
    return sent


_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_DONE = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
WHOLE = {
    b"responses": _whole_bytes(_response(TEXT)),
    b"completions": _whole_bytes(_chat(TEXT)),
    b"messages": _whole_bytes(_messages(TEXT)),
}
STREAMED = {
    b"responses": (
        _HEAD + _chunked(_response_events()[:4], named=True),
        _chunked(_response_events()[4:], named=True) + b"0\r\n\r\n",
    ),
    b"completions": (
        _HEAD + _chunked(_chat_chunks()[:1], named=False),
        _chunked(_chat_chunks()[1:], named=False) + _DONE,
    ),
}


class Connection(asyncio.Protocol):
    """One kept-alive connection; requests on it come one after another, with Content-Length."""

    held = 0
    peak = 0

    def __init__(self) -> None:
        self.buffer = b""
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end].lower()
            _, found, rest = head.partition(b"content-length:")
            length = int(rest.partition(b"\r\n")[0]) if found else 0
            if len(self.buffer) < end + 4 + length:
                return
            body = self.buffer[end + 4 : end + 4 + length]
            self.buffer = self.buffer[end + 4 + length :]
            self._answer(head.split(b" ", 2)[1], body)

    def _answer(self, path: bytes, body: bytes) -> None:
        kind = path.rpartition(b"/")[2]
        if path == b"/peak":
            self.transport.write(_whole_bytes({"peak": Connection.peak}))
        elif kind not in WHOLE:
            self.transport.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        elif path.startswith(b"/slow/"):
            Connection.held += 1
            Connection.peak = max(Connection.peak, Connection.held)
            asyncio.get_running_loop().call_later(SLOW, self._late, kind)
        elif kind in STREAMED and (b'"stream":true' in body or b'"stream": true' in body):
            first, rest = STREAMED[kind]
            self.transport.write(first)
            asyncio.get_running_loop().call_later(PACE, self.transport.write, rest)
        else:
            self.transport.write(WHOLE[kind])

    def _late(self, kind: bytes) -> None:
        Connection.held -= 1
        self.transport.write(WHOLE[kind])


async def main() -> None:
    raise_file_limit()
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", int(sys.argv[1]), backlog=65_535)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
