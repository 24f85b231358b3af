"""Cold start: CPU of a sandbox's whole life beside what the bare engine and FastAPI would need for the same."""

from __future__ import annotations

import asyncio
from typing import Any

import docker
from gymbox.client import ControllerClient
from gymbox.environment import Environment
from report import Figure, at_most, machine_cpu_seconds, median

ROUNDS = 20
FASTAPI = """
import asyncio, fastapi, uvicorn
app = fastapi.FastAPI()
@app.get("/healthz")
def healthz() -> dict[str, str]:
    return {}
class Telling(uvicorn.Server):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        print("ready", flush=True)
Telling(uvicorn.Config(app, uds="/tmp/server.sock", log_level="error")).run()
"""
PYTHON = "/opt/gymbox/venv/bin/python"
"""In every image of ours; FastAPI is there too."""


def made(engine: docker.APIClient, image: str, command: list[str]) -> str:
    """A container on network none, by the Engine API alone."""
    config = engine.create_host_config(network_mode="none", init=True)
    labels = {"gymbox.benchmark": "bare"}
    return str(engine.create_container(image, command, host_config=config, labels=labels)["Id"])


def bare_cycle(engine: docker.APIClient, image: str) -> float:
    """CPU-seconds of the machine for create, start, exec and remove of a container that sleeps."""
    before = machine_cpu_seconds()
    container = made(engine, image, ["sleep", "600"])
    try:
        engine.start(container)
        command = engine.exec_create(container, ["echo", "hi"])
        assert engine.exec_start(command["Id"]) == b"hi\n"
    finally:
        engine.remove_container(container, force=True)
    return machine_cpu_seconds() - before


def fastapi_start(engine: docker.APIClient, image: str) -> float:
    """CPU-seconds that a container of FastAPI's has used when it listens, less those of one that sleeps."""
    return _used(engine, image, [PYTHON, "-c", FASTAPI], b"ready") - _used(engine, image, ["echo", "ready"], b"ready")


def _used(engine: docker.APIClient, image: str, command: list[str], until: bytes) -> float:
    api: Any = engine  # the SDK has no types
    container = made(engine, image, ["sh", "-c", '"$@" && sleep 600', "sh", *command])
    try:
        api.start(container)
        said = b""
        for chunk in api.logs(container, stream=True, follow=True):
            said += chunk
            if until in said:
                break
        else:
            raise RuntimeError(f"{command[0]} ended: {said.decode(errors='replace')[-500:]}")
        return float(api.stats(container, stream=False, one_shot=True)["cpu_stats"]["cpu_usage"]["total_usage"]) / 1e9
    finally:
        api.remove_container(container, force=True)


async def our_cycle(client: ControllerClient, environment: Environment, row: dict[str, Any]) -> float:
    """CPU-seconds of the machine for a sandbox of ours: created, reset, a tool called, deleted."""
    before = machine_cpu_seconds()
    async with client.sandbox(environment) as sandbox:
        await sandbox.reset(row)
        answer = await sandbox.call_tool("get_counter_value", {})
        assert not answer.is_error, answer
    return machine_cpu_seconds() - before


async def measure(
    client: ControllerClient, environment: Environment, row: dict[str, Any], engine: docker.APIClient, image: str
) -> tuple[list[Figure], list[str]]:
    """Interleaved. CPU is the whole machine's: run it on an idle one."""
    bare: list[float] = []
    fastapi: list[float] = []
    ours: list[float] = []
    for number in range(ROUNDS + 1):
        figures = (
            await asyncio.to_thread(bare_cycle, engine, image),
            await asyncio.to_thread(fastapi_start, engine, image),
            await our_cycle(client, environment, row),
        )
        if number:  # the first is the warm-up
            for series, value in zip((bare, fastapi, ours), figures, strict=True):
                series.append(value)
    # /proc/stat counts in ticks of 10 ms: over a whole series, the mean is finer than the median
    mean_bare, mean_ours, server = sum(bare) / ROUNDS, sum(ours) / ROUNDS, median(fastapi) or 0.0
    baseline = "bare engine with an exec + FastAPI's start"
    return [at_most(0.75, "cold create, tools, delete", mean_ours, "CPU-s", mean_bare + server, baseline)], [
        f"bare engine with an exec {mean_bare:.3f} CPU-s a cycle, FastAPI's own start {server:.3f} CPU-s"
    ]
