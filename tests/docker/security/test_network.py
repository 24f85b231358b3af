"""Where a sandbox's packets get to: nowhere, and on a network of its own not further than that."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

CONNECT = """
import socket, sys
for address in {addresses}:
    try:
        socket.create_connection((address, {port}), timeout=2).close()
        print("OPEN", address)
    except OSError as error:
        print(type(error).__name__, address, error)
"""
WAIT = """
import socket, time
while True:
    try:
        socket.create_connection(("{address}", 8000), 1)
        break
    except OSError:
        time.sleep(0.05)
"""


@pytest.fixture
def service() -> Iterator[int]:
    """A service of the host that listens on all addresses, as many do: its port."""
    with socket.create_server(("0.0.0.0", 0)) as listener:
        yield listener.getsockname()[1]


def addresses_of_host(engine: Any) -> list[str]:
    found = [config["Gateway"] for each in engine.networks.list() for config in each.attrs["IPAM"]["Config"] or []]
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing: asks the routing table for our own address
        found.append(probe.getsockname()[0])
    return found


async def test_n01_without_a_network_there_is_only_the_loopback(
    as_agent: Any, plainly: Any, engine: Any, service: int
) -> None:
    script = CONNECT.format(addresses=addresses_of_host(engine), port=service)
    assert plainly(script).opened
    assert not (await as_agent(script)).opened
    assert (await as_agent("ls /sys/class/net")).split() == ["lo"]


async def test_n03_on_its_own_network_the_hosts_services_are_not_reached(
    sandboxes: Any, environment: Any, run_in: Any, engine: Any, image: str, service: int
) -> None:
    ordinary = engine.networks.create(f"gymbox-control-{uuid.uuid4().hex[:8]}", internal=True)
    try:
        ordinary.reload()
        gateway = ordinary.attrs["IPAM"]["Config"][0]["Gateway"]
        script = CONNECT.format(addresses=[gateway], port=service)
        control = engine.containers.run(image, ["python3", "-c", script], network=ordinary.name, remove=True)
        assert b"OPEN" in control  # an ordinary internal network is no isolation
    finally:
        ordinary.remove()
    started = await sandboxes.start(environment(network="internal"))
    script = CONNECT.format(addresses=addresses_of_host(engine), port=service)
    shown = (await run_in(started, ["python3", "-c", script]))["stdout"]
    assert "OPEN" not in shown and len(shown.splitlines()) >= 2
    assert "eth0" in (await run_in(started, "ls /sys/class/net"))["stdout"]


async def test_n05_two_sandboxes_with_networks_do_not_reach_each_other(
    sandboxes: Any, environment: Any, run_in: Any, engine: Any
) -> None:
    shared = environment(network="internal")
    one, other = await sandboxes.start(shared), await sandboxes.start(shared)
    networks = engine.containers.get(other.id).attrs["NetworkSettings"]["Networks"]
    address = networks[f"gymbox-{other.id}"]["IPAddress"]
    serve = "import socket\nserver = socket.create_server(('0.0.0.0', 8000))\nserver.settimeout(8)\nserver.accept()"
    script = CONNECT.format(addresses=[address], port=8000)
    serving = asyncio.create_task(run_in(other, ["python3", "-c", serve], timeout=20))
    try:
        control = asyncio.create_task(run_in(other, ["python3", "-c", WAIT.format(address=address)], timeout=10))
        assert "OPEN" not in (await run_in(one, ["python3", "-c", script]))["stdout"]
        assert (await control)["exit_code"] == 0  # the service was there
    finally:
        await serving


async def test_n08_names_are_asked_of_nobody(sandboxes: Any, environment: Any, engine: Any, run_in: Any) -> None:
    """No control: it would take another resolver for this host."""
    started = await sandboxes.start(environment(network="internal"))
    assert engine.containers.get(started.id).attrs["HostConfig"]["Dns"] == ["127.0.0.2"]
    lookup = "import socket\nprint('OPEN', socket.gethostbyname('example.com'))"
    assert "OPEN" not in (await run_in(started, ["python3", "-c", lookup], timeout=60))["stdout"]


async def test_n13_nothing_is_published(sandboxes: Any, environment: Any, engine: Any) -> None:
    for network in ("none", "internal"):
        started = await sandboxes.start(environment(network=network))
        assert not engine.containers.get(started.id).attrs["NetworkSettings"]["Ports"]
