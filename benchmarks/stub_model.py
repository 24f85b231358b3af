"""Stub model: a Responses endpoint that answers the rows of two environments at once, and notes what the machine spent
meanwhile.

`python stub_model.py PORT`. The same stub serves every product that is compared, leanly, since it shares their cores.
`GET /marks` tells the time, the machine's CPU-seconds and the stub's own at the first and at the last model call since
`POST /marks`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import sys
import time
from typing import Any

import uvloop
from pydantic_core import from_json, to_json
from report import machine_cpu_seconds

ids = itertools.count()
marks: dict[str, Any] = {"calls": 0, "first": None, "last": None}
USAGE = {
    "input_tokens": 10,
    "output_tokens": 5,
    "total_tokens": 15,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens_details": {"reasoning_tokens": 0},
}
ECHOED = {"status": "completed", "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
MODELS = {"object": "list", "data": [{"id": "stub", "object": "model"}]}


def mark() -> dict[str, float]:
    return {"time": time.perf_counter(), "machine": machine_cpu_seconds(), "stub": time.process_time()}


def output_for(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each next step of the task, by how many results the history holds. `counter`: both increments, then the reading;
    the weather: one call; then a message."""
    content = next(item["content"] for item in items if item.get("role") == "user")
    text = content if isinstance(content, str) else content[0]["text"]
    numbers = re.findall(r"add (\d+)", text)[:2]
    results = sum(item.get("type") == "function_call_output" for item in items)
    calls: list[tuple[str, dict[str, Any]]] = []
    if not numbers:
        calls = [("get_weather", {"city": "San Francisco"})] if results == 0 else []
    elif results == 0:
        calls = [("increment_counter", {"count": int(number)}) for number in numbers]
    elif results < 3:
        calls = [("get_counter_value", {})]
    if not calls:
        part = {"type": "output_text", "text": "done", "annotations": []}
        message = {"type": "message", "role": "assistant", "status": "completed", "content": [part]}
        return [{"id": f"msg_{next(ids)}", **message}]
    return [
        {
            "type": "function_call",
            "id": f"fc_{number}",
            "call_id": f"call_{number}",
            "name": name,
            "arguments": json.dumps(arguments),
            "status": "completed",
        }
        for (name, arguments), number in zip(calls, ids, strict=False)
    ]


def responses(body: bytes) -> bytes:
    if marks["first"] is None:
        marks["first"] = mark()
    given = from_json(body)["input"]
    output = output_for([{"role": "user", "content": given}] if isinstance(given, str) else given)
    marks["calls"] += 1
    if marks["last"] is None or time.perf_counter() - marks["last"]["time"] > 0.02:
        marks["last"] = mark()
    answer = {"id": f"resp_{next(ids)}", "object": "response", "created_at": 1.0, "model": "stub", "usage": USAGE}
    return to_json({**answer, **ECHOED, "output": output})


class Connection(asyncio.Protocol):
    """One kept-alive connection; requests on it come one after another, with Content-Length."""

    def __init__(self) -> None:
        self.buffer = b""
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end]
            _, found, rest = head.lower().partition(b"content-length:")
            whole = end + 4 + (int(rest.partition(b"\r\n")[0]) if found else 0)
            if len(self.buffer) < whole:
                return
            body, self.buffer = self.buffer[end + 4 : whole], self.buffer[whole:]
            self.answer(*head.split(b" ", 2)[:2], body)

    def answer(self, method: bytes, path: bytes, body: bytes) -> None:
        if path == b"/v1/responses":
            content = responses(body)
        elif path == b"/v1/models":
            content = to_json(MODELS)
        else:
            if method == b"POST":
                marks.update(calls=0, first=None, last=None)
            content = to_json(marks)
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(content)
        self.transport.write(head + content)


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", int(sys.argv[1]), backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
