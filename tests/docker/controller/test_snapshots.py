"""Snapshots, forks and pauses of containers, through the REST API, and what of them a killed controller leaves."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest
from gymbox.client import ControllerClient
from gymbox.environment import Catalog
from gymbox.errors import Conflict, ErrorKind, Gone, RolloutError, SandboxEnded, Stage
from gymbox_sandbox.lifecycle import CreateSandbox
from gymbox_sandbox.responses import Response

COUNTER = Catalog([Path(__file__).parents[3] / "environments"])["counter"]
LEAVE = """
echo kept > /workspace/file; echo home > ~/.config; echo temporary > /tmp/note; chmod 600 /tmp/note
chmod 711 ~; mkdir /tmp/closed && echo inside > /tmp/closed/file && chmod 0 /tmp/closed
"""
FOUND = """
cat /workspace/file ~/.config /tmp/note; stat -c '%n %a %U' /tmp ~ /tmp/note /tmp/closed /workspace
chmod 700 /tmp/closed; cat /tmp/closed/file; touch ~/new /tmp/new /workspace/new
"""


@pytest.fixture
def limited(state: Path) -> dict[str, str]:
    """Environments of these tests, by name: their manifests."""
    return {
        "brief": "timeouts: {task: 15}",
        "on_disk": "limits: {workspace: disk, workspace_mb: 64, memory_mb: 128}",
    }


@pytest.fixture
def own_environments(state: Path, limited: dict[str, str]) -> Path:
    for name, manifest in limited.items():
        folder = state / "environments" / name
        folder.mkdir(parents=True)
        (folder / "environment.yaml").write_text(f"description: For a test.\n{manifest}\n")
        (folder / "server.py").write_text((COUNTER.folder / "server.py").read_text())
    return state / "environments"


async def begun(client: ControllerClient, id: str = "first", environment: str = "counter") -> Any:
    view = await client.create(CreateSandbox(id=id, environment=environment))
    sandbox = client.open(view, COUNTER.manifest)
    await sandbox.reset({"id": "t", "initial_count": 40})
    await sandbox.call_tool("increment_counter", {"count": 2})
    return sandbox


async def value(sandbox: Any) -> str:
    return str((await sandbox.call_tool("get_counter_value", {})).output)


async def test_a_fork_has_all_files_of_its_sandbox_and_goes_on_from_there(controller: Any) -> None:
    async with controller() as (_, client):
        first = await begun(client)
        assert (await first.exec(LEAVE)).exit_code == 0
        forks = [client.open(view, COUNTER.manifest) for view in await client.fork("first", 2)]
        found = [(await box.exec(FOUND)).stdout for box in (first, *forks)]
        assert found[0] == found[1] == found[2] and "inside" in found[0] and "/home/agent 711 agent" in found[0]
        await forks[0].call_tool("increment_counter", {"count": 1})
        assert [await value(box) for box in (first, *forks)] == [f'{{"count":{n}}}' for n in (42, 43, 42)]
        verdict = await forks[1].verify({"id": "t", "expected_count": 42}, Response(output=[]))
        assert verdict.reward == 1.0


async def test_a_paused_sandbox_stands_still_and_is_refused_until_it_goes_on(controller: Any) -> None:
    async with controller() as (_, client):
        box = await begun(client)
        await box.exec("(while :; do date +%N > tick; sleep 0.05; done) & sleep 0.3")
        assert (await client.pause("first")).status == "paused"
        assert (await client.pause("first")).status == "paused"
        for call in (
            box.exec("true"),
            box.call_tool("get_counter_value", {}),
            box.verify({"id": "t", "expected_count": 42}, Response(output=[])),
            box.read_file("tick"),
            client.snapshot("first"),
            client.fork("first"),
        ):
            with pytest.raises(Conflict, match="paused") as raised:
                await call
            assert RolloutError.at(Stage.AGENT, raised.value).kind is ErrorKind.SANDBOX_UNREACHABLE
        before = (await client.get("first")).expires_at
        assert (await client.renew("first", 5000)).expires_at > before  # its lease goes on
        assert (await client.unpause("first")).status == "ready"
        assert (await client.unpause("first")).status == "ready"
        assert await value(box) == '{"count":42}'
        tick = await box.read_file("tick")
        await asyncio.sleep(0.3)
        assert await box.read_file("tick") != tick
        await client.pause("first")
        await client.delete("first")
        with pytest.raises(Gone):
            await client.unpause("first")


async def test_snapshots_and_pauses_outlive_a_killed_controller(controller: Any, state: Path) -> None:
    async with controller() as (process, client):
        box = await begun(client)
        await box.write_file("file", b"kept")
        await client.snapshot("first", name="kept")
        await client.create(CreateSandbox(id="second", environment="counter", snapshot="kept"))
        await client.pause("first")
        process.send_signal(signal.SIGKILL)
        await process.wait()
    # what it may have left half done
    (state / "main" / "snapshots" / "half.tar").write_bytes(b"half")

    async with controller() as (_, client):
        assert {view.id: view.status for view in await client.sandboxes()} == {"first": "paused", "second": "ready"}
        (kept,) = await client.snapshots()
        assert (kept.id, kept.used_by, kept.image is not None) == ("kept", ["second"], True)
        assert not (state / "main" / "snapshots" / "half.tar").exists()
        await client.unpause("first")
        view = await client.create(CreateSandbox(id="third", environment="counter", snapshot="kept"))
        third = client.open(view, COUNTER.manifest)
        assert await value(third) == '{"count":42}' and await third.read_file("file") == b"kept"
        await asyncio.gather(*(client.delete(id) for id in ("first", "second", "third")))


async def test_a_task_that_lives_too_long_is_ended_as_that(controller: Any, own_environments: Path) -> None:
    async with controller("--environments", str(own_environments)) as (_, client):
        box = await begun(client, environment="brief")
        other = await begun(client, "other")
        ended = (await client.get("first", wait_ended=60)).ended
        assert ended is not None and (ended.cause, "timeouts.task" in ended.detail) == ("timeout", True)
        with pytest.raises(SandboxEnded) as raised:
            await value(box)
        assert RolloutError.at(Stage.AGENT, raised.value).kind is ErrorKind.TIMED_OUT
        assert await value(other) == '{"count":42}'


async def test_a_workspace_on_disk_is_saved_too(controller: Any, own_environments: Path) -> None:
    async with controller("--environments", str(own_environments)) as (_, client):
        box = await begun(client, environment="on_disk")
        await box.exec("head -c 30000000 /dev/urandom > big; truncate -s 1G hole; sha256sum big > sum")
        (view,) = await client.fork("first")
        fork = client.open(view, COUNTER.manifest)
        assert (await fork.exec("sha256sum -c sum && stat -c %s hole && du -k hole")).stdout.split() == [
            *("big:", "OK", str(1 << 30), "0", "hole")
        ]
