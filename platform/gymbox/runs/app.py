"""App: `/v1/runs`. Translates HTTP, decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Protocol

from fastapi import FastAPI, Header, Query, Response
from fastapi.responses import StreamingResponse
from gymbox_sandbox.wire import Strict
from pydantic import Field

from gymbox.errors import AtCapacity, Conflict, Invalid, NotFound, Unavailable
from gymbox.runs.events import AT_END, Followed, events
from gymbox.runs.view import RunView
from gymbox.serving import answers

CURSOR_HEADER = "Gymbox-Cursor"
Override = Annotated[str, Field(max_length=10_000)]


class CreateRun(Strict):
    """`POST /v1/runs`. The same id with the same settings is the same request; with others it is a conflict."""

    id: str | None = Field(None, pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,39}$")
    """Also the name of its folder, and what its rollouts' ids begin with. Default: a new one."""
    overrides: list[Override] = Field(max_length=200, examples=[["environment=counter", "model=scripted"]])
    """Settings as on the command line of `gymbox run`, within what a server lets its callers set."""


class CancelRun(Strict):
    now: bool = False
    """Drop what is under way, in place of letting it end."""


class ResumeRun(Strict):
    overrides: list[Override] = Field(default_factory=list, max_length=200)
    """Secrets that the request for the run gave, once more: a server keeps none. Also a larger budget
    (`runner.budget…`) for a run that has used up its own."""
    retry_failed: bool = False
    """Do again what has ended in an error."""


class Runs(Protocol):
    """Some runs, by id."""

    async def all(self) -> list[RunView]: ...

    def get(self, id: str) -> Followed: ...

    async def pause(self, id: str) -> RunView: ...

    async def resume(self, id: str, overrides: Sequence[str] = (), retry_failed: bool = False) -> RunView: ...

    async def cancel(self, id: str, *, now: bool) -> RunView: ...


class StartedRuns(Runs, Protocol):
    """Runs that callers can have started."""

    async def create(self, id: str | None, overrides: Sequence[str]) -> tuple[RunView, bool]: ...

    async def delete(self, id: str) -> None: ...


def add_runs(app: FastAPI, runs: Runs) -> None:
    """The routes for runs that are there."""

    @app.get("/v1/runs", tags=["runs"])
    async def list_runs() -> list[RunView]:
        """All runs, oldest first."""
        return await runs.all()

    @app.get("/v1/runs/{id}", tags=["runs"], responses=answers(NotFound))
    async def show_run(id: str) -> RunView:
        """One run: how far it is, its scores and errors."""
        return await runs.get(id).view()

    @app.get(
        "/v1/runs/{id}/events",
        tags=["runs"],
        response_class=StreamingResponse,
        responses={
            200: {"content": {"text/event-stream": {}}, "description": "Server-sent events."},
            204: {"description": "It has ended, and the client has been told all."},
            **answers(NotFound),
        },
    )
    async def follow(id: str, last_event_id: Annotated[str, Header(max_length=100)] = "") -> Response:
        """What happens, as server-sent events: `progress` (snapshots), `rollout` (one that has ended), `end`. With
        `Last-Event-ID` it goes on after that event, and no rollout is left out."""
        run = runs.get(id)
        if last_event_id.endswith(AT_END) and run.over:
            cursor = last_event_id.removesuffix(AT_END)
            try:
                place = await asyncio.to_thread(run.log.place, cursor)
                if not await asyncio.to_thread(run.log.read, place, run.size):
                    return Response(status_code=204)
            except Conflict:
                pass  # it was gone on with since
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(events(run, last_event_id), media_type="text/event-stream", headers=headers)

    @app.get(
        "/v1/runs/{id}/results",
        tags=["runs"],
        response_class=StreamingResponse,
        responses={
            200: {"content": {"application/x-ndjson": {}}, "description": "Lines of rollouts.jsonl."},
            **answers(NotFound, Conflict),
        },
    )
    async def results(
        id: str,
        after: Annotated[str, Query(max_length=100, description="cursor of the last line that is known")] = "",
        limit: Annotated[int, Query(ge=1, le=1_000_000)] = 1000,
    ) -> Response:
        """Lines of `rollouts.jsonl`, at most `limit`. The header `Gymbox-Cursor` has what to say as `after` for the
        next ones; where no line is new, it is the one that was sent. 409: the file was rewritten, begin without."""
        run = runs.get(id)
        start = await asyncio.to_thread(run.log.place, after)
        last = await asyncio.to_thread(run.log.end_of, start, run.size, limit)
        end, cursor = (start, after) if last is None else (last.end, last.cursor)

        async def parts() -> AsyncIterator[bytes]:
            at = start
            while at < end and (part := await asyncio.to_thread(run.log.part, at, end)):
                at += len(part)
                yield part

        headers = {CURSOR_HEADER: cursor} if cursor else {}
        return StreamingResponse(parts(), media_type="application/x-ndjson", headers=headers)

    @app.post("/v1/runs/{id}/pause", tags=["runs"], responses=answers(NotFound, Conflict))
    async def pause(id: str) -> RunView:
        """Start no further rollout until it is resumed; those under way go on."""
        return await runs.pause(id)

    @app.post(
        "/v1/runs/{id}/resume", tags=["runs"], responses=answers(NotFound, Conflict, Invalid, AtCapacity, Unavailable)
    )
    async def resume(id: str, request: ResumeRun | None = None) -> RunView:
        """Go on with a paused run; where a controller does runs, also with one that was interrupted or has failed."""
        asked = request or ResumeRun()
        return await runs.resume(id, asked.overrides, asked.retry_failed)

    @app.post("/v1/runs/{id}/cancel", tags=["runs"], responses=answers(NotFound, Conflict))
    async def cancel(id: str, request: CancelRun | None = None) -> RunView:
        """Start no further rollout and give those under way `runner.grace` seconds to end, or drop them `now`. What
        has ended stays, and the run can be gone on with."""
        return await runs.cancel(id, now=(request or CancelRun()).now)


def add_started_runs(app: FastAPI, runs: StartedRuns) -> None:
    """The same, and the routes to have runs started and removed."""

    @app.post(
        "/v1/runs",
        status_code=201,
        tags=["runs"],
        responses={
            200: {"model": RunView, "description": "It was there."},
            **answers(Conflict, Invalid, AtCapacity, Unavailable),
        },
    )
    async def create(request: CreateRun, response: Response) -> RunView:
        """Start a run, done by this controller with its own sandboxes. Everything is checked first: settings, rows,
        environments (422 says what is wrong). The same id and settings are the same request (200)."""
        view, made = await runs.create(request.id, request.overrides)
        response.status_code = 201 if made else 200
        return view

    add_runs(app, runs)

    @app.delete("/v1/runs/{id}", status_code=204, tags=["runs"], responses=answers(NotFound, Conflict))
    async def delete(id: str) -> None:
        """Remove a run that has ended, with its folder."""
        await runs.delete(id)
