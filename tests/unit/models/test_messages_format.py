"""The Messages format: what is asked and answered, converted both ways, one behaviour a test."""

import json
from typing import Any

import pytest
from gymbox.errors import Invalid
from gymbox.models.messages_answers import messages_from_response, response_from_messages
from gymbox.models.messages_requests import messages_from_params, params_from_messages
from gymbox_sandbox.responses import Reasoning, Response, ResponsesParams

USER = {"type": "message", "role": "user", "content": "add"}
PNG = "data:image/png;base64,iVBORw0KGgo="


def call(identity: str, arguments: str = "{}") -> dict[str, Any]:
    return {"type": "function_call", "call_id": identity, "name": "add", "arguments": arguments}


def output(identity: str, content: Any = "3", **more: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": identity, "output": content, **more}


def asked(*items: dict[str, Any], **more: Any) -> dict[str, Any]:
    options = {name: more.pop(name) for name in ("max_tokens", "thinking", "foreign") if name in more}
    return messages_from_params(ResponsesParams.model_validate({"input": list(items), **more}), **options)


def read(*messages: dict[str, Any], **more: Any) -> ResponsesParams:
    return params_from_messages({"model": "m", "max_tokens": 9, "messages": list(messages), **more})


def answered(*content: dict[str, Any], stop: str = "end_turn", **more: Any) -> Response:
    return response_from_messages({"content": list(content), "stop_reason": stop, **more})


def said(*output: dict[str, Any], **more: Any) -> dict[str, Any]:
    return messages_from_response(Response.model_validate({"status": "completed", "output": list(output), **more}))


def text(content: str, **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": content, **more}]}


# --- histories


def test_one_turn_is_one_message_and_its_results_open_the_next_in_call_order() -> None:
    more = {"type": "message", "role": "user", "content": "go on"}
    body = asked(USER, text("adding"), call("a"), call("b"), output("b", "2"), output("a", "1"), more)

    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
    assert [block["type"] for block in body["messages"][1]["content"]] == ["text", "tool_use", "tool_use"]
    assert body["messages"][2]["content"] == [
        {"type": "tool_result", "tool_use_id": "a", "content": "1"},
        {"type": "tool_result", "tool_use_id": "b", "content": "2"},
        {"type": "text", "text": "go on"},
    ]


def test_calls_that_were_answered_one_by_one_are_turns_of_their_own() -> None:
    body = asked(USER, call("a"), output("a"), call("b"), output("b"))

    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user", "assistant", "user"]


def test_a_user_who_spoke_between_call_and_result_is_heard_after_the_result() -> None:
    body = asked(USER, call("a"), {"role": "user", "content": "hurry"}, output("a"))

    assert [block["type"] for block in body["messages"][2]["content"]] == ["tool_result", "text"]


def test_blank_texts_have_no_block() -> None:
    body = asked(USER, text(""), call("a"), output("a", [{"type": "input_text", "text": " "}]), text("\n"))

    assert [block["type"] for message in body["messages"][1:] for block in message["content"]] == [
        "tool_use",
        "tool_result",
    ]
    assert "content" not in body["messages"][2]["content"][0]
    with pytest.raises(Invalid, match="says nothing"):
        asked({"role": "user", "content": " "})


def test_the_last_words_of_a_model_end_without_white_space() -> None:
    assert asked(USER, text("The answer is "))["messages"][-1]["content"] == [
        {"type": "text", "text": "The answer is"}
    ]


def test_ids_of_calls_are_made_legal_and_unique() -> None:
    body = asked(USER, call("f:0"), output("f:0"), call("f:0"), output("f:0"))

    ids = [block.get("id") or block["tool_use_id"] for message in body["messages"][1:] for block in message["content"]]
    assert ids == ["f_0", "f_0", "f_0_2", "f_0_2"]


@pytest.mark.parametrize(
    ("items", "fault"),
    [
        ([USER, call("a")], r"input\[1\]: the call 'a' of 'add' has no output"),
        ([USER, output("a")], r"input\[1\]: an output for 'a'"),
        ([output("a"), USER, call("a")], r"input\[0\]: an output for 'a', which no earlier call has"),
        ([USER, {"type": "web_search_call", "id": "x"}], r"input\[1\]: an item of type 'web_search_call'"),
        ([{"role": "user", "content": [{"type": "input_audio"}]}], r"input\[0\]: a part of type 'input_audio'"),
        ([USER, {"role": "assistant", "content": [{"type": "input_image", "image_url": PNG}]}], "only hold text"),
        ([USER, call("a"), output("a", [{"type": "input_audio"}])], r"input\[2\]: a part of type 'input_audio'"),
        (
            [USER, call("a"), output("a", [{"type": "input_audio"}]), USER],
            r"^input\[2\]: a part of type 'input_audio'",
        ),
        ([{"role": "user", "content": [{"type": "input_image", "image_url": "data:x"}]}], "must be base64"),
        ([{"role": "user", "content": [{"type": "input_image"}]}], "needs its image_url"),
        ([{"role": "user", "content": [{"type": "input_file"}]}], "needs its file_data"),
        (
            [{"role": "user", "content": [{"type": "input_file", "file_data": "data:audio/wav;base64,aa"}]}],
            "of type 'audio/wav'",
        ),
        (
            [{"role": "user", "content": [{"type": "input_file", "filename": "a.txt", "file_data": "%"}]}],
            "no UTF-8 text",
        ),
    ],
)
def test_what_has_no_place_in_a_history_is_refused_by_name(items: list[dict[str, Any]], fault: str) -> None:
    with pytest.raises(Invalid, match=fault):
        asked(*items)


def test_images_in_a_tools_result_stay_in_the_result() -> None:
    shown = [{"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": PNG, "detail": "high"}]
    body = asked(USER, call("a"), output("a", shown, status="incomplete"))

    source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    assert body["messages"][-1]["content"] == [
        {
            "type": "tool_result",
            "tool_use_id": "a",
            "is_error": True,
            "content": [{"type": "text", "text": "see"}, {"type": "image", "source": source}],
        }
    ]


def test_a_bare_file_is_what_its_name_says() -> None:
    files = [{"type": "input_file", "filename": name, "file_data": "aGk="} for name in ("a.pdf", "b.md")]
    blocks = asked({"role": "user", "content": files})["messages"][0]["content"]

    assert [block["source"]["media_type"] for block in blocks] == ["application/pdf", "text/plain"]
    assert [block["title"] for block in blocks] == ["a.pdf", "b.md"]
    assert blocks[1]["source"]["data"] == "hi"


def test_arguments_that_are_no_object_are_wrapped() -> None:
    body = asked(USER, call("a", "[1"), call("b", ""), output("a"), output("b"))

    inputs = [block["input"] for block in body["messages"][1]["content"]]
    assert inputs == [{"invalid_arguments": "[1"}, {}]


def test_system_messages_open_the_request_and_later_ones_stay_in_place() -> None:
    first = {"role": "developer", "content": "be kind"}
    body = asked(first, USER, {"role": "system", "content": "be brief"}, instructions="be true")

    assert body["system"] == [{"type": "text", "text": "be true"}, {"type": "text", "text": "be kind"}]
    assert body["messages"][1] == {"role": "system", "content": "be brief"}
    assert asked(USER, instructions=" ").get("system") is None
    assert read({"role": "user", "content": "hi"}, {"role": "system", "content": "brief"}).items[1].dump() == {
        "type": "message",
        "role": "system",
        "content": "brief",
    }


def test_only_thinking_that_anthropic_signed_goes_back_to_it() -> None:
    ours = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    sealed = {**ours, "id": "rs_1", "encrypted_content": "gAAAA"}
    signed = {**ours, "encrypted_content": "thinking:sig"}

    for item in (ours, sealed):
        assert [block["type"] for block in asked(USER, item, text("yes"))["messages"][1]["content"]] == ["text"]
    kept = asked(USER, signed, text("yes"))["messages"][1]["content"]
    assert kept[0] == {"type": "thinking", "thinking": "hm", "signature": "sig"}
    assert asked(USER, ours, text("yes"), foreign=True)["messages"][1]["content"][0]["thinking"] == "hm"
    assert (
        len(asked(USER, {"type": "reasoning", "summary": []}, text("yes"), foreign=True)["messages"][1]["content"])
        == 1
    )


def test_reasoning_of_another_provider_comes_back_whole_through_a_caller_who_speaks_messages() -> None:
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA"}
    [block, _] = said(item, text("yes"))["content"]

    back = read({"role": "user", "content": "hi"}, {"role": "assistant", "content": [block]}).items[1]

    assert isinstance(back, Reasoning) and back.dump() == item
    for changed in ("item:!", "item:W10=", 7):
        with pytest.raises(Invalid, match="signature"):
            read({"role": "assistant", "content": [{**block, "signature": changed}]})


def test_what_ran_at_the_provider_is_carried_as_it_is() -> None:
    block = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    response = answered(block, found, {"type": "text", "text": "so"})

    assert [item.type for item in response.output] == ["server_tool_use", "web_search_tool_result", "message"]
    assert messages_from_response(response)["content"][:2] == [block, found]
    body = asked(USER, *[item.dump() for item in response.output])
    assert body["messages"][1]["content"][:2] == [block, found]


# --- requests


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ({"previous_response_id": "x"}, "previous_response_id"),
        ({"truncation": "auto"}, "truncation"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"reasoning": {"effort": "extreme"}}, "reasoning.effort"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ({"reasoning": {"budget": 3}}, "reasoning.budget"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"tool_choice": "required"}, "there are none"),
        ({"tools": [{"type": "web_search"}]}, "tools: .* not 'web_search'"),
        ({"tools": [{"type": "function", "name": "f", "parameters": 3}]}, "parameters of 'f'"),
        ({"tools": [{"type": "function", "name": "f"}], "tool_choice": {"type": "custom"}}, "tool_choice"),
        (
            {"tools": [{"type": "function", "name": "f"}], "tool_choice": {"type": "allowed_tools", "tools": []}},
            "allows none",
        ),
        ({"metadata": {"extra_body": "{"}}, "metadata.extra_body: it is not JSON"),
        ({"metadata": {"extra_body": "[]"}}, "metadata.extra_body: a JSON object"),
    ],
)
def test_what_a_messages_request_cannot_ask_is_refused_by_name(more: dict[str, Any], fault: str) -> None:
    with pytest.raises(Invalid, match=fault):
        asked(USER, **more)


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ({"container": "c"}, "container"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"input": "hi"}, "input"),
        ({"speed": "fast"}, "speed"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management"),
        ({"system": 3}, "system: a string"),
        ({"system": [{"type": "image", "source": {"type": "url", "url": "x"}}]}, "system: it can only hold text"),
        ({"system": [{"type": "odd"}]}, "system: a block of type 'odd'"),
        ({"metadata": 3}, "metadata: an object"),
        ({"metadata": {"team": "x"}}, "metadata.team"),
        ({"service_tier": "fast"}, "service_tier"),
        ({"output_config": 3}, "output_config: an object"),
        ({"output_config": {"style": 1}}, "output_config.style"),
        ({"output_config": {"format": {"type": "grammar"}}}, "output_config.format"),
        ({"thinking": {"type": "between_tools"}}, "thinking"),
        ({"thinking": {"type": "enabled"}}, "budget_tokens"),
        ({"tools": 3}, "tools: a list"),
        ({"tools": [{"type": "odd"}]}, "tools: cannot be carried over"),
        ({"tools": [{"name": "f"}]}, "input_schema"),
        ({"tool_choice": {"type": "odd"}}, "tool_choice"),
        ({"max_tokens": "many"}, "max_output_tokens"),
        ({"messages": []}, "messages: a Messages request"),
        ({"messages": [3]}, r"messages\[0\]: a message must be an object"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "role must be user, assistant or system"),
        ({"messages": [{"role": "user", "content": 3}]}, "content must be a string or a list"),
        ({"messages": [{"role": "user", "content": [3]}]}, "3 is no content block"),
        ({"messages": [{"role": "user", "content": [{"type": "search_result"}]}]}, "of type 'search_result'"),
        ({"messages": [{"role": "assistant", "content": [{"type": "image"}]}]}, "in an assistant's turn"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "needs its source"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "x"}}]}]}, "of type 'x'"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url"}}]}]}, "needs its url"),
        (
            {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "content"}}]}]},
            "of type 'content'",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": 3}]}]},
            "tool_result's content",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "input": 3}]}]},
            "input must be an object",
        ),
    ],
)
def test_what_the_responses_format_cannot_ask_is_refused_by_name(more: dict[str, Any], fault: str) -> None:
    with pytest.raises(Invalid, match=fault):
        params_from_messages({"model": "m", "messages": [{"role": "user", "content": "hi"}], **more})


