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
from starlette.types import Message, Receive, Scope, Send

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


class App(Starlette):
    """A Starlette that raises nothing whose answer is complete, and answers where it has not begun to.

    Starlette answers what is raised in it and then raises it again, on which uvicorn closes the connection: a caller
    that keeps it for its next request would find it reset. What is raised in the middle of an answer is raised on,
    since to close the connection is the only way left to say that there is no more.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As Starlette's."""
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        begun = complete = False

        async def watched(message: Message) -> None:
            nonlocal begun, complete
            begun = True
            await send(message)
            complete = message["type"] == "http.response.body" and not message.get("more_body", False)

        try:
            await super().__call__(scope, receive, watched)
        except (Exception, SystemExit) as error:
            log.error("%s %s raised", scope["method"], scope["path"], exc_info=error)
            if begun and not complete:
                raise
            if not begun:
                answer = await _bug(Request(scope), error)
                await answer(scope, receive, send)


def build(
    server: type[ResourcesServer], options: Options, commands: AgentCommands, routes: Sequence[BaseRoute] = ()
) -> App:
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

    async def prepare(request: Request) -> Response:
        await sessions[_session(request)].finish()
        return Response(status_code=204)

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
                sessions.close(name, by_itself=own is not None)
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
    return App(
        routes=[
            Route("/healthz", healthz),
            Route("/tools", tools),
            Route("/tools/{name}", call_tool, methods=["POST"]),
            Route("/reset", reset, methods=["POST"]),
            Route("/seed_session", reset, methods=["POST"]),
            Route("/verify/prepare", prepare, methods=["POST"]),
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


async def _bug(request: Request, error: BaseException) -> Response:
    # logged once, by App: Starlette raises it again
    return await _problem(request, Internal(f"{type(error).__name__}: {error}"))
