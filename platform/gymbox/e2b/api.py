"""Api: E2B's REST routes for the life of sandboxes, each a translation and nothing more."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, unquote

from gymbox_sandbox.lifecycle import SandboxView
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gymbox.e2b.messages import (
    Connection,
    Forking,
    Life,
    NewSandbox,
    Pausing,
    Refresh,
    Snapshotting,
    read,
)
from gymbox.e2b.refusals import Unserved
from gymbox.e2b.rpc import body_of
from gymbox.e2b.sandboxes import Sandbox, Sandboxes
from gymbox.errors import Invalid

MOST = 1 << 20
"""Bytes of a body."""
PAGE = 100
"""Entries of a page, at most and by default."""
ENVD = "0.6.4"
"""The version of E2B's server in its sandboxes whose answers those here are like."""
CLIENT = "gymbox"
NEXT = "X-Next-Token"


def api_routes(sandboxes: Sandboxes, check: Callable[[Request], None]) -> list[Route]:
    """The routes.

    Args:
        check: raises Unauthorized for a request that does not bring the key.
    """

    async def create(request: Request) -> Response:
        wanted = read(NewSandbox, await body_of(request, MOST))
        sandbox = await sandboxes.create(wanted, request.headers.get("idempotency-key"))
        return JSONResponse(_created(sandbox), 201)

    async def listed(request: Request) -> Response:
        return _page(request, await sandboxes.all())

    async def shown(request: Request) -> Response:
        sandbox, view = await sandboxes.get(_id(request))
        network = {} if view.network not in ("none", "open") else {"allowInternetAccess": view.network == "open"}
        life = {"lifecycle": {"autoResume": False, "onTimeout": "kill"}}
        return JSONResponse(_info(sandbox, view) | network | life | {"envdAccessToken": sandbox.token})

    async def delete(request: Request) -> Response:
        await sandboxes.delete(_id(request))
        return Response(status_code=204)

    async def connect(request: Request) -> Response:
        wanted = read(Connection, await body_of(request, MOST))
        if not wanted.memory:
            raise Unserved('on_resume="reboot" is not served here: a paused sandbox goes on where it was')
        sandbox, resumed = await sandboxes.connect(_id(request), wanted.timeout)
        return JSONResponse(_created(sandbox), 201 if resumed else 200)

    async def timeout(request: Request) -> Response:
        await sandboxes.renew(_id(request), read(Life, await body_of(request, MOST)).timeout)
        return Response(status_code=204)

    async def refresh(request: Request) -> Response:
        await sandboxes.renew(_id(request), read(Refresh, await body_of(request, MOST)).duration)
        return Response(status_code=204)

    async def pause(request: Request) -> Response:
        if not read(Pausing, await body_of(request, MOST)).memory:
            raise Unserved('pause(mode="filesystem") is not served here: a paused sandbox keeps its processes')
        await sandboxes.pause(_id(request))
        return Response(status_code=204)

    async def snapshot(request: Request) -> Response:
        wanted = read(Snapshotting, await body_of(request, MOST))
        if wanted.memory:
            raise Unserved('create_snapshot(mode="full") is not served here: a snapshot holds files, no processes')
        saved = await sandboxes.snapshot(_id(request), wanted.name)
        return JSONResponse({"snapshotID": saved.id, "names": [saved.id]}, 201)

    async def fork(request: Request) -> Response:
        wanted = read(Forking, await body_of(request, MOST))
        forked = await sandboxes.fork(_id(request), wanted.count, wanted.timeout)
        return JSONResponse([{"sandbox": _created(sandbox)} for sandbox in forked], 201)

    async def snapshots(request: Request) -> Response:
        query = request.query_params
        found = [
            {"snapshotID": snapshot.id, "names": [snapshot.id]}
            for snapshot in await sandboxes.snapshots()
            if query.get("sandboxID") in (None, snapshot.sandbox) and query.get("name") in (None, snapshot.id)
        ]
        return _cut(request, found, "snapshotID")

    async def delete_snapshot(request: Request) -> Response:
        await sandboxes.delete_snapshot(_id(request))
        return Response(status_code=204)

    def route(method: str, path: str, handle: Callable[[Request], Any]) -> Route:
        async def checked(request: Request) -> Response:
            check(request)
            answer: Response = await handle(request)
            return answer

        return Route(path, checked, methods=[method])

    return [
        route("POST", "/v2/sandboxes", create),
        route("GET", "/v2/sandboxes", listed),
        route("GET", "/sandboxes/{id}", shown),
        route("DELETE", "/sandboxes/{id}", delete),
        route("POST", "/v2/sandboxes/{id}/connect", connect),
        route("POST", "/sandboxes/{id}/timeout", timeout),
        route("POST", "/sandboxes/{id}/refreshes", refresh),
        route("POST", "/sandboxes/{id}/pause", pause),
        route("POST", "/sandboxes/{id}/snapshots", snapshot),
        route("POST", "/sandboxes/{id}/fork", fork),
        route("GET", "/snapshots", snapshots),
        route("DELETE", "/templates/{id}", delete_snapshot),
    ]


