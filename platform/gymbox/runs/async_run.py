"""Async run: a run whose results are taken while it goes on, by a trainer or any other Python program."""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from gymbox.config import Settings
from gymbox.environment import Environment
from gymbox.errors import ConfigError
from gymbox.models import Model
from gymbox.plan import Plan
from gymbox.results import RunFolder
from gymbox.runner import Summary, Watcher
from gymbox.runs.delivery import Counts, Delivery, Result
from gymbox.runs.places import Places
from gymbox.runs.python_job import PythonJob
from gymbox.runs.row_stream import Rows
from gymbox.runs.sandbox_source import SandboxSource

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Taking:
    """How the results of a run are taken."""

    ahead: int
    max_staleness: int | None
    drop_stale: bool
    include_done: bool


class Run:
    """A run, begun when it is entered (`async with`) or first iterated over; see `gymbox.run`.

    Leaving the block, or the loop without a block, ends everything that is under way, deletes its sandboxes and closes
    its models. Used from one event loop; only one loop over its results at a time.
    """

    def __init__(
        self,
        settings: Settings,
        places: Places,
        taking: Taking,
        environments: Sequence[Environment],
        rows: Rows | None = None,
    ) -> None:
        self._scratch = Path(tempfile.gettempdir()) / f"gymbox-run-{secrets.token_hex(8)}"
        self._job = PythonJob(
            settings,
            places,
            environments=environments,
            rows=rows,
            ahead=taking.ahead,
            scratch=self._scratch,
        )
        self._taking = taking
        self._sizes = {each.name: settings.runner.repeats_of(each.name) for each in environments}
        self._delivery: Delivery | None = None
        self._begun = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._counts = Counts()
        self.id = ""
        """Random; the rollouts' ids begin with it. Empty before it has begun."""
        self.summary: Summary | None = None
        """How it ended; None until then, and where it failed."""

    @property
    def folder(self) -> Path | None:
        """Where its results are; None where they are kept nowhere."""
        return None if self._job.in_memory else self._job.output

    @property
    def counts(self) -> Counts:
        """What became of its rollouts so far."""
        return self._counts

    @property
    def under_way(self) -> list[str]:
        """Ids of the rollouts that have started and not ended."""
        return self._job.control.cancels.under_way

    @property
    def policy_version(self) -> int | None:
        """Of what samples now; None as long as none was told. Set it when the weights behind the model's address have
        changed; `update_policy` is for another model as well."""
        return self._job.policy.version

    @policy_version.setter
    def policy_version(self, version: int) -> None:
        self._job.policy.tell(version)
        self._outdate()

    async def update_policy(self, version: int, model: Model | None = None) -> None:
        """From now on rollouts are sampled by this version, and by `model` where one is given: it is opened here, and
        closed when it is replaced or the run ends. Calls under way end where they began.

        Raises:
            ConfigError: the new model cannot be opened, or the version is no whole number; the old ones stay.
        """
        await self._job.policy.update(version, model)
        self._outdate()

    def pause(self) -> None:
        """No further rollout starts until `resume`; those under way go on."""
        self._job.control.pause()

    def resume(self) -> None:
        self._job.control.resume()

    def stop(self) -> None:
        """No further rollout starts; those under way have `grace` seconds to end, and are yielded."""
        self._job.control.stop()

    def cancel(self, rollout: str | None = None, *, group: str | None = None) -> None:
        """End a rollout, those of a group that have not ended, or without either all at once. What is cancelled by
        name ends with the error `cancelled`, and is yielded; of all, nothing more is."""
        cancels = self._job.control.cancels
        if rollout is None and group is None:
            self._job.control.drop()
        for name in [rollout] if rollout is not None else []:
            cancels.cancel(name)
        if group is not None and self._delivery is not None:
            for name in self._delivery.left_of(group, max(self._sizes.values())):
                cancels.cancel(name)

    async def __aenter__(self) -> Self:
        """
        Raises:
            ConfigError: something is wrong; no rollout was started.
        """
        if self._task is None:
            self._task = asyncio.create_task(self._work())
        begun = asyncio.create_task(self._begun.wait())
        try:
            await asyncio.wait({self._task, begun}, return_when=asyncio.FIRST_COMPLETED)
            if self._task.done() and self._delivery is None:
                self._task.result()
        except BaseException:
            await self.aclose()
            raise
        finally:
            begun.cancel()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End what is under way and wait until it is cleaned up; safe to call twice. Never raises for what the run
        raised: iterating does."""
        task = self._task
        if task is not None and not task.done():
            if self._job.running:
                self._job.control.drop()
            else:
                task.cancel()
            await asyncio.wait({task})
        if task is not None and task.done() and not task.cancelled() and (error := task.exception()):
            log.debug("run %s ended in %s: %s", self.id, type(error).__name__, error)

    def __aiter__(self) -> AsyncGenerator[Result]:
        return self.results()

    async def results(self) -> AsyncGenerator[Result]:
        """Each result as it is there, in the order of ending.

        Raises:
            ConfigError: something is wrong; no rollout was started.
            WriteFailed: a result could not be written; everything under way was dropped.
            Exception: what the iterable of rows raised.
        """
        async with self._entered() as delivery, aclosing(delivery.results()) as results:
            async for result in results:
                yield result
            await self._end()

    async def groups(self, *, min_scored: int = 0) -> AsyncGenerator[list[Result]]:
        """All rollouts of a task together, in the order of their repeats, as soon as the last has ended. Those that
        failed are among them, with their error.

        Args:
            min_scored: a group with fewer rewards is not yielded, but counted in `counts.too_few_scored`.

        Raises:
            ConfigError, WriteFailed, Exception: as `results`.
        """
        needed = sum(self._sizes.values())
        if self._taking.ahead < needed:
            raise ConfigError(f"ahead={self._taking.ahead} has no room for whole groups: it must be at least {needed}")
        async with self._entered() as delivery, aclosing(delivery.groups(min_scored)) as groups:
            async for group in groups:
                yield group
            await self._end()

    @asynccontextmanager
    async def _entered(self) -> AsyncIterator[Delivery]:
        """What is to be taken; a run that was not entered ends with this block."""
        own = self._task is None
        try:
            await self.__aenter__()
            assert self._delivery is not None
            yield self._delivery
        finally:
            if own:
                await self.aclose()

    async def _end(self) -> None:
        """
        Raises:
            Exception: what ended the run.
        """
        assert self._task is not None
        await self._task

    async def _work(self) -> None:
        from gymbox.evaluation.metrics_file import complete_metrics

        self._scratch.mkdir(mode=0o700)
        try:
            self.summary = await self._job.main(watching=self._delivering, told=log.info)
            if not self._job.in_memory:
                await asyncio.to_thread(complete_metrics, self.summary.folder)
        finally:
            shutil.rmtree(self._scratch, ignore_errors=True)
            if self._delivery is not None:
                self._delivery.over()

    @contextmanager
    def _delivering(self, plan: Plan, folder: RunFolder, source: SandboxSource) -> Iterator[Watcher]:
        self.id = folder.manifest.run
        taking = self._taking
        self._delivery = Delivery(
            cancels=self._job.control.cancels,
            pace=self._job.pace,
            policy=self._job.policy,
            plan=plan,
            run=self.id,
            folder=folder.path if taking.include_done and not self._job.in_memory else None,
            max_staleness=taking.max_staleness,
            drop_stale=taking.drop_stale,
            counts=self._counts,
        )
        self._begun.set()
        yield self._delivery

    def _outdate(self) -> None:
        if self._delivery is not None:
            self._delivery.outdate()
