"""The judge on the side of whoever calls verify: what it takes, remembers and refuses."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from gymbox import judge as module
from gymbox.environment import JudgeLimits
from gymbox.errors import ErrorKind, JudgeFailed, ModelFailure
from gymbox.http import HttpClient
from gymbox.judge import Judge
from gymbox.models import Call, Model
from gymbox.models.scripted import ScriptedModel
from gymbox_sandbox.responses import Response, ResponsesParams
from pydantic import PrivateAttr

SCHEMA = {"type": "object", "properties": {"correct": {"type": "boolean"}}, "required": ["correct"]}


class Says(Model):
    """Says its answers in turn, as many tokens as letters; an exception is raised, a dict is a response's fields."""

    name: str = "says"
    _answers: list[Any] = PrivateAttr(default_factory=list)
    _calls: list[tuple[ResponsesParams, Call]] = PrivateAttr(default_factory=list)
    _opened: list[bool] = PrivateAttr(default_factory=list)
    _at_once: list[int] = PrivateAttr(default_factory=lambda: [0])
    """How many were asked at each moment, in the end none."""

    @classmethod
    def of(cls, *answers: Any) -> Says:
        made = cls()
        made._answers = list(answers)
        return made

    async def open(self) -> None:
        self._opened.append(True)

    async def close(self) -> None:
        self._opened.append(False)

    async def responses(self, params: ResponsesParams, call: Call) -> Response:
        self._calls.append((params, call))
        answer = self._answers.pop(0)
        self._at_once.append(self._at_once[-1] + 1)
        await asyncio.sleep(0)
        self._at_once.append(self._at_once[-1] - 1)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, dict):
            return Response.model_validate({"status": "completed", **answer})
        message = {"type": "message", "role": "assistant", "content": answer}
        tokens = {"output_tokens": len(answer), "total_tokens": len(answer)}
        return Response.model_validate({"status": "completed", "output": [message], "usage": tokens})


def asked(*inputs: Any, schema: Any = None, sample: int = 0, **params: Any) -> bytes:
    text = {"text": {"format": {"type": "json_schema", "name": "judgement", "schema": schema}}} if schema else {}
    questions = [
        {"number": number, "sample": sample, "params": {"input": each, **text, **params}}
        for number, each in enumerate(inputs)
    ]
    return json.dumps({"questions": questions}).encode()


async def answers(model: Model, *bodies: bytes, gold: Any = None, **limits: Any) -> list[dict[str, Any]]:
    """Of one verify, for the last of its bodies."""
    async with HttpClient() as http, Judge(model, http) as judge:
        hearing = judge.hearing("rollout-1", JudgeLimits(**limits), gold)
        found = []
        for body in bodies:
            found = await hearing.answers(body)
        return found


async def test_an_answer_is_its_text_with_what_it_cost() -> None:
    model = Says.of("Yes.")
    assert await answers(model, asked("Right?")) == [{"number": 0, "text": "Yes.", "tokens": 4}]
    [(params, call)] = model._calls
    assert (params.input, call.rollout) == ("Right?", "rollout-1")
    assert model._opened == [True, False]


async def test_an_answer_to_a_schema_has_its_value() -> None:
    [found] = await answers(Says.of('{"correct": true}'), asked("Right?", schema=SCHEMA))
    assert found["value"] == {"correct": True}


async def test_the_same_question_is_answered_from_memory_and_each_vote_is_one_of_its_own() -> None:
    model = Says.of("one", "two")
    [again] = await answers(model, asked("?"), asked("?", sample=1), asked("?"))
    assert again == {"number": 0, "text": "one", "tokens": 3}
    assert len(model._calls) == 2


async def test_two_that_ask_the_same_at_once_get_the_same() -> None:
    one, other = await answers(Says.of("one", "two"), asked("?", "?"))
    assert one["text"] == other["text"] == "one"


async def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 1)
    assert (await answers(Says.of("a", "b", "c"), asked("1"), asked("2"), asked("1")))[0]["text"] == "c"
    monkeypatch.setattr(module, "REMEMBERED", 10)
    monkeypatch.setattr(module, "REMEMBERED_BYTES", 1)
    assert (await answers(Says.of("a", "b", "c"), asked("1"), asked("2"), asked("1")))[0]["text"] == "c"


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ("", "has no text"),
        ({"output": []}, "has no text"),
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "max_output_tokens"),
        ("x" * 5000, "judge.kilobytes"),
        (ModelFailure(ErrorKind.MODEL_BAD_RESPONSE, "nonsense"), "nonsense"),
    ],
)
async def test_what_is_no_usable_answer_is_asked_for_again(answer: Any, fault: str) -> None:
    assert (await answers(Says.of(answer, "Yes."), asked("?"), kilobytes=4))[0]["text"] == "Yes."
    with pytest.raises(JudgeFailed, match=f"in 3 tries.*{fault}"):
        await answers(Says.of(answer, answer, answer), asked("?"), kilobytes=4)


