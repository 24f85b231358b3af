"""Runs that a Python program takes the results of, with real sandboxes."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import gymbox
import pytest
from gymbox import ConfigError, Environment, ErrorKind, ProcessProvider, Result, Run, ScriptedModel, SyncRun
from gymbox.models import Call
from gymbox.models.chat import ChatModel
from gymbox.models.scripted import Tokens
from gymbox.runs.places import Places
from gymbox_sandbox.responses import Response, ResponsesParams
from pydantic import PrivateAttr

from tests.integration.models.vllm_double import END, vllm_double

ENVIRONMENTS = Path(__file__).parents[3] / "environments"
PATIENCE = 90


class Api:
    """Starts runs of `counter` in processes, with a state folder of its own."""

    def __init__(self, state: Path, cache: Path, token: str) -> None:
        self.places = Places((ENVIRONMENTS,), state, cache, token)
        self.state = state

    def settings(self, settings: dict[str, Any]) -> dict[str, Any]:
        return {"model": ScriptedModel(), "provider": ProcessProvider(), "places": self.places, **settings}

    def run(self, environment: Any = "counter", **settings: Any) -> Run:
        return gymbox.run(environment, **self.settings(settings))

    def run_sync(self, environment: Any = "counter", **settings: Any) -> SyncRun:
        return gymbox.run_sync(environment, **self.settings(settings))

    def leftovers(self) -> list[Path]:
        """What runs have left behind: state of controllers, scratch folders."""
        return [*self.state.iterdir(), *Path(tempfile.gettempdir()).glob("gymbox-run-*")]


@pytest.fixture
def api(state_folder: Path, tmp_path: Path, token: str, monkeypatch: pytest.MonkeyPatch) -> Api:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return Api(state_folder, tmp_path / "cache", token)


def rows_of(number: int) -> list[dict[str, Any]]:
    with (ENVIRONMENTS / "counter" / "data" / "example.jsonl").open() as file:
        return [json.loads(next(file)) for _ in range(number)]


class Gate(ScriptedModel):
    """Answers the first `free` calls, and further ones once it is opened; says whether it was closed."""

    free: int = 0
    _open: asyncio.Event = PrivateAttr(default_factory=asyncio.Event)
    _calls: int = PrivateAttr(0)
    _closed: bool = PrivateAttr(False)

    async def close(self) -> None:
        self._closed = True

    async def responses(self, params: ResponsesParams, call: Call) -> Response:
        self._calls += 1
        if self._calls > self.free:
            await self._open.wait()
        return await super().responses(params, call)


async def until(true: Any) -> None:
    async with asyncio.timeout(PATIENCE):
        while not true():  # noqa: ASYNC110 - what it waits for is in other threads and processes
            await asyncio.sleep(0.01)


async def test_results_come_typed_with_their_task_and_nothing_is_left(api: Api) -> None:
    before = asyncio.all_tasks()
    async with api.run(limit=3, repeats=2) as run:
        results = [result async for result in run]

    assert all(isinstance(result, Result) and result.reward == 1.0 and result.trainable for result in results)
    assert {(each.task_index, each.repeat) for each in results} == {(task, r) for task in range(3) for r in range(2)}
    assert {each.group for each in results} == {f"{run.id}-counter-{task}" for task in range(3)}
    assert all(each.row["expected_count"] is not None and each.task_id == each.row["id"] for each in results)
    assert run.summary is not None and run.summary.complete and run.counts.taken == 6
    assert run.folder is None and api.leftovers() == []
    assert asyncio.all_tasks() == before


async def test_a_slow_taker_holds_the_run_back_and_loses_nothing(api: Api) -> None:
    model, taken = Gate(free=10**6), 0
    async with api.run(model=model, limit=12, ahead=3, concurrency=8, agent="single_turn") as run:
        async for _ in run:
            taken += 1
            await asyncio.sleep(0.05)
            assert model._calls <= taken + 3
    assert taken == model._calls == 12


async def test_a_group_comes_whole_and_in_order_with_its_failures(api: Api) -> None:
    first, second = rows_of(2)
    broken = {**second, "gold_replies": []}
    async with api.run(rows=[first, broken], repeats=3, concurrency=2) as run:
        groups = [group async for group in run.groups()]

    whole, failed = sorted(groups, key=lambda group: group[0].task_index)
    assert [each.repeat for each in whole] == [each.repeat for each in failed] == [0, 1, 2]
    assert [each.reward for each in whole] == [1.0] * 3
    assert [each.error and each.error.kind for each in failed] == [ErrorKind.MODEL_REFUSED_REQUEST] * 3
    assert not any(each.trainable for each in failed)


async def test_groups_with_too_few_rewards_are_counted_and_not_yielded(api: Api) -> None:
    first, second = rows_of(2)
    async with api.run(rows=[first, {**second, "gold_replies": []}], repeats=2) as run:
        groups = [group async for group in run.groups(min_scored=1)]
    assert [group[0].task_index for group in groups] == [0]
    assert (run.counts.taken, run.counts.too_few_scored, run.counts.incomplete) == (2, 1, 0)


async def test_rows_may_come_while_the_run_goes_on(api: Api) -> None:
    wanted: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    async def prompts() -> AsyncIterator[dict[str, Any]]:
        while row := await wanted.get():
            yield row

    first, second = rows_of(2)
    async with api.run(rows=prompts(), repeats=2) as run, aclosing(run.groups()) as groups:
        wanted.put_nowait(first)
        assert [each.task_id for each in await anext(groups)] == [first["id"]] * 2
        wanted.put_nowait(second)
        assert [each.task_id for each in await anext(groups)] == [second["id"]] * 2
        wanted.put_nowait(None)
        assert await anext(groups, None) is None
    assert run.summary is not None and (run.summary.status, run.summary.planned) == ("finished", 4)


async def test_a_run_that_waits_for_rows_ends_when_it_is_left(api: Api) -> None:
    async def never() -> AsyncIterator[dict[str, Any]]:
        await asyncio.Event().wait()
        yield {}

    async with asyncio.timeout(PATIENCE):
        async with api.run(rows=never()) as run:
            pass
    assert run.summary is not None and run.summary.status == "interrupted" and api.leftovers() == []


async def test_what_the_rows_raise_is_raised_where_results_are_taken(api: Api) -> None:
    def broken() -> Iterator[dict[str, Any]]:
        yield from rows_of(1)
        raise LookupError("the sampler is gone")

    with pytest.raises(LookupError, match="sampler"):
        async for _ in api.run(rows=broken(), concurrency=1):
            pass
    assert api.leftovers() == []


async def test_results_tell_the_versions_that_sampled_them_and_old_ones_are_masked(api: Api) -> None:
    model = Gate(free=2)
    async with api.run(model=model, agent="single_turn", limit=4, concurrency=2, max_staleness=1) as run:
        run.policy_version = 7
        await until(lambda: model._calls == 4)
        run.policy_version = 8
        model._open.set()
        await until(lambda: len(run.under_way) == 0)
        await run.update_policy(9)
        results = [result async for result in run]

    assert run.policy_version == 9 and run.counts.stale == 4
    assert {(each.policy_version, each.policy_version_end) for each in results} == {(7, 7), (7, 8)}
    assert all(each.stale and each.mask_sample and not each.trainable for each in results)
    assert results[0].mask_reason == "stale: sampled by version 7 of the policy, which is now at 9 (max_staleness=1)"


async def test_old_rollouts_are_dropped_on_demand_and_those_under_way_are_not_awaited(api: Api) -> None:
    model = Gate(free=2)
    settings = {"agent": "single_turn", "limit": 4, "concurrency": 2, "max_staleness": 0, "stale": "drop"}
    async with api.run(model=model, **settings) as run:
        run.policy_version = 1
        await until(lambda: model._calls == 4)
        run.policy_version = 2
        results = [result async for result in run]
    assert results == [] and run.counts.dropped == run.counts.stale == 4


async def test_a_group_with_an_old_member_is_dropped_as_a_whole(api: Api) -> None:
    model = Gate(free=1)
    settings = {"agent": "single_turn", "limit": 2, "repeats": 2, "concurrency": 1, "max_staleness": 0}
    async with api.run(model=model, **settings, stale="drop") as run:
        run.policy_version = 1
        await until(lambda: model._calls == 2)
        model._open.set()
        run.policy_version = 2
        groups = [group async for group in run.groups()]
    assert [[each.task_index for each in group] for group in groups] == [[1, 1]]
    assert run.counts.dropped == 2 and {each.policy_version for each in groups[0]} == {2}


async def test_another_model_may_take_over_in_the_midst_of_a_run(api: Api) -> None:
    old, new = Gate(free=2, name="old"), Gate(free=10**6, name="new")
    async with api.run(model=old, agent="single_turn", limit=4, concurrency=2) as run:
        await until(lambda: old._calls == 4)
        await run.update_policy(1, new)
        old._open.set()
        assert len([result async for result in run]) == 4
    assert old._closed and new._closed


async def test_one_rollout_a_group_or_all_may_be_cancelled(api: Api) -> None:
    model = Gate(free=0)
    async with api.run(model=model, agent="single_turn", limit=3, repeats=2, concurrency=3) as run:
        await until(lambda: model._calls == 3)
        run.cancel(run.under_way[0])
        run.cancel(group=f"{run.id}-counter-1")
        async with aclosing(run.results()) as results:
            ended = [await anext(results) for _ in range(3)]
            assert {(each.task_index, each.repeat) for each in ended} == {(0, 0), (1, 0), (1, 1)}
            assert all(each.error and each.error.kind == ErrorKind.CANCELLED for each in ended)
            run.cancel()
            assert [each async for each in results] == []
    assert run.summary is not None and run.summary.status == "interrupted" and model._closed


async def test_what_fails_in_the_loop_cleans_everything_up(api: Api) -> None:
    model, before = Gate(free=2), asyncio.all_tasks()
    with pytest.raises(ZeroDivisionError):
        async with api.run(model=model, agent="single_turn", limit=8, concurrency=4) as run:
            async for _ in run:
                _ = 1 // 0
    assert model._closed and api.leftovers() == [] and run.under_way == []
    assert asyncio.all_tasks() == before


async def test_a_loop_without_a_block_cleans_up_when_it_is_left(api: Api) -> None:
    model = Gate(free=2)
    run = api.run(model=model, agent="single_turn", limit=8, concurrency=4)
    async for _ in run:
        break
    gc.collect()
    await until(lambda: model._closed and api.leftovers() == [])


async def test_a_task_that_is_cancelled_from_outside_leaves_nothing(api: Api) -> None:
    model = Gate(free=0)

    async def trainer() -> None:
        async with api.run(model=model, agent="single_turn", limit=4) as run:
            async for _ in run:
                pass

    going = asyncio.create_task(trainer())
    await until(lambda: model._calls == 4)
    going.cancel()
    with pytest.raises(asyncio.CancelledError):
        await going
    assert model._closed and api.leftovers() == []


async def test_a_stop_yields_what_was_under_way(api: Api) -> None:
    model = Gate(free=0)
    async with api.run(model=model, agent="single_turn", limit=6, concurrency=2) as run:
        run.pause()
        await until(lambda: model._calls == 2)
        run.resume()
        run.stop()
        model._open.set()
        assert len([result async for result in run]) == 2
    assert run.summary is not None and run.summary.status == "interrupted"


async def test_only_one_loop_takes_the_results(api: Api) -> None:
    async with api.run(limit=2) as run, aclosing(run.results()) as results:
        await anext(results)
        with pytest.raises(RuntimeError, match="another loop"):
            await anext(run.results())


async def test_with_an_output_it_is_an_ordinary_run_that_a_resume_completes(api: Api, tmp_path: Path) -> None:
    out, settings = tmp_path / "out", {"limit": 3, "repeats": 2, "concurrency": 1}
    async with api.run(output=out, **settings) as run, aclosing(run.results()) as results:
        first = [await anext(results) for _ in range(3)]
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["status"] == "interrupted" and run.folder == out

    done = len((out / "rollouts.jsonl").read_text().splitlines())
    assert done >= 3
    async with api.run(output=out, resume=True, **settings) as again:
        groups = [group async for group in again.groups()]
    members = [each for group in groups for each in group]
    assert len(members) == 6 and sum(each.stored for each in members) == done
    stored = next(each for each in members if each.rollout_id == first[0].rollout_id)
    assert stored.model_dump(exclude={"stored"}) == first[0].model_dump(exclude={"stored"})
    assert again.id == run.id and "pass@1" in json.loads((out / "metrics.json").read_text())["total"]

    async with api.run(output=out, resume=True, include_done=False, **settings) as nothing:
        assert [result async for result in nothing] == []


async def test_sampled_tokens_are_at_hand_for_training(api: Api) -> None:
    async with vllm_double([{"content": "done"}]) as double:
        model = ChatModel(name="double", base_url=double.url, token_ids=True)
        async with api.run(model=model, limit=1, capture="on") as run:
            [result] = [result async for result in run]
    [turn] = result.token_ids
    assert turn["generation_token_ids"][-1] == END and len(turn["generation_log_probs"]) == 5
    assert result.model_extra is not None and result.model_extra["_ng_token_capture"]["chains"] == 1
    assert result.model_extra["calls"]["output_tokens"] == 5


async def test_a_running_controller_may_be_used(api: Api, controller_url: str) -> None:
    async with api.run(controller=controller_url, provider=None, limit=2) as run:
        assert [result.reward async for result in run] == [1.0, 1.0]


async def test_a_budget_ends_the_loop_and_the_summary_says_so(api: Api) -> None:
    model = ScriptedModel(usage=Tokens(input=90, output=10))
    async with api.run(model=model, agent="single_turn", concurrency=1, budget={"tokens": 250}) as run:
        assert len([result async for result in run]) == 3
    assert run.summary is not None and run.summary.status == "stopped"
    assert run.summary.stopped_by is not None and run.summary.stopped_by.limit == "tokens"


@pytest.mark.parametrize(
    ("environment", "settings", "told"),
    [
        ("countr", {}, "did you mean 'counter'"),
        ([], {}, "environment: none is given"),
        (["counter", "counter"], {}, "named twice"),
        (7, {}, "7 is no name, folder or Environment"),
        ("counter", {"repeatz": 2}, "did you mean 'repeats'"),
        ("counter", {"model": "opnai"}, "there is no model 'opnai'"),
        ("counter", {"model": 7}, "model has no _target_"),
        ("counter", {"overrides": ["model.name=x"]}, "model is given as an object"),
        ("counter", {"ahead": 0}, "ahead=0"),
        ("counter", {"max_staleness": -1}, "max_staleness=-1"),
        ("counter", {"budget": {"token": 3}}, "token"),
    ],
)
def test_wrong_settings_are_refused_when_the_run_is_made(
    api: Api, environment: Any, settings: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        api.run([environment] if environment == 7 else environment, **settings)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"rows": [{"id": "a"}]}, "rows:1: responses_create_params"),
        ({"rows": iter([]), "resume": True, "output": "out"}, "cannot be gone on with"),
        ({"rows": iter([]), "order": "shuffled"}, "shard and order need a list"),
        ({"environment": ["counter", "weather"], "rows": []}, "rows= are for one environment"),
        ({"environment": "short_answers"}, "needs a judge|has none for it"),
        ({"budget": {"cost": 1}}, "the model has no price"),
        ({"resume": True}, "needs runner.output"),
    ],
)
async def test_what_is_found_wrong_on_entering_leaves_nothing(api: Api, settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        async with api.run(**settings):
            raise AssertionError("it began")
    assert api.leftovers() == []


async def test_groups_need_room_for_whole_ones(api: Api) -> None:
    with pytest.raises(ConfigError, match="at least 4"):
        await anext(api.run(repeats=4, ahead=3).groups())


async def test_environments_may_be_objects_and_folders(api: Api) -> None:
    weather = Environment.load(ENVIRONMENTS / "weather")
    async with api.run([ENVIRONMENTS / "counter", weather], limit=1, model="scripted", provider="process") as run:
        assert {result.environment async for result in run} == {"counter", "weather"}


def test_the_synchronous_twin_yields_the_same(api: Api) -> None:
    with api.run_sync(limit=2, repeats=2) as run:
        run.policy_version = 3
        groups = list(run.groups())
    assert [len(group) for group in groups] == [2, 2] and run.policy_version == 3
    assert run.summary is not None and run.summary.complete and run.counts.taken == 4 and run.folder is None
    assert {result.policy_version for group in groups for result in group} == {3}
    assert run.id and run.under_way == [] and api.leftovers() == []


def test_the_synchronous_twin_cleans_up_when_its_loop_is_left(api: Api) -> None:
    def endless() -> Iterator[dict[str, Any]]:
        while True:
            yield from rows_of(1)

    for result in api.run_sync(rows=endless(), concurrency=2):
        assert result.reward == 1.0
        break
    gc.collect()
    assert api.leftovers() == []

    with pytest.raises(ZeroDivisionError), api.run_sync(limit=3) as run:
        for _ in run:
            _ = 1 // 0
    assert api.leftovers() == []


def test_the_synchronous_twin_is_controlled_like_the_other(api: Api) -> None:
    model = ScriptedModel(latency=60)
    with api.run_sync(model=model, limit=2, repeats=2, concurrency=4) as run:
        run.pause()
        run.resume()
        for id in [f"{run.id}-counter-0-0", f"{run.id}-counter-1-0"]:
            run.cancel(id)
        run.cancel(group=f"{run.id}-counter-1")
        results = run.results()
        ended = [next(results) for _ in range(3)]
        assert all(each.error and each.error.kind == ErrorKind.CANCELLED for each in ended)
        run.cancel()
        assert list(results) == []
    run.close()
    run.stop()
    run.update_policy(5)
    assert run.policy_version == 5
    with pytest.raises(RuntimeError, match="not under way"):
        run.update_policy(6, model)
    assert run.summary is not None and run.summary.status == "interrupted"
    with pytest.raises(ConfigError, match="needs a judge|has none"):
        api.run_sync("short_answers").__enter__()


async def test_the_synchronous_twin_works_where_a_loop_runs_already(api: Api) -> None:
    assert [result.reward for result in api.run_sync(limit=1)] == [1.0]


TRAINER = """
import gymbox, sys
from pathlib import Path
from gymbox.runs.places import Places

places = Places((Path(sys.argv[1]),), Path(sys.argv[2]), Path(sys.argv[3]), "gbx_admin_integration-tests-only")
model = gymbox.ScriptedModel(latency=60)
with gymbox.run_sync("counter", model=model, provider="process", places=places) as run:
    while not run.under_way:
        pass
    print("under way", flush=True)
    for result in run:
        pass
"""


def test_ctrl_c_ends_a_synchronous_run_and_its_sandboxes(api: Api, tmp_path: Path) -> None:
    arguments = [str(ENVIRONMENTS), str(api.state), str(tmp_path / "cache")]
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
        # a shell has its background jobs ignore it, and these tests may be one
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        assert trainer.stdout is not None and trainer.stdout.readline() == "under way\n"
        trainer.send_signal(signal.SIGINT)
        _, told = trainer.communicate(timeout=PATIENCE)
    finally:
        trainer.kill()
    assert "KeyboardInterrupt" in told and trainer.returncode != 0
    assert api.leftovers() == []
