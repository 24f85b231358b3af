"""A controller that is killed leaves its sandboxes running, and the next one takes them over."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from gymbox.environment import Catalog
from gymbox.errors import SandboxEnded
from gymbox.providers.container import CONTROLLER_LABEL
from gymbox_sandbox.lifecycle import CreateSandbox

ROOT = Path(__file__).parents[3]
COUNT = 20


async def test_all_sandboxes_of_a_killed_controller_are_adopted_and_none_is_leaked(controller, engine, state):
    counter = Catalog([ROOT / "environments"])["counter"]
    async with controller() as (process, client):
        ids = [f"s{n}" for n in range(COUNT)]
        made = await asyncio.gather(*(client.create(CreateSandbox(id=id, environment="counter")) for id in ids))
        for view in made:
            sandbox = client.open(view, counter.manifest)
            await sandbox.reset({"initial_count": 40})
            await sandbox.tools.call("increment_counter", {"count": 2})
        # one whose end was asked for must not come back: its controller dies before it is removed
        (state / "main" / "deletes" / made[0].container).touch()
        process.send_signal(signal.SIGKILL)
        await process.wait()

    async with controller() as (process, client):
        adopted = {view.id: view for view in await client.sandboxes()}
        assert adopted.keys() == set(ids[1:])
        assert {view.status for view in adopted.values()} == {"ready"}
        for view in made[1:]:
            sandbox = client.open(view.model_copy(update={"url": (await client.get(view.id)).url}), counter.manifest)
            assert (await sandbox.call_tool("get_counter_value", {})).output == '{"count":42}'
        assert (await client.create(CreateSandbox(id="s1", environment="counter"))).container == made[1].container

        engine.containers.get(made[1].container).kill()
        ended = (await client.get("s1", wait_ended=30)).ended
        assert ended is not None and ended.cause == "killed"
        with pytest.raises(SandboxEnded):
            await client.open(await client.get("s1"), counter.manifest).call_tool("get_counter_value", {})

        await asyncio.gather(*(client.delete(id) for id in ids[1:]))
        label = f"{CONTROLLER_LABEL}={(state / 'main' / 'id').read_text()}"
        assert engine.containers.list(all=True, ignore_removed=True, filters={"label": label}) == []
        assert os.listdir(state / "main" / "s") == []
        process.terminate()
        assert await process.wait() == 0
