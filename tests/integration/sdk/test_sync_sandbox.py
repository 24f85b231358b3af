"""Sandboxes for programs without an event loop."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from gymbox import SyncSandbox
from gymbox.errors import Unavailable
from gymbox.providers.docker import DockerProvider
from gymbox.runs.places import Places


def loops() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "gymbox-sandboxes"]


def test_everything_a_sandbox_can_is_there_without_a_loop(places: Places, tmp_path: Path) -> None:
    with SyncSandbox(provider="process", places=places) as box:
        assert box.exec("cat", stdin="in").stdout == "in"
        box.write_file("a/b", "text")
        assert box.read_text("a/b") == "text" and box.read_file("a/b", most=9) == b"text"
        box.download("a", tmp_path / "a")
        box.upload(tmp_path / "a", "c")
        assert box.exec("cat c/b").stdout == "text"
        assert box.ask(lambda client: client.read_file("c/b")) == b"text"
        assert box.id.startswith("plain-") and box.controller_url.startswith("http://127.0.0.1:")
        with pytest.raises(RuntimeError, match="open already"):
            box.__enter__()
    assert not loops()


def test_a_command_is_followed_without_a_loop(places: Places) -> None:
    with SyncSandbox(provider="process", places=places) as box:
        with box.exec_stream(
            "read line; echo $line; stty size; sleep 60", stdin_open=True, pty={"rows": 9}
        ) as execution:
            for event in execution.events():
                if event.name == "started":
                    execution.resize(7, 70)
                    execution.write(b"hello\n")
                if b"7 70" in event.output:
                    execution.signal("SIGINT")
        assert execution.result is not None and execution.result.exit_code != 0
        with box.exec_stream("cat", stdin_open=True) as execution:
            names = []
            for event in execution.events():
                names.append(event.name)
                if event.name == "started":
                    execution.close_stdin()
        assert names == ["started", "exit"]


def test_threads_share_a_loop_and_a_controller(places: Places) -> None:
    def use(number: int) -> tuple[str, str]:
        with SyncSandbox(provider="process", places=places) as box:
            assert len(loops()) == 1
            return box.exec(f"echo {number}").stdout, box.controller_url

    with SyncSandbox.host("process", places=places), ThreadPoolExecutor(3) as threads:
        found = list(threads.map(use, range(6)))
    assert [said for said, _ in found] == [f"{number}\n" for number in range(6)]
    assert len({url for _, url in found}) == 1 and not loops()


def test_what_fails_leaves_no_loop_behind(places: Places) -> None:
    with pytest.raises(Unavailable):
        with SyncSandbox(provider=DockerProvider(host="unix:///nowhere.sock"), places=places):
            raise AssertionError("unreachable")
    assert not loops()


def test_a_process_that_is_forked_has_sandboxes_of_its_own_and_leaves_its_parents_alone(places: Places) -> None:
    script = Path(__file__).with_name("forking.py")
    folders = [str(places.environments[0]), str(places.state), str(places.cache)]
    ran = subprocess.run([sys.executable, str(script), *folders], capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)

    for where in ("under a host", "the host's own", "beside an open one", "after leaving the parent's", "after all"):
        assert told[where] == "mine\n", where
    for where in ("the parent's", "any loop's"):
        assert told[where].startswith("RuntimeError: this was opened by process "), told[where]
    assert told["the parent's, afterwards"] == "still here\n"
    assert "Traceback" not in ran.stderr
