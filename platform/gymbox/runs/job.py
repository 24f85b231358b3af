"""Job: one run of given settings, from preflight to summary."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from gymbox import logs
from gymbox.budget import Meter
from gymbox.config import Settings, record
from gymbox.environment import Environment
from gymbox.errors import ConfigError
from gymbox.evaluation.nemo_layout import nemo_files
from gymbox.evaluation.nemo_writer import NEMO_FOLDER, write_nemo
from gymbox.evaluation.rollouts import RunReader
from gymbox.http import HttpClient
from gymbox.judge import recorded
from gymbox.models import Model
from gymbox.plan import Plan
from gymbox.results import LOG, ROLLOUTS, RunFolder, WriteFailed
from gymbox.rollout import RolloutController
from gymbox.run_control import RunControl
from gymbox.run_manifest import RunManifest
from gymbox.runner import Feed, Listed, Summary, Watcher, run
from gymbox.runner_settings import RunnerSettings
from gymbox.runs.endpoint import Announce, endpoint
from gymbox.runs.environments import environments_of
from gymbox.runs.forecast import Forecasts
from gymbox.runs.lineup import Lineup
from gymbox.runs.live import LiveRun, LiveRuns, Watchers
from gymbox.runs.places import Places
from gymbox.runs.readiness import check_models, until_ready
from gymbox.runs.sandbox_source import SandboxSource, SourceRequest, Sourcing, sandbox_source

Watching = Callable[[Plan, RunFolder, SandboxSource], AbstractContextManager[Watcher | None]]
log = logging.getLogger(__name__)


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
        self.model: Model = settings.model
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
        runner = self.settings.runner
        environments = self._checked()
        with await self._planned(environments) as plan:
            lineup, inputs, before = self._ready(environments, plan)
            async with AsyncExitStack() as stack:
                lines = stack.enter_context(logs.Scope())  # before all that logs on the run's behalf
                announce = self._announce
                if announce is None:
                    announce = await stack.enter_async_context(endpoint(self._runs, self._places.state))
                http = await stack.enter_async_context(HttpClient())
                if before is None or before.status != "finished" or runner.retry_failed:
                    await until_ready([*lineup.models, self.settings.judge], http, runner.ready_timeout)
                source = await stack.enter_async_context(
                    self._sourcing(SourceRequest(self.settings, environments, http, self._places, told))
                )
                await stack.enter_async_context(lineup.opened())
                folder = await self._opened(inputs, source, planned=len(plan))
                stack.enter_context(lines.into(folder.path / LOG))
                meter = Meter(runner.budget, folder.manifest.used)
                if source.judge is not None:
                    source.judge.metered(meter)
                mode, rate = runner.capture, runner.capture_rate
                await stack.enter_async_context(recorded(source.judge, folder.path, mode=mode, rate=rate))
                live = self.live = LiveRun(folder, self.control, concurrency=runner.concurrency, id=self._id)
                self._runs.add(live)
                stack.enter_context(announce(live.id, folder.path))
                controller = self._controller(source, folder)
                forecasts = Forecasts(self._left(plan, folder), controller)
                await stack.enter_async_context(forecasts.told())
                watcher = Watchers(live, stack.enter_context(watching(plan, folder, source)), forecasts)
                doing = run(
                    plan,
                    lineup.players,
                    controller,
                    http,
                    folder,
                    watcher=watcher,
                    control=self.control,
                    meter=meter,
                    feed=self._feed(plan, folder),
                    notes=self._notes,
                )
                return await self._until_over(doing, live, plan)

    def _left(self, plan: Plan, folder: RunFolder) -> dict[str, int]:
        """Rollouts of each environment that have no line yet."""
        done = {name: score.rollouts for name, score in folder.scores.items()}
        return {name: max(0, size - done.get(name, 0)) for name, size in plan.sizes().items()}

    def _controller(self, source: SandboxSource, folder: RunFolder) -> RolloutController:
        """Where several runs share one, on this run's account."""
        if source.of_run is None:
            return source.controller
        runner = self.settings.runner
        return source.of_run(folder.manifest.run, runner.priority, runner.share)

    async def _until_over(self, doing: Coroutine[Any, Any, Summary], live: LiveRun, plan: Plan) -> Summary:
        self.running, gave_up = True, ""
        try:
            summary = await doing
            gave_up = summary.gave_up
            await asyncio.to_thread(self._lay_out, plan)
            return summary
        except WriteFailed as error:
            gave_up = str(error)
            raise
        finally:
            self.running = False
            live.end(gave_up)

    def check(self) -> dict[str, int]:
        """Check everything that can be without opening anything: settings, environments, every row, the folder. It
        reads the disk for as long as the datasets are large. What is planned of each environment is returned.

        Raises:
            ConfigError: something is wrong.
        """
        environments = self._checked()
        with self._plan(environments) as plan:
            lineup, _, _ = self._ready(environments, plan)
            check_models([*lineup.models, self.settings.judge])
            return plan.sizes()

    def _checked(self) -> list[Environment]:
        self._check_resume()
        return self._environments()

    def _ready(
        self, environments: Sequence[Environment], plan: Plan
    ) -> tuple[Lineup, dict[str, Any], RunManifest | None]:
        """Who does the plan, what the results depend on, and the run to go on with: all that can be checked is."""
        lineup = Lineup.of(self.settings, plan, self.model)
        check_prices(environments, self.settings, lineup)
        inputs = self._inputs(plan, lineup)
        before = self._before(inputs)
        check_left(before, self.settings.runner)
        return lineup, inputs, before

    def _plan(self, environments: Sequence[Environment]) -> Plan:
        return Plan(environments, self.settings.runner, self._places.cache / "datasets", self.settings.agents)

    async def _planned(self, environments: Sequence[Environment]) -> Plan:
        """In a thread, for every row is read."""
        planning = asyncio.create_task(asyncio.to_thread(self._plan, environments))
        try:
            return await asyncio.shield(planning)
        except asyncio.CancelledError:
            [plan] = await asyncio.gather(planning, return_exceptions=True)
            if isinstance(plan, Plan):
                plan.close()
            raise

    def _before(self, inputs: dict[str, Any]) -> RunManifest | None:
        """The run to go on with; see `RunFolder.check`."""
        return RunFolder.check(self.output, inputs=inputs, resume=self.settings.runner.resume)

    def _feed(self, plan: Plan, folder: RunFolder) -> Feed:
        """See `gymbox.runner.run`."""
        return Listed(plan, folder)

    def _notes(self, attempt: str) -> dict[str, Any]:
        """See `gymbox.runner.run`."""
        return {}

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
        inputs, judge = plan.inputs() | dict(lineup.inputs), self.settings.judge
        return inputs if judge is None else inputs | {"judge": record(judge)}

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
            bases=source.bases,
            versions=source.versions,
            planned=planned,
            resume=self.settings.runner.resume,
            retry_failed=self.settings.runner.retry_failed,
            run=self._id,
        )

    def _lay_out(self, plan: Plan) -> None:
        """Write the run in NeMo Gym's layout, too, where that is asked for; the rollouts are safe in any case."""
        if self.settings.runner.layout == "gymbox":
            return
        try:
            write_nemo(RunReader(self.output), self.output / NEMO_FOLDER / ROLLOUTS, slots=plan, replace=True)
        except ConfigError as error:
            log.warning("no files in NeMo Gym's layout: %s", error)

    def _environments(self) -> list[Environment]:
        """
        Raises:
            ConfigError: one cannot be found, or needs a judge that is not given; or `sessions` is given for a
                controller that has manifests of its own.
        """
        found = environments_of(self.settings.environment, self._places.environments)
        if not self._judge_elsewhere:
            check_judge(found, self.settings)
        return self._of_sessions(found)

    def _of_sessions(self, found: list[Environment]) -> list[Environment]:
        sessions = self.settings.sessions
        if sessions is None:
            return found
        if self.settings.controller:
            raise ConfigError("sessions cannot be set with controller=: there, each environment's manifest decides")
        return [
            replace(environment, manifest=environment.manifest.model_copy(update={"sessions": sessions}))
            for environment in found
        ]


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


