"""Fields that the Chat and the Responses format say in different ways, one by one."""

from typing import Any

import pytest
from gymbox.errors import Invalid
from gymbox.models.chat_answers import chat_from_response, response_from_chat
from gymbox.models.chat_requests import chat_from_params, params_from_chat
from gymbox_sandbox.responses import ResponsesParams
from pydantic import ValidationError

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
USER = {"role": "user", "content": "hi"}


def asked(**fields: Any) -> ResponsesParams:
    return ResponsesParams.model_validate({"input": "hi", **fields})


def answer(message: dict[str, Any], finish: Any = "stop", **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    return {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], **more}


def test_a_choice_among_some_tools_goes_both_ways() -> None:
    chosen = {"mode": "required", "tools": [{"type": "function", "function": {"name": "add"}}]}
    body = {"messages": [USER], "tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": chosen}}
    params = params_from_chat(body)
    assert params.tool_choice == {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "add"}],
    }
    assert chat_from_params(params) == body


def test_a_tool_is_loose_unless_chat_says_otherwise() -> None:
    assert params_from_chat({"messages": [USER], "tools": [TOOL]}).tools[0]["strict"] is False


def test_asking_for_alternatives_asks_for_log_probs() -> None:
    assert chat_from_params(asked(top_logprobs=2))["logprobs"] is True


def test_the_limit_is_called_what_the_endpoint_calls_it() -> None:
    assert chat_from_params(asked(max_output_tokens=5), limit_field="max_completion_tokens") == {
        "messages": [USER],
        "max_completion_tokens": 5,
    }


def test_a_providers_own_fields_of_reasoning_stay_beside_the_effort() -> None:
    params = params_from_chat({"messages": [USER], "reasoning_effort": "low", "reasoning": {"max_tokens": 9}})
    sent = chat_from_params(params)
    assert (sent["reasoning_effort"], sent["reasoning"]) == ("low", {"max_tokens": 9})
    assert set(chat_from_params(asked(reasoning={"summary": "auto"}))) == {"messages"}


def test_fields_in_the_metadata_are_sent_as_nemo_gym_does() -> None:
    metadata = {"extra_body": '{"seed": 3}', "chat_template_kwargs": '{"enable_thinking": false}', "kept": "x"}
    sent = chat_from_params(asked(metadata=metadata))
    assert (sent["seed"], sent["chat_template_kwargs"]) == (3, {"enable_thinking": False})
    assert sent["metadata"] == {"kept": "x"}
    assert "metadata" not in chat_from_params(asked(metadata={"extra_body": "{}", "chat_template_kwargs": "{}"}))


@pytest.mark.parametrize("value", ["{", "[1]"])
def test_fields_in_the_metadata_that_are_no_object_are_refused(value: str) -> None:
    with pytest.raises(Invalid, match="metadata.extra_body"):
        chat_from_params(asked(metadata={"extra_body": value}))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_tokens": 1, "max_completion_tokens": 2}, "two things"),
        ({"reasoning_effort": "low", "reasoning": {"effort": "high"}}, "two things"),
        ({"reasoning_effort": "low", "reasoning": "high"}, "reasoning"),
        ({"tools": 3}, "tools"),
        ({"input": "x"}, "input"),
        ({"instructions": "x"}, "instructions"),
        ({"previous_response_id": "x"}, "previous_response_id"),
        ({"messages": [3]}, r"messages\[0\]"),
        ({"messages": [{"role": "assistant", "tool_calls": 3}]}, "tool_calls must be a list"),
        ({"messages": [{"role": "assistant", "tool_calls": [3]}]}, "must be an object"),
        ({"messages": [{"role": "assistant", "reasoning_items": [3]}]}, "reasoning_items"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "needs a url"),
        ({"messages": [{"role": "user", "content": [{"type": "file", "file": 3}]}]}, "needs its file"),
    ],
)
def test_what_a_chat_request_says_wrongly_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(Invalid, match=named):
        params_from_chat({"messages": [USER], **fields})


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"tool_choice": "required"}, "there are none"),
        ({"reasoning": {"context": "all_turns"}}, "reasoning.context"),
        ({"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "wrong"}}}}, "JSON schema"),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": 3}]}]}, "not a string"),
        ({"input": [{"type": "reasoning", "summary": [], "content": [3]}, USER]}, "list of parts"),
    ],
)
def test_what_params_say_wrongly_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(Invalid, match=named):
        chat_from_params(asked(**fields))


