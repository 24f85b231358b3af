"""Face: what model and agent servers share over HTTP: requests read, answers made whole, streams sent as they come,
failures told as each dialect has them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Collection
from contextlib import aclosing
from typing import Any, cast

from fastapi import FastAPI, Request
from gymbox_sandbox.hang_up import unless_hung_up
from gymbox_sandbox.lifecycle import ROLLOUT_HEADER
from gymbox_sandbox.problems import faults, of_status
from gymbox_sandbox.responses import Response as ModelResponse
from gymbox_sandbox.responses import ResponsesParams
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gymbox.errors import AtCapacity, ErrorKind, Invalid, ModelFailure, Problem, TimedOut, Unavailable
from gymbox.guard import refusal
from gymbox.models import Model
from gymbox.models.chat_answers import chat_error
from gymbox.models.events import Event, whole
from gymbox.models.rollout_paths import is_rollout
from gymbox.models.sse import DONE, event_bytes
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
_ROLLOUT = ROLLOUT_HEADER.lower().encode()
_BASE_URLS = "the base URL of OpenAI's clients ends in /v1, that of Anthropic's does not"
_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


# --- apps, and how they fail


def app_with(models: Collection[Model], title: str) -> FastAPI:
    """A new app whose lifespan opens and closes the models. Below `/v1`, failures are told in the shape of the API
    that is there, with the fields of our problems beside; those of a model with the status that `_ANSWERS` says."""

    @contextlib.asynccontextmanager
    async def opened(_: FastAPI) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            for model in models:
                stack.push_async_callback(model.close)
                await model.open()
            yield

    app = new_app(title)
    app.router.lifespan_context = opened
    # a redirect would name the path without its rollout, and the call would be nobody's
    app.router.redirect_slashes = False
    app.add_exception_handler(ModelFailure, _on_problem)
    app.add_exception_handler(Problem, _on_problem)
    app.add_exception_handler(HTTPException, _on_http_exception)
    return app


async def _on_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    if isinstance(error, ModelFailure):
        kind, status = _ANSWERS[error.rollout_kind]
        told = kind(error.detail, retry_after=error.retry_after, **error.extra)
        response = _refused(request, told, status)
        if status == 502:
            # official clients repeat every 5xx unless told not to
            response.headers["X-Should-Retry"] = "false"
        return response
    return _refused(request, error, None)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    unknown = error.status_code == 404
    detail = f"there is no {request.scope['path']!r:.200} here; {_BASE_URLS}" if unknown else str(error.detail)
    # a client whose base URL is wrong shows its user only what has the shape that it knows
    response = _refused(request, of_status(error.status_code)(detail), error.status_code, of_api=unknown)
    response.headers.update(error.headers or {})
    return response


def _refused(request: Request, problem: Problem, status: int | None, *, of_api: bool = False) -> Response:
    path = request.scope["path"]
    if not (of_api or path.startswith("/v1/")):
        return problem_response(problem, status)
    code, headers, body = refusal(problem, status)
    wire = strict_json(body)
    if path.startswith("/v1/messages"):
        kind = _ANTHROPIC_TYPES.get(code, "invalid_request_error" if code < 500 else "api_error")
        content = {**wire, "type": "error", "error": {**wire, "type": kind, "message": problem.detail}}
    else:
        kind = _OPENAI_TYPES.get(code, "invalid_request_error" if code < 500 else "server_error")
        named = {"code": wire.get("rollout_kind") or wire["kind"], "param": None, **wire}
        content = {**wire, "error": {**named, "type": kind, "message": problem.detail}}
    return Response(json_bytes(content), code, {**headers, "Content-Type": "application/json"})


# --- requests and whole answers


async def json_object(request: Request) -> dict[str, Any]:
    """The request's body.

    Raises:
        Invalid: it is no JSON object.
    """
    try:
        body = strict_json(await _body(request.receive))
    except (ValueError, RecursionError) as error:
        raise Invalid(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise Invalid("the body must be a JSON object")
    return body


async def _body(receive: Receive) -> bytes:
    """All of it; a small one is one message, and costs less so than as a stream."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def takes_stream(body: dict[str, Any]) -> bool:
    """Whether the answer is to be a stream; the body is left without saying so.

    Raises:
        Invalid: it says neither yes nor no.
    """
    stream = body.pop("stream", None)
    if not isinstance(stream, bool | None):
        raise Invalid(f"stream: true or false is needed, not {stream!r:.60}")
    return bool(stream)


