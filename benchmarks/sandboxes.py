"""Sandboxes: what starting one, and running a command in one, costs beside the bare Docker engine.

Each against its baseline in the same run, interleaved; no pool but in the last:

* cold: CPU of a whole rollout of `counter` (container created, ready, three model turns, verified, removed) beside the
  bare Engine API (create, start, remove on network none) plus the sandbox server's own start;
* the server: CPU from container start to its first answer, and memory at rest, as the engine counts them for the
  container, less what it counts for a container that sleeps;
* exec: round trip of `echo hi` in a live sandbox through the proxy beside `docker exec`; many at once, and large files
  (`live_sandboxes.py`);
* a cold create with a tool call and no model beside the bare engine and FastAPI (`cold_start.py`);
* sandboxes a second, eight at once, beside those of SWE-ReX, Inspect and Harbor (`sandbox_peers.py`);
* 300 idle ones held (`idle_sandboxes.py`).
* fork: a snapshot of a sandbox with 100 MB in its workspace and a new one that is ready with them, beside `docker
  commit` of a container with the same in its writable layer, and one new sandbox without a snapshot (a claim);
* claims: how long requests wait for a sandbox of a warm pool; see `pools.py`.

CPU is the whole machine's where nothing else is said, and memory that of the last: run it on an idle one.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import cold_start
import docker
import idle_sandboxes
import live_sandboxes
import pools
import sandbox_peers
import uvloop
from gymbox.agents.tool_loop import ToolLoop
from gymbox.client import ControllerClient
from gymbox.controller.settings import ControllerSettings
from gymbox.embedded import EmbeddedController
from gymbox.environment import Catalog, Environment
from gymbox.http import HttpClient
from gymbox.models.scripted import ScriptedModel
from gymbox.providers.container import CONTROLLER_LABEL
from gymbox.providers.docker import DockerProvider
from gymbox.rollout import run_rollout
from gymbox_sandbox.lifecycle import CreateSandbox
from idle_sandboxes import mebibytes
from report import Figure, at_most, finish, machine_cpu_seconds, median, within

ROOT = Path(__file__).parents[1]
ROUNDS = 20
EXECS = 200
DOCKER_EXECS = 20
FORKS = 20


def bare_cycle(engine: docker.APIClient, image: str) -> float:
    """CPU-seconds of the machine for create, start and remove of a container that does nothing."""
    before = machine_cpu_seconds()
    config = engine.create_host_config(network_mode="none", init=True)
    made = engine.create_container(image, ["sleep", "600"], host_config=config, labels={"gymbox.benchmark": "bare"})
    try:
        engine.start(made["Id"])
    finally:
        engine.remove_container(made["Id"], force=True)
    return machine_cpu_seconds() - before


async def rollout(
    row: dict[str, Any], environment: Environment, controller: EmbeddedController, http: HttpClient
) -> float:
    """CPU-seconds of the machine for one whole rollout.

    Raises:
        RuntimeError: it did not score 1.0.
    """
    before = machine_cpu_seconds()
    model = ScriptedModel(name="scripted")
    id = f"bench-{secrets.token_hex(6)}"
    result = await run_rollout(row, environment, ToolLoop(), model, controller, http, id)
    if result.reward != 1.0:
        raise RuntimeError(f"the rollout scored {result.reward}: {result.error}")
    return machine_cpu_seconds() - before


async def server_cost(
    controller: EmbeddedController, environment: Environment, engine: docker.APIClient
) -> tuple[float, float]:
    """CPU-seconds that a container has used when its server has just answered, and its memory in MiB."""
    async with controller.sandbox(environment) as sandbox:
        view = controller.sandboxes.views.of(controller.sandboxes.get(sandbox.id))
        stats = await asyncio.to_thread(engine.stats, view.container, stream=False, one_shot=True)
    return cpu_seconds(stats), mebibytes(stats)


def cpu_seconds(stats: dict[str, Any]) -> float:
    return float(stats["cpu_stats"]["cpu_usage"]["total_usage"]) / 1e9


def sleeping(engine: docker.APIClient, image: str) -> tuple[float, float]:
    """CPU-seconds and MiB that the engine counts for a container that only sleeps."""
    config = engine.create_host_config(network_mode="none", init=True)
    made = engine.create_container(image, ["sleep", "600"], host_config=config, labels={"gymbox.benchmark": "bare"})
    try:
        engine.start(made["Id"])
        stats = engine.stats(made["Id"], stream=False, one_shot=True)
    finally:
        engine.remove_container(made["Id"], force=True)
    return cpu_seconds(stats), mebibytes(stats)


async def timed(call: Callable[[], Awaitable[object]]) -> float:
    """Milliseconds that a call takes."""
    before = time.perf_counter()
    await call()
    return 1000 * (time.perf_counter() - before)


async def exec_times(controller: EmbeddedController, environment: Environment, token: str) -> tuple[float, float]:
    """p50 in ms of `echo hi` through the proxy, and of `docker exec … echo hi` in the same container."""
    async with HttpClient() as http:
        client = ControllerClient(controller.url, token, http)
        async with client.sandbox(environment) as sandbox:
            container = (await client.get(sandbox.id)).container
            assert container is not None

            async def ours() -> None:
                result = await sandbox.exec(["/bin/echo", "hi"])
                assert result.stdout == "hi\n", result

            async def theirs() -> None:
                process = await asyncio.create_subprocess_exec(
                    "docker", "exec", container, "/bin/echo", "hi", stdout=subprocess.DEVNULL
                )
                assert await process.wait() == 0

            await ours()
            await theirs()
            mine, other = [], []
            for number in range(EXECS):
                mine.append(await timed(ours))
                if number % (EXECS // DOCKER_EXECS) == 0:
                    other.append(await timed(theirs))
    return median(mine) or 0.0, median(other) or 0.0


async def fork_times(
    controller: EmbeddedController, environment: Environment, token: str, engine: docker.APIClient, image: str
) -> tuple[float, float, float]:
    """p50 in ms of a fork of 100 MB, of `docker commit` of as much, and of a new sandbox without a snapshot."""
    fill = ["sh", "-c", "head -c 100000000 /dev/urandom > /var/big && sleep 600"]
    bare = engine.create_container(image, fill, entrypoint=[], user="0:0", labels={"gymbox.benchmark": "bare"})["Id"]
    forks, commits, claims = [], [], []
    try:
        engine.start(bare)
        async with HttpClient() as http:
            client = ControllerClient(controller.url, token, http)
            async with client.sandbox(environment) as sandbox:
                result = await sandbox.exec("head -c 100000000 /dev/urandom > big", timeout=60)
                assert result.exit_code == 0, result
                for number in range(FORKS):

                    async def fork(name: str = f"fork-{number}") -> None:
                        await client.fork(sandbox.id, 1, name=name)

                    async def commit(tag: str = f"{number}") -> None:
                        await asyncio.to_thread(engine.commit, bare, "gymbox-benchmark", tag)

                    async def claim(name: str = f"claim-{number}") -> None:
                        await client.create(CreateSandbox(id=name, environment=environment.name))

                    forks.append(await timed(fork))
                    commits.append(await timed(commit))
                    claims.append(await timed(claim))
                    for id in (f"fork-{number}.0", f"claim-{number}"):
                        await client.delete(id)
                    await asyncio.to_thread(engine.remove_image, f"gymbox-benchmark:{number}")
    finally:
        engine.remove_container(bare, force=True)
    return median(forks) or 0.0, median(commits) or 0.0, median(claims) or 0.0


async def measure(folder: Path) -> tuple[list[Figure], list[str]]:
    environment = Catalog([ROOT / "environments"])["counter"]
    row = json.loads(environment.dataset.open().readline())
    token, engine = f"gbx_admin_{secrets.token_hex(16)}", docker.APIClient()
    provider = DockerProvider()
    bare, whole, cpu, memory = [], [], [], []
    settings = ControllerSettings(port=0, max_sandboxes=idle_sandboxes.HELD + 8)
    async with (
        HttpClient() as http,
        EmbeddedController(
            provider, Catalog([ROOT / "environments"]), folder, token, http, settings=settings
        ) as controller,
    ):
        client = ControllerClient(controller.url, token, http)
        image = await provider.prepare(environment)
        await rollout(row, environment, controller, http)  # warm-up
        await asyncio.to_thread(bare_cycle, engine, image)
        for _ in range(ROUNDS):
            bare.append(await asyncio.to_thread(bare_cycle, engine, image))
            whole.append(await rollout(row, environment, controller, http))
            spent, used = await server_cost(controller, environment, engine)
            spent_asleep, used_asleep = await asyncio.to_thread(sleeping, engine, image)
            cpu.append(spent - spent_asleep)
            memory.append(used - used_asleep)
        ours, theirs = await exec_times(controller, environment, token)
        others = [
            await cold_start.measure(client, environment, row, engine, image),
            await sandbox_peers.measure(client, environment, engine),
            await idle_sandboxes.measure(client, environment, http, controller.proxy_url, token, engine),
        ]
        fork, commit, claim = await fork_times(controller, environment, token, engine, image)
        live = await live_sandboxes.exec_figures(controller, environment, token)
    live += await live_sandboxes.file_figures(folder, image)
    # /proc/stat counts in ticks of 10 ms: over a whole series, the mean is finer than the median
    mean_bare, mean_whole = sum(bare) / len(bare), sum(whole) / len(whole)
    server = median(cpu)
    assert server is not None
    figures = [
        at_most(1.3, "cold rollout, Docker", mean_whole, "CPU-s", mean_bare + server, "bare engine + server's start"),
        within(0.45, "server: start to first answer", server, "CPU-s"),
        within(30, "server: memory", median(memory), "MiB"),
        at_most(0.1, "exec through the proxy, p50", ours, "ms", theirs, "docker exec"),
        *live,
        *(figure for found, _ in others for figure in found),
        at_most(1, "snapshot + fork, 100 MB, p50", fork, "ms", 1.5 * commit + claim, "1.5 docker commit + claim"),
    ]
    notes = [
        f"bare engine {mean_bare:.3f} CPU-s a cycle, server's start {server:.3f} CPU-s; {ROUNDS} rounds, interleaved",
        f"docker commit of 100 MB {commit:.0f} ms, a new sandbox without a pool {claim:.0f} ms; {FORKS} rounds",
        f"containers labelled {CONTROLLER_LABEL} are all removed",
        *(note for _, found in others for note in found),
    ]
    return figures, notes


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="gymbox-bench-") as name:
        Path(name).chmod(0o755)
        # on the loop that `gymbox run` and every `gymbox serve` have
        figures, notes = asyncio.run(measure(Path(name)), loop_factory=uvloop.new_event_loop)
    with tempfile.TemporaryDirectory(prefix="gbx") as name:
        Path(name).chmod(0o711)
        of_pools, told = asyncio.run(pools.measure("docker", Path(name)))
    title = "One sandbox and many: how much of each bar is used (less is better)"
    finish("sandboxes", [*figures, *of_pools], [*notes, *told], plotted=title)


if __name__ == "__main__":
    main()
