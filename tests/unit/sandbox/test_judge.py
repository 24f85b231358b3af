"""What a verifier gets of its judge: values, votes, comparisons, or JudgeFailed."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest
from gymbox_sandbox.judge import Judge, JudgeFailed, Line, quoted
from gymbox_sandbox.problems import Invalid
from pydantic import BaseModel

SCHEMA = {"type": "object", "properties": {"correct": {"type": "boolean"}}, "required": ["correct"]}


class Grade(BaseModel):
    score: int
    reason: str = ""


class Scripted:
    """Answers by a function of the params and the number of the vote."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[dict[str, Any]] = []

    async def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(question)
        found = self.answer(question["params"], question["sample"])
        if isinstance(found, Exception):
            raise found
        return {"text": found if isinstance(found, str) else json.dumps(found), "value": found, "tokens": 10}


def in_turn(*answers: Any) -> Scripted:
    return Scripted(lambda params, sample: answers[sample])


async def test_without_a_schema_the_answer_is_its_text() -> None:
    line = in_turn("Yes.")
    assert await Judge(line).ask("Is it right?") == "Yes."
    assert line.asked == [{"params": {"input": "Is it right?"}, "sample": 0}]


async def test_messages_and_params_are_asked_as_they_are() -> None:
    line, messages = in_turn("Yes."), [{"role": "user", "content": "Right?"}]
    judge = Judge(line)
    await judge.ask(messages)
    await judge.ask({"input": messages, "temperature": 0.5})
    assert [asked["params"] for asked in line.asked] == [
        {"input": messages},
        {"input": messages, "temperature": 0.5},
    ]


async def test_with_a_schema_the_answer_is_its_value() -> None:
    line = in_turn({"correct": True})
    assert await Judge(line).ask("Right?", schema=SCHEMA) == {"correct": True}
    assert line.asked[0]["params"]["text"]["format"]["schema"] == SCHEMA


async def test_with_a_model_the_answer_is_an_instance() -> None:
    line = in_turn({"score": 3})
    assert await Judge(line).ask("How good?", schema=Grade) == Grade(score=3)
    assert line.asked[0]["params"]["text"]["format"]["schema"]["required"] == ["score"]


async def test_what_the_model_does_not_take_is_a_failure_that_stands() -> None:
    judge = Judge(in_turn({"score": "high"}))
    with pytest.raises(JudgeFailed, match="Grade.*score"):
        await judge.ask("How good?", schema=Grade)
    assert judge.failed is not None


async def test_a_form_is_given_once() -> None:
    with pytest.raises(ValueError, match="once"):
        await Judge(in_turn("x")).ask({"input": "?", "text": {}}, schema=SCHEMA)


async def test_the_majority_of_the_votes_counts_by_the_field_that_is_named() -> None:
    judge = Judge(in_turn({"score": 1, "reason": "a"}, {"score": 0, "reason": "b"}, {"score": 1, "reason": "c"}))
    assert await judge.ask("How good?", schema=Grade, votes=3, on="score") == Grade(score=1, reason="a")
    assert judge.metrics() == {
        "judge_calls": 3,
        "judge_tokens": 30,
        "judge_agreement": round(2 / 3, 6),
    }


async def test_no_majority_is_a_failure_or_what_the_author_says() -> None:
    judge = Judge(in_turn("a", "b"))
    assert await judge.ask("?", votes=2, tie="neither") == "neither"
    assert judge.failed is None
    with pytest.raises(JudgeFailed, match="1 of 2 votes"):
        await judge.ask("?", votes=2)
    assert judge.failed is not None


async def test_votes_can_only_be_compared_by_a_field_that_is_there() -> None:
    with pytest.raises(ValueError, match="no field 'mark'"):
        await Judge(in_turn({"score": 1}, {"score": 1})).ask("?", schema=SCHEMA, votes=2, on="mark")


@pytest.mark.parametrize("votes", [0, 100])
async def test_the_number_of_votes_is_bounded(votes: int) -> None:
    with pytest.raises(ValueError, match="votes"):
        await Judge(in_turn()).poll("?", votes=votes)


