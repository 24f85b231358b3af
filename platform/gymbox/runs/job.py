"""Job: one run of given settings, from preflight to summary."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from gymbox import logs
from gymbox.config import Settings, record
from gymbox.environment import Catalog, Environment
from gymbox.errors import ConfigError
from gymbox.http import HttpClient
from gymbox.judge import Judge
from gymbox.models.capture import Capture
from gymbox.models.cassettes import JUDGE_CALLS
from gymbox.plan import Plan
from gymbox.results import RunFolder, WriteFailed
from gymbox.runner import Summary, Watcher, run
from gymbox.runs.control import RunControl
from gymbox.runs.endpoint import Announce, endpoint
from gymbox.runs.live import LiveRun, LiveRuns, Watchers
from gymbox.runs.places import Places
from gymbox.runs.sandbox_source import SandboxSource, Sourcing, sandbox_source

Watching = Callable[[Plan, RunFolder, SandboxSource], AbstractContextManager[Watcher | None]]


class Job:
    """One run: `output` is its folder, `control` what it can be asked for while it goes on.

    Args:
        sourcing: opens what its sandboxes come from; default: what the settings say.
        runs: takes the run while it is live; default: it answers on a socket of its own, as the register says.
        id: of a new run, and what it is addressed by; default: a random one.
    """

    def __init__(
        self,
        settings: Settings,
        places: Places,
        *,
        sourcing: Sourcing | None = None,
        runs: LiveRuns | None = None,
        announce: Announce | None = None,
        id: str | None = None,
    ) -> None:
        self.settings = settings
        self.output = settings.runner.output or _new_folder(settings.environment)
        self.control = RunControl()
        self.running = False
        """Whether rollouts are under way, so that it can be stopped softly."""
        self.live: LiveRun | None = None
        """As others see it, once its folder is there."""
        self._places = places
        self._sourcing: Sourcing = sourcing or sandbox_source
        self._judge_elsewhere = sourcing is not None
        self._runs = runs or LiveRuns()
        self._announce = announce
        self._id = id

    async def main(
        self,
        *,
        watching: Watching = lambda plan, folder, source: nullcontext(),
        told: Callable[[str], object] = lambda text: None,
    ) -> Summary:
        """Check everything, then do the run.

        Args:
            watching: opens what is told of each rollout, once the run's folder is there.
            told: hears what takes its time before that.

        Raises:
            ConfigError: something is wrong; no rollout was started.
            WriteFailed: a result could not be written.
        """
        runner, model = self.settings.runner, self.settings.model
        environments = self._checked()
        with Plan(environments, runner, self._places.cache / "datasets") as plan:
            inputs = self._inputs(plan)
            RunFolder.check(self.output, inputs=inputs, resume=runner.resume)
            async with AsyncExitStack() as stack:
                announce = self._announce
                if announce is None:
                    announce = await stack.enter_async_context(endpoint(self._runs, self._places.state))
                http = await stack.enter_async_context(HttpClient())
                source = await stack.enter_async_context(
                    self._sourcing(self.settings, environments, http, self._places, told)
                )
                stack.push_async_callback(model.close)
                await model.open()
                folder = await self._opened(inputs, source, planned=len(plan))
                await stack.enter_async_context(self._judge_recorded(source.judge, folder))
                live = self.live = LiveRun(folder, self.control, concurrency=runner.concurrency, id=self._id)
                self._runs.add(live)
                stack.enter_context(announce(live.id, folder.path))
                watcher = Watchers(live, stack.enter_context(watching(plan, folder, source)))
                controller = source.controller
                if source.of_run is not None:
                    controller = source.of_run(folder.manifest.run, runner.priority, runner.share)
                self.running = True
                gave_up = ""
                try:
                    summary = await run(
                        plan,
                        self.settings.agent,
                        model,
                        controller,
                        http,
                        folder,
                        watcher=watcher,
                        control=self.control,
                    )
                    gave_up = summary.gave_up
                    return summary
                except WriteFailed as error:
                    gave_up = str(error)
                    raise
                finally:
                    self.running = False
                    live.end(gave_up)

    def check(self) -> None:
        """Check everything that can be without opening anything: settings, environments, every row, the folder. It
        reads the disk for as long as the datasets are large.

        Raises:
            ConfigError: something is wrong.
        """
        with Plan(self._checked(), self.settings.runner, self._places.cache / "datasets") as plan:
            RunFolder.check(self.output, inputs=self._inputs(plan), resume=self.settings.runner.resume)

    def _checked(self) -> list[Environment]:
        runner = self.settings.runner
        if runner.resume and runner.output is None:
            raise ConfigError("runner.resume=true needs runner.output=DIR, the folder of the run to go on with")
        if runner.retry_failed and not runner.resume:
            raise ConfigError("runner.retry_failed=true needs runner.resume=true: it is for a run to go on with")
        return self._environments()

    def _inputs(self, plan: Plan) -> dict[str, Any]:
        """See `RunManifest.inputs`."""
        settings = self.settings
        inputs = plan.inputs() | {"agent": record(settings.agent), "model": record(settings.model)}
        return inputs if settings.judge is None else inputs | {"judge": record(settings.judge)}

    async def _opened(self, inputs: dict[str, Any], source: SandboxSource, *, planned: int) -> RunFolder:
        """In a thread, for a run to go on with is read from its begin to its end."""
        opening = asyncio.create_task(asyncio.to_thread(self._folder, inputs, source, planned=planned))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            await (await opening).close("interrupted")
            raise

    def _folder(self, inputs: dict[str, Any], source: SandboxSource, *, planned: int) -> RunFolder:
        return RunFolder.open(
            self.output,
            inputs=inputs,
            settings=self.settings.record(),
            provider=source.provider,
            images=source.images,
            versions=source.versions,
            planned=planned,
            resume=self.settings.runner.resume,
            retry_failed=self.settings.runner.retry_failed,
            run=self._id,
        )

    @asynccontextmanager
    async def _judge_recorded(self, judge: Judge | None, folder: RunFolder) -> AsyncIterator[None]:
        """Where the model's calls are recorded, record the judge's too."""
        runner = self.settings.runner
        if judge is None or runner.capture == "off":
            yield
            return
        place, secrets = folder.path / JUDGE_CALLS, logs.hidden()
        async with Capture(place, mode=runner.capture, rate=runner.capture_rate, secrets=secrets) as capture:
            judge.record(capture)
            yield

    def _environments(self) -> list[Environment]:
        """
        Raises:
            ConfigError: one cannot be found, or needs a judge that is not given; or `sessions` is given for a
                controller that has manifests of its own.
        """
        found, sessions = find(self.settings.environment, self._places.environments), self.settings.sessions
        if not self._judge_elsewhere:
            check_judge(found, self.settings)
        if sessions is None:
            return found
        if self.settings.controller:
            raise ConfigError("sessions cannot be set with controller=: there, each environment's manifest decides")
        return [
            replace(environment, manifest=environment.manifest.model_copy(update={"sessions": sessions}))
            for environment in found
        ]


def find(names: Sequence[str], folders: Sequence[Path]) -> list[Environment]:
    """The environments of these names, or in these folders.

    Raises:
        ConfigError: there is none of a name, its manifest is wrong, or two have the same name.
    """
    catalog = Catalog(folders)
    found: dict[str, Environment] = {}
    for name in names:
        environment = catalog.find(name)
        if environment.name in found:
            raise ConfigError(f"environment {environment.name!r} is named twice; a run has each once")
        found[environment.name] = environment
    return list(found.values())


def check_judge(environments: Sequence[Environment], settings: Settings) -> None:
    """
    Raises:
        ConfigError: one of them needs a judge, and neither these settings nor a controller's proxy may have one.
    """
    needing = [environment.name for environment in environments if environment.manifest.judge is not None]
    if needing and settings.judge is None and settings.controller is None:
        raise ConfigError(
            f"{needing[0]} is scored with the help of a model, and this run has none for it: add judge=openai "
            "judge.name=NAME, or another as for model= (judge=scripted replays the rows' gold judgements)"
        )


def _new_folder(environments: Sequence[str]) -> Path:
    names = "-".join(Path(name).resolve().name for name in environments)
    return Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-{names[:60]}"
