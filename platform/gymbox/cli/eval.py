"""`gymbox eval`: the figures of runs, which of them does better, a page about them, what their tasks are good for, and
rewards anew."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gymbox.cli import Commands
from gymbox.cli.convert import convert
from gymbox.cli.figures import (
    SHOWN,
    interval,
    policy,
    print_comparison,
    print_figures,
    print_json,
    print_profile,
    table,
)
from gymbox.cli.options import (
    Alpha,
    AsJson,
    By,
    Common,
    Folders,
    Level,
    Missing_,
    Own,
    Rename,
    Run_,
    Success,
    Tries,
    finite,
)
from gymbox.cli.output import say
from gymbox.cli.readers import environments_named, reader_of
from gymbox.cli.report import report
from gymbox.errors import ConfigError, nearest

if TYPE_CHECKING:
    from gymbox.evaluation.reverify import Changes
    from gymbox.evaluation.rollouts import RunReader
    from gymbox.judge import Judge
    from gymbox.results import RunFolder
    from gymbox.runner_settings import RunnerSettings

app = typer.Typer(
    cls=Commands,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Figures of runs, comparisons, reports, profiles of tasks, and rewards anew.",
)

app.command()(convert)


@app.command()
def metrics(
    run: Path = Run_,
    missing: str = Missing_,
    success: float = Success,
    level: float = Level,
    k: list[int] = Tries,
    by: str = By,
    answer: str = typer.Option("", "--answer", help="Field with the answer, for majority@k; as metrics.answer."),
    tasks: bool = typer.Option(False, "--tasks", help="Also the figures of each task."),
    own: bool = Own,
    folder: list[Path] = Folders,
    as_json: bool = AsJson,
) -> None:
    """Tell the figures of a run: means with error bars, pass@k, what is missing, tokens, cost and time.

    \b
    gymbox eval metrics runs/DIR
    gymbox eval metrics runs/DIR --missing as_failure --k 1 --k 8 --tasks --json

    Whatever has no reward is counted, and left out of the figures unless --missing says otherwise.
    """
    from gymbox.evaluation.own_metrics import having_own_metrics, key_metrics, own_metrics
    from gymbox.evaluation.summary import summary

    reader = reader_of(run)
    found = summary(
        reader,
        missing=policy(missing),
        success=success,
        level=level,
        ks=k,
        by=by or None,
        answer=answer or None,
        tasks=tasks,
        task_intervals=tasks,
    )
    environments = environments_named(found.environments, folder, own=own)
    having = having_own_metrics(environments) if own else {}
    more = {name: own_metrics(each, reader) for name, each in having.items()}
    key = {name: key_metrics(each, found.environments[name], more) for name, each in environments.items()}
    if as_json:
        print_json(found.model_dump(mode="json") | {"key_metrics": key, "own_metrics": more})
        return
    for name, figures in found.environments.items():
        print_figures(name, figures, found, key.get(name) or {}, more.get(name) or {})
    for told, shares in (("agent", found.agents), (by, found.subsets)):
        for name, parts in shares.items():
            table(
                [f"{name}, by {told}", "tasks", "rewards", "missing", "mean", "spread", "interval"],
                [
                    [
                        *(value, each.tasks, each.counted, each.missing),
                        *(each.mean, each.deviation, interval(each.interval)),
                    ]
                    for value, each in parts.items()
                ],
            )
    if tasks:
        table(
            [
                "task",
                *(["agent"] if found.agents else []),
                "rewards",
                "successes",
                "missing",
                "mean",
                "spread",
                "interval",
            ],
            [
                [
                    *(each.task, *([each.agent] if found.agents else [])),
                    *(each.n, each.c, each.missing, each.mean, each.deviation, interval(each.interval)),
                ]
                for each in found.tasks
            ],
        )


@app.command()
def compare(
    runs: list[Path] = typer.Argument(
        metavar="RUN",
        help="The first is what the others are compared with; of one alone, its agents. DIR:AGENT is one of them.",
    ),
    missing: str = Missing_,
    level: float = Level,
    alpha: float = Alpha,
    common: bool = Common,
    by: str = By,
    fail_if_worse: bool = typer.Option(
        False, "--fail-if-worse", help="Exit code 1 where a run is shown to be worse, with --by also in a subset."
    ),
    rename: list[str] = Rename,
    as_json: bool = AsJson,
) -> None:
    """Compare runs of the same tasks with the first one, task by task.

    \b
    gymbox eval compare runs/before runs/after --fail-if-worse
    gymbox eval compare runs/before runs/after --by verifier_metadata.city
    gymbox eval compare runs/of_several_agents

    Exit code 0: compared. 1: with --fail-if-worse, a run is worse than the first. 2: they cannot be compared.
    """
    from gymbox.evaluation.compare import comparison

    found = comparison(
        [reader_of(run, rename) for run in runs],
        missing=policy(missing),
        common=common,
        level=level,
        alpha=alpha,
        by=by or None,
    )
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        print_comparison(found)
    raise typer.Exit(1 if fail_if_worse and found.worse else 0)


app.command()(report)


@app.command()
def profile(
    run: Path = Run_,
    missing: str = Missing_,
    success: float = Success,
    easy: float = typer.Option(
        0.9, "--easy", callback=finite, help="Part of successes from which on a task is too easy."
    ),
    hard: float = typer.Option(
        0.1, "--hard", callback=finite, help="Part of successes up to which a task is too hard."
    ),
    unstable: float = typer.Option(
        0.4, "--unstable", callback=finite, help="Deviation of rewards from which on a task is unstable."
    ),
    broken: float = typer.Option(
        0.5, "--broken", callback=finite, help="Part of tries that the task's own errors end: broken."
    ),
    tries: int = typer.Option(2, "--tries", min=1, help="Rewards below which nothing is said of a task."),
    as_json: bool = AsJson,
) -> None:
    """Tell which tasks of a run are too easy, too hard, unstable or broken."""
    from gymbox.evaluation.profile import profile as profiled

    found = profiled(
        reader_of(run),
        success=success,
        easy=easy,
        hard=hard,
        unstable=unstable,
        broken=broken,
        tries=tries,
        missing=policy(missing),
    )
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        print_profile(found)


@app.command()
def reverify(
    run: Path = Run_,
    overrides: list[str] = typer.Argument(
        None, metavar="[NAME=VALUE]...", help="Settings as for `gymbox run`: provider=process, judge=…"
    ),
    output: Path = typer.Option(..., "--output", "-o", help="Folder for the run with new rewards; a new one."),
    environment: list[str] = typer.Option(
        [], "--environment", metavar="NAME", help="Only rollouts of this environment; repeatable."
    ),
    only: str = typer.Option("", "--only", help="Only rollouts that ended in this kind of error, as judge_failed."),
    resume: bool = typer.Option(False, "--resume", help="Go on in the output."),
    limit: int = typer.Option(None, "--limit", min=1, help="Rollouts to do now; --resume goes on with the others."),
    force: bool = typer.Option(False, "--force", help="Also where that may go wrong, into a folder unsafe_…"),
    rename: list[str] = Rename,
    folder: list[Path] = Folders,
    as_json: bool = AsJson,
) -> None:
    """Score the stored responses of a run anew, in fresh sandboxes and without its model; the run stays as it is.

    \b
    gymbox eval reverify runs/DIR -o runs/again provider=process
    gymbox eval reverify runs/DIR -o runs/again --only judge_failed judge=openai judge.name=NAME

    What --environment and --only leave out is copied. Scored is what may be: where the environment's manifest says
    `reverify: stateless`, or `reverify: artifacts`, with which what agents left in their workspaces was kept in the
    run's folder, and is put into the fresh sandboxes. Of NeMo Gym's rollouts the rows are read from the file beside
    them; --rename AGENT=ENVIRONMENT says what scores them.

    Exit code 0: done. 1: some could not be scored. 2: nothing was started.
    """
    from gymbox.evaluation.metrics_file import complete_metrics

    changes = asyncio.run(
        _reverify(reader_of(run, rename), overrides or [], output, environment, only, resume, limit, force, folder)
    )
    complete_metrics(changes.output)
    if as_json:
        print_json(changes.model_dump(mode="json"))
    else:
        told = [f"{changes.verified} scored anew", f"{len(changes.changed)} changed", f"{changes.copied} copied"]
        if changes.without_artifacts:
            told[-1] += f" ({changes.without_artifacts} because no artifacts are kept of them)"
        unsafe = "  (unsafe: rewards may depend on what is not stored)" if changes.unsafe else ""
        say(f"{changes.output}: {changes.done} of {changes.planned} rollouts; {', '.join(told)}{unsafe}")
        for name, (old, new) in changes.environments.items():
            say(f"  {name} is another than it was: digest {new:.12}, was {old:.12}")
        for id in changes.changed[:SHOWN]:
            say(f"  changed: {id}")
    raise typer.Exit(1 if changes.failed else 0)


async def _reverify(
    reader: RunReader,
    overrides: list[str],
    output: Path,
    environments: list[str],
    only: str,
    resume: bool,
    limit: int | None,
    force: bool,
    folders: list[Path],
) -> Changes:
    import sys

    from gymbox import logs
    from gymbox.cli.places import here
    from gymbox.config import compose
    from gymbox.errors import ErrorKind
    from gymbox.evaluation.reverify import chosen, output_of, refuse_without_effect, reverified
    from gymbox.http import HttpClient
    from gymbox.runs.job import check_judge
    from gymbox.runs.readiness import until_ready
    from gymbox.runs.sandbox_source import SourceRequest, sandbox_source

    if only and only not in (kinds := [kind.value for kind in ErrorKind]):
        raise ConfigError(f"there is no kind of error {only!r}; {nearest(only, kinds)}")
    refuse_without_effect(overrides)
    found = environments_named(chosen(reader, environments), folders, needed=True)
    output, unsafe = output_of(output, list(found.values()), force=force)
    if not found:
        raise ConfigError(f"{reader.path} has no rollouts")
    sys.path.append("")  # so that _target_ finds a class in the working directory
    logs.setup(level="WARNING")
    names = ",".join(str(each.folder) for each in found.values())
    settings = compose([f"environment=[{names}]", "model=scripted", *overrides])
    check_judge(list(found.values()), settings)
    runner = settings.runner
    async with HttpClient() as http:
        await until_ready([settings.judge], http, runner.ready_timeout)
        async with sandbox_source(SourceRequest(settings, list(found.values()), http, here())) as source:
            return await reverified(
                reader,
                found,
                source.controller,
                output,
                unsafe=unsafe,
                chosen=bool(environments),
                only=only or None,
                concurrency=runner.concurrency,
                resume=resume,
                limit=limit,
                settings=settings.record(),
                during=lambda folder: _asked(source.judge, folder, runner),
            )


@asynccontextmanager
async def _asked(judge: Judge | None, folder: RunFolder, runner: RunnerSettings) -> AsyncIterator[None]:
    """Within the block, what the judge is asked is counted in the manifest, and on record as `runner.capture` says."""
    from gymbox.budget import Budget, Meter
    from gymbox.judge import recorded

    meter = Meter(Budget(), folder.manifest.used)
    if judge is not None:
        judge.metered(meter)
    async with recorded(judge, folder.path, mode=runner.capture, rate=runner.capture_rate):
        async with meter.running(lambda: None, lambda: False, folder.save):
            yield
