"""Plan: which rollouts a run consists of, and in what order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from gymbox.environment import Environment
from gymbox.errors import ConfigError, ErrorKind
from gymbox.plan import Plan, Slot
from gymbox.runner_settings import RunnerSettings
from pydantic import ValidationError

from .conftest import row

Make = Callable[..., Environment]


def slots(*environments: Environment, **settings: Any) -> list[Slot]:
    with Plan(environments, RunnerSettings(**settings)) as plan:
        found = list(plan)
        assert len(found) == len(plan)
        assert Counter(slot.environment.name for slot in found) == {k: v for k, v in plan.sizes().items() if v}
        return found


def test_limits_and_repeats_may_differ_by_environment(environment: Make) -> None:
    first, second = environment(*[row()] * 5, name="first"), environment(*[row()] * 5, name="second")

    found = slots(first, second, limit={"first": 2}, repeats={"second": 3, "_default": 2})

    assert Counter(slot.environment.name for slot in found) == {"first": 4, "second": 15}


def test_a_heavier_environment_has_more_turns_evenly_spread(environment: Make) -> None:
    first, second = environment(*[row()] * 6, name="first"), environment(*[row()] * 6, name="second")

    order = "".join(slot.environment.name[0] for slot in slots(first, second, weights={"first": 3}))

    assert order[:8].count("f") == 6 and "ffff" not in order[:8]
    assert order.count("f") == order.count("s") == 6


@pytest.mark.parametrize(
    "setting",
    [
        {"limit": {"frist": 1}},
        {"repeats": {"frist": 1}},
        {"weights": {"frist": 1}},
        {"params_of": {"frist": {}}},
        {"prompt": {"frist": "x.yaml"}},
    ],
)
def test_a_setting_for_an_environment_that_is_not_there_is_refused(environment: Make, setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="no environment 'frist'; did you mean 'first'"):
        Plan([environment(row(), name="first")], RunnerSettings(**setting))


@pytest.mark.parametrize("order", ["dataset", "shuffled"])
def test_shards_are_the_whole_without_overlap_and_keep_a_tasks_repeats_together(environment: Make, order: str) -> None:
    counter = environment(*[row()] * 10)
    whole = slots(counter, repeats=2, order=order)

    parts = [slots(counter, repeats=2, order=order, shard=f"{part}/4") for part in (1, 2, 3, 4)]

    ids = [[(slot.row.index, slot.repeat) for slot in part] for part in parts]
    assert sorted(sum(ids, [])) == sorted((slot.row.index, slot.repeat) for slot in whole)
    assert all(set(Counter(task for task, _ in part).values()) == {2} for part in ids)


@pytest.mark.parametrize("shard", ["0/2", "3/2", "1", "a/b"])
def test_a_shard_that_is_none_is_refused(shard: str) -> None:
    with pytest.raises(ValidationError, match="shard"):
        RunnerSettings(shard=shard)


def test_every_request_gets_what_the_settings_say(environment: Make) -> None:
    counter = environment({"responses_create_params": {"input": "add 1", "temperature": 1.0}})

    found = slots(counter, repeats=2, params={"temperature": 0.2}, seed_repeats=True, seed=40)

    assert [slot.row.fields["responses_create_params"] for slot in found] == [
        {"input": "add 1", "temperature": 0.2, "seed": seed} for seed in (40, 41)
    ]


def test_one_environment_may_be_asked_in_another_way(environment: Make) -> None:
    first, second = environment(row(), name="first"), environment(row(), name="second")
    settings = {"params": {"temperature": 1, "top_p": 0.5}, "params_of": {"second": {"temperature": 0}}}

    asked = {
        slot.environment.name: slot.row.fields["responses_create_params"] for slot in slots(first, second, **settings)
    }

    assert asked["first"] == {"input": "add 1", "temperature": 1, "top_p": 0.5}
    assert asked["second"] == {"input": "add 1", "temperature": 0, "top_p": 0.5}


def test_attempts_go_by_the_kind_of_error(environment: Make) -> None:
    settings = RunnerSettings(attempts={"model_rate_limited": 5})

    assert settings.attempts_at(ErrorKind.MODEL_RATE_LIMITED) == 5
    assert settings.attempts_at(ErrorKind.AT_CAPACITY) == 1
    with pytest.raises(ValidationError, match="did you mean 'model_rate_limited'"):
        RunnerSettings(attempts={"model_rate_limit": 5})


def test_what_the_results_depend_on_is_among_the_inputs() -> None:
    plain, other = RunnerSettings(), RunnerSettings(params={"temperature": 0}, shard="1/2", seed_repeats=True)

    assert plain.inputs() != other.inputs()
    assert plain.inputs() == RunnerSettings(concurrency=99, weights={"x": 2}, attempts=3).inputs()
    assert plain.inputs()["repeats"] == 1
