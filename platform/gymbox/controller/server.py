"""Server: a controller as a process of its own, from start to SIGTERM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
    started: Callable[[Listener], Any] | None = None,
) -> None:
    """Serve the REST API until SIGTERM; sandboxes live on, and the next controller with this state adopts them.

    Args:
        sink: takes the routes of every sandbox; it is sent them again and again, so that it may be restarted.
        token: the admin token.
        proxy_url: where clients reach the proxy.

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
    async with Sandboxes(settings, provider, environments, state, routes, http, proxy_url=proxy_url) as sandboxes:
        await serve(
            controller_app(sandboxes, catalog),
            guard_of(settings, token),
            host=settings.host,
            port=settings.port,
            drain=settings.drain,
            started=announce,
            draining=sandboxes.drain,
        )
