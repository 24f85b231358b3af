"""Servers: what the commands that start one have in common: options, and how it runs to its end."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import typer

from gymbox import logs
from gymbox.cli.terminals import is_terminal
from gymbox.errors import ConfigError

if TYPE_CHECKING:
    from gymbox.http import HttpClient

CONTROLLER_PORT, PROXY_PORT, MODEL_PORT, AGENT_PORT, E2B_PORT = 8710, 8711, 8720, 8730, 8740

Host = typer.Option("127.0.0.1", help="Address to listen on; one that others reach needs --allowed-host.")
AllowedHosts = typer.Option([], "--allowed-host", help="Name that clients call it by (Host header); may be repeated.")
Overrides = typer.Argument(None, metavar="NAME=VALUE...", help="Settings as for `gymbox run`.")
Controller = typer.Option(f"http://127.0.0.1:{CONTROLLER_PORT}", help="Address of the controller.")
ProxyUrl = typer.Option(None, help="Where this process reaches the proxy; default: as the controller says.")
ControllerTokenFile = typer.Option(None, help="The controller's admin token; default: this user's.")
LogFormat = typer.Option("", help="json or console; default: console on a terminal, else json.")
Folders = typer.Option(
    [], "--folder", "-f", "--environments", help="Where environments are, as for `gymbox env`; may be repeated."
)


def run_server(main: Callable[[HttpClient], Awaitable[None]], log_format: str) -> None:
    """Run a server to its end, with logs and the one HTTP client of the process."""
    import uvloop  # servers do little but wait for sockets: a third less CPU a request than with asyncio's own loop

    log_format = log_format or ("console" if is_terminal(sys.stderr) else "json")
    if log_format not in ("json", "console"):
        raise ConfigError(f"--log-format {log_format}: it is json or console")
    logs.setup(form="json" if log_format == "json" else "console")

    async def with_client() -> None:
        from gymbox.http import HttpClient

        async with HttpClient() as http:
            await main(http)

    asyncio.run(with_client(), loop_factory=uvloop.new_event_loop)
