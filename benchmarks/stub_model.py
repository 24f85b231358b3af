"""Stub model: a Responses endpoint that answers counter rows at once, and notes what the machine spent meanwhile.

`python stub_model.py PORT`. The same stub serves every product that is compared. `GET /marks` tells the time, the
machine's CPU-seconds and the stub's own CPU-seconds at the first and at the last model call since `POST /marks`.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
import time
from typing import Any

from aiohttp import web
from report import machine_cpu_seconds

ids = itertools.count()
marks: dict[str, Any] = {"calls": 0, "first": None, "last": None}


def mark() -> dict[str, float]:
    return {"time": time.perf_counter(), "machine": machine_cpu_seconds(), "stub": time.process_time()}


def output_for(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Both increments, then the reading, then a message: by how many results the history holds."""
    content = next(item["content"] for item in items if item.get("role") == "user")
    text = content if isinstance(content, str) else content[0]["text"]
    first, second = re.findall(r"add (\d+)", text)[:2]
    results = sum(item.get("type") == "function_call_output" for item in items)
    if results == 0:
        calls = [("increment_counter", {"count": int(first)}), ("increment_counter", {"count": int(second)})]
    elif results < 3:
        calls = [("get_counter_value", {})]
    else:
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


async def responses(request: web.Request) -> web.Response:
    if marks["first"] is None:
        marks["first"] = mark()
    body = await request.json()
    given = body["input"]
    output = output_for([{"role": "user", "content": given}] if isinstance(given, str) else given)
    marks["calls"] += 1
    if marks["last"] is None or time.perf_counter() - marks["last"]["time"] > 0.02 or output[0]["type"] == "message":
        marks["last"] = mark()
    usage = {
        "input_tokens": 10,
        "output_tokens": 5,
        "total_tokens": 15,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    answer = {"id": f"resp_{next(ids)}", "object": "response", "created_at": 1.0, "model": "stub", "usage": usage}
    answer |= {
        "status": "completed",
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
    return web.json_response(answer)


async def show_marks(_: web.Request) -> web.Response:
    return web.json_response(marks)


async def clear_marks(_: web.Request) -> web.Response:
    marks.update(calls=0, first=None, last=None)
    return web.json_response({})


async def models(_: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": [{"id": "stub", "object": "model"}]})


def main() -> None:
    app = web.Application()
    app.router.add_post("/v1/responses", responses)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/marks", show_marks)
    app.router.add_post("/marks", clear_marks)
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None, access_log=None)


if __name__ == "__main__":
    main()
