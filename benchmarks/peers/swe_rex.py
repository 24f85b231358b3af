"""SWE-ReX's DockerDeployment, as its documentation uses it; its server is in the image already."""

from __future__ import annotations

import asyncio
import sys

from cycles import serve
from swerex.deployment.docker import DockerDeployment
from swerex.runtime.abstract import Command


async def cycle() -> str:
    deployment = DockerDeployment(image=sys.argv[1], pull="never")
    try:
        await deployment.start()
        return str((await deployment.runtime.execute(Command(command=["echo", "hi"]))).stdout)
    finally:
        await deployment.stop()


# in one loop, its blocking sleeps would make its probes of 150 ms late for as long as another starts
asyncio.run(serve(cycle, threads=True))
