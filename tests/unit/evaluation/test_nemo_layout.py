"""NeMo Gym's layout: its files are read for what they say, and ours as its files lose nothing."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gymbox.cli.readers import reader_of
from gymbox.errors import ConfigError
from gymbox.evaluation.compare import comparison
from gymbox.evaluation.nemo_aggregates import Aggregates
from gymbox.evaluation.nemo_import import write_run
from gymbox.evaluation.nemo_writer import write_nemo
from gymbox.evaluation.rollouts import RunReader
from gymbox.evaluation.summary import summary

from tests.unit.evaluation.conftest import ours

COLLECTED = Path(__file__).parents[2] / "data" / "nemo_gym" / "collected"
AGENT = "example_session_state_mgmt_simple_agent"


@pytest.fixture
def collected(tmp_path: Path) -> Path:
    """What NeMo Gym wrote, in a folder of its own."""
    return Path(shutil.copytree(COLLECTED, tmp_path / "collected"))


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_text().splitlines()]


def test_what_nemo_gym_wrote_is_read_with_the_rows_that_it_lost(collected: Path) -> None:
    reader = RunReader(collected)
    rollouts = list(reader)
    assert reader.name == "collected"
    assert len(rollouts) == 8
    assert all("expected_count" not in each for each in lines_of(collected / "counter.jsonl"))
    assert all(isinstance(each.at("expected_count"), int) for each in rollouts)
    assert {(each.environment, each.turns, each.tool_calls) for each in rollouts} == {(AGENT, 3, 3)}
    assert set(rollouts[0].row) == {"responses_create_params", "initial_count", "expected_count"}
    found = summary(reader, by="initial_count")
    assert (found.total.tasks, found.total.rollouts, found.total.planned, found.total.mean) == (4, 8, 8, 0.75)
    assert found.total.pass_at[2].value == 0.75
    assert list(RunReader(collected / "counter.jsonl")) == rollouts


def test_what_it_never_did_and_what_failed_is_missing(collected: Path) -> None:
    path = collected / "counter.jsonl"
    kept, gone, lost = lines_of(path)[:6], *lines_of(path)[6:]
    path.write_text("".join(json.dumps(each) + "\n" for each in kept))
    failed = {name: gone[name] for name in ("_ng_task_index", "_ng_rollout_index", "agent_ref")}
    failed |= {"_ng_failure_class": "remote_agent_error", "reward": 0.0}
    stale = {**failed, "_ng_task_index": 99}
    again = {**failed, "_ng_failure_class": "judge_failed", "_ng_failure_judge_error": "it was silent"}
    done = {**failed, **{name: kept[0][name] for name in ("_ng_task_index", "_ng_rollout_index")}}
    (collected / "counter_failures.jsonl").write_text(
        "".join(json.dumps(each) + "\n" for each in (failed, stale, done, again)) + '{"reward": 0'
    )
    reader = RunReader(collected)
    *_, last = rollouts = list(reader)
    assert (len(rollouts), reader.torn) == (7, 12)
    assert (last.reward, last.error, last.detail, last.attempts) == (None, "judge_failed", "it was silent", 2)
    found = summary(reader).total
    assert (found.planned, found.scored, found.missing, found.errors) == (8, 6, 2, {"judge_failed": 1})
    assert summary(reader, missing="as_failure").total.counted == 8
    assert {each["_ng_rollout_index"] for each in (gone, lost)} <= {0, 1}


def test_aggregates_are_those_that_nemo_gym_computes(collected: Path, tmp_path: Path) -> None:
    aggregates = Aggregates()
    for each in sorted(lines_of(collected / "counter.jsonl"), key=lambda each: each["_ng_task_index"]):
        aggregates.add(each)
    with (tmp_path / "ours.json").open("w") as file:
        aggregates.write(file, {})
    [found] = json.loads((tmp_path / "ours.json").read_text())
    [expected] = json.loads((collected / "counter_aggregate_metrics.json").read_text())
    for group in expected["group_level_metrics"]:
        assert group.pop("sample") == {"agent_ref": {"name": "agent"}}
    for group in found["group_level_metrics"]:
        del group["sample"]
    assert found["key_metrics"] == expected["key_metrics"]
    assert found["agent_metrics"] == pytest.approx(expected["agent_metrics"])
    assert found["group_level_metrics"] == expected["group_level_metrics"]


def test_a_run_in_its_layout_is_had_back_whole(mixed: Path, tmp_path: Path) -> None:
    written = write_nemo(RunReader(mixed), tmp_path / "out" / "r.jsonl")
    assert (written.rollouts, written.failures, written.inputs, written.unknown) == (5, 2, 6, 0)
    reader = RunReader(tmp_path / "out")
    theirs = {each.id: each for each in reader}
    before = {each.id: each for each in RunReader(mixed)}
    assert theirs == before
    assert {id: each.line for id, each in theirs.items()} == {id: each.line for id, each in before.items()}
    assert {id: each.row for id, each in theirs.items()} == {id: each.row for id, each in before.items()}
    found = comparison([RunReader(mixed), reader])
    assert {each.verdict for each in found.differences} == {"no_difference_shown"}
    assert summary(reader).environments["counter"].missing == 1


def test_a_failure_in_one_environment_is_not_hidden_by_a_reward_in_another(
    run: Callable[..., Path], tmp_path: Path
) -> None:
    folder = run(ours("a", 0, 0, 1.0), ours("x", 0, 0, environment="weather"), rows=1)
    write_nemo(RunReader(folder), tmp_path / "r.jsonl")
    found = summary(RunReader(tmp_path / "r.jsonl"))
    assert found.environments["weather"].errors == {"agent_failed": 1}
    assert found.total.scored == 1


def test_a_task_that_several_agents_do_is_one_of_each(run: Callable[..., Path], tmp_path: Path) -> None:
    def by(agent: str, index: int, reward: float | None, **more: Any) -> dict[str, Any]:
        ref = {"type": "responses_api_agents", "name": agent}
        return ours("ab"[index], index, 0, reward, agent_ref=ref, rollout_id=f"{agent}-{index}", **more)

    skills = {"path": "skills", "hash": "0", "skills": []}
    lines = by("bad", 0, 0.0), by("bad", 1, None), by("good", 0, 1.0, skills_ref=skills), by("good", 1, 1.0)
    folder = run(*lines, rows=2, agents=["bad", "good"], crossed=True)
    (folder / "failures.jsonl").write_text("".join(json.dumps(by(agent, 1, None)) + "\n" for agent in ("bad", "good")))
    write_nemo(RunReader(folder), tmp_path / "all" / "r.jsonl")
    told = lines_of(tmp_path / "all" / "r.jsonl")
    assert [(each["agent_ref"]["name"], each["_ng_task_index"]) for each in told] == [
        ("bad", 0),
        ("good", 2),
        ("good", 3),
    ]
    assert told[1]["skills_ref"] == skills
    assert [each["_ng_task_index"] for each in lines_of(tmp_path / "all" / "r_failures.jsonl")] == [1, 3, 1]
    reader = RunReader(tmp_path / "all")
    assert {each.id: each.line for each in reader} == {each.id: each.line for each in RunReader(folder)}
    assert summary(reader).total.errors == {"agent_failed": 1}

    written = write_nemo(reader_of(Path(f"{folder}:good")), tmp_path / "one" / "r.jsonl")
    assert (written.rollouts, written.failures, written.inputs, written.unknown) == (2, 1, 2, 0)
    assert [each["_ng_task_index"] for each in lines_of(tmp_path / "one" / "r.jsonl")] == [0, 1]


def test_agents_of_several_environments_have_names_of_their_own_before_they_have_done_anything(
    run: Callable[..., Path], tmp_path: Path
) -> None:
    ref = {"type": "responses_api_agents", "name": "one"}
    folder = run(
        ours("a", 0, 0, 1.0, agent_ref=ref),
        ours("x", 0, 0, 1.0, environment="weather", agent_ref={**ref, "name": "two"}),
        agents=["one", "two"],
    )
    write_nemo(RunReader(folder), tmp_path / "r.jsonl")
    names = [each["agent_ref"]["name"] for each in lines_of(tmp_path / "r.jsonl")]
    assert names == ["counter_one", "weather_two"]


def test_names_and_keys_are_nemo_gyms(mixed: Path, tmp_path: Path) -> None:
    write_nemo(RunReader(mixed), tmp_path / "r.jsonl")
    rollouts, failures = lines_of(tmp_path / "r.jsonl"), lines_of(tmp_path / "r_failures.jsonl")
    inputs = lines_of(tmp_path / "r_materialized_inputs.jsonl")
    keys = [(each["_ng_task_index"], each["_ng_rollout_index"]) for each in rollouts]
    assert keys == [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1)]  # weather's rows come after counter's two
    assert [each["agent_ref"]["name"] for each in rollouts[2:4]] == ["counter_ToolLoop", "weather_ToolLoop"]
    assert (rollouts[0]["steps"], rollouts[0]["reward"], rollouts[1]["form"]) == (3.0, 1.0, 0.5)
    assert rollouts[2]["_ng_attempt_index"] == 1
    assert [(each["_ng_failure_class"], each["_ng_failure_terminal"], each["reward"]) for each in failures] == [
        ("model_timed_out", False, None),
        ("agent_failed", True, None),
    ]
    assert [each["_ng_task_index"] for each in inputs] == [0, 0, 1, 1, 2, 2]
    assert "reward" not in inputs[0]
    assert inputs[0]["expected"] == 4
    [counter, weather] = json.loads((tmp_path / "r_aggregate_metrics.json").read_text())
    assert counter["agent_ref"] == {"name": "counter_ToolLoop"}
    assert counter["key_metrics"]["mean/reward"] == pytest.approx(1.25 / 3)
    [first, second] = counter["group_level_metrics"]
    assert (first["num_rollouts"], first["missing_num_rollouts"], first["std/steps"]) == (2, 0, pytest.approx(2**0.5))
    assert (second["num_rollouts"], second["missing_num_rollouts"]) == (1, 1)
    assert second["reward_profile_completion_pct"] == 50.0
    assert weather["agent_metrics"]["mean/mask_sample"] == 0.5


def test_what_was_set_aside_is_a_failed_attempt_once(mixed: Path, tmp_path: Path) -> None:
    aside = ours("a", 0, 0)
    judged = ours("x", 0, 0, environment="weather")
    judged["error"] |= {"kind": "judge_failed"}
    text = "".join(json.dumps(each) + "\n" for each in (aside, aside, judged))
    (mixed / "failures.jsonl").write_text(text + '{"torn')
    written = write_nemo(RunReader(mixed), tmp_path / "r.jsonl")
    failures = lines_of(tmp_path / "r_failures.jsonl")
    assert written.failures == len(failures) == 4
    assert failures[1]["_ng_failure_judge_error"] == "it fell"
    assert lines_of(tmp_path / "r.jsonl")[0]["_ng_attempt_index"] == 1
    assert len(list(RunReader(tmp_path / "r.jsonl"))) == 6


def test_half_a_surrogate_pair_is_no_stumbling_block(run: Callable[..., Path], tmp_path: Path) -> None:
    said = {"type": "message", "role": "assistant", "content": "half \ud83d and whole \U0001f600\u2028"}
    folder = run(ours("a", 0, 0, 1.0, response={"output": [said]}))
    write_nemo(RunReader(folder), tmp_path / "r.jsonl")
    text = (tmp_path / "r.jsonl").read_bytes().decode()  # which is all that a strict reader asks
    assert json.loads(text)["response"]["output"][0]["content"] == "half ? and whole \U0001f600\u2028"


def test_rows_that_a_run_never_came_to_are_counted(run: Callable[..., Path], tmp_path: Path) -> None:
    written = write_nemo(RunReader(run(ours("a", 0, 0, 1.0), rows=3)), tmp_path / "r.jsonl")
    assert (written.inputs, written.unknown) == (1, 2)


def test_files_that_are_there_stay_unless_they_may_be_replaced(mixed: Path, tmp_path: Path) -> None:
    (tmp_path / "r_failures.jsonl").write_text("mine")
    with pytest.raises(ConfigError, match=r"r_failures.jsonl is there already"):
        write_nemo(RunReader(mixed), tmp_path / "r.jsonl")
    assert not (tmp_path / "r.jsonl").exists()
    write_nemo(RunReader(mixed), tmp_path / "r.jsonl", replace=True)
    assert len(lines_of(tmp_path / "r_failures.jsonl")) == 2


def test_what_cannot_be_written_leaves_nothing(mixed: Path, tmp_path: Path) -> None:
    with (mixed / "rollouts.jsonl").open("a") as file:
        file.write(json.dumps(ours("b", 1, 2, 1.0)).replace('"mask_sample": false', '"mask_sample": NaN') + "\n")
    with pytest.raises(ConfigError, match="not JSON compliant"):
        write_nemo(RunReader(mixed), tmp_path / "out" / "r.jsonl")
    assert list((tmp_path / "out").iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write"):
        write_nemo(RunReader(mixed), tmp_path / "file" / "r.jsonl")


def test_what_nemo_gym_wrote_becomes_a_run(collected: Path, tmp_path: Path) -> None:
    reader = RunReader(collected, names={AGENT: "counter"})
    assert asyncio.run(write_run(reader, tmp_path / "run")) == 8
    run = RunReader(tmp_path / "run")
    assert run.manifest is not None
    assert (run.manifest.status, run.manifest.planned, run.manifest.done) == ("finished", 8, 8)
    assert run.manifest.inputs["nemo_gym"]["file"] == "counter.jsonl"
    assert [(each.id, each.task, each.reward, each.row) for each in run] == [
        (each.id, each.task, each.reward, each.row) for each in reader
    ]
    assert summary(run).total.planned == 8
    write_nemo(run, tmp_path / "back.jsonl")
    told, expected = (
        json.loads(path.read_text())
        for path in (tmp_path / "back_aggregate_metrics.json", collected / "counter_aggregate_metrics.json")
    )
    mine, theirs = told[0]["key_metrics"], expected[0]["key_metrics"]
    assert {name: mine[name] for name in theirs} == theirs
    with pytest.raises(ConfigError, match="is the folder of a run already"):
        asyncio.run(write_run(run, tmp_path / "other"))
    with pytest.raises(ConfigError, match="no run of gymbox"):
        write_nemo(reader, tmp_path / "theirs.jsonl")


def test_what_a_verifier_returned_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    scored = {"responses_create_params": {"input": "2"}, "response": {"output": []}, "agent_ref": {"name": "m"}}
    scored |= {"_ng_task_index": 0, "_ng_rollout_index": 0, "reward": 1.0, "library_reward": 1.0, "extracted": "4"}
    failed = {
        **scored,
        "_ng_rollout_index": 1,
        "reward": 0.0,
        "_ng_failure_class": "odd",
        "_ng_failure_terminal": True,
    }
    older = {name: value for name, value in scored.items() if not name.startswith("_ng")}
    path.write_text("".join(json.dumps(each) + "\n" for each in (scored, failed, older, older)))
    (tmp_path / "r_materialized_inputs.jsonl").write_text(
        json.dumps({"responses_create_params": {"input": "2"}, "_ng_task_index": 0, "_ng_rollout_index": 0}) + "\n\n"
    )
    asyncio.run(write_run(RunReader(path), tmp_path / "run"))
    first, second, third, fourth = RunReader(tmp_path / "run")
    assert first.metrics == {"library_reward": 1.0}
    assert first.at("_gymbox.verdict.extracted") == "4"
    assert first.row == {"responses_create_params": {"input": "2"}}
    assert (second.error, second.line["error"]["retryable"]) == ("odd", False)
    assert (third.id, fourth.id) == ("line-3", "line-4")


def test_of_several_collections_one_must_be_named(collected: Path) -> None:
    for suffix in (".jsonl", "_materialized_inputs.jsonl"):
        shutil.copy(collected / f"counter{suffix}", collected / f"other{suffix}")
    with pytest.raises(ConfigError, match=r"several collections.*counter.jsonl, other.jsonl"):
        RunReader(collected)
    assert len(list(RunReader(collected / "other.jsonl"))) == 8


def test_rows_are_no_rollouts(collected: Path) -> None:
    with pytest.raises(ConfigError, match="has the rows; the rollouts are in the file without"):
        RunReader(collected / "counter_materialized_inputs.jsonl")
    (collected / "counter_materialized_inputs.jsonl").write_text('{"_ng_task_index": 0}\n')
    with pytest.raises(ConfigError, match="1 is no row that NeMo Gym gave an agent: it has no '_ng_rollout_index'"):
        list(RunReader(collected))
    (collected / "counter.jsonl").unlink()
    with pytest.raises(ConfigError, match="holds no rollouts"):
        RunReader(collected)
