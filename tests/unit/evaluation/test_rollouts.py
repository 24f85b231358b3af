"""Rollouts: every line read as what it says, and nothing invented for what it does not."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from gymbox.errors import ConfigError
from gymbox.evaluation.line_identity import row_of, task_key
from gymbox.evaluation.rollouts import RunReader, rollout_of
from gymbox.evaluation.summary import summary

from tests.unit.evaluation.conftest import line


def test_a_run_is_read_line_by_line_as_often_as_one_likes(run: Callable[..., Path]) -> None:
    reader = RunReader(run(line("a", reward=1.0), line("b")))
    for _ in range(2):
        first, second = reader
        assert (first.task, first.reward, first.error, first.seconds) == ("a", 1.0, None, 2.0)
        assert (second.task, second.reward, second.error, second.detail) == ("b", None, "agent_failed", "it fell")
    assert reader.dataset_of("counter") == "d1"
    assert reader.dataset_of("other") is None
    assert reader.name == "run"


def test_a_line_of_nemo_gym_is_read(tmp_path: Path) -> None:
    lines = [
        {
            "responses_create_params": {"input": "2+2"},
            "agent_ref": {"type": "responses_api_agents", "name": "simple"},
            "_ng_task_index": 4,
            "_ng_rollout_index": 1,
            "reward": 1.0,
            "reward_components": {"format": 0.5},
            "response": {"output": [], "usage": {"input_tokens": 7, "output_tokens": 3}},
        },
        {"_ng_task_index": 4, "_ng_rollout_index": 2, "reward": 0.0, "_ng_failure_class": "judge_failed"},
    ]
    path = tmp_path / "rollouts_of_nemo.jsonl"
    path.write_text("".join(json.dumps(each) + "\n\n" for each in lines))
    reader = RunReader(path)
    first, second = reader
    assert reader.manifest is None
    assert reader.dataset_of("simple") is None
    assert (first.environment, first.id, first.reward, first.components) == ("simple", "4-1", 1.0, {"format": 0.5})
    assert (first.input_tokens, first.output_tokens, first.cost, first.turns) == (7, 3, None, 0)
    assert (second.reward, second.error) == (None, "judge_failed")  # nobody has measured its 0


def test_turns_and_errors_of_tools_are_counted() -> None:
    output = [
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "name": "f", "call_id": "1", "arguments": "{}"},
        {"type": "function_call", "name": "f", "call_id": "2", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "error: no"},
        {"type": "function_call_output", "call_id": "2", "output": "3"},
        {"type": "message", "role": "assistant", "content": "done"},
    ]
    found = rollout_of(line("a", reward=1.0, response={"output": output, "metadata": {"stop_reason": "completed"}}))
    assert (found.turns, found.tool_calls, found.tool_errors, found.stop_reason) == (2, 2, 1, "completed")
    unknown = rollout_of(line("a", reward=1.0))
    assert (unknown.turns, unknown.tool_calls, unknown.tool_errors, unknown.stop_reason) == (None, None, None, None)


def test_recorded_calls_tell_more_than_usage() -> None:
    calls = {"count": 3, "input_tokens": 30, "output_tokens": 9, "cost": 0.25}
    found = rollout_of(line("a", reward=1.0, calls=calls, usage={"input_tokens": 10, "output_tokens": 4}))
    assert (found.turns, found.input_tokens, found.output_tokens, found.cost) == (3, 30, 9, 0.25)


@pytest.mark.parametrize("nonsense", [[], {}, "many", math.nan, math.inf, 10**400])
def test_what_an_agent_reports_and_is_no_number_is_unknown(nonsense: object, tmp_path: Path) -> None:
    names = ("count", "input_tokens", "output_tokens", "cost")
    told = {
        "calls": dict.fromkeys(names, nonsense),
        "timings": {"total": nonsense},
        "metrics": {"length": nonsense, "depth": 2},
        "attempts": nonsense,
        "response": {"metadata": {"stop_reason": [nonsense]}},
    }
    found = rollout_of(line("a", reward=1.0, **told))
    assert (found.turns, found.input_tokens, found.output_tokens, found.cost, found.seconds) == (None,) * 5
    assert (found.metrics, found.attempts, found.stop_reason) == ({"depth": 2.0}, 1, None)
    path = tmp_path / "some.jsonl"
    path.write_text(json.dumps(line("a", reward=1.0, **told)) + "\n")
    figures = summary(RunReader(path)).total
    assert (figures.mean, figures.cost.count, figures.stop_reasons) == (1.0, 0, {})


def test_a_task_without_an_id_is_known_by_its_row_whatever_the_run_asks_of_the_model() -> None:
    row = {"responses_create_params": {"input": "x", "temperature": 0.1, "seed": 1}, "expected": 3}
    other = {"responses_create_params": {"input": "x", "temperature": 0.9, "seed": 2}, "expected": 3}
    ours = {"rollout_id": "r", "_ng_task_index": 0}
    assert task_key({**row, **ours, "reward": 1.0}) == task_key({**other, **ours, "reward": 0.0})
    assert task_key({**row, "expected": 4}) != task_key(row)
    assert task_key({**row, "id": 0}) == "0"
    assert task_key({**row, "_ng_task_index": 3, "extracted_answer": "x"}) == "row-3"


def test_a_row_is_what_is_left_of_a_line() -> None:
    assert row_of(line("a", reward=1.0, id="a", expected=3, _ng_task_index=0, ng_trajectory=[])) == {
        "responses_create_params": {"input": "do a"},
        "id": "a",
        "expected": 3,
    }


def test_a_field_is_found_by_its_path() -> None:
    found = rollout_of(line("a", reward=1.0, verifier_metadata={"level": 3}))
    assert found.at("verifier_metadata.level") == 3
    assert found.at("verifier_metadata.level.more") is None
    assert found.at("nothing") is None


def test_a_torn_last_line_is_left_out_and_told(run: Callable[..., Path]) -> None:
    folder = run(line("a", reward=1.0))
    with (folder / "rollouts.jsonl").open("a") as file:
        file.write('{"reward": 1')
    reader = RunReader(folder)
    assert [each.task for each in reader] == ["a"]
    assert reader.torn == 12


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('{"reward": 1\n{"reward": 1}\n', ":1 is no rollout"),
        ('{"task": 1}\n', "it has no 'reward'"),
        ('{"reward": "1"}\n', "'1', not a finite number"),
        ('{"reward": NaN}\n', "nan, not a finite number"),
        (f'{{"reward": 1{"0" * 400}}}\n', "not a finite number"),
        ('{"reward": [1]}\n', "not a finite number"),
        ("[]\n", ":1 is no rollout"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "some.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=fault):
        list(RunReader(path))


def test_where_no_run_is_that_is_said(tmp_path: Path, run: Callable[..., Path]) -> None:
    with pytest.raises(ConfigError, match="holds no rollouts"):
        RunReader(tmp_path)
    folder = run(line("a", reward=1.0))
    (folder / "manifest.json").write_text("{}")
    with pytest.raises(ConfigError, match="damaged"):
        RunReader(folder)
    (folder / "manifest.json").unlink()
    assert RunReader(folder).manifest is None
