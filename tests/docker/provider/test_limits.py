"""Each limit of the manifest, run into and not: what the sandbox sees, and what its end is told as. Memory, processes,
open files and full tmpfs are in ../security/test_resources.py and test_faults.py."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from gymbox.errors import ErrorKind, RolloutError, SandboxEnded, Stage

BUSY = """
import os, time
began, used = time.monotonic(), os.times()
while time.monotonic() - began < 1.0:
    pass
print((os.times().user + os.times().system) - (used.user + used.system))
"""
FILL = "head -c {0} /dev/zero > file; stat -c %s file"
MANY = "for n in $(seq {0}); do : > $n || exit 1; done 2>/dev/null"
OUT_OF_DISK = """
import sys
from gymbox_sandbox import ResourcesServer, tool

class Fills(ResourcesServer):
    @tool
    def fill(self, megabytes: int) -> int:
        "Write so much into /tmp, and end where there is no room."
        try:
            with open("/tmp/file", "wb") as file:
                for _ in range(megabytes):
                    file.write(bytes(1 << 20))
                    file.flush()
        except OSError as error:
            print(error, file=sys.stderr, flush=True)
            import os
            os._exit(1)
        return megabytes

    @tool
    def say(self, megabytes: int) -> int:
        "Print so much."
        for _ in range(megabytes << 10):
            print("x" * 1023)
        return megabytes

    @tool
    async def nap(self, seconds: float) -> str:
        "Sleep."
        import asyncio
        await asyncio.sleep(seconds)
        return "rested"

    async def verify(self, task, response):
        return 0.0
"""


async def test_a_workspace_on_disk_holds_what_it_may_and_no_more(
    sandboxes: Any, environment: Any, run_in: Any
) -> None:
    limits = {"workspace": "disk", "workspace_mb": 300, "inodes": 200, "memory_mb": 128}
    started = await sandboxes.start(environment(limits=limits))
    # more than the sandbox's memory, so it is no tmpfs
    assert (await run_in(started, FILL.format(250 << 20)))["stdout"] == f"{250 << 20}\n"
    full = await run_in(started, FILL.format(400 << 20))
    assert "No space left on device" in full["stderr"] and int(full["stdout"]) < 300 << 20
    found = await run_in(started, "rm file; ls -A; stat -c '%U %a' .; touch here && ln here there && rm here there")
    assert (found["exit_code"], found["stdout"].split()[-1]) == (0, "755"), found
    assert (await run_in(started, MANY.format(150)))["exit_code"] == 0
    assert (await run_in(started, MANY.format(400)))["exit_code"] == 1
    mounted = await run_in(started, "grep ' /workspace ' /proc/mounts")
    assert mounted["stdout"].split()[2] == "ext4" and "nosuid,nodev" in mounted["stdout"]


async def test_the_disk_of_a_workspace_goes_with_its_container(
    sandboxes: Any, environment: Any, run_in: Any, engine: Any
) -> None:
    started = await sandboxes.start(environment(limits={"workspace": "disk", "workspace_mb": 16}))
    device = (await run_in(started, "grep ' /workspace ' /proc/mounts"))["stdout"].split()[0]
    backing = f"/sys/block/{device.rpartition('/')[2]}/loop/backing_file"
    assert (await asyncio.to_thread(open, backing)).read().strip().endswith("(deleted)")
    await sandboxes.provider.stop(started.id)
    with pytest.raises(FileNotFoundError):
        (await asyncio.to_thread(open, backing)).read()


async def test_files_in_memory_are_counted_as_the_manifest_says(sandboxes: Any, environment: Any, run_in: Any) -> None:
    started = await sandboxes.start(environment(limits={"workspace_mb": 16, "tmp_mb": 16, "inodes": 100}))
    for folder in ("/workspace", "/tmp", "/home/agent"):
        assert (await run_in(started, MANY.format(80), cwd=folder))["exit_code"] == 0
        assert (await run_in(started, MANY.format(200), cwd=folder))["exit_code"] == 1


async def test_processors_are_shared_out(sandboxes: Any, environment: Any, run_in: Any) -> None:
    quarter = await sandboxes.start(environment(limits={"cpus": 0.25}))
    used = float((await run_in(quarter, ["python3", "-c", BUSY]))["stdout"])
    stat = (await run_in(quarter, "cat /sys/fs/cgroup/cpu/cpu.stat /sys/fs/cgroup/cpu.stat 2>/dev/null"))["stdout"]
    throttled = int(dict(line.split() for line in stat.splitlines())["nr_throttled"])
    assert used < 0.6 and throttled > 0
    whole = await sandboxes.start(environment(limits={"cpus": 2}))
    await run_in(whole, ["python3", "-c", BUSY])
    stat = (await run_in(whole, "cat /sys/fs/cgroup/cpu/cpu.stat /sys/fs/cgroup/cpu.stat 2>/dev/null"))["stdout"]
    assert int(dict(line.split() for line in stat.splitlines())["nr_throttled"]) < throttled


async def test_of_what_a_server_prints_so_much_is_kept(sandboxes: Any, environment: Any, connected: Any) -> None:
    started = await sandboxes.start(environment(server=OUT_OF_DISK, limits={"log_mb": 1}))
    async with connected(started) as session:
        await session.post("/reset", json={"task": {}})
        await session.post("/tools/say", json={"megabytes": 0})
        assert len(await sandboxes.provider.logs(started.id, 1_000_000)) == 0
        async with session.post("/tools/say", json={"megabytes": 4}) as answer:
            assert (await answer.json())["output"] == "4"
    assert 200_000 < len(await sandboxes.provider.logs(started.id, 1_000_000)) <= 1 << 20


async def test_a_tool_that_takes_too_long_is_told_to_the_model(
    sandboxes: Any, environment: Any, connected: Any
) -> None:
    started = await sandboxes.start(environment(server=OUT_OF_DISK, timeouts={"tool": 0.5}))
    async with connected(started) as session:
        await session.post("/reset", json={"task": {}})
        async with session.post("/tools/nap", json={"seconds": 0.01}) as answer:
            assert await answer.json() == {"output": "rested", "is_error": False}
        async with session.post("/tools/nap", json={"seconds": 30}) as answer:
            assert (await answer.json())["is_error"]


async def test_a_server_that_ends_for_want_of_disk_is_told_as_that(
    sandboxes: Any, environment: Any, connected: Any
) -> None:
    started = await sandboxes.start(environment(server=OUT_OF_DISK, limits={"tmp_mb": 4}))
    async with connected(started) as session:
        await session.post("/reset", json={"task": {}})
        async with session.post("/tools/fill", json={"megabytes": 2}) as answer:
            assert (await answer.json())["output"] == "2"
        with pytest.raises(Exception, match=r"(?i)disconnected|reset|payload"):
            await session.post("/tools/fill", json={"megabytes": 8})
    id, ended = await sandboxes.ended()
    assert (id, ended.cause, ended.exit_code) == (started.id, "disk_full", 1)
    assert RolloutError.at(Stage.AGENT, SandboxEnded(ended)).kind is ErrorKind.DISK_FULL
