"""Model server: the face of one model or several over HTTP, in the dialects that their callers speak."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from fastapi import FastAPI, Request
from gymbox_sandbox.hang_up import unless_hung_up
from gymbox_sandbox.responses import Response as ModelResponse
from gymbox_sandbox.responses import ResponsesParams
from starlette.responses import Response

from gymbox.errors import NotFound, nearest
from gymbox.http import HttpClient
from gymbox.models import Call, Model
from gymbox.models.direct_routes import RequestHandler, add_direct_routes
from gymbox.models.events import Event, one_terminal
from gymbox.models.face import (
    app_with,
    chat_parts,
    event_stream,
    json_answer,
    json_object,
    messages_parts,
    responses_parts,
    rollout_of,
    takes_stream,
    takes_usage,
    validated,
    whole_response,
)
from gymbox.models.response_store import ResponseStore, StoreLimits, scope_of
from gymbox.models.server_page import describe

DEFAULT = "default"
"""Name of the only model for whoever does not know it, such as a harness in a sandbox."""


class ModelServer:
    """Serves models: `/v1/responses`, `/v1/chat/completions`, `/v1/messages`, `/v1/messages/count_tokens`,
    `/v1/models`, `/healthz`.

    Answers of `/v1/responses` whose back end keeps none are kept here for a while (see `ResponseStore`): a request may
    go on from one by `previous_response_id`, and `/v1/responses/{id}` shows it and lets go of it.

    A request's `model` picks among several; it may be left out where there is one, and an unknown one is answered with
    404. With `stream: true` an answer is sent as it comes, and what fails before its first event has a status; what
    fails later is told by the dialect's own last event. A caller that hangs up ends the call at the back end.

    A failure of the model is answered with a status that makes clients repeat only what may succeed: 422 the model
    refuses the request, 429 its limit of requests, 502 it refuses this server's key or answers nonsense (not to be
    repeated), 503 it cannot be reached, 504 too slow. `rollout_kind` in the error names the kind.

    Bring your own model by writing a `Model`. To change the face instead, subclass this, override what answers a
    dialect (whole, and as a stream), or add routes in `setup_webserver`.

    Args:
        models: one, or several by the names that callers know them by.
        http: the client that the models' calls go through; the caller's, and closed by the caller.
        kept: how many answers are kept, and for how long.
    """

    def __init__(self, models: Model | Mapping[str, Model], http: HttpClient, kept: StoreLimits | None = None) -> None:
        self.store = ResponseStore(kept)
        self.models = {models.name: models} if isinstance(models, Model) else dict(models)
        self.http = http

    def model(self, name: Any) -> Model:
        """The model of this name; without one, or by the name `default`, the only model.

        Raises:
            NotFound: there is none; the nearest name is told.
        """
        if name in (None, "", DEFAULT) and name not in self.models:
            if len(self.models) == 1:
                return next(iter(self.models.values()))
            raise NotFound(f"the request names no model; known: {', '.join(self.models)}", code="model_not_found")
        found = self.models.get(name) if isinstance(name, str) else None
        if found is None:
            raise NotFound(
                f"there is no model {name!r:.200} here; {nearest(str(name), list(self.models))}",
                code="model_not_found",
            )
        return found

    async def responses(self, params: ResponsesParams, call: Call) -> ModelResponse:
        """Answer a Responses request; see `Model.responses`."""
        return await self.model(params.model).responses(params, call)

    def stream(self, params: ResponsesParams, call: Call) -> AsyncIterator[Event]:
        """Answer a Responses request as events; see `Model.stream`."""
        return self.model(params.model).stream(params, call)

    async def chat_completions(self, body: dict[str, Any], call: Call) -> dict[str, Any]:
        """Answer a Chat Completions request; see `Model.chat_completions`."""
        return await self.model(body.get("model")).chat_completions(body, call)

    def chat_stream(self, body: dict[str, Any], call: Call) -> AsyncIterator[dict[str, Any]]:
        """Answer a Chat Completions request in chunks; see `Model.chat_stream`."""
        return self.model(body.get("model")).chat_stream(body, call)

    async def messages(self, body: dict[str, Any], call: Call) -> dict[str, Any]:
        """Answer a request of Anthropic's Messages API; see `Model.messages`."""
        return await self.model(body.get("model")).messages(body, call)

    def messages_stream(self, body: dict[str, Any], call: Call) -> AsyncIterator[dict[str, Any]]:
        """Answer a request of Anthropic's Messages API as events; see `Model.messages_stream`."""
        return self.model(body.get("model")).messages_stream(body, call)

    async def count_tokens(self, body: dict[str, Any], call: Call) -> int:
        """The input tokens of a Messages request; see `Model.count_tokens`."""
        return await self.model(body.get("model")).count_tokens(body, call)

    def setup_webserver(self) -> FastAPI:
        """The app. Its lifespan opens and closes the models."""
        app = app_with(self.models.values(), f"gymbox model {', '.join(self.models)}")
        app.add_api_route("/healthz", self._healthz, methods=["GET"])
        app.add_api_route("/v1/models", self._models, methods=["GET"])
        app.add_api_route("/v1/models/{name:path}", self._model, methods=["GET"])
        app.add_api_route("/v1/responses/{response_id}", self._stored, methods=["GET"])
        app.add_api_route("/v1/responses/{response_id}", self._forget, methods=["DELETE"])
        routes: dict[str, RequestHandler] = {
            "/v1/responses": self._responses,
            "/v1/chat/completions": self._chat,
            "/v1/messages": self._messages,
            "/v1/messages/count_tokens": self._count_tokens,
        }
        add_direct_routes(app, routes)
        describe(app)
        return app

    async def _healthz(self) -> dict[str, Any]:
        names = list(self.models)
        return {"status": "ok", "model": names[0], **({"models": names} if len(names) > 1 else {})}

    async def _models(self) -> dict[str, Any]:
        served = [_served(name) for name in self.models]
        # also what Anthropic's clients look for
        ends = {"first_id": served[0]["id"], "last_id": served[-1]["id"], "has_more": False}
        return {"object": "list", "data": served, **ends}

    async def _model(self, name: str) -> dict[str, Any]:
        self.model(name)
        return _served(name)

    async def _responses(self, request: Request) -> Response:
        body = await json_object(request)
        params = validated(ResponsesParams, body)
        model, call = self.model(params.model), self._call(request)
        kept = None if model.has_store else self.store.continued(_scope(request), body.get("input"), params)
        params = params if kept is None else kept.params
        if params.stream:
            events = one_terminal(self.stream(params, call), model.name, of_request=True)
            events = events if kept is None else kept.seen(events)
            return await event_stream(request.receive, responses_parts(events, params))
        response = await unless_hung_up(request.receive, self.responses(params, call))
        answer = whole_response(response, params)
        return json_answer(answer if kept is None else kept.answered(answer))

    async def _stored(self, request: Request, response_id: str) -> Response:
        return Response(self.store.answer(_scope(request), response_id), media_type="application/json")

    async def _forget(self, request: Request, response_id: str) -> dict[str, Any]:
        self.store.forget(_scope(request), response_id)
        return {"id": response_id, "object": "response", "deleted": True}

    async def _chat(self, request: Request) -> Response:
        body = await json_object(request)
        self.model(body.get("model"))
        call, include_usage = self._call(request), takes_usage(body)
        if not takes_stream(body):
            return json_answer(await unless_hung_up(request.receive, self.chat_completions(body, call)))
        chunks = self.chat_stream(body, call)
        return await event_stream(request.receive, chat_parts(chunks, include_usage=include_usage))

    async def _messages(self, request: Request) -> Response:
        body = await json_object(request)
        self.model(body.get("model"))
        call = self._call(request)
        if not takes_stream(body):
            return json_answer(await unless_hung_up(request.receive, self.messages(body, call)))
        return await event_stream(request.receive, messages_parts(self.messages_stream(body, call)))

    async def _count_tokens(self, request: Request) -> Response:
        body = await json_object(request)
        self.model(body.get("model"))
        count = await unless_hung_up(request.receive, self.count_tokens(body, self._call(request)))
        return json_answer({"input_tokens": count})

    def _call(self, request: Request) -> Call:
        return Call(http=self.http, rollout=rollout_of(request))


def _scope(request: Request) -> str:
    headers = request.headers
    return scope_of(headers.get("Authorization", ""), headers.get("x-api-key", ""), rollout_of(request))


def _served(name: str) -> dict[str, Any]:
    of_anthropic = {"type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}
    return {"id": name, "object": "model", "created": 0, "owned_by": "gymbox", **of_anthropic}
