"""Snapshots and forks through the REST API, with sandboxes as processes; tests/docker has what only containers do."""

from __future__ import annotations

import asyncio
import io
import os
from pathlib import Path
from typing import Any

import pytest
from gymbox.client import ControllerClient
from gymbox.controller.settings import ControllerSettings
from gymbox.embedded import EmbeddedController
from gymbox.environment import Catalog, Environment
from gymbox.errors import AtCapacity, Conflict, Gone, Invalid, NotFound, StartFailed
from gymbox_sandbox.lifecycle import CreateSandbox

NO_HOOKS = """
from gymbox_sandbox import ResourcesServer, Task

class Plain(ResourcesServer):
    async def reset(self, task: Task) -> None:
        (self.workspace / "given").exists()

    async def verify(self, task, response):
        return 0.0
"""
FAILS = """
from gymbox_sandbox import ResourcesServer

class Fails(ResourcesServer):
    async def snapshot(self):
        return {"held": 1}

    async def restore(self, task, state):
        raise RuntimeError("it cannot be restored")

    async def verify(self, task, response):
        return 0.0
"""


@pytest.fixture
def controller_settings() -> ControllerSettings:
    return ControllerSettings(port=0, lease=60, snapshot_mb=4, max_sandboxes=6)


@pytest.fixture
def catalog(state_folder: Path) -> Catalog:
    for name, server, more in (("plain", NO_HOOKS, ""), ("fails", FAILS, ""), ("shared", NO_HOOKS, "sessions: 2")):
        folder = state_folder / "environments" / name
        folder.mkdir(parents=True)
        (folder / "environment.yaml").write_text(f"description: For a test.\n{more}\n")
        (folder / "server.py").write_text(server)
    return Catalog([state_folder / "environments", Path(__file__).parents[3] / "environments"])


@pytest.fixture
async def counting(client: ControllerClient, counter: Environment) -> Any:
    """A sandbox whose counter is at 42, with a file."""
    view = await client.create(CreateSandbox(id="first", environment="counter"))
    sandbox = client.open(view, counter.manifest)
    await sandbox.reset({"id": "t", "initial_count": 40})
    await sandbox.call_tool("increment_counter", {"count": 2})
    await sandbox.write_file("notes/one", b"first")
    return sandbox


async def value(sandbox: Any) -> str:
    return str((await sandbox.call_tool("get_counter_value", {})).output)


async def test_sandboxes_begin_where_a_snapshot_was_taken(client, counting, counter):
    taken = await client.snapshot("first", name="at-42")
    assert (taken.environment, taken.sandbox, taken.state, taken.digest) == (
        "counter",
        "first",
        "saved",
        counter.digest,
    )
    assert taken.size > 0 and taken.files >= 3
    assert await client.snapshot("first", name="at-42") == taken  # asked again
    await counting.call_tool("increment_counter", {"count": 1})
    await counting.write_file("notes/one", b"changed")

    view = await client.create(CreateSandbox(id="second", environment="counter", snapshot="at-42"))
    second = client.open(view, counter.manifest)
    assert view.snapshot == "at-42" and view.phases.restored is not None
    assert await value(second) == '{"count":42}'
    assert await second.read_file("notes/one") == b"first"
    await second.reset({"id": "t", "initial_count": 40})  # it is already
    assert [each.used_by for each in await client.snapshots()] == [["second"]]
    with pytest.raises(Conflict):
        await client.create(CreateSandbox(id="second", environment="counter"))

    await client.delete_snapshot("at-42")
    assert await client.snapshots() == [] and await value(second) == '{"count":42}'
    with pytest.raises(NotFound, match="no snapshot"):
        await client.create(CreateSandbox(environment="counter", snapshot="at-42"))
    with pytest.raises(NotFound):
        await client.delete_snapshot("at-42")


async def test_a_fork_gives_all_or_none_and_leaves_no_snapshot(client, counting, counter, controller, state_folder):
    twice = await asyncio.gather(*(client.fork("first", 3, name="f", labels={"of": "first"}) for _ in range(2)))
    assert [view.id for view in twice[0]] == ["f.0", "f.1", "f.2"] == [view.id for view in twice[1]]
    boxes = [client.open(view, counter.manifest) for view in twice[0]]
    for number, box in enumerate(boxes):
        await box.call_tool("increment_counter", {"count": number})
    assert [await value(box) for box in boxes] == [f'{{"count":{n}}}' for n in (42, 43, 44)]
    assert await value(counting) == '{"count":42}'
    assert [view.id for view in await client.fork("first", 3, name="f", labels={"of": "first"})] == [
        "f.0",
        "f.1",
        "f.2",
    ]
    with pytest.raises(Conflict):
        await client.fork("first", 2, name="f")

    with pytest.raises(AtCapacity):  # there is room for two
        await client.fork("first", 3, name="g")
    assert {view.id for view in await client.sandboxes() if view.ended is None} == {"first", "f.0", "f.1", "f.2"}
    assert await client.snapshots() == []
    assert [path.name for path in state_folder.glob("run-*/snapshots/*")] == []
    grandchild = client.open((await client.fork("f.2", 1))[0], counter.manifest)
    assert await value(grandchild) == '{"count":44}'


