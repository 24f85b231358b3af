from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from gymbox.dataset import Row
from gymbox.environment import Environment
from gymbox.errors import NotFound, Stage
from gymbox.plan import Slot
from gymbox.rollout import RolloutResult
from gymbox.run_control import RunControl
from gymbox.run_manifest import manifest_in
from gymbox.runs import events as events_module
from gymbox.runs.events import events
from gymbox.runs.live import LiveRun, LiveRuns
from gymbox.runs.view import scores_in, view_of_folder
from gymbox.scores import Score

from .conftest import Open, line


@pytest.fixture
def slot(tmp_path: Path) -> Slot:
    folder = tmp_path / "counter"
    (folder / "data").mkdir(parents=True)
    (folder / "environment.yaml").write_text("description: x")
    (folder / "data" / "example.jsonl").write_text('{"responses_create_params": {"input": "x"}}\n')
    return Slot(Environment.load(folder), Row(0, "t0", {}), 0)


@pytest.fixture
def live(opened: Open) -> LiveRun:
    return LiveRun(opened(run="r"), RunControl(), concurrency=1)


async def done(live: LiveRun, slot: Slot, number: int, reward: float | None = 1.0) -> None:
    """One rollout from its start to its end, as the runner tells of it."""
    live.started(slot)
    for stage in Stage:
        live.entered(slot, stage)
    await live.folder.add(line(number, reward))
    live.ended(slot, RolloutResult(rollout_id="r", task_id="t", environment="counter", reward=reward))


# --- the view


async def test_what_is_under_way_and_what_is_done_is_told(live: LiveRun, slot: Slot) -> None:
    await done(live, slot, 0)
    await done(live, slot, 1, None)
    live.started(slot)
    live.entered(slot, Stage.AGENT)

    view = await live.view()
    assert (view.id, view.status, view.live, view.priority, view.share) == ("r", "running", True, "high", 2.0)
    assert (view.planned, view.done, view.scored, view.reward, view.running) == (4, 2, 1, 1.0, 1)
    assert view.errors == {"agent_failed": 1} and view.examples == {"agent_failed": "t1: boom"}
    assert view.stages == {Stage.AGENT: 1}
    assert view.environments["counter"].reward == 1.0
    assert view.rate and view.eta == pytest.approx(2 / view.rate)
    assert (view.input_tokens, view.output_tokens) == (20, 4)


async def test_a_rollout_that_was_dropped_is_not_done(live: LiveRun, slot: Slot) -> None:
    live.started(slot)
    live.entered(slot, Stage.AGENT)
    live.ended(slot, None)

    view = await live.view()
    assert (view.running, view.stages, view.done, view.rate, view.eta) == (0, {}, 0, None, None)


async def test_a_pause_is_no_part_of_the_pace(opened: Open, slot: Slot) -> None:
    now = 0.0
    control = RunControl(lambda: now)
    live = LiveRun(opened(run="r"), control, concurrency=1)
    now = 5.0
    await done(live, slot, 0)
    await live.pause()
    now = 605.0
    await live.pause()  # asking again changes nothing
    assert ((view := await live.view()).rate, view.eta) == (pytest.approx(0.2), None)
    await live.resume()
    await live.resume()
    now = 610.0
    await done(live, slot, 1)
    assert ((view := await live.view()).rate, view.eta) == (pytest.approx(0.2), pytest.approx(10))
    await live.pause()
    now = 900.0
    await live.cancel(now=False)
    assert control.time() == pytest.approx(10)


async def test_pause_resume_and_cancel_reach_the_run_and_are_told(live: LiveRun) -> None:
    runs = LiveRuns()
    runs.add(live)

    assert (await runs.pause("r")).status == "paused" and live.control.paused
    assert (await runs.resume("r")).status == "running"
    assert (await runs.cancel("r", now=False)).status == "stopping"
    assert live.control.stopped.is_set() and not live.control.dropped.is_set()
    await runs.cancel("r", now=True)
    assert live.control.dropped.is_set()
    await live.folder.close("interrupted")
    live.end("enough")
    [view] = await runs.all()
    assert (view.status, view.live, view.detail, view.over) == ("interrupted", False, "enough", True)
    with pytest.raises(NotFound, match="there is no run 's' in this process"):
        runs.get("s")


