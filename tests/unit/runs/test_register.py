from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from gymbox.errors import ConfigError
from gymbox.runs.register import Register


def test_a_run_stands_in_the_register_as_long_as_it_is_live(tmp_path: Path) -> None:
    register = Register(tmp_path / "state")
    assert register.live() == []
    path = register.new_socket()
    with register.entered("r1", tmp_path / "out", path), register.entered("r2", tmp_path / "other", path):
        first, second = register.live()
        assert (first.id, first.folder, first.socket, first.pid) == (
            "r1",
            str(tmp_path / "out"),
            str(path),
            os.getpid(),
        )
        assert second.id == "r2"
    assert register.live() == []
    assert not [path for path in register.folder.iterdir() if path.name != "lock"]


def test_only_its_user_may_look(tmp_path: Path) -> None:
    register = Register(tmp_path / "state")
    register.new_socket()

    assert stat.S_IMODE(register.folder.stat().st_mode) == 0o700


def test_what_a_killed_process_left_is_removed_and_what_lives_is_left_alone(tmp_path: Path) -> None:
    register = Register(tmp_path)
    code = f"""
import socket, time
from pathlib import Path
from gymbox.runs.register import Register
register = Register(Path({str(tmp_path)!r}))
path = register.new_socket()
listening = socket.socket(socket.AF_UNIX)
listening.bind(str(path))
listening.listen()
with register.entered("killed", Path("/out"), path):
    print("ready", flush=True)
    time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    mine = register.new_socket()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(mine))
        listening.listen()
        assert [entry.id for entry in register.live()] == ["killed"]
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        process.stdout.close()

        assert register.live() == []
        assert [path.name for path in register.folder.glob("*.sock")] == [mine.name]


def test_the_next_start_of_a_run_takes_the_place_of_a_killed_one(tmp_path: Path) -> None:
    register = Register(tmp_path)
    path = register.new_socket()
    (register.folder / "r1.json").write_text("{torn")
    with register.entered("r1", tmp_path, path):
        assert [entry.id for entry in register.live()] == ["r1"]


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(ConfigError, match="cannot keep a register of runs in"):
        Register(tmp_path / "file").new_socket()
