"""`gymbox run` of an environment that is scored by a judge."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from gymbox.evaluation.rollouts import RunReader
from gymbox.reports.files import write_report

from tests.unit.reports.conftest import trajectories

from .test_evaluation import evaluated

ENVIRONMENT = f"environment={Path(__file__).parents[3] / 'environments' / 'short_answers'}"
COMMON = (ENVIRONMENT, "model=scripted", "provider=process", "runner.limit=2", "runner.output=out")


async def test_the_rewards_are_the_judges_and_the_judge_is_recorded(gymbox) -> None:
    ended = await gymbox.run(*COMMON, "judge=scripted")
    assert ended.code == 0, ended.err
    for line in gymbox.lines("out"):
        assert line["reward"] == 1.0
        assert line["metrics"] == {"judge_calls": 3, "judge_tokens": 0, "judge_agreement": 1.0}
    assert gymbox.read("out", "manifest.json")["settings"]["judge"]["_target_"].endswith("ScriptedModel")
    assert "judge=openai judge.name=NAME" in ended.out


async def test_what_the_judge_is_asked_is_recorded_apart_and_can_be_replayed(gymbox) -> None:
    ended = await gymbox.run(*COMMON, "judge=scripted", "runner.capture=on")
    assert ended.code == 0, ended.err
    [cassette] = (gymbox.folder / "out" / "judge" / "calls").glob("*.jsonl")
    calls = [json.loads(line) for line in cassette.read_text().splitlines()]
    rollouts = {call["rollout"] for call in calls if "rollout" in call}
    assert len(rollouts) == 2 and all("short_answers" in rollout for rollout in rollouts)
    [model] = (gymbox.folder / "out" / "calls").glob("*.jsonl")
    assert "You grade answers" in cassette.read_text() and "You grade answers" not in model.read_text()
    again = await gymbox.run(*COMMON[:-1], "runner.output=again", "judge=replay", "judge.cassette=out/judge")
    assert again.code == 0, again.err
    assert [line["reward"] for line in gymbox.lines("again")] == [1.0, 1.0]


async def test_the_report_shows_what_the_judge_was_asked_of_each_rollout(gymbox) -> None:
    settings = ("judge=scripted", "runner.capture=on", "runner.repeats=2", "runner.concurrency=1")
    ended = await gymbox.run(*COMMON, *settings)
    assert ended.code == 0, ended.err
    write_report([RunReader(gymbox.folder / "out")], {"html": gymbox.folder / "report.html"})
    found = trajectories((gymbox.folder / "report.html").read_text())
    outcomes = []
    for told in found.values():
        [question] = told["judged"]
        assert [vote["vote"] for vote in question["votes"]] == [0, 1, 2]
        assert question["tally"][0][1] == [["It says the same as the reference.", 3]]
        assert question["tally"][1] == ["correct", [["true", 3]]]
        assert "You grade answers" in question["asked"][0]["text"]
        outcomes.append({vote["outcome"] for vote in question["votes"]})
    assert sorted(map(str, outcomes)) == ["{'remembered'}"] * 2 + ["{'taken'}"] * 2


async def test_where_the_answer_is_scored_in_a_fresh_sandbox_the_judge_is_recorded_for_the_same_rollout(
    gymbox,
) -> None:
    copy = gymbox.folder / "short_answers"
    shutil.copytree(Path(ENVIRONMENT.partition("=")[2]), copy)
    manifest = copy / "environment.yaml"
    manifest.write_text(manifest.read_text() + "verify: fresh\n")
    ended = await gymbox.run(f"environment={copy}", *COMMON[1:], "judge=scripted", "runner.capture=on")
    assert ended.code == 0, ended.err
    [cassette] = (gymbox.folder / "out" / "judge" / "calls").glob("*.jsonl")
    asking = {json.loads(line)["rollout"] for line in cassette.read_text().splitlines()}
    assert asking == {line["sandbox"] for line in gymbox.lines("out")}


async def test_what_the_judge_is_asked_when_rewards_are_made_anew_is_recorded_with_them(gymbox) -> None:
    ended = await gymbox.run(*COMMON, "judge=scripted", "runner.capture=on")
    assert ended.code == 0, ended.err
    anew = ("reverify", "out", "provider=process", "-f", str(Path(ENVIRONMENT.partition("=")[2]).parent))
    ended = await evaluated(gymbox, *anew, "judge=scripted", "runner.capture=on", "-o", "again")
    assert ended.code == 0, ended.err
    calls = [
        json.loads(line)
        for path in (gymbox.folder / "again" / "judge" / "calls").glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    asking = {line["reverified"]["sandbox"] for line in gymbox.lines("again")}
    assert {call["rollout"] for call in calls} == asking and len(asking) == 2
    used = gymbox.read("again", "manifest.json")["used"]
    asked = [call for call in calls if not call["judge"].get("remembered")]
    assert used["calls"] == len(asked) > 0 and used["seconds"] > 0
    write_report([RunReader(gymbox.folder / "again")], {"html": gymbox.folder / "report.html"})
    for told in trajectories((gymbox.folder / "report.html").read_text()).values():
        [question] = told["judged"]
        assert [vote["vote"] for vote in question["votes"]] == [0, 1, 2]
    # it answers later verifies, also those of the run itself
    ended = await evaluated(gymbox, *anew, "judge=replay", "judge.cassette=again/judge", "-o", "third")
    assert ended.code == 0, ended.err
    assert [line["reward"] for line in gymbox.lines("third")] == [1.0, 1.0]
    assert not (gymbox.folder / "third" / "judge").exists()
    ended = await gymbox.run(*COMMON[:-1], "runner.output=fourth", "judge=replay", "judge.cassette=again/judge")
    assert ended.code == 0, ended.err


async def test_without_a_judge_nothing_is_started_and_the_way_on_is_told(gymbox) -> None:
    ended = await gymbox.run(*COMMON)
    assert ended.code == 2
    assert "add judge=openai judge.name=NAME" in ended.err
    assert not (gymbox.folder / "out").exists()


async def test_a_judge_that_is_mistyped_or_not_told_its_name_is_refused(gymbox) -> None:
    ended = await gymbox.run(*COMMON, "judge=opnai")
    assert ended.code == 2 and "did you mean 'openai'?" in ended.err
    ended = await gymbox.run(*COMMON, "judge=openai")
    assert ended.code == 2 and "judge.name is not set" in ended.err


async def test_a_judge_that_cannot_be_reached_is_an_error_and_ends_the_run_early(gymbox) -> None:
    dead = ("judge=openai", "judge.name=grader", "judge.base_url=http://127.0.0.1:9/v1", "judge.pause=0.01")
    gymbox.variables["OPENAI_API_KEY"] = "sk-secret-of-the-judge"
    ended = await gymbox.run(*COMMON, *dead, "runner.ready_timeout=0.1")
    assert ended.code == 2 and "model 'grader' at http://127.0.0.1:9/v1/models could not be" in ended.err
    assert not (gymbox.folder / "out").exists()
    ended = await gymbox.run(*COMMON, *dead, "runner.ready_timeout=0", "runner.give_up_after=1")
    assert ended.code == 1
    assert {line["error"]["kind"] for line in gymbox.lines("out")} == {"judge_failed"}
    assert {line["reward"] for line in gymbox.lines("out")} == {None}
    written = "".join(path.read_text() for path in (gymbox.folder / "out").rglob("*") if path.is_file())
    assert "sk-secret-of-the-judge" not in written + ended.out + ended.err
