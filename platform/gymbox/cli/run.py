"""`gymbox run`: from settings to rewards in a folder."""

from __future__ import annotations

import asyncio
import gc
import logging
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from gymbox import logs
from gymbox.cli.controllers import check
from gymbox.cli.places import admin_token, cache_folder, environment_folders, program, state_folder
from gymbox.client import ControllerClient
from gymbox.config import Settings, compose, record
from gymbox.controller.settings import ControllerSettings
from gymbox.embedded import EmbeddedController
from gymbox.environment import Catalog, Environment
from gymbox.errors import ConfigError, Problem, nearest
from gymbox.evaluation.metrics_file import complete_metrics
from gymbox.evaluation.nemo_layout import nemo_files
from gymbox.evaluation.nemo_writer import NEMO_FOLDER, write_nemo
from gymbox.evaluation.rollouts import RunReader
from gymbox.http import HttpClient
from gymbox.judge import Judge, judge_of
from gymbox.models.capture import Capture
from gymbox.models.cassettes import JUDGE_CALLS
from gymbox.plan import Plan
from gymbox.progress import Progress, show
from gymbox.providers import isolation_of, versions_of
from gymbox.proxy import ProxySettings
from gymbox.results import ROLLOUTS, RunFolder, WriteFailed
from gymbox.rollout import RolloutController
from gymbox.runner import Summary, run

LOG = "run.log"
"""What was logged, in a run's folder."""
log = logging.getLogger(__name__)
app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def run_(
    overrides: list[str] = typer.Argument(None, metavar="NAME=VALUE...", help="Settings; see docs/reference."),
    config_dir: list[Path] = typer.Option([], help="Folder with configuration groups of your own; may be repeated."),
    as_json: bool = typer.Option(False, "--json", help="Print the summary as JSON."),
    verbose: bool = typer.Option(False, "--verbose", "-v", help="Log every sandbox and rollout."),
) -> None:
    """Run tasks: agent × model × environment → rewards in a folder.

    \b
    gymbox run environment=counter model=scripted provider=process runner.limit=5
    gymbox run environment=counter,weather model=openai model.name=NAME model.base_url=URL runner.repeats=4
    gymbox run … runner.output=DIR runner.resume=true
    gymbox run … controller=http://127.0.0.1:8710

    Exit code 0: every rollout has a reward. 1: some have an error. 2: nothing was started. 130: interrupted.
    """
    sys.path.append("")  # so that _target_ finds a class in the working directory
    handler = logs.setup(level="INFO" if verbose else "WARNING")
    settings = compose(overrides or [], config_dir)
    going = Run(settings, overrides or [], Console(stderr=True), handler)
    try:
        summary = asyncio.run(going.main())
    except asyncio.CancelledError:
        raise typer.Exit(128 + going.signal) from None
    except WriteFailed as error:
        typer.echo(f"gymbox: {error}", err=True)
        raise typer.Exit(1) from None
    complete_metrics(summary.folder)
    if as_json:
        typer.echo(summary.model_dump_json(indent=2))
    else:
        show(summary, Console(), program=program(), resume=going.resume, onward=going.onward)
        if settings.runner.layout == "nemo":
            typer.echo(f"nemo     {summary.folder / NEMO_FOLDER / ROLLOUTS}")
    if summary.status == "interrupted":
        raise typer.Exit(128 + going.signal)
    raise typer.Exit(0 if summary.complete else 1)


