"""Uvicorn parts: a sandbox's server has no use for uvicorn's command line; an author's own code may."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest


def printed(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_server_does_not_bring_in_uvicorns_command_line() -> None:
    # not what was there before, such as what measures coverage
    code = "import sys; there = {*sys.modules}; import gymbox_sandbox.serve; print({*sys.modules} - there)"
    assert not {"uvicorn.main", "click", "multiprocessing"} & set(ast.literal_eval(printed(code)))
    assert "uvicorn.config" in printed(code)


@pytest.mark.parametrize("first", ["import gymbox_sandbox.serve", "import uvicorn, gymbox_sandbox.serve"])
@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import uvicorn; print(callable(uvicorn.run), uvicorn.Server.__name__)", "True Server"),
        ("from uvicorn import run, Config; from uvicorn.config import Config as C; print(Config is C)", "True"),
        ("import uvicorn; from gymbox_sandbox.uvicorn_parts import Server; print(Server is uvicorn.Server)", "True"),
        ("import uvicorn; print(hasattr(uvicorn, 'nothing'), hasattr(uvicorn, 'nothing'))", "False False"),
    ],
)
def test_the_whole_of_uvicorn_is_there_for_who_asks(first: str, code: str, told: str) -> None:
    assert printed(f"{first}; {code}") == told
