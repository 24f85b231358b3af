"""A real supervisor, server and commands: as root with two users, and with one user as whoever runs the tests."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from gymbox_sandbox import prctl
from gymbox_sandbox.process_tree import parent_of, reap_children

SERVER, AGENT = 10002, 10001


class Host:
    """A running host.py, a client of it, and what tests look at."""

    def __init__(self, folder: Path, two_users: bool) -> None:
        self.folder = folder
        self.workspace = folder / "workspace"
        self.two_users = two_users
        self._socket = folder / "run" / "server.sock"

    def start(self) -> None:
        self.workspace.mkdir()
        self._socket.parent.mkdir(mode=0o700)
        users, narrowed = [], []
        if self.two_users:
            self.folder.chmod(0o711)
            os.chown(self.workspace, AGENT, AGENT)
            os.chown(self._socket.parent, SERVER, SERVER)
            users = [str(SERVER), str(AGENT)]
            if shutil.which("setpriv"):  # the rights that a container gives, and none more
                narrowed = ["setpriv", "--no-new-privs", "--bounding-set=-all,+setuid,+setgid,+kill"]
        self.process = subprocess.Popen(
            [*narrowed, sys.executable, Path(__file__).with_name("host.py"), self._socket, self.workspace, *users],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def stop(self) -> int:
        self.process.terminate()
        return self.wait()

    def wait(self) -> int:
        code = self.process.wait(timeout=20)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    async def clear(self) -> None:
        """Leave nothing of one test to the next."""
        await self.kill_all()
        for each in self.workspace.iterdir():
            shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink()
        server = (await self.facts())["pid"]
        assert descendants(self.process.pid) == {server}

    def connect(self) -> aiohttp.ClientSession:
        self.client = aiohttp.ClientSession("http://sandbox", connector=aiohttp.UnixConnector(str(self._socket)))
        return self.client

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

    async def call(self, method: str, path: str, *, status: int = 200, **options: Any) -> Any:
        """What is answered with this status, as JSON."""
        async with self.client.request(method, path, **options) as answer:
            assert answer.status == status, await answer.text()
            return await answer.json() if answer.content_type.endswith("json") else None

    @asynccontextmanager
    async def followed(self, route: str, **parameters: Any) -> AsyncIterator[AsyncIterator[tuple[str, Any]]]:
        """The events of a route; leaving the context hangs up."""
        async with self.client.get(route, params=parameters) as answer:
            assert answer.status == 200, await answer.text()
            yield _events(answer)

    @contextmanager
    def gate(self) -> Iterator[Callable[[str], Any]]:
        """What is said to it is read by a command from `gate` in the workspace, and until then that waits."""
        os.mkfifo(self.workspace / "gate")
        descriptor = os.open(self.workspace / "gate", os.O_RDWR)  # which waits for nobody to read
        try:
            yield lambda line: os.write(descriptor, line.encode() + b"\n")
        finally:
            os.close(descriptor)

    async def facts(self) -> dict[str, Any]:
        async with self.client.get("/facts") as answer:
            return await answer.json()

    async def kill_all(self) -> None:
        async with self.client.post("/kill_all") as answer:
            assert answer.status == 204, await answer.text()

    @staticmethod
    async def until(condition: Callable[[], Any]) -> None:
        """Wait for what another process is about to do."""
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110  there is no event to wait for
                await asyncio.sleep(0.01)

    @staticmethod
    def alive(pid: int) -> bool:
        """Whether there is such a process, and it has not ended."""
        try:
            return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
        except OSError:
            return False


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


def _left(before: set[int]) -> dict[int, str]:
    reap_children()
    return {pid: _command_line(pid) for pid in descendants(os.getpid()) - before}


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return "?"


@contextmanager
def _started(two_users: bool) -> Iterator[Host]:
    """A host, after which no process is left: what has lost its parent becomes ours."""
    if two_users and os.getuid() != 0:
        pytest.skip("two users need root")
    prctl.adopt_orphans()
    before = descendants(os.getpid())
    host = Host(Path(tempfile.mkdtemp(prefix="gymbox-exec-")), two_users)
    try:
        host.start()
        yield host
    finally:
        if host.process.poll() is None:
            host.stop()
        shutil.rmtree(host.folder)
        deadline = time.monotonic() + 5  # after a SIGKILL, what is left may be on its way
        while (left := _left(before)) and time.monotonic() < deadline:
            time.sleep(0.02)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert not left


@pytest.fixture(scope="module")
def one_user_host() -> Iterator[Host]:
    with _started(two_users=False) as host:
        yield host


@pytest.fixture(scope="module")
def two_users_host() -> Iterator[Host]:
    with _started(two_users=True) as host:
        yield host


@pytest.fixture
async def one_user(one_user_host: Host) -> AsyncIterator[Host]:
    async with one_user_host.connect():
        yield one_user_host
        await one_user_host.clear()


@pytest.fixture
async def two_users(two_users_host: Host) -> AsyncIterator[Host]:
    async with two_users_host.connect():
        yield two_users_host
        await two_users_host.clear()


@pytest.fixture(params=["two users", "one user"])
async def host(request: pytest.FixtureRequest) -> AsyncIterator[Host]:
    """Both kinds, shared by the tests of a module."""
    host: Host = request.getfixturevalue(request.param.replace(" ", "_") + "_host")
    async with host.connect():
        yield host
        await host.clear()


@pytest.fixture(params=["two users", "one user"])
async def own_host(request: pytest.FixtureRequest) -> AsyncIterator[Host]:
    """Both kinds, for a test that ends it."""
    with _started(request.param == "two users") as host:
        async with host.connect():
            yield host
