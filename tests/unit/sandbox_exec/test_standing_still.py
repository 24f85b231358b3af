"""A user's processes, held where they are for a while."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gymbox_sandbox.options import User
from gymbox_sandbox.process_tree import standing_still

SOMEONE = User(54_321, 54_321)
Start = Callable[[str], subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    if os.getuid() != 0:
        pytest.skip("only root has other users")
    started: list[subprocess.Popen[bytes]] = []

    def run(script: str) -> subprocess.Popen[bytes]:
        command = ["sh", "-c", f"echo; {script}"]
        started.append(subprocess.Popen(command, user=SOMEONE.uid, group=SOMEONE.gid, cwd="/", stdout=subprocess.PIPE))
        assert started[-1].stdout is not None
        started[-1].stdout.readline()  # it is the other user's by now
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def state(process: subprocess.Popen[bytes], wanted: str) -> str:
    """The process's state, once it is this one, or after a while."""
    deadline = time.monotonic() + 5
    while (found := Path(f"/proc/{process.pid}/stat").read_text().split()[2]) not in wanted:
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    return found


def test_a_users_processes_stand_still_within_the_block_and_nobody_elses(start: Start) -> None:
    running, stopped = start("while :; do :; done"), start("exec sleep 60")
    stopped.send_signal(signal.SIGSTOP)
    assert state(stopped, "T") == "T"
    with standing_still(SOMEONE):
        assert state(running, "T") == "T"
    assert state(running, "RS") in "RS"
    assert state(stopped, "T") == "T"  # as someone else wants it


def test_without_users_nobody_stands_still(start: Start) -> None:
    running = start("while :; do :; done")
    with standing_still(None):
        assert state(running, "RS") in "RS"
