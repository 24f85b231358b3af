"""Served: the runs that a controller does for its callers, with its own sandboxes.

Each has a folder of results, and beside it `<id>.json` with what was asked for, secrets left out: that is the whole
record, so a controller that was killed finds its runs again, to be gone on with.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack
from contextvars import Context
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from fastapi import FastAPI
from pydantic import ValidationError

from gymbox import logs
from gymbox.config import Settings, compose
from gymbox.environment import Catalog
from gymbox.errors import AtCapacity, ConfigError, Conflict, Invalid, NotFound, Problem, Unavailable, nearest
from gymbox.evaluation.metrics_file import complete_metrics
from gymbox.results import WriteFailed, written
from gymbox.runs.allowed import STARS, check_overrides, check_settings, without_secrets
from gymbox.runs.app import add_started_runs
from gymbox.runs.endpoint import Announce, endpoint
from gymbox.runs.job import Job
from gymbox.runs.places import Places
from gymbox.runs.sandbox_source import Sourcing
from gymbox.runs.served_run import Asked, ServedRun
from gymbox.runs.view import RunView

log = logging.getLogger(__name__)

PLACES = 24
"""Characters that a sandbox's id has for task, repeat, start and attempt, of its 100."""
BUDGET = "runner.budget"
"""The setting, or one of its fields, that a run may be gone on with by another value."""
BUSY = 10.0
"""Seconds after which to come back when as many runs are live as may be."""


