"""What one sandbox may use up, and that it can be used afterwards."""

from __future__ import annotations

from typing import Any

import pytest

FILL = """
import errno
written = 0
try:
    with open("{folder}/big", "wb") as file:
        for _ in range(64):
            written += file.write(bytes(1_000_000))
            file.flush()
    print("OPEN")
except OSError as error:
    print(errno.errorcode[error.errno], written)
"""
MANY_FILES = """
import errno
try:
    for number in range(2000):
        open(f"{folder}/{{number}}", "w").close()
    print("OPEN")
except OSError as error:
    print(errno.errorcode[error.errno], number)
"""
FORKS = """
import os, time
made = 0
try:
    for _ in range(200):
        if os.fork() == 0:
            os.setsid()
            time.sleep(5)
            os._exit(0)
        made += 1
    print("OPEN", flush=True)
except OSError as error:
    print("refused after", made, error.errno, flush=True)
    time.sleep(60)
"""
CROWD = """
import os, time
children = []
for _ in range(40):  # each smaller than the server
    if (child := os.fork()) == 0:
        held = bytearray(b"x") * 11_000_000
        time.sleep(3)
        os._exit(0)
    children.append(child)
if all(os.waitpid(child, 0)[1] == 0 for child in children):
    print("OPEN")
"""


@pytest.mark.parametrize("folder", ["/tmp", "/workspace", "/home/agent"])
async def test_f04_a_full_disk_is_the_sandboxs_own(folder: str, as_agent: Any, plainly: Any) -> None:
    assert plainly(FILL.format(folder=folder)).opened
    assert (await as_agent(FILL.format(folder=folder))).startswith("ENOSPC 1")  # of 16 MiB
    assert "alive" in await as_agent("echo alive")


@pytest.mark.parametrize("folder", ["/tmp", "/workspace", "/home/agent"])
async def test_f05_files_are_counted(folder: str, as_agent: Any, plainly: Any) -> None:
    assert plainly(MANY_FILES.format(folder=folder)).opened
    assert (await as_agent(MANY_FILES.format(folder=folder))).startswith("ENOSPC 10")  # 64 for each MiB


async def test_r01_open_files_are_limited(as_agent: Any, plainly: Any) -> None:
    script = "import os\nheld = [os.open('/', 0) for _ in range(1000)]\nprint('OPEN')"
    assert plainly(script).opened
    assert "Too many open files" in await as_agent(script)


async def test_r02_a_fork_bomb_stays_inside_and_the_sandbox_is_usable_after_it(as_agent: Any, plainly: Any) -> None:
    assert plainly(FORKS).opened
    assert "refused after" in await as_agent(FORKS, timeout=2)
    assert "alive" in await as_agent("echo alive")


async def test_r04_memory_is_limited_without_swap(as_agent: Any, plainly: Any) -> None:
    script = "import os\nheld = bytearray(os.urandom(1)) * 400_000_000\nprint('OPEN')"
    assert plainly(script).opened
    assert not (await as_agent(script)).opened
    assert "alive" in await as_agent("echo alive")


async def test_r04_many_small_processes_are_ended_and_the_server_lives_on(as_agent: Any, plainly: Any) -> None:
    assert plainly(CROWD).opened
    assert not (await as_agent(CROWD)).opened
    assert "alive" in await as_agent("echo alive")  # by the same server


async def test_r05_no_child_outlives_the_timeout_of_its_command(as_agent: Any, plainly: Any) -> None:
    leave = "setsid sh -c 'sleep 777 & sleep 777' </dev/null >/dev/null 2>&1 & sleep 778"
    left = "grep -lz '^777$' /proc/[0-9]*/cmdline 2>/dev/null | wc -l"
    plainly(f'timeout 1 sh -c "{leave}"')
    assert int(plainly(left)) > 0
    await as_agent(leave, timeout=1)
    assert int(await as_agent(left)) == 0


async def test_r07_a_flood_of_log_lines_does_not_fill_the_hosts_disk(
    sandboxes: Any, environment: Any, engine: Any, connected: Any
) -> None:
    """No control: what an ordinary container writes without a limit is the host's disk."""
    flood = """
from gymbox_sandbox import ResourcesServer, tool

class Flood(ResourcesServer):
    @tool
    def flood(self) -> int:
        '''Print 40 MB.'''
        for _ in range(40_000):
            print("x" * 1000)
        return 1

    async def verify(self, task, response):
        return 0.0
"""
    started = await sandboxes.start(environment(server=flood))
    async with connected(started) as session:
        await session.post("/reset", json={"task": {}})
        async with session.post("/tools/flood", json={}) as answer:
            assert (await answer.json())["output"] == "1"
    config = engine.containers.get(started.id).attrs["HostConfig"]["LogConfig"]["Config"]
    assert config == {"max-size": "10240k", "max-file": "2"}
    assert "x" * 1000 in await sandboxes.provider.logs(started.id, 5)
