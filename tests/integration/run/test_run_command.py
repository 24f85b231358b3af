from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from .conftest import Gymbox

ENVIRONMENTS = Path(__file__).parents[3] / "environments"
SCRIPTED = ("environment=counter", "model=scripted", "provider=process")


def copy_of_counter(folder: Path, *, rows: list[str] | None = None, **manifest: object) -> Path:
    """An environment of one's own, made from `counter`."""
    copy = folder / "environments" / "mine"
    shutil.copytree(ENVIRONMENTS / "counter", copy, ignore=shutil.ignore_patterns("__pycache__", "tests"))
    path = copy / "environment.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "name": "mine", **manifest}))
    if rows is not None:
        (copy / "data" / "example.jsonl").write_text("\n".join(rows) + "\n")
    return copy


async def test_five_tasks_go_all_the_way_to_a_reward_of_one(gymbox: Gymbox) -> None:
    ended = await gymbox.run(*SCRIPTED, "runner.limit=5", "runner.output=out")

    assert ended.code == 0, ended.err
    lines = gymbox.lines("out")
    assert [line["reward"] for line in lines] == [1.0] * 5
    assert sorted(line["_ng_task_index"] for line in lines) == [0, 1, 2, 3, 4]
    assert all(line["response"]["output"] and line["agent_ref"]["name"] == "ToolLoop" for line in lines)
    assert "results  out/rollouts.jsonl" in ended.out and "5/5 done" in ended.err
    assert gymbox.read("out", "manifest.json")["status"] == "finished"
    assert gymbox.read("out", "metrics.json")["environments"]["counter"]["mean/reward"] == 1.0


async def test_several_environments_with_repeats_give_a_summary_as_json(gymbox: Gymbox) -> None:
    ended = await gymbox.run(
        "environment=counter,weather",
        "model=scripted",
        "provider=process",
        "runner.limit=3",
        "runner.repeats=2",
        "runner.concurrency=4",
        "--json",
    )

    assert ended.code == 0, ended.err
    summary = json.loads(ended.out)
    assert summary["total"]["scored"] == 12 and set(summary["environments"]) == {"counter", "weather"}
    assert summary["folder"].startswith("runs/") and summary["folder"].endswith("-counter-weather")
    assert len(gymbox.lines(summary["folder"])) == 12


async def test_rollouts_with_a_clean_sandbox_for_verify_need_no_more_places_than_run_at_once(gymbox: Gymbox) -> None:
    copy = copy_of_counter(gymbox.folder, verify="fresh")
    ended = await gymbox.run(
        f"environment={copy}",
        "model=scripted",
        "provider=process",
        "runner.limit=12",
        "runner.concurrency=4",
        "runner.output=out",
    )

    assert ended.code == 0, ended.err
    assert [line["error"] for line in gymbox.lines("out")] == [None] * 12


async def test_an_environment_can_be_a_folder(gymbox: Gymbox) -> None:
    copy_of_counter(gymbox.folder)

    ended = await gymbox.run("environment=./environments/mine", *SCRIPTED[1:], "runner.limit=1")

    assert ended.code == 0, ended.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["environment=countr"], "there is no environment 'countr'; did you mean 'counter'?"),
        (["environment=counter", "model=scriptd"], "there is no model 'scriptd'; did you mean 'scripted'?"),
        (["environment=counter", "runner.limt=1"], "did you mean 'limit'?"),
        ([*SCRIPTED, "runner.resume=true"], "runner.resume=true needs runner.output=DIR"),
        ([*SCRIPTED, "runner.retry_failed=true"], "runner.retry_failed=true needs runner.resume=true"),
        ([*SCRIPTED, "controller=http://127.0.0.1:1"], "start one with `gymbox serve controller`"),
        (
            ["environment=counter", "model=scripted", "provider=docker", "provider.host=unix:///none"],
            "provider=process",
        ),
        ([*SCRIPTED, "model.datasets=[none.jsonl]"], "none.jsonl"),
    ],
)
async def test_a_wrong_request_is_one_message_and_starts_nothing(
    gymbox: Gymbox, arguments: list[str], said: str
) -> None:
    ended = await gymbox.run(*arguments)

    assert ended.code == 2
    assert said in ended.err and "Traceback" not in ended.err
    assert not (gymbox.folder / "runs").exists()


