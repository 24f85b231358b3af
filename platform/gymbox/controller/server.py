"""Server: a controller as a process of its own, from start to SIGTERM."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, Protocol

from fastapi import FastAPI
from gymbox_sandbox.lifecycle import fingerprint

from gymbox.controller.app import controller_app
from gymbox.controller.environments import LoadedEnvironments
from gymbox.controller.routes import REFRESH, Routes, RouteSink
from gymbox.controller.sandboxes import Sandboxes
from gymbox.controller.settings import ControllerSettings
from gymbox.controller.state import StateDirectory
from gymbox.environment import Catalog
from gymbox.guard import LOOPBACK_HOSTS, Guard
from gymbox.http import HttpClient
from gymbox.providers import SandboxProvider
from gymbox.serving import Listener, serve


def guard_of(settings: ControllerSettings, token: str) -> Guard:
    """Who may call a controller."""
    hosts = (*LOOPBACK_HOSTS, *settings.allowed_hosts)
    return Guard(token=token, hosts=hosts, origins=settings.allowed_origins, own_pages=True)


class Guests(Protocol):
    """What else a controller's process does, with its sandboxes."""

    def extend(self, app: FastAPI) -> None:
        """Add routes to its API."""

    async def drain(self, seconds: float) -> None:
        """Stop softly, within about so many seconds."""


async def serve_controller(
    settings: ControllerSettings,
    provider: SandboxProvider,
    catalog: Catalog,
    state: StateDirectory,
    sink: RouteSink,
    token: str,
    http: HttpClient,
    *,
    proxy_url: str,
    guests: Callable[[Sandboxes], AbstractAsyncContextManager[Guests]] | None = None,
    started: Callable[[Listener], Any] | None = None,
) -> None:
    """Serve the REST API until SIGTERM; sandboxes live on, and the next controller with this state adopts them.

    Args:
        sink: takes the routes of every sandbox; it is sent them again and again, so that it may be restarted.
        token: the admin token.
        proxy_url: where clients reach the proxy.
        guests: what else this process does; it is stopped before sandboxes are refused.

    Raises:
        ConfigError: the address cannot be listened on.
        Unavailable: the provider's technology does not answer.
    """
    routes = Routes(sink, fingerprint(token), refresh=REFRESH)

    def announce(listener: Listener) -> None:
        state.announce(listener.url, proxy_url)
        if started is not None:
            started(listener)

    environments = LoadedEnvironments(catalog)
    async with AsyncExitStack() as stack:
        sandboxes = await stack.enter_async_context(
            Sandboxes(settings, provider, environments, state, routes, http, proxy_url=proxy_url)
        )
        app = controller_app(sandboxes, catalog)
        others = None if guests is None else await stack.enter_async_context(guests(sandboxes))
        if others is not None:
            others.extend(app)

        async def drain() -> None:
            if others is not None:
                await others.drain(settings.drain)
            await sandboxes.drain()

        await serve(
            app,
            guard_of(settings, token),
            host=settings.host,
            port=settings.port,
            drain=settings.drain,
            started=announce,
            draining=drain,
        )
