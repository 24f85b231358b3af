"""Setup venv: virtual environments of their own, in `.tools`, for tests against what would weigh down every install.

    python scripts/setup_venv.py trl        TRL, which brings PyTorch: the tests that read training sets as it does
    python scripts/setup_venv.py inspect    Inspect, with gymbox as it is here: the tests of its sandbox type
    python scripts/setup_venv.py e2b        E2B's SDK, without gymbox: the tests of `gymbox serve e2b` are its programs

Idempotent: a second run looks at a stamp. Exits 0 once it is there; otherwise it says why not. Where pip takes a build
of PyTorch for GPUs that is a download of gigabytes, so `make test` runs this only with CI set.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 900
"""Seconds that an installation may take."""


class SetupFailed(Exception):
    """It cannot be had; the text says why."""


@dataclass(frozen=True)
class Venv:
    """One of them."""

    name: str
    requirements: tuple[str, ...]
    """What pip is told, one after the other."""
    check: str
    """Python that works once all is there."""
    python: str = ""
    """The version that is best for it, such as 3.11; `""`: this one."""
    root: Path = ROOT / ".tools"

    @property
    def interpreter(self) -> Path:
        return self.root / self.name / "bin" / "python"

    @property
    def ready(self) -> bool:
        """Whether there is nothing to do."""
        return self._stamp.is_file() and self._stamp.read_text() == self._digest()

    def ensure(self) -> Path:
        """See to it that it is there and whole; its interpreter.

        Raises:
            SetupFailed: it cannot be made.
        """
        if self.ready:
            return self.interpreter
        folder = self.root / self.name
        print(f"setup: installing {self.name} into {folder}", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        _run([self._maker(), "-m", "venv", str(folder)])
        for requirements in self.requirements:
            pip = [str(self.interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            _run([*pip, *requirements.split()])
        _run([str(self.interpreter), "-c", self.check])
        self._stamp.write_text(self._digest())
        return self.interpreter

    @property
    def _stamp(self) -> Path:
        return self.root / self.name / ".gymbox-setup"

    def _digest(self) -> str:
        return hashlib.sha256("\n".join(self.requirements).encode()).hexdigest()

    def _maker(self) -> str:
        """A Python of the version that is best for it where there is one; else this one."""
        return next(filter(None, map(shutil.which, self._candidates())), sys.executable)

    def _candidates(self) -> Iterator[str]:
        if self.python:
            yield f"python{self.python}"
            root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
            yield from map(str, sorted(root.glob(f"versions/{self.python}*/bin/python3"), reverse=True))


VENVS = {
    # PyTorch first, so that TRL takes the build that is there; most of its builds are made for 3.11
    "trl": Venv(
        "trl",
        ("torch==2.13.0", "trl==1.16.0 transformers==5.24.0 datasets==5.2.0"),
        "import trl; trl.SFTTrainer, trl.DPOTrainer",
        "3.11",
    ),
    "inspect": Venv(
        "inspect",
        ("inspect-ai==0.3.285 pytest>=8.3 pytest-asyncio>=0.24 coverage>=7.10", f"--editable {ROOT}"),
        "import inspect_ai, gymbox.sdk.inspect_provider",
    ),
    "e2b": Venv("e2b", ("e2b==2.63.0 pytest>=8.3 pytest-asyncio>=0.24",), "import e2b; e2b.Sandbox, e2b.AsyncSandbox"),
}


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.CalledProcessError as error:
        raise SetupFailed(f"{' '.join(command)} failed:\n{error.stderr[-2000:]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupFailed(f"{' '.join(command)}: {error}") from error


def main(names: list[str]) -> int:
    """Exit code 0 once all of these are there, else 1; 2: there is none of that name."""
    if not names or not VENVS.keys() >= set(names):
        print(f"setup: say which: {', '.join(VENVS)}", file=sys.stderr)
        return 2
    for name in names:
        try:
            print(f"setup: {name} is ready: {VENVS[name].ensure()}", file=sys.stderr)
        except SetupFailed as error:
            print(f"setup: no {name}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