def test_what_has_no_effect_on_an_answer_is_left_out() -> None:
    marked = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}
    keep = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    params = read(
        {"role": "user", "content": [marked]},
        stream=True,
        cache_control={"type": "ephemeral"},
        context_management=keep,
        tools=[{"name": "f", "input_schema": {}, "cache_control": {"type": "ephemeral"}}],
    )

    assert "cache_control" not in json.dumps(params.dump())
    body = asked(USER, store=True, stream=True, metadata={"row": "7"}, prompt_cache_key="x", include=[])
    assert body == {"messages": [{"role": "user", "content": "add"}], "max_tokens": 8192}


def test_efforts_become_thinking_and_thinking_efforts() -> None:
    adaptive = asked(USER, reasoning={"effort": "high", "summary": "auto"})
    assert adaptive["thinking"] == {"type": "adaptive", "display": "summarized"}
    assert adaptive["output_config"] == {"effort": "high"}
    assert asked(USER, reasoning={"effort": "none"})["thinking"] == {"type": "disabled"}
    assert "thinking" not in asked(USER, reasoning={"summary": "auto"})
    budget = asked(USER, reasoning={"effort": "high"}, thinking="budget", max_tokens=40_000)
    assert budget["thinking"] == {"type": "enabled", "budget_tokens": 16384}
    small = asked(USER, reasoning={"effort": "high"}, thinking="budget", max_output_tokens=3000)
    assert small["thinking"]["budget_tokens"] == 1500
    with pytest.raises(Invalid, match="max_output_tokens"):
        asked(USER, reasoning={"effort": "low"}, thinking="budget", max_output_tokens=1000)

    def effort(**thinking: Any) -> Any:
        return (read({"role": "user", "content": "hi"}, thinking=thinking).model_extra or {}).get("reasoning")

    assert effort(type="disabled") == {"effort": "none"}
    assert effort(type="adaptive") is None
    assert [effort(type="enabled", budget_tokens=budget) for budget in (1024, 8000, 32000)] == [
        {"effort": "low"},
        {"effort": "medium"},
        {"effort": "high"},
    ]