async def test_who_attaches_to_a_sandbox_that_was_reset_has_its_tools(client, counting, counter):
    [fork] = await client.fork("first", 1, name="f")
    for id in ("first", fork.id):
        tools = (await client.attach(id)).tools
        assert tools.definitions == counting.tools.definitions != []
        assert (await tools.call("increment_counter", {"count": 2})).output == '{"success":true}'
        assert "increment_counter" in (await tools.call("nope", {})).output
    assert await value(await client.attach(fork.id)) == '{"count":44}'

    opened = client.open(fork, counter.manifest).tools  # without asking what there is
    with pytest.raises(Conflict, match="not known yet: reset it first"):
        assert opened.definitions
    assert (await opened.call("get_counter_value", {})).output == '{"count":44}'


async def test_a_tool_of_a_sandbox_that_was_not_reset_says_to_reset_first(client, counting, counter):
    await client.create(CreateSandbox(id="new", environment="counter"))
    early = await client.attach("new")
    with pytest.raises(Conflict, match="reset comes first"):
        await early.tools.call("increment_counter", {"count": 2})
    with pytest.raises(Conflict, match="reset it first"):
        assert early.tools.definitions
    await (await client.attach("new")).reset({"id": "t", "initial_count": 1})
    assert await value(early) == '{"count":1}'
    await early.load_tools()
    assert early.tools.definitions == counting.tools.definitions


async def test_what_cannot_be_saved_or_begun_with_is_told(client, counting, catalog):
    plain = client.open(await client.create(CreateSandbox(id="p", environment="plain")), catalog["plain"].manifest)
    await plain.write_file("given", b"kept")
    assert (await client.snapshot("p")).state == "not_reset"
    await plain.reset({"id": "t"})
    with pytest.raises(Conflict, match=r"snapshot\(\) and restore\(\)"):
        await client.snapshot("p")
    alone = await client.snapshot("p", name="files", files_only=True)
    assert alone.state == "left_out"
    fork = client.open((await client.fork("p", 1, files_only=True))[0], catalog["plain"].manifest)
    await fork.reset({"id": "another"})
    assert await fork.read_file("given") == b"kept"

    with pytest.raises(Invalid, match="one of plain"):
        await client.create(CreateSandbox(environment="counter", snapshot="files"))
    await client.create(CreateSandbox(id="s", environment="shared"))
    with pytest.raises(Invalid, match="shares"):
        await client.snapshot("s")
    await client.delete("s")
    with pytest.raises(Conflict, match="already"):
        await client.snapshot("first", name="files")
    with pytest.raises(Invalid, match="containers can"):
        await client.pause("first")
    with pytest.raises(NotFound):
        await client.snapshot("nowhere")
    await client.delete("p")
    with pytest.raises(Gone):
        await client.snapshot("p")

    fails = client.open(await client.create(CreateSandbox(id="x", environment="fails")), catalog["fails"].manifest)
    await fails.reset({"id": "t"})
    with pytest.raises(StartFailed, match="it cannot be restored"):
        await client.fork("x", 1)


async def test_a_snapshot_is_of_one_version_of_its_environment(client, catalog, state_folder):
    await client.create(CreateSandbox(id="p", environment="plain"))
    await client.snapshot("p", name="old")
    (state_folder / "environments" / "plain" / "server.py").write_text(NO_HOOKS + "# another version\n")
    with pytest.raises(Conflict, match="has changed"):
        await client.create(CreateSandbox(environment="plain", snapshot="old"))


async def test_those_that_no_sandbox_began_with_make_room_for_new_ones(client, counting):
    await counting.write_file("random", os.urandom(1_500_000))
    await client.snapshot("first", name="one")
    await client.create(CreateSandbox(id="second", environment="counter", snapshot="one"))
    await client.snapshot("first", name="two")
    await client.snapshot("first", name="three")  # of 4 MB, two are taken up
    assert [each.id for each in await client.snapshots()] == ["one", "three"]
    await client.create(CreateSandbox(id="third", environment="counter", snapshot="three"))
    with pytest.raises(AtCapacity, match="snapshot_mb"):
        await client.snapshot("first", name="four")
    await client.delete("second")
    await client.snapshot("first", name="four")
    assert [each.id for each in await client.snapshots()] == ["three", "four"]
    await counting.write_file("random", os.urandom(5_000_000))
    with pytest.raises(Conflict, match="more than a snapshot may hold"):
        await client.snapshot("first", name="five")


async def test_rollouts_of_this_process_are_refused_while_a_sandbox_is_paused(
    controller: EmbeddedController, client, counter
):
    async with controller.sandbox(counter, id="r") as sandbox:
        await sandbox.reset({"id": "t", "initial_count": 1})
        await controller.sandboxes.reroute(controller.sandboxes.get("r"), paused=True)
        ways_on = r"paused: unpause it first \(`gymbox sandbox unpause r`, or POST /sandboxes/r/unpause\)"
        with pytest.raises(Conflict, match=ways_on):
            await sandbox.call_tool("get_counter_value", {})
        with pytest.raises(Conflict, match=ways_on):
            await (await client.attach("r")).exec("true")
        with pytest.raises(Conflict, match="paused"):
            await sandbox.save(".", io.BytesIO())
