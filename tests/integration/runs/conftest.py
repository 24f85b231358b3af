"""A controller that does runs, on real ports, with sandboxes as processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from gymbox.controller.app import controller_app
from gymbox.controller.server import guard_of
from gymbox.embedded import EmbeddedController
from gymbox.environment import Catalog
from gymbox.http import HttpClient
from gymbox.runs.client import RunsClient
from gymbox.runs.controller_source import sourcing_of, sweep
from gymbox.runs.places import Places
from gymbox.runs.served import ServedRuns
from gymbox.runs.view import RunView
from gymbox.serving import Listener

ROOT = Path(__file__).parents[3]


class Server:
    """The runs of one controller, and its address."""

    def __init__(self, runs: ServedRuns, url: str, token: str, http: HttpClient) -> None:
        self.runs = runs
        self.url = url
        self.token = token
        self.headers = {"Authorization": f"Bearer {token}"}
        self.client = RunsClient(http, url=url, token=token)

    async def until(self, id: str, condition: Callable[[RunView], bool]) -> RunView:
        """The first view for which it holds."""
        async with asyncio.timeout(120):
            while not condition(view := await self.client.get(id)):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return view


Serve = Callable[[], Awaitable[Server]]


@pytest.fixture
async def serve(
    controller: EmbeddedController,
    catalog: Catalog,
    state_folder: Path,
    token: str,
    http: HttpClient,
    tmp_path: Path,
) -> AsyncIterator[Callable[..., object]]:
    """Opens the runs in one folder; again, for the next controller that has it."""

    @asynccontextmanager
    async def serving(*, most: int = 4) -> AsyncIterator[Server]:
        places = Places((ROOT / "environments",), state_folder, tmp_path / "cache", token)
        sandboxes = controller.sandboxes
        async with AsyncExitStack() as stack:
            runs = await stack.enter_async_context(
                ServedRuns(
                    tmp_path / "runs",
                    catalog,
                    places,
                    sourcing_of(sandboxes, controller.proxy_url, token),
                    sweep=partial(sweep, sandboxes),
                    most=most,
                )
            )
            app = controller_app(sandboxes, catalog)
            runs.extend(app)
            listener = await stack.enter_async_context(Listener(app, guard_of(sandboxes.settings, token)))
            yield Server(runs, listener.url, token, http)

    yield serving


@pytest.fixture
async def server(serve: Callable[..., object]) -> AsyncIterator[Server]:
    async with serve() as found:  # type: ignore[attr-defined]
        yield found
