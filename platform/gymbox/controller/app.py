"""App: the controller's REST API. Translates HTTP, decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request, Response
from gymbox_sandbox import __version__
from gymbox_sandbox.hang_up import unless_hung_up
from gymbox_sandbox.lifecycle import (
    CreateGroup,
    CreateSandbox,
    Forecast,
    GroupView,
    PoolSettings,
    PoolView,
    QueueView,
    RenewSandbox,
    SandboxStatus,
    SandboxView,
)
from pydantic import AfterValidator

from gymbox.controller.environments import environment_view
from gymbox.controller.metrics import CONTENT_TYPE
from gymbox.controller.sandboxes import Sandboxes
from gymbox.controller.snapshot_routes import add_snapshots
from gymbox.environment import Catalog, EnvironmentView, Manifest
from gymbox.errors import AtCapacity, ConfigError, Conflict, Gone, Invalid, NotFound, Unavailable
from gymbox.network import Traffic
from gymbox.serving import answers, new_app

LONGEST_WAIT = 60.0
"""Seconds that a client may wait in one request for a sandbox to end."""


def _is_pair(label: str) -> str:
    if "=" not in label:
        raise ValueError(f"{label!r:.100} is no label: write it as name=value")
    return label


LabelPair = Annotated[str, AfterValidator(_is_pair)]


def controller_app(sandboxes: Sandboxes, catalog: Catalog) -> FastAPI:
    """The API over `sandboxes`. Every path but /healthz, /readyz and /docs needs the admin token: see `Guard`."""
    app = new_app(
        "gymbox controller",
        version=__version__,
        description="Creates, shows, renews and deletes sandboxes. Tools and verify are called through the proxy.",
    )
    _add_sandboxes(app, sandboxes)
    add_snapshots(app, sandboxes)
    _add_groups(app, sandboxes)
    _add_pools(app, sandboxes)
    _add_environments(app, catalog, sandboxes)

    @app.get("/healthz", tags=["controller"])
    async def healthz() -> dict[str, str]:
        """The process lives."""
        return {"status": "ok", "version": __version__}

    @app.get("/readyz", tags=["controller"], responses=answers(Unavailable))
    async def readyz() -> dict[str, str]:
        """It takes new sandboxes (503 while it shuts down)."""
        if sandboxes.draining:
            raise Unavailable("this controller is shutting down")
        return {"status": "ok"}

    @app.get("/proxy", tags=["controller"])
    async def proxy() -> dict[str, str | None]:
        """Where sandboxes, models and agents are reached: the proxy's address."""
        return {"url": sandboxes.proxy_url}

    @app.get("/metrics", tags=["controller"], response_class=Response)
    async def metrics() -> Response:
        """Counts and timings for Prometheus."""
        return Response(sandboxes.metrics.text(), media_type=CONTENT_TYPE)

    return app


def _add_sandboxes(app: FastAPI, sandboxes: Sandboxes) -> None:
    refusals = answers(NotFound, Conflict, Gone, AtCapacity, Unavailable)

    @app.post("/sandboxes", status_code=201, tags=["sandboxes"], responses={202: {"model": SandboxView}, **refusals})
    async def create(request: CreateSandbox, response: Response, raw: Request) -> SandboxView:
        """Create a sandbox. The same id and body is the same request and gives the same sandbox; another body is a
        conflict (409); the id of a sandbox that has ended is gone (410), unless its start had failed. While all places
        are taken it stands in line for `patience` seconds, fair between runs; who hangs up leaves the line."""
        view = sandboxes.views.of(await unless_hung_up(raw.receive, sandboxes.create(request)))
        response.status_code = 201 if view.status == "ready" else 202
        return view

    @app.get("/queue", tags=["sandboxes"])
    async def queue() -> list[QueueView]:
        """The runs that have places or wait for them: how many, with which priority and share, and where the first of
        those that wait stands, with the seconds that it may expect to wait."""
        return list(sandboxes.arrivals.view())

    @app.get("/sandboxes", tags=["sandboxes"])
    async def list_all(
        environment: str | None = None,
        status: SandboxStatus | None = None,
        label: Annotated[list[LabelPair], Query(description="`name=value`; all must match")] = [],  # noqa: B006
    ) -> list[SandboxView]:
        """All sandboxes, without their tokens; ended ones while they are remembered."""
        found = sandboxes.all()
        await sandboxes.views.learn_resets(found)
        views = [sandboxes.views.of(sandbox, tokens=False) for sandbox in found]
        wanted = dict(pair.partition("=")[::2] for pair in label)
        return [
            view
            for view in views
            if environment in (None, view.environment)
            and status in (None, view.status)
            and wanted.items() <= view.labels.items()
        ]

    @app.get("/sandboxes/{id}", tags=["sandboxes"], responses=answers(NotFound))
    async def show(id: str, wait_ended: Annotated[float, Query(ge=0, le=LONGEST_WAIT)] = 0) -> SandboxView:
        """One sandbox. `wait_ended` seconds are given to it to end: for who lost the connection and asks why."""
        sandbox = sandboxes.get(id)
        if wait_ended:
            await _at_most(wait_ended, sandbox.over.wait)
        await sandboxes.views.learn_resets([sandbox])
        return sandboxes.views.of(sandbox)

    @app.delete("/sandboxes/{id}", status_code=204, tags=["sandboxes"], responses=answers(NotFound))
    async def delete(id: str) -> None:
        """Delete a sandbox; one that has ended already is fine."""
        await sandboxes.delete(id)

    @app.post("/sandboxes/{id}/renew", tags=["sandboxes"], responses=answers(NotFound, Gone))
    async def renew(id: str, request: RenewSandbox) -> SandboxView:
        """Let it live for another lease."""
        sandbox = sandboxes.renew(id, request.lease)
        await sandboxes.views.learn_resets([sandbox])
        return sandboxes.views.of(sandbox)

    @app.get("/sandboxes/{id}/network", tags=["sandboxes"], responses=answers(NotFound))
    async def network(id: str) -> Traffic:
        """What its network policy let through and refused so far, for all sandboxes that share its container."""
        return sandboxes.ways_out.traffic(sandboxes.get(id))

    @app.get("/sandboxes/{id}/logs", tags=["sandboxes"], response_class=Response, responses=answers(NotFound))
    async def logs(id: str, tail: Annotated[int, Query(ge=1, le=10_000)] = 100) -> Response:
        """The last lines that its container printed."""
        return Response(await sandboxes.views.logs(sandboxes.get(id), tail), media_type="text/plain; charset=utf-8")