async def test_a_folder_tells_the_same_when_the_run_has_ended(live: LiveRun, slot: Slot) -> None:
    await done(live, slot, 0, 0.5)
    await done(live, slot, 1, None)
    before = await live.view()
    await live.folder.close("interrupted")

    manifest = manifest_in(live.folder.path)
    assert manifest is not None
    after = view_of_folder(live.folder.path, manifest)
    names = ("id", "planned", "done", "scored", "reward", "errors", "examples", "environments", "input_tokens")
    assert {name: getattr(after, name) for name in names} == {name: getattr(before, name) for name in names}
    assert (after.status, after.live, after.ended_at is not None) == ("interrupted", False, True)


async def test_the_folder_of_a_killed_run_is_counted_line_by_line(live: LiveRun, slot: Slot) -> None:
    await done(live, slot, 0)
    path = live.folder.path
    with (path / "rollouts.jsonl").open("ab") as file:
        file.write(b'{"damaged": true}\n{"torn": ')
    (path / "metrics.json").write_text("{}")

    manifest = manifest_in(path)
    assert manifest is not None
    view = view_of_folder(path, manifest)
    assert (view.status, view.done, view.reward) == ("interrupted", 1, 1.0)
    assert scores_in(path / "missing") == (Score(), {})
    # metrics that are not of this end do not count either
    manifest.status, manifest.ended_at = "finished", manifest.started_at
    assert view_of_folder(path, manifest).done == 1


# --- events


def told(part: bytes) -> tuple[str, str, Any]:
    fields = dict(row.split(": ", 1) for row in part.decode().strip().splitlines())
    return fields.get("id", ""), fields.get("event", ""), json.loads(fields["data"]) if "data" in fields else None


async def until_end(stream: AsyncIterator[bytes]) -> list[tuple[str, str, Any]]:
    async with asyncio.timeout(20):
        return [told(part) async for part in stream if not part.startswith(b":")]


def rollouts(found: list[tuple[str, str, Any]]) -> list[str]:
    return [data["task_id"] for _, name, data in found if name == "rollout"]


async def test_every_rollout_is_an_event_and_the_end_is_the_last(live: LiveRun, slot: Slot) -> None:
    following = asyncio.create_task(until_end(events(live)))
    await done(live, slot, 0)
    await asyncio.sleep(0.01)
    await done(live, slot, 1, None)
    await live.folder.close("interrupted")
    live.end()

    found = await following
    assert rollouts(found) == ["t0", "t1"]
    assert found[0][1] == "progress" and found[-1][1] == "end"
    assert found[-1][2]["status"] == "interrupted" and found[-1][2]["done"] == 2
    [error] = [data["error"] for _, name, data in found if name == "rollout" and data["error"]]
    assert error["kind"] == "agent_failed"


async def test_who_comes_again_gets_what_follows_the_last_event_and_nothing_twice(live: LiveRun, slot: Slot) -> None:
    for number in range(3):
        await done(live, slot, number)
    await live.folder.close("finished")
    live.end()
    whole = await until_end(events(live))
    ids = [id for id, name, _ in whole if name == "rollout"]

    assert rollouts(await until_end(events(live, ids[0]))) == ["t1", "t2"]
    assert rollouts(await until_end(events(live, ids[2]))) == []
    assert rollouts(await until_end(events(live, whole[-1][0]))) == []


async def test_after_a_rewrite_of_the_log_all_is_told_anew(live: LiveRun, slot: Slot) -> None:
    await done(live, slot, 0)
    await live.folder.close("finished")
    live.end()

    found = await until_end(events(live, "0-5-00000000"))
    assert found[0][1] == "reset" and rollouts(found) == ["t0"]


async def test_progress_comes_while_something_changes_and_a_heartbeat_while_nothing_does(
    live: LiveRun, slot: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_module, "PROGRESS", 0.02)
    monkeypatch.setattr(events_module, "HEARTBEAT", 0.1)
    stream = events(live)
    assert told(await anext(stream))[1] == "progress"
    assert await anext(stream) == b": heartbeat\n\n"
    await live.pause()
    async with asyncio.timeout(10):
        while not (part := await anext(stream)).startswith(b"event: progress"):
            pass
    assert told(part)[2]["status"] == "paused"
    await stream.aclose()  # type: ignore[attr-defined]


async def test_a_line_that_is_not_on_disk_to_stay_is_not_told(live: LiveRun, slot: Slot) -> None:
    await done(live, slot, 0)
    with (live.folder.path / "rollouts.jsonl").open("ab") as file:
        file.write(json.dumps(line(1)).encode() + b"\n")

    live.over = True
    assert rollouts(await until_end(events(live))) == ["t0"]