def test_an_output_before_its_call_is_an_orphan() -> None:
    call = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "a", "output": "x"}
    with pytest.raises(Invalid, match="no earlier call"):
        chat_from_params(asked(input=[output, call]))


@pytest.mark.parametrize("name", ["reasoning", "text", "include"])
def test_a_field_of_another_shape_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValidationError, match=f"{name} must be"):
        asked(**{name: 3})


def test_defaults_fill_what_is_unset_and_leave_the_history_alone() -> None:
    params = asked(temperature=None, top_p=0.5)
    merged = params.with_defaults({"temperature": 0.1, "top_p": 0.9, "seed": 1})
    assert merged.dump() == {"input": "hi", "temperature": 0.1, "top_p": 0.5, "seed": 1}
    assert merged.input is params.input and params.with_defaults({}) is params


@pytest.mark.parametrize(
    ("usage", "cached", "reasoning"),
    [
        ({"prompt_cache_hit_tokens": 3, "prompt_cache_miss_tokens": 1}, 3, 0),
        ({"cached_tokens": 2}, 2, 0),
        ({"reasoning_tokens": 4}, 0, 4),
        ({"prompt_tokens_details": {"cached_tokens": 1}, "completion_tokens_details": {"reasoning_tokens": 2}}, 1, 2),
        ({"prompt_tokens_details": None, "completion_tokens_details": {"reasoning_tokens": None}}, 0, 0),
    ],
)
def test_cached_and_reasoning_tokens_are_found_where_providers_put_them(
    usage: dict[str, Any], cached: int, reasoning: int
) -> None:
    body = answer({"content": "x"}, usage={"prompt_tokens": 5, "completion_tokens": 6, "cost": 0.5, **usage})
    found = response_from_chat(body).dump()["usage"]
    assert found["input_tokens_details"]["cached_tokens"] == cached
    assert found["output_tokens_details"]["reasoning_tokens"] == reasoning
    assert (found["total_tokens"], found["cost"]) == (11, 0.5)


@pytest.mark.parametrize(
    "usage",
    [{"prompt_tokens": "many"}, {"prompt_tokens": -1}, {"completion_tokens_details": [1]}, {"cached_tokens": 0.5}],
)
def test_counts_that_are_none_are_refused_by_name(usage: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match="usage"):
        response_from_chat(answer({"content": "x"}, usage=usage))


@pytest.mark.parametrize("finish", ["content_filter", "content_filter: SAFETY"])
def test_a_filter_that_tells_its_reason_is_a_filter(finish: str) -> None:
    assert response_from_chat(answer({"content": "x"}, finish)).incomplete_details == {"reason": "content_filter"}


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ({"content": None, "function_call": {"name": "f", "arguments": "{}"}}, "function_call"),
        ({"content": [{"type": "image_url"}]}, "image_url"),
        ({"content": ["x"]}, "str"),
        ({"tool_calls": {"a": 1}}, "not a list"),
    ],
)
def test_what_an_answer_says_that_responses_cannot_is_refused_by_name(message: dict[str, Any], named: str) -> None:
    with pytest.raises(Invalid, match=named):
        response_from_chat(answer(message))


def test_what_a_provider_wants_back_goes_back_where_it_stood() -> None:
    message = {
        "content": None,
        "reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}],
        "tool_calls": [
            {
                "id": "a",
                "type": "function",
                "function": {"name": "f", "arguments": "{}"},
                "extra_content": {"google": {"thought_signature": "s"}},
            }
        ],
    }
    response = response_from_chat(answer(message, "tool_calls"))
    assert chat_from_response(response)["choices"][0]["message"] == {"role": "assistant", **message}
    output = {"type": "function_call_output", "call_id": "a", "output": "ok"}
    history = [*response.dump()["output"], output]
    assert chat_from_params(asked(input=history))["messages"][0] == {"role": "assistant", **message}
