"""Host: the one controller in this process that the sandboxes of an event loop share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from gymbox_sandbox.lifecycle import PoolSettings, PoolView

from gymbox import logs
from gymbox.config import choices, component, compose
from gymbox.controller.pools import Pools
from gymbox.controller.settings import ControllerSettings
from gymbox.embedded import EmbeddedController
from gymbox.environment import Catalog, Environment
from gymbox.errors import ConfigError, Invalid, nearest
from gymbox.http import HttpClient
from gymbox.logs import Waits
from gymbox.providers import SandboxProvider
from gymbox.providers.process import ProcessProvider
from gymbox.runs.places import Places
from gymbox.runs.sandbox_source import BUILDING
from gymbox.sandbox_client import SandboxClient
from gymbox.sdk.plain_environment import PlainEnvironment

log = logging.getLogger(__name__)

ProviderChoice = SandboxProvider | str

MOMENT = 2.0
"""Seconds that an image may take before the log says that it is waited for."""
_HOSTS: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Any, Host]] = WeakKeyDictionary()
"""By loop, then by what was asked for: sandboxes that know nothing of one another find the same controller."""


class _Asked(Catalog):
    """The environments that sandboxes here were asked to be of, for those who look at them by the REST API."""

    def __init__(self) -> None:
        super().__init__([])
        self.known: dict[str, Environment] = {}

    def names(self) -> list[str]:
        return sorted(self.known)

    def __getitem__(self, name: str) -> Environment:
        if name not in self.known:
            raise ConfigError(f"there is no environment {name!r:.200}; {nearest(name, self.names())}")
        return self.known[name]


class Host:
    """A controller that is opened by the first who needs it and closed by the last."""

    def __init__(self, provider: ProviderChoice, places: Places) -> None:
        self.users = 0
        self._provider = provider
        self._places = places
        self._turn = asyncio.Lock()
        self._stack = AsyncExitStack()
        self._controller: EmbeddedController | None = None
        self._catalog = _Asked()
        self._waits = Waits(log)

    async def open(self) -> None:
        async with self._turn:
            if self._controller is None:
                logs.in_programs()
                async with AsyncExitStack() as stack:
                    http = await stack.enter_async_context(HttpClient())
                    provider = _provider(self._provider)
                    settings = ControllerSettings(port=0)
                    token = self._places.token
                    controller = EmbeddedController(
                        provider, self._catalog, self._places.state, token, http, settings=settings
                    )
                    self._controller = await stack.enter_async_context(controller)
                    self._stack = stack.pop_all()

    async def close_unless_used(self) -> None:
        async with self._turn:
            if not self.users:
                self._controller = None
                await self._stack.aclose()

    @property
    def url(self) -> str:
        """Of its REST API, while it is open."""
        assert self._controller is not None
        return self._controller.url

    @asynccontextmanager
    async def sandbox(self, environment: Environment) -> AsyncIterator[SandboxClient]:
        assert self._controller is not None
        self._catalog.known[environment.name] = environment
        await self.prepare(environment)
        async with self._controller.sandbox(environment) as sandbox:
            yield sandbox

    async def prepare(self, environment: Environment) -> None:
        """Return once its image is there; where that takes more than a moment, the log says so, once for all who wait.

        Raises:
            ImageNotPulled, RegistryAway, ImageBuildFailed: it cannot be had.
            Unavailable: the provider does not answer, or has no such thing.
        """
        assert self._controller is not None
        with self._waits.of(f"{environment.name}: {BUILDING}", moment=MOMENT):
            await self._controller.sandboxes.provider.prepare(environment)

    @contextmanager
    def pooled(self, environment: Environment, settings: PoolSettings) -> Iterator[None]:
        """Keep a pool of an environment while the block lasts.

        Raises:
            ConfigError: it has one already, or there cannot be as many.
        """
        pools, name = self._pools(), environment.name
        if any(view.environment == name for view in pools.views()):
            raise ConfigError(f"environment {name!r} has a pool already: use that one for both")
        self._catalog.known[name] = environment
        try:
            pools.put(name, settings)
        except Invalid as error:
            raise ConfigError(error.detail) from error
        try:
            yield
        finally:
            pools.put(name, PoolSettings())

    def pool(self, environment: Environment) -> PoolView:
        """What has become of its pool."""
        return next(view for view in self._pools().views() if view.environment == environment.name)

    def _pools(self) -> Pools:
        assert self._controller is not None
        return self._controller.sandboxes.pools


@asynccontextmanager
async def shared_host(provider: ProviderChoice, places: Places) -> AsyncIterator[Host]:
    """The controller of this event loop for this provider, open at least for as long as the block lasts. It is opened
    by who comes first; who leaves last removes what is left of its sandboxes.

    Raises:
        ConfigError: there is no such provider, or an address is taken.
        Unavailable: the provider's technology does not answer.
    """
    hosts = _HOSTS.setdefault(asyncio.get_running_loop(), {})
    key = (provider if isinstance(provider, str) else id(provider), places)
    host = hosts.setdefault(key, Host(provider, places))
    host.users += 1
    try:
        await host.open()
        yield host
    finally:
        host.users -= 1
        # to its end, though who leaves may be cancelled once more: nobody else would close it
        await asyncio.shield(asyncio.create_task(host.close_unless_used()))
        if not host.users and hosts.get(key) is host:
            del hosts[key]


def check_provider(choice: ProviderChoice, environment: Environment | None = None) -> None:
    """
    Raises:
        ConfigError: there is no such provider, or none of its kind can run that environment.
    """
    if not isinstance(choice, str):
        provider = component(choice, "provider", None)
    elif choice not in (names := choices("provider")):
        raise ConfigError(f"there is no provider {choice!r}; {nearest(choice, names)}")
    else:
        provider = ProcessProvider() if choice == "process" else None
    if environment is not None and isinstance(provider, ProcessProvider) and (missing := provider.lacks(environment)):
        instead = ", or leave image= and network= out" if isinstance(environment, PlainEnvironment) else ""
        raise ConfigError(f"this sandbox cannot be a process: {missing}{instead}")


def _provider(choice: ProviderChoice) -> SandboxProvider:
    """
    Raises:
        ConfigError: there is no such provider.
    """
    if isinstance(choice, str):
        return compose(["environment=none", "model=scripted", f"provider={choice}"]).provider
    found: SandboxProvider = component(choice, "provider", None)
    return found
