"""`gymbox run status`, `tail`, `pause`, `resume` and `cancel`, on real runs in processes of their own."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from gymbox.cli import main
from gymbox.cli.places import state_folder
from gymbox.http import HttpClient
from gymbox.runs.client import RunsClient
from gymbox.runs.register import Register
from gymbox.runs.view import RunView

from .conftest import Command, Gymbox

SLOW = ("environment=counter", "model=scripted", "provider=process", "model.latency=0.5", "runner.concurrency=2")
FAILING = ("environment=counter", "model=scripted", "provider=process", "runner.give_up_after=0")


async def slow_run(gymbox: Gymbox, *more: str) -> Command:
    """A run that is under way in the folder `out`."""
    command = await gymbox.start(*SLOW, "runner.output=out", *more)
    await command.until("run [0-9a-f]{8}: ")
    return command


async def status(gymbox: Gymbox, run: str = "out") -> dict[str, Any]:
    ended = await gymbox.run("status", run, "--json")
    assert ended.code == 0, ended.err
    return dict(json.loads(ended.out))


async def until(gymbox: Gymbox, condition: Callable[[RunView], bool]) -> RunView:
    """The first view of the live run in `out` for which it holds; asked as the commands ask."""
    folder = str((gymbox.folder / "out").resolve())
    [entry] = [entry for entry in Register(state_folder()).live() if entry.folder == folder]
    async with HttpClient() as http, asyncio.timeout(120):
        client = RunsClient.at(http, entry.socket)
        while not condition(found := await client.get(entry.id)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return found


async def test_a_live_run_is_told_of_paused_resumed_and_cancelled(gymbox: Gymbox) -> None:
    command = await slow_run(gymbox, "runner.repeats=20")
    await until(gymbox, lambda view: view.done >= 2)
    found = await status(gymbox)
    assert (found["status"], found["live"], found["planned"], found["reward"]) == ("running", True, 480, 1.0)
    id = found["id"]

    paused = await gymbox.run("pause", id)
    assert (paused.code, paused.out) == (0, f"run {id}: paused\n")
    still = await until(gymbox, lambda view: view.running == 0)
    readable = await gymbox.run("status", id)
    assert f"run {id}: paused\n  {still.done}/480 done · 0 failed · reward 1.000" in readable.out
    assert re.search(rf"{id} +paused +{still.done}/480 +0 +1.000", (await gymbox.run("status")).out)

    assert (await gymbox.run("resume", "out")).out == f"run {id}: running\n"
    await until(gymbox, lambda view: view.done > still.done)
    cancelled = await gymbox.run("cancel", "out")
    assert (cancelled.code, cancelled.out) == (0, f"run {id}: stopping\n")
    ended = await command.ended()
    assert ended.code == 130 and "runner.resume=true" in ended.out

    after = await status(gymbox)
    assert (after["status"], after["live"]) == ("interrupted", False)
    assert after["done"] == len(gymbox.lines("out")) == gymbox.read("out", "manifest.json")["done"]
    refused = await gymbox.run("pause", "out")
    assert refused.code == 1
    assert f"run {id} is not live: interrupted after {after['done']} of 480 rollouts" in refused.err
    assert "runner.output=out runner.resume=true" in refused.err
    assert (await gymbox.run("pause", "nothing")).code == 2


async def test_cancel_now_drops_what_is_under_way(gymbox: Gymbox) -> None:
    command = await slow_run(gymbox, "model.latency=60")
    await until(gymbox, lambda view: view.running == 2)

    await gymbox.run("cancel", "out", "--now")
    assert (await command.ended()).code == 130
    assert gymbox.lines("out") == []


async def test_a_killed_run_is_told_as_interrupted_and_can_be_gone_on_with(gymbox: Gymbox) -> None:
    command = await slow_run(gymbox, "runner.limit=12")
    before = await until(gymbox, lambda view: view.done >= 2)
    command.process.kill()
    await command.process.wait()
    with (gymbox.folder / "out" / "rollouts.jsonl").open("ab") as file:
        file.write(b'{"torn')

    found = await status(gymbox)
    assert (found["status"], found["live"], found["id"]) == ("interrupted", False, before.id)
    assert before.done <= found["done"] < 12
    assert before.id not in (await gymbox.run("ls")).out
    readable = await gymbox.run("status", "out")
    assert "to go on: the command that began it, with runner.output=" in readable.out

    # one that goes on is followed while another file takes the place of the first
    tail = await gymbox.start("tail", "out", "--json")
    ended = await gymbox.run(*SLOW, "runner.limit=12", "runner.output=out", "runner.resume=true")
    assert ended.code == 0
    assert (await tail.ended()).code == 0
    assert (await status(gymbox))["status"] == "finished"


async def test_tail_shows_each_result_as_it_comes_until_the_end(gymbox: Gymbox) -> None:
    command = await slow_run(gymbox, "runner.limit=6")
    tail = await gymbox.run("tail", "out", "-n", "100")
    await command.ended()

    assert tail.code == 0
    shown = tail.out.splitlines()
    assert sorted(line.split()[1] for line in shown) == [f"counter-00{number}" for number in range(6)]
    assert all(re.search(r"#0  reward 1\.0  [0-9.]+ s$", line) for line in shown)
    assert len((await gymbox.run("tail", "out", "-n", "2", "--no-follow")).out.splitlines()) == 2


async def test_tail_can_show_what_failed_alone(gymbox: Gymbox) -> None:
    await gymbox.run(*FAILING, "model.fail_with={1: refused_request}", "runner.limit=3", "runner.output=out")

    shown = (await gymbox.run("tail", "out", "--failed")).out.splitlines()
    assert len(shown) == 3 and all("model_refused_request (agent): " in line for line in shown)
    readable = (await gymbox.run("status", "out")).out
    assert "3 × model_refused_request, such as counter-00" in readable


async def test_watch_ends_with_the_run(gymbox: Gymbox) -> None:
    command = await slow_run(gymbox, "runner.limit=4", "model.latency=4")
    watch = await gymbox.run("status", "out", "--watch", "--json")
    await command.ended()

    views = [json.loads(line) for line in watch.out.splitlines()]
    assert views[0]["live"] and views[-1]["status"] == "finished" and views[-1]["done"] == 4


@pytest.fixture
def state_folder_of_its_own() -> Iterator[Path]:
    state = Path(tempfile.mkdtemp(prefix="gbx"))
    state.chmod(0o711)
    yield state
    shutil.rmtree(state, ignore_errors=True)


@pytest.fixture
async def served(gymbox: Gymbox, state_folder_of_its_own: Path) -> AsyncIterator[str]:
    """The address of a `gymbox serve controller` of the same user."""
    yield await start_controller(gymbox, state_folder_of_its_own)
    await gymbox.close()


async def start_controller(gymbox: Gymbox, state: Path) -> str:
    options = ("--port", "0", "--proxy-port", "0", "--state", str(state), "--runs", "served", "--max-sandboxes", "2")
    command = await gymbox.start("provider=process", *options, command=("serve", "controller"))
    line = await command.until("answering on ")
    return str(json.loads(line)["message"].split()[-1])


async def test_a_controllers_runs_are_steered_by_its_address(gymbox: Gymbox, served: str) -> None:
    token = (gymbox.folder / "config" / "gymbox" / "token").read_text().strip()
    overrides = ["environment=counter", "model=scripted", "model.latency=0.3", "runner.limit=10"]
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session:
        body = {"id": "mine", "overrides": overrides}
        async with session.post(f"{served}/v1/runs", json=body) as answer:
            assert answer.status == 201
    here = ("--controller", served)

    assert (await gymbox.run("pause", *here)).out == "run mine: paused\n"
    listed = json.loads((await gymbox.run("ls", "--json", *here)).out)
    assert [view["id"] for view in listed] == ["mine"]
    assert (await gymbox.run("resume", "mine", *here)).out == "run mine: running\n"
    tail = await gymbox.run("tail", "mine", "-n", "100", *here)
    assert tail.code == 0 and len(tail.out.splitlines()) == 10
    assert len((await gymbox.run("tail", "mine", "-n", "3", "--no-follow", "--json", *here)).out.splitlines()) == 3
    found = json.loads((await gymbox.run("status", "mine", "--json", *here)).out)
    assert (found["status"], found["done"]) == ("finished", 10)
    nobody = await gymbox.run("cancel", *here)
    assert nobody.code == 1 and "0 runs are live at" in nobody.err
    assert len(gymbox.lines("served/mine")) == 10


async def test_a_controllers_run_goes_on_from_the_command_line_with_a_larger_budget(
    gymbox: Gymbox, served: str
) -> None:
    token = (gymbox.folder / "config" / "gymbox" / "token").read_text().strip()
    overrides = ["environment=counter", "model=scripted", "model.usage={input: 90, output: 10}", "runner.limit=4"]
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session:
        body = {"id": "mine", "overrides": [*overrides, "runner.budget.tokens=300", "runner.concurrency=1"]}
        async with session.post(f"{served}/v1/runs", json=body) as answer:
            assert answer.status == 201
    here = ("--controller", served)
    await gymbox.run("tail", "mine", *here)
    assert "a larger runner.budget" in (await gymbox.run("status", "mine", *here)).out
    refused = await gymbox.run("resume", "mine", *here)
    assert refused.code == 1 and "the run's budget is used up" in refused.err
    assert (await gymbox.run("resume", "mine", "runner.budget.tokens=100_000", *here)).code == 0
    await gymbox.run("tail", "mine", *here)
    found = json.loads((await gymbox.run("status", "mine", "--json", *here)).out)
    assert (found["status"], found["done"]) == ("finished", 4)


async def test_a_tail_that_does_not_follow_ends_at_once_where_a_controllers_run_has_no_result_yet(
    gymbox: Gymbox, served: str
) -> None:
    token = (gymbox.folder / "config" / "gymbox" / "token").read_text().strip()
    overrides = ["environment=counter", "model=scripted", "model.latency=600", "runner.limit=2"]
    here = ("--controller", served)
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session:
        async with session.post(f"{served}/v1/runs", json={"id": "slow", "overrides": overrides}) as answer:
            assert answer.status == 201
    async with asyncio.timeout(60):
        tail = await gymbox.run("tail", "slow", "--no-follow", *here)
    assert (tail.code, tail.out) == (0, "")
    assert (await gymbox.run("cancel", "slow", "--now", *here)).code == 0


async def test_a_run_of_a_killed_controller_goes_on_with_the_next_one(gymbox: Gymbox, served: str) -> None:
    token = (gymbox.folder / "config" / "gymbox" / "token").read_text().strip()
    [controller] = [command for command in gymbox.started if command.process.returncode is None]
    overrides = ["environment=counter", "model=scripted", "model.latency=0.3", "runner.limit=10"]
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session:
        async with session.post(f"{served}/v1/runs", json={"id": "mine", "overrides": overrides}) as answer:
            assert answer.status == 201
        async with asyncio.timeout(120):
            while (await (await session.get(f"{served}/v1/runs/mine")).json())["done"] < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        controller.process.kill()
        await controller.process.wait()

        again = await start_controller(gymbox, Path(controller.arguments[controller.arguments.index("--state") + 1]))
        found = await (await session.get(f"{again}/v1/runs/mine")).json()
        assert found["status"] == "interrupted" and 2 <= found["done"] < 10
        # what the killed one had under way holds no place: there are two in all
        assert [each["places"] for each in await (await session.get(f"{again}/queue")).json()] == []
        await session.post(f"{again}/v1/runs/mine/resume")
        async with asyncio.timeout(120):
            while (view := await (await session.get(f"{again}/v1/runs/mine")).json())["live"]:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    assert (view["status"], view["done"], view["reward"]) == ("finished", 10, 1.0)
    ids = [line["rollout_id"] for line in gymbox.lines("served/mine")]
    assert len(ids) == len(set(ids)) == 10


def test_the_commands_beside_run_have_help_and_settings_go_to_run_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in (
        (["run", "--help"], "Runs that are there: gymbox run status"),
        (["run", "status", "--help"], "gymbox run status [OPTIONS]"),
        (["run", "cancel", "--help"], "--now"),
    ):
        with pytest.raises(SystemExit) as left:
            main(arguments)
        assert left.value.code == 0 and said in capsys.readouterr().out
