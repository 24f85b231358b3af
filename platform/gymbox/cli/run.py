"""`gymbox run`: from settings to rewards in a folder."""

from __future__ import annotations

import asyncio
import json
import logging
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from gymbox import logs
from gymbox.cli.output import say, say_json
from gymbox.cli.places import here, program
from gymbox.config import Settings, compose
from gymbox.evaluation.metrics_file import complete_metrics
from gymbox.evaluation.nemo_writer import NEMO_FOLDER
from gymbox.lifetime import spare_what_is_loaded
from gymbox.plan import Plan
from gymbox.printable import printable_lines
from gymbox.progress import Progress, show
from gymbox.results import ROLLOUTS, RunFolder, WriteFailed
from gymbox.runner import Summary
from gymbox.runs.job import Job
from gymbox.runs.sandbox_source import SandboxSource

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def run_(
    overrides: list[str] = typer.Argument(None, metavar="NAME=VALUE...", help="Settings; see docs/reference."),
    config_dir: list[Path] = typer.Option([], help="Folder with configuration groups of your own; may be repeated."),
    as_json: bool = typer.Option(False, "--json", help="Print the summary as JSON."),
    verbose: bool = typer.Option(False, "--verbose", "-v", help="Log every sandbox and rollout."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Check settings and every row, and start nothing."),
) -> None:
    """Run tasks: agent × model × environment → rewards in a folder.

    \b
    gymbox run environment=counter model=scripted provider=process runner.limit=5
    gymbox run environment=counter,weather model=openai model.name=NAME model.base_url=URL runner.repeats=4
    gymbox run … runner.output=DIR runner.resume=true
    gymbox run … controller=http://127.0.0.1:8710
    gymbox run … --dry-run

    Runs that are there: gymbox run status, ls, tail, pause, resume, cancel (each with --help).

    Exit code 0: every rollout has a reward. 1: some have an error. 2: nothing was started. 3: its budget is used up.
    130: interrupted.
    """
    sys.path.append("")  # so that _target_ finds a class in the working directory
    handler = logs.setup(level="INFO" if verbose else "WARNING")
    settings = compose(overrides or [], config_dir)
    if dry_run:
        _tell_of(Job(settings, here()), as_json=as_json)
        return
    going = RunCommand(settings, overrides or [], Console(stderr=True), handler)
    import uvloop  # a run is bound by its sockets: it takes a sixth less CPU than with asyncio's own loop

    try:
        summary = asyncio.run(going.main(), loop_factory=uvloop.new_event_loop)
    except asyncio.CancelledError:
        raise typer.Exit(128 + going.signal) from None
    except WriteFailed as error:
        say(f"gymbox: {error}", err=True)
        raise typer.Exit(1) from None
    complete_metrics(summary.folder)
    if as_json:
        say_json(summary.model_dump_json(indent=2))
    else:
        show(summary, Console(), program=program(), resume=going.resume, onward=going.onward)
        if settings.runner.layout == "nemo":
            say(f"nemo     {summary.folder / NEMO_FOLDER / ROLLOUTS}")
    if summary.status == "interrupted":
        raise typer.Exit(128 + going.signal)
    if summary.status == "stopped":
        raise typer.Exit(3)
    raise typer.Exit(0 if summary.complete else 1)


def _tell_of(job: Job, *, as_json: bool) -> None:
    """What a run would do, once all is checked that can be without opening anything."""
    sizes = job.check()
    if as_json:
        say_json(json.dumps({"planned": sum(sizes.values()), "environments": sizes}))
        return
    for name, size in sizes.items():
        say(f"{name}: {size} rollouts")
    say(f"all settings and rows are right; the results would be in {job.output}, and nothing was started")


class RunCommand:
    """A job shown on a terminal, that signals stop."""

    def __init__(
        self, settings: Settings, overrides: Sequence[str], console: Console, handler: logging.StreamHandler[Any]
    ) -> None:
        self.job = Job(settings, here())
        self.signal = signal.SIGINT
        """The last one heard."""
        of_this_start = ("runner.output=", "runner.resume=", "runner.retry_failed=")
        kept = [text for text in overrides if not text.startswith(of_this_start)]
        going_on = shlex.join([*kept, f"runner.output={self.job.output}", "runner.resume=true"])
        self.resume = f"{program()} run {going_on}"
        """The command that goes on with this run."""
        others = ("model=", "model.", "models.", "judge=", "judge.", "runner.repeats=")
        tasks = shlex.join(text for text in kept if not text.startswith(others))
        models = ["model"] if settings.judge is None else ["model", "judge"]
        own = " ".join(f"{each}=openai {each}.name=NAME {each}.base_url=URL" for each in models)
        self.onward = f"{program()} run {tasks} {own} runner.repeats=4"
        """The command that has a model of one's own do these tasks."""
        self._console = console
        self._handler = handler

    async def main(self) -> Summary:
        """
        Raises:
            ConfigError: something is wrong; no rollout was started.
            WriteFailed: a result could not be written.
            CancelledError: stopped before the run began.
        """
        self._listen()
        return await self.job.main(watching=self._shown, told=self._tell)

    def _tell(self, text: str) -> None:
        self._console.print(Text(printable_lines(text)), soft_wrap=True)

    @contextmanager
    def _shown(self, plan: Plan, folder: RunFolder, source: SandboxSource) -> Iterator[Progress]:
        spare_what_is_loaded()
        with Progress(self._console, plan, folder, source.count, self.job.control) as progress:
            self._handler.setStream(sys.stderr)  # which the live display has replaced, so lines go above it
            try:
                yield progress
            finally:
                self._handler.setStream(sys.__stderr__)

    def _listen(self) -> None:
        """First signal: stop softly. Second: drop what is under way. Third: as the system has it."""
        loop, task, control = asyncio.get_running_loop(), asyncio.current_task(), self.job.control
        assert task is not None

        def told(number: signal.Signals) -> None:
            self.signal = number
            if self.job.running and not control.stopped.is_set():
                control.stop()
                return
            for each in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(each)
            if self.job.running:
                control.drop()
            else:
                task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, told, number)
