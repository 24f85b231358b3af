"""Entry: `gymbox.run` and `gymbox.run_sync`, how a Python program starts a run."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from gymbox import logs
from gymbox.agents import Agent
from gymbox.config import compose
from gymbox.environment import Environment
from gymbox.errors import ConfigError
from gymbox.models import Model
from gymbox.providers import SandboxProvider
from gymbox.runs.async_run import Run, Taking
from gymbox.runs.environments import EnvironmentChoice, environments_of
from gymbox.runs.places import Places
from gymbox.runs.row_stream import Rows
from gymbox.runs.sync_run import SyncRun, in_a_thread


def run(
    environment: EnvironmentChoice | Sequence[EnvironmentChoice],
    *,
    agent: Agent | str | None = None,
    model: Model | str | None = None,
    judge: Model | str | None = None,
    provider: SandboxProvider | str | None = None,
    controller: str | None = None,
    rows: Rows | None = None,
    ahead: int | None = None,
    max_staleness: int | None = None,
    stale: Literal["mask", "drop"] = "mask",
    include_done: bool = True,
    overrides: Sequence[str] = (),
    config_dirs: Sequence[Path] = (),
    places: Places | None = None,
    **runner: Any,
) -> Run:
    """A run whose results are taken as they come; it begins when it is entered or iterated over.

        async with gymbox.run("counter", model=OpenAIModel(name="…", base_url="…"), repeats=8) as run:
            async for group in run.groups():
                ...

    Args:
        environment: names, folders or environments; one, or several.
        agent, model, judge, provider: as an object, or the name of a choice (`"openai"`), whose fields `overrides`
            give; by default as for `gymbox run`.
        controller: address of a running controller; by default one is started in this process.
        rows: tasks in place of the environment's dataset. A list is checked whole before anything starts; of an
            iterator, plain or asynchronous, each row is taken when a rollout may start, and checked then.
        ahead: rollouts that may have started without being taken, so that a slow taker holds the run back; default
            twice `concurrency`, and room for whole groups.
        max_staleness: how many policy versions the first model call of a rollout may be behind when it is taken; by
            default any number. Older ones are `stale`.
        stale: `mask`: stale rollouts are yielded with `mask_sample`; `drop`: they, or all of their group, are counted
            in `Run.counts` and not yielded, and those under way are cancelled.
        include_done: with `resume`, whether results of earlier starts are yielded, before all others. Groups of which
            some had ended are completed from them; without them, those groups are never whole.
        overrides, config_dirs: further settings, as on the command line.
        places: where environments, controllers' states and the admin token are; by default as for `gymbox run`.
        runner: any field of `RunnerSettings`: `limit`, `repeats`, `concurrency`, `attempts`, `output`, `resume`,
            `budget`, `capture`, … Without `output` no folder is written, and results are nowhere but here.

    Raises:
        ConfigError: a setting is wrong. What takes a look at files, Docker or the network is found wrong on entering,
            also before anything was started.
    """
    logs.in_programs()
    if places is None:
        from gymbox.cli.places import here  # where this user's files are is read from environment variables

        places = here()
    _check_given(environment, rows)
    _check_taking(ahead, max_staleness, stale)
    _check_overrides(overrides, config_dirs)
    choices = [environment] if isinstance(environment, str | Path | Environment) else environment
    environments = environments_of(choices, places.environments)
    chosen = {"agent": agent, "model": model, "judge": judge, "provider": provider}
    words = [f"{name}={choice}" for name, choice in chosen.items() if isinstance(choice, str)]
    given: dict[str, Any] = {name: each for name, each in chosen.items() if not isinstance(each, str | None)}
    if faulty := [name for name in given for text in overrides if text.startswith(f"{name}.")]:
        raise ConfigError(f"{faulty[0]} is given as an object, so no override can set a field of it")
    given |= {"environment": [each.name for each in environments], "runner": runner}
    if controller is not None:
        given["controller"] = controller
    settings = compose([f"environment={environments[0].name}", *words, *overrides], config_dirs, given)
    room = settings.runner.concurrency + sum(settings.runner.repeats_of(each.name) for each in environments)
    taking = Taking(
        ahead=max(2 * settings.runner.concurrency, room) if ahead is None else ahead,
        max_staleness=max_staleness,
        drop_stale=stale == "drop",
        include_done=include_done,
    )
    return Run(settings, places, taking, environments, rows)


def run_sync(
    environment: EnvironmentChoice | Sequence[EnvironmentChoice],
    *,
    rows: Iterable[dict[str, Any]] | None = None,
    **settings: Any,
) -> SyncRun:
    """As `run`, for programs without an event loop and for notebooks: the run has a loop in a thread of its own.

        with gymbox.run_sync("counter", model="scripted") as run:
            for result in run:
                ...

    Args:
        rows: as for `run`; an iterator is asked in a thread of its own, so it may block.
        settings: all else that `run` takes.

    Raises:
        ConfigError: as `run`.
    """
    fed = rows if not isinstance(rows, Iterable) or isinstance(rows, Sequence) else in_a_thread(rows)
    return SyncRun(run(environment, rows=fed, **settings))


def _check_given(environment: Any, rows: Any) -> None:
    """
    Raises:
        ConfigError: what is to be run is of a type that says nothing.
    """
    if not isinstance(environment, str | Path | Environment | Iterable):
        raise ConfigError(f"environment: {environment!r:.80} is no name, folder or Environment, nor a list of them")
    if rows is not None and not isinstance(rows, Iterable | AsyncIterable):
        raise ConfigError(f"rows={rows!r:.80}: give a list of rows, or an iterator that yields them")


def _check_taking(ahead: Any, max_staleness: Any, stale: Any) -> None:
    """
    Raises:
        ConfigError: how results are to be taken is wrong.
    """
    if ahead is not None and (type(ahead) is not int or ahead < 1):
        raise ConfigError(f"ahead={ahead!r:.80}: write how many rollouts may start without being taken, from 1 on")
    if max_staleness is not None and (type(max_staleness) is not int or max_staleness < 0):
        raise ConfigError(
            f"max_staleness={max_staleness!r:.80}: write a whole number; 0 takes rollouts of the newest version only"
        )
    if stale not in ("mask", "drop"):
        raise ConfigError(f"stale={stale!r:.80}: write 'mask' or 'drop'")


def _check_overrides(overrides: Any, config_dirs: Any) -> None:
    """
    Raises:
        ConfigError: they are not what the command line would give.
    """
    if isinstance(overrides, str):
        raise ConfigError(f"overrides: give a list of texts, such as [{overrides!r:.80}]")
    if wrong := [each for each in overrides if not isinstance(each, str)]:
        raise ConfigError(f"overrides: {wrong[0]!r:.80} is no text, such as 'model.name=NAME'")
    if wrong := [each for each in config_dirs if not isinstance(each, Path)]:
        raise ConfigError(f"config_dirs: {wrong[0]!r:.80} is no Path")