async def test_every_faulty_row_is_told_at_once_and_nothing_is_started(gymbox: Gymbox) -> None:
    good = (ENVIRONMENTS / "counter" / "data" / "example.jsonl").read_text().splitlines()[0]
    copy_of_counter(gymbox.folder, rows=[good, "{", good.replace("responses_create_params", "response_create_params")])

    ended = await gymbox.run("environment=mine", *SCRIPTED[1:], "runner.limit=1")

    assert ended.code == 2
    assert "example.jsonl:2: (row): ends in the middle of a JSON value" in ended.err
    assert (
        "example.jsonl:3: response_create_params: unknown field; did you mean 'responses_create_params'?" in ended.err
    )
    assert not (gymbox.folder / "runs").exists()


async def test_an_engine_that_does_not_answer_is_told_with_ways_on_and_nothing_is_started(gymbox: Gymbox) -> None:
    gymbox.variables["DOCKER_HOST"] = "unix:///nonexistent"

    ended = await gymbox.run("environment=counter", "model=scripted", "provider=docker")

    assert ended.code == 2 and "Traceback" not in ended.err
    assert "no Docker engine answers at unix:///nonexistent" in ended.err
    for way_on in ("unset DOCKER_HOST", f"{sys.executable} -m gymbox.setup_docker", "provider=process"):
        assert way_on in ended.err
    assert not (gymbox.folder / "runs").exists()


async def test_without_docker_auto_says_loudly_what_is_lost(gymbox: Gymbox) -> None:
    gymbox.variables["DOCKER_HOST"] = "unix:///none"

    ended = await gymbox.run("environment=counter", "model=scripted", "runner.limit=1")

    assert ended.code == 0, ended.err
    assert ended.err.count("NO DOCKER") == 1
    manifest = gymbox.read(str(next((gymbox.folder / "runs").iterdir())), "manifest.json")
    assert manifest["images"] == manifest["bases"] == {"counter": None}
    assert manifest["provider"].startswith("process provider")
    assert f"rollouts of counter by tool_loop with scripted, {manifest['provider']} → " in ended.err


async def test_a_dead_endpoint_is_a_typed_error_and_never_a_reward(gymbox: Gymbox) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"

        words = (
            "environment=counter",
            "provider=process",
            "model=openai",
            "model.name=m",
            f"model.base_url={address}",
            "model.pause=0.01",
            "runner.limit=2",
            "runner.output=out",
        )
        ended = await gymbox.run(*words, "runner.ready_timeout=0")

    assert ended.code == 1
    for line in gymbox.lines("out"):
        assert line["reward"] is None
        assert (line["error"]["stage"], line["error"]["kind"]) == ("agent", "model_unavailable")
    assert "first model_unavailable" in ended.err and address in ended.err
    assert "2 × model_unavailable, such as " in ended.out and "–" in ended.out

    again = await gymbox.run(*words, "runner.resume=true")
    assert again.code == 1 and "waiting for it" not in again.err, "there is nothing left to ask it"


async def test_a_model_that_does_not_answer_is_told_before_anything_is_started(gymbox: Gymbox) -> None:
    ended = await gymbox.run(
        "environment=counter",
        "provider=process",
        "model=openai",
        "model.name=m",
        "model.base_url=http://127.0.0.1:9/v1",
        "runner.ready_timeout=0.1",
        "runner.output=out",
    )

    assert ended.code == 2
    assert "model 'm' at http://127.0.0.1:9/v1/models could not be reached" in ended.err
    assert not (gymbox.folder / "out").exists()


async def test_a_key_that_is_not_set_is_told_before_anything_is_started(gymbox: Gymbox) -> None:
    for choice, variable in (("openai", "OPENAI_API_KEY"), ("anthropic", "ANTHROPIC_API_KEY")):
        ended = await gymbox.run(
            "environment=counter", "provider=process", f"model={choice}", "model.name=m", "runner.output=out"
        )
        assert ended.code == 2
        assert f"there is none: set {variable}" in ended.err
        assert not (gymbox.folder / "out").exists()


