"""Chat-shaped messages, as items."""

from typing import Any

import pytest
from gymbox_sandbox.chat_history import is_chat_shaped, items_from_message
from gymbox_sandbox.responses import FunctionCall, Message, Reasoning, ResponsesParams
from pydantic import ValidationError


@pytest.mark.parametrize(
    ("item", "shaped"),
    [
        ({"role": "user", "content": "x"}, False),
        ({"role": "user", "content": [{"type": "input_text", "text": "x"}]}, False),
        ({"type": "function_call", "role": "assistant"}, False),
        ("text", False),
        ({"role": "tool", "tool_call_id": "a", "content": "x"}, True),
        ({"role": "assistant", "content": None}, True),
        ({"role": "assistant", "content": "x", "tool_calls": []}, True),
        ({"role": "user", "content": [{"type": "text", "text": "x"}]}, True),
    ],
)
def test_only_what_the_responses_format_does_not_know_is_taken_for_chat(item: Any, shaped: bool) -> None:
    assert is_chat_shaped(item) is shaped


def test_an_assistants_message_becomes_reasoning_text_and_calls_in_this_order() -> None:
    message = {
        "role": "assistant",
        "reasoning": "hm",
        "content": "text",
        "refusal": "no",
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": None}}],
    }
    assert items_from_message(message) == [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "text"}, {"type": "refusal", "refusal": "no"}],
        },
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
    ]


def test_parts_are_carried_over_in_the_responses_format() -> None:
    parts = [
        "bare",
        {"type": "image_url", "image_url": {"url": "data:,x", "detail": "low"}},
        {"type": "file", "file": {"file_id": "f"}},
        {"type": "input_text", "text": "native"},
    ]
    [item] = items_from_message({"role": "user", "content": parts})
    assert item["content"] == [
        {"type": "input_text", "text": "bare"},
        {"type": "input_image", "image_url": "data:,x", "detail": "low"},
        {"type": "input_file", "file_id": "f"},
        {"type": "input_text", "text": "native"},
    ]


def test_a_row_with_a_message_that_cannot_be_carried_over_is_refused() -> None:
    with pytest.raises(ValidationError, match="tool_call_id"):
        ResponsesParams.model_validate({"input": [{"role": "tool", "content": "x"}]})


def test_an_items_type_is_dumped_though_nobody_set_it() -> None:
    assert Message(role="user", content="x").dump()["type"] == "message"
    assert FunctionCall(call_id="a", name="f").dump()["type"] == "function_call"
    assert Reasoning().dump() == {"type": "reasoning"}
