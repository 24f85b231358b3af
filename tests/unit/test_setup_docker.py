"""What setup reads of a machine, and what it says where it can do nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from gymbox.setup_docker import Setup, debian_mirror, engine_version, ensure_docker, main

DEB822 = """
# what the installer wrote
Types: deb deb-src
URIs: http://mirror.example/debian http://other.example/debian
Suites: bookworm
 bookworm-updates
Components: main contrib

Types: deb
URIs: http://mirror.example/security
Suites: bookworm-security
Components: main
"""


def apt(folder: Path, **files: str) -> Path:
    (folder / "sources.list.d").mkdir()
    for name, text in files.items():
        stem, _, suffix = name.rpartition("_")
        (folder / "sources.list.d" / f"{stem}.{suffix}").write_text(text)
    return folder


def test_the_mirror_is_read_from_the_new_form_of_source(tmp_path: Path) -> None:
    assert debian_mirror(apt(tmp_path, debian_sources=DEB822), "bookworm") == "http://mirror.example/debian"
    assert debian_mirror(tmp_path, "bookworm-security") == "http://mirror.example/security"


@pytest.mark.parametrize(
    "line",
    [
        "deb http://mirror.example/debian bookworm main",
        "deb [signed-by=/usr/share/keyrings/x.gpg arch=amd64] http://mirror.example/debian bookworm main # ours",
    ],
)
def test_the_mirror_is_read_from_the_old_form_of_source(line: str, tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text(f"# deb http://no.example/debian bookworm main\n{line}\n")
    assert debian_mirror(apt(tmp_path), "bookworm") == "http://mirror.example/debian"


@pytest.mark.parametrize(
    "text",
    [
        "deb http://mirror.example/debian trixie main",
        "deb http://mirror.example/debian bookworm contrib",
        "deb-src http://mirror.example/debian bookworm main",
        "deb nonsense",
    ],
)
def test_a_source_of_something_else_is_not_taken(text: str, tmp_path: Path) -> None:
    assert debian_mirror(apt(tmp_path, other_list=text), "bookworm") is None


def test_a_source_that_is_turned_off_is_not_taken(tmp_path: Path) -> None:
    off = DEB822.replace("Types: deb deb-src", "Enabled: no\nTypes: deb")
    assert debian_mirror(apt(tmp_path, debian_sources=off), "bookworm") is None


def test_an_engine_elsewhere_that_does_not_answer_is_not_replaced_by_one_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    assert engine_version() is None
    setup = ensure_docker()
    assert not setup.ready and "nobody.sock does not answer" in setup.detail and len(setup.ways_on) == 3
    assert not any("ssh://" in way or "tcp://" in way for way in setup.ways_on)
    assert main() == 1
    assert "provider=process" in capsys.readouterr().out


def test_a_machine_without_apt_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    setup = ensure_docker()
    assert not setup.ready and "no Debian or Ubuntu" in setup.detail
    assert "docs.docker.com" in setup.ways_on[0]


def test_a_mac_is_told_the_brew_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    setup = ensure_docker()
    assert not setup.ready and "brew install" in setup.detail
    assert "docker compose" in setup.ways_on[1]
    assert "provider=process" not in str(setup)  # which is for Linux


def test_what_setup_came_to_reads_as_a_line_and_a_list() -> None:
    assert str(Setup(False, "no", ("this", "that"))) == "no\n  - this\n  - that"
    assert str(Setup(True, "yes")) == "yes"
