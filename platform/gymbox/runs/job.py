"""Job: one run of given settings, from preflight to summary."""

from __future__ import annotations

import asyncio
import gc
import logging
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
from gymbox.evaluation.nemo_layout import nemo_files
from gymbox.evaluation.nemo_writer import NEMO_FOLDER, write_nemo
from gymbox.evaluation.rollouts import RunReader
from gymbox.http import HttpClient
from gymbox.judge import Judge
from gymbox.models.capture import Capture
from gymbox.models.cassettes import JUDGE_CALLS
from gymbox.plan import Plan
from gymbox.results import LOG, ROLLOUTS, RunFolder
from gymbox.run_control import RunControl
from gymbox.runner import Summary, Watcher, run
from gymbox.runs.lineup import Lineup
from gymbox.runs.places import Places
from gymbox.runs.readiness import until_ready
from gymbox.runs.sandbox_source import SandboxSource, sandbox_source

Watching = Callable[[Plan, RunFolder, SandboxSource], AbstractContextManager[Watcher | None]]
log = logging.getLogger(__name__)


class Job:
    """One run: `output` is its folder, `control` what it can be asked for while it goes on."""

    def __init__(self, settings: Settings, places: Places) -> None:
        self.settings = settings
        self.output = settings.runner.output or _new_folder(settings.environment)
        self.control = RunControl()
        self.running = False
        """Whether rollouts are under way, so that it can be stopped softly."""
        self._places = places

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
        runner = self.settings.runner
        self._check_resume()
        environments = self._environments()
        with Plan(environments, runner, self._places.cache / "datasets", self.settings.agents) as plan:
            lineup = Lineup.of(self.settings, plan)
            inputs = self._inputs(plan, lineup)
            before = RunFolder.check(self.output, inputs=inputs, resume=runner.resume)
            async with AsyncExitStack() as stack:
                http = await stack.enter_async_context(HttpClient())
                if before is None or before.status != "finished" or runner.retry_failed:
                    await until_ready([*lineup.models, self.settings.judge], http, runner.ready_timeout)
                source = await stack.enter_async_context(
                    sandbox_source(self.settings, environments, http, self._places, told)
                )
                await stack.enter_async_context(lineup.opened())
                folder = self._folder(inputs, source, planned=len(plan))
                stack.enter_context(logs.into(folder.path / LOG))
                await stack.enter_async_context(self._judge_recorded(source.judge, folder))
                watcher = stack.enter_context(watching(plan, folder, source))
                gc.freeze()  # what start-up made is there to stay: no collection need look through it again
                self.running = True
                try:
                    summary = await run(
                        plan,
                        self.settings.agent,
                        self.settings.model,
                        source.controller,
                        http,
                        folder,
                        watcher=watcher,
                        control=self.control,
                        players=lineup.players,
                    )
                    await asyncio.to_thread(self._lay_out, plan)
                    return summary
                finally:
                    self.running = False

    def _check_resume(self) -> None:
        """
        Raises:
            ConfigError: the settings of a resume are wrong, or what is to be gone on with cannot be.
        """
        runner = self.settings.runner
        if runner.resume and runner.output is None:
            raise ConfigError("runner.resume=true needs runner.output=DIR, the folder of the run to go on with")
        if runner.retry_failed and not runner.resume:
            raise ConfigError("runner.retry_failed=true needs runner.resume=true: it is for a run to go on with")
        if runner.resume and nemo_files(self.output):
            raise ConfigError(
                f"{self.output} holds rollouts of NeMo Gym, and nothing there says which agent, model and environment "
                "made them, so a run cannot go on with it; finish it by `gym eval run --resume`, or set another "
                "runner.output=DIR"
            )

    def _inputs(self, plan: Plan, lineup: Lineup) -> dict[str, Any]:
        """See `RunManifest.inputs`."""
        inputs, judge = plan.inputs() | lineup.inputs(), self.settings.judge
        return inputs if judge is None else inputs | {"judge": record(judge)}

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
        )

    def _lay_out(self, plan: Plan) -> None:
        """Write the run in NeMo Gym's layout, too, where that is asked for; the rollouts are safe in any case."""
        if self.settings.runner.layout == "gymbox":
            return
        try:
            write_nemo(RunReader(self.output), self.output / NEMO_FOLDER / ROLLOUTS, slots=plan, replace=True)
        except ConfigError as error:
            log.warning("no files in NeMo Gym's layout: %s", error)

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