def test_allowed_tools_are_the_only_ones_that_are_offered() -> None:
    tools = [{"type": "function", "name": name} for name in ("add", "sub")]
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "sub"}]}
    body = asked(USER, tools=tools, tool_choice=allowed, parallel_tool_calls=False)

    assert body["tools"] == [{"name": "sub", "input_schema": {"type": "object"}}]
    assert body["tool_choice"] == {"type": "any", "disable_parallel_tool_use": True}


def test_the_apis_own_words_win_and_extra_body_is_sent() -> None:
    body = asked(
        USER,
        reasoning={"effort": "low"},
        output_config={"effort": "max"},
        stop="###",
        user="u",
        metadata={"extra_body": '{"top_k": 3}'},
    )

    assert body["output_config"] == {"effort": "max"}
    assert body["stop_sequences"] == ["###"] and body["metadata"] == {"user_id": "u"} and body["top_k"] == 3


# --- answers


@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        ("max_tokens", "max_output_tokens"),
        ("pause_turn", "pause_turn"),
        ("model_context_window_exceeded", "model_context_window_exceeded"),
    ],
)
def test_an_answer_that_was_cut_off_is_incomplete(stop: str, reason: str) -> None:
    response = answered({"type": "text", "text": "half"}, stop=stop)

    assert response.status == "incomplete" and response.incomplete_details == {"reason": reason}
    assert response.output[-1].dump()["status"] == "incomplete"
    assert messages_from_response(response)["stop_reason"] == stop


