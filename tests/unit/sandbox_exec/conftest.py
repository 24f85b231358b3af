"""A real supervisor, server and commands: as root with two users, and with one user as whoever runs the tests."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from gymbox_sandbox import prctl
from gymbox_sandbox.process_tree import parent_of, reap_children

SERVER, AGENT = 10002, 10001


class Host:
    """A running host.py and a client of it."""

    def __init__(self, folder: Path, two_users: bool) -> None:
        self.folder = folder
        self.workspace = folder / "workspace"
        self.two_users = two_users
        self._socket = folder / "run" / "server.sock"

    async def start(self) -> None:
        self.workspace.mkdir()
        self._socket.parent.mkdir()
        users = []
        if self.two_users:
            self.folder.chmod(0o711)
            os.chown(self.workspace, AGENT, AGENT)
            os.chown(self._socket.parent, SERVER, SERVER)
            users = [str(SERVER), str(AGENT)]
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(Path(__file__).with_name("host.py")),
            str(self._socket),
            str(self.workspace),
            *users,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        assert (await self.process.stdout.readline()) == b"ready\n"
        self.client = aiohttp.ClientSession("http://sandbox", connector=aiohttp.UnixConnector(str(self._socket)))

    async def stop(self) -> int:
        await self.client.close()
        if self.process.returncode is None:
            self.process.terminate()
        return await self.process.wait()

    async def exec(self, command: str | list[str], **fields: Any) -> dict[str, Any]:
        """The result, or the problem."""
        for name in ("stdin",):
            if isinstance(fields.get(name), bytes):
                fields[name] = base64.b64encode(fields[name]).decode()
        async with self.client.post("/exec", json={"command": command, **fields}) as answer:
            return await answer.json()

    @asynccontextmanager
    async def stream(self, command: str | list[str], **fields: Any) -> AsyncIterator[AsyncIterator[tuple[str, Any]]]:
        """The events of a streamed exec; leaving the context hangs up."""
        async with self.client.post("/exec", json={"command": command, "stream": True, **fields}) as answer:
            assert answer.status == 200, await answer.text()
            yield _events(answer)

    async def facts(self) -> dict[str, Any]:
        async with self.client.get("/facts") as answer:
            return await answer.json()

    async def kill_all(self) -> None:
        async with self.client.post("/kill_all") as answer:
            assert answer.status == 204, await answer.text()


async def _events(answer: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, Any]]:
    name = ""
    while line := (await answer.content.readline()).decode():
        if line.startswith("event: "):
            name = line[7:].strip()
        elif line.startswith("data: "):
            data = json.loads(line[6:])
            yield name, base64.b64decode(data["data"]) if name in ("stdout", "stderr") else data


def descendants(root: int) -> set[int]:
    """Pids below `root`, itself not included."""
    parents = {int(name): parent_of(int(name)) for name in os.listdir("/proc") if name.isdecimal()}
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {root}


@pytest.fixture
def no_process_left() -> Iterator[None]:
    """Whatever a test starts, and whoever its parent becomes, has ended when it ends."""
    prctl.adopt_orphans()
    before = descendants(os.getpid())
    yield
    left = {pid: _command_line(pid) for pid in descendants(os.getpid()) - before}
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    reap_children()
    assert not left


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return "?"


@asynccontextmanager
async def _host(two_users: bool) -> AsyncIterator[Host]:
    folder = Path(tempfile.mkdtemp(prefix="gymbox-exec-"))
    host = Host(folder, two_users)
    try:
        await host.start()
        yield host
    finally:
        await host.stop()
        shutil.rmtree(folder)


@pytest.fixture(params=["two users", "one user"])
async def host(request: pytest.FixtureRequest, no_process_left: None) -> AsyncIterator[Host]:
    if request.param == "two users" and os.getuid() != 0:
        pytest.skip("two users need root")
    async with _host(request.param == "two users") as host:
        yield host


@pytest.fixture
async def two_users(no_process_left: None) -> AsyncIterator[Host]:
    if os.getuid() != 0:
        pytest.skip("two users need root")
    async with _host(True) as host:
        yield host


@pytest.fixture
async def one_user(no_process_left: None) -> AsyncIterator[Host]:
    async with _host(False) as host:
        yield host
