"""Conversion between the Responses and the Chat format."""

import json
from typing import Any

import pytest
from gymbox.errors import Invalid
from gymbox.models.chat_answers import chat_from_response, response_from_chat, without_thoughts
from gymbox.models.chat_messages import object_arguments
from gymbox.models.chat_requests import chat_from_params, params_from_chat
from gymbox.models.token_ids import prefix_fault
from gymbox_sandbox.responses import Reasoning, Response, ResponsesParams
from hypothesis import given
from hypothesis import strategies as st

IMAGE = "data:image/png;base64,iVBORw0KGgo="
TOOL = {
    "type": "function",
    "name": "add",
    "description": "Add.",
    "parameters": {"type": "object", "properties": {"by": {"type": "integer"}}},
    "strict": True,
}


def call(id: str = "c1", name: str = "add", arguments: str = "{}") -> dict[str, Any]:
    return {"type": "function_call", "call_id": id, "name": name, "arguments": arguments}


def output(id: str = "c1", text: Any = "ok") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": id, "output": text}


def user(text: Any = "hi") -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def thought(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}


def messages(*items: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    return chat_from_params(ResponsesParams.model_validate({"input": list(items)}), **options)["messages"]


def answer(message: dict[str, Any], finish: str | None = "stop", **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    return {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], **more}


def chat_call(id: str | None = "c1", arguments: Any = "{}") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "add", "arguments": arguments}}


# --- a history for a Chat endpoint


def test_one_turn_is_one_assistant_message_with_all_of_its_calls() -> None:
    found = messages(user(), said("adding"), call("a"), call("b"), output("b", "2"), output("a", "1"))
    assert [message["role"] for message in found] == ["user", "assistant", "tool", "tool"]
    assert found[1]["content"] == "adding"
    assert [each["id"] for each in found[1]["tool_calls"]] == ["a", "b"]


def test_results_follow_their_call_directly_and_in_call_order() -> None:
    found = messages(user(), call("a"), call("b"), user("meanwhile"), output("b", "2"), output("a", "1"))
    assert [message["role"] for message in found] == ["user", "assistant", "tool", "tool", "user"]
    assert [message.get("content") for message in found[2:]] == ["1", "2", "meanwhile"]


def test_turns_that_reuse_a_call_id_keep_their_own_results() -> None:
    found = messages(user(), call("a"), output("a", "1"), call("a"), output("a", "2"))
    assert [message["content"] for message in found if message["role"] == "tool"] == ["1", "2"]


def test_text_after_a_call_stays_in_the_turn_of_the_call() -> None:
    found = messages(user(), call("a"), said("done?"), output("a"))
    assert [message["role"] for message in found] == ["user", "assistant", "tool"]


def test_two_answers_in_a_row_stay_two_messages() -> None:
    assert [each["content"] for each in messages(user(), said("one"), said("two"))[1:]] == ["one", "two"]


def test_reasoning_goes_back_with_the_item_that_follows_it() -> None:
    items = [user(), thought("hm"), call("a"), output("a"), thought("so"), said("done")]
    assert [each.get("reasoning_content") for each in messages(*items)] == [None, "hm", None, "so"]
    tagged = messages(*items, reasoning_field="think")
    assert tagged[3]["content"] == "<think>\nso\n</think>\n\ndone"
    assert not any("hm" in json.dumps(each) for each in messages(*items, reasoning_field=None))


def test_reasoning_that_a_provider_keeps_secret_leaves_no_empty_field() -> None:
    secret = {"type": "reasoning", "summary": [], "encrypted_content": "x"}
    assert "reasoning_content" not in messages(user(), secret, said("x"))[1]
    assert messages(user(), secret, said("x"), reasoning_field="think")[1]["content"] == "x"
    response = Response.model_validate({"status": "completed", "output": [secret, said("x")]})
    assert "reasoning_content" not in chat_from_response(response)["choices"][0]["message"]


def test_reasoning_with_content_is_told_by_its_content() -> None:
    item = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "raw"}]}
    assert messages(user(), item, said("x"))[1]["reasoning_content"] == "raw"


@pytest.mark.parametrize("bad", ['{"by": ', "[1]", "3", "nonsense", '"text"', "[" * 100_000])
def test_arguments_that_are_no_object_are_wrapped_before_they_go_back(bad: str) -> None:
    item = call("a", arguments=bad)
    params = ResponsesParams.model_validate({"input": [user(), item, output("a")]})
    sent = chat_from_params(params)["messages"][1]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(sent) == {"invalid_arguments": bad}
    assert params.dump()["input"][1]["arguments"] == bad


