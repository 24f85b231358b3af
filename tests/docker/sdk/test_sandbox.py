"""Sandboxes of any image for Python programs, in containers."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import docker.errors
import pytest
from gymbox import Sandbox, SyncSandbox
from gymbox.errors import ImageNotPulled, SandboxEnded
from gymbox.runs.places import Places

LEFT = """
import asyncio, sys
from pathlib import Path
from gymbox import Sandbox
from gymbox.runs.places import Places

async def main():
    places = Places((), Path(sys.argv[1]), Path(), "t")
    async with Sandbox("debian:trixie-slim", provider="docker", places=places) as box:
        print(box.id, flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.fixture
def places(state: Path, tmp_path: Path) -> Places:
    return Places((), state, tmp_path, "token")


def running(engine: Any, id: str) -> list[Any]:
    """The containers of a sandbox."""
    found = engine.containers.list(ignore_removed=True)
    return [each for each in found if id in json.dumps(each.labels) + each.name]


async def test_a_sandbox_is_of_the_image_and_has_the_limits(places: Places, engine: Any) -> None:
    async with Sandbox(
        "debian:trixie-slim", provider="docker", places=places, cpus=0.5, memory_mb=200, pids=50
    ) as box:
        assert "trixie" in (await box.exec("cat /etc/os-release")).stdout
        assert (await box.exec("command -v python3")).exit_code != 0
        assert (await box.exec("id -un; pwd")).stdout == "agent\n/workspace\n"
        [found] = running(engine, box.id)
        limits = found.attrs["HostConfig"]
        assert (limits["CpuQuota"], limits["Memory"], limits["PidsLimit"]) == (50_000, 200 << 20, 50)
        assert limits["NetworkMode"] == "none" and limits["Privileged"] is False
        found.kill()
        with pytest.raises(SandboxEnded):
            await box.exec("true")
    with pytest.raises(docker.errors.NotFound):
        engine.containers.get(found.id)


def test_a_sandbox_without_a_loop_has_the_default_image(places: Places) -> None:
    with SyncSandbox(provider="docker", places=places) as box:
        assert box.exec(["python3", "-c", "print(6*7)"]).stdout == "42\n"


async def test_an_image_that_is_nowhere_is_told_on_entering(places: Places) -> None:
    with pytest.raises(Exception, match="127.0.0.1:1/nothing") as told:
        async with Sandbox("127.0.0.1:1/nothing:here", provider="docker", places=places):
            raise AssertionError("unreachable")
    assert isinstance(told.value, ImageNotPulled) or "registry" in str(told.value)


async def test_what_a_killed_program_leaves_the_next_one_removes(places: Places, engine: Any) -> None:
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", LEFT, str(places.state)), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert program.stdout is not None
        async with asyncio.timeout(240):  # its image may have to be built
            id = (await program.stdout.readline()).decode().strip()
        assert id, "the program ended"
    finally:
        program.send_signal(signal.SIGKILL)
        await program.wait()
    [left] = running(engine, id)
    async with Sandbox("debian:trixie-slim", provider="docker", places=places):
        with pytest.raises(docker.errors.NotFound):
            engine.containers.get(left.id)
