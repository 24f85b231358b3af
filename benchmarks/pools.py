"""Pools: how long a request waits for a sandbox of a warm pool, over REST and through the proxy.

Controller and proxy are a process of their own, as `gymbox serve controller` starts them; requests come from this one.

* claim: from the request until the sandbox's tools have been listed through the proxy, one after another;
* burst: as many requests at once as the pool holds, until the last is answered;
* cold: the same way without a pool, for comparison, and what a start costs the machine's processors.

With sandboxes as processes; `sandboxes.py` has the same rows for containers.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gymbox.client import ControllerClient
from gymbox.http import HttpClient
from gymbox_sandbox.lifecycle import CreateSandbox, PoolSettings, SandboxView
from report import Figure, finish, machine_cpu_seconds, median, within

ROOT = Path(__file__).parents[1]
TOKEN = "gbx_admin_benchmarks-only"
SIZE = 64
ROUNDS = 2
"""Fillings of the pool whose containers are claimed one after another; the bursts come after."""
BURSTS = 2
COLD = 8


@asynccontextmanager
async def controller(provider: str, state: Path) -> AsyncIterator[ControllerClient]:
    """`gymbox serve controller` with this provider; it is left without sandboxes."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from gymbox.cli import main; main()", "serve", "controller", f"provider={provider}"),
        *("--port", "0", "--proxy-port", "0", "--state", str(state), "--environments", str(ROOT / "environments")),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "GYMBOX_TOKEN": TOKEN},
        limit=1 << 20,
    )
    assert process.stderr is not None
    line = ""
    while "answering on http" not in line:
        line = (await process.stderr.readline()).decode()
        if not line:
            raise RuntimeError("the controller ended")
    reading = asyncio.create_task(process.stderr.read())  # or it would block on a full pipe
    try:
        async with HttpClient() as http:
            client = ControllerClient(line.split("answering on ")[1].split('"')[0].strip(), TOKEN, http)
            await client.environment("counter", prepare=True)
            try:
                yield client
            finally:
                await client.set_pool("counter", PoolSettings())
                await empty(client)
                await asyncio.sleep(2)  # spare ones are removed in the background
    finally:
        process.terminate()
        await asyncio.gather(process.wait(), reading)


async def empty(client: ControllerClient) -> None:
    """Delete all sandboxes."""
    await asyncio.gather(*(client.delete(view.id) for view in await client.sandboxes() if view.ended is None))


async def filled(client: ControllerClient, size: int) -> None:
    """Return once so many wait and nothing else goes on."""
    while True:
        [pool] = await client.pools()
        if pool.error:
            raise RuntimeError(f"the pool cannot be filled: {pool.error}")
        if pool.ready >= size and not pool.starting:
            await asyncio.sleep(1)
            return
        await asyncio.sleep(0.2)


async def claim(client: ControllerClient, http: HttpClient) -> tuple[float, SandboxView]:
    """Milliseconds until the tools of a new sandbox have been listed, and the sandbox."""
    began = time.perf_counter()
    view = await client.create(CreateSandbox(environment="counter"))
    assert view.tokens is not None
    headers = {"Authorization": f"Bearer {view.tokens.tools}"}
    answer = await http.request("GET", f"{view.url}/tools", headers=headers)
    assert answer.status == 200 and answer.json()["tools"], answer
    return 1000 * (time.perf_counter() - began), view


async def measure(provider: str, folder: Path) -> tuple[list[Figure], list[str]]:
    """Figures for one provider. `folder` holds the controller's state: its path must be short."""
    claims: list[float] = []
    bursts: list[float] = []
    async with controller(provider, folder) as client, HttpClient() as http:
        await claim(client, http)  # warm-up: image, zygote, connections
        cold, before = [], machine_cpu_seconds()
        for _ in range(COLD):
            cold.append((await claim(client, http))[0])
        start_cpu = (machine_cpu_seconds() - before) / COLD
        await empty(client)
        await client.set_pool("counter", PoolSettings(target=SIZE, ceiling=SIZE))
        for _ in range(ROUNDS):
            await filled(client, SIZE)
            for _ in range(SIZE):
                taken, view = await claim(client, http)
                assert view.phases.claimed is not None, "the pool was empty"
                claims.append(taken)
            await empty(client)
        for _ in range(BURSTS):
            await filled(client, SIZE)
            began = time.perf_counter()
            made = await asyncio.gather(*(client.create(CreateSandbox(environment="counter")) for _ in range(SIZE)))
            bursts.append(1000 * (time.perf_counter() - began))
            assert all(view.phases.claimed is not None for view in made), "the pool was empty"
            await empty(client)
    claims.sort()
    figures = [
        within(5, f"claim until tools answer, p50, {provider}", median(claims), "ms"),
        within(25, f"claim until tools answer, p99, {provider}", claims[int(0.99 * len(claims))], "ms"),
        within(250, f"burst of {SIZE} claims on a pool of {SIZE}, {provider}", median(bursts), "ms"),
    ]
    alone = median(cold)
    assert alone is not None
    cores = 1000 * start_cpu / alone
    note = (
        f"{provider}: {len(claims)} claims, {BURSTS} bursts (worst {max(bursts):.0f} ms); cold {alone:.0f} ms "
        f"and {start_cpu:.2f} CPU-s of the whole machine, so that one start keeps {cores:.2f} processors busy"
    )
    return figures, [note]


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="gbx") as name:
        Path(name).chmod(0o711)
        figures, notes = asyncio.run(measure("process", Path(name)))
    finish("pools", figures, notes)


if __name__ == "__main__":
    main()
