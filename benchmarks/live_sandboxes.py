"""Live sandboxes: what commands in many of them and large files in and out of one cost; rows of `sandboxes.py`.

* exec: `echo hi` through the proxy, one after the other, and in 32 sandboxes at once;
* a file of 1 GB in and out, beside `docker cp` of the same file into a container's writable layer. Ours go through the
  proxy to a sandbox that is a process, whose workspace is on the same disk as the container's: a container's workspace
  is in memory, where `docker cp` cannot go.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import docker
from gymbox.client import ControllerClient
from gymbox.controller.settings import ControllerSettings
from gymbox.embedded import EmbeddedController
from gymbox.environment import Catalog, Environment
from gymbox.http import HttpClient
from gymbox.providers.process import ProcessProvider
from gymbox.sandbox_client import SandboxClient
from report import Figure, at_least, machine_cpu_seconds, median, reaching, within

EXECS = 300
SANDBOXES = 32
SECONDS = 8.0
GIGABYTE = 1 << 30
TRANSFERS = 3
MIB = 1 << 20


async def echo(sandbox: SandboxClient) -> float:
    """Milliseconds of one command."""
    before = time.perf_counter()
    result = await sandbox.exec(["/bin/echo", "hi"])
    assert result.stdout == "hi\n", result
    return 1000 * (time.perf_counter() - before)


async def exec_figures(controller: EmbeddedController, environment: Environment, token: str) -> list[Figure]:
    """One command after the other in one sandbox, then in many at once."""
    async with HttpClient() as http, AsyncExitStack() as stack:
        client = ControllerClient(controller.url, token, http)
        one = await stack.enter_async_context(client.sandbox(environment))
        await echo(one)
        alone = [await echo(one) for _ in range(EXECS)]
        others = [await stack.enter_async_context(client.sandbox(environment)) for _ in range(SANDBOXES - 1)]
        done = 0
        until = time.perf_counter() + SECONDS

        async def keep_busy(sandbox: SandboxClient) -> None:
            nonlocal done
            while time.perf_counter() < until:
                await echo(sandbox)
                done += 1

        await asyncio.gather(*(echo(sandbox) for sandbox in others))
        cpu, begun = machine_cpu_seconds(), time.perf_counter()
        until = begun + SECONDS
        await asyncio.gather(*(keep_busy(sandbox) for sandbox in (one, *others)))
        seconds, spent = time.perf_counter() - begun, machine_cpu_seconds() - cpu
    rate = done / seconds
    return [
        within(3, "exec in a live sandbox, p50", median(alone), "ms"),
        reaching(600, f"execs over {SANDBOXES} sandboxes", rate, "/s"),
        within(3.3, "their CPU, client and proxy included", 1000 * spent / done, "CPU-ms each"),
    ]


async def file_figures(folder: Path, image: str) -> list[Figure]:
    """A file of 1 GB in and out, in turns with `docker cp`, and what that adds to memory at its peak."""
    source, back = folder / "source", folder / "back"
    with source.open("wb") as file:
        for _ in range(GIGABYTE >> 24):
            file.write(os.urandom(1 << 24))
    catalog = Catalog([Path(__file__).parents[1] / "environments"])
    token, engine = f"gbx_admin_{secrets.token_hex(16)}", docker.APIClient()
    name = f"gymbox-bench-{secrets.token_hex(4)}"
    settings = ControllerSettings(port=0)
    state = folder / "files"
    state.mkdir(mode=0o711)
    made = engine.create_container(
        image,
        ["-c", "sleep 3600"],
        name=name,
        entrypoint="/bin/sh",
        user="0",
        labels={"gymbox.benchmark": "files"},
        host_config=engine.create_host_config(network_mode="none", init=True),
    )
    times: dict[str, list[float]] = {each: [] for each in ("in", "out", "docker in", "docker out")}

    async def timed(what: str, call: Callable[[], Awaitable[object]]) -> None:
        before = time.perf_counter()
        await call()
        times[what].append(time.perf_counter() - before)

    try:
        engine.start(made["Id"])
        async with (
            HttpClient() as http,
            EmbeddedController(ProcessProvider(), catalog, state, token, http, settings=settings) as controller,
            HttpClient() as ours,
            ControllerClient(controller.url, token, ours).sandbox(catalog["counter"]) as sandbox,
        ):

            async def put() -> None:
                with source.open("rb") as file:
                    await sandbox.put("large", file, tree=False)

            async def save() -> None:
                with back.open("wb") as file:
                    await sandbox.save("large", file)

            async def copy(*arguments: str) -> None:
                process = await asyncio.create_subprocess_exec("docker", "cp", "-q", *arguments)
                assert await process.wait() == 0

            await sandbox.exec("true")
            before = peaks()
            for _ in range(TRANSFERS):
                await timed("in", put)
                await timed("docker in", lambda: copy(str(source), f"{name}:/large"))
                await timed("out", save)
                assert back.stat().st_size == GIGABYTE
                await timed("docker out", lambda: copy(f"{name}:/large", str(back)))
            grown = max(peak - before.get(pid, peak) for pid, peak in peaks().items())
    finally:
        engine.remove_container(made["Id"], force=True)

    def rate(what: str) -> float:
        return GIGABYTE / MIB / (median(times[what]) or 1.0)

    return [
        at_least(0.5, "1 GB in", rate("in"), "MiB/s", rate("docker in"), "docker cp"),
        at_least(0.5, "1 GB out", rate("out"), "MiB/s", rate("docker out"), "docker cp"),
        within(16, "memory that it adds, server, proxy or client", grown / MIB, "MiB"),
    ]


def peaks() -> dict[str, int]:
    """The most memory that each process of ours has held, in bytes: this one (client, proxy, controller), and each
    sandbox's."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if folder.name == str(os.getpid()) or b"gymbox_sandbox" in (folder / "cmdline").read_bytes():
                status = (folder / "status").read_text()
                found[folder.name] = int(status.split("VmHWM:")[1].split()[0]) * 1024
        except (OSError, IndexError):
            continue  # it has ended
    return found