class Run:
    """One run of the command, from preflight to summary; it can be stopped by signals."""

    def __init__(
        self, settings: Settings, overrides: Sequence[str], console: Console, handler: logging.StreamHandler[Any]
    ) -> None:
        self.settings = settings
        self.console = console
        self.signal = signal.SIGINT
        self.output = settings.runner.output or _new_folder(settings.environment)
        of_this_start = ("runner.output=", "runner.resume=", "runner.retry_failed=")
        kept = [text for text in overrides if not text.startswith(of_this_start)]
        going_on = shlex.join([*kept, f"runner.output={self.output}", "runner.resume=true"])
        self.resume = f"{program()} run {going_on}"
        """The command that goes on with this run."""
        others = ("model=", "model.", "judge=", "judge.", "runner.repeats=")
        tasks = shlex.join(text for text in kept if not text.startswith(others))
        models = ["model"] if settings.judge is None else ["model", "judge"]
        own = " ".join(f"{each}=openai {each}.name=NAME {each}.base_url=URL" for each in models)
        self.onward = f"{program()} run {tasks} {own} runner.repeats=4"
        """The command that has a model of one's own do these tasks."""
        self._handler = handler
        self._stop, self._drop = asyncio.Event(), asyncio.Event()
        self._running = False

    async def main(self) -> Summary:
        """
        Raises:
            ConfigError: something is wrong; no rollout was started.
            WriteFailed: a result could not be written.
            CancelledError: stopped before the run began.
        """
        self._listen()
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
        environments = self._environments()
        with Plan(environments, runner, cache_folder() / "datasets") as plan:
            inputs = plan.inputs() | {"agent": record(self.settings.agent), "model": record(self.settings.model)}
            if self.settings.judge is not None:
                inputs["judge"] = record(self.settings.judge)
            RunFolder.check(self.output, inputs=inputs, resume=runner.resume)
            async with AsyncExitStack() as stack:
                http = await stack.enter_async_context(HttpClient())
                sandboxes = await stack.enter_async_context(self.sandboxes(environments, http))
                stack.push_async_callback(self.settings.model.close)
                await self.settings.model.open()
                folder = RunFolder.open(
                    self.output,
                    inputs=inputs,
                    settings=self.settings.record(),
                    provider=sandboxes.provider,
                    images=sandboxes.images,
                    versions=sandboxes.versions,
                    planned=len(plan),
                    resume=runner.resume,
                    retry_failed=runner.retry_failed,
                )
                stack.enter_context(logs.into(folder.path / LOG))
                await stack.enter_async_context(self._judge_recorded(sandboxes.judge, folder))
                with Progress(self.console, plan, folder, sandboxes.count) as progress:
                    self._handler.setStream(sys.stderr)  # which the live display has replaced, so lines go above it
                    gc.freeze()  # what start-up made is there to stay: no collection need look through it again
                    self._running = True
                    try:
                        summary = await run(
                            plan,
                            self.settings.agent,
                            self.settings.model,
                            sandboxes.controller,
                            http,
                            folder,
                            watcher=progress,
                            stop=self._stop,
                            drop=self._drop,
                        )
                        await asyncio.to_thread(self._lay_out, plan)
                        return summary
                    finally:
                        self._running = False
                        self._handler.setStream(sys.__stderr__)

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
        found, sessions = find(self.settings.environment), self.settings.sessions
        check_judge(found, self.settings)
        if sessions is None:
            return found
        if self.settings.controller:
            raise ConfigError("sessions cannot be set with controller=: there, each environment's manifest decides")
        return [
            replace(environment, manifest=environment.manifest.model_copy(update={"sessions": sessions}))
            for environment in found
        ]

    @asynccontextmanager
    async def sandboxes(self, environments: Sequence[Environment], http: HttpClient) -> AsyncIterator[Sandboxes]:
        """Those of a running controller, or of one in this process."""
        if self.settings.controller:
            if self.settings.proxy.model_fields_set:
                raise ConfigError("proxy.* cannot be set with controller=: set it where that one's proxy starts")
            async with judge_of(self.settings.judge, http) as judge:
                client = ControllerClient(self.settings.controller, admin_token(), http, judge=judge)
                await check(client, environments)
                with self._preparing():
                    views = [await client.environment(each.name, prepare=True) for each in environments]
                images = {view.name: view.prepared for view in views}
                if judge is None and any(each.manifest.judge is not None for each in environments):
                    judge = await client.judge()
                yield Sandboxes(client, views[0].provider, images, views[0].versions, judge=judge)
            return
        limits = ControllerSettings(port=0, max_sandboxes=self.settings.runner.concurrency)
        provider = self.settings.provider
        async with AsyncExitStack() as stack:
            try:
                judge = await stack.enter_async_context(judge_of(self.settings.judge, http))
                found = _Found(environments)
                embedded = await stack.enter_async_context(
                    EmbeddedController(
                        provider,
                        found,
                        state_folder(),
                        admin_token(),
                        http,
                        settings=limits,
                        proxy=ProxySettings(**self.settings.proxy.model_dump()),
                        judge=judge,
                    )
                )
            except Problem as error:
                raise ConfigError(error.detail) from error
            with self._preparing():
                images = {environment.name: await provider.prepare(environment) for environment in environments}
            isolation, versions = isolation_of(provider), versions_of(provider)
            yield Sandboxes(embedded, isolation, images, versions, lambda: embedded.sandboxes.containers, judge)

    @contextmanager
    def _preparing(self) -> Iterator[None]:
        """While images are made: say so where it takes more than a moment, and why where it fails."""
        text = "building images; the first time, this takes minutes"
        told = asyncio.get_running_loop().call_later(2, self.console.print, text)
        try:
            yield
        except Problem as error:
            raise ConfigError(f"{error.detail}\n{error.extra.get('log', '')}".rstrip()) from error
        finally:
            told.cancel()

    def _listen(self) -> None:
        """First signal: stop softly. Second: drop what is under way. Third: as the system has it."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def told(number: signal.Signals) -> None:
            self.signal = number
            if self._running and not self._stop.is_set():
                self._stop.set()
                return
            for each in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(each)
            if self._running:
                self._drop.set()
            else:
                task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, told, number)


def find(names: Sequence[str], folders: Sequence[Path] | None = None) -> list[Environment]:
    """The environments of these names, or in these folders.

    Raises:
        ConfigError: there is none of a name, its manifest is wrong, or two have the same name.
    """
    catalog = Catalog(folders or environment_folders())
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


@dataclass
class Sandboxes:
    """Where a run's sandboxes come from, and what they are made with."""

    controller: RolloutController
    provider: str
    images: dict[str, str | None]
    versions: dict[str, str]
    count: Callable[[], int] | None = None
    """Containers that run or start; None where only a controller elsewhere knows."""
    judge: Judge | None = None


class _Found(Catalog):
    """Exactly the environments of this run, wherever their folders are."""

    def __init__(self, environments: Sequence[Environment]) -> None:
        super().__init__([])
        self._found = {environment.name: environment for environment in environments}

    def names(self) -> list[str]:
        return sorted(self._found)

    def __getitem__(self, name: str) -> Environment:
        if name not in self._found:
            raise ConfigError(f"this run has no environment {name!r}; {nearest(name, self.names())}")
        return self._found[name]


def _new_folder(environments: Sequence[str]) -> Path:
    names = "-".join(Path(name).resolve().name for name in environments)
    return Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-{names[:60]}"