class ServedRuns:
    """All runs of a controller. Used as `async with`: entering finds those of an earlier one; leaving stops them.

    Args:
        folder: where they are; only one controller may have it.
        catalog: the environments that they may name.
        sourcing: opens what their sandboxes come from.
        sweep: removes the sandboxes that runs of these ids have left behind.
        most: runs that may be live at once.

    Raises:
        ConfigError: (on entering) the folder cannot be made.
    """

    def __init__(
        self,
        folder: Path,
        catalog: Catalog,
        places: Places,
        sourcing: Sourcing,
        *,
        sweep: Callable[[Collection[str]], Awaitable[None]],
        most: int = 8,
    ) -> None:
        self.folder = folder
        self._catalog = catalog
        self._places = places
        self._sourcing = sourcing
        self._sweep = sweep
        self._most = most
        self._runs: dict[str, ServedRun] = {}
        self._turn = asyncio.Lock()  # Hydra composes one at a time, and an id is for one
        self._draining = False
        self._stack = AsyncExitStack()
        self._announce: Announce

    async def __aenter__(self) -> Self:
        """
        Raises:
            ConfigError: the folder for runs cannot be made.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise ConfigError(f"cannot keep runs in {self.folder}: {error.strerror}; set --runs DIR") from error
        for run in await asyncio.to_thread(self._found):
            self._runs[run.asked.id] = run
        await self._sweep(self._runs)
        self._announce = await self._stack.enter_async_context(endpoint(self, self._places.state))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.drain(0)
        await self._stack.aclose()

    def extend(self, app: FastAPI) -> None:
        """Add `/v1/runs` to a controller's API."""
        add_started_runs(app, self)

    async def drain(self, seconds: float) -> None:
        """Take no new runs, and stop those that are live: softly, and after `seconds` at once."""
        self._draining = True
        going = [run for run in self._runs.values() if run.busy]
        for run in going:
            self._stop(run)
        tasks = [run.task for run in going if run.task is not None]
        if tasks and (await asyncio.wait(tasks, timeout=seconds or 0.001))[1]:
            for run in going:
                if run.job is not None:
                    run.job.control.drop()
            await asyncio.wait(tasks)

    # --- what callers ask for

    async def all(self) -> list[RunView]:
        return [await run.view() for run in self._runs.values()]

    def get(self, id: str) -> ServedRun:
        """
        Raises:
            NotFound: there is none of that id.
        """
        if id not in self._runs:
            raise NotFound(f"there is no run {id!r}; {nearest(id, list(self._runs))}")
        return self._runs[id]

    async def create(self, id: str | None, overrides: Sequence[str]) -> tuple[RunView, bool]:
        """A new run, or the one of that id where it is the same; and whether it is new.

        Raises:
            Conflict: the id is another run's.
            Invalid: the settings are wrong, or not to be set by a caller.
            AtCapacity: as many runs are live as may be.
            Unavailable: the controller shuts down.
        """
        id = id or f"run-{secrets.token_hex(4)}"
        async with self._turn:
            settings = await self._composed(overrides)
            asked = Asked(id=id, overrides=tuple(without_secrets(settings, overrides)), created_at=datetime.now(UTC))
            if id in self._runs:
                run = self._runs[id]
                if run.asked.overrides != asked.overrides:
                    raise Conflict(f"run {id} exists and was asked for with other settings")
                return await run.view(), False
            longest = max(len(name) for name in settings.environment)
            if len(id) + min(longest, 60) + PLACES > 100:
                raise Invalid(f"the id {id} is too long: ids of sandboxes begin with it and the environment's name")
            if (self.folder / id).exists():
                raise Conflict(f"there is a folder {id} among the runs that is none of this controller's")
            run = ServedRun(asked, self.folder / id)
            run.overrides = list(overrides)
            job = await self._job(run, settings, resume=False)
            await asyncio.to_thread(self._save, run)
            self._runs[id] = run
            self._begin(run, job)
        return await run.view(), True

    async def pause(self, id: str) -> RunView:
        """
        Raises:
            Conflict: it is not live.
        """
        run = self._live(id)
        assert run.job is not None
        if run.job.live is None:
            run.job.control.pause()
        else:
            await run.job.live.pause()
        return await run.view()

    async def cancel(self, id: str, *, now: bool) -> RunView:
        """Stop it; one that is not live is fine."""
        run = self.get(id)
        if run.busy:
            self._stop(run, now=now)
        return await run.view()

    async def resume(self, id: str, overrides: Sequence[str] = (), retry_failed: bool = False) -> RunView:
        """Go on with a run that is paused, was interrupted or has failed; with `retry_failed` also with one that has
        errors.

        Raises:
            Conflict: it has finished, or is stopping.
            Invalid: its inputs have changed, a secret is missing, or its budget is used up and no larger one is given.
        """
        run = self.get(id)
        if run.busy:
            assert run.job is not None
            if run.stopping:
                raise Conflict(f"run {id} is stopping; resume it when it has stopped")
            if run.job.live is None:
                run.job.control.resume()
            else:
                await run.job.live.resume()
            return await run.view()
        async with self._turn:
            if run.busy:
                raise Conflict(f"run {id} goes on already")
            if (await run.view()).status == "finished" and not retry_failed:
                raise Conflict(f"run {id} has finished; retry_failed does again what ended in an error")
            again, raised = _gone_on_with(run, overrides)
            job = await self._job(run, await self._composed(again), resume=True, retry_failed=retry_failed)
            run.overrides = again
            run.asked = run.asked.model_copy(update={"detail": "", "raised": raised})
            await asyncio.to_thread(self._save, run)
            self._begin(run, job)
        return await run.view()

    async def delete(self, id: str) -> None:
        """Remove it with its folder.

        Raises:
            Conflict: it is live.
        """
        async with self._turn:
            run = self.get(id)
            if run.busy:
                raise Conflict(f"run {id} is live; cancel it first")
            await asyncio.to_thread(shutil.rmtree, run.folder, ignore_errors=True)
            (self.folder / f"{id}.json").unlink(missing_ok=True)
            del self._runs[id]

    # --- doing them

    def _live(self, id: str) -> ServedRun:
        run = self.get(id)
        if not run.busy:
            raise Conflict(f"run {id} is not live; resume goes on with one that was interrupted")
        return run

    async def _composed(self, overrides: Sequence[str]) -> Settings:
        try:
            check_overrides(overrides)
            settings = await asyncio.to_thread(compose, overrides)
            check_settings(settings, overrides, catalog=self._catalog.names(), files=self.folder)
        except ConfigError as error:
            raise Invalid(logs.redact(str(error))) from error
        return settings

    async def _job(self, run: ServedRun, settings: Settings, *, resume: bool, retry_failed: bool = False) -> Job:
        """A job that may begin: all is checked."""
        self._refuse_if_draining()
        if sum(1 for each in self._runs.values() if each.busy) >= self._most:
            raise AtCapacity(f"{self._most} runs are live, as many as may be (--max-runs)", retry_after=BUSY)
        own = {"output": run.folder, "resume": resume, "retry_failed": retry_failed}
        run.runner = settings.runner.model_copy(update=own)
        job = Job(
            settings.model_copy(update={"runner": run.runner}),
            self._places,
            sourcing=self._sourcing,
            announce=self._announce,
            id=run.asked.id,
        )
        try:
            await asyncio.to_thread(job.check)
        except ConfigError as error:
            raise Invalid(logs.redact(str(error))) from error
        self._refuse_if_draining()  # it may have begun while all was checked
        return job

    def _refuse_if_draining(self) -> None:
        if self._draining:
            raise Unavailable("this controller is shutting down", retry_after=BUSY)

    def _begin(self, run: ServedRun, job: Job) -> None:
        # in a context of its own: the run is none of the request's that had it started
        task = asyncio.create_task(self._do(run, job), name=f"run {run.asked.id}", context=Context())
        run.begin(job, task)

    async def _do(self, run: ServedRun, job: Job) -> None:
        """From start to end; whatever becomes of it is in its record."""
        detail = ""
        with logs.about(run=run.asked.id):
            log.info("run %s begins: %s", run.asked.id, run.folder)
            try:
                summary = await job.main()
                detail = summary.gave_up
                await asyncio.to_thread(complete_metrics, summary.folder)
            except asyncio.CancelledError:
                log.info("run %s was cancelled before it began", run.asked.id)
            except (ConfigError, WriteFailed, Problem) as error:
                detail = str(error)
            except Exception as error:
                log.exception("run %s ended with a bug", run.asked.id)
                detail = f"{type(error).__name__}: {error}"
            log.info("run %s is over%s", run.asked.id, f": {detail}" if detail else "")
            run.asked = run.asked.model_copy(update={"detail": logs.redact(detail)})
            await asyncio.to_thread(self._save, run)

    def _stop(self, run: ServedRun, *, now: bool = False) -> None:
        assert run.job is not None and run.task is not None
        if run.job.live is None:
            if not run.stopping:  # once: a second would end what cleans up after the first
                run.task.cancel()  # no rollout has begun
            run.job.control.stop()
        elif now:
            run.job.control.drop()
        else:
            run.job.control.stop()

    # --- the record

    def _save(self, run: ServedRun) -> None:
        try:
            written(self.folder / f"{run.asked.id}.json", run.asked.model_dump(mode="json"))
        except OSError as error:
            raise Unavailable(f"cannot write to {self.folder}: {error.strerror}") from error

    def _found(self) -> list[ServedRun]:
        found = []
        for path in self.folder.glob("*.json"):
            try:
                asked = Asked.model_validate_json(path.read_bytes())
            except (OSError, ValidationError) as error:
                log.warning("%s is no record of a run, and left alone: %s", path, error)
                continue
            if asked.id == path.stem:
                found.append(ServedRun(asked, self.folder / asked.id))
        return sorted(found, key=lambda run: run.asked.created_at)


def _gone_on_with(run: ServedRun, given: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """The settings of a run with the secrets that a caller brings once more, and with another budget where one is
    given; and what there is of such budgets by now.

    Raises:
        Invalid: a secret is missing, or something else is given.
    """
    brought = {override.partition("=")[0]: override for override in given}
    budget = {name: override for name, override in brought.items() if name.startswith(BUDGET)}
    secret = {kept.partition("=")[0] for kept in run.asked.overrides if kept.endswith(f"={STARS}")}
    if others := brought.keys() - secret - budget.keys():
        raise Invalid(
            f"{min(others)} is no secret of this run, nor its budget: it goes on with the settings that it began with"
        )
    raised = tuple(({kept.partition("=")[0]: kept for kept in run.asked.raised} | budget).values())
    first = run.overrides[: len(run.asked.overrides)]
    found = [*(brought.get(override.partition("=")[0], override) for override in first), *raised]
    for override in found:
        if override.endswith(f"={STARS}"):
            name = override.partition("=")[0]
            raise Invalid(f"{name} was given as a secret and is not kept: resume with it in `overrides` once more")
    return found, raised