def test_empty_arguments_go_back_as_an_empty_object() -> None:
    assert object_arguments(" ") == "{}"
    assert object_arguments('{"a": 1}') == '{"a": 1}'


def test_an_image_from_a_tool_is_shown_by_the_user_after_all_results_of_the_turn() -> None:
    shown = [{"type": "input_text", "text": "a plot"}, {"type": "input_image", "image_url": IMAGE}]
    found = messages(user(), call("a"), call("b"), output("a", shown), output("b", "2"))
    assert [message["role"] for message in found] == ["user", "assistant", "tool", "tool", "user"]
    assert found[2]["content"] == "a plot"
    assert found[4]["content"][1] == {"type": "image_url", "image_url": {"url": IMAGE}}


def test_a_result_that_is_only_an_image_points_to_it() -> None:
    found = messages(user(), call("a"), output("a", [{"type": "input_image", "image_url": IMAGE}]))
    assert found[2]["content"] == "(see below)"


def test_images_files_and_audio_of_the_user_are_carried_over() -> None:
    parts = [
        {"type": "input_text", "text": "look"},
        {"type": "input_image", "image_url": IMAGE, "detail": "low"},
        {"type": "input_file", "filename": "a.txt", "file_data": "data:,x"},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
    ]
    sent = messages(user(parts))[0]["content"]
    assert [part["type"] for part in sent] == ["text", "image_url", "file", "input_audio"]
    assert sent[1]["image_url"]["detail"] == "low"


def test_roles_are_those_that_every_endpoint_knows() -> None:
    params = ResponsesParams.model_validate(
        {"instructions": "be good", "input": [{"role": "developer", "content": "x"}]}
    )
    assert chat_from_params(params)["messages"] == [
        {"role": "system", "content": "be good"},
        {"role": "system", "content": "x"},
    ]


def test_a_refusal_in_the_history_goes_back_as_one() -> None:
    item = {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}
    assert messages(user(), item)[1]["refusal"] == "no"


@pytest.mark.parametrize(
    ("items", "named"),
    [
        ([user(), call("a")], "has no output"),
        ([user(), output("a")], "no earlier call"),
        ([{"type": "web_search_call", "id": "w"}], "web_search_call"),
        ([{"type": "item_reference", "id": "w"}], "item_reference"),
        ([user([{"type": "input_image", "file_id": "f"}])], "input_image"),
        ([user([{"type": "input_video"}])], "input_video"),
        ([{"role": "assistant", "content": [{"type": "strange"}]}], "strange"),
    ],
)
def test_what_a_chat_history_cannot_say_is_refused_by_name(items: list[dict[str, Any]], named: str) -> None:
    with pytest.raises(Invalid, match=named):
        messages(*items)


# --- Chat-shaped rows


def test_chat_shaped_history_is_accepted_in_input() -> None:
    params = ResponsesParams.model_validate(
        {
            "input": [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": IMAGE}],
                },
                {"role": "assistant", "tool_calls": [chat_call("a")]},
                {"role": "tool", "tool_call_id": "a", "content": "1"},
                {"role": "assistant", "content": "fine", "tool_calls": []},
                {"role": "user"},
                {"role": "user", "content": None},
            ],
            "tools": None,
        }
    )
    assert [item.type for item in params.items] == [
        "message",
        "function_call",
        "function_call_output",
        "message",
        "message",
        "message",
    ]
    sent = chat_from_params(params)
    assert "tools" not in sent
    assert all("tool_calls" not in message or message["tool_calls"] for message in sent["messages"])


def test_a_call_inside_an_assistants_content_list_is_kept() -> None:
    content = [
        {"type": "text", "text": "adding"},
        {"type": "function_call", "call_id": "a", "name": "add", "arguments": "{}"},
    ]
    found = messages(user(), {"role": "assistant", "content": content}, output("a"))
    assert found[1]["tool_calls"][0]["id"] == "a"
    assert found[1]["content"] == "adding"


@pytest.mark.parametrize(
    "message",
    [
        {"role": "tool", "content": "x"},
        {"role": "function", "name": "f", "content": "x"},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "assistant", "content": None, "audio": {"id": "a"}},
        {"role": "assistant", "content": None, "reasoning": {"a": 1}},
        {"role": "assistant", "tool_calls": [{"id": "a", "type": "custom", "custom": {}}]},
        {"role": "assistant", "tool_calls": [{"type": "function", "function": {"arguments": "{}"}}]},
        {"role": "user", "content": None, "tool_calls": [chat_call()]},
        {"role": "user", "content": [1]},
        "text",
    ],
)
def test_messages_that_cannot_be_carried_over_are_refused_and_numbered(message: Any) -> None:
    with pytest.raises(Invalid, match=r"messages\[1\]"):
        params_from_chat({"messages": [user(), message]})


