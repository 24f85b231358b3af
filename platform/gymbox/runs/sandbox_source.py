"""Sandbox source: where a run's sandboxes come from, a controller elsewhere or one in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass

from gymbox_sandbox.lifecycle import Priority

from gymbox.client import ControllerClient
from gymbox.config import Settings
from gymbox.controller.line import Claim
from gymbox.controller.settings import ControllerSettings
from gymbox.embedded import EmbeddedController
from gymbox.environment import Catalog, Environment
from gymbox.errors import ConfigError, Problem, nearest
from gymbox.http import HttpClient
from gymbox.judge import Judge, judge_of
from gymbox.local_controller import LocalController
from gymbox.providers import base_of, isolation_of, versions_of
from gymbox.proxy import ProxySettings
from gymbox.rollout import RolloutController
from gymbox.runs.places import Places
from gymbox.runs.reach import check_controller

BUILDING = "building images; the first time, this takes minutes"


@dataclass
class SandboxSource:
    """Where a run's sandboxes come from, and what they are made with."""

    controller: RolloutController
    provider: str
    images: dict[str, str | None]
    versions: dict[str, str]
    bases: dict[str, str | None]
    """What the image of each environment is based on, by digest."""
    count: Callable[[], int] | None = None
    """Containers that run or start; None where only a controller elsewhere knows."""
    judge: Judge | None = None
    of_run: Callable[[str, Priority, float], RolloutController] | None = None
    """The same controller for one run, by id, priority and share."""


@dataclass(frozen=True)
class SourceRequest:
    """What a run wants sandboxes for."""

    settings: Settings
    environments: Sequence[Environment]
    http: HttpClient
    places: Places
    told: Callable[[str], object] = lambda text: None
    """Hears what takes its time."""

    @property
    def needs_judge(self) -> bool:
        return any(each.manifest.judge is not None for each in self.environments)


Sourcing = Callable[[SourceRequest], AbstractAsyncContextManager[SandboxSource]]
"""Opens the source of a run's sandboxes; see `sandbox_source`."""


@asynccontextmanager
async def sandbox_source(request: SourceRequest) -> AsyncIterator[SandboxSource]:
    """The source that the settings name, with every environment's image made.

    Raises:
        ConfigError: the controller or the provider cannot be used, or an image cannot be made.
    """
    source = _elsewhere if request.settings.controller else _in_here
    async with source(request) as found:
        yield found


@asynccontextmanager
async def _elsewhere(request: SourceRequest) -> AsyncIterator[SandboxSource]:
    settings, http = request.settings, request.http
    assert settings.controller is not None
    if settings.proxy.model_fields_set:
        raise ConfigError("proxy.* cannot be set with controller=: set it where that one's proxy starts")
    if settings.pools:
        raise ConfigError(
            "pools.* cannot be set with controller=: use `gymbox pool set`, or set it where that one starts"
        )
    async with judge_of(settings.judge, http) as judge:
        client = ControllerClient(settings.controller, request.places.token, http, judge=judge)
        await check_controller(client, request.environments)
        with preparing(request.told):
            views = [await client.environment(each.name, prepare=True) for each in request.environments]
        images = {view.name: view.prepared for view in views}
        if judge is None and request.needs_judge:
            judge = await client.judge()
        bases = {view.name: view.base for view in views}
        yield SandboxSource(
            client, views[0].provider, images, views[0].versions, bases, judge=judge, of_run=client.of_run
        )


@asynccontextmanager
async def _in_here(request: SourceRequest) -> AsyncIterator[SandboxSource]:
    settings, environments, http, places = request.settings, request.environments, request.http, request.places
    # beside the rollouts' own places there are those of the pools
    most = settings.runner.concurrency + sum(each.most for each in settings.pools.values())
    limits = ControllerSettings(port=0, max_sandboxes=most, pools=settings.pools)
    provider = settings.provider
    async with AsyncExitStack() as stack:
        try:
            judge = await stack.enter_async_context(judge_of(settings.judge, http))
            embedded = await stack.enter_async_context(
                EmbeddedController(
                    provider,
                    _Found(environments),
                    places.state,
                    places.token,
                    http,
                    settings=limits,
                    proxy=ProxySettings(**settings.proxy.model_dump()),
                    judge=judge,
                )
            )
        except Problem as error:
            raise ConfigError(error.detail) from error
        with preparing(request.told):
            images = {environment.name: await provider.prepare(environment) for environment in environments}
        isolation, versions = isolation_of(provider), versions_of(provider)
        bases = {environment.name: base_of(provider, environment) for environment in environments}

        def of_run(run: str, priority: Priority, share: float) -> LocalController:
            return embedded.local(Claim(run, priority, share))

        def count() -> int:
            return embedded.sandboxes.containers

        yield SandboxSource(embedded, isolation, images, versions, bases, count, judge, of_run)


@contextmanager
def preparing(told: Callable[[str], object]) -> Iterator[None]:
    """While images are made: say so where it takes more than a moment, and why where it fails.

    Raises:
        ConfigError: in the place of any Problem of the block, with the log of what failed.
    """
    telling = asyncio.get_running_loop().call_later(2, told, BUILDING)
    try:
        yield
    except Problem as error:
        raise ConfigError(f"{error.detail}\n{error.extra.get('log', '')}".rstrip()) from error
    finally:
        telling.cancel()


class _Found(Catalog):
    """Exactly the environments of this run, wherever their folders are."""

    def __init__(self, environments: Sequence[Environment]) -> None:
        super().__init__([])
        self._found = {environment.name: environment for environment in environments}

    def names(self) -> list[str]:
        return sorted(self._found)

    def __getitem__(self, name: str) -> Environment:
        if name not in self._found:
            raise ConfigError(f"this run has no environment {name!r}; {nearest(name, self.names())}")
        return self._found[name]
