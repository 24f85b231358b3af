"""Controllers: how commands find the running controller and ask it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import typer

from gymbox.cli.places import admin_token, state_folder
from gymbox.errors import ConfigError, Unauthorized
from gymbox.runs.places import TOKEN_VARIABLE

if TYPE_CHECKING:  # imported where it is used, so that --help is quick
    from gymbox.client import ControllerClient

Controller = typer.Option("", "--controller", help="Address of the controller; default: the one that runs here.")
Id = typer.Argument(help="Id of the sandbox.")


def controller_url(given: str) -> str:
    """The address of the controller: the given one, else that of one on this machine, else the usual one."""
    from gymbox.controller.settings import DEFAULT_PORT
    from gymbox.controller.state import find_controller

    if given:
        return given
    found = find_controller(state_folder())
    return found.controller if found else f"http://127.0.0.1:{DEFAULT_PORT}"


def ask[Found](controller: str, work: Callable[[ControllerClient], Awaitable[Found]]) -> Found:
    """What `work` finds out from the controller at this address (default: the one that runs here).

    Raises:
        ConfigError: the controller cannot be used.
    """
    from gymbox.client import ControllerClient
    from gymbox.http import HttpClient
    from gymbox.runs.reach import reach

    async def run() -> Found:
        async with HttpClient() as http:
            client = ControllerClient(controller_url(controller), admin_token(), http)
            try:
                await reach(client)
            except ConfigError as error:
                if controller or not isinstance(error.__cause__, Unauthorized):
                    raise
                raise ConfigError(
                    f"no controller with this token runs here (the one at {client.url} has another); start one with "
                    f"`gymbox serve controller`, or set ${TOKEN_VARIABLE} to that one's token"
                ) from error
            return await work(client)

    return asyncio.run(run())
