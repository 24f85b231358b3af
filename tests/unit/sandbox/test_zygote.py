"""Zygote: what it does when the machine does not let it fork."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gymbox_sandbox.wire import READY_SOCKET

PIDS_CGROUP = Path("/sys/fs/cgroup/pids")
SERVER = "from gymbox_sandbox import ResourcesServer\nclass Plain(ResourcesServer): ...\n"


class Host:
    """A zygote, and the one who gives it orders."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "server.py").write_text(SERVER)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "gymbox_sandbox", "zygote", "--name", "plain"]
        with theirs:
            self.process = subprocess.Popen(
                [*command, "--server", str(folder / "server.py")], stdin=theirs, stdout=subprocess.PIPE
            )

    def start(self, id: int) -> None:
        directory = self.folder / str(id)
        directory.mkdir(exist_ok=True)
        options = {"name": "plain", "server": str(self.folder / "server.py"), "directory": str(directory)}
        order = {"start": id, "agent": 0, "options": options, "open_files": 256}
        with (self.folder / f"{id}.log").open("wb") as log:
            socket.send_fds(self._control, [json.dumps(order).encode()], [log.fileno()])

    def start_and_wait(self, id: int) -> None:
        with socket.socket(socket.AF_UNIX) as ready:
            ready.settimeout(20)
            (self.folder / str(id)).mkdir()
            ready.bind(str(self.folder / str(id) / READY_SOCKET))
            ready.listen()
            self.start(id)
            with ready.accept()[0] as lifeline:
                assert lifeline.recv(64) == b"ready\n"

    def kill(self, id: int) -> None:
        self._control.send(json.dumps({"signal": signal.SIGKILL, "to": id}).encode())

    def report(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def limit_descriptors(self, more: int) -> None:
        """Let it open so many more and then none."""
        used = {int(name) for name in os.listdir(f"/proc/{self.process.pid}/fd")}
        free = [number for number in range(1024) if number not in used]
        _, most = resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, (free[more], most))

    def close(self) -> int:
        self._control.close()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.process.wait(20)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    assert host.close() == 0


def test_a_signal_that_came_before_it_was_apart_is_not_for_it(tmp_path: Path) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        host = Host(tmp_path)
        for number in (signal.SIGINT, signal.SIGTERM):
            host.process.send_signal(number)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert host.report() == {"loaded": True}
    host.start_and_wait(1)
    host.process.send_signal(signal.SIGTERM)  # it hears again
    assert host.process.wait(20) == -signal.SIGTERM
    host.close()


@pytest.mark.parametrize(("more", "log"), [(0, ""), (1, "no server could be forked: Too many open files\n")])
def test_a_fork_that_fails_is_the_end_of_that_sandbox_alone(host: Host, more: int, log: str) -> None:
    assert host.report() == {"loaded": True}
    host.start_and_wait(1)
    host.limit_descriptors(more)
    host.start(2)
    assert host.report() == {"ended": 2, "status": 1}
    assert (host.folder / "2.log").read_text() == log
    host.limit_descriptors(20)
    host.start_and_wait(3)
    for id in (1, 3):
        host.kill(id)
        assert host.report() == {"ended": id, "status": -signal.SIGKILL}


def test_without_processes_too(host: Host) -> None:
    if not os.access(PIDS_CGROUP, os.W_OK):
        pytest.skip("needs a cgroup of its own")
    group = PIDS_CGROUP / f"gymbox-zygote-{os.getpid()}"
    group.mkdir()
    try:
        assert host.report() == {"loaded": True}
        (group / "cgroup.procs").write_text(str(host.process.pid))
        (group / "pids.max").write_text("1")
        host.start(1)
        assert host.report() == {"ended": 1, "status": 1}
        assert "Resource temporarily unavailable" in (host.folder / "1.log").read_text()
    finally:
        (PIDS_CGROUP / "cgroup.procs").write_text(str(host.process.pid))
        group.rmdir()
    host.start_and_wait(2)
