from __future__ import annotations

from typing import Any

import pytest
from gymbox.datasets.shapes import Misfit, Shaping, chat_row
from gymbox_sandbox.responses import ResponsesParams

from tests.unit.datasets.conftest import task

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
CHAT: dict[str, Any] = {
    "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "1+1"}],
    "tools": [TOOL],
    "temperature": 0.5,
    "answer": "2",
}


def test_a_task_row_is_itself() -> None:
    row = task("1+1", agent_ref={"name": "a"}, _ng_task_index=3)
    assert Shaping().task(row) is row


def test_a_chat_row_becomes_a_task() -> None:
    found = Shaping().task(CHAT)
    params = ResponsesParams.model_validate(found["responses_create_params"])
    assert [item["content"] for item in found["responses_create_params"]["input"]] == ["be brief", "1+1"]
    assert params.temperature == 0.5
    assert found["responses_create_params"]["tools"][0]["name"] == "add"
    assert found["answer"] == "2"
    assert "messages" not in found and "tools" not in found


def test_a_chat_row_comes_back_the_same() -> None:
    found = chat_row(Shaping().task(CHAT))
    assert found["messages"] == CHAT["messages"]
    assert found["temperature"] == 0.5 and found["answer"] == "2"
    assert found["tools"][0]["function"]["name"] == "add"


def test_a_prompt_that_is_a_list_is_of_chat_messages() -> None:
    found = Shaping().task({"prompt": [{"role": "user", "content": "1+1"}]})
    assert found["responses_create_params"]["input"][0]["content"] == "1+1"


def test_the_answer_that_ends_chat_messages_is_the_gold_reply_or_refused() -> None:
    row = {"messages": [*CHAT["messages"], {"role": "assistant", "content": "2"}]}
    with pytest.raises(Misfit, match="which the agent would see; .*--gold"):
        Shaping().task(row)
    found = Shaping(gold=True).task(row)
    assert len(found["responses_create_params"]["input"]) == 2
    [[reply]] = found["gold_replies"]
    assert reply["role"] == "assistant" and "2" in str(reply["content"])
    with pytest.raises(Misfit, match="gold_replies: are there already"):
        Shaping(gold=True).task({**row, "gold_replies": []})
    with pytest.raises(Misfit, match=r"messages\[-1\]"):
        Shaping(gold=True).task({"messages": [{"role": "assistant", "tool_calls": 3}]})
    with pytest.raises(Misfit, match="holds no question"):
        Shaping(gold=True).task({"messages": [{"role": "assistant", "content": "2"}]})


def test_a_text_field_becomes_the_users_message() -> None:
    shaping = Shaping(prompt_field="question", id_field="number", hide=("answer",), drop=("junk",))
    found = shaping.task({"number": "7", "question": "1+1", "answer": "2", "junk": 0, "verifier_metadata": {"a": 1}})
    assert found == {**task("1+1"), "id": "7", "verifier_metadata": {"a": 1, "answer": "2"}}


@pytest.mark.parametrize(
    ("shaping", "row", "said"),
    [
        (Shaping(), {"question": "x"}, "which field asks the task.*--prompt-field"),
        (Shaping(), {"response_create_params": {}}, "did you mean 'response_create_params'"),
        (
            Shaping(prompt_field="qestion"),
            {"question": "x"},
            "qestion: there is no such field; did you mean 'question'",
        ),
        (Shaping(prompt_field="question"), {"question": " "}, "question: is no text, or empty"),
        (Shaping(hide=("anwser",)), task("x", answer=1), "anwser: there is no such field; did you mean 'answer'"),
        (Shaping(hide=("a",)), task("x", a=1, verifier_metadata={"a": 2}), "verifier_metadata.a: is there already"),
        (Shaping(hide=("a",)), task("x", a=1, verifier_metadata=3), "verifier_metadata: is no object"),
        (Shaping(id_field="n"), task("x", n=1, id=2), "id: would be replaced by 'n'"),
        (
            Shaping(),
            {"messages": [{"role": "assistant", "tool_calls": 3}, {"role": "user", "content": "x"}]},
            r"messages: messages\[0\]",
        ),
    ],
)
def test_what_cannot_be_made_a_task_is_told_by_field(shaping: Shaping, row: dict[str, Any], said: str) -> None:
    with pytest.raises(Misfit, match=said):
        shaping.task(row)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"responses_create_params": 3}, "is not as it should be"),
        (
            {"responses_create_params": {"input": "x", "previous_response_id": "r"}},
            "responses_create_params: .*previous_response_id",
        ),
        (task("x", messages=[]), "messages: stands beside the params and in them"),
    ],
)
def test_what_chat_has_no_place_for_is_told(row: dict[str, Any], said: str) -> None:
    with pytest.raises(Misfit, match=said):
        chat_row(row)
