"""Inspect's Docker sandbox by the calls that an evaluation makes; the compose file is what it writes by itself."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from cycles import serve
from inspect_ai.util._sandbox.docker.docker import DockerSandboxEnvironment as Docker

COMPOSE = """services:
  default:
    image: {image}
    x-local: true
    command: tail -f /dev/null
    init: true
    network_mode: none
    stop_grace_period: 1s
"""
TASK = "gymbox-benchmark"


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="gymbox-bench-") as folder:
        config = Path(folder) / "compose.yaml"
        config.write_text(COMPOSE.format(image=sys.argv[1]))

        async def cycle() -> str:
            sandboxes = await Docker.sample_init(TASK, str(config), {})
            try:
                return str((await sandboxes["default"].exec(["echo", "hi"])).stdout)
            finally:
                await Docker.sample_cleanup(TASK, str(config), sandboxes, False)

        await Docker.task_init(TASK, str(config))
        try:
            await serve(cycle)
        finally:
            await Docker.task_cleanup(TASK, str(config), True)


asyncio.run(main())
