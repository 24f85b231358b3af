"""Model server: a model's face over HTTP, in the dialects that its callers speak."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from gymbox_sandbox.hang_up import unless_hung_up
from gymbox_sandbox.lifecycle import ROLLOUT_HEADER
from gymbox_sandbox.responses import Response as ModelResponse
from gymbox_sandbox.responses import ResponsesParams
from starlette.responses import Response

from gymbox.errors import NotFound, nearest
from gymbox.http import HttpClient
from gymbox.models import Call, Model
from gymbox.models.direct_routes import add_direct_routes
from gymbox.models.face import app_with, event_stream, json_answer, json_object, validated, whole_response
from gymbox.models.streams import chat_events, responses_events


class ModelServer:
    """Serves a model: `/v1/responses`, `/v1/chat/completions`, `/v1/models`, `/healthz`.

    A caller may name the served model or leave `model` out; another name is answered with 404. With `stream: true` the
    finished answer is replayed as events (see `streams`). A caller that hangs up cancels the call behind it.

    A failure of the model is answered with a status that makes clients repeat only what may succeed: 422 the model
    refuses the request, 429 its limit of requests, 502 it refuses this server's key or answers nonsense (not to be
    repeated), 503 it cannot be reached, 504 too slow. `rollout_kind` in the body names the kind.

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
        app = app_with(self.model, f"gymbox model {self.model.name}")
        app.add_api_route("/healthz", self._healthz, methods=["GET"])
        app.add_api_route("/v1/models", self._models, methods=["GET"])
        add_direct_routes(app, {"/v1/responses": self._responses, "/v1/chat/completions": self._chat})
        return app

    async def _healthz(self) -> dict[str, str]:
        return {"status": "ok", "model": self.model.name}

    async def _models(self) -> dict[str, Any]:
        served = {"id": self.model.name, "object": "model", "created": 0, "owned_by": "gymbox"}
        return {"object": "list", "data": [served]}

    async def _responses(self, request: Request) -> Response:
        params = validated(ResponsesParams, await self._body(request))
        response = await unless_hung_up(request.receive, self.responses(params, self._call(request)))
        answer = whole_response(response, params)
        return event_stream(responses_events(answer)) if params.stream else json_answer(answer)

    async def _chat(self, request: Request) -> Response:
        body = await self._body(request)
        stream = body.pop("stream", None)
        options = body.pop("stream_options", None) or {}
        answer = await unless_hung_up(request.receive, self.chat_completions(body, self._call(request)))
        if not stream:
            return json_answer(answer)
        return event_stream(chat_events(answer, include_usage=bool(options.get("include_usage"))))

    async def _body(self, request: Request) -> dict[str, Any]:
        body = await json_object(request)
        named = body.get("model")
        if named not in (None, "", self.model.name):
            raise NotFound(f"there is no model {named!r} here; {nearest(str(named), [self.model.name])}")
        return body

    def _call(self, request: Request) -> Call:
        return Call(http=self.http, rollout=request.headers.get(ROLLOUT_HEADER, ""))
