"""Reach: whether a running controller can be used, and for these environments."""

from __future__ import annotations

from collections.abc import Sequence

from gymbox.client import ControllerClient
from gymbox.environment import Environment, Manifest
from gymbox.errors import ConfigError, Problem, Unauthorized, nearest
from gymbox.runs.places import TOKEN_VARIABLE


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


async def check_controller(client: ControllerClient, environments: Sequence[Environment]) -> None:
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
