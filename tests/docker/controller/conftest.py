"""A controller as a process of its own on real containers, with a state that outlives it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from gymbox.client import ControllerClient
from gymbox.http import HttpClient

ROOT = Path(__file__).parents[3]
TOKEN = "gbx_admin_docker-tests-only"


@pytest.fixture
def controller(state: Path) -> Callable[..., Any]:
    """Starts `gymbox serve controller`: `async with controller() as (process, client)`."""

    @asynccontextmanager
    async def start(*more: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, ControllerClient]]:
        arguments = ["--port", "0", "--proxy-port", "0", "--state", str(state), "--max-starting", "4", *more]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", "from gymbox.cli import main; main()"),
            *("serve", "controller", "provider=docker", *arguments, "--environments", str(ROOT / "environments")),
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "GYMBOX_TOKEN": TOKEN},
            limit=1 << 20,
        )
        assert process.stderr is not None
        reading: asyncio.Task[bytes] | None = None
        try:
            async with HttpClient() as http, asyncio.timeout(280):
                line, said = "", ""
                while "answering on http" not in line:
                    line = (await process.stderr.readline()).decode()
                    said += line
                    assert line, f"the controller ended:\n{said}"
                reading = asyncio.create_task(process.stderr.read())  # or it would block on a full pipe
                url = line.split("answering on ")[1].split('"')[0]
                yield process, ControllerClient(url, TOKEN, http)
        finally:
            if process.returncode is None:
                process.terminate()
            await (reading or process.stderr.read())
            await process.wait()

    return start