def takes_usage(body: dict[str, Any]) -> bool:
    """Whether a Chat stream is to tell of its usage; the body is left without saying so.

    Raises:
        Invalid: its `stream_options` are no object.
    """
    options = body.pop("stream_options", None)
    if not isinstance(options, dict | None):
        raise Invalid(f"stream_options: an object is needed, not {options!r:.60}")
    return bool((options or {}).get("include_usage"))


def rollout_of(request: Request) -> str:
    """The rollout that a request is for, or "".

    Raises:
        Invalid: its header holds what is no id of a rollout.
    """
    rollout = next((value.decode("latin-1") for name, value in request.scope["headers"] if name == _ROLLOUT), "")
    if rollout and not is_rollout(rollout):
        raise Invalid(
            f"{ROLLOUT_HEADER}: {rollout!r:.60} is no id of a rollout, which is 1 to 128 of A-Z a-z 0-9 . _ ~ -"
        )
    return rollout


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
    return {**_echoed(params), **whole(response.dump())}


def _echoed(params: ResponsesParams) -> dict[str, Any]:
    return {
        "parallel_tool_calls": params.parallel_tool_calls is not False,
        "tool_choice": params.tool_choice or "auto",
        "tools": params.tools,
        "instructions": params.instructions,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "metadata": params.metadata or {},
    }


# --- streams


class EventStream(Response):
    """An answer of which each part is sent as it comes; a caller that hangs up ends what makes them."""

    def __init__(self, first: bytes, parts: AsyncIterator[bytes]) -> None:
        super().__init__(media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        del self.headers["content-length"]
        self._first = first
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await unless_hung_up(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        async with aclosing(cast(Any, self._parts)) as parts:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": self._first, "more_body": True})
            async for part in parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def event_stream(receive: Receive, parts: AsyncIterator[bytes]) -> EventStream:
    """The answer that sends these parts, once the first is there: what fails before has a status of its own.

    Raises: what `parts` raises before its first.
        ClientDisconnect: the caller hung up meanwhile.
    """

    async def first() -> bytes:
        return await anext(parts, b"")

    try:
        begun = await unless_hung_up(receive, first())
    except BaseException:
        await cast(Any, parts).aclose()
        raise
    return EventStream(begun, parts)


async def responses_parts(events: AsyncIterator[Event], params: ResponsesParams) -> AsyncIterator[bytes]:
    """Responses events on the wire, numbered, their responses with what was asked for."""
    echoed = _echoed(params)
    number = 0
    async with aclosing(cast(Any, events)) as told:
        async for event in told:
            event = {**event, "sequence_number": number}
            if isinstance(event.get("response"), dict):
                event["response"] = {**echoed, **event["response"]}
            yield event_bytes(event, event=event["type"])
            number += 1


async def chat_parts(chunks: AsyncIterator[dict[str, Any]], *, include_usage: bool) -> AsyncIterator[bytes]:
    """Chat chunks on the wire; a failure on the way is the last of them."""
    started = False
    try:
        async with aclosing(cast(Any, chunks)) as told:
            async for chunk in told:
                started = True
                if not include_usage and chunk.get("usage") and not chunk.get("choices") and not chunk.get("error"):
                    continue
                yield event_bytes(chunk)
    except Problem as error:
        if not started:
            raise
        yield event_bytes({"choices": [], "error": chat_error(_as_failure(error))})
    yield DONE


async def messages_parts(events: AsyncIterator[dict[str, Any]]) -> AsyncIterator[bytes]:
    """Anthropic's events on the wire; a failure on the way is the last of them."""
    started = False
    try:
        async with aclosing(cast(Any, events)) as told:
            async for event in told:
                started = True
                yield event_bytes(event, event=event["type"])
    except Problem as error:
        if not started:
            raise
        failure = _as_failure(error)
        told_error = {"type": "api_error", "message": failure.detail, "rollout_kind": failure.rollout_kind.value}
        yield event_bytes({"type": "error", "error": told_error}, event="error")


def _as_failure(error: Problem) -> ModelFailure:
    return error if isinstance(error, ModelFailure) else ModelFailure(ErrorKind.MODEL_BAD_RESPONSE, error.detail)
