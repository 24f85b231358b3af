"""Supervisor: how a server's end becomes its own, and what it passes on to commands."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest
from gymbox_sandbox import prctl, supervisor
from gymbox_sandbox.options import User
from gymbox_sandbox.process_tree import foreground_group, parent_of
from gymbox_sandbox.supervisor import DEFAULT_PATH, agent_environment

SCRIPT = """
import sys
from gymbox_sandbox.options import Options
from gymbox_sandbox.supervisor import run

def serve(options, commands):
    {body}

sys.exit(run(Options(name="test", server="", workspace="/tmp"), serve))
"""


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("return 3", 3, ""),
        ("return None", 0, ""),
        ("sys.exit(4)", 4, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit('why')", 1, ""),
        ("raise ValueError('why')", 1, "ValueError: why"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", 143, ""),
    ],
)
def test_the_exit_code_is_the_servers(body, code, said):
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(body=body)], capture_output=True, text=True, timeout=30
    )
    assert ended.returncode == code
    assert said in ended.stderr


def test_commands_get_the_path_and_language_of_the_image_and_nothing_else(monkeypatch):
    monkeypatch.setenv("SECRET", "canary")
    monkeypatch.setenv("PATH", "/opt/conda/bin")
    monkeypatch.delenv("LANG", raising=False)
    assert agent_environment("/w") == {"PATH": "/opt/conda/bin", "HOME": "/w", "LANG": "C.UTF-8"}
    monkeypatch.delenv("PATH")
    assert agent_environment("/w", User(10001, 10001))["PATH"] == DEFAULT_PATH


def test_the_supervisor_stays_small():
    heavy = "{'asyncio', 'pydantic', 'uvicorn', 'starlette', 'ssl', 'logging', 'tarfile', 'json'}"
    home = str(Path(supervisor.__file__).parents[1])
    script = (
        f"import sys; sys.path.append({home!r}); import gymbox_sandbox.supervisor; print({heavy} & set(sys.modules))"
    )
    # -S: what is installed beside it may import anything at start
    command = [sys.executable, "-I", "-S", "-c", script]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    assert found.stdout == "set()\n"


def test_what_the_kernel_refuses_is_an_error():
    with pytest.raises(OSError, match="prctl") as refused:
        prctl._prctl(-1, 0)
    assert refused.value.errno == errno.EINVAL


def test_what_is_no_process_has_no_parent():
    assert (parent_of(2**30), foreground_group(2**30)) == (-1, -1)


def test_of_a_foreign_image_commands_get_every_variable_but_a_home(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "/the/servers")
    kept = tmp_path / "variables"
    kept.write_bytes(b"PATH=/images/own\0LD_PRELOAD=/lib/x.so\0HOME=/root\0BYTES=\xff=\0")
    found = agent_environment("/w", None, str(kept))
    given = {"PATH": "/images/own", "LD_PRELOAD": "/lib/x.so", "BYTES": "\udcff="}
    assert found == {**given, "HOME": "/w", "LANG": "C.UTF-8"}
    kept.write_bytes(b"")
    assert agent_environment("/w", None, str(kept)) == {"PATH": DEFAULT_PATH, "HOME": "/w", "LANG": "C.UTF-8"}
