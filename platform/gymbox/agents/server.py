"""Agent server: an agent's face over HTTP, for trainers and clients that drive rollouts from elsewhere."""

from __future__ import annotations

import re
import uuid
from typing import Any

from fastapi import FastAPI, Request
from gymbox_sandbox.hang_up import unless_hung_up
from gymbox_sandbox.lifecycle import ID_PATTERN, ROLLOUT_HEADER
from gymbox_sandbox.responses import Response as AgentResponse
from gymbox_sandbox.responses import ResponsesParams
from gymbox_sandbox.tasks import Task
from starlette.responses import JSONResponse, Response

from gymbox.agents import Agent
from gymbox.agents.outcome import outcome_of
from gymbox.environment import Catalog, Environment
from gymbox.errors import ConfigError, Invalid, NotFound
from gymbox.http import HttpClient
from gymbox.models import BoundModel, Model
from gymbox.models.events import one_by_one, replayed
from gymbox.models.face import (
    app_with,
    event_stream,
    json_answer,
    json_object,
    responses_parts,
    validated,
    whole_response,
)
from gymbox.models.rollout_paths import RolloutPaths
from gymbox.rollout import RolloutController, RolloutResult, run_rollout


class AgentServer:
    """Serves an agent with its model: `/run`, `/v1/responses`, `/healthz`.

    `POST /run` takes a row and answers with the row, `response`, `reward` and what else a rollout's record has; a
    rollout that failed has `reward: null` and an `error`. An agent with skills says which, as `skills_ref`.
    `POST /v1/responses` lets the agent answer Responses params with the tools of a fresh sandbox, and does not score;
    a failure of the model is answered as `ModelServer` does. Both take `?environment=NAME`; without it, a row's own
    `environment` counts if it is a text, and then the server's default. A caller that hangs up cancels its rollout,
    and the sandbox is deleted.

    Subclass it to serve another face: override `run` or `responses`, or add routes in `setup_webserver`.

    Args:
        environment: name of the default environment.
        http: the client that the model's calls go through; the caller's, and closed by the caller.
    """

    def __init__(
        self,
        agent: Agent,
        model: Model,
        controller: RolloutController,
        catalog: Catalog,
        http: HttpClient,
        *,
        environment: str | None = None,
    ) -> None:
        self.agent = agent
        self.model = model
        self.controller = controller
        self.catalog = catalog
        self.http = http
        self.environment = environment

    async def run(self, row: dict[str, Any], environment: Environment, rollout: str) -> RolloutResult:
        """Take one row all the way; see `run_rollout`."""
        return await run_rollout(row, environment, self.agent, self.model, self.controller, self.http, rollout)

    async def responses(self, params: ResponsesParams, environment: Environment, rollout: str) -> AgentResponse:
        """The agent's answer to params, with the tools of a sandbox that lives as long as the call.

        Raises:
            Problem: the sandbox did not start, or the model gave no usable answer.
        """
        row = {"id": rollout, "responses_create_params": params.dump()}
        async with self.controller.sandbox(environment, id=rollout) as sandbox:
            await sandbox.reset(row)
            bound = BoundModel(self.model, self.http, rollout=rollout)
            try:
                return await outcome_of(self.agent, Task.model_validate(row), bound, sandbox.tools)
            finally:
                await bound.close()

    def setup_webserver(self) -> FastAPI:
        """The app. Its lifespan opens and closes the model."""
        app = app_with([self.model], f"gymbox agent {type(self.agent).__name__}")
        app.add_middleware(RolloutPaths)
        app.add_api_route("/healthz", self._healthz, methods=["GET"])
        app.add_api_route("/run", self._run, methods=["POST"], response_model=None)
        app.add_api_route("/v1/responses", self._responses, methods=["POST"], response_model=None)
        return app

    async def _healthz(self) -> dict[str, str]:
        return {"status": "ok", "agent": type(self.agent).__name__, "model": self.model.name}

    async def _run(self, request: Request) -> Response:
        row = await json_object(request)
        validated(Task, row)
        environment = self._environment(request, row.get("environment"))
        work = self.run(row, environment, _rollout(request))
        result = await unless_hung_up(request.receive, work)
        told = {"skills_ref": self.agent.skills.ref} if self.agent.skills else {}
        record = result.model_dump(mode="json", exclude={"response"})
        return JSONResponse({**row, **told, **record, **_response(result)})

    async def _responses(self, request: Request) -> Response:
        params = validated(ResponsesParams, await json_object(request))
        work = self.responses(params, self._environment(request), _rollout(request))
        answer = whole_response(await unless_hung_up(request.receive, work), params)
        if not params.stream:
            return json_answer(answer)
        # what an agent does is told once it is done
        return await event_stream(request.receive, responses_parts(one_by_one(replayed(answer)), params))

    def _environment(self, request: Request, of_row: Any = None) -> Environment:
        named = of_row if isinstance(of_row, str) else None
        name = request.query_params.get("environment") or named or self.environment
        if name is None:
            raise Invalid("say which environment: ?environment=NAME, or `environment` in the row")
        try:
            return self.catalog[name]
        except ConfigError as error:
            raise NotFound(str(error)) from error


def _rollout(request: Request) -> str:
    """The caller's id, so that a retry is the same request, or a fresh one.

    Raises:
        Invalid: it can be no sandbox's id.
    """
    given = request.headers.get(ROLLOUT_HEADER)
    if given and not re.fullmatch(ID_PATTERN, given):
        raise Invalid(
            f"{ROLLOUT_HEADER}: {given!r:.60} can be no sandbox's id: up to 100 of A-Z a-z 0-9 . _ -, the first of "
            "them a letter or digit"
        )
    return given or f"run-{uuid.uuid4().hex}"


def _response(result: RolloutResult) -> dict[str, Any]:
    return {"response": None if result.response is None else result.response.dump()}