# --- requests


def test_a_chat_request_says_the_same_after_going_both_ways() -> None:
    body = {
        "model": "m",
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "u", "name": "ann"},
            {"role": "assistant", "content": "t", "reasoning_content": "r", "tool_calls": [chat_call("a")]},
            {"role": "tool", "tool_call_id": "a", "content": "1"},
        ],
        "tools": [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}],
        "tool_choice": {"type": "function", "function": {"name": "add"}},
        "parallel_tool_calls": False,
        "max_tokens": 5,
        "reasoning_effort": "low",
        "verbosity": "low",
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
        "logprobs": True,
        "top_logprobs": 2,
        "temperature": 0.5,
        "seed": 7,
        "stop": ["x"],
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert chat_from_params(params_from_chat(body)) == body


def test_what_is_unset_stays_unset() -> None:
    params = ResponsesParams.model_validate({"input": "hi", "temperature": None, "reasoning": None, "text": None})
    assert chat_from_params(params) == {"messages": [{"role": "user", "content": "hi"}]}


def test_effort_is_put_where_each_format_has_it() -> None:
    params = params_from_chat({"messages": [user()], "reasoning_effort": "high"})
    assert params.dump()["reasoning"] == {"effort": "high"}
    sent = chat_from_params(params)
    assert sent["reasoning_effort"] == "high" and "reasoning" not in sent


def test_a_choice_without_tools_is_not_sent() -> None:
    params = ResponsesParams.model_validate(
        {"input": "x", "tools": [], "tool_choice": "auto", "parallel_tool_calls": True}
    )
    assert set(chat_from_params(params)) == {"messages"}


def test_json_object_and_tools_are_carried_over() -> None:
    params = ResponsesParams.model_validate(
        {"input": "x", "tools": [TOOL], "tool_choice": "required", "text": {"format": {"type": "json_object"}}}
    )
    sent = chat_from_params(params)
    assert sent["response_format"] == {"type": "json_object"}
    assert sent["tool_choice"] == "required"
    assert params_from_chat(sent).tools == [TOOL]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("previous_response_id", "r"),
        ("conversation", "c"),
        ("background", True),
        ("prompt", {"id": "p"}),
        ("truncation", "auto"),
        ("include", ["file_search_call.results"]),
        ("tools", [{"type": "web_search"}]),
        ("tool_choice", {"type": "allowed_tools"}),
        ("text", {"format": {"type": "grammar"}}),
    ],
)
def test_params_that_a_chat_request_cannot_say_are_refused_by_name(field: str, value: Any) -> None:
    given = {"input": "x", "tools": [TOOL], field: value}
    with pytest.raises(Invalid, match=field):
        chat_from_params(ResponsesParams.model_validate(given))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2),
        ("modalities", ["audio"]),
        ("audio", {"voice": "x"}),
        ("functions", [{}]),
        ("prediction", {"type": "content"}),
        ("web_search_options", {"a": 1}),
        ("tools", [{"type": "custom"}]),
        ("tools", ["x"]),
        ("tool_choice", {"type": "allowed_tools"}),
        ("response_format", {"type": "grammar"}),
        ("messages", []),
        ("temperature", "hot"),
    ],
)
def test_chat_fields_that_params_cannot_say_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(Invalid, match=field):
        params_from_chat({"messages": [user()], field: value})


# --- answers


def test_text_and_calls_come_in_one_choice() -> None:
    response = Response.model_validate({"status": "completed", "output": [said("adding"), call("a"), call("b")]})
    found = chat_from_response(response)
    assert len(found["choices"]) == 1
    assert found["choices"][0]["finish_reason"] == "tool_calls"
    assert found["choices"][0]["message"]["content"] == "adding"
    assert [each["id"] for each in found["choices"][0]["message"]["tool_calls"]] == ["a", "b"]


def test_an_answer_says_the_same_after_going_both_ways() -> None:
    message = {
        "content": "x",
        "reasoning_content": "r",
        "tool_calls": [chat_call("a", '{"by": 1}')],
        "annotations": [{"type": "url_citation"}],
    }
    usage = {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 1},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }
    response = response_from_chat(answer(message, "tool_calls", usage=usage, service_tier="flex"))
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
    assert response.dump()["service_tier"] == "flex"
    again = chat_from_response(response)
    assert again["choices"][0]["message"] == {"role": "assistant", **message}
    assert again["usage"] == usage


