"""Interpreters of their own for tests against what the tests' own environment does not have."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import coverage
import pytest

ROOT = Path(__file__).parents[1]


def setup_venv() -> ModuleType:
    """`scripts/setup_venv.py`."""
    spec = importlib.util.spec_from_file_location("setup_venv", ROOT / "scripts" / "setup_venv.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["setup_venv"] = module  # its dataclass looks itself up
    spec.loader.exec_module(module)
    return module


def interpreter_with(name: str) -> str:
    """The interpreter of one of its environments; skips where that is not there."""
    venv = setup_venv().VENVS[name]
    if not venv.ready:
        reason = f"no {name} here: python scripts/setup_venv.py {name} brings it"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return str(venv.interpreter)


async def ran(
    interpreter: str, *arguments: str, patience: float = 240, cwd: Path = ROOT, measured: bool = True, **variables: str
) -> str:
    """What a program prints that runs there, measured (unless said otherwise) where the tests are; it must succeed.

    Args:
        patience: seconds that it may take.
        variables: of its environment, beside ours.
    """
    measure: tuple[str, ...] = ()
    if measured and coverage.Coverage.current() is not None:
        measure = ("-m", "coverage", "run", "--parallel-mode", "--rcfile", str(ROOT / "pyproject.toml"))
    process = await asyncio.create_subprocess_exec(
        *(interpreter, *measure, *arguments),
        cwd=cwd,
        env={**os.environ, **variables},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(patience):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, (out + err).decode(errors="replace")[-6000:]
    return out.decode()
