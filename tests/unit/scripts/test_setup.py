"""The script that makes .venv has nothing to do the second time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose .venv has this Python, and a `uv` that notes what it is asked to install."""
    for name in ("requirements-dev.lock", "pyproject.toml", "scripts/setup.sh"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for path, script in {
        ".venv/bin/python": f'exec "{sys.executable}" "$@"',
        "bin/uv": f'echo "$2" >>"{tmp_path}/installed"',
    }.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True)
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
    return tmp_path


def set_up(checkout: Path) -> str:
    variables = {**os.environ, "PATH": f"{checkout / 'bin'}:{os.environ['PATH']}"}
    return subprocess.run(
        [checkout / "scripts" / "setup.sh"], env=variables, capture_output=True, text=True, check=True
    ).stdout


def test_the_second_run_does_nothing_and_is_quick(checkout: Path) -> None:
    assert "ready: .venv/bin/gymbox" in set_up(checkout)
    assert (checkout / "installed").read_text() == "sync\ninstall\n"

    began = time.monotonic()
    assert set_up(checkout) == "setup: nothing to do\n"
    assert time.monotonic() - began < 5
    assert (checkout / "installed").read_text() == "sync\ninstall\n"


@pytest.mark.parametrize("changed", ["requirements-dev.lock", "pyproject.toml", "scripts/setup.sh"])
def test_what_it_is_made_from_has_changed_so_it_is_made_anew(checkout: Path, changed: str) -> None:
    set_up(checkout)
    with (checkout / changed).open("a") as file:
        file.write("# changed\n")

    assert "nothing to do" not in set_up(checkout)
    assert (checkout / "installed").read_text() == "sync\ninstall\n" * 2
