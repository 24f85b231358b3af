"""A rollout as Chat messages."""

from __future__ import annotations

from typing import Any

import pytest
from gymbox.evaluation.rollouts import rollout_of
from gymbox.exports.conversations import Conversation, Reasoning, conversation_of
from gymbox.exports.left_out import Reason, Unfit

from tests.unit.exports.conftest import ADD, CHAT_ADD, answered, called, result, said, thought


def told(*output: dict[str, Any], params: dict[str, Any] | None = None, **more: Any) -> Conversation:
    line = answered("a", 0, 1.0, *output)
    if params is not None:
        line["responses_create_params"] = params
    return conversation_of(rollout_of(line), **more)


def refused(*output: dict[str, Any], params: dict[str, Any] | None = None) -> Unfit:
    with pytest.raises(Unfit) as caught:
        told(*output, params=params)
    return caught.value


def test_calls_have_objects_for_arguments_and_their_results_follow() -> None:
    found = told(called(), result(), said("2"), params={"input": "do a", "tools": [ADD]})
    assert found.prompt == [{"role": "user", "content": "do a"}]
    assert found.tools == [CHAT_ADD]
    assert found.answer == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}],
        },
        {"role": "tool", "content": "2", "tool_call_id": "c1"},
        {"role": "assistant", "content": "2"},
    ]


@pytest.mark.parametrize(
    ("reasoning", "message"),
    [
        (Reasoning.KEEP, {"role": "assistant", "content": "2", "reasoning_content": "hm"}),
        (Reasoning.THINK, {"role": "assistant", "content": "<think>\nhm\n</think>\n\n2"}),
        (Reasoning.DROP, {"role": "assistant", "content": "2"}),
    ],
)
def test_reasoning_is_kept_tagged_or_dropped(reasoning: Reasoning, message: dict[str, Any]) -> None:
    assert told(thought("hm"), said("2"), reasoning=reasoning).answer == [message]


def test_the_system_prompt_is_the_rows_or_else_the_agents() -> None:
    own = {"input": "x", "instructions": "row"}
    assert told(said("2"), params=own, instructions="agent").prompt[0] == {"role": "system", "content": "row"}
    assert told(said("2"), instructions="agent").prompt[0] == {"role": "system", "content": "agent"}
    assert told(said("2")).prompt == [{"role": "user", "content": "do a"}]


def test_tools_are_those_that_the_model_was_shown() -> None:
    line = answered("a", 0, 1.0, said("2"))
    line["response"]["tools"] = [ADD]
    assert conversation_of(rollout_of(line)).tools == [CHAT_ADD]


def test_text_in_parts_is_one_text() -> None:
    parts = [{"type": "input_text", "text": "do "}, {"type": "input_text", "text": "it"}]
    found = told(said("2", refusal=None), params={"input": [{"role": "user", "content": parts}]})
    assert found.prompt == [{"role": "user", "content": "do it"}]


def test_fields_that_only_the_record_has_are_left_out() -> None:
    found = told(said("2", id="m1", status="completed", prompt_token_ids=[1], phase="final", own="x"))
    assert found.answer == [{"role": "assistant", "content": "2"}]


def test_what_has_no_place_says_why() -> None:
    image = {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]}
    why = refused(said("2"), params=image)
    assert why.reason is Reason.NOT_TEXT and "image_url" in why.detail
    assert refused(called()).reason is Reason.NOT_CHAT  # its result is missing
    assert "no JSON object" in refused(called(arguments="{a"), result(), said("2")).detail
    assert refused({"type": "web_search_call"}).reason is Reason.NOT_CHAT
    assert refused(said("2"), params={"input": []}).detail == "the row asks nothing"
    assert refused(said("2"), params={"input": 3}).reason is Reason.NOT_CHAT
    assert refused({"role": "user", "content": "hello"}).reason is Reason.NO_ANSWER
    refusal = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}
    assert refused(refusal).reason is Reason.NOT_TEXT


def test_an_answer_that_goes_on_in_a_message_of_the_prompt_cannot_be_told_apart() -> None:
    asked = {"input": [{"role": "user", "content": "x"}, thought("so")]}
    assert "middle of a message" in refused(said("2"), params=asked).detail