async def test_a_model_that_refuses_is_not_asked_again() -> None:
    model = Says.of(ModelFailure(ErrorKind.MODEL_UNAUTHORIZED, "a wrong key"))
    with pytest.raises(JudgeFailed, match="'says' cannot answer: a wrong key"):
        await answers(model, asked("?"))


async def test_no_answer_is_longer_than_the_tokens_that_are_left() -> None:
    model = Says.of("1234", "5")
    await answers(model, asked("a", max_output_tokens=100), asked("b", max_output_tokens=3), tokens=10)
    assert [params.max_output_tokens for params, _ in model._calls] == [10, 3]


async def test_questions_asked_at_once_spend_no_more_than_the_tokens_of_a_verify() -> None:
    bounded = Says.of(*["x" * 10] * 9)
    with pytest.raises(JudgeFailed, match=r"used up the 35 tokens.*judge\.tokens"):
        await answers(bounded, asked(*"abcdefghi", max_output_tokens=10), tokens=35)
    assert len(bounded._calls) == 4 and max(bounded._at_once) == 3
    assert [params.max_output_tokens for params, _ in bounded._calls] == [10, 10, 10, 5]
    unbounded = Says.of(*["x" * 1000] * 9)
    with pytest.raises(JudgeFailed, match="judge.tokens"):
        await answers(unbounded, asked(*"abcdefghi"), tokens=5000)
    # one, to know how long answers are; then as many at once as the rest has room for
    assert len(unbounded._calls) == 5 and max(unbounded._at_once) == 4


async def test_a_question_that_fails_gives_back_what_it_held() -> None:
    model = Says.of(ModelFailure(ErrorKind.MODEL_BAD_RESPONSE, "nonsense"), "Yes.", "No.")
    found = await answers(model, asked("a", "b", max_output_tokens=10), tokens=12)
    assert [answer["text"] for answer in found] == ["Yes.", "No."]


async def test_questions_wait_for_one_another_only_where_tokens_are_short() -> None:
    model = Says.of(*["x"] * 9)
    await answers(model, asked(*"abcdefghi"))
    assert max(model._at_once) == 9


@pytest.mark.parametrize(
    "body", [b"", b"{}", b'{"questions": []}', b'{"questions": [{"number": 1}]}', b'{"questions": 1}']
)
async def test_what_is_no_question_is_a_failure(body: bytes) -> None:
    with pytest.raises(JudgeFailed, match="form"):
        await answers(Says.of(), body)


async def test_a_schema_that_is_none_is_a_failure() -> None:
    with pytest.raises(JudgeFailed, match="schema"):
        await answers(Says.of("{}"), asked("?", schema={"type": "nonsense"}))


async def test_the_scripted_model_says_what_the_first_gold_judgement_says_that_fits() -> None:
    gold = [
        {"contains": "Paris", "says": {"correct": True}},
        {"contains": "Par", "says": {"correct": False}},
        {"contains": "text", "says": "plain"},
    ]
    messages = [{"role": "user", "content": [{"type": "input_text", "text": "Is it Paris?"}]}]
    first, second = await answers(ScriptedModel(), asked(messages, "Is it Parma?", schema=SCHEMA), gold=gold)
    assert (first["value"], second["value"]) == ({"correct": True}, {"correct": False})
    assert (await answers(ScriptedModel(), asked("a text"), gold=gold))[0]["text"] == "plain"
    with pytest.raises(JudgeFailed, match="no reply"):
        await answers(ScriptedModel(), asked("Rome?"), gold=gold)
    with pytest.raises(JudgeFailed, match="nothing to replay"):
        await answers(ScriptedModel(), asked("Rome?"))


SMUGGLED: dict[str, dict[str, Any]] = {
    "fields of the request": {
        "metadata": {"extra_body": json.dumps({"messages": [{"role": "user", "content": "mine"}], "tools": []})}
    },
    "fields of the template": {"metadata": {"chat_template_kwargs": "{}"}},
    "beside a message": {"input": [{"role": "user", "content": "?", "images": ["http://example.com/a.png"]}]},
    "a part of no type": {"input": [{"role": "user", "content": [{"type": ["image_url"], "text": "?"}]}]},
    "beside a part": {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "?", "image_url": "http://example.com"}]}
        ]
    },
}


@pytest.mark.parametrize("name", SMUGGLED)
async def test_a_question_smuggles_nothing_to_the_models_endpoint(name: str) -> None:
    model = Says.of("yes")
    with pytest.raises(JudgeFailed, match="extra_body|chat_template_kwargs|images|image_url"):
        await answers(model, asked("?", **SMUGGLED[name]))
    assert not model._calls


async def test_a_judges_own_marks_and_labels_are_let_through() -> None:
    part = {"type": "input_text", "text": "?", "cache_control": {"type": "ephemeral"}}
    body = asked([{"role": "user", "content": [part], "id": "m1", "status": "completed"}], metadata={"user_id": "u"})
    assert (await answers(Says.of("yes"), body))[0]["text"] == "yes"
