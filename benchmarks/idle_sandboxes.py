"""Idle sandboxes: how many are held at once, whether each still answers, and what memory each takes, all in."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import docker
from gymbox.client import ControllerClient
from gymbox.environment import Environment
from gymbox.errors import Problem
from gymbox.http import HttpClient
from report import Figure, reaching, within

HELD = 300
REST = 10.0
"""Seconds of idling between the last start and the measurement."""
MIB = 1024 * 1024


def mebibytes(stats: dict[str, Any]) -> float:
    """What a container holds, page cache that it could drop not counted (as `docker stats` does)."""
    memory = stats["memory_stats"]
    dropped = memory["stats"].get("total_inactive_file", memory["stats"].get("inactive_file", 0))
    return float(memory["usage"] - dropped) / MIB


def available_mib() -> float:
    """Memory that this machine could still give away, page cache that it could drop included."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("MemAvailable:"))


def shims_mib() -> tuple[int, float]:
    """How many shims of containers run here, and the memory of all, shared pages counted once (PSS)."""
    count, total = 0, 0.0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if not (folder / "comm").read_text().startswith("containerd-shim"):
                continue
            lines = (folder / "smaps_rollup").read_text().splitlines()
        except OSError:  # it has ended
            continue
        count += 1
        total += next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))
    return count, total


async def measure(
    client: ControllerClient,
    environment: Environment,
    http: HttpClient,
    proxy: str,
    token: str,
    engine: docker.APIClient,
) -> tuple[list[Figure], list[str]]:
    """Each one's memory is what the engine counts for its container, kernel's included, and an equal part of what all
    shims hold; what the whole machine has less of is told too. The controller must allow HELD.
    """
    api: Any = engine  # the SDK has no types

    async def healthy(id: str) -> bool:
        headers = {"Authorization": f"Bearer {token}"}
        try:
            answer = await http.request("GET", f"{proxy}/sandboxes/{id}/healthz", headers=headers)
        except Problem:
            return False
        return answer.status == 200

    before, began = available_mib(), time.perf_counter()
    async with AsyncExitStack() as stack:
        sandboxes = await asyncio.gather(
            *(stack.enter_async_context(client.sandbox(environment)) for _ in range(HELD))
        )
        took = time.perf_counter() - began
        await asyncio.sleep(REST)
        machine = (before - available_mib()) / HELD
        shims, pss = await asyncio.to_thread(shims_mib)
        shim, inside = pss / max(shims, 1), 0.0
        for one in sandboxes:
            container = (await client.get(one.id)).container
            inside += mebibytes(await asyncio.to_thread(api.stats, container, stream=False, one_shot=True))
        answered = sum(await asyncio.gather(*(healthy(one.id) for one in sandboxes)))
    return [
        reaching(HELD, "idle sandboxes held and healthy", answered, "sandboxes"),
        within(30, "memory of each, its shim included", inside / HELD + shim, "MiB"),
    ], [
        f"{HELD} started in {took:.0f} s ({HELD / took:.1f}/s); {inside / HELD:.1f} MiB in the container and "
        f"{shim:.1f} in the shim; the machine had {machine:.1f} MiB less for each (true where nothing else runs)"
    ]
