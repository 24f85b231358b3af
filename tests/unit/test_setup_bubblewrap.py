"""Setting bubblewrap up."""

from pathlib import Path

import pytest
from gymbox.setup_bubblewrap import ensure_bubblewrap, main, works


@pytest.mark.skipif(not works(), reason="no bubblewrap here")
def test_nothing_is_done_where_it_works(capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    assert ensure_bubblewrap(say=said.append).ready
    assert not said
    assert main() == 0
    assert "works" in capsys.readouterr().out


def test_where_nothing_can_be_installed_it_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    setup = ensure_bubblewrap()
    assert not setup.ready
    assert setup.ways_on[0] == "use containers: provider=docker"
    assert main() == 1


def test_one_that_may_not_make_namespaces_is_told_apart_from_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bwrap").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    assert "may not make namespaces" in ensure_bubblewrap().detail


def test_an_installation_that_fails_tells_its_last_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {"apt-get": "echo no network; exit 100", "env": 'shift; exec "$@"', "sudo": 'exec "$@"'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    said: list[str] = []
    setup = ensure_bubblewrap(say=said.append)
    assert said == ["installing bubblewrap by apt-get"]
    assert "no network" in setup.detail
