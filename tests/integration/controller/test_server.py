"""A controller as a process of its own: it starts, is asked to stop, and another takes its place."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from gymbox.client import ControllerClient
from gymbox.controller.state import StateDirectory, find_controller
from gymbox.errors import ConfigError, Unavailable
from gymbox_sandbox.lifecycle import CreateSandbox

ROOT = Path(__file__).parents[3]
MAIN = """
import asyncio, sys
from pathlib import Path
from gymbox import logs
from gymbox.controller.server import serve_controller
from gymbox.controller.settings import ControllerSettings
from gymbox.controller.state import StateDirectory
from gymbox.environment import Catalog
from gymbox.http import HttpClient
from gymbox.providers.process import ProcessProvider
from gymbox.proxy.server import Proxy
from gymbox.proxy.settings import ProxySettings

async def main(state, environments, token):
    logs.setup(form="json")
    async with HttpClient() as http, Proxy(ProxySettings()) as proxy:
        await serve_controller(
            ControllerSettings(port=0), ProcessProvider(), Catalog([Path(environments)]),
            StateDirectory.main(Path(state)), proxy.routes, token, http, proxy_url=proxy.url,
            started=lambda listener: print(listener.url, flush=True),
        )

asyncio.run(main(*sys.argv[1:]))
"""

Start = Callable[[], Any]


@pytest.fixture
def server(state_folder: Path, token: str) -> Start:
    """Starts a controller's process: `async with server() as (process, url)`."""

    @asynccontextmanager
    async def start() -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", MAIN, str(state_folder), str(ROOT / "environments"), token),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(60):
                yield process, (await process.stdout.readline()).decode().strip()
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()

    return start


async def test_it_is_found_on_its_machine_while_it_lives(server, state_folder):
    assert find_controller(state_folder) is None
    async with server() as (process, url):
        found = find_controller(state_folder)
        assert (found.controller, found.pid) == (url, process.pid)
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    assert find_controller(state_folder) is None


async def test_a_second_controller_with_the_same_state_refuses(server, state_folder):
    async with server():
        with pytest.raises(ConfigError, match="another controller"):
            StateDirectory.main(state_folder)


async def test_asked_to_stop_it_finishes_the_start_in_flight(server, http, token):
    async with server() as (process, url):
        client = ControllerClient(url, token, http)
        creating = asyncio.create_task(client.create(CreateSandbox(id="s1", environment="counter")))
        while not [view async for view in _views(client)]:
            pass
        process.send_signal(signal.SIGTERM)

        assert (await creating).status == "ready"
        assert await process.wait() == 0


async def test_a_killed_controller_leaves_its_tokens_valid_for_the_next(server, http, token, state_folder):
    async with server() as (process, url):
        first = await ControllerClient(url, token, http).create(CreateSandbox(id="s1", environment="counter"))
        process.kill()
        await process.wait()
        with pytest.raises(Unavailable):
            await ControllerClient(url, token, http).get("s1")
    async with server() as (_, url):
        # processes end with their controller, so nothing was left to adopt, and the id is free
        assert os.listdir(state_folder / "main" / "deletes") == []
        again = await ControllerClient(url, token, http).create(CreateSandbox(id="s1", environment="counter"))
        assert again.tokens == first.tokens


async def _views(client: ControllerClient) -> AsyncIterator[Any]:
    for view in await client.sandboxes():
        yield view