@pytest.mark.parametrize(("reason", "stop"), [("content_filter", "refusal"), ("steps", "max_tokens")])
def test_a_reason_that_messages_do_not_know_stands_beside(reason: str, stop: str) -> None:
    details = {"reason": reason}
    answer = said(text("half"), status="incomplete", incomplete_details=details)

    assert answer["stop_reason"] == stop and answer["incomplete_details"] == details
    assert response_from_messages(answer).incomplete_details == details


def test_a_refusal_is_a_part_with_its_explanation() -> None:
    told = {"type": "refusal", "category": "bio", "explanation": "not that"}
    response = answered({"type": "text", "text": "Well"}, stop="refusal", stop_details=told)
    [message] = response.output

    assert response.status == "completed"
    assert message.dump()["content"][1] == {"type": "refusal", "refusal": "not that", "category": "bio"}
    assert answered(stop="refusal").output[0].dump()["content"][0]["refusal"] == "The model refused to answer."


def test_a_stop_sequence_is_told_in_either_shape() -> None:
    assert said(text("a"), choice={"stop_reason": "###"})["stop_sequence"] == "###"
    assert said(text("a"), choice={"stop_reason": 7})["stop_reason"] == "end_turn"


def test_counts_and_token_ids_are_told() -> None:
    usage = {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12, "input_tokens_details": {"cached_tokens": 4}}
    item = {**text("a"), "prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.5]}
    answer = said(item, usage=usage)

    assert answer["usage"]["input_tokens"] == 6 and answer["usage"]["cache_read_input_tokens"] == 4
    assert answer["prompt_token_ids"] == [1]
    assert response_from_messages(answer).output[-1].dump()["generation_token_ids"] == [2]
    assert said(text("a"))["usage"] == {"input_tokens": 0, "output_tokens": 0}


def test_an_empty_answer_is_an_empty_message() -> None:
    assert answered().output_text == "" and len(answered().output) == 1
    assert said(text(""))["content"] == []


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ([], "a list of content blocks"),
        ({"content": [], "stop_reason": None}, "the answer is not finished"),
        ({"content": [{"type": "odd"}], "stop_reason": "end_turn"}, "content: a block of type 'odd'"),
        ({"content": [], "stop_reason": "end_turn", "usage": {"input_tokens": -1}}, "usage.input_tokens is -1"),
        ({"content": [], "stop_reason": "end_turn", "model": 3}, "no Messages answer: .*model"),
    ],
)
def test_what_is_no_answer_is_refused(answer: Any, fault: str) -> None:
    with pytest.raises(Invalid, match=fault):
        response_from_messages(answer)


@pytest.mark.parametrize(
    ("output", "more", "fault"),
    [
        ([], {"status": "failed"}, "failed is no Messages answer"),
        ([output("a")], {}, r"output\[0\]: a function_call_output"),
        ([USER], {}, r"output\[0\]: a message of role 'user'"),
        ([{"type": "message", "role": "assistant", "content": [{"type": "odd"}]}], {}, "a part of type 'odd'"),
    ],
)
def test_what_is_no_messages_answer_is_refused(output: list[Any], more: dict[str, Any], fault: str) -> None:
    with pytest.raises(Invalid, match=fault):
        said(*output, **more)
