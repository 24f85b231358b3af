"""From nothing to an engine with a base image, on a machine of its own: a container that knows no Docker yet."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymbox
import pytest

PYTHON = "/opt/gymbox/venv/bin/python"
COVERAGE = "[run]\nparallel = True\nsource = /src/site-packages/gymbox\ndata_file = /coverage/data\n"
BOOKWORM = 'PRETTY_NAME="Debian 12"\nID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\n'

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def machine(engine: Any, measured_image: str, tmp_path: Path) -> Iterator[Run]:
    """Runs a command on the machine (as root, unless another user is named): exit code and what it printed."""
    (tmp_path / "coveragerc").write_text(COVERAGE)
    (tmp_path / "os-release").write_text(BOOKWORM)
    mounts = [
        f"{Path(gymbox.__file__).parent}:/src/site-packages/gymbox:ro",
        f"{tmp_path}/coveragerc:/opt/gymbox/coveragerc:ro",
        f"{tmp_path}/os-release:/etc/os-release:ro",
    ]
    if "COVERAGE_FILE" in os.environ:
        mounts.append(f"{Path(os.environ['COVERAGE_FILE']).parent}:/coverage:rw")
    container = engine.containers.create(
        measured_image,
        ["sleep", "infinity"],
        init=True,
        privileged=True,
        volumes=[*mounts, "/var/lib/docker"],
        environment={"PYTHONPATH": "/src/site-packages"},
        working_dir="/",
    )
    try:
        container.start()

        def run(*command: str, user: str = "root") -> tuple[int, str]:
            done = container.exec_run(list(command), user=user)
            return done.exit_code, done.output.decode(errors="replace")

        yield run
    finally:
        container.remove(force=True, v=True)


@pytest.mark.timeout(900)
def test_root_gets_an_engine_of_this_release_and_a_base_image_and_the_second_time_nothing_is_done(
    machine: Run,
) -> None:
    # it says that it is Debian 12 and has no source of that: it must fall back
    code, said = machine(PYTHON, "-m", "gymbox.setup_docker")
    assert code == 0, said
    assert "no Docker engine answers: installing Docker by apt" in said
    assert "no apt source of bookworm" in said and "Docker engine " in said.splitlines()[-1]

    began = time.monotonic()
    code, said = machine(PYTHON, "-m", "gymbox.setup_docker")
    assert code == 0 and len(said.splitlines()) == 1
    assert time.monotonic() - began < 5

    code, settings = machine("cat", "/etc/docker/daemon.json")
    assert '"live-restore": true' in settings and "default-address-pools" in settings
    assert machine("docker", "compose", "version")[0] == 0

    code, said = machine(PYTHON, "-m", "gymbox.setup_base_image")
    assert code == 0 and "debian:trixie-slim was " in said, said
    code, said = machine(PYTHON, "-m", "gymbox.setup_base_image")
    assert code == 0 and said.strip() == "debian:trixie-slim is there"
    assert machine("docker", "run", "--rm", "debian:trixie-slim", "apt-get", "--version")[0] == 0

    machine("sh", "-c", "docker rmi debian:trixie-slim; ln -sf /bin/false /usr/bin/mmdebstrap")
    code, said = machine(PYTHON, "-m", "gymbox.setup_base_image")
    assert code == 1 and "can neither be pulled nor made" in said and "docker load" in said

    # a crash of the machine leaves the pid files of an engine that is no more; number 1 is another program
    machine("sh", "-c", "kill -9 $(cat /var/run/docker.pid); echo 1 > /var/run/docker.pid")
    code, said = machine(PYTHON, "-m", "gymbox.setup_docker")
    assert code == 0 and "starting the Docker engine" in said, said

    machine("sh", "-c", "kill $(cat /var/run/docker.pid); echo '{\"no-such-setting\": 1}' > /etc/docker/daemon.json")
    machine("sh", "-c", "while docker version >/dev/null 2>&1; do sleep 0.1; done")
    code, said = machine(PYTHON, "-m", "gymbox.setup_docker")
    assert code == 1 and "dockerd ended with exit code 1; the end of" in said and "no-such-setting" in said, said
    assert "provider=process" in said


def test_a_user_with_sudo_gets_the_newer_engine_and_is_told_how_to_be_let_in(machine: Run) -> None:
    script = """
    apt-get update -qq && apt-get install -y -qq sudo >/dev/null
    echo 'agent ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/agent
    sed 's/trixie/bookworm/' /etc/apt/sources.list > /etc/apt/sources.list.d/bookworm.list
    """
    code, said = machine("sh", "-ec", script)
    assert code == 0, said
    code, said = machine(PYTHON, "-m", "gymbox.setup_docker", user="agent")
    assert code == 1, said
    assert "by sudo" in said and "no apt source" not in said
    assert "the Docker engine runs, but" in said and "usermod -aG docker" in said
    assert machine("docker", "version", "--format", "{{.Server.Version}}")[1].startswith("26.")
    assert machine("sh", "-c", "ls /etc/apt/sources.list.d")[1].split() == ["bookworm.list"]


def test_a_machine_that_allows_nothing_is_told_what_to_do(machine: Run) -> None:
    code, said = machine(PYTHON, "-m", "gymbox.setup_docker", user="agent")
    assert code == 1
    assert said.startswith("no Docker engine, and neither root nor sudo\n  - install Docker by hand")
    assert "provider=process" in said
    code, said = machine(PYTHON, "-m", "gymbox.setup_base_image", user="agent")
    assert code == 1 and "gymbox.setup_docker" in said
