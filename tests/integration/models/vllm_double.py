"""A real HTTP server that answers Chat Completions as vLLM does with `return_token_ids`, over a toy tokenizer.

Each character is a token, and `END` ends a turn. Its tool parser takes `<call>…</call>` out of the text, so that part
of what was sampled stands in no text that a caller sees. With `drift` it samples "ab" as one token, which its own
rendering of the history never gives: the prefix breaks on the next turn, as real tokenizers do it. With `splice` it
goes on from the ids that a message brings back.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

END, MERGED = 3, 4
Json = dict[str, Any]


def tokens(text: str, *, merged: bool = False) -> list[int]:
    if merged:
        head, *rest = text.split("ab")
        return tokens(head) + [id for part in rest for id in (MERGED, *tokens(part))]
    return [ord(character) for character in text]


def text_of(message: Json) -> str:
    """What a turn reads in the template."""
    calls = [
        f"<call>{call['function']['name']} {call['function']['arguments']}</call>"
        for call in message.get("tool_calls") or []
    ]
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content)
    return content + "".join(calls)


@dataclass
class VllmDouble:
    replies: list[Json]
    """Assistant messages, one a turn."""
    drift: bool = False
    splice: bool = False
    url: str = ""
    bodies: list[Json] = field(default_factory=list)

    def prompt(self, messages: list[Json]) -> list[int]:
        ids: list[int] = []
        for message in messages:
            if self.splice and message.get("generation_token_ids"):
                ids = [*message["prompt_token_ids"], *message["generation_token_ids"]]
                continue
            ids += [*tokens(f"{message['role'][0]}:"), *tokens(text_of(message)), END]
        return [*ids, *tokens("a:")]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body: Json = await request.json()
        self.bodies.append(body)
        messages = body["messages"]
        turn = sum(message["role"] == "assistant" for message in messages)
        reply = self.replies[turn % len(self.replies)]
        prompt = self.prompt(messages)
        sampled = [*tokens(text_of(reply), merged=self.drift), END]
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(sampled)}
        finish = "tool_calls" if reply.get("tool_calls") else "stop"
        shared = {"id": f"chatcmpl-{len(self.bodies)}", "created": 1, "model": body["model"]}
        if body.get("stream"):
            return await self._stream(request, reply, prompt, sampled, usage, finish, shared)
        choice: Json = {"index": 0, "message": {"role": "assistant", **reply}, "finish_reason": finish}
        answer: Json = {**shared, "object": "chat.completion", "choices": [choice], "usage": usage}
        if body.get("return_token_ids"):
            choice["token_ids"] = sampled
            choice["logprobs"] = {"content": [self._entry(id) for id in sampled]}
            answer["prompt_token_ids"] = prompt
        return web.json_response(answer)

    def _entry(self, id: int) -> Json:
        return {"token": chr(id), "logprob": -id / 1000, "bytes": [], "top_logprobs": []}

    async def _stream(
        self,
        request: web.Request,
        reply: Json,
        prompt: list[int],
        sampled: list[int],
        usage: Json,
        finish: str,
        shared: Json,
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        wanted = bool((await request.json()).get("return_token_ids"))

        async def send(choices: list[Json], **more: Any) -> None:
            chunk = {**shared, "object": "chat.completion.chunk", "choices": choices, **more}
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())

        first: Json = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        await send([first], **({"prompt_token_ids": prompt} if wanted else {}))
        content = reply.get("content") or ""
        calls = [{"index": index, **call} for index, call in enumerate(reply.get("tool_calls") or [])]
        for place, id in enumerate(sampled):
            # the parser holds calls back until they are whole
            delta: Json = {"content": content[place]} if place < len(content) else {}
            if id == END and calls:
                delta = {"tool_calls": calls}
            choice: Json = {"index": 0, "delta": delta, "finish_reason": finish if id == END else None}
            if wanted:
                choice |= {"token_ids": [id], "logprobs": {"content": [self._entry(id)]}}
            await send([choice])
        if ((await request.json()).get("stream_options") or {}).get("include_usage"):
            await send([], usage=usage)
        await response.write(b"data: [DONE]\n\n")
        return response


@asynccontextmanager
async def vllm_double(replies: list[Json], **more: Any) -> AsyncIterator[VllmDouble]:
    """One that answers, on a free port."""
    double = VllmDouble(replies, **more)
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/v1/chat/completions", double.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        double.url = f"http://{host}:{port}/v1"
        yield double
    finally:
        await runner.cleanup()
