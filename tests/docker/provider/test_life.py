"""The life of a container: start, adoption, stop, list, logs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from gymbox.errors import Conflict, NotFound, Unavailable
from gymbox.providers.docker import DockerProvider
from gymbox.providers.engine import is_here
from gymbox_sandbox.wire import READY_SOCKET


async def test_a_started_sandbox_serves_its_environments_tools(
    sandboxes: Any, environment: Any, connected: Any
) -> None:
    started = await sandboxes.start(environment())
    async with connected(started) as session:
        await session.post("/reset", json={"task": {"id": "1"}})
        async with session.post("/tools/add", json={"by": 3}) as answer:
            assert (await answer.json())["output"] == "3"
    assert sandboxes.phases == ["created", "started"]


async def test_the_directory_is_open_to_the_server_and_the_proxy_and_to_nobody_else(
    sandboxes: Any, environment: Any
) -> None:
    started = await sandboxes.start(environment())
    folder = os.path.dirname(started.socket)
    directory, socket = os.stat(folder), os.stat(started.socket)
    assert (directory.st_uid, directory.st_gid) == (10002, 10003)
    assert stat.S_IMODE(directory.st_mode) == 0o2770
    assert socket.st_gid == 10003 and not stat.S_IMODE(socket.st_mode) & stat.S_IRWXO
    assert READY_SOCKET not in os.listdir(folder)


async def test_starting_a_running_id_again_adopts_it(
    sandboxes: Any, environment: Any, engine: Any, make_sandboxes: Any
) -> None:
    plain = environment()
    first = await sandboxes.start(plain)
    container = engine.containers.get(first.id).id
    assert await sandboxes.start(plain, first.id) == first
    async with make_sandboxes(controller_id=sandboxes.controller_id) as restarted:
        assert await restarted.start(plain, first.id) == first
        assert engine.containers.get(first.id).id == container


@pytest.mark.parametrize("network", ["none", "internal"])
async def test_a_container_that_a_crash_left_half_made_is_replaced(
    network: str, sandboxes: Any, environment: Any, engine: Any
) -> None:
    plain = environment(network=network)
    first = await sandboxes.start(plain)
    half_made = engine.containers.get(first.id)
    os.unlink(first.socket)  # as if its server had not come so far
    await sandboxes.start(plain, first.id)
    assert engine.containers.get(first.id).id != half_made.id
    assert sandboxes.ends.empty()


async def test_what_the_engine_holds_on_to_is_removed_once_it_lets_go(
    sandboxes: Any, environment: Any, engine: Any, make_sandboxes: Any
) -> None:
    started = await sandboxes.start(environment(network="internal"))
    guest = await sandboxes.start(environment())
    network = engine.networks.get(f"gymbox-{started.id}")
    engine.networks.get("none").disconnect(guest.id)
    network.connect(guest.id)
    stopping = asyncio.create_task(sandboxes.provider.stop(started.id))
    await asyncio.to_thread(lambda: next(engine.events(filters={"event": "destroy", "container": started.id})))
    network.disconnect(guest.id)
    await stopping
    assert not engine.networks.list(names=[network.name])


async def test_the_name_of_another_controllers_container_is_a_conflict_and_that_container_is_left_alone(
    sandboxes: Any, environment: Any, engine: Any, make_sandboxes: Any
) -> None:
    plain = environment()
    first = await sandboxes.start(plain)
    async with make_sandboxes() as other:
        with pytest.raises(Conflict, match="not of this controller"):
            await other.start(plain, first.id)
        await other.provider.stop(first.id)
    assert engine.containers.get(first.id).status == "running"


async def test_stopping_removes_all_and_what_never_was_or_is_gone_already_is_fine(
    sandboxes: Any, environment: Any, engine: Any
) -> None:
    started = await sandboxes.start(environment())
    await asyncio.gather(*(sandboxes.provider.stop(started.id) for _ in range(3)))
    await sandboxes.provider.stop(started.id)
    await sandboxes.provider.stop("never-was")
    assert not [each for each in engine.containers.list(all=True, ignore_removed=True) if each.name == started.id]
    assert not Path(started.socket).parent.exists()
    assert sandboxes.ends.empty()


async def test_a_restarted_controller_lists_what_runs_and_can_stop_it(
    sandboxes: Any, environment: Any, make_sandboxes: Any
) -> None:
    started = await sandboxes.start(environment())
    async with make_sandboxes(controller_id=sandboxes.controller_id) as restarted:
        (found,) = await restarted.provider.list()
        assert (found.id, found.environment, found.socket) == (started.id, "plain", started.socket)
        assert found.labels["gymbox.sandbox"] == started.id
        await restarted.provider.stop(started.id)
        assert await restarted.provider.list() == []
    assert not Path(started.socket).parent.exists()


async def test_opening_removes_this_controllers_dead_containers(
    sandboxes: Any, environment: Any, engine: Any, make_sandboxes: Any
) -> None:
    started = await sandboxes.start(environment())
    await sandboxes.provider.close()
    engine.containers.get(started.id).kill()
    async with make_sandboxes(controller_id=sandboxes.controller_id) as restarted:
        assert await restarted.provider.list() == []
    assert not [each for each in engine.containers.list(all=True, ignore_removed=True) if each.name == started.id]
    assert not Path(started.socket).parent.exists()
    await sandboxes.provider.open(sandboxes.controller_id, lambda id, ended: None)


async def test_opening_removes_a_network_whose_sandbox_was_never_made(engine: Any, make_sandboxes: Any) -> None:
    async with make_sandboxes() as sandboxes:
        left = engine.networks.create(
            f"gymbox-{sandboxes.controller_id}", labels={"gymbox.controller": sandboxes.controller_id}
        )
        async with make_sandboxes(controller_id=sandboxes.controller_id):
            assert not engine.networks.list(names=[left.name])


async def test_controllers_that_open_at_the_same_moment_sweep_their_own_networks_and_spare_those_in_use(
    engine: Any, make_sandboxes: Any, sandboxes: Any, environment: Any
) -> None:
    started = await sandboxes.start(environment(network="internal"))
    ids = [f"{sandboxes.controller_id}-{number}" for number in range(6)]
    names = [f"gymbox-{id}-{number}" for id in ids for number in range(2)]
    for name in names:
        engine.networks.create(name, internal=True, labels={"gymbox.controller": name.removeprefix("gymbox-")[:-2]})
    async with contextlib.AsyncExitStack() as stack:
        await asyncio.gather(*(stack.enter_async_context(make_sandboxes(controller_id=id)) for id in ids))
        async with make_sandboxes(controller_id=sandboxes.controller_id):
            pass
    left = {network.name for network in engine.networks.list()}
    assert f"gymbox-{started.id}" in left and not left & set(names)


async def test_logs_are_what_the_server_printed(sandboxes: Any, environment: Any) -> None:
    talkative = environment(server="print('good morning')\nfrom gymbox_sandbox import ResourcesServer\n" + MINIMAL)
    started = await sandboxes.start(talkative)
    assert "good morning" in await sandboxes.provider.logs(started.id)
    with pytest.raises(NotFound, match="no container never-was"):
        await sandboxes.provider.logs("never-was")


async def test_a_sandbox_that_is_cancelled_while_it_starts_leaves_nothing(
    sandboxes: Any, environment: Any, engine: Any
) -> None:
    plain = environment()
    await sandboxes.provider.prepare(plain)
    for phase in ("created", "started"):
        spec = sandboxes.spec(plain)
        reached = asyncio.Event()
        start = asyncio.create_task(
            sandboxes.provider.start(spec, lambda now, phase=phase, reached=reached: now == phase and reached.set())
        )
        await reached.wait()
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert not [each for each in engine.containers.list(all=True, ignore_removed=True) if each.name == spec.id]
        assert not spec.directory.exists()


async def test_many_start_at_once(sandboxes: Any, environment: Any) -> None:
    plain = environment()
    started = await asyncio.gather(*(sandboxes.start(plain) for _ in range(8)))
    assert {each.id for each in started} == {each.id for each in await sandboxes.provider.list()}


async def test_two_starts_of_one_id_at_once_are_one_container(sandboxes: Any, environment: Any) -> None:
    plain = environment()
    one, other = await asyncio.gather(*(sandboxes.start(plain, "gymbox-test-twice") for _ in range(2)))
    assert one == other
    assert [each.id for each in await sandboxes.provider.list()] == [one.id]
    assert sandboxes.ends.empty()


async def test_an_internal_network_comes_and_goes_with_its_sandbox(
    sandboxes: Any, environment: Any, engine: Any, run_in: Any
) -> None:
    started = await sandboxes.start(environment(network="internal"))
    network = engine.networks.get(f"gymbox-{started.id}")
    assert network.attrs["Internal"] is True
    assert "eth0" in (await run_in(started, "ls /sys/class/net"))["stdout"]
    await sandboxes.provider.stop(started.id)
    assert not engine.networks.list(names=[network.name])


async def test_no_engine_is_told_with_two_ways_on(tmp_path: Path) -> None:
    provider = DockerProvider(host=f"unix://{tmp_path}/nobody.sock")
    with pytest.raises(Unavailable) as raised:
        await provider.open("nobody", lambda id, ended: None)
    assert "nobody.sock" in raised.value.detail
    assert f"{sys.executable} -m gymbox.setup_docker" in raised.value.detail
    assert "unset DOCKER_HOST" in raised.value.detail and "provider=process" in raised.value.detail


async def test_an_engine_that_unix_sockets_cannot_reach_is_refused_with_ways_on(engine: Any) -> None:
    with pytest.raises(Unavailable, match=r"ssh.* is not on this machine.* unset DOCKER_HOST .* provider=process"):
        await DockerProvider(host="ssh://user@elsewhere").open("nobody", lambda id, ended: None)
    here = engine.api.info()
    assert is_here(here, "unix:///var/run/docker.sock") and is_here(here, "tcp://127.0.0.1:2375")
    assert not is_here({**here, "Name": "another"}, "tcp://127.0.0.1:2375")
    assert not is_here({**here, "KernelVersion": "6.10.14-linuxkit"}, "unix:///var/run/docker.sock")


async def test_a_provider_that_is_not_open_says_so() -> None:
    provider = DockerProvider()
    with pytest.raises(Unavailable, match="not open"):
        await provider.list()
    await provider.close()


MINIMAL = """
class Minimal(ResourcesServer):
    async def verify(self, task, response):
        return 0.0
"""
