from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gymbox.environment import Environment
from gymbox.errors import ConfigError, ErrorKind, Stage
from gymbox.http import HttpClient
from gymbox.plan import Plan, Slot
from gymbox.players import Player
from gymbox.results import RunFolder, WriteFailed
from gymbox.rollout import RolloutResult
from gymbox.run_control import RunControl
from gymbox.runner import Summary, run
from gymbox.runner_settings import RunnerSettings

from .conftest import CountingAgent, FailingAgent, MemoryController, SilentModel, row

Make = Callable[..., Environment]


class Bench:
    """Starts runs in one folder, with one controller."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.controller = MemoryController()
        self.agent = CountingAgent()
        self.seen: list[tuple[str, int, RolloutResult | None]] = []
        self.stages: list[Stage] = []

    def started(self, slot: Slot) -> None:
        self.seen.append(("started", slot.row.index, None))

    def entered(self, slot: Slot, stage: Stage) -> None:
        self.stages.append(stage)

    def ended(self, slot: Slot, result: RolloutResult | None) -> None:
        self.seen.append(("ended", slot.row.index, result))

    async def run(
        self,
        *environments: Environment,
        control: RunControl | None = None,
        players: dict[str, Player] | None = None,
        **settings: Any,
    ) -> Summary:
        chosen = RunnerSettings(**settings)
        async with HttpClient() as http:
            with Plan(environments, chosen, agents=players or {}) as plan:
                folder = RunFolder.open(
                    self.output,
                    inputs=plan.inputs() | ({"agents": {name: {} for name in players}} if players else {}),
                    settings={},
                    planned=len(plan),
                    resume=chosen.resume,
                    retry_failed=chosen.retry_failed,
                )
                return await run(
                    plan,
                    {None: Player(self.agent, SilentModel()), **(players or {})},
                    self.controller,
                    http,
                    folder,
                    watcher=self,
                    control=control,
                    retry_pause=0.001,
                )

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.output / "rollouts.jsonl").read_bytes().split(b"\n")[:-1]]

    def read(self, name: str) -> Any:
        return json.loads((self.output / name).read_text())


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "run")


async def test_every_task_gets_its_line_with_its_reward(bench: Bench, environment: Make) -> None:
    summary = await bench.run(environment(row(id="a"), row(id="b", initial_count=5)))

    assert summary.complete and summary.status == "finished"
    assert {(line["task_id"], line["reward"], line["error"]) for line in bench.lines()} == {
        ("a", 1.0, None),
        ("b", 0.0, None),
    }
    assert summary.total.mean_reward == 0.5


async def test_a_line_has_the_row_and_nemo_gyms_keys(bench: Bench, environment: Make) -> None:
    await bench.run(environment(row(id="a", agent_ref={"name": "mine"}), row(note="kept", reward="overwritten")))

    first, second = sorted(bench.lines(), key=lambda line: line["_ng_task_index"])
    assert first["agent_ref"] == {"name": "mine"}
    assert second["agent_ref"] == {"type": "responses_api_agents", "name": "CountingAgent"}
    assert (second["_ng_task_index"], second["_ng_rollout_index"], second["note"], second["reward"]) == (
        1,
        0,
        "kept",
        1.0,
    )
    assert second["responses_create_params"] == {"input": "add 1"}
    assert second["verifier_metadata"] == {"expected_count": 2}
    assert second["response"]["output"][0]["content"] == "done\u2028\U0001f600"
    assert second["usage"] == {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
    assert second["attempts"] == 1 and second["failed_attempts"] == []


async def test_a_line_survives_readers_that_split_on_unicode_line_ends(bench: Bench, environment: Make) -> None:
    await bench.run(environment(row()))

    assert len((bench.output / "rollouts.jsonl").read_text().splitlines()) == 1


async def test_repeats_are_rollouts_of_their_own(bench: Bench, environment: Make) -> None:
    summary = await bench.run(environment(row(id="a"), row(id="b")), repeats=3)

    assert summary.done == 6
    assert sorted((line["task_id"], line["_ng_rollout_index"]) for line in bench.lines()) == [
        (task, repeat) for task in "ab" for repeat in range(3)
    ]
    assert len({line["rollout_id"] for line in bench.lines()}) == 6


async def test_the_limit_is_for_each_environment_and_environments_take_turns(bench: Bench, environment: Make) -> None:
    first, second = environment(*[row()] * 5, name="first"), environment(*[row()] * 5, name="second")

    summary = await bench.run(first, second, limit=2, concurrency=1)

    assert [line["environment"] for line in bench.lines()] == ["first", "second", "first", "second"]
    assert {name: score.rollouts for name, score in summary.environments.items()} == {"first": 2, "second": 2}


async def test_never_more_than_concurrency_at_once(bench: Bench, environment: Make) -> None:
    await bench.run(environment(*[row()] * 20), concurrency=3)

    assert bench.controller.most == 3
    assert not bench.controller.live


async def test_shuffled_is_fixed_by_the_seed_and_complete(environment: Make) -> None:
    counter = environment(*[row(id=str(index)) for index in range(20)])

    def order(seed: int, limit: int | None = None) -> list[str]:
        with Plan([counter], RunnerSettings(order="shuffled", seed=seed, limit=limit)) as plan:
            return [slot.row.id for slot in plan]

    assert order(1) == order(1) != order(2)
    assert sorted(order(1), key=int) == [str(index) for index in range(20)]
    assert len(set(order(1, limit=4))) == 4


async def test_a_failed_rollout_has_no_reward_and_ends_no_other(bench: Bench, environment: Make) -> None:
    summary = await bench.run(environment(row(crash="boom"), row(), row()), concurrency=1)

    failed, *others = bench.lines()
    assert failed["reward"] is None
    assert failed["error"]["stage"] == "agent" and failed["error"]["kind"] == "agent_failed"
    assert [line["reward"] for line in others] == [1.0, 1.0]
    assert summary.total.errors == {"agent_failed": 1} and summary.total.mean_reward == 1.0
    assert summary.status == "finished" and not summary.complete


async def test_a_retryable_failure_is_tried_again_and_recorded(bench: Bench, environment: Make) -> None:
    bench.controller.refusals = 2

    await bench.run(environment(row()), attempts=3)

    [line] = bench.lines()
    assert line["reward"] == 1.0 and line["attempts"] == 3
    assert [attempt["error"]["kind"] for attempt in line["failed_attempts"]] == ["at_capacity"] * 2
    assert bench.controller.made == [line["rollout_id"], f"{line['rollout_id']}.1.2", f"{line['rollout_id']}.1.3"]


async def test_attempts_are_bounded_and_others_errors_are_not_tried_again(bench: Bench, environment: Make) -> None:
    bench.controller.refusals = 2

    await bench.run(environment(row(), row(crash="boom")), attempts=2, concurrency=1)

    refused, crashed = bench.lines()
    assert refused["error"]["kind"] == "at_capacity" and refused["attempts"] == 2
    assert crashed["error"]["kind"] == "agent_failed" and crashed["attempts"] == 1


async def test_the_watcher_hears_of_each_start_and_end(bench: Bench, environment: Make) -> None:
    await bench.run(environment(row()))

    (first, _, nothing), (second, _, result) = bench.seen
    assert (first, second, nothing) == ("started", "ended", None)
    assert result is not None and result.reward == 1.0
    assert bench.stages == list(Stage)


async def test_manifest_and_metrics_say_what_went_in_and_what_came_out(bench: Bench, environment: Make) -> None:
    counter = environment(row(), row(crash="boom"))
    await bench.run(counter)

    manifest, metrics = bench.read("manifest.json"), bench.read("metrics.json")
    assert manifest["inputs"]["environments"]["counter"]["digest"] == counter.digest
    assert manifest["inputs"]["environments"]["counter"]["rows"] == 2
    assert (manifest["status"], manifest["planned"], manifest["done"], manifest["scored"]) == ("finished", 2, 2, 1)
    assert manifest["started_at"] < manifest["ended_at"]
    assert metrics["total"]["mean/reward"] == 1.0 and metrics["total"]["errors"] == {"agent_failed": 1}
    assert metrics["environments"]["counter"]["output_tokens"] == 2


async def test_stop_lets_running_rollouts_end_and_starts_no_more(bench: Bench, environment: Make) -> None:
    reached, gate, control = asyncio.Event(), asyncio.Event(), RunControl()
    bench.agent = CountingAgent(gates={"here": (reached, gate)})
    going = asyncio.create_task(bench.run(environment(row(gate="here"), row(), row()), concurrency=1, control=control))
    await reached.wait()

    control.stop()
    gate.set()
    summary = await going

    assert summary.status == "interrupted" and summary.done == 1
    assert len(bench.lines()) == 1 and bench.read("manifest.json")["status"] == "interrupted"


async def test_a_paused_run_starts_nothing_until_it_is_resumed(bench: Bench, environment: Make) -> None:
    reached, gate, control = asyncio.Event(), asyncio.Event(), RunControl()
    bench.agent = CountingAgent(gates={"here": (reached, gate)})
    going = asyncio.create_task(bench.run(environment(row(gate="here"), row()), concurrency=1, control=control))
    await reached.wait()

    control.pause()
    gate.set()
    done, _ = await asyncio.wait({going}, timeout=0.2)
    assert not done and control.paused
    assert [event for event, *_ in bench.seen] == ["started", "ended"]  # the one under way went on to its end
    control.resume()
    summary = await going

    assert summary.complete and not control.paused


async def test_a_paused_run_can_be_stopped(bench: Bench, environment: Make) -> None:
    control = RunControl()
    control.pause()
    going = asyncio.create_task(bench.run(environment(row()), control=control))

    control.stop()
    summary = await going

    assert (summary.status, summary.done) == ("interrupted", 0)


async def test_what_does_not_end_within_the_grace_is_dropped_without_a_line(bench: Bench, environment: Make) -> None:
    reached, control = asyncio.Event(), RunControl()
    bench.agent = CountingAgent(gates={"here": (reached, asyncio.Event())})
    going = asyncio.create_task(bench.run(environment(row(gate="here")), control=control, grace=0.01))
    await reached.wait()

    control.stop()
    summary = await going

    assert summary.done == 0 and bench.lines() == []
    assert not bench.controller.live
    assert bench.seen[-1] == ("ended", 0, None)


async def test_drop_ends_what_is_under_way_and_still_sums_up(bench: Bench, environment: Make) -> None:
    reached, told, control = asyncio.Event(), asyncio.Event(), RunControl()

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "again: drop them now" in record.getMessage():
                told.set()

    ear, logger = Ear(), logging.getLogger("gymbox.runner")
    logger.addHandler(ear)
    bench.agent = CountingAgent(gates={"stuck": (reached, asyncio.Event())})
    running = asyncio.create_task(
        bench.run(environment(row(id="a"), row(id="b", gate="stuck")), concurrency=1, grace=600, control=control)
    )
    await reached.wait()
    control.stop()
    async with asyncio.timeout(10):
        await told.wait()
        control.drop()
        summary = await running
    logger.removeHandler(ear)

    assert (summary.status, summary.done, summary.planned) == ("interrupted", 1, 2)
    assert bench.controller.live == set() and bench.read("manifest.json")["status"] == "interrupted"


@pytest.mark.parametrize("kind", [ErrorKind.MODEL_UNAUTHORIZED, ErrorKind.MODEL_UNAVAILABLE])
async def test_a_model_that_nobody_reaches_ends_the_run_early_and_it_can_go_on(
    bench: Bench, environment: Make, kind: ErrorKind
) -> None:
    rows = environment(*[row()] * 50)
    bench.agent = FailingAgent(kinds=[kind])

    summary = await bench.run(rows, give_up_after=5, concurrency=2)

    assert summary.status == "failed" == bench.read("manifest.json")["status"]
    assert 5 <= summary.done <= 6 and not summary.complete
    assert summary.gave_up == f"the first 5 rollouts all ended in {kind}: no model"

    bench.agent = CountingAgent()
    summary = await bench.run(rows, resume=True, retry_failed=True)
    assert summary.complete and len(bench.lines()) == 50 and summary.gave_up == ""


@pytest.mark.parametrize(
    ("kinds", "settings"),
    [
        ([ErrorKind.MODEL_UNAVAILABLE, ErrorKind.MODEL_UNAUTHORIZED], {"give_up_after": 3}),
        ([ErrorKind.MODEL_UNAVAILABLE], {"give_up_after": 0}),
        ([ErrorKind.MODEL_UNAVAILABLE], {"give_up_after": 12}),
        ([ErrorKind.OOM_KILLED], {"give_up_after": 3}),
        ([None, ErrorKind.MODEL_UNAVAILABLE], {"give_up_after": 3}),
    ],
)
async def test_a_run_is_not_given_up_for_other_failures(
    bench: Bench, environment: Make, kinds: list[ErrorKind], settings: dict[str, int]
) -> None:
    bench.agent = FailingAgent(kinds=kinds)

    summary = await bench.run(environment(*[row()] * 12), concurrency=1, **settings)

    assert (summary.status, summary.done, summary.gave_up) == ("finished", 12, "")


async def test_failed_rollouts_are_done_again_on_demand_and_their_lines_kept_elsewhere(
    bench: Bench, environment: Make
) -> None:
    rows = environment(row(id="a"), row(id="b"), row(id="c"))
    bench.agent = FailingAgent(kinds=[ErrorKind.OOM_KILLED, None])
    await bench.run(rows, concurrency=1)
    before = [line["rollout_id"] for line in bench.lines() if line["error"]]

    bench.agent = CountingAgent()
    again = await bench.run(rows, resume=True)
    assert again.total.errors == {"oom_killed": 2}
    again = await bench.run(rows, resume=True, retry_failed=True)

    assert again.complete and again.total.errors == {}
    assert sorted(line["task_id"] for line in bench.lines()) == ["a", "b", "c"]
    failures = [json.loads(line) for line in (bench.output / "failures.jsonl").read_text().splitlines()]
    assert [line["rollout_id"] for line in failures] == before and len(before) == 2
    assert not (bench.output / "rollouts.jsonl.new").exists()


async def test_cancelling_drops_everything_at_once_and_leaves_a_run_to_resume(bench: Bench, environment: Make) -> None:
    reached = asyncio.Event()
    bench.agent = CountingAgent(gates={"here": (reached, asyncio.Event())})
    counter = environment(row(), row(gate="here"), row())
    going = asyncio.create_task(bench.run(counter, concurrency=1))
    await reached.wait()

    going.cancel()
    with pytest.raises(asyncio.CancelledError):
        await going
    assert not bench.controller.live and bench.read("manifest.json")["status"] == "interrupted"

    open_gate = asyncio.Event()
    open_gate.set()
    bench.agent = CountingAgent(gates={"here": (reached, open_gate)})
    summary = await bench.run(counter, resume=True)
    assert summary.complete and sorted(line["_ng_task_index"] for line in bench.lines()) == [0, 1, 2]


async def test_resume_does_only_what_is_missing_under_the_same_ids(bench: Bench, environment: Make) -> None:
    counter = environment(row(), row(), row())
    await bench.run(counter, repeats=2)
    path = bench.output / "rollouts.jsonl"
    kept = path.read_bytes().split(b"\n")
    lost = json.loads(kept[3])["rollout_id"]
    path.write_bytes(b"\n".join(kept[:3] + kept[4:]))
    bench.controller.made.clear()

    summary = await bench.run(counter, repeats=2, resume=True)

    assert bench.controller.made == [f"{lost}.2.1"]
    assert summary.complete and summary.total.rollouts == 6
    assert path.read_bytes().split(b"\n")[:5] == kept[:3] + kept[4:6]
    assert json.loads(path.read_bytes().split(b"\n")[5])["rollout_id"] == lost


async def test_a_finished_run_resumes_to_nothing(bench: Bench, environment: Make) -> None:
    counter = environment(row())
    await bench.run(counter)
    before = bench.lines()

    assert (await bench.run(counter, resume=True)).complete
    assert bench.lines() == before


async def test_resume_refuses_changed_inputs_and_says_which(bench: Bench, environment: Make) -> None:
    await bench.run(environment(row(), row()))
    changed = environment(row(), row(initial_count=9))

    with pytest.raises(ConfigError) as caught:
        await bench.run(changed, resume=True, limit=1)

    text = str(caught.value)
    assert "runner.limit: was None, is 1" in text
    assert "environments.counter.dataset: was " in text and "digest" not in text


async def test_a_disk_that_fills_up_stops_the_run_and_loses_nothing_acknowledged(
    bench: Bench, environment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    write, room = os.pwrite, [12_000]

    def pwrite(file: int, data: bytes, offset: int) -> int:
        if not room[0]:
            raise OSError(28, "No space left on device")
        written = write(file, data[: room[0]], offset)
        room[0] -= written
        return written

    counter = environment(*[row() for _ in range(50)])
    with monkeypatch.context() as patch:
        patch.setattr("gymbox.results.os.pwrite", pwrite)
        with pytest.raises(WriteFailed, match=r"No space left on device. (\d+) results are safe"):
            await bench.run(counter, concurrency=4)

    acknowledged = [result for _, _, result in bench.seen if result is not None]
    assert 0 < len(bench.lines()) < 50
    assert {line["rollout_id"] for line in bench.lines()} >= {result.rollout_id for result in acknowledged}
    assert bench.read("manifest.json")["status"] == "failed" and not bench.controller.live
    assert (await bench.run(counter, resume=True)).complete


async def test_a_very_long_environment_name_still_makes_a_sandbox_name(bench: Bench, environment: Make) -> None:
    await bench.run(environment(row(), name="x" * 100))

    assert len(bench.controller.made[0]) < 90
