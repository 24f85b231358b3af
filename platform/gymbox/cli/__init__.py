"""The command line: `gymbox COMMAND …`. Only here and below are environment variables and configuration files read."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

COMMANDS = {
    "run": "Run tasks: agent × model × environment → rewards in a folder.",
    "show": "Show one rollout of a run, to be read by people.",
    "merge": "Put the shards of one run together.",
    "eval": "Figures of runs, comparisons, reports, profiles, and rewards anew.",
    "export": "Runs for experiment trackers, as tables, and as sets to train on.",
    "sandbox": "List, enter, read, fork, pause and remove sandboxes.",
    "snapshot": "List and remove snapshots of a running controller.",
    "pool": "Say how many started containers wait for requests.",
    "dataset": "Check, shape, split, join, fetch and publish rows of tasks.",
    "env": "List, show, make, test and start environments.",
    "image": "List, build and remove the images that environments run from.",
    "serve": "Start a server: controller, proxy, model, agent or e2b.",
    "doctor": "Say what this machine lacks, and the command that mends it.",
    "dev": "For work on gymbox itself: run its tests.",
}
"""Each is a module `gymbox.cli.<name>` with a Typer named `app`; --help shows these lines and imports none of them."""
BESIDE_RUN = ("status", "ls", "tail", "pause", "resume", "cancel")
"""What `gymbox run` takes in the place of settings: commands of `gymbox.cli.runs`. No setting is a word alone."""


class Commands(TyperGroup):
    """Lists its commands with the whole first line of what each says of itself."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands: list[tuple[str, Any]] = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, (command.help or "").strip().partition("\n")[0]) for name, command in commands])


class LazyCommands(TyperGroup):
    """Imports the module of a command when that command is called, so that `gymbox --help` answers at once."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if name == "run" and rest and rest[0] in BESIDE_RUN:
            command = beside_run()
        elif name == "run" and rest and rest[0].isalpha():  # no setting, which has a "="
            from difflib import get_close_matches

            if near := get_close_matches(rest[0], BESIDE_RUN, n=1):
                ctx.fail(f"{rest[0]!r} is no setting, which is name=value; did you mean `gymbox run {near[0]}`?")
        return name, command, rest

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            from gymbox.errors import nearest

            ctx.fail(f"there is no command {cmd_name!r}; {nearest(cmd_name, list(COMMANDS))}")
        command = get_command(import_module(f"gymbox.cli.{cmd_name}").app)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def beside_run() -> Any:
    """The group of the commands that look at runs and steer them."""
    command = get_command(import_module("gymbox.cli.runs").app)
    command.name = "run"
    return command


app = typer.Typer(
    cls=LazyCommands,
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from gymbox import __version__

        typer.echo(f"gymbox {__version__}")
        raise typer.Exit


@app.callback()
def gymbox(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Evaluate and improve LLM agents with environments in which every task gets a container of its own."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command that `arguments` (default: those of this process) name, and leave with its exit code.

    0: done · 1: it ran and something failed · 2: the request was wrong, nothing was started · 3: a run's
    budget is used up · 130: interrupted.
    """
    try:
        get_command(app)(args=arguments, prog_name="gymbox", standalone_mode=True)
    except Exception as error:
        sys.exit(_explained(error))


def _explained(error: Exception) -> int:
    """Print what the operator can act on and return the exit code; a bug keeps its traceback."""
    from gymbox.cli.output import say
    from gymbox.errors import ConfigError, Problem  # late: pydantic is most of the cost of --help

    if not isinstance(error, ConfigError | Problem):
        raise error
    say(f"gymbox: {error}", err=True)
    return 2 if isinstance(error, ConfigError) else 1
