"""Model server: a model's face over HTTP, in the dialects that its callers speak."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Iterable
from typing import Any

from fastapi import FastAPI, Request
from gymbox_sandbox.lifecycle import ROLLOUT_HEADER
from gymbox_sandbox.responses import Response as ModelResponse
from gymbox_sandbox.responses import ResponsesParams
from pydantic import ValidationError
from starlette.responses import JSONResponse, Response, StreamingResponse

from gymbox.environment import explain
from gymbox.errors import Invalid, NotFound, nearest
from gymbox.http import HttpClient
from gymbox.models import Call, Model
from gymbox.models.streams import chat_events, responses_events
from gymbox.serving import new_app


class ModelServer:
    """Serves a model: `/v1/responses`, `/v1/chat/completions`, `/v1/models`, `/healthz`.

    A caller may name the served model or leave `model` out; another name is answered with 404. With `stream: true` the
    finished answer is replayed as events (see `streams`). A caller that hangs up cancels the call behind it.

    Bring your own model by writing a `Model`. To change the face instead, subclass this, override `responses` or
    `chat_completions`, or add routes in `setup_webserver`.

    Args:
        http: the client that the model's calls go through; the caller's, and closed by the caller.
    """

    def __init__(self, model: Model, http: HttpClient) -> None:
        self.model = model
        self.http = http

    async def responses(self, params: ResponsesParams, call: Call) -> ModelResponse:
        """Answer a Responses request; see `Model.responses`."""
        return await self.model.responses(params, call)

    async def chat_completions(self, body: dict[str, Any], call: Call) -> dict[str, Any]:
        """Answer a Chat Completions request; see `Model.chat_completions`."""
        return await self.model.chat_completions(body, call)

    def setup_webserver(self) -> FastAPI:
        """The app. Its lifespan opens and closes the model."""

        @contextlib.asynccontextmanager
        async def opened(_: FastAPI) -> AsyncIterator[None]:
            await self.model.open()
            try:
                yield
            finally:
                await self.model.close()

        app = new_app(f"gymbox model {self.model.name}")
        app.router.lifespan_context = opened
        app.add_api_route("/healthz", self._healthz, methods=["GET"])
        app.add_api_route("/v1/models", self._models, methods=["GET"])
        app.add_api_route("/v1/responses", self._responses, methods=["POST"], response_model=None)
        app.add_api_route("/v1/chat/completions", self._chat, methods=["POST"], response_model=None)
        return app

    async def _healthz(self) -> dict[str, str]:
        return {"status": "ok", "model": self.model.name}

    async def _models(self) -> dict[str, Any]:
        served = {"id": self.model.name, "object": "model", "created": 0, "owned_by": "gymbox"}
        return {"object": "list", "data": [served]}

    async def _responses(self, request: Request) -> Response:
        body = await self._body(request)
        try:
            params = ResponsesParams.model_validate(body)
        except ValidationError as error:
            raise Invalid(f"the request is wrong:\n{explain(error, [])}") from error
        call = self._call(request)
        answer = whole_response(await until_hang_up(request, self.responses(params, call)), params)
        return event_stream(responses_events(answer)) if params.stream else JSONResponse(answer)

    async def _chat(self, request: Request) -> Response:
        body = await self._body(request)
        stream = body.pop("stream", None)
        options = body.pop("stream_options", None) or {}
        answer = await until_hang_up(request, self.chat_completions(body, self._call(request)))
        if not stream:
            return JSONResponse(answer)
        return event_stream(chat_events(answer, include_usage=bool(options.get("include_usage"))))

    async def _body(self, request: Request) -> dict[str, Any]:
        body = await json_object(request)
        named = body.get("model")
        if named not in (None, "", self.model.name):
            raise NotFound(f"there is no model {named!r} here; {nearest(str(named), [self.model.name])}")
        return body

    def _call(self, request: Request) -> Call:
        return Call(http=self.http, rollout=request.headers.get(ROLLOUT_HEADER, ""))


async def json_object(request: Request) -> dict[str, Any]:
    """The request's body.

    Raises:
        Invalid: it is no JSON object.
    """
    try:
        body = await request.json()
    except (ValueError, RecursionError) as error:
        raise Invalid(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise Invalid("the body must be a JSON object")
    return body


async def until_hang_up[Found](request: Request, answering: Awaitable[Found]) -> Found:
    """What `answering` gives, cancelled as soon as the caller of `request` (whose body is read) has hung up."""
    work = asyncio.ensure_future(answering)
    gone = asyncio.ensure_future(_hung_up(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            work.cancel()
            # nobody reads this answer
            raise Invalid("the caller hung up")
        return work.result()
    finally:
        for task in (work, gone):
            task.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def whole_response(response: ModelResponse, params: ResponsesParams) -> dict[str, Any]:
    """The response with everything that official clients expect, whatever the model left out."""
    dumped = response.dump()
    dumped["output"] = [_whole_item(item) for item in dumped.get("output", [])]
    usage = dumped.get("usage")
    if usage is not None:
        usage.setdefault("input_tokens_details", {"cached_tokens": 0})
        usage.setdefault("output_tokens_details", {"reasoning_tokens": 0})
    echoed = {
        "parallel_tool_calls": params.parallel_tool_calls is not False,
        "tool_choice": params.tool_choice or "auto",
        "tools": params.tools,
        "instructions": params.instructions,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "metadata": params.metadata or {},
        "error": None,
        "incomplete_details": None,
    }
    made = {"id": f"resp_{uuid.uuid4().hex}", "object": "response", "created_at": time.time(), "status": "completed"}
    return {**made, **echoed, **{name: value for name, value in dumped.items() if value not in (None, "")}}


_MADE: dict[str, tuple[str, dict[str, Any]]] = {
    "message": ("msg", {"status": "completed"}),
    "function_call": ("fc", {"status": "completed"}),
    "function_call_output": ("fco", {"status": "completed"}),
    "reasoning": ("rs", {"summary": []}),
}
"""Prefix of the id, and the fields, that an item is given where it has none."""


def _whole_item(item: dict[str, Any]) -> dict[str, Any]:
    prefix, defaults = _MADE.get(item["type"], ("item", {}))
    item = {name: value for name, value in item.items() if value is not None}
    whole: dict[str, Any] = {"id": f"{prefix}_{uuid.uuid4().hex}", **defaults, **item}
    if whole["type"] == "message" and whole.get("role") == "assistant":
        content = whole.get("content", "")
        parts = [{"type": "output_text", "text": content}] if isinstance(content, str) else content
        whole["content"] = [{"annotations": [], **part} if part["type"] == "output_text" else part for part in parts]
    return whole


def event_stream(events: Iterable[bytes]) -> StreamingResponse:
    """The answer that sends these server-sent events."""

    async def body() -> AsyncIterator[bytes]:
        for event in events:
            yield event

    return StreamingResponse(body(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})
