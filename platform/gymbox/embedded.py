"""Embedded: controller and proxy inside this process, as `gymbox run` uses them.

Rollouts of this process reach a sandbox's socket without a hop between; the same sandboxes are shown by the REST API
and forwarded by the proxy on loopback ports, so that `gymbox sandbox ls` and other tools see them.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Self

from gymbox_sandbox.lifecycle import fingerprint

from gymbox.controller.app import controller_app
from gymbox.controller.environments import LoadedEnvironments
from gymbox.controller.line import Claim
from gymbox.controller.removals import LONGEST_GOODBYE
from gymbox.controller.routes import Routes
from gymbox.controller.sandboxes import Sandboxes
from gymbox.controller.server import guard_of
from gymbox.controller.settings import ControllerSettings
from gymbox.controller.state import StateDirectory
from gymbox.controller.sweep import sweep_abandoned
from gymbox.environment import Catalog, Environment
from gymbox.errors import Problem
from gymbox.http import HttpClient
from gymbox.judge import Judge
from gymbox.lifetime import raise_file_limit
from gymbox.local_controller import LocalController
from gymbox.providers import SandboxProvider
from gymbox.proxy.server import Proxy
from gymbox.proxy.settings import ProxySettings
from gymbox.sandbox_client import SandboxClient
from gymbox.serving import Listener

log = logging.getLogger(__name__)


class EmbeddedController:
    """A controller for as long as the block lasts; leaving it removes every sandbox.

    Args:
        state: parent folder of controllers' states on this machine.
        token: the admin token, for those who come by HTTP.
        judge: what the verifiers ask that need a judge.

    Raises:
        ConfigError: (on entering) an address is taken, or the state cannot be written.
        Unavailable: (on entering) the provider's technology does not answer.
    """

    def __init__(
        self,
        provider: SandboxProvider,
        catalog: Catalog,
        state: Path,
        token: str,
        http: HttpClient,
        *,
        settings: ControllerSettings | None = None,
        proxy: ProxySettings | None = None,
        judge: Judge | None = None,
    ) -> None:
        self._provider = provider
        self._catalog = catalog
        self._parent = state
        self._token = token
        self._http = http
        self._judge = judge
        self._settings = settings or ControllerSettings(port=0)
        self._proxy_settings = proxy or ProxySettings()
        self._stack = AsyncExitStack()
        self.url = ""
        """Of the REST API."""
        self.proxy_url = ""
        self.sandboxes: Sandboxes

    async def __aenter__(self) -> Self:
        raise_file_limit()
        await sweep_abandoned(self._parent, self._provider)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._sweep_again)
            state = StateDirectory.of_run(self._parent)
            stack.callback(state.close)
            proxy = await stack.enter_async_context(Proxy(self._proxy_settings))
            self.proxy_url = proxy.url
            self.sandboxes = await stack.enter_async_context(
                Sandboxes(
                    self._settings,
                    self._provider,
                    LoadedEnvironments(self._catalog),
                    state,
                    Routes(proxy.routes, fingerprint(self._token)),
                    self._http,
                    proxy_url=proxy.url,
                )
            )
            state.of_provider(self._provider.name)  # known now that it is open; nothing has been started yet
            app, guard = controller_app(self.sandboxes, self._catalog), guard_of(self._settings, self._token)
            listener = await stack.enter_async_context(
                Listener(app, guard, host=self._settings.host, port=self._settings.port)
            )
            self.url = listener.url
            state.announce(listener.url, proxy.url)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _sweep_again(self) -> None:
        """For what an engine has made since the first sweep, and what of this run could not be removed in time. What
        fails is left to the next run."""
        try:
            async with asyncio.timeout(LONGEST_GOODBYE):
                await sweep_abandoned(self._parent, self._provider)
        except (Problem, TimeoutError) as error:
            log.warning("what runs have left behind is left to the next sweep: %s", error or "no time is left")

    def sandbox(
        self, environment: Environment, *, id: str | None = None
    ) -> AbstractAsyncContextManager[SandboxClient]:
        """A sandbox of its own within the block; it waits for a place while `max_sandboxes` are in use, and is deleted
        on every way out. Leaving never raises.

        Raises:
            Problem: (on entering) see `Sandboxes.create`.
        """
        return self.local().sandbox(environment, id=id)

    def local(self, claim: Claim = Claim()) -> LocalController:
        """The same for rollouts on this account."""
        return LocalController(self.sandboxes, self._http, self._judge, claim)

    async def judge(self) -> Judge:
        """
        Raises:
            JudgeFailed: there is none.
        """
        return await self.local().judge()
