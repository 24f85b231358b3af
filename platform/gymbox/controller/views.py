"""Views: what is told about sandboxes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from gymbox_sandbox.lifecycle import SandboxView

from gymbox.controller.containers import Containers
from gymbox.controller.routes import Routes
from gymbox.controller.sandbox import Sandbox
from gymbox.controller.tokens import Tokens
from gymbox.network import told
from gymbox.providers import SandboxProvider


class Views:
    """Of one controller's sandboxes.

    Args:
        proxy_url: where clients reach the proxy; None: there is none.
    """

    def __init__(
        self, containers: Containers, provider: SandboxProvider, routes: Routes, tokens: Tokens, proxy_url: str | None
    ) -> None:
        self._containers = containers
        self._provider = provider
        self._routes = routes
        self._tokens = tokens
        self._proxy_url = proxy_url

    def status(self, sandbox: Sandbox) -> str:
        """`queued`, `starting`, `ready` (its route is in), `paused` or `ended`."""
        if sandbox.ended is not None:
            return "ended"
        if sandbox.routed is not None and self._routes.has_taken(sandbox.routed):
            return "paused" if sandbox.container.paused else "ready"
        return "starting" if "queued" in sandbox.container.times else "queued"

    def of(self, sandbox: Sandbox, *, tokens: bool = True) -> SandboxView:
        """What is told about it."""
        now, container = time.monotonic(), sandbox.container
        expires = sandbox.expires if sandbox.settled.is_set() else now + sandbox.lease
        return SandboxView.model_validate(
            {
                "id": sandbox.id,
                "environment": sandbox.environment.name,
                "status": self.status(sandbox),
                "network": told(sandbox.environment.manifest.network),
                "provider": self._provider.name,
                "image": container.started.image if container.started else None,
                "container": container.id,
                "url": self._proxy_url and f"{self._proxy_url}/sandboxes/{sandbox.id}",
                "tokens": self._tokens.of(sandbox.id) if tokens else None,
                "labels": sandbox.request.labels,
                "created_at": sandbox.created_at,
                "expires_at": time.time() + expires - now,
                "phases": sandbox.phases,
                "queue": None if sandbox.ended else self._containers.queue_place(container),
                "snapshot": sandbox.request.snapshot,
                "group": sandbox.group,
                "ended": sandbox.ended,
            }
        )

    async def logs(self, sandbox: Sandbox, tail: int = 100) -> str:
        """The last lines that its container printed; of one that has ended, those that were kept."""
        if sandbox.ended is not None:
            return "".join(sandbox.ended.logs.splitlines(keepends=True)[-tail:])
        return "" if sandbox.container.started is None else await self._containers.logs(sandbox.container, tail)

    async def learn_resets(self, sandboxes: Iterable[Sandbox]) -> None:
        """Ask the servers of those that are not known to have been reset; what one does not tell stays unknown."""
        asking = [each for each in sandboxes if each.routed and each.ended is None and each.reset is None]
        containers = {each.container for each in asking}
        told = dict(zip(containers, await asyncio.gather(*map(self._containers.resets, containers)), strict=True))
        now = time.monotonic()
        for each in asking:
            if (ago := told[each.container].get(each.route.session)) is not None:
                each.reset = now - ago
