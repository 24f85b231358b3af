from __future__ import annotations

import asyncio
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from gymbox.embedded import EmbeddedController
from gymbox.environment import Catalog
from gymbox.http import HttpClient
from gymbox.providers.docker import DockerProvider

from .conftest import Gymbox

ENVIRONMENTS = Path(__file__).parents[3] / "environments"
pytestmark = pytest.mark.docker


async def containers_of(engine: Any, run: str) -> list[Any]:
    return await asyncio.to_thread(engine.containers.list, all=True, ignore_removed=True, filters={"name": f"-{run}-"})


async def living_after_the_first(engine: Any, run: str) -> set[str]:
    """Names of running containers of the third rollout on: those of the first two may be going already."""
    names = {each.name for each in await containers_of(engine, run) if each.status == "running"}
    return {name for name in names if int(name.split("-")[-2]) >= 2}


async def test_tasks_go_all_the_way_in_containers_and_none_is_left(gymbox: Gymbox, engine: Any) -> None:
    ended = await gymbox.run(
        "environment=counter,weather", "model=scripted", "provider=docker", "runner.limit=2", "runner.output=out"
    )

    assert ended.code == 0, ended.err
    assert [line["reward"] for line in gymbox.lines("out")] == [1.0] * 4
    manifest = gymbox.read("out", "manifest.json")
    assert set(manifest["images"]) == {"counter", "weather"} and all(manifest["images"].values())
    assert all(":" in base for base in manifest["bases"].values()) and set(manifest["bases"]) == {"counter", "weather"}
    assert manifest["versions"]["docker"] == (await asyncio.to_thread(engine.version))["Version"]
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


async def test_a_running_controller_tells_its_engine_and_images_and_why_one_does_not_build(
    gymbox: Gymbox, engine: Any, state_folder: Path, token: str, http: HttpClient
) -> None:
    folder = gymbox.folder / "environments" / "broken"
    shutil.copytree(ENVIRONMENTS / "counter", folder, ignore=shutil.ignore_patterns("__pycache__", "tests"))
    (folder / "Dockerfile").write_text("ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nRUN echo the reason; exit 3\n")
    with (folder / "environment.yaml").open("a") as text:
        text.write("\nimage: {dockerfile: Dockerfile}\n")
    provider = DockerProvider(build_folder=gymbox.folder / "builds")
    catalog = Catalog([ENVIRONMENTS, folder.parent])
    async with EmbeddedController(provider, catalog, state_folder, token, http) as controller:
        gymbox.variables["GYMBOX_TOKEN"] = token
        arguments = ("model=scripted", f"controller={controller.url}", "runner.limit=1", "runner.output=out")
        good = await gymbox.run("environment=counter", *arguments)
        bad = await gymbox.run(f"environment={folder}", *arguments[:-1])

    assert good.code == 0, good.err
    manifest = gymbox.read("out", "manifest.json")
    assert manifest["provider"] == "docker" and manifest["images"]["counter"]
    assert "sha256:" in manifest["bases"]["counter"]
    assert manifest["versions"]["docker"] == (await asyncio.to_thread(engine.version))["Version"]
    assert bad.code == 2 and "the reason" in bad.err and not (gymbox.folder / "runs").exists()


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
        while not (living := await living_after_the_first(engine, run)):
            pass  # each look is a request to the engine
    command.tell(signal.SIGKILL)
    await command.ended()
    assert living & await living_after_the_first(engine, run)

    ended = await gymbox.run(*arguments, "runner.resume=true")

    assert ended.code == 0, ended.err
    assert sorted(line["_ng_task_index"] for line in gymbox.lines("out")) == list(range(6))
    assert await containers_of(engine, run) == []


FAULTY = '''
from pathlib import Path

from gymbox_sandbox import ResourcesServer, Response, Task, tool


class Faulty(ResourcesServer):
    """Ends in the way that its task asks for."""

    async def reset(self, task: Task) -> None:
        self.how = task.how

    @tool
    async def go(self) -> str:
        """Do it."""
        if self.how == "oom":
            return str(len(bytearray(512 * 1024 * 1024)))
        return "done"

    async def verify(self, task: Task, response: Response) -> float:
        if self.how == "full":
            Path("/tmp/big").write_bytes(bytes(8 * 1024 * 1024))
        if self.how == "nan":
            return float("nan")
        return 1.0
'''
GO = [
    [{"type": "function_call", "call_id": "1", "name": "go", "arguments": "{}"}],
    [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "done"}]}],
]


@pytest.mark.parametrize(
    ("how", "stage", "kind"),
    [("oom", "agent", "oom_killed"), ("full", "verify", "disk_full"), ("nan", "verify", "bad_verdict")],
)
async def test_what_befalls_a_sandbox_is_told_by_its_kind_and_is_no_reward(
    gymbox: Gymbox, engine: Any, how: str, stage: str, kind: str
) -> None:
    folder = gymbox.folder / "faulty"
    (folder / "data").mkdir(parents=True)
    (folder / "server.py").write_text(FAULTY)
    (folder / "environment.yaml").write_text("description: ends badly\nlimits: {memory_mb: 96, tmp_mb: 2}\n")
    row = {"id": how, "how": how, "responses_create_params": {"input": "go"}, "gold_replies": GO}
    (folder / "data" / "example.jsonl").write_text(json.dumps(row) + "\n")

    ended = await gymbox.run("environment=./faulty", "model=scripted", "provider=docker", "runner.output=out")

    assert ended.code == 1, ended.err
    [line] = gymbox.lines("out")
    assert line["reward"] is None
    assert (line["error"]["stage"], line["error"]["kind"]) == (stage, kind), line["error"]
