"""Served run: one run that a controller does for a caller, live or not."""

from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from gymbox.errors import ConfigError
from gymbox.run_manifest import manifest_in
from gymbox.runner_settings import RunnerSettings
from gymbox.runs.job import Job
from gymbox.runs.log import RunLog
from gymbox.runs.view import RunView, view_of_folder

LOOK = 0.2
"""Seconds between two looks at a run that is not live yet."""


class Asked(BaseModel):
    """`<id>.json`: what a caller asked for, and why the run failed, where it did."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    overrides: tuple[str, ...]
    """Secrets are stars."""
    created_at: datetime
    raised: tuple[str, ...] = ()
    """The larger budget that it was gone on with, where its own was used up."""
    detail: str = ""


class ServedRun:
    """One run of a controller."""

    def __init__(self, asked: Asked, folder: Path) -> None:
        self.asked = asked
        self.folder = folder
        self.log = RunLog(folder)
        self.overrides: list[str] = [*asked.overrides, *asked.raised]
        """With the secrets, while this process knows them."""
        self.runner = RunnerSettings()
        self.job: Job | None = None
        self.task: asyncio.Task[None] | None = None
        self._ended: RunView | None = None

    @property
    def busy(self) -> bool:
        """Whether its task is not through yet."""
        return self.task is not None and not self.task.done()

    @property
    def stopping(self) -> bool:
        """Whether it was asked to stop, and has not yet."""
        return self.busy and self.job is not None and self.job.control.stopped.is_set()

    @property
    def over(self) -> bool:
        return not self.busy

    @property
    def size(self) -> int | None:
        live = self.job.live if self.job is not None and self.busy else None
        return None if live is None else live.size

    async def changed(self, within: float) -> None:
        live = self.job.live if self.job is not None and self.busy else None
        if live is None or live.over:
            await asyncio.sleep(min(within, LOOK))
        else:
            await live.changed(within)

    def begin(self, job: Job, task: asyncio.Task[None]) -> None:
        self.job, self.task, self._ended = job, task, None

    async def view(self) -> RunView:
        if self.busy and self.job is not None:
            if self.job.live is not None:
                return (await self.job.live.view()).model_copy(update={"live": True})
            return RunView(
                id=self.asked.id,
                status="stopping" if self.stopping else "starting",
                folder=str(self.folder),
                live=True,
                priority=self.runner.priority,
                share=self.runner.share,
                started_at=self.asked.created_at,
            )
        if self._ended is None:
            self._ended = await asyncio.to_thread(self._of_folder)
        return self._ended

    def _of_folder(self) -> RunView:
        id, detail = self.asked.id, self.asked.detail
        try:
            manifest = manifest_in(self.folder)
        except ConfigError as error:
            manifest, detail = None, str(error)
        if manifest is not None:
            view = view_of_folder(self.folder, manifest, id=id, detail=detail)
            return view.model_copy(update={"status": "failed"}) if detail and view.status == "interrupted" else view
        status = "failed" if detail else "interrupted"
        started = self.asked.created_at
        return RunView.model_validate(
            {"id": id, "status": status, "folder": str(self.folder), "live": False, "started_at": started}
            | {"detail": detail}
        )
