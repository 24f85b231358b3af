"""Snapshot routes: snapshots, forks and pauses over the REST API. Translates HTTP, decides nothing."""

from __future__ import annotations

from fastapi import FastAPI
from gymbox_sandbox.lifecycle import ForkSandbox, SandboxView, SnapshotSandbox, SnapshotView

from gymbox.controller.sandboxes import Sandboxes
from gymbox.errors import AtCapacity, Conflict, Gone, Invalid, NotFound, Unavailable
from gymbox.serving import answers


def add_snapshots(app: FastAPI, sandboxes: Sandboxes) -> None:
    """Add the routes."""
    refusals = answers(NotFound, Conflict, Gone, Invalid, AtCapacity, Unavailable)

    @app.post("/sandboxes/{id}/snapshot", status_code=201, tags=["snapshots"], responses=refusals)
    async def snapshot(id: str, request: SnapshotSandbox) -> SnapshotView:
        """Save a sandbox's files and what its environment's instance knows; it goes on. Sandboxes begin with it by
        `snapshot` of `POST /sandboxes`. Refused (409) while a tool runs, once verify has begun, and where the
        environment cannot tell what its instance knows, unless `files_only`."""
        return await sandboxes.copies.snapshot(id, request)

    @app.post("/sandboxes/{id}/fork", status_code=201, tags=["snapshots"], responses=refusals)
    async def fork(id: str, request: ForkSandbox) -> list[SandboxView]:
        """Make `n` sandboxes that begin where this one is, all or none; answered when all are ready. With an id of
        the caller's, the same request again gives the same sandboxes."""
        return [sandboxes.views.of(sandbox) for sandbox in await sandboxes.copies.fork(id, request)]

    @app.post("/sandboxes/{id}/pause", tags=["snapshots"], responses=refusals)
    async def pause(id: str) -> SandboxView:
        """Hold all its processes. Calls of it are refused with 409 meanwhile; its lease goes on and can be renewed."""
        return sandboxes.views.of(await sandboxes.copies.pause(id))

    @app.post("/sandboxes/{id}/unpause", tags=["snapshots"], responses=refusals)
    async def unpause(id: str) -> SandboxView:
        """Let a paused sandbox go on; one that is not paused is fine."""
        return sandboxes.views.of(await sandboxes.copies.unpause(id))

    @app.get("/snapshots", tags=["snapshots"])
    async def list_snapshots(environment: str | None = None) -> list[SnapshotView]:
        """All snapshots, oldest first."""
        return [view for view in sandboxes.snapshots.all() if environment in (None, view.environment)]

    @app.get("/snapshots/{id}", tags=["snapshots"], responses=answers(NotFound))
    async def show_snapshot(id: str) -> SnapshotView:
        """One snapshot."""
        return sandboxes.snapshots.view(id)

    @app.delete("/snapshots/{id}", status_code=204, tags=["snapshots"], responses=answers(NotFound, Conflict))
    async def delete_snapshot(id: str) -> None:
        """Delete a snapshot; sandboxes that began with it live on."""
        sandboxes.snapshots.delete(id)
