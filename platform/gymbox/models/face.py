"""Face: what model and agent servers share over HTTP: requests read, answers made whole, streams replayed."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Iterable
from typing import Any

from fastapi import FastAPI, Request
from gymbox_sandbox.problems import faults
from gymbox_sandbox.responses import Response as ModelResponse
from gymbox_sandbox.responses import ResponsesParams
from pydantic import BaseModel, ValidationError
from starlette.responses import Response, StreamingResponse

from gymbox.errors import AtCapacity, ErrorKind, Invalid, ModelFailure, Problem, TimedOut, Unavailable
from gymbox.models import Model
from gymbox.models.rollout_paths import RolloutPaths
from gymbox.models.strict_json import json_bytes, strict_json
from gymbox.serving import new_app, problem_response

_ANSWERS: dict[ErrorKind, tuple[type[Problem], int]] = {
    ErrorKind.MODEL_REFUSED_REQUEST: (Invalid, 422),
    ErrorKind.MODEL_RATE_LIMITED: (AtCapacity, 429),
    ErrorKind.MODEL_UNAVAILABLE: (Unavailable, 503),
    ErrorKind.MODEL_TIMED_OUT: (TimedOut, 504),
    # 502: the fault lies between this server and the model; 401 would blame the caller's token
    ErrorKind.MODEL_UNAUTHORIZED: (Unavailable, 502),
    ErrorKind.MODEL_BAD_RESPONSE: (Unavailable, 502),
}
"""The problem and the status that tell a caller of a model's failure, by what the caller can do about it."""


def app_with(model: Model, title: str) -> FastAPI:
    """A new app whose lifespan opens and closes the model, and which answers its failures as `_ANSWERS` says."""

    @contextlib.asynccontextmanager
    async def opened(_: FastAPI) -> AsyncIterator[None]:
        await model.open()
        try:
            yield
        finally:
            await model.close()

    app = new_app(title)
    app.router.lifespan_context = opened
    app.add_exception_handler(ModelFailure, _on_model_failure)
    app.add_middleware(RolloutPaths)
    return app


async def _on_model_failure(request: Request, error: Exception) -> Response:
    assert isinstance(error, ModelFailure)
    problem, status = _ANSWERS[error.rollout_kind]
    response = problem_response(problem(error.detail, retry_after=error.retry_after, **error.extra), status)
    if status == 502:
        # official clients repeat every 5xx unless told not to
        response.headers["X-Should-Retry"] = "false"
    return response


async def json_object(request: Request) -> dict[str, Any]:
    """The request's body.

    Raises:
        Invalid: it is no JSON object.
    """
    try:
        body = strict_json(await request.body())
    except (ValueError, RecursionError) as error:
        raise Invalid(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise Invalid("the body must be a JSON object")
    return body


def json_answer(content: dict[str, Any]) -> Response:
    """The answer that says this."""
    return Response(json_bytes(content), media_type="application/json")


def validated[Found: BaseModel](kind: type[Found], body: dict[str, Any]) -> Found:
    """The body as what it should be.

    Raises:
        Invalid: it is not; each fault is named.
    """
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise Invalid(f"the request is wrong: {faults(error)}") from error


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
