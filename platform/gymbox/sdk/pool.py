"""Pool: sandboxes of one kind that have started before anybody asks for them.

    async with Sandbox.pool("debian:trixie-slim", size=8) as pool:
        async with pool.sandbox() as box:
            ...

Each is still used once, and removed after that; another takes its place in the background.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from gymbox_sandbox.lifecycle import PoolSettings
from pydantic import ValidationError

from gymbox.environment import Environment, explain
from gymbox.errors import ConfigError, TimedOut, Unavailable
from gymbox.runs.places import Places
from gymbox.sdk.host import Host, ProviderChoice, shared_host
from gymbox.sdk.plain_environment import PlainEnvironment

if TYPE_CHECKING:
    from gymbox.sdk.sandbox import Sandbox

NOT_OPEN = "this pool is not open: use it inside `async with Sandbox.pool(…) as pool:`"
LOOK = 0.05
"""Seconds between two looks at whether a pool is filled."""


class SandboxPool:
    """Made by `Sandbox.pool`; it is filled for as long as the block lasts.

    Args:
        environment: what its sandboxes are of; no other pool of this event loop may be of one with that name.
        make: a new sandbox of it, not open yet.
        size: containers that wait at any time.
        ceiling: how many may wait where more are asked for than that; default: four times the size.

    Raises:
        ConfigError: there is no such pool.
    """

    def __init__(
        self,
        environment: Environment,
        make: Callable[[], Sandbox],
        provider: ProviderChoice,
        places: Places,
        *,
        size: int,
        ceiling: int | None,
    ) -> None:
        try:
            self._settings = PoolSettings(target=size, ceiling=ceiling)
        except ValidationError as error:
            told = explain(error, list(PoolSettings.model_fields)).replace("target", "size")
            raise ConfigError(f"this pool cannot be made:\n{told}") from error
        if not size:
            raise ConfigError("this pool cannot be made: size is 0; it is how many sandboxes wait, 1 at least")
        self._environment = environment
        self._make = make
        self._provider = provider
        self._places = places
        self._stack = AsyncExitStack()
        self._host: Host | None = None

    async def __aenter__(self) -> Self:
        """
        Raises:
            ConfigError: the provider cannot be used, or as many cannot be kept.
            Unavailable: the provider's technology does not answer.
        """
        if self._host is not None:
            raise RuntimeError("this pool is open already")
        async with AsyncExitStack() as stack:
            host = await stack.enter_async_context(shared_host(self._provider, self._places))
            stack.enter_context(host.pooled(self._environment, self._settings))
            self._host = host
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._host = None
        await self._stack.aclose()

    def sandbox(self) -> Sandbox:
        """A new one, to be opened by `async with`: at once where one waits, else as soon as one has started."""
        return self._make()

    async def filled(self, timeout: float | None = 600) -> None:
        """Return once `size` of them wait.

        Args:
            timeout: seconds from when their image is there; None: any number.

        Raises:
            TimedOut: they do not by then, as where others have the places.
            ImageNotPulled, RegistryAway, ImageBuildFailed: there is no such image, or no sandbox can have it.
            Unavailable: they do not start; the last one's reason.
            RuntimeError: the pool is not open.
        """
        if self._host is not None:
            await self._host.prepare(self._environment)
        ready = 0
        try:
            async with asyncio.timeout(timeout):
                while True:
                    if self._host is None:
                        raise RuntimeError(NOT_OPEN)
                    view = self._host.pool(self._environment)
                    ready = view.ready
                    if ready >= self._settings.target:
                        return
                    if view.error:
                        raise Unavailable(f"the pool of {self._environment.name} cannot be filled: {view.error}")
                    await asyncio.sleep(LOOK)
        except TimeoutError as error:
            detail = f"{ready} of {self._settings.target} sandboxes of the pool wait after {timeout:g} s"
            raise TimedOut(f"{detail}: there may be no places left, which other sandboxes have") from error


def of_its_own_kind(environment: PlainEnvironment) -> PlainEnvironment:
    """The same by a name that tells its limits and network, so that those of the same image with others do not empty
    its pool."""
    digest = hashlib.sha256(environment.manifest.model_dump_json().encode()).hexdigest()
    name = f"{environment.name}-{digest[:8]}"
    return replace(environment, manifest=environment.manifest.model_copy(update={"name": name}))
