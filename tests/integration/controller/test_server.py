"""A controller as a process of its own: it starts, is asked to stop, and another takes its place."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
from gymbox.client import ControllerClient
from gymbox.controller.state import StateDirectory, find_controller
from gymbox.errors import ConfigError, Unavailable
from gymbox_sandbox.lifecycle import CreateSandbox


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


async def test_a_controller_whose_sandboxes_end_with_it_does_not_say_that_they_stay(server, http, token, state_folder):
    async with server(
        'pools={"counter": PoolSettings(target=1)}', "from gymbox_sandbox.lifecycle import *"
    ) as started:
        process, url = started
        await ControllerClient(url, token, http).create(CreateSandbox(id="s1", environment="counter"))
        process.send_signal(signal.SIGTERM)
        said = (await process.stderr.read()).decode()
        assert await process.wait() == 0
    assert "sandbox s1 of counter" in said and "the next start" not in said
    assert os.listdir(state_folder / "main" / "deletes") == []


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