async def test_a_poll_gives_every_vote() -> None:
    assert await Judge(in_turn("1", "2", "4")).poll("?", votes=3) == ["1", "2", "4"]


async def test_a_comparison_counts_for_a_text_only_in_both_orders() -> None:
    def fair(params: Any, sample: int) -> Any:
        return {"winner": "A" if params["input"].index("good") < params["input"].index("bad") else "B"}

    assert await Judge(Scripted(fair)).compare("Which?", "good", "bad") == "first"
    assert await Judge(Scripted(fair)).compare("Which?", "bad", "good") == "second"
    assert await Judge(Scripted(lambda params, sample: {"winner": "A"})).compare("Which?", "x", "y") == "tie"
    assert (
        await Judge(Scripted(lambda params, sample: {"winner": "tie"})).compare("Which?", "x", "y", votes=3) == "tie"
    )
    line = Scripted(fair)
    assert await Judge(line).compare("Which?", "good", "bad", votes=3) == "first"
    assert len(line.asked) == 6


async def test_one_failing_vote_fails_them_all() -> None:
    judge = Judge(in_turn("a", JudgeFailed("gone"), "a"))
    with pytest.raises(JudgeFailed, match="gone"):
        await judge.ask("?", votes=3)
    assert judge.failed is not None


async def test_nothing_asked_gives_no_metrics() -> None:
    assert Judge(in_turn()).metrics() == {}


def test_marks_cannot_be_contained_in_what_they_quote() -> None:
    inner = quoted("a")
    assert inner != quoted(inner) and quoted(inner).splitlines()[0] not in inner
    assert quoted("a") == inner


async def test_nobody_who_takes_questions_is_a_failure() -> None:
    with pytest.raises(JudgeFailed, match="judge: true"):
        await Line().ask({"params": {}})


async def test_questions_of_one_moment_leave_together_and_each_gets_its_answer() -> None:
    line = Line()
    line.attend()
    asking = asyncio.ensure_future(asyncio.gather(*(line.ask({"params": {"input": str(n)}}) for n in range(3))))
    verdict = asyncio.create_task(asyncio.sleep(60))
    questions = await line.until_asked(verdict)
    assert [question["params"]["input"] for question in questions] == ["0", "1", "2"]
    assert await line.until_asked(verdict) == questions  # the answer that held them may have been lost
    answers = [{"number": question["number"], "text": question["params"]["input"]} for question in questions]
    line.take(json.dumps({"answers": answers[:2]}).encode())
    line.take(
        json.dumps({"answers": [{"number": 1, "text": "late"}, {"number": 99, "text": "?"}, answers[2]]}).encode()
    )
    assert [answer["text"] for answer in await asking] == ["0", "1", "2"]
    verdict.cancel()


async def test_an_answer_that_says_why_there_is_none_is_a_failure() -> None:
    line = Line()
    line.attend()
    asking = asyncio.create_task(line.ask({"params": {}}))
    await asyncio.sleep(0)
    line.take(b'{"answers": [{"number": 1, "failed": "no model"}]}')
    with pytest.raises(JudgeFailed, match="no model"):
        await asking


async def test_a_verdict_ends_the_wait_for_questions() -> None:
    verdict = asyncio.create_task(asyncio.sleep(0, 1.0))
    assert await Line().until_asked(verdict) == []


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"answers": 1}', b'{"answers": [{}]}', b'{"answers": [{"number": "x"}]}']
)
async def test_what_is_no_answer_is_refused(body: bytes) -> None:
    with pytest.raises(Invalid, match="/verify/answers"):
        Line().take(body)


async def test_another_event_loop_cannot_ask() -> None:
    line = Line()
    line.attend()

    def elsewhere() -> None:
        with pytest.raises(RuntimeError, match="must be async"):
            asyncio.run(line.ask({"params": {}}))

    await asyncio.to_thread(elsewhere)


def test_a_server_that_asks_nothing_does_not_import_it() -> None:
    check = "import sys, gymbox_sandbox.serve, gymbox_sandbox.commands; print('gymbox_sandbox.judge' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
