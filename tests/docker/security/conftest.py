"""Probes: attacks that print OPEN where they work, tried as a sandbox's agent and, as a control, without hardening."""

from __future__ import annotations

import shutil
import textwrap
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gymbox.environment import Environment
from gymbox.providers.images import Images
from gymbox.providers.runtime import INTERPRETER
from gymbox.setup_base_image import BASE_IMAGE

SERVER = """
from gymbox_sandbox import ResourcesServer

class Guarded(ResourcesServer):
    async def reset(self, task):
        self.secret = "-".join(["the", "hidden", "answer", task.nonce])

    async def verify(self, task, response):
        return 0.0
"""
DOCKERFILE = """
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
RUN cp /usr/bin/id /usr/local/bin/setuid-id && chmod 4755 /usr/local/bin/setuid-id
"""


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with small limits, whose server keeps a secret and whose image holds a setuid program."""
    folder = tmp_path_factory.mktemp("guarded") / "guarded"
    folder.mkdir()
    (folder / "server.py").write_text(SERVER)
    (folder / "Dockerfile").write_text(DOCKERFILE)
    (folder / "environment.yaml").write_text(
        "description: For probes.\nimage: {dockerfile: Dockerfile}\n"
        "limits: {memory_mb: 192, pids: 64, workspace_mb: 16, tmp_mb: 16, open_files: 256}\n"
    )
    return Environment.load(folder)


@pytest.fixture(scope="session")
def image(engine: Any, guarded: Environment, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("builds")
    return Images(engine.api, "debian:trixie-slim", {}, folder, 1800).ensure(guarded)


class Shown(str):
    """What an attack printed."""

    @property
    def opened(self) -> bool:
        """Whether it worked."""
        return any(line.startswith("OPEN") for line in self.splitlines())


Attack = Callable[..., Shown]


@pytest.fixture(scope="session")
def plainly(engine: Any, image: str) -> Iterator[Attack]:
    """Runs an attack in an ordinary `docker run` of the same image, as root unless a user is named."""
    yield from _control(engine, image)


@pytest.fixture(scope="session")
def privileged(engine: Any, image: str) -> Iterator[Attack]:
    """Runs an attack where every control is off, for what an ordinary `docker run` stops too."""
    yield from _control(engine, image, privileged=True)


def _control(engine: Any, image: str, **options: Any) -> Iterator[Attack]:
    name = f"gymbox-control-{uuid.uuid4().hex[:8]}"
    container = engine.containers.run(image, ["sleep", "infinity"], name=name, detach=True, init=True, **options)
    try:

        def attack(script: str, user: str = "0") -> Shown:
            return Shown(container.exec_run(_shell(script), user=user).output.decode(errors="replace"))

        yield attack
    finally:
        container.remove(force=True)


@pytest.fixture
async def as_agent(sandboxes: Any, guarded: Environment, run_in: Any) -> Any:
    """Runs an attack as the agent of a new sandbox."""
    started = await sandboxes.start(guarded)

    async def attack(script: str, timeout: float = 60) -> Shown:
        done = await run_in(started, _shell(script), timeout=timeout)
        return Shown(done["stdout"] + done["stderr"])

    return attack


@pytest.fixture
async def as_agent_of_any_image(sandboxes: Any, guarded: Environment, run_in: Any, tmp_path: Path) -> Any:
    """Runs an attack as the agent of a sandbox whose image has no Python and was not made from our runtime's."""
    folder = tmp_path / "foreign" / "guarded"
    shutil.copytree(guarded.folder, folder)
    own = (folder / "Dockerfile").read_text()
    (folder / "Dockerfile").write_text(own.replace("ARG BASE_IMAGE\n", "").replace("${BASE_IMAGE}", BASE_IMAGE))
    started = await sandboxes.start(Environment.load(folder))

    async def attack(script: str, timeout: float = 60) -> Shown:
        done = await run_in(started, _shell(script, INTERPRETER), timeout=timeout)
        return Shown(done["stdout"] + done["stderr"])

    return attack


def _shell(script: str, python: str = "python3") -> list[str]:
    script = textwrap.dedent(script).strip()
    return [python, "-c", script] if script.startswith(("import", "from")) else ["sh", "-c", script]