def _add_groups(app: FastAPI, sandboxes: Sandboxes) -> None:
    refusals = answers(NotFound, Conflict, Gone, AtCapacity, Unavailable)

    @app.post(
        "/sandboxes:group", status_code=201, tags=["sandboxes"], responses={202: {"model": GroupView}, **refusals}
    )
    async def create_group(request: CreateGroup, response: Response, raw: Request) -> GroupView:
        """Create `n` identical sandboxes, all or none: their places are given at once, and if one does not become
        ready all are removed. Ids, waiting and refusals are as of one sandbox."""
        group = await unless_hung_up(raw.receive, sandboxes.groups.create(request))
        view = sandboxes.groups.view(group)
        response.status_code = 201 if all(one.status == "ready" for one in view.sandboxes) else 202
        return view

    @app.get("/sandboxes:group/{id}", tags=["sandboxes"], responses=answers(NotFound))
    async def show_group(id: str) -> GroupView:
        """A group of which at least one sandbox lives."""
        group = sandboxes.groups.get(id)
        await sandboxes.views.learn_resets(group.sandboxes)
        return sandboxes.groups.view(group)

    @app.delete("/sandboxes:group/{id}", status_code=204, tags=["sandboxes"], responses=answers(NotFound))
    async def delete_group(id: str) -> None:
        """Delete all sandboxes of a group that are left."""
        await sandboxes.groups.delete(id)


def _add_pools(app: FastAPI, sandboxes: Sandboxes) -> None:
    @app.get("/pools", tags=["pools"])
    async def pools() -> list[PoolView]:
        """How many started containers of which environments wait for requests, and why so many."""
        return sandboxes.pools.views()

    @app.put("/pools/{environment}", tags=["pools"], responses=answers(NotFound, Unavailable))
    async def put_pool(environment: str, request: PoolSettings) -> PoolView:
        """Keep so many, from now on and after a restart, too; a target and ceiling of 0 ends it."""
        try:
            return sandboxes.pools.put(environment, request)
        except OSError as error:
            raise Unavailable(f"the controller's state cannot be written: {error}") from error

    @app.put("/pools/{environment}/forecasts/{run}", status_code=204, tags=["pools"], responses=answers(NotFound))
    async def forecast(
        environment: str, run: Annotated[str, Path(pattern=r"^[A-Za-z0-9._-]{1,100}$")], request: Forecast
    ) -> None:
        """Tell how many sandboxes a run will still ask for; the environment's pool, where it has one, prepares."""
        sandboxes.pools.forecast(environment, run, request)


def _add_environments(app: FastAPI, catalog: Catalog, sandboxes: Sandboxes) -> None:
    @app.get("/environments", tags=["environments"])
    async def environments() -> list[Manifest]:
        """What sandboxes can be made of; an environment whose manifest is wrong is left out."""
        found = []
        for name in catalog.names():
            try:
                found.append(catalog[name].manifest)
            except ConfigError:
                continue
        return found

    @app.get("/environments/{name}", tags=["environments"], responses=answers(NotFound, Invalid, Unavailable))
    async def environment(
        name: str, prepare: Annotated[bool, Query(description="make its image first, where it is missing")] = False
    ) -> EnvironmentView:
        """One environment's manifest, and what its sandboxes are made with here. With `prepare` it may take minutes,
        and an image that does not build is refused with 422 and the failing step's log."""
        try:
            found = catalog[name]
        except ConfigError as error:
            raise NotFound(str(error)) from error
        return await environment_view(found, sandboxes.provider, prepare=prepare)


async def _at_most(seconds: float, wait: Callable[[], Any]) -> None:
    try:
        async with asyncio.timeout(seconds):
            await wait()
    except TimeoutError:
        pass  # it has not happened: the caller is shown how things are
