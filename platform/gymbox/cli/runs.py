"""`gymbox run status` and those beside it: look at runs, pause, resume and cancel them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

import typer

from gymbox.cli import Commands
from gymbox.cli.options import AsJson
from gymbox.cli.output import say, say_json
from gymbox.errors import ConfigError, Conflict, NotFound, Problem

if TYPE_CHECKING:  # imported where they are used, so that --help is quick
    from pathlib import Path

    from gymbox.runs.client import RunsClient
    from gymbox.runs.found import Found
    from gymbox.runs.register import Entry
    from gymbox.runs.view import RunView

app = typer.Typer(
    cls=Commands,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Look at runs, and pause, resume or cancel those that are live.",
)

Run = typer.Argument("", metavar="RUN", help="Its folder or id; default: the only one that is live here.")
Controller = typer.Option("", "--controller", help="Address of a controller, for a run that it does.")
LOOK = 1.0
"""Seconds between two looks of --watch."""


@app.command()
def status(
    run: str = typer.Argument("", metavar="RUN", help="Its folder or id; default: a list of all that are live here."),
    controller: str = Controller,
    watch: bool = typer.Option(False, "--watch", "-w", help="Look again and again, until it ends."),
    as_json: bool = AsJson,
) -> None:
    """How a run is: live, ended or interrupted; what is done, its rewards and errors, and when it will be through.

    \b
    gymbox run status
    gymbox run status runs/weather --watch
    """
    if not run:
        _list(controller, watch=watch, as_json=as_json)
        return
    while True:
        view = _view(run, controller)
        _print(view, as_json)
        if not watch or view.over:
            return
        time.sleep(LOOK)


@app.command()
def ls(controller: str = Controller, as_json: bool = AsJson) -> None:
    """List the runs that are live here, or those of a controller."""
    _list(controller, watch=False, as_json=as_json)


@app.command()
def tail(
    run: str = Run,
    lines: int = typer.Option(10, "--lines", "-n", min=0, help="Results to show of those that are there."),
    failed: bool = typer.Option(False, "--failed", help="Only those with an error."),
    follow: bool = typer.Option(True, "--follow/--no-follow", help="Go on until the run ends."),
    controller: str = Controller,
    as_json: bool = typer.Option(False, "--json", help="Print each as a line of JSON; of a folder, as it is there."),
) -> None:
    """Results of a run as they come, until it ends."""
    from gymbox.cli.tail import follow_folder, follow_stream

    with suppress(KeyboardInterrupt):
        if controller:
            _at(controller, run, lambda client, id: follow_stream(client, id, lines, failed, follow, as_json))
            return
        found = _found(run)
        follow_folder(
            found.folder, lambda: _goes_on(found), lines=lines, failed=failed, follow=follow, as_json=as_json
        )


@app.command()
def pause(run: str = Run, controller: str = Controller) -> None:
    """Start no further rollout until the run is resumed; those under way go on."""
    _say(_act(run, controller, lambda client, id: client.pause(id)))


@app.command()
def resume(
    run: str = Run,
    overrides: list[str] = typer.Argument(
        None, metavar="NAME=VALUE...", help="Of a controller's run: its secrets once more, or a larger runner.budget."
    ),
    controller: str = Controller,
) -> None:
    """Go on with a paused run; of a controller's runs, also with one that was interrupted or used up its budget."""
    _say(_act(run, controller, lambda client, id: client.resume(id, overrides or ())))


@app.command()
def cancel(
    run: str = Run,
    now: bool = typer.Option(False, "--now", help="Drop what is under way, for a resume to do again."),
    controller: str = Controller,
) -> None:
    """Stop a run: rollouts under way have `runner.grace` seconds to end, and no new ones start."""
    _say(_act(run, controller, lambda client, id: client.cancel(id, now=now)))


# --- asking


def _found(run: str) -> Found:
    from gymbox.runs.found import find_run

    return find_run(run, _live())


def _goes_on(found: Found) -> bool:
    """Whether a process writes to it: as the register says, or of another user's, its lock."""
    from gymbox.runs.found import is_held

    return any(entry.folder == str(found.folder.resolve()) for entry in _live()) or is_held(found.folder)


def _live() -> list[Entry]:
    from gymbox.cli.places import state_folder
    from gymbox.runs.register import Register

    return Register(state_folder()).live()


def _view(run: str, controller: str) -> RunView:
    if controller:
        return _at(controller, run, lambda client, id: client.get(id))
    found = _found(run)
    if found.entry is not None:
        with suppress(Problem):  # it may end between two looks: then its folder tells
            return _ask(found, lambda client, id: client.get(id))
    return _of_folder(found.id, found.folder)


def _of_folder(id: str, folder: Path) -> RunView:
    from gymbox.run_manifest import manifest_in
    from gymbox.runs.found import is_held
    from gymbox.runs.view import view_of_folder

    manifest = manifest_in(folder)
    if manifest is None:
        raise ConfigError(f"{folder} holds no run any more")
    view = view_of_folder(folder, manifest, id=id)
    if manifest.status == "running" and is_held(folder):  # another user's, or on another state folder
        return view.model_copy(update={"status": "running", "live": True})
    return view


