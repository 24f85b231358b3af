"""Runs that a controller does for callers of its REST API."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from gymbox.client import ControllerClient
from gymbox.embedded import EmbeddedController
from gymbox.environment import Catalog
from gymbox.errors import AtCapacity, ConfigError, Conflict, Invalid, NotFound, Unavailable
from gymbox.http import HttpClient
from gymbox.local_controller import LEASE
from gymbox.runs.register import Register
from gymbox_sandbox.lifecycle import CreateSandbox

ROOT = Path(__file__).parents[3]
QUICK = ["environment=counter", "model=scripted", "runner.limit=3"]
SLOW = ["environment=counter", "model=scripted", "model.latency=0.3", "runner.concurrency=2"]


async def test_a_run_is_started_followed_and_read_over_http(server: Any, http: HttpClient) -> None:
    made = await server.client.create(QUICK, id="first")
    assert (made.id, made.live) == ("first", True)
    assert (await server.client.create(QUICK, id="first")).id == "first"
    with pytest.raises(Conflict, match="was asked for with other settings"):
        await server.client.create([*QUICK, "runner.repeats=2"], id="first")

    seen = [(name, data) async for name, data in server.client.events("first")]
    assert sorted(data["task_index"] for name, data in seen if name == "rollout") == [0, 1, 2]
    assert [data["reward"] for name, data in seen if name == "rollout"] == [1.0] * 3
    assert seen[-1][0] == "end" and seen[-1][1]["status"] == "finished"
    view = await server.until("first", lambda view: not view.live)
    assert (view.planned, view.done, view.reward, view.errors) == (3, 3, 1.0, {})
    assert [view.id for view in await server.client.all()] == ["first"]

    folder = Path(view.folder)
    assert folder.parent == server.runs.folder
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["run"] == "first" and manifest["provider"].startswith("process")
    lines = (folder / "rollouts.jsonl").read_text().splitlines()
    assert all(json.loads(line)["rollout_id"].startswith("first-counter-") for line in lines)
    assert "pass@1" in json.loads((folder / "metrics.json").read_text())["total"]


async def test_each_run_logs_its_own_lines_and_none_of_another(server: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ids = ("one", "two")
    await asyncio.gather(*(server.client.create([*SLOW, "runner.limit=4"], id=id) for id in ids))
    views = [await server.until(id, lambda view: not view.live) for id in ids]

    for view in views:
        logged = [json.loads(line) for line in (Path(view.folder) / "run.log").read_text().splitlines()]
        messages = [each["message"] for each in logged]
        assert {each["run"] for each in logged} == {view.id}
        assert sum(message.startswith(f"rollout {view.id}-counter-") for message in messages) == 4
        assert sum(message.startswith("container ") and message.endswith(" is ready") for message in messages) == 4
        assert not [message for message in messages for other in ids if other != view.id and f"{other}-" in message]


async def test_results_are_read_page_by_page(server: Any, http: HttpClient) -> None:
    await server.client.create(QUICK, id="r")
    await server.until("r", lambda view: not view.live)
    url, read, cursor = f"{server.url}/v1/runs/r/results", [], ""
    for _ in range(3):
        answer = await http.request("GET", url, params={"after": cursor, "limit": "2"}, headers=server.headers)
        assert answer.headers["Content-Type"] == "application/x-ndjson"
        read.append([json.loads(line)["_ng_task_index"] for line in answer.body.splitlines()])
        cursor = answer.headers["Gymbox-Cursor"]

    assert [len(page) for page in read] == [2, 1, 0] and {*read[0], *read[1]} == {0, 1, 2}
    stale = await http.request("GET", url, params={"after": "0-9-00000000"}, headers=server.headers)
    assert stale.status == 409


async def test_a_stream_that_broke_goes_on_after_the_last_event(server: Any, http: HttpClient) -> None:
    await server.client.create([*SLOW, "runner.limit=8"], id="r")
    url, seen, last, connections = f"{server.url}/v1/runs/r/events", [], "", 0
    async with asyncio.timeout(120):
        while True:
            connections += 1
            headers = {**server.headers, **({"Last-Event-ID": last} if last else {})}
            async with http.stream("GET", url, idle=30, headers=headers) as answer:
                if answer.status == 204:
                    break
                assert answer.headers["Content-Type"].startswith("text/event-stream")
                async for row in answer.content:
                    name, _, value = row.decode().strip().partition(": ")
                    if name == "id":
                        last = value
                        if not last.endswith("!"):
                            seen.append(value)
                            break  # the connection is cut after each event

    assert len(seen) == len(set(seen)) == 8 and connections >= 9


async def test_a_run_is_paused_resumed_cancelled_and_gone_on_with(server: Any) -> None:
    await server.client.create([*SLOW, "runner.limit=20"], id="r")
    await server.until("r", lambda view: view.done >= 1)
    assert (await server.client.pause("r")).status == "paused"
    paused = await server.until("r", lambda view: view.running == 0)
    await asyncio.sleep(1)
    assert (await server.client.get("r")).done == paused.done < 20

    assert (await server.client.resume("r")).status == "running"
    await server.until("r", lambda view: view.done > paused.done)
    with pytest.raises(Conflict, match="is live; cancel it first"):
        await server.runs.delete("r")
    assert (await server.client.cancel("r")).status == "stopping"
    stopped = await server.until("r", lambda view: not view.live)
    assert stopped.status == "interrupted" and stopped.done < 20
    with pytest.raises(Conflict, match="is not live; resume goes on"):
        await server.client.pause("r")
    assert (await server.client.cancel("r")).status == "interrupted"

    assert (await server.client.resume("r")).live
    ended = await server.until("r", lambda view: not view.live)
    assert (ended.status, ended.done, ended.reward, ended.starts) == ("finished", 20, 1.0, 2)
    with pytest.raises(Conflict, match="has finished"):
        await server.client.resume("r")


async def test_cancel_now_drops_what_is_under_way(server: Any) -> None:
    await server.client.create([*SLOW, "model.latency=20", "runner.limit=4"], id="r")
    await server.until("r", lambda view: view.running == 2)

    await server.client.cancel("r", now=True)
    assert (await server.until("r", lambda view: not view.live)).done == 0


async def test_failed_rollouts_are_done_again_where_that_is_asked_for(server: Any, http: HttpClient) -> None:
    await server.client.create([*QUICK, "model.fail_with={0: refused_request}", "runner.give_up_after=0"], id="r")
    ended = await server.until("r", lambda view: not view.live)
    assert (ended.status, ended.scored, ended.errors) == ("finished", 0, {"model_refused_request": 3})

    url = f"{server.url}/v1/runs/r/resume"
    answer = await http.request("POST", url, json={"retry_failed": True}, headers=server.headers)
    assert answer.json()["live"]
    ended = await server.until("r", lambda view: not view.live)
    assert (ended.starts, ended.done) == (2, 3)
    assert len((Path(ended.folder) / "failures.jsonl").read_bytes().splitlines()) == 3


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["environment=countr", "model=scripted"], "no environment 'countr'"),
        (["environment=./environments/counter", "model=scripted"], "no environment"),
        (["environment=counter", "model=scriptd"], "did you mean 'scripted'"),
        (["environment=counter", "runner.limt=1"], "did you mean 'limit'"),
        ([*QUICK, "provider=docker"], "cannot be set"),
        ([*QUICK, "runner.output=/tmp/x"], "set by the server"),
        ([*QUICK, "runner.weights={weather: 2}"], "no environment 'weather'"),
        (["environment=counter"] * 201, "at most 200"),
    ],
)
async def test_everything_is_checked_before_anything_begins(server: Any, overrides: list[str], said: str) -> None:
    with pytest.raises(Invalid, match=said):
        await server.client.create(overrides, id="r")
    assert list(server.runs.folder.iterdir()) == []


async def test_an_id_that_leaves_no_room_for_those_of_its_sandboxes_is_refused(
    server: Any, catalog: Catalog, tmp_path: Path
) -> None:
    long = tmp_path / "environments" / ("long-" + "x" * 55)
    shutil.copytree(ROOT / "environments" / "counter", long)
    catalog.folders.append(long.parent)
    with pytest.raises(Invalid, match="is too long"):
        await server.client.create([f"environment={long.name}", "model=scripted"], id="a" * 40)


async def test_no_more_runs_are_live_than_may_be(serve: Any) -> None:
    async with serve(most=1) as server:
        await server.client.create([*SLOW, "model.latency=20"], id="r")
        with pytest.raises(AtCapacity, match="1 runs are live") as refused:
            await server.runs.create("s", QUICK)
        assert refused.value.retry_after
        with pytest.raises(NotFound, match="there is no run 's'"):
            await server.client.get("s")
        await server.client.cancel("r", now=True)


async def test_what_fails_before_the_first_rollout_is_told_and_can_be_mended(server: Any, tmp_path: Path) -> None:
    cassette = server.runs.folder / "earlier"
    await server.client.create(["environment=counter", "model=replay", f"model.cassette={cassette}"], id="r")
    failed = await server.until("r", lambda view: not view.live)
    assert failed.status == "failed" and "earlier" in failed.detail

    (tmp_path / "runs" / "s").mkdir()
    with pytest.raises(Conflict, match="there is a folder s"):
        await server.client.create(QUICK, id="s")


async def test_secrets_are_neither_kept_nor_told(serve: Any, http: HttpClient) -> None:
    secret = "a-key-that-nobody-may-see"
    overrides = ["environment=counter", "model=chat", "model.name=m", "model.base_url=http://127.0.0.1:9/v1"]
    overrides += [f"model.api_key={secret}", "runner.limit=1", "model.deadline=1"]
    overrides += ["runner.ready_timeout=0"]  # nothing answers there, nor will
    async with serve() as server:
        await server.client.create(overrides, id="r")
        await server.until("r", lambda view: not view.live)
        seen = [data async for _, data in server.client.events("r")]
        assert secret not in json.dumps(seen)
    kept = [path for path in server.runs.folder.rglob("*") if path.is_file()]
    assert len(kept) >= 3 and not [path for path in kept if secret.encode() in path.read_bytes()]

    async with serve() as server:  # the next controller knows the run, not its key
        assert (await server.client.get("r")).status == "finished"
        url = f"{server.url}/v1/runs/r/resume"
        for body, said in (
            ({"retry_failed": True}, "model.api_key was given as a secret and is not kept"),
            (
                {"retry_failed": True, "overrides": ["model.name=other"]},
                "model.name is no secret of this run",
            ),
        ):
            answer = await http.request("POST", url, json=body, headers=server.headers)
            assert answer.status == 422 and said in answer.json()["detail"]
        again = {"retry_failed": True, "overrides": [f"model.api_key={secret}"]}
        assert (await http.request("POST", url, json=again, headers=server.headers)).json()["live"]
        await server.until("r", lambda view: not view.live)


async def test_a_run_that_used_up_its_budget_goes_on_with_a_larger_one(serve: Any, http: HttpClient) -> None:
    asked = ["environment=counter", "model=scripted", "model.usage={input: 90, output: 10}", "runner.concurrency=1"]
    asked += ["runner.limit=4", "runner.budget.tokens=300"]
    async with serve() as server:
        await server.client.create(asked, id="r")
        stopped = await server.until("r", lambda view: not view.live)
        assert stopped.status == "stopped" and stopped.done < 4 and "runner.budget.tokens" in stopped.detail
        with pytest.raises(Invalid, match="the run's budget is used up"):
            await server.client.resume("r")
        with pytest.raises(Invalid, match=r"runner\.limit is no secret of this run, nor its budget"):
            await server.client.resume("r", ["runner.limit=9"])
        await server.client.resume("r", [f"runner.budget.tokens={stopped.done * 100 + 700}"])
        again = await server.until("r", lambda view: not view.live)
        assert again.done > stopped.done
    async with serve() as server:  # the next controller knows of it, and the request is the same as ever
        assert (await server.client.create(asked, id="r")).done == again.done
        await server.client.resume("r", ["runner.budget.tokens=100_000"])
        assert (await server.until("r", lambda view: not view.live)).status == "finished"


async def test_a_run_outlives_its_controller_and_goes_on_with_the_next(serve: Any, state_folder: Path) -> None:
    async with serve() as server:
        await server.client.create([*SLOW, "runner.limit=12"], id="r")
        await server.until("r", lambda view: view.done >= 2)
        assert [entry.id for entry in Register(state_folder).live()] == ["r"]
    assert Register(state_folder).live() == []

    async with serve() as server:
        view = await server.client.get("r")
        assert view.status == "interrupted" and 2 <= view.done < 12
        await server.client.resume("r")
        ended = await server.until("r", lambda view: not view.live)
        assert (ended.status, ended.done, ended.starts) == ("finished", 12, 2)
        await server.runs.delete("r")
        assert list(server.runs.folder.iterdir()) == []
        with pytest.raises(NotFound):
            await server.client.get("r")


async def test_while_it_drains_a_controller_stops_its_runs_softly_and_takes_no_new_ones(server: Any) -> None:
    await server.client.create([*SLOW, "runner.limit=20"], id="r")
    await server.until("r", lambda view: view.done >= 1)

    await server.runs.drain(30)
    view = await server.client.get("r")
    assert view.status == "interrupted" and view.errors == {} and view.done < 20
    with pytest.raises(Unavailable, match="shutting down"):
        await server.runs.create("s", QUICK)


async def test_a_record_that_is_none_is_left_alone(serve: Any, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "torn.json").write_text('{"id": "torn"')
    async with serve() as server:
        assert await server.client.all() == []
    assert (folder / "torn.json").exists()


async def test_a_judge_is_brought_by_the_caller_where_the_proxy_has_none(server: Any) -> None:
    judged = ["environment=short_answers", "model=scripted", "runner.limit=2"]
    await server.client.create(judged, id="without")
    failed = await server.until("without", lambda view: not view.live)
    assert failed.status == "failed" and "need a judge" in failed.detail and "set judge=" in failed.detail

    await server.client.create([*judged, "judge=scripted"], id="with")
    ended = await server.until("with", lambda view: not view.live)
    assert (ended.status, ended.reward) == ("finished", 1.0)


async def test_what_a_killed_controller_left_of_its_runs_is_removed_and_other_sandboxes_are_not(
    serve: Any, client: ControllerClient, controller: EmbeddedController
) -> None:
    async with serve() as server:
        await server.client.create(QUICK, id="r")
        await server.until("r", lambda view: not view.live)
    await client.create(CreateSandbox(id="left", environment="counter", run="r", lease=LEASE))
    await client.create(CreateSandbox(id="mine", environment="counter", run="other", lease=LEASE))

    async with serve():
        assert [view.id for view in await client.sandboxes(status="ready")] == ["mine"]


async def test_a_run_can_be_steered_before_its_first_rollout(server: Any) -> None:
    await server.runs.create("r", QUICK)
    assert (await server.runs.pause("r")).status == "starting"
    assert (await server.runs.resume("r")).status == "starting"
    await server.runs.cancel("r", now=False)

    stopped = await server.until("r", lambda view: not view.live)
    assert (stopped.status, stopped.done) == ("interrupted", 0)
    await server.client.resume("r")
    assert (await server.until("r", lambda view: not view.live)).status == "finished"


async def test_a_run_that_is_stopping_is_resumed_when_it_has_stopped(server: Any) -> None:
    await server.client.create([*SLOW, "model.latency=2"], id="r")
    await server.until("r", lambda view: view.running == 2)
    await server.client.cancel("r")
    with pytest.raises(Conflict, match="is stopping; resume it when it has stopped"):
        await server.client.resume("r")


async def test_a_folder_that_cannot_be_made_ends_the_start(serve: Any, tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    with pytest.raises(ConfigError, match="cannot keep runs in .*; set --runs DIR"):
        async with serve():
            pass


async def test_a_run_that_is_cancelled_before_its_first_rollout_is_stopping_and_not_resumed_until_it_has_stopped(
    server: Any,
) -> None:
    await server.runs.create("r", QUICK)
    for _ in range(3):  # a second cancel must not end what cleans up after the first
        assert (await server.runs.cancel("r", now=True)).status == "stopping"
    with pytest.raises(Conflict, match="is stopping; resume it when it has stopped"):
        await server.runs.resume("r")
    stopped = await server.until("r", lambda view: not view.live)
    assert (stopped.status, stopped.detail) == ("interrupted", "")


async def test_a_controller_that_drains_begins_no_run_whose_settings_it_was_checking(server: Any) -> None:
    creating = asyncio.create_task(server.runs.create("late", QUICK))
    await asyncio.sleep(0)
    await server.runs.drain(0)
    with pytest.raises(Unavailable, match="shutting down"):
        await creating
    assert await server.runs.all() == []


async def test_a_run_whose_folder_is_removed_while_it_goes_on_fails_and_says_so(server: Any) -> None:
    await server.client.create(SLOW, id="r")
    view = await server.until("r", lambda view: view.done > 0)
    shutil.rmtree(view.folder)
    ended = await server.until("r", lambda view: not view.live)
    assert (
        ended.status == "failed" and "moved or removed while the run wrote to it. 0 results are safe" in ended.detail
    )
    await server.runs.delete("r")
    assert await server.runs.all() == []


async def test_settings_with_brackets_too_deep_are_refused(server: Any) -> None:
    with pytest.raises(Invalid, match="brackets in brackets too deep"):
        await server.client.create([*QUICK, "runner.params=" + "[" * 3000 + "]" * 3000])