def test_log_probs_are_carried_over() -> None:
    body = answer({"content": "x"})
    body["choices"][0]["logprobs"] = {"content": [{"token": "x", "logprob": -0.1}]}
    assert chat_from_response(response_from_chat(body))["choices"][0]["logprobs"] == body["choices"][0]["logprobs"]


def test_a_refusal_is_a_refusal_both_ways() -> None:
    response = response_from_chat(answer({"content": None, "refusal": "no"}))
    assert response.dump()["output"][0]["content"] == [{"type": "refusal", "refusal": "no"}]
    assert chat_from_response(response)["choices"][0]["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": "no",
    }


@pytest.mark.parametrize(("finish", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
def test_an_unfinished_answer_is_incomplete_with_its_reason(finish: str, reason: str) -> None:
    response = response_from_chat(answer({"content": None, "reasoning": "I was thin"}, finish))
    assert response.status == "incomplete"
    assert response.incomplete_details == {"reason": reason}
    assert [item.type for item in response.output] == ["reasoning"]
    assert chat_from_response(response)["choices"][0]["finish_reason"] == finish


def test_an_incomplete_response_without_any_output_is_still_a_chat_answer() -> None:
    response = Response.model_validate({"status": "incomplete", "incomplete_details": {"reason": "x"}, "output": []})
    choice = chat_from_response(response)["choices"][0]
    assert choice["finish_reason"] == "length" and choice["message"]["content"] == ""


def test_a_cut_in_the_middle_of_a_thought_is_incomplete_and_no_answer() -> None:
    response = response_from_chat(answer({"content": "<think>I was thin"}, "length"))
    assert isinstance(response.output[0], Reasoning)
    assert response.output_text == "" and response.status == "incomplete"


def test_a_call_cut_by_the_limit_is_incomplete_whatever_the_finish_reason_says() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 5}
    cut = answer({"content": None, "tool_calls": [chat_call("a", '{"by": ')]}, "tool_calls", usage=usage)
    assert response_from_chat(cut, max_output_tokens=5).status == "incomplete"
    assert response_from_chat(cut, max_output_tokens=6).status == "completed"


@pytest.mark.parametrize(
    ("content", "text", "reasoning"),
    [
        ("plain", "plain", ""),
        ("<think>a</think>\n\nb", "b", "a"),
        ("\n<think>\na\n</think>b", "b", "a"),
        ("a</think>b", "b", "a"),
        ("<think>a", "", "a"),
        ("say <think>x</think> aloud", "say <think>x</think> aloud", ""),
    ],
)
def test_thoughts_in_tags_are_told_apart(content: str, text: str, reasoning: str) -> None:
    assert without_thoughts(content) == (text, reasoning)


def test_missing_ids_are_filled_and_object_arguments_become_text() -> None:
    response = response_from_chat(answer({"tool_calls": [chat_call(None, {"by": 1})]}, "tool_calls"))
    call = response.function_calls[0]
    assert call.call_id.startswith("call_") and json.loads(call.arguments) == {"by": 1}


def test_an_empty_answer_is_an_empty_message_and_content_parts_are_joined() -> None:
    assert response_from_chat(answer({"content": None})).dump()["output"][0]["content"][0]["text"] == ""
    assert response_from_chat(answer({"content": [{"type": "text", "text": "x"}]})).output_text == "x"


@pytest.mark.parametrize(
    "body",
    [
        [],
        {"choices": []},
        {"choices": [{}, {}]},
        {"choices": [{"finish_reason": "stop"}]},
        answer({"content": 3}),
        answer({"content": "x"}, None),
        answer({"content": "x"}, "abort"),
        answer({"content": "x", "audio": {"id": "a"}}),
        answer({"content": "x", "reasoning": ["a"]}),
        answer({"tool_calls": [{"type": "function", "function": {}}]}),
        answer({"tool_calls": [3]}),
        answer({"content": "x"}, created="never"),
    ],
)
def test_what_is_no_whole_chat_answer_is_refused(body: Any) -> None:
    with pytest.raises(Invalid):
        response_from_chat(body)


@pytest.mark.parametrize(
    "response",
    [
        {"status": "failed", "error": {"message": "x"}, "output": []},
        {"output": [output("a")]},
        {"output": [{"type": "web_search_call"}]},
        {"output": [{"role": "user", "content": "x"}]},
        {"output": [{"role": "assistant", "content": [{"type": "output_audio"}]}]},
    ],
)
def test_a_response_with_no_place_in_a_chat_answer_is_refused(response: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        chat_from_response(Response.model_validate(response))


# --- token ids


def with_tokens(**more: Any) -> dict[str, Any]:
    message = {
        "content": "x",
        "prompt_token_ids": [1, 2],
        "generation_token_ids": [3, 4],
        "generation_log_probs": [-0.1, -0.2],
    }
    usage = {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}
    return answer({**message, **more}, usage=usage)


def test_token_ids_stay_on_the_last_output_item_and_go_back_out() -> None:
    response = response_from_chat(with_tokens(reasoning="r"), token_ids=True)
    assert "generation_token_ids" not in response.dump()["output"][0]
    assert response.dump()["output"][-1]["generation_token_ids"] == [3, 4]
    assert chat_from_response(response)["choices"][0]["message"]["prompt_token_ids"] == [1, 2]


def test_token_ids_are_taken_from_where_servers_put_them() -> None:
    body = answer({"content": "x"}, usage={"prompt_tokens": 2, "completion_tokens": 1}, prompt_token_ids=[1, 2])
    body["choices"][0] |= {"token_ids": [3], "logprobs": {"content": [{"token": "x", "logprob": -0.5}]}}
    assert response_from_chat(body, token_ids=True).dump()["output"][-1]["generation_log_probs"] == [-0.5]
    del body["choices"][0]["token_ids"]
    body["choices"][0]["logprobs"]["content"][0]["token"] = "token_id:3"
    assert response_from_chat(body, token_ids=True).dump()["output"][-1]["generation_token_ids"] == [3]


@pytest.mark.parametrize(
    "more",
    [
        {"generation_token_ids": None},
        {"prompt_token_ids": None},
        {"generation_log_probs": [-0.1]},
        {"generation_token_ids": [3], "generation_log_probs": [-0.1]},
    ],
)
def test_partial_or_conflicting_token_ids_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match="token ids"):
        response_from_chat(with_tokens(**more), token_ids=True)


def test_partial_token_ids_that_nobody_asked_for_are_none() -> None:
    dumped = response_from_chat(with_tokens(prompt_token_ids=None)).dump()["output"][-1]
    assert "generation_token_ids" not in dumped


def test_a_prompt_that_does_not_begin_with_what_was_sampled_is_noticed() -> None:
    history = response_from_chat(with_tokens(), token_ids=True).output
    assert prefix_fault(history, [1, 2, 3, 4, 5]) is None
    assert prefix_fault(history, [1, 2, 34, 5])
    assert prefix_fault([], [1]) is None


# --- round trips

texts = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=20)
turns = st.lists(
    st.one_of(
        st.builds(lambda text: [user(text)], texts),
        st.builds(lambda text: [user("q"), said(text)], texts),
        st.builds(
            lambda ids, thinks: [
                user("go"),
                *([thought(thinks)] if thinks else []),
                *[call(id, arguments=json.dumps({"by": id})) for id in ids],
                *[output(id, f"r{id}") for id in ids],
            ],
            st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=3, unique=True),
            st.one_of(st.none(), texts),
        ),
    ),
    max_size=5,
)