async def test_a_finished_run_is_not_overwritten(gymbox: Gymbox) -> None:
    await gymbox.run(*SCRIPTED, "runner.limit=1", "runner.output=out")
    before = (gymbox.folder / "out" / "rollouts.jsonl").read_bytes()

    ended = await gymbox.run(*SCRIPTED, "runner.limit=1", "runner.output=out")

    assert ended.code == 2 and "out holds a run already" in ended.err
    assert (gymbox.folder / "out" / "rollouts.jsonl").read_bytes() == before


SLOW = (
    *SCRIPTED,
    "model.latency=0.2",
    "runner.limit=10",
    "runner.concurrency=2",
    "runner.output=out",
    "--verbose",
)


async def test_a_killed_run_goes_on_where_it_was(gymbox: Gymbox) -> None:
    command = await gymbox.start(*SLOW)
    await command.until(r"rollout \S+: 1\.0", times=3)
    command.tell(signal.SIGKILL)
    assert (await command.ended()).code == -signal.SIGKILL
    path = gymbox.folder / "out" / "rollouts.jsonl"
    before = path.read_bytes()
    path.write_bytes(before + b'{"torn": ')

    ended = await gymbox.run(*SLOW, "runner.resume=true")

    assert ended.code == 0, ended.err
    assert f"{path.relative_to(gymbox.folder)} ended in the middle of a line: cut off its last 9 bytes" in ended.err
    assert path.read_bytes().startswith(before)
    assert sorted(line["_ng_task_index"] for line in gymbox.lines("out")) == list(range(10))
    assert gymbox.read("out", "manifest.json")["starts"] == 2


async def test_other_inputs_are_refused_on_resume(gymbox: Gymbox) -> None:
    await gymbox.run(*SCRIPTED, "runner.limit=1", "runner.output=out")

    ended = await gymbox.run(
        *SCRIPTED, "runner.limit=2", "agent.max_steps=3", "runner.output=out", "runner.resume=true"
    )

    assert ended.code == 2
    assert "  runner.limit: was 1, is 2\n  agent.max_steps: was 32, is 3" in ended.err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_the_first_signal_lets_running_rollouts_end(gymbox: Gymbox, number: signal.Signals, code: int) -> None:
    command = await gymbox.start(*SLOW)
    await command.until(r"rollout \S+: 1\.0")
    command.tell(number)
    ended = await command.ended()

    assert ended.code == code, ended.err
    lines = gymbox.lines("out")
    assert [line["error"] for line in lines if line["reward"] != 1.0] == []
    assert 1 <= len(lines) < 10
    assert gymbox.read("out", "manifest.json")["status"] == "interrupted"

    [command_line] = re.findall(r"^go on +(.*)$", ended.out, re.MULTILINE)
    assert (await gymbox.shell(command_line)) == 0
    assert sorted(line["_ng_task_index"] for line in gymbox.lines("out")) == list(range(10))


async def test_the_second_signal_drops_everything_and_leaves_no_process(gymbox: Gymbox) -> None:
    slow = [argument if "latency" not in argument else "model.latency=600" for argument in SLOW]
    command = await gymbox.start(*slow)
    await command.until(r"sandbox .* of counter on")
    command.tell(signal.SIGINT)
    await command.until("stopping: rollouts under way have 30 s to end; again: drop them now")
    command.tell(signal.SIGINT)
    ended = await command.ended()

    assert ended.code == 130, ended.err
    assert "interrupted; no rollout has ended" in ended.out and "\ngo on " in ended.out
    assert "Traceback" not in ended.err
    assert gymbox.lines("out") == [] and gymbox.read("out", "manifest.json")["status"] == "interrupted"
    assert _processes_of(gymbox.folder) == []


