"""What a network policy lets out of a real sandbox, and that there is no other way out of it.

The internet is this machine's loopback, which no sandbox reaches by itself: `public.test` is 127.0.0.2 for the egress
process. Whatever is refused has `public.test` as its control.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from gymbox.network import Traffic
from gymbox.providers import ModelsAt, Started
from gymbox.providers.docker import DockerProvider
from gymbox.providers.egress import Egress

STUB = Path(__file__).parents[2] / "stub_egress.py"
FETCH = """
import sys, urllib.request
for url in {urls}:
    try:
        print("OPEN", url, urllib.request.urlopen(url, timeout=5).read().decode())
    except Exception as error:
        print("SHUT", url, getattr(error, "code", ""), error)
"""
DIRECT = """
import os, socket
for address, port in {places}:
    try:
        found = socket.create_connection((address, port), 2)
        found.sendall(b"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
        print("OPEN" if b"stub" in found.recv(1000) else "SHUT", address)
    except OSError as error:
        print("SHUT", address, error)
print("interfaces", sorted(os.listdir("/sys/class/net")), open("/proc/net/route").read().count("\\n") - 1)
"""


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """Of a server at 127.0.0.2 and 127.0.0.1 that answers everything with `stub`."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        body = b"stub " + head.split(b"\r\n")[0]
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        writer.close()

    public = await asyncio.start_server(answer, "127.0.0.2", 0)
    port = public.sockets[0].getsockname()[1]
    private = await asyncio.start_server(answer, "127.0.0.1", port)
    yield port
    public.close()
    private.close()


@pytest.fixture
async def open_sandbox(
    make_sandboxes: Callable[..., Any], environment: Any, tmp_path: Path, port: int
) -> AsyncIterator[Callable[..., Awaitable[tuple[Any, Started]]]]:
    """Starts a sandbox with a network, on a provider whose internet is the stub."""

    class StubProvider(DockerProvider):
        def egress(self) -> Egress:
            return Egress([sys.executable, str(STUB), json.dumps({80: port})])

    async with make_sandboxes(StubProvider(build_folder=tmp_path / "builds")) as sandboxes:

        async def start(network: Any) -> tuple[Any, Started]:
            return sandboxes, await sandboxes.start(environment(network=network))

        yield start


async def told(sandboxes: Any, id: str, refused: int) -> Traffic:
    for _ in range(100):
        if (found := sandboxes.provider.traffic(id)).refused >= refused:
            break
        await asyncio.sleep(0.05)
    return found


async def test_listed_hosts_are_reached_and_nothing_else_is(
    open_sandbox: Any, run_in: Any, port: int, engine: Any
) -> None:
    sandboxes, started = await open_sandbox({"allow": ["public.test", "private.test", "metadata.test"]})
    urls = ["http://public.test/x", *(f"http://{name}.test/" for name in ("private", "metadata", "other"))]
    shown = (await run_in(started, ["python3", "-c", FETCH.format(urls=urls)]))["stdout"].splitlines()
    assert shown[0] == "OPEN http://public.test/x stub GET /x HTTP/1.1"
    assert [line.split()[0] for line in shown] == ["OPEN", "SHUT", "SHUT", "SHUT"]
    traffic = await told(sandboxes, started.id, 3)
    assert traffic.let_through == 1 and {each.target for each in traffic.refusals} == {
        *("private.test:80", "metadata.test:80", "other.test:80")
    }
    # without the proxy: by name over the sandbox's own loopback, and by no address at all
    unproxied = {"http_proxy": "", "HTTP_PROXY": ""}
    shown = (await run_in(started, ["python3", "-c", FETCH.format(urls=urls[:1] + urls[-1:])], env=unproxied))[
        "stdout"
    ]
    assert [line.split()[0] for line in shown.splitlines()] == ["OPEN", "SHUT"] and "Name or service" in shown
    places = [("127.0.0.2", port), ("127.0.0.1", port), ("169.254.169.254", 80), ("172.17.0.1", port), ("8.8.8.8", 53)]
    shown = (await run_in(started, ["python3", "-c", DIRECT.format(places=places)]))["stdout"]
    assert "OPEN" not in shown and "interfaces ['lo'] 0" in shown


async def test_an_open_sandbox_reaches_every_public_host_and_no_private_one(open_sandbox: Any, run_in: Any) -> None:
    _, started = await open_sandbox("open")
    urls = ["http://public.test/", "http://private.test/", "http://metadata.test/", "http://127.0.0.3/"]
    shown = (await run_in(started, ["python3", "-c", FETCH.format(urls=urls)]))["stdout"].splitlines()
    assert [line.split()[0] for line in shown] == ["OPEN", "SHUT", "SHUT", "SHUT"]


async def test_models_are_reached_by_a_key_that_is_not_in_the_sandbox(
    open_sandbox: Any, run_in: Any, port: int
) -> None:
    sandboxes, started = await open_sandbox("models")
    ask = FETCH.replace(
        "in {urls}", "[__import__('os').environ['OPENAI_BASE_URL'] + '/models', 'http://public.test/']"
    )
    ask = ask.replace("for url [", "for url in [")
    assert "OPEN" not in (await run_in(started, ["python3", "-c", ask]))["stdout"]  # nobody has said where models are
    sandboxes.provider.lead_models(started.id, ModelsAt(f"http://127.0.0.2:{port}/rollouts/one", "the-key", one=True))
    shown = (await run_in(started, ["python3", "-c", ask]))["stdout"].splitlines()
    assert shown[0].endswith("stub GET /rollouts/one/v1/models HTTP/1.1") and shown[1].startswith("SHUT")
    looked = await run_in(started, "env; cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'")
    assert "OPENAI_BASE_URL" in looked["stdout"] and "the-key" not in looked["stdout"]


async def test_the_agent_reaches_neither_the_relays_socket_nor_its_process(open_sandbox: Any, run_in: Any) -> None:
    _, started = await open_sandbox({"allow": ["public.test"]})
    tries = (
        "ls /run/gymbox; cat /run/gymbox/egress.sock; rm -f /run/gymbox/egress.sock; "
        "for each in /proc/[0-9]*; do kill -9 ${each#/proc/} 2>/dev/null; done; "
        "echo nameserver 8.8.8.8 > /etc/resolv.conf"
    )
    denied = (await run_in(started, f"({tries}) 2>&1; true"))["stdout"]
    assert denied.count("Permission denied") >= 2
    shown = (await run_in(started, ["python3", "-c", FETCH.format(urls=["http://public.test/"])]))["stdout"]
    assert shown.startswith("OPEN")


async def test_an_adopted_sandbox_has_its_way_out_again(
    open_sandbox: Any, run_in: Any, make_sandboxes: Any, tmp_path: Path
) -> None:
    sandboxes, started = await open_sandbox({"allow": ["public.test"]})
    await sandboxes.provider.close()
    fetch = ["python3", "-c", FETCH.format(urls=["http://public.test/"])]
    assert "SHUT" in (await run_in(started, fetch))["stdout"]  # nobody decides, so nothing leaves
    await sandboxes.provider.open(sandboxes.controller_id, lambda id, ended: None)
    [listed] = await sandboxes.provider.list()
    spec = sandboxes.spec_again(listed.id)
    await sandboxes.provider.start(spec, lambda phase: None)
    found = await run_in(started, fetch)
    assert "OPEN" in found["stdout"], found
