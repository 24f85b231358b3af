"""App: the routes of a sandbox's server (the table in wire.py), each a translation and nothing more."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from gymbox_sandbox import __version__
from gymbox_sandbox.bodies import MOST, MOST_OF_A_TOOL, read, read_as
from gymbox_sandbox.options import Options
from gymbox_sandbox.problems import MEDIA_TYPE, Internal, Invalid, Problem, of_status
from gymbox_sandbox.resources import ResourcesServer
from gymbox_sandbox.sessions import AgentCommands, Sessions
from gymbox_sandbox.tasks import Verdict
from gymbox_sandbox.wire import JUDGE_HEADER, SESSION_HEADER, Health, ResetRequest, SessionsEnd, VerifyRequest

if TYPE_CHECKING:
    from gymbox_sandbox.snapshots import Snapshots

log = logging.getLogger(__name__)


def build(
    server: type[ResourcesServer], options: Options, commands: AgentCommands, routes: Sequence[BaseRoute] = ()
) -> Starlette:
    """The app that serves `server`; `routes` are those of commands and files.

    Raises:
        Invalid: the server brings an app of its own, but is to serve several sessions.
    """
    sessions = Sessions(server, options, commands)
    saving: list[Snapshots] = []

    def snapshots() -> Snapshots:
        from gymbox_sandbox.snapshots import Snapshots  # which few sandboxes need

        if not saving:
            saving.append(Snapshots(sessions, commands, options))
        return saving[0]

    async def healthz(_: Request) -> Response:
        alive, loaded = len(sessions.names()), saving[0].loaded if saving else ""
        return _answer(Health(environment=options.name, version=__version__, sessions=alive, snapshot=loaded))

    async def tools(request: Request) -> Response:
        return JSONResponse({"tools": sessions.tool_definitions(_session(request))})

    async def call_tool(request: Request) -> Response:
        session = sessions[_session(request)]
        return _answer(await session.call_tool(request.path_params["name"], await read(request, MOST_OF_A_TOOL)))

    async def reset(request: Request) -> Response:
        body = await read_as(ResetRequest, request)
        return _answer(await sessions.open(_session(request)).reset(body.task))

    async def verify(request: Request) -> Response:
        session, can_ask = sessions[_session(request)], JUDGE_HEADER in request.headers
        return _verdict(await session.verify(lambda: read_as(VerifyRequest, request), can_ask=can_ask))

    async def answers(request: Request) -> Response:
        session = sessions[_session(request)]
        return _verdict(await session.answer_judge(await read(request, MOST)))

    async def save(request: Request) -> Response:
        from gymbox_sandbox.saved import SaveRequest

        body = await read_as(SaveRequest, request)
        # shielded: the agent must not be left standing still by who hangs up
        return _answer(await asyncio.shield(snapshots().save(body)))

    async def load(request: Request) -> Response:
        from gymbox_sandbox.saved import LoadRequest

        body = await read_as(LoadRequest, request)
        await asyncio.shield(snapshots().load(body))
        return JSONResponse({})

    async def list_sessions(request: Request) -> Response:
        # through the proxy each sees its own; only the controller, which calls for none, sees all
        own = request.headers.get(SESSION_HEADER)
        names = [name for name in sessions.names() if own in (None, name)]
        resets = {name: ago for name, ago in sessions.resets().items() if own in (None, name)}
        return JSONResponse({"sessions": names, "resets": resets})

    async def end_sessions(request: Request) -> Response:
        own = request.headers.get(SESSION_HEADER)
        for name in (await read_as(SessionsEnd, request)).sessions:
            if own in (None, name):
                sessions.close(name)
        return Response(status_code=204)

    handlers: dict[Any, Any] = {Problem: _problem, HTTPException: _http_exception, Exception: _bug}
    own: list[BaseRoute] = []
    if server.setup_webserver is not ResourcesServer.setup_webserver:
        if options.max_sessions > 1:
            raise Invalid(f"{server.__name__} has routes of its own, which need a sandbox for each task (sessions: 1)")
        # there is one instance for good, since the author's routes are bound to it
        session = sessions.open("")
        author_app = session.instance.setup_webserver()
        for kind, handler in handlers.items():
            author_app.exception_handlers.setdefault(kind, handler)
        own.append(Mount("/", app=author_app, middleware=[Middleware(lambda app: partial(session.answer, app))]))
    return Starlette(
        routes=[
            Route("/healthz", healthz),
            Route("/tools", tools),
            Route("/tools/{name}", call_tool, methods=["POST"]),
            Route("/reset", reset, methods=["POST"]),
            Route("/seed_session", reset, methods=["POST"]),
            Route("/verify", verify, methods=["POST"]),
            Route("/verify/answers", answers, methods=["POST"]),
            Route("/snapshot/save", save, methods=["POST"]),
            Route("/snapshot/load", load, methods=["POST"]),
            Route("/sessions", list_sessions),
            Route("/sessions", end_sessions, methods=["DELETE"]),
            *routes,
            *own,
        ],
        exception_handlers=handlers,
    )


def _session(request: Request) -> str:
    return request.headers.get(SESSION_HEADER, "")


def _answer(model: BaseModel) -> Response:
    return Response(model.model_dump_json(), media_type="application/json")


def _verdict(found: Verdict | list[dict[str, Any]]) -> Response:
    return JSONResponse({"questions": found}, 202) if isinstance(found, list) else _answer(found)


async def _problem(_: Request, problem: Any) -> Response:
    headers = {} if problem.retry_after is None else {"Retry-After": str(math.ceil(problem.retry_after))}
    return JSONResponse(problem.to_wire(), problem.status, headers, MEDIA_TYPE)


async def _http_exception(request: Request, error: Any) -> Response:
    problem = of_status(error.status_code)(f"{request.method} {request.url.path}: {error.detail}")
    body = problem.to_wire() | {"status": error.status_code}
    return JSONResponse(body, error.status_code, error.headers, MEDIA_TYPE)


async def _bug(request: Request, error: Exception) -> Response:
    log.error("%s %s raised", request.method, request.url.path, exc_info=error)
    return await _problem(request, Internal(f"{type(error).__name__}: {error}"))
