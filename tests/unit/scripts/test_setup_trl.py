"""`scripts/setup_trl.py`: what it finds, and what it says where TRL cannot be had."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "setup_trl.py"


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, for a folder of its own."""
    spec = importlib.util.spec_from_file_location("setup_trl", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "FOLDER", tmp_path / "trl")
    monkeypatch.setattr(module, "STAMP", tmp_path / "trl" / "stamp")
    return module


def test_a_whole_environment_is_left_as_it_is_until_other_versions_are_wanted(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup.FOLDER.mkdir()
    assert not setup.ready()
    setup.STAMP.write_text(setup._digest())
    assert setup.ready() and setup.ensure_trl() == setup.FOLDER / "bin" / "python"
    monkeypatch.setattr(setup, "REQUIREMENTS", ("torch==1",))
    assert not setup.ready()


def test_an_interpreter_that_cannot_make_one_is_told_of(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup, "_interpreter", lambda: "false")
    assert setup.main() == 1
    assert "setup: no TRL: false -m venv" in capsys.readouterr().err and not setup.ready()


def test_an_interpreter_is_found(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Path(setup._interpreter()).is_file()
    monkeypatch.setattr(setup, "_candidates", lambda: iter(()))
    assert setup._interpreter() == sys.executable
