"""Setup TRL: a virtual environment of its own, `.tools/trl`, for the tests that read training sets as TRL does.

TRL brings PyTorch, which nothing else here needs and which would weigh down every install. Idempotent: a second run
looks at a stamp. `python scripts/setup_trl.py` exits 0 once TRL can be imported there; otherwise it says why not.

Where pip takes a build of PyTorch for GPUs this is a download of gigabytes, so `make test` runs it only with CI set.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".tools" / "trl"
STAMP = FOLDER / ".gymbox-setup"
# one after the other: PyTorch first, so that TRL takes the build that is there
REQUIREMENTS = ("torch==2.13.0", "trl==1.16.0 transformers==5.24.0 datasets==5.2.0")
PATIENCE = 900
"""Seconds that an installation may take."""


class SetupFailed(Exception):
    """TRL cannot be had; the text says why."""


def ensure_trl() -> Path:
    """See to it that the virtual environment is there and whole; its interpreter.

    Raises:
        SetupFailed: it cannot be made.
    """
    python = FOLDER / "bin" / "python"
    if ready():
        return python
    print("setup: installing TRL into .tools/trl", file=sys.stderr)
    shutil.rmtree(FOLDER, ignore_errors=True)
    _run([_interpreter(), "-m", "venv", str(FOLDER)])
    for requirements in REQUIREMENTS:
        _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements.split()])
    _run([str(python), "-c", "import trl; trl.SFTTrainer, trl.DPOTrainer"])
    STAMP.write_text(_digest())
    return python


def ready() -> bool:
    """Whether there is nothing to do."""
    return STAMP.is_file() and STAMP.read_text() == _digest()


def _digest() -> str:
    return hashlib.sha256("\n".join(REQUIREMENTS).encode()).hexdigest()


def _interpreter() -> str:
    """Python 3.11 where there is one, for which most builds of PyTorch are made; else another."""
    return next(filter(None, map(shutil.which, _candidates())), sys.executable)


def _candidates() -> Iterator[str]:
    yield "python3.11"
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from map(str, sorted(root.glob("versions/3.11*/bin/python3"), reverse=True))


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.CalledProcessError as error:
        raise SetupFailed(f"{' '.join(command)} failed:\n{error.stderr[-2000:]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupFailed(f"{' '.join(command)}: {error}") from error


def main() -> int:
    """Exit code 0 once TRL is there, else 1."""
    try:
        print(f"setup: TRL is ready: {ensure_trl()}", file=sys.stderr)
    except SetupFailed as error:
        print(f"setup: no TRL: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
