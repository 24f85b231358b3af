"""Proxy: what the hop through the routing proxy costs beside a direct call to the same unix-socket server.

Client, proxy and server are three processes. Direct and forwarded calls are interleaved, so that what else the machine
does falls on both. Then 2,000 requests are held in flight at once: the server answers none of them before all have
arrived, and none may fail. The bar is for an idle machine: a hop more is a turn more in its run queue.
"""

from __future__ import annotations

import asyncio
import hashlib
import multiprocessing
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from pathlib import Path

import aiohttp
import uvloop
from aiohttp import web
from gymbox.proxy import Proxy, ProxySettings
from gymbox.serving import raise_file_limit
from gymbox_sandbox.lifecycle import Route, RouteTable
from report import Figure, finish, median, within

ROUNDS, CALLS = 30, 50
STREAMS = 200
IN_FLIGHT, SANDBOXES = 2000, 4
TOKEN = "gbx_sbx_benchmark"
BODY = b'{"by": 1}'


def serve_sandbox(folder: str, ready: Connection) -> None:
    """A server on one socket a sandbox; `held` answers once all calls in flight have arrived."""
    arrived = 0

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        nonlocal arrived
        await request.read()
        if request.path == "/tools/held":
            arrived += 1
            if arrived == IN_FLIGHT:
                all_here.set()
            await all_here.wait()
        if request.path == "/events":
            stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await stream.prepare(request)
            await stream.write(f"data: {time.monotonic()}\n\n".encode())
            return stream
        return web.Response(body=b'{"output": "1", "is_error": false}', content_type="application/json")

    async def main() -> None:
        raise_file_limit()
        runner = web.ServerRunner(web.Server(answer, access_log=None))
        await runner.setup()
        for number in range(SANDBOXES):
            await web.UnixSite(runner, f"{folder}/{number}.sock", backlog=4096).start()
        ready.send(None)
        await asyncio.Event().wait()

    all_here = asyncio.Event()
    asyncio.run(main())


def serve_proxy(folder: str, ready: Connection) -> None:
    """The proxy, with a route to each of the sockets."""
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    routes = [
        Route(sandbox=f"s{number}", socket=f"{folder}/{number}.sock", tools_token=digest, control_token="")
        for number in range(SANDBOXES)
    ]

    async def main() -> None:
        raise_file_limit()
        async with Proxy(ProxySettings()) as proxy:
            await proxy.routes.replace(RouteTable(version=1, routes=routes))
            ready.send(proxy.url)
            await asyncio.Event().wait()

    asyncio.run(main(), loop_factory=uvloop.new_event_loop)


def started(target: Callable[[str, Connection], None], folder: str) -> tuple[multiprocessing.Process, str]:
    """A process that is ready, and what it said then."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.Process(target=target, args=(folder, there), daemon=True)
    process.start()
    return process, here.recv()


def cpu_seconds(process: multiprocessing.Process) -> float:
    """CPU-seconds that a process has used so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def call(session: aiohttp.ClientSession, url: str) -> float:
    """Seconds of one tool call."""
    began = time.perf_counter()
    async with session.post(url, data=BODY) as answer:
        await answer.read()
        answer.raise_for_status()
    return time.perf_counter() - began


async def first_event(session: aiohttp.ClientSession, url: str) -> float:
    """Seconds from the moment when the server wrote an event to its arrival."""
    async with session.get(url) as answer:
        event = await answer.content.readline()
        arrived = time.monotonic()
        await answer.read()
    return arrived - float(event.removeprefix(b"data: "))


async def interleaved(
    measure: Callable[[aiohttp.ClientSession, str], Awaitable[float]],
    sides: list[tuple[aiohttp.ClientSession, str]],
    rounds: int,
    calls: int,
) -> list[list[float]]:
    """What each side measured, a few calls of one after a few of the other."""
    found: list[list[float]] = [[] for _ in sides]
    for _ in range(rounds):
        for values, (session, url) in zip(found, sides, strict=True):
            values.extend([await measure(session, url) for _ in range(calls)])
    return found


async def failures(session: aiohttp.ClientSession, url: str) -> tuple[int, float]:
    """How many of the requests in flight failed, and the seconds until the last was answered."""
    began = time.perf_counter()
    calls = (call(session, f"{url}/sandboxes/s{number % SANDBOXES}/tools/held") for number in range(IN_FLIGHT))
    answers = await asyncio.gather(*calls, return_exceptions=True)
    return sum(isinstance(answer, BaseException) for answer in answers), time.perf_counter() - began


async def measured(folder: str) -> tuple[list[Figure], list[str]]:
    raise_file_limit()
    load = os.getloadavg()[0]
    started(serve_sandbox, folder)
    proxy, url = started(serve_proxy, folder)
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    timeout = aiohttp.ClientTimeout(total=300)
    async with (
        aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(f"{folder}/0.sock"), headers=headers, timeout=timeout
        ) as direct,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=headers, timeout=timeout) as forwarded,
    ):
        sides = [(direct, "http://sandbox/tools/add"), (forwarded, f"{url}/sandboxes/s0/tools/add")]
        await interleaved(call, sides, 1, CALLS)  # warm
        cpu = cpu_seconds(proxy)
        straight, through = await interleaved(call, sides, ROUNDS, CALLS)
        cpu = (cpu_seconds(proxy) - cpu) / (ROUNDS * CALLS)
        streams = [(direct, "http://sandbox/events"), (forwarded, f"{url}/sandboxes/s0/events")]
        _, events = await interleaved(first_event, streams, STREAMS // 10, 10)
        failed, seconds = await failures(forwarded, url)
    base, hop = median(straight) or 0.0, median(through) or 0.0
    limit = 1.0
    added = (hop - base) * 1000
    return [
        Figure("p50 of a tool call", hop * 1000, "ms", base * 1000, "direct", f"+ <= {limit:g} ms", added <= limit),
        within(limit, "p50 added by the proxy", added, "ms"),
        within(5, "server-sent event, written to received, p50", (median(events) or 0.0) * 1000, "ms"),
        within(0, f"failed of {IN_FLIGHT} in flight", failed, "requests"),
    ], [
        f"the proxy used {cpu * 1000:.2f} CPU-ms a call",
        f"{IN_FLIGHT} in flight were answered in {seconds:.1f} s",
        f"load average when it began: {load:.1f} on {os.cpu_count()} CPUs",
    ]


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    with tempfile.TemporaryDirectory() as folder:
        figures, notes = asyncio.run(measured(folder))
    finish("proxy", figures, notes)
