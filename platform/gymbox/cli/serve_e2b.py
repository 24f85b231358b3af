"""`gymbox serve e2b`: the server that E2B's SDK is pointed at."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gymbox.cli.places import admin_token
from gymbox.cli.servers import (
    E2B_PORT,
    AllowedHosts,
    Controller,
    ControllerTokenFile,
    Host,
    LogFormat,
    ProxyUrl,
    run_server,
)
from gymbox.cli.token_files import token_in

if TYPE_CHECKING:
    from gymbox.http import HttpClient


def e2b(
    controller: str = Controller,
    proxy_url: str = ProxyUrl,
    base: str = typer.Option(
        None, help="Environment for callers that name no template (E2B's `base`); default: the one named base."
    ),
    host: str = Host,
    port: int = typer.Option(E2B_PORT, help="0 takes a free one."),
    allowed_hosts: list[str] = AllowedHosts,
    token_file: Path = typer.Option(None, help="Key that callers must bring (X-API-KEY); default: the admin token."),
    controller_token_file: Path = ControllerTokenFile,
    log_format: str = LogFormat,
) -> None:
    """A controller's sandboxes for programs that use E2B's SDK.

    \b
    gymbox serve e2b --base counter
    E2B_API_URL=http://127.0.0.1:8740 E2B_SANDBOX_URL=http://127.0.0.1:8740 E2B_API_KEY=… python program.py

    Templates are the controller's environments and snapshots. Sandboxes that were made here end with it.
    """
    admin = token_in(controller_token_file) or admin_token()
    key = admin if token_file is None else token_in(token_file) or ""

    async def main(http: HttpClient) -> None:
        from gymbox.client import ControllerClient
        from gymbox.e2b.server import E2bServer, serve_e2b

        server = E2bServer(ControllerClient(controller, admin, http, proxy_url=proxy_url), key, base=base)
        await serve_e2b(server, host=host, port=port, allowed_hosts=allowed_hosts)

    run_server(main, log_format)
