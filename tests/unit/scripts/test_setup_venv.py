"""`scripts/setup_venv.py`: what it finds, and what it says where something cannot be had."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.own_venv import setup_venv


def test_a_whole_environment_is_left_as_it_is_until_other_versions_are_wanted(tmp_path: Path) -> None:
    module = setup_venv()
    venv = module.Venv("one", ("a==1",), "", root=tmp_path)
    (tmp_path / "one").mkdir()
    assert not venv.ready
    venv._stamp.write_text(venv._digest())
    assert venv.ready and venv.ensure() == tmp_path / "one" / "bin" / "python"
    assert not module.Venv("one", ("a==2",), "", root=tmp_path).ready


def test_what_cannot_be_made_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = setup_venv()
    monkeypatch.setattr(module.Venv, "_maker", lambda self: "false")
    monkeypatch.setattr(module, "VENVS", {"trl": module.Venv("trl", (), "", root=tmp_path)})
    assert module.main(["trl"]) == 1
    assert "setup: no trl: false -m venv" in capsys.readouterr().err
    assert module.main(["other"]) == 2 and "say which: trl" in capsys.readouterr().err


def test_an_interpreter_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    module = setup_venv()
    assert Path(module.VENVS["trl"]._maker()).is_file()
    assert module.Venv("one", (), "")._maker() == sys.executable
