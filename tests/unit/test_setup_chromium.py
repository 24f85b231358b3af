"""Setting Chromium up."""

from pathlib import Path

import pytest
from gymbox.setup_chromium import chromium, ensure_chromium, main


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_nothing_is_done_where_it_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program(tmp_path, "chromium", "exit 1")
    program(tmp_path, "google-chrome", "echo Chrome 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    said: list[str] = []
    assert ensure_chromium(say=said.append).ready
    assert not said
    assert chromium() == str(tmp_path / "google-chrome")
    assert main() == 0
    assert capsys.readouterr().out == f"{tmp_path}/google-chrome works\n"


def test_where_nothing_can_be_installed_it_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    setup = ensure_chromium()
    assert not setup.ready
    assert "PATH" in setup.ways_on[0]
    assert main() == 1


def test_without_root_and_sudo_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "apt-get", "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert ensure_chromium().detail == "no Chromium, and neither root nor sudo"


@pytest.mark.parametrize(
    ("apt", "ready", "detail"),
    [
        (
            'for last; do :; done; [ "$last" != chromium ] || {{ echo "#!/bin/sh" >{0}; chmod 755 {0}; }}',
            True,
            "works",
        ),
        ("true", False, "is installed, but does not work"),
        ("echo no network; exit 100", False, "no network"),
    ],
)
def test_it_is_installed_by_apt_or_said_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apt: str, ready: bool, detail: str
) -> None:
    program(tmp_path, "apt-get", apt.format(tmp_path / "chromium"))
    program(tmp_path, "env", 'shift; exec "$@"')
    program(tmp_path, "sudo", 'exec "$@"')
    (tmp_path / "chmod").symlink_to("/bin/chmod")
    monkeypatch.setenv("PATH", str(tmp_path))
    said: list[str] = []
    setup = ensure_chromium(say=said.append)
    assert said == ["installing chromium by apt-get"]
    assert setup.ready == ready
    assert detail in setup.detail
