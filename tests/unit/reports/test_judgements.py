"""What a run has on record of its judge, in the trajectories of its report."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from gymbox.environment import JudgeLimits
from gymbox.errors import ConfigError, ErrorKind, JudgeFailed, ModelFailure
from gymbox.http import HttpClient
from gymbox.judge import Judge
from gymbox.models.capture import Capture
from gymbox.models.cassettes import JUDGE_CALLS
from gymbox.models.prices import Price
from gymbox.reports.page import PageOptions
from gymbox.reports.report import Report

from tests.unit.judge.test_judge import SCHEMA, Says, asked
from tests.unit.reports.conftest import line, trajectories

Run = Callable[..., Path]
Reported = Callable[..., tuple[Report, str]]
RIGHT, WRONG = '{"correct": true, "reason": "it is the same"}', '{"correct": false, "reason": "it is not"}'


def judged(run: Path, answers: list[Any], *verifies: tuple[str, list[bytes]]) -> Path:
    """Have a judge asked on behalf of these attempts and its answers recorded in the run."""

    async def ask() -> None:
        model = Says.of(*answers).model_copy(update={"price": Price(input=1, output=2)})
        model._answers = list(answers)
        async with HttpClient() as http, Judge(model, http) as judge, Capture(run / JUDGE_CALLS) as capture:
            judge.record(capture)
            for attempt, bodies in verifies:
                hearing = judge.hearing(attempt, JudgeLimits())
                for body in bodies:
                    try:
                        await hearing.answers(body)
                    except JudgeFailed:
                        break

    with ThreadPoolExecutor() as thread:
        thread.submit(asyncio.run, ask()).result()
    return run


def votes(text: str, count: int) -> list[bytes]:
    return [asked(text, schema=SCHEMA, sample=sample, instructions="You grade.") for sample in range(count)]


@pytest.fixture
def graded(run: Run) -> Path:
    """a: three votes; b: the same question, remembered, and one that fails; c: no judge."""
    folder = run(line("a", 0, 1.0, sandbox="r-a"), line("b", 0, None, sandbox="r-b"), line("c", 0, 1.0, sandbox="r-c"))
    refused = ModelFailure(ErrorKind.MODEL_UNAUTHORIZED, "a wrong key")
    answers = ["nonsense", RIGHT, WRONG, RIGHT, "more nonsense", refused]
    return judged(folder, answers, ("r-a", votes("Is 2 = 2?", 3)), ("r-b", [*votes("Is 2 = 2?", 3), asked("!")]))


def test_each_question_has_its_votes_and_their_tally(graded: Path, reported: Reported) -> None:
    [question] = trajectories(reported(graded)[1])["counter-a-0"]["judged"]
    assert [(item["by"], item["text"]) for item in question["asked"]] == [
        ("system", "You grade."),
        ("user", "Is 2 = 2?"),
    ]
    assert [(each["vote"], each["attempt"], each["outcome"]) for each in question["votes"]] == [
        (0, 0, "unusable"),
        (0, 1, "taken"),
        (1, 0, "taken"),
        (2, 0, "taken"),
    ]
    first = question["votes"][0]
    assert first["said"][0]["text"] == "nonsense"
    assert first["why"]["text"].startswith("JSON was asked for")
    assert (first["file"], first["line"], first["tokens"]) == ("judge/calls/0001.jsonl", 1, 8)
    assert question["tally"][0] == ["correct", [["true", 2], ["false", 1]]]


def test_what_was_remembered_and_what_failed_is_told(graded: Path, reported: Reported) -> None:
    first, second = trajectories(reported(graded)[1])["counter-b-0"]["judged"]
    assert [each["outcome"] for each in first["votes"]] == ["unusable", "remembered", "remembered", "remembered"]
    assert first["tally"][0] == ["correct", [["true", 2], ["false", 1]]]
    assert [(each["outcome"], each["why"]["text"], each["said"]) for each in second["votes"]] == [
        ("failed", "a wrong key", [])
    ]


def test_a_rollout_without_a_judge_has_nothing_of_it(graded: Path, reported: Reported) -> None:
    assert "judged" not in trajectories(reported(graded)[1])["counter-c-0"]


def test_a_page_without_answers_has_none_of_what_the_judge_saw(graded: Path, reported: Reported) -> None:
    found = trajectories(reported(graded, page=PageOptions(answers=False))[1])
    assert all("judged" not in each for each in found.values())


def test_a_record_from_before_questions_were_told_apart_is_read_too(graded: Path, reported: Reported) -> None:
    [cassette] = (graded / JUDGE_CALLS).glob("*.jsonl")
    old = [json.loads(each) for each in cassette.read_text().splitlines()]
    for call in old:
        del call["judge"]
    cassette.write_text("".join(json.dumps(call) + "\n" for call in old) + '{"rollout": "torn')
    [question] = trajectories(reported(graded)[1])["counter-a-0"]["judged"]
    assert len(question["votes"]) == 4


def test_a_damaged_record_is_refused_by_its_line(graded: Path, reported: Reported) -> None:
    [cassette] = (graded / JUDGE_CALLS).glob("*.jsonl")
    cassette.write_text(cassette.read_text().replace('"call": 1,', '"call": "x",', 1))
    with pytest.raises(ConfigError, match=r"0001.jsonl:2 is no recorded call"):
        reported(graded)


def test_a_huge_question_is_cut_and_leaves_no_room_for_more(run: Run, reported: Reported) -> None:
    folder = run(line("a", 0, 1.0, sandbox="r-a"))
    judged(folder, ["yes"] * 4, ("r-a", [asked(f"{number} {'x' * 200_000}") for number in range(4)]))
    text = PageOptions(text=150_000)
    found = trajectories(reported(folder, page=text)[1])["counter-a-0"]["judged"]
    assert found[0]["asked"][0]["length"] == 200_002
    assert len(found) == 3
