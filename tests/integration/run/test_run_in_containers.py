from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from .conftest import Gymbox

ENVIRONMENTS = Path(__file__).parents[3] / "environments"
pytestmark = pytest.mark.docker


@pytest.fixture
def engine() -> Iterator[Any]:
    try:
        client = docker.from_env(timeout=60)
        client.ping()
    except Exception as error:
        pytest.skip(f"no Docker engine answers: {error}")
    yield client
    client.close()


async def containers_of(engine: Any, run: str) -> list[Any]:
    return await asyncio.to_thread(engine.containers.list, all=True, ignore_removed=True, filters={"name": f"-{run}-"})


async def test_tasks_go_all_the_way_in_containers_and_none_is_left(gymbox: Gymbox, engine: Any) -> None:
    ended = await gymbox.run(
        "environment=counter,weather", "model=scripted", "provider=docker", "runner.limit=2", "runner.output=out"
    )

    assert ended.code == 0, ended.err
    assert [line["reward"] for line in gymbox.lines("out")] == [1.0] * 4
    manifest = gymbox.read("out", "manifest.json")
    assert set(manifest["images"]) == {"counter", "weather"} and all(manifest["images"].values())
    assert await containers_of(engine, manifest["run"]) == []


async def test_an_image_that_does_not_build_shows_the_failing_step_and_starts_nothing(
    gymbox: Gymbox, engine: Any
) -> None:
    folder = gymbox.folder / "broken"
    shutil.copytree(ENVIRONMENTS / "counter", folder, ignore=shutil.ignore_patterns("__pycache__", "tests"))
    (folder / "Dockerfile").write_text("ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nRUN echo the reason; exit 3\n")
    with (folder / "environment.yaml").open("a") as manifest:
        manifest.write("\nimage: {dockerfile: Dockerfile}\n")

    ended = await gymbox.run("environment=./broken", "model=scripted", "provider=docker")

    assert ended.code == 2
    assert "the reason" in ended.err and "Traceback" not in ended.err
    assert not (gymbox.folder / "runs").exists()


async def test_the_next_run_removes_the_containers_of_a_killed_one_and_goes_on(gymbox: Gymbox, engine: Any) -> None:
    arguments = (
        "environment=counter",
        "model=scripted",
        "model.latency=0.5",
        "provider=docker",
        "runner.limit=6",
        "runner.concurrency=2",
        "runner.output=out",
        "--verbose",
    )
    command = await gymbox.start(*arguments)
    await command.until(r"rollout \S+: 1\.0")
    run = gymbox.read("out", "manifest.json")["run"]
    async with asyncio.timeout(60):
        while not await containers_of(engine, run):  # those of the next rollouts
            pass  # each look is a request to the engine
    command.tell(signal.SIGKILL)
    await command.ended()
    assert await containers_of(engine, run)

    ended = await gymbox.run(*arguments, "runner.resume=true")

    assert ended.code == 0, ended.err
    assert sorted(line["_ng_task_index"] for line in gymbox.lines("out")) == list(range(6))
    assert await containers_of(engine, run) == []
