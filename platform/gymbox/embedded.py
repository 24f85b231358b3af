"""Embedded: controller and proxy inside this process, as `gymbox run` uses them.

Rollouts of this process reach a sandbox's socket without a hop between; the same sandboxes are shown by the REST API
and forwarded by the proxy on loopback ports, so that `gymbox sandbox ls` and other tools see them.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Self

from gymbox_sandbox.lifecycle import CreateSandbox, Ended, fingerprint
from gymbox_sandbox.wire import SESSION_HEADER

from gymbox.controller.app import controller_app
from gymbox.controller.containers import sweep_abandoned
from gymbox.controller.environments import LoadedEnvironments
from gymbox.controller.routes import Routes
from gymbox.controller.sandboxes import Sandbox, Sandboxes
from gymbox.controller.server import guard_of
from gymbox.controller.settings import ControllerSettings
from gymbox.controller.state import StateDirectory
from gymbox.environment import Catalog, Environment
from gymbox.errors import JudgeFailed
from gymbox.http import HttpClient
from gymbox.judge import Judge
from gymbox.lifetime import raise_file_limit
from gymbox.providers import SandboxProvider
from gymbox.proxy.server import Proxy
from gymbox.proxy.settings import ProxySettings
from gymbox.sandbox_client import ENDED_WAIT, Reach, SandboxClient
from gymbox.serving import Listener

log = logging.getLogger(__name__)

LEASE = 86_400.0
"""Seconds: the caller lives in this process, so only its end can orphan a sandbox, and the next start sweeps that."""


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
        self._places = asyncio.Semaphore(self._settings.max_sandboxes)  # first come, first served
        self._stack = AsyncExitStack()
        self.url = ""
        """Of the REST API."""
        self.proxy_url = ""
        self.sandboxes: Sandboxes

    async def __aenter__(self) -> Self:
        raise_file_limit()
        await sweep_abandoned(self._parent, self._provider)
        async with AsyncExitStack() as stack:
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

    def sandbox(
        self, environment: Environment, *, id: str | None = None
    ) -> AbstractAsyncContextManager[SandboxClient]:
        """A sandbox of its own within the block; it waits for a place while `max_sandboxes` are in use, and is deleted
        on every way out. Leaving never raises.

        Raises:
            Problem: (on entering) see `Sandboxes.create`.
        """
        return self._sandbox(environment, id or f"{environment.name}-{secrets.token_hex(8)}")

    @asynccontextmanager
    async def _sandbox(self, environment: Environment, id: str) -> AsyncIterator[SandboxClient]:
        async with self._places, self._placed(environment, self._unused(id)) as sandbox:
            yield sandbox

    @asynccontextmanager
    async def _placed(self, environment: Environment, id: str) -> AsyncIterator[SandboxClient]:
        request = CreateSandbox.model_construct(id=id, environment=environment.name, lease=LEASE, labels={}, wait=True)
        try:
            yield self._client(await self.sandboxes.create(request, environment))
        finally:
            if id in self.sandboxes:
                try:
                    await self.sandboxes.delete(id)
                except Exception:
                    log.warning("cannot delete sandbox %s, which goes with this controller", id, exc_info=True)

    def _unused(self, id: str) -> str:
        """The id, with an ending if an earlier sandbox has used it up."""
        return f"{id[:90]}.{secrets.token_hex(3)}" if self.sandboxes.is_used_up(id) else id

    def _client(self, sandbox: Sandbox) -> SandboxClient:
        base, socket = sandbox.container.server()
        headers = {"Content-Type": "application/json"}
        if sandbox.route.session:
            headers[SESSION_HEADER] = sandbox.route.session
        reach = Reach(base=base, socket=socket, headers=headers, tools_headers=headers)

        async def why() -> Ended | None:
            try:
                async with asyncio.timeout(ENDED_WAIT):
                    await sandbox.over.wait()
            except TimeoutError:
                pass  # it lives, as far as anyone knows
            return sandbox.ended

        @asynccontextmanager
        async def fresh() -> AsyncIterator[SandboxClient]:
            await self.sandboxes.delete(sandbox.id)
            async with self._placed(sandbox.environment, f"{sandbox.id[:80]}.verify-{secrets.token_hex(3)}") as clean:
                yield clean

        return SandboxClient(sandbox.id, sandbox.environment.manifest, self._http, reach, why, fresh, self.judge)

    async def judge(self) -> Judge:
        """
        Raises:
            JudgeFailed: there is none.
        """
        if self._judge is None:
            raise JudgeFailed("this environment needs a judge, and this run has none: add judge=…")
        return self._judge
