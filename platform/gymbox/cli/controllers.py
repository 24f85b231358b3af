"""Controllers: how commands find the running controller and ask it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from gymbox.cli.places import TOKEN_VARIABLE, admin_token, state_folder
from gymbox.environment import Environment, Manifest
from gymbox.errors import ConfigError, Problem, Unauthorized, nearest

if TYPE_CHECKING:  # imported where it is used, so that --help is quick
    from gymbox.client import ControllerClient


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


async def reach(client: ControllerClient, otherwise: str = "say where one is (--controller)") -> list[Manifest]:
    """What sandboxes of this controller can be made of; `otherwise` is the second way on where it does not answer.

    Raises:
        ConfigError: it does not answer, or does not know the token; the text says what to do.
    """
    try:
        return await client.environments()
    except Unauthorized as error:
        raise ConfigError(
            f"the controller at {client.url} refuses: {error.detail}; set ${TOKEN_VARIABLE} to what the user who "
            "started it has in ~/.config/gymbox/token"
        ) from error
    except Problem as error:
        silent = isinstance(error.__cause__, OSError)
        found = (
            f"no controller answers at {client.url}"
            if silent
            else f"the controller at {client.url} cannot be used: {error.detail}"
        )
        raise ConfigError(f"{found}; start one with `gymbox serve controller`, or {otherwise}") from error


async def check(client: ControllerClient, environments: Sequence[Environment]) -> None:
    """
    Raises:
        ConfigError: the controller cannot be used, has not all of these environments, or no judge for one of them.
    """
    manifests = await reach(client, "leave `controller=` out to start one inside this command")
    known = [manifest.name for manifest in manifests]
    for environment in environments:
        if environment.name not in known:
            hint = nearest(environment.name, known)
            raise ConfigError(f"the controller at {client.url} has no environment {environment.name!r}; {hint}")
        if environment.manifest.judge is not None:
            try:
                await client.judge()
            except Problem as error:
                raise ConfigError(f"{environment.name} needs a judge: {error.detail}") from error
