"""A sandbox's files and instance, saved and restored into another one: real servers, with a container's few rights."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

SERVER, AGENT = 10002, 10001
COUNTER = """
from gymbox_sandbox import ResourcesServer, Task, tool

class Counter(ResourcesServer):
    async def reset(self, task: Task) -> None:
        self.count = task.initial

    async def snapshot(self):
        return {"count": self.count}

    async def restore(self, task: Task, state) -> None:
        self.count = state["count"]
        self.told = (await self.exec("cat told")).stdout

    @tool
    async def add(self, by: int) -> int:
        self.count += by
        return self.count

    @tool
    async def nap(self) -> str:
        await self.exec("touch napping; while [ ! -e wake ]; do sleep 0.02; done")
        return "rested"

    async def verify(self, task, response):
        return float(self.count)
"""
PLAIN = """
from gymbox_sandbox import ResourcesServer, tool

class Plain(ResourcesServer):
    @tool
    def snapshot(self) -> str:
        "A tool of that name is no hook."
        return "taken"

    async def verify(self, task, response):
        return 0.0
"""
TREE = r"""
mkdir -p deep/er closed empty && echo hello > deep/er/file && chmod 640 deep/er/file
ln -s ../nowhere deep/dangling && ln deep/er/file deep/same && mkfifo pipe && chmod 600 pipe
echo secret > closed/inner && chmod 000 closed/inner && chmod 111 closed
echo '#!/bin/sh' > run && chmod 4755 run && touch -d '2001-02-03 04:05:06.5' run deep empty
truncate -s 3G sparse && printf middle | dd of=sparse bs=1 seek=1G conv=notrunc 2>/dev/null && truncate -s 5M hole
printf 'name\n' > "$(printf 'odd\377\nname')"
python3 -c "import socket; socket.socket(socket.AF_UNIX).bind('socket')"
"""
LOOK = r"""
find . -mindepth 1 ! -type s -printf '%p %y %m %U:%G %s %T@ %l\n' | sed 's/\.[0-9]* / /g' | sort
"""


@pytest.fixture
def two_users(request: pytest.FixtureRequest) -> bool:
    return os.getuid() == 0 and getattr(request, "param", True)


WITH_AND_WITHOUT = pytest.mark.parametrize("two_users", [True, False], indirect=True, ids=["two users", "one user"])


class Box:
    """One running server."""

    def __init__(self, folder: Path, client: aiohttp.ClientSession) -> None:
        self.directory = folder / "run"
        self.workspace = folder / "workspace"
        self.client = client

    async def post(self, path: str, **body: Any) -> tuple[int, Any]:
        async with self.client.post(path, json=body) as answer:
            return answer.status, await answer.json()

    async def run(self, command: str) -> str:
        _, result = await self.post("/exec", command=command)
        assert result["exit_code"] == 0, result
        return str(result["stdout"])

    async def save(self, name: str = "saved", *, most: int = 1 << 30, **fields: Any) -> tuple[int, Any]:
        file = self.directory / name
        file.touch(mode=0o600)
        status = self.directory.stat()
        os.chown(file, status.st_uid, status.st_gid)
        return await self.post("/snapshot/save", file=name, bytes=most, **fields)

    async def load(self, source: Path, **fields: Any) -> tuple[int, Any]:
        shutil.copyfile(source, self.directory / "loaded")
        (self.directory / "loaded").chmod(0o444)
        return await self.post("/snapshot/load", **{"id": "one", "file": "loaded", **fields})


@pytest.fixture
def boxes(two_users: bool) -> Iterator[Callable[..., Any]]:
    # not tmp_path, which other users may not enter
    with tempfile.TemporaryDirectory(prefix="gbx") as made:
        Path(made).chmod(0o711)
        numbers = iter(range(9))

        @asynccontextmanager
        async def start(source: str = COUNTER, **options: Any) -> AsyncIterator[Box]:
            folder = Path(made) / str(next(numbers))
            with serving(folder, source, two_users, options) as socket:
                async with aiohttp.ClientSession("http://box", connector=aiohttp.UnixConnector(str(socket))) as client:
                    yield Box(folder, client)

        yield start


@contextmanager
def serving(folder: Path, source: str, two_users: bool, options: dict[str, Any]) -> Iterator[Path]:
    workspace, directory = folder / "workspace", folder / "run"
    for each in (folder, workspace, directory):
        each.mkdir(mode=0o711)
    (folder / "server.py").write_text(source)
    command = [sys.executable, Path(__file__).with_name("box.py"), "--name", "plain", "--server", folder / "server.py"]
    command += ["--directory", directory, "--workspace", workspace]
    for name, value in options.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    if two_users:
        os.chown(workspace, AGENT, AGENT)
        os.chown(directory, SERVER, SERVER)
        command += ["--server-user", f"{SERVER}:{SERVER}", "--agent-user", f"{AGENT}:{AGENT}"]
        if shutil.which("setpriv"):
            command = ["setpriv", "--no-new-privs", "--bounding-set=-all,+setuid,+setgid,+kill", *command]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while not (directory / "server.sock").exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        yield directory / "server.sock"
    finally:
        process.terminate()
        process.wait(timeout=20)


@WITH_AND_WITHOUT
async def test_all_that_the_agent_left_comes_back_as_it_was(boxes: Any) -> None:
    async with boxes() as first, boxes() as second:
        await first.run(TREE)
        status, saved = await first.save()
        assert (status, saved["left_out"], saved["instance"]) == (200, 1, None), saved
        archive = first.directory / "saved"
        assert archive.stat().st_size < 100_000, "holes were written out"
        before = await first.run(LOOK)  # which also shows that saving has changed no mode
        assert await second.load(archive) == (200, {})
        assert await second.run(LOOK) == before
        assert await second.run("cat deep/er/file; test deep/er/file -ef deep/same; cat run; wc -c < sparse") == (
            "hello\n#!/bin/sh\n3221225472\n"
        )
        sizes = (await second.run("du -k sparse hole | cut -f1")).split()
        assert len(sizes) == 2 and sum(map(int, sizes)) < 100
        assert await second.run("dd if=sparse bs=1 skip=1G count=6 2>/dev/null") == "middle"
        await second.run("chmod 755 closed && chmod 600 closed/inner && grep secret closed/inner")
        with tarfile.open(archive) as tar:  # whoever else reads it finds an ordinary tar
            assert tar.getmember("workspace/sparse").size == 3 << 30


@WITH_AND_WITHOUT
async def test_an_instance_goes_on_where_it_was_saved(boxes: Any) -> None:
    async with boxes() as first, boxes() as second:
        await first.post("/reset", task={"id": "t", "initial": 40})
        await first.post("/tools/add", by=2)
        await first.run("echo words > told")
        status, saved = await first.save()
        assert status == 200 and saved["was_reset"]
        await first.post("/tools/add", by=100)
        assert (await second.load(first.directory / "saved", instance=saved["instance"]))[0] == 200
        assert (await second.load(first.directory / "saved"))[0] == 200  # asked again
        _, answer = await second.post("/reset", task={"id": "t", "initial": 40})  # already done
        assert {each["name"] for each in answer["tools"]} == {"add", "nap"}
        assert (await second.post("/tools/add", by=0))[1]["output"] == "42"
        async with second.client.get("/healthz") as health:
            assert (await health.json())["snapshot"] == "one"
        assert (await second.post("/reset", task={"id": "other", "initial": 1}))[0] == 409


async def test_what_would_be_lost_is_refused_and_the_files_alone_are_not(boxes: Any) -> None:
    async with boxes(PLAIN) as box:
        await box.post("/reset", task={"id": "t"})
        status, problem = await box.save()
        assert (status, problem["cause"]) == (409, "no_hooks")
        status, saved = await box.save("files", files_only=True)
        assert status == 200 and saved["was_reset"] and saved["instance"] is None


async def test_nothing_is_saved_while_a_tool_runs_or_once_verify_has_begun(boxes: Any) -> None:
    async with boxes() as box:
        await box.post("/reset", task={"id": "t", "initial": 1})
        nap = asyncio.create_task(box.post("/tools/nap"))
        async with asyncio.timeout(20):
            while not (box.workspace / "napping").exists():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert (await box.save())[1].get("cause") == "busy"
        (box.workspace / "wake").touch()
        await nap
        response = {
            "id": "r",
            "object": "response",
            "created_at": 0,
            "model": "m",
            "output": [],
            "status": "completed",
        }
        verdict = await box.post("/verify", task={"id": "t", "initial": 1}, response=response)
        assert verdict[0] == 200, verdict
        status, problem = await box.save("late")
        assert status == 409 and "verify has begun" in problem["detail"]


async def test_what_runs_stands_still_while_it_is_saved_and_goes_on_after(boxes: Any, two_users: bool) -> None:
    async with boxes() as box:
        await box.run("(while :; do echo x >> growing; done) & sleep 99 & kill -STOP $!; echo $! > pid; sleep 0.2")
        assert (await box.save())[0] == 200
        if two_users:
            with tarfile.open(box.directory / "saved") as tar:
                assert tar.getmember("workspace/growing").size > 0
        size = int(await box.run("wc -c < growing; sleep 0.2"))
        assert int(await box.run("wc -c < growing")) > size
        # what the agent itself had stopped stays so
        assert (await box.run("cat /proc/$(cat pid)/stat")).split()[2] == "T"


async def test_what_cannot_be_saved_or_loaded_is_told(boxes: Any) -> None:
    async with boxes() as box, boxes() as other:
        await box.run("head -c 3000000 /dev/urandom > big")
        status, problem = await box.save(most=1_000_000)
        assert (status, problem["cause"]) == (409, "too_large")
        assert (await box.post("/snapshot/save", file="nowhere", bytes=1))[0] == 404
        await box.run("mkdir -p $(yes d | head -300 | paste -sd/)")
        status, problem = await box.save("deep")
        assert status == 409 and "250 folders" in problem["detail"]
        await box.run("rm -r d && echo it > works")
        assert (await box.save("whole"))[0] == 200
        whole = (box.directory / "whole").read_bytes()
        (box.directory / "part").write_bytes(whole[: len(whole) // 2])
        status, problem = await other.load(box.directory / "part")
        assert (status, problem["cause"]) == (422, "bad_archive")
        await other.post("/reset", task={"id": "t", "initial": 1})
        assert (await other.load(box.directory / "whole"))[0] == 409
    async with boxes(max_sessions=2) as shared:
        assert (await shared.save())[0] == 422


async def test_an_archive_leads_nowhere_else(boxes: Any, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    outside.chmod(0o777)
    async with boxes() as box:
        for name, *refused in (
            ("elsewhere/file", 422, "invalid", "is in none of"),
            ("workspace/../up", 422, "invalid", "is in none of"),
            ("workspace//x", 422, "invalid", "is in none of"),
            ("workspace/link/file", 404, "not_found", "link: Not a directory"),
        ):
            with tarfile.open(tmp_path / "evil.tar", "w") as tar:
                for each in ("workspace", "link", name):
                    info = tarfile.TarInfo("workspace/link" if each == "link" else each)
                    info.uname, info.mode = "agent", 0o755
                    info.type = {"workspace": tarfile.DIRTYPE, "link": tarfile.SYMTYPE}.get(each, tarfile.REGTYPE)
                    info.linkname = str(outside) if each == "link" else ""
                    tar.addfile(info)
            (box.directory / "loaded").unlink(missing_ok=True)
            status, problem = await box.load(tmp_path / "evil.tar")
            assert [status, problem["kind"]] == refused[:2] and refused[2] in problem["detail"], (name, problem)
    assert not list(outside.iterdir())


async def test_files_of_the_server_are_saved_too_and_stay_its_own(boxes: Any, two_users: bool) -> None:
    if not two_users:
        pytest.skip("two users need root")
    async with boxes() as first, boxes() as second:
        (first.workspace / "mine").mkdir(mode=0o700)
        (first.workspace / "mine" / "key").write_text("k")
        (first.workspace / "mine" / "key").chmod(0o600)
        for each in (first.workspace / "mine", first.workspace / "mine" / "key"):
            os.chown(each, SERVER, SERVER)
        assert (await first.save())[0] == 200
        assert (await second.load(first.directory / "saved"))[0] == 200
        found = (second.workspace / "mine" / "key").stat()
        assert (found.st_uid, found.st_mode & 0o777) == (SERVER, 0o600)
        assert (second.workspace / "mine").stat().st_mode & 0o777 == 0o700
