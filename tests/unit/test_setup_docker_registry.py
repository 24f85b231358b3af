"""Setting a registry up."""

from pathlib import Path

import pytest
from gymbox import setup_docker_registry
from gymbox.setup_docker_registry import docker_registry, ensure_docker_registry, main


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.fixture(autouse=True)
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup_docker_registry, "FOLDER", tmp_path / "no/such/cache")


def test_nothing_is_done_where_it_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program(tmp_path, "docker-registry", "echo 2.8")
    monkeypatch.setenv("PATH", str(tmp_path))
    said: list[str] = []
    assert ensure_docker_registry(say=said.append).ready and not said
    assert docker_registry() == str(tmp_path / "docker-registry")
    assert main() == 0
    assert capsys.readouterr().out == f"{tmp_path}/docker-registry works\n"


def test_one_that_does_not_work_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "docker-registry", "exit 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert docker_registry() is None
    setup = ensure_docker_registry()
    assert not setup.ready and "PATH" in setup.ways_on[0]
    assert main() == 1


def test_a_package_that_cannot_be_fetched_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "apt-get", "exit 1")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    program(tmp_path, "env", 'echo "no mirror answers"; exit 100')
    monkeypatch.setenv("PATH", str(tmp_path))
    said: list[str] = []
    setup = ensure_docker_registry(say=said.append)
    assert not setup.ready and "no mirror answers" in setup.detail and len(said) == 1


@pytest.mark.parametrize("works", [True, False])
def test_a_package_is_unpacked_where_nothing_starts_it(
    works: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    program(tmp_path, "apt-get", "exit 1")
    program(tmp_path, "env", ": > docker-registry_1.deb")
    # as the real one: the last folder is made, none above it
    unpack = [
        "set -e",
        '[ -d "$3" ] || mkdir "$3"',
        'mkdir -p "$3/usr/bin"',
        f'printf "#!/bin/sh\\nexit {int(not works)}\\n" > "$3/usr/bin/docker-registry"',
        'chmod 755 "$3/usr/bin/docker-registry"',
    ]
    program(tmp_path, "dpkg-deb", "\n".join(unpack))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    setup = ensure_docker_registry(say=lambda line: None)
    assert setup.ready is works, setup.detail
    assert docker_registry() == (str(tmp_path / "no/such/cache/usr/bin/docker-registry") if works else None)
