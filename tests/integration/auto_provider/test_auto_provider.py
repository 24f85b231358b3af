from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path

import pytest
from gymbox import Sandbox
from gymbox.embedded import EmbeddedController
from gymbox.environment import Catalog, Environment
from gymbox.errors import NotFound, Unavailable
from gymbox.http import HttpClient
from gymbox.providers import SandboxProvider, StartSpec
from gymbox.providers.auto import AutoProvider
from gymbox.providers.docker import DockerProvider
from gymbox.providers.process import ProcessProvider


def without_docker(**process: object) -> AutoProvider:
    return AutoProvider(
        docker=DockerProvider(host="unix:///no/engine/here"), process=ProcessProvider.model_validate(process)
    )


async def test_where_no_engine_answers_it_is_the_process_provider_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    provider: SandboxProvider = without_docker()
    for _ in range(2):
        await provider.open("test", lambda id, ended: None)
        assert provider.name == "process" and await provider.list() == []
        assert isinstance(provider, AutoProvider) and provider.isolation_note.startswith("process provider")
        await provider.close()

    [line] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert line.getMessage().startswith("NO DOCKER (") and "process provider" in line.getMessage()


async def test_it_does_what_the_chosen_one_does(state_folder: Path, counter: Environment) -> None:
    provider = without_docker()
    await provider.open("test", lambda id, ended: None)
    try:
        assert await provider.prepare(counter) is None
        started = await provider.start(StartSpec("auto-1", counter, state_folder / "s"), lambda phase: None)
        assert started.socket and [found.id for found in await provider.list()] == ["auto-1"]
        assert isinstance(await provider.logs("auto-1"), str)
        await provider.stop("auto-1")
        with pytest.raises(NotFound):
            await provider.logs("auto-1")
    finally:
        await provider.close()


async def test_what_only_containers_have_is_refused_before_anything_starts_and_why_there_are_none_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    provider = without_docker()
    with pytest.raises(Unavailable) as refused:
        async with Sandbox("debian:trixie-slim", provider=provider):
            pass
    text = refused.value.detail
    assert "runs in debian:trixie-slim: use provider=docker; no Docker engine answers at unix:///no/engine" in text
    assert "start it, or unset DOCKER_HOST" in text and "provider=process" not in text
    assert not provider.process._zygotes and provider.process._on_end is None  # closed, and nothing was started


async def test_a_run_that_needs_containers_is_refused_before_it_has_a_folder(tmp_path: Path) -> None:
    folder, output = tmp_path / "caller", tmp_path / "out"
    (folder / "data").mkdir(parents=True)
    (folder / "environment.yaml").write_text("description: x\nnetwork: models\n")
    (folder / "server.py").write_text(
        "from gymbox_sandbox import ResourcesServer\n\n\nclass Caller(ResourcesServer): ...\n"
    )
    (folder / "data" / "example.jsonl").write_text('{"responses_create_params": {"input": "x"}, "gold_replies": []}\n')
    command = (
        *("gymbox", "run", f"environment={folder}", "model=scripted", f"runner.output={output}"),
        *("provider=auto", "provider.docker.host=unix:///no/engine/here"),
    )
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name(command[0])),
        *command[1:],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path)},
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 2
    assert b"caller asks for a network (models), which needs provider=docker; no Docker engine answers" in said
    assert not output.exists()


async def test_unopened_it_is_unavailable_and_closing_is_fine() -> None:
    provider = without_docker()
    await provider.close()

    assert (provider.name, provider.isolation_note) == ("auto", "")
    with pytest.raises(Unavailable, match="is not open"):
        await provider.list()


async def test_a_controller_names_the_provider_that_was_chosen(
    state_folder: Path, catalog: Catalog, counter: Environment, token: str, http: HttpClient
) -> None:
    async with (
        EmbeddedController(without_docker(), catalog, state_folder, token, http) as controller,
        controller.sandbox(counter, id="one"),
    ):
        assert controller.sandboxes.views.of(controller.sandboxes.get("one")).provider == "process"
