"""Harbor's DockerEnvironment with a prebuilt image, started and stopped as a trial does it."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import uuid
from pathlib import Path

from cycles import serve
from harbor.environments.docker.docker import DockerEnvironment
from harbor.models.task.config import EnvironmentConfig
from harbor.models.trial.paths import TrialPaths


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="gymbox-bench-") as name:
        folder = Path(name)

        async def cycle() -> str:
            id = f"gymbox-bench-{uuid.uuid4().hex[:12]}"
            (task := folder / id / "environment").mkdir(parents=True)
            trial = TrialPaths(trial_dir=folder / id / "trial")
            trial.mkdir()
            environment = DockerEnvironment(
                task, "gymbox-bench", id, trial, EnvironmentConfig(docker_image=sys.argv[1])
            )
            try:
                await environment.start(force_build=False)
                return str((await environment.exec("echo hi")).stdout)
            finally:
                await environment.stop(delete=True)

        await serve(cycle)


asyncio.run(main())