def _processes_of(folder: Path) -> list[str]:
    """Command lines of processes with the home of that folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"HOME={folder}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_text())
        except OSError:
            continue
    return found


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for a few results."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], check=False).returncode
    ):
        pytest.skip("needs root and the right to mount")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


async def test_a_full_disk_stops_the_run_and_keeps_every_whole_line(gymbox: Gymbox, small_disk: Path) -> None:
    arguments = (*SCRIPTED, "runner.repeats=3", f"runner.output={small_disk}/out")

    ended = await gymbox.run(*arguments)

    assert ended.code == 1, ended.err
    assert "No space left on device" in ended.err and "results are safe" in ended.err and "Traceback" not in ended.err
    before = gymbox.lines(f"{small_disk}/out")
    assert 0 < len(before) < 72

    grow = await asyncio.create_subprocess_exec("mount", "-o", "remount,size=8m", str(small_disk))
    assert await grow.wait() == 0
    assert (await gymbox.run(*arguments, "runner.resume=true")).code == 0
    assert gymbox.lines(f"{small_disk}/out")[: len(before)] == before
    assert len(gymbox.lines(f"{small_disk}/out")) == 72


async def test_a_running_controller_can_be_used(gymbox: Gymbox, controller_url: str, token: str) -> None:
    gymbox.variables["GYMBOX_TOKEN"] = token
    controller = f"controller={controller_url}"
    ended = await gymbox.run(*SCRIPTED[:2], controller, "runner.limit=3", "runner.output=out")
    assert ended.code == 0, ended.err
    assert [line["reward"] for line in gymbox.lines("out")] == [1.0] * 3
    manifest = gymbox.read("out", "manifest.json")
    assert manifest["provider"].startswith("process provider") and manifest["settings"]["provider"] is None
    assert manifest["images"] == {"counter": None} and "docker" not in manifest["versions"]

    copy_of_counter(gymbox.folder)
    ended = await gymbox.run("environment=mine", "model=scripted", controller)
    assert ended.code == 2 and "has no environment 'mine'" in ended.err

    gymbox.variables["GYMBOX_TOKEN"] = "gbx_admin_of_another"
    ended = await gymbox.run(*SCRIPTED[:2], controller)
    assert ended.code == 2 and "set $GYMBOX_TOKEN to what the user who started it has" in ended.err


async def test_an_agent_of_ones_own_is_found_in_the_working_directory(gymbox: Gymbox) -> None:
    (gymbox.folder / "my_agents.py").write_text(
        "from gymbox.agents import Agent\n"
        "from gymbox_sandbox import Response\n"
        "class Lazy(Agent):\n"
        "    async def run(self, task, model, tools):\n"
        "        return Response()\n"
    )

    ended = await gymbox.run(*SCRIPTED, "agent._target_=my_agents.Lazy", "runner.limit=1", "runner.output=out")

    assert ended.code == 0, ended.err
    [line] = gymbox.lines("out")
    assert line["reward"] == 0.0 and line["agent_ref"]["name"] == "Lazy"


async def test_sessions_are_the_controllers_to_decide_where_one_is_used(gymbox: Gymbox, controller_url: str) -> None:
    ended = await gymbox.run(*SCRIPTED[:2], "sessions=4", f"controller={controller_url}")
    assert ended.code == 2 and "sessions cannot be set with controller=" in ended.err

    ended = await gymbox.run(*SCRIPTED, "sessions=4", "runner.limit=4", "runner.output=out")
    assert ended.code == 0, ended.err
    assert [line["reward"] for line in gymbox.lines("out")] == [1.0] * 4


async def test_what_the_proxy_of_a_run_lets_through_can_be_set(
    gymbox: Gymbox, controller_url: str, token: str
) -> None:
    ended = await gymbox.run(*SCRIPTED, "proxy.max_connections=7", "runner.limit=1", "runner.output=out")
    assert ended.code == 0, ended.err
    assert gymbox.read("out", "manifest.json")["settings"]["proxy"]["max_connections"] == 7

    ended = await gymbox.run(*SCRIPTED, "proxy.max_connections=none")
    assert ended.code == 2 and "max_connections" in ended.err

    gymbox.variables["GYMBOX_TOKEN"] = token
    ended = await gymbox.run(*SCRIPTED[:2], "proxy.max_connections=7", f"controller={controller_url}")
    assert ended.code == 2 and "proxy.* cannot be set with controller=" in ended.err
