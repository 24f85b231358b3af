"""Local controller: the sandboxes of a controller in this process, without a hop between."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

from gymbox_sandbox.lifecycle import CreateSandbox, Ended, Forecast
from gymbox_sandbox.wire import SESSION_HEADER

from gymbox.controller.line import Claim
from gymbox.controller.sandbox import Sandbox
from gymbox.controller.sandboxes import Sandboxes
from gymbox.environment import Environment
from gymbox.errors import JudgeFailed, SandboxPaused
from gymbox.http import HttpClient
from gymbox.judge import Judge
from gymbox.sandbox_calls import ENDED_WAIT, Reach
from gymbox.sandbox_client import SandboxClient

log = logging.getLogger(__name__)

LEASE = 86_400.0
"""Seconds: the caller lives in this process, so only its end can orphan a sandbox, and the next start sweeps that."""


class LocalController:
    """What rollouts of this process need of the controller in it.

    Args:
        judge: what the verifiers ask that need a judge.
        claim: on whose account places are asked for.
    """

    def __init__(
        self, sandboxes: Sandboxes, http: HttpClient, judge: Judge | None = None, claim: Claim = Claim()
    ) -> None:
        self._sandboxes = sandboxes
        self._http = http
        self._judge = judge
        self._claim = claim

    def sandbox(
        self, environment: Environment, *, id: str | None = None
    ) -> AbstractAsyncContextManager[SandboxClient]:
        """A sandbox of its own within the block; it waits for a place while `max_sandboxes` are in use, and is deleted
        on every way out. Leaving never raises.

        Raises:
            Problem: (on entering) see `Sandboxes.create`.
        """
        return self._placed(environment, self._unused(id or f"{environment.name}-{secrets.token_hex(8)}"))

    async def forecast(self, environment: str, sandboxes: int) -> None:
        """Tell how many sandboxes this account's run will still ask for.

        Raises:
            NotFound: there is no such environment.
        """
        self._sandboxes.pools.forecast(environment, self._claim.run, Forecast(sandboxes=sandboxes, lease=LEASE))

    @asynccontextmanager
    async def _placed(self, environment: Environment, id: str) -> AsyncIterator[SandboxClient]:
        request = CreateSandbox.model_construct(
            id=id,
            environment=environment.name,
            lease=LEASE,
            labels={},
            wait=True,
            run=self._claim.run,
            priority=self._claim.priority,
            share=self._claim.share,
            patience=LEASE,
        )
        try:
            yield self._client(await self._sandboxes.create(request, environment))
        finally:
            if id in self._sandboxes:
                try:
                    await self._sandboxes.delete(id)
                except Exception:
                    log.warning("cannot delete sandbox %s, which goes with this controller", id, exc_info=True)

    def _unused(self, id: str) -> str:
        """The id, with an ending if an earlier sandbox has used it up."""
        return f"{id[:90]}.{secrets.token_hex(3)}" if self._sandboxes.tombstones.is_used_up(id) else id

    def _client(self, sandbox: Sandbox) -> SandboxClient:
        base, socket = sandbox.container.server()
        headers = {"Content-Type": "application/json"}
        if sandbox.route.session:
            headers[SESSION_HEADER] = sandbox.route.session

        def check() -> None:
            if sandbox.container.paused:
                raise SandboxPaused(sandbox.id)

        reach = Reach(base=base, socket=socket, headers=headers, tools_headers=headers, check=check)

        async def why() -> Ended | None:
            try:
                async with asyncio.timeout(ENDED_WAIT):
                    await sandbox.over.wait()
            except TimeoutError:
                pass  # it lives, as far as anyone knows
            return sandbox.ended

        @asynccontextmanager
        async def fresh() -> AsyncIterator[SandboxClient]:
            await self._sandboxes.delete(sandbox.id)
            async with self._placed(sandbox.environment, f"{sandbox.id[:80]}.verify-{secrets.token_hex(3)}") as clean:
                yield clean

        found = SandboxClient(sandbox.id, sandbox.environment.manifest, self._http, reach, why, fresh, self.judge)
        found.lead_models = partial(self._sandboxes.ways_out.lead_models, sandbox)
        found.models_unanswered = partial(self._sandboxes.ways_out.models_unanswered, sandbox)
        return found

    async def judge(self) -> Judge:
        """
        Raises:
            JudgeFailed: there is none.
        """
        if self._judge is None:
            raise JudgeFailed("this environment needs a judge, and this run has none: add judge=…")
        return self._judge
