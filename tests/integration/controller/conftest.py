"""A controller as a process of its own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

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

{before}

async def main(state, environments, token):
    logs.setup(form="json")
    async with HttpClient() as http, Proxy(ProxySettings()) as proxy:
        await serve_controller(
            ControllerSettings(port=0, {settings}), ProcessProvider(), Catalog([Path(environments)]),
            StateDirectory.main(Path(state)), proxy.routes, token, http, proxy_url=proxy.url,
            started=lambda listener: print(listener.url, flush=True),
        )

asyncio.run(main(*sys.argv[1:]))
"""

Start = Callable[[], Any]


@pytest.fixture
def server(state_folder: Path, token: str) -> Start:
    """Starts a controller's process: `async with server() as (process, url)`.

    Args of what it gives:
        settings: more fields of ControllerSettings, as code.
        before: code that its process runs first.
    """

    @asynccontextmanager
    async def start(settings: str = "", before: str = "") -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
        process = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-c",
                MAIN.format(settings=settings, before=before),
                str(state_folder),
                str(ROOT / "environments"),
                token,
            ),
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