@given(turns)
def test_a_history_is_the_same_after_going_to_chat_and_back(turns: list[list[dict[str, Any]]]) -> None:
    items = [item for turn in turns for item in turn] or [user()]
    sent = chat_from_params(ResponsesParams.model_validate({"input": items}))
    again = chat_from_params(params_from_chat(sent))
    assert again == sent
    assert sum(message["role"] == "tool" for message in sent["messages"]) == sum(
        item.get("type") == "function_call_output" for item in items
    )


@given(st.one_of(st.none(), texts), st.lists(st.dictionaries(texts, st.integers()), max_size=3), texts)
def test_an_answer_is_the_same_after_going_to_responses_and_back(
    text: str | None, arguments: list[dict[str, int]], reasoning: str
) -> None:
    calls = [chat_call(f"c{index}", json.dumps(given)) for index, given in enumerate(arguments)]
    message: dict[str, Any] = {"content": text, "reasoning_content": reasoning}
    if calls:
        message["tool_calls"] = calls
    finish = "tool_calls" if calls else "stop"
    choice = chat_from_response(response_from_chat(answer(message, finish)))["choices"][0]
    assert choice["finish_reason"] == finish
    assert choice["message"].get("tool_calls", []) == calls
    assert (choice["message"]["content"] or None) == text
    assert choice["message"]["reasoning_content"] == reasoning
