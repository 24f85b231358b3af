"""`gymbox serve`: one server in this process, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gymbox import logs
from gymbox.cli import Commands
from gymbox.cli.places import (
    admin_token,
    cache_folder,
    data_folder,
    environment_folders,
    state_folder,
    token_place,
)
from gymbox.cli.serve_e2b import e2b
from gymbox.cli.servers import (
    AGENT_PORT,
    CONTROLLER_PORT,
    MODEL_PORT,
    PROXY_PORT,
    AllowedHosts,
    Controller,
    ControllerTokenFile,
    Folders,
    Host,
    LogFormat,
    Overrides,
    ProxyUrl,
    run_server,
)
from gymbox.cli.token_files import token_in, write_tokens
from gymbox.errors import ConfigError

if TYPE_CHECKING:
    from gymbox.config import Settings
    from gymbox.http import HttpClient
    from gymbox.models import Model
    from gymbox.serving import Listener

log = logging.getLogger(__name__)
app = typer.Typer(
    cls=Commands,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Start a server; it runs until SIGTERM or Ctrl-C.",
)


@app.command()
def controller(
    overrides: list[str] = Overrides,
    host: str = Host,
    port: int = typer.Option(CONTROLLER_PORT, help="0 takes a free one."),
    allowed_hosts: list[str] = AllowedHosts,
    max_sandboxes: int = typer.Option(256, min=1, help="Sandboxes at once; more wait, or are answered with 429."),
    max_waiting: int = typer.Option(4096, min=0, help="Requests that may wait in line for a place."),
    max_starting: int = typer.Option(
        None, min=1, help="Containers that start at once; others wait in line. Default: 1.5 a processor, at least 2."
    ),
    lease: float = typer.Option(
        600,
        min=1,
        max=86_400,
        help="Seconds after which a sandbox that nobody renews is removed; a request may differ.",
    ),
    idle: float = typer.Option(5, min=0, help="Seconds for which an empty container that tasks share is kept."),
    drain: float = typer.Option(30, min=0, help="Seconds that starts in flight get to finish when it is stopped."),
    snapshot_mb: int = typer.Option(10_240, min=1, help="Megabytes that snapshots may take; the longest unused go."),
    snapshot_age: float = typer.Option(604_800, min=1, help="Seconds for which an unused snapshot is kept."),
    state: Path = typer.Option(None, help="Folder for its state and the sandboxes' sockets; must be short."),
    runs: Path = typer.Option(
        None, help="Folder for the runs that it is asked to do; default: gymbox/runs of this user's data."
    ),
    max_runs: int = typer.Option(8, min=1, help="Such runs at once; more are answered with 429."),
    environments: list[Path] = Folders,
    proxy_socket: Path = typer.Option(None, help="Admin socket of a proxy; without one, a proxy starts in here."),
    proxy_url: str = typer.Option(None, help="Where clients reach that proxy."),
    proxy_port: int = typer.Option(PROXY_PORT, help="Port of the proxy that starts in here."),
    models_url: str = typer.Option(
        None, help="Where this machine reaches the proxy, for model calls of sandboxes; default: where clients do."
    ),
    share_tokens: Path = typer.Option(None, help="Folder where servers beside this one find their tokens."),
    log_format: str = LogFormat,
) -> None:
    """The REST API that creates, shows, renews and deletes sandboxes, and does runs.

    \b
    gymbox serve controller provider=docker

    Sandboxes outlive it; the next one with the same --state adopts them. The provider is set as for `gymbox run`, and
    so are pools (`pools.NAME.target=…`) and what a proxy that starts in here lets through (`proxy.NAME=…`).
    """
    from gymbox.controller.settings import ControllerSettings

    given = _settings(overrides)
    provider = given.provider
    settings = ControllerSettings(
        host=host,
        port=port,
        allowed_hosts=tuple(allowed_hosts),
        max_sandboxes=max_sandboxes,
        max_waiting=max_waiting,
        max_starting=max_starting,
        lease=lease,
        idle=idle,
        drain=drain,
        snapshot_mb=snapshot_mb,
        snapshot_age=snapshot_age,
        models_url=models_url,
        pools=given.pools,
    )
    if (proxy_socket is None) != (proxy_url is None):
        raise ConfigError("--proxy-socket and --proxy-url belong together: give both, or none")
    if proxy_socket is not None and given.proxy.model_fields_set:
        raise ConfigError("proxy.* is for a proxy that starts in here: set it where the one of --proxy-socket starts")
    token = admin_token()
    if share_tokens is not None:
        write_tokens(share_tokens, token)

    async def main(http: HttpClient) -> None:
        from gymbox.controller.routes import RemoteRoutes, RouteSink
        from gymbox.controller.sandboxes import Sandboxes
        from gymbox.controller.server import serve_controller
        from gymbox.controller.state import StateDirectory
        from gymbox.environment import Catalog
        from gymbox.proxy import Proxy, ProxySettings
        from gymbox.runs.controller_source import sourcing_of, sweep
        from gymbox.runs.places import Places
        from gymbox.runs.served import ServedRuns

        async with AsyncExitStack() as stack:
            sink: RouteSink
            if proxy_socket is not None and proxy_url is not None:
                sink, url = RemoteRoutes(http, socket=str(proxy_socket)), proxy_url
            else:
                allowed = (*ProxySettings().allowed_hosts, *allowed_hosts)
                limits = given.proxy.model_dump()
                proxy = await stack.enter_async_context(
                    Proxy(ProxySettings(host=host, port=proxy_port, allowed_hosts=allowed, **limits))
                )
                sink, url = proxy.routes, proxy.url
            held = StateDirectory.main(state or state_folder())
            stack.callback(held.close)
            folders = environments or environment_folders()
            catalog = Catalog(folders)
            places = Places(tuple(folders), state or state_folder(), cache_folder(), token)

            def served(sandboxes: Sandboxes) -> ServedRuns:
                sourcing = sourcing_of(sandboxes, url, token)
                return ServedRuns(
                    runs or data_folder() / "runs",
                    catalog,
                    places,
                    sourcing,
                    sweep=partial(sweep, sandboxes),
                    most=max_runs,
                )

            def tell(listener: Listener) -> None:
                log.info("its API is described at %s/docs; the token for it is in %s", listener.url, token_place())
                log.info("sandboxes are reached through %s and held by %s", url, provider.name)

            await serve_controller(
                settings, provider, catalog, held, sink, token, http, proxy_url=url, guests=served, started=tell
            )

    run_server(main, log_format)


@app.command()
def proxy(
    overrides: list[str] = typer.Argument(
        None, metavar="proxy.NAME=VALUE...", help="What it lets through; see docs/reference/configuration.md."
    ),
    host: str = Host,
    port: int = typer.Option(PROXY_PORT, help="0 takes a free one."),
    allowed_hosts: list[str] = AllowedHosts,
    admin_socket: Path = typer.Option(..., help="Unix socket on which the controller pushes routes."),
    models: list[str] = typer.Option([], "--model", metavar="NAME=URL", help="Server at /models/NAME; repeatable."),
    agents: list[str] = typer.Option([], "--agent", metavar="NAME=URL", help="Server at /agents/NAME; repeatable."),
    upstream_token_file: Path = typer.Option(None, help="Bearer token that models and agents ask for."),
    log_format: str = LogFormat,
) -> None:
    """The one address through which agents and models reach sandboxes and model servers.

    \b
    gymbox serve proxy --admin-socket=/run/proxy.sock proxy.idle_timeout=3600 proxy.max_connections=1024

    It needs no controller to start: it answers /readyz once one has pushed its routes.
    """
    from pydantic import ValidationError

    from gymbox.environment import explain
    from gymbox.proxy import ProxySettings

    if others := [text for text in overrides or [] if not text.startswith("proxy.")]:
        raise ConfigError(f"{others[0]!r} is nothing of a proxy: write proxy.NAME=VALUE")
    upstream = token_in(upstream_token_file)
    fields = {
        **_settings(overrides).proxy.model_dump(),
        "host": host,
        "port": port,
        "allowed_hosts": (*ProxySettings().allowed_hosts, *allowed_hosts),
        "admin_socket": admin_socket,
        "models": {name: {"url": url, "token": upstream} for name, url in map(_named, models)},
        "agents": {name: {"url": url, "token": upstream} for name, url in map(_named, agents)},
    }
    try:
        settings = ProxySettings.model_validate(fields)
    except ValidationError as error:
        raise ConfigError(f"this proxy cannot be:\n{explain(error, list(fields))}") from error

    async def main(_: HttpClient) -> None:
        from gymbox.lifetime import raise_file_limit, until_signalled
        from gymbox.proxy import Proxy

        raise_file_limit()
        async with until_signalled() as stop, Proxy(settings) as proxy:
            log.info("answering on %s", proxy.url)
            await stop.wait()

    run_server(main, log_format)


@app.command()
def model(
    overrides: list[str] = Overrides,
    host: str = Host,
    port: int = typer.Option(MODEL_PORT, help="0 takes a free one."),
    allowed_hosts: list[str] = AllowedHosts,
    token_file: Path = typer.Option(None, help="Bearer token that callers must bring; default: the admin token."),
    capture_dir: Path = typer.Option(None, help="Folder in which calls are recorded, without secrets."),
    capture_rate: float = typer.Option(1.0, min=0, max=1, help="Part of the rollouts whose calls are recorded."),
    log_format: str = LogFormat,
) -> None:
    """A model over HTTP, or several: /v1/responses, /v1/chat/completions, /v1/messages.

    \b
    gymbox serve model model=local
    gymbox serve model models.small=local models.big=openai models.big.name=gpt-4.1

    A request's `model` picks among several.
    """
    settings = _settings(overrides)
    served = settings.models or {settings.model.name: settings.model}
    for each in served.values():
        each.check()
    token = token_in(token_file) or admin_token()

    async def main(http: HttpClient) -> None:
        from gymbox.models.server import ModelServer

        async with _recorded(served, capture_dir, capture_rate) as models:
            app = ModelServer(models, http).setup_webserver()
            await _serve(app, token, host, port, allowed_hosts, takes_api_key=True)

    run_server(main, log_format)


@app.command()
def agent(
    overrides: list[str] = Overrides,
    controller: str = Controller,
    proxy_url: str = ProxyUrl,
    environment: str = typer.Option(None, help="Environment for callers that name none."),
    environments: list[Path] = Folders,
    host: str = Host,
    port: int = typer.Option(AGENT_PORT, help="0 takes a free one."),
    allowed_hosts: list[str] = AllowedHosts,
    token_file: Path = typer.Option(None, help="Bearer token that callers must bring; default: the admin token."),
    controller_token_file: Path = ControllerTokenFile,
    log_format: str = LogFormat,
) -> None:
    """An agent with its model over HTTP: /run and /v1/responses.

    \b
    gymbox serve agent agent=tool_loop model=local --environment counter

    Environments that need a judge ask the proxy's (/models/judge), or the one that judge= names.
    """
    settings = _settings(overrides)
    for each in filter(None, (settings.model, settings.judge)):
        each.check()
    admin = token_in(controller_token_file) or admin_token()
    token = token_in(token_file) or admin

    async def main(http: HttpClient) -> None:
        from gymbox.agents.server import AgentServer
        from gymbox.client import ControllerClient
        from gymbox.environment import Catalog
        from gymbox.judge import judge_of

        async with judge_of(settings.judge, http) as judge:
            client = ControllerClient(controller, admin, http, proxy_url=proxy_url, judge=judge)
            catalog = Catalog(environments or environment_folders())
            server = AgentServer(settings.agent, settings.model, client, catalog, http, environment=environment)
            await _serve(server.setup_webserver(), token, host, port, allowed_hosts)

    run_server(main, log_format)


async def _serve(
    app: object, token: str, host: str, port: int, allowed_hosts: list[str], *, takes_api_key: bool = False
) -> None:
    from gymbox.guard import LOOPBACK_HOSTS, Guard
    from gymbox.serving import serve

    guard = Guard(
        token=token,
        takes_api_key=takes_api_key,
        hosts=(*LOOPBACK_HOSTS, *allowed_hosts),
        own_pages=True,
        body_limit=64 * 1024 * 1024,
    )
    await serve(app, guard, host=host, port=port)  # type: ignore[arg-type]


@asynccontextmanager
async def _recorded(models: dict[str, Model], folder: Path | None, rate: float) -> AsyncIterator[dict[str, Model]]:
    """The models, recorded where there is a folder for it."""
    if folder is None:
        yield models
        return
    from gymbox.models.capture import Capture
    from gymbox.models.recorded import recorded

    async with Capture(folder, mode="sampled", rate=rate, secrets=logs.hidden()) as capture:
        yield recorded(models, capture)


def _settings(overrides: list[str] | None) -> Settings:
    """What the overrides say; only the parts that a server is made of are used."""
    from gymbox.config import compose

    sys.path.append("")  # so that _target_ finds a class in the working directory
    return compose(["environment=none", *(overrides or [])])


def _named(pair: str) -> tuple[str, str]:
    name, equals, url = pair.partition("=")
    if not equals:
        raise ConfigError(f"{pair!r}: write NAME=URL")
    return name, url


app.command()(e2b)