def _id(request: Request) -> str:
    id: str = request.path_params["id"]
    return id


def _created(sandbox: Sandbox) -> dict[str, Any]:
    return {
        "sandboxID": sandbox.id,
        "templateID": sandbox.request.template_id,
        "alias": sandbox.request.template_id,
        "clientID": CLIENT,
        "envdVersion": ENVD,
        "envdAccessToken": sandbox.token,
    }


def _info(sandbox: Sandbox, view: SandboxView) -> dict[str, Any]:
    limits = sandbox.environment.limits
    return {
        "sandboxID": sandbox.id,
        "templateID": sandbox.request.template_id,
        "alias": sandbox.request.template_id,
        "clientID": CLIENT,
        "envdVersion": ENVD,
        "startedAt": _time(view.created_at),
        "endAt": _time(view.expires_at),
        "state": "paused" if view.status == "paused" else "running",
        "cpuCount": math.ceil(limits.cpus),
        "memoryMB": limits.memory_mb,
        "diskSizeMB": limits.workspace_mb,
        "metadata": sandbox.request.metadata,
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _page(request: Request, found: list[tuple[Sandbox, SandboxView]]) -> Response:
    """Those that the query asks for, the newest first."""
    query = request.query_params
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise Invalid(f"order is asc or desc, not {order!r:.40}")
    states = query["state"].split(",") if "state" in query else ["running", "paused"]
    # the SDK quotes keys and values before it quotes the whole
    metadata = {unquote(name): unquote(value) for name, value in parse_qsl(query.get("metadata", ""))}
    after = _moment(query["startedAfter"]) if "startedAfter" in query else 0
    template = query.get("template")
    found.sort(key=lambda each: (each[1].created_at, each[0].id), reverse=order == "desc")
    infos = [
        info
        for sandbox, view in found
        if (info := _info(sandbox, view))["state"] in states
        and metadata.items() <= sandbox.request.metadata.items()
        and _microseconds(view.created_at) >= after
        and template in (None, sandbox.request.template_id)
    ]
    return _cut(request, infos, "sandboxID")


def _cut(request: Request, found: list[dict[str, Any]], name: str) -> Response:
    """One page of what was found; the header names the last one on it where there are more."""
    text, after = request.query_params.get("limit", str(PAGE)), request.query_params.get("nextToken")
    if not (text.isascii() and text.isdecimal() and int(text[:9]) > 0):
        raise Invalid(f"limit is a number from 1 on, not {text!r:.40}")
    limit = min(int(text[:9]), PAGE)
    ids = [entry[name] for entry in found]
    if after is not None and after not in ids:
        raise Invalid("the page's token is not known any more: begin anew")
    begin = ids.index(after) + 1 if after is not None else 0
    end = begin + limit
    headers = {NEXT: ids[end - 1]} if end < len(ids) else {}
    return JSONResponse(found[begin:end], headers=headers)


def _microseconds(seconds: float) -> int:
    """As exact as it is told."""
    return round(datetime.fromtimestamp(seconds, UTC).timestamp() * 1e6)


def _moment(text: str) -> int:
    try:
        return _microseconds(datetime.fromisoformat(text).timestamp())
    except ValueError as error:
        raise Invalid(f"startedAfter is no time: {text!r:.60}") from error