def _act(run: str, controller: str, work: Callable[[RunsClient, str], Awaitable[RunView]]) -> RunView:
    if controller:
        return _at(controller, run, work)
    found = _found(run)
    if found.entry is not None:
        return _ask(found, work)
    view = _of_folder(found.id, found.folder)
    if view.live:
        raise Conflict(f"run {view.id} is done by another user, or with another state folder: ask there")
    how = f"{view.status} after {view.done} of {view.planned} rollouts"
    onward = (
        ""
        if view.done == view.planned
        else f"; to go on, give the command that began it, with runner.output={found.folder} runner.resume=true"
    )
    raise Conflict(f"run {view.id} is not live: {how}{onward}")


def _ask[Result](found: Found, work: Callable[[RunsClient, str], Awaitable[Result]]) -> Result:
    from gymbox.http import HttpClient
    from gymbox.runs.client import RunsClient

    assert found.entry is not None
    socket = found.entry.socket

    async def main() -> Result:
        async with HttpClient() as http:
            return await work(RunsClient.at(http, socket), found.id)

    return asyncio.run(main())


def _at[Result](controller: str, run: str, work: Callable[[RunsClient, str], Awaitable[Result]]) -> Result:
    """What a controller says of a run; "" is the only one that it does now."""
    from gymbox.cli.places import admin_token
    from gymbox.http import HttpClient
    from gymbox.runs.client import RunsClient

    async def main() -> Result:
        async with HttpClient() as http:
            client = RunsClient(http, url=controller, token=admin_token())
            id = run
            if not id:
                live = [view.id for view in await client.all() if view.live]
                if len(live) != 1:
                    raise NotFound(f"{len(live)} runs are live at {controller}: name one{_among(live)}")
                [id] = live
            return await work(client, id)

    return asyncio.run(main())


def _among(ids: list[str]) -> str:
    return f" ({', '.join(ids)})" if ids else ""


# --- telling


def _list(controller: str, *, watch: bool, as_json: bool) -> None:
    while True:
        views = _all(controller)
        if as_json:
            from gymbox.cli.env import print_json

            print_json([view.model_dump(mode="json") for view in views])
        elif views:
            from gymbox.cli.env import print_table

            print_table(["id", "status", "done", "failed", "reward", "left", "folder"], map(_row, views))
        else:
            say("no run is live" + (f" at {controller}" if controller else " here"))
        if not watch or all(view.over for view in views):
            return
        time.sleep(LOOK)


def _all(controller: str) -> list[RunView]:
    from gymbox.cli.places import admin_token
    from gymbox.http import HttpClient
    from gymbox.runs.client import RunsClient

    async def main() -> list[RunView]:
        async with HttpClient() as http:
            if controller:
                return await RunsClient(http, url=controller, token=admin_token()).all()
            found = []
            for entry in _live():
                with suppress(Problem):  # it has ended since
                    found.append(await RunsClient.at(http, entry.socket).get(entry.id))
            return found

    return asyncio.run(main())


def _row(view: RunView) -> list[str]:
    return [
        view.id,
        view.status,
        f"{view.done}/{view.planned}",
        str(view.done - view.scored),
        _reward(view.reward),
        _left(view) or "–",
        view.folder,
    ]


def _reward(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _left(view: RunView) -> str:
    from gymbox.progress import duration

    return "" if view.eta is None else duration(view.eta)


def _print(view: RunView, as_json: bool) -> None:
    if as_json:
        say_json(view.model_dump_json())
        return
    for line in _lines(view):
        say(line)


def _lines(view: RunView) -> Iterable[str]:
    from gymbox.printable import printable
    from gymbox.progress import PHASES, duration, short

    yield f"run {view.id}: {view.status}{f': {printable(view.detail)}' if view.detail else ''}"
    figures = [
        f"{view.done}/{view.planned} done",
        f"{view.done - view.scored} failed",
        f"reward {_reward(view.reward)}",
        f"{short(view.input_tokens + view.output_tokens)} tokens",
    ]
    if view.running:
        stages = ", ".join(f"{view.stages[stage]} {phase}" for stage, phase in PHASES.items() if stage in view.stages)
        figures.insert(1, f"{view.running} running{f' ({stages})' if stages else ''}")
    if view.rate is not None:
        figures.append(f"{view.rate:.2f} a second" if view.rate < 10 else f"{view.rate:.0f} a second")
    if view.eta is not None:
        figures.append(f"{duration(view.eta)} left")
    yield "  " + " · ".join(figures)
    if len(view.environments) > 1:
        for name, each in sorted(view.environments.items()):
            yield f"  {name}: {each.done} done, {each.done - each.scored} failed, reward {_reward(each.reward)}"
    for kind, count in sorted(view.errors.items(), key=lambda pair: -pair[1]):
        yield f"  {count} × {kind}, such as {printable(view.examples.get(kind, ''))}"
    yield f"  in {view.folder}"
    if view.status in ("interrupted", "stopped"):
        larger = " and a larger runner.budget" if view.status == "stopped" else ""
        yield f"  to go on: the command that began it, with runner.output={view.folder} runner.resume=true{larger}"


def _say(view: RunView) -> None:
    say(f"run {view.id}: {view.status}")