def check_prices(environments: Sequence[Environment], settings: Settings, lineup: Lineup) -> None:
    """
    Raises:
        ConfigError: the budget has a limit for what models cost, and one that is asked has no price.
    """
    if settings.runner.budget.cost is None:
        return
    asked: dict[str, Model | None] = {
        f"models.{name}" if name in settings.models else "model": player.model
        for name, player in lineup.players.items()
    }
    if any(environment.manifest.judge is not None for environment in environments):
        asked["judge"] = settings.judge
    for name, model in asked.items():
        if model is None or model.price is None:
            raise ConfigError(
                f"runner.budget.cost cannot be kept: the {name} has no price; add what a million tokens cost, "
                f"{name}.price='{{input: 2, output: 8}}'"
            )


def check_left(before: RunManifest | None, settings: RunnerSettings) -> None:
    """
    Raises:
        ConfigError: the run to go on with has used up this budget.
    """
    if before is None or (before.status == "finished" and not settings.retry_failed):
        return
    if reached := settings.budget.reached(before.used):
        raise ConfigError(
            f"the run's budget is used up ({reached}); go on with a larger one, which counts what was used before, "
            f"such as runner.budget.{reached.limit}={reached.more}"
        )


def _new_folder(environments: Sequence[str]) -> Path:
    names = "-".join(Path(name).resolve().name for name in environments)
    return Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-{names[:60]}"
