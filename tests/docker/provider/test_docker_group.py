"""A user who is not root but may use the engine: the server inside is then that user, and the agent still is not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

AS_USER = """
import asyncio, json, os, sys
import aiohttp
from pathlib import Path
from gymbox.environment import Environment
from gymbox.providers import StartSpec
from gymbox.providers.docker import DockerProvider

async def main(folder, controller, group):
    environment = Environment.load(folder / "plain")
    provider = DockerProvider(build_folder=folder / "builds")
    os.setgroups([group])
    os.setgid(12345)
    os.setuid(12345)
    await provider.open(controller, lambda id, ended: None)
    try:
        started = await provider.start(StartSpec(controller, environment, folder / "box"), lambda phase: None)
        async with aiohttp.ClientSession("http://x", connector=aiohttp.UnixConnector(started.socket)) as session:
            request = {"command": "id -u; ls /run/gymbox; touch /workspace/made && echo made"}
            async with session.post("/exec", json=request) as answer:
                done = await answer.json()
        directory = os.stat(folder / "box")
        print(json.dumps({"done": done, "mode": directory.st_mode & 0o7777, "uid": directory.st_uid}))
    finally:
        await provider.stop(controller)
        await provider.close()
    assert not (folder / "box").exists()

asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that the other user may read and write; pytest's own are closed to it."""
    folder = Path(tempfile.mkdtemp(prefix="gymbox-test-"))
    os.chown(folder, 12345, 12345)
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


def test_a_member_of_the_docker_group_can_run_sandboxes(sandboxes: Any, environment: Any, open_folder: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    shutil.copytree(environment().folder, open_folder / "plain")
    group = os.stat("/var/run/docker.sock").st_gid
    command = [sys.executable, "-c", AS_USER, str(open_folder), sandboxes.controller_id, str(group)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["mode"], told["uid"]) == (0o700, 12345)
    assert told["done"]["stdout"].split() == ["10001", "made"]
    assert "Permission denied" in told["done"]["stderr"]
