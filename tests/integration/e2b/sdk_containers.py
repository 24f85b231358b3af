"""Checks with E2B's SDK of what containers have and processes have not; run by tests/docker/controller/test_e2b.py."""

from __future__ import annotations

import os
import time

import pytest
from e2b import FileNotFoundException, Sandbox, SandboxException, SandboxState
from e2b.exceptions import SandboxNotRunningException


def test_a_paused_sandbox_goes_on_where_it_was_when_one_connects() -> None:
    with Sandbox.create(timeout=60) as sandbox:
        handle = sandbox.commands.run("while sleep 0.1; do date +%s%N >tick; done", background=True)
        time.sleep(0.5)
        assert sandbox.pause() is True and sandbox.pause() is False
        assert sandbox.is_running() is False and sandbox.get_info().state == SandboxState.PAUSED
        with pytest.raises(SandboxNotRunningException):
            sandbox.files.read("tick")
        with pytest.raises(SandboxNotRunningException):
            sandbox.commands.run("true")
        sandbox.connect()
        first = sandbox.files.read("tick")
        time.sleep(0.5)
        assert sandbox.is_running() and sandbox.files.read("tick") != first
        assert handle.pid in [process.pid for process in sandbox.commands.list()]


def test_commands_and_files_are_those_of_the_container_and_of_its_user() -> None:
    with Sandbox.create(timeout=120) as sandbox:
        assert sandbox.commands.run("id -un; pwd; echo ~").stdout == "agent\n/workspace\n/workspace\n"
        sandbox.files.write("/home/user/code/add.py", "print(1 + 2)")
        assert sandbox.commands.run("cat add.py", cwd="/home/user/code").stdout == "print(1 + 2)"
        assert sandbox.files.get_info("code/add.py").path == "/workspace/code/add.py"
        assert sandbox.files.get_info("code").owner == "agent"
        with pytest.raises(SandboxException, match="(?i)permission|read-only"):
            sandbox.files.write("/etc/x", "x")
        with pytest.raises(FileNotFoundException):
            sandbox.files.read("/nowhere/x")
        with pytest.raises(SandboxException, match="(?i)space"):
            sandbox.files.write("large", os.urandom(40_000_000))
        assert sandbox.commands.run("echo >/dev/tcp/1.1.1.1/80 || echo no way").stdout == "no way\n"
        # left running when the server stops, which ends it
    Sandbox.create(timeout=3600).commands.run("sleep 600", background=True)


def test_files_are_told_alike_where_the_tools_are_those_of_busybox() -> None:
    with Sandbox.create("busybox") as sandbox:
        assert "BusyBox" in sandbox.commands.run("readlink -f /usr/local/bin/stat; busybox | head -1").stdout
        sandbox.files.write("d/line\nbreak", "1")
        sandbox.files.write("d/e/f", "22")
        assert sandbox.files.make_dir("d/g") and not sandbox.files.make_dir("d/g")
        found = {entry.name: (entry.size, entry.mode) for entry in sandbox.files.list("d", depth=2)}
        assert found["line\nbreak"] == (1, 0o644) and found["f"] == (2, 0o644) and {"e", "g"} <= found.keys()
        assert sandbox.files.rename("d/e/f", "h/i").name == "i"
        sandbox.files.remove("d")
        assert [entry.name for entry in sandbox.files.list(".")] == ["h"]
        with pytest.raises(FileNotFoundException):
            sandbox.files.list("d")
