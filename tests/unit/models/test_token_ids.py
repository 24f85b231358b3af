"""Sampled ids, from wherever engines put them: all three fields or none."""

import json
from typing import Any

import pytest
from gymbox.errors import Invalid
from gymbox.models.chat_answers import chat_from_response, response_from_chat
from gymbox.models.chat_requests import chat_from_params
from gymbox.models.messages_answers import messages_from_response, response_from_messages
from gymbox.models.openai import request_body
from gymbox.models.token_ids import (
    echo_token_ids,
    mask_reason,
    prefix_fault,
    sampled_ids,
    with_prefix_mark,
)
from gymbox.models.whole_streams import answer_of_chunks
from gymbox_sandbox.responses import Response, ResponsesParams

ALL = {"prompt_token_ids": [1, 2], "generation_token_ids": [3, 4], "generation_log_probs": [-0.1, -0.2]}
USAGE = {"output_tokens": 2}


def entries(*tokens: Any, **more: list[Any]) -> dict[str, Any]:
    listed = [
        {"token": token, "logprob": logprob, **{name: values[index] for name, values in more.items()}}
        for index, (token, logprob) in enumerate(zip(tokens, (-0.1, -0.2), strict=True))
    ]
    return {"content": listed}


SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "vllm": ({"prompt_token_ids": [1, 2]}, {"token_ids": [3, 4], "logprobs": entries("a", "b")}, {}),
    "vllm log-probs": (
        {"prompt_token_ids": [1, 2]},
        {"logprobs": entries("token_id:3", "token_id:4")},
        {},
    ),
    "sglang": ({}, {"prompt_token_ids": [1, 2], "token_ids": [3, 4], "logprobs": entries("a", "b")}, {}),
    "sglang meta_info": (
        {},
        {"prompt_token_ids": [1, 2], "meta_info": {"output_token_logprobs": [[-0.1, 3, "a"], [-0.2, 4, "b"]]}},
        {},
    ),
    "llama.cpp": ({"prompt_token_ids": [1, 2]}, {"logprobs": entries("a", "b", id=[3, 4])}, {}),
    "nemo gym": ({}, {}, ALL),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_every_shape_gives_all_three_fields(shape: Any) -> None:
    body, choice, message = shape
    assert sampled_ids(body, choice, message, USAGE, wanted=True) == ALL


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (({}, {}, {}), "has no prompt_token_ids, generation_token_ids, generation_log_probs"),
        (({}, {"token_ids": [3, 4], "logprobs": entries("a", "b")}, {}), "has no prompt_token_ids"),
        (({"prompt_token_ids": [1]}, {}, ALL), "two lists of prompt_token_ids"),
        (({}, {"token_ids": [3, 5]}, ALL), "two lists of token ids"),
        (({}, {}, {**ALL, "generation_log_probs": [-1.0]}), "2 ids, 1 log-probs, 2 tokens"),
        (({"prompt_token_ids": [1]}, {"logprobs": entries("token_id:x", "token_id:4")}, {}), "generation_token_ids"),
        (
            ({"prompt_token_ids": [1]}, {"logprobs": entries(f"token_id:{'9' * 5000}", "token_id:4")}, {}),
            "generation_token_ids",
        ),
        (({"prompt_token_ids": [1]}, {"meta_info": {"output_token_logprobs": "no"}, "logprobs": []}, {}), "has no"),
    ],
)
def test_partial_and_conflicting_sets_are_refused(change: Any, text: str) -> None:
    with pytest.raises(Invalid, match=text):
        sampled_ids(*change, USAGE, wanted=True)


def test_ids_that_a_parser_swallowed_are_missed_by_the_usage() -> None:
    with pytest.raises(Invalid, match="2 ids, 2 log-probs, 3 tokens"):
        sampled_ids({}, {}, ALL, {"output_tokens": 3}, wanted=True)


def test_who_did_not_ask_gets_none_or_all() -> None:
    assert sampled_ids({}, {"logprobs": entries("a", "b")}, {}, USAGE, wanted=False) == {}
    assert sampled_ids({}, {}, ALL, None, wanted=False) == ALL


def test_a_stream_gives_what_the_whole_answer_does_though_its_text_is_hidden() -> None:
    chunks = [
        {"prompt_token_ids": [1, 2], "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
        # the parser holds a tag back: ids without a text
        {"choices": [{"index": 0, "delta": {}, "token_ids": [3], "logprobs": {"content": [{"logprob": -0.1}]}}]},
        {
            "choices": [
                {
                    "index": 0,
                    "delta": {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]},
                    "token_ids": [4],
                    "logprobs": {"content": [{"logprob": -0.2}]},
                }
            ]
        },
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls", "token_ids": []}]},
        {"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 2}},
    ]
    answer = answer_of_chunks(chunks)
    assert answer is not None
    choice = answer["choices"][0]
    assert sampled_ids(answer, choice, choice["message"], USAGE, wanted=True) == ALL


def history(*more: dict[str, Any]) -> list[Any]:
    said = {"role": "assistant", "content": "one", **ALL}
    return ResponsesParams.model_validate({"input": [{"role": "user", "content": "hi"}, said, *more]}).items


def test_a_prompt_that_is_not_what_was_sampled_is_marked_with_the_reason() -> None:
    answer = {"role": "assistant", "content": "two", "generation_token_ids": [9], "generation_log_probs": [-1.0]}
    kept = Response.model_validate({"output": [{**answer, "prompt_token_ids": [1, 2, 3, 4, 5]}]})
    broken = Response.model_validate({"output": [{**answer, "prompt_token_ids": [1, 2, 3, 7, 5]}]})
    assert with_prefix_mark(history(), kept) is kept and mask_reason(kept.output) is None
    marked = with_prefix_mark(history(), broken)
    assert "differs at token 3" in (mask_reason(marked.output) or "")
    assert marked.dump()["output"][-1]["mask_sample"] is True
    assert prefix_fault(history(), [1, 2, 3, 4]) is None and "token 3" in str(prefix_fault(history(), [1, 2, 3]))
    assert prefix_fault([], [7]) is None


def test_an_answer_without_ids_and_one_without_items_are_left_alone() -> None:
    empty = Response(output=[])
    assert with_prefix_mark(history(), empty) is empty
    assert mask_reason(Response.model_validate({"output": [{"role": "assistant", "mask_sample": True}]}).output)


def test_the_last_sampled_turn_brings_its_ids_back() -> None:
    items = history(
        {"role": "user", "content": "go on"},
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", **ALL, "prompt_token_ids": [8]},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
    )
    messages: list[dict[str, Any]] = [{"role": role, "content": role} for role in ("user", "assistant", "user")]
    messages += [{"role": "assistant", "tool_calls": []}, {"role": "tool", "content": "1"}]
    echoed = echo_token_ids(messages, items)
    assert echoed[3] == {"role": "assistant", "tool_calls": [], **ALL, "prompt_token_ids": [8]}
    assert [echoed[index] for index in (0, 1, 2, 4)] == [messages[index] for index in (0, 1, 2, 4)]
    # where turns and messages do not match up, no ids are better than wrong ones
    assert echo_token_ids(messages[:2], items) == messages[:2]
    assert echo_token_ids([], ResponsesParams.model_validate({"input": "x"}).items) == []


CALLED = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize("place", ["message", "choice"])
def test_the_experts_of_each_token_stay_with_the_ids_and_do_not_go_back_to_the_model(place: str) -> None:
    experts = [[[0, 3]], [[1, 2]]]
    message = {"role": "assistant", "content": "so", "tool_calls": [CALLED], **ALL}
    choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    (message if place == "message" else choice)["routed_experts"] = experts
    usage = {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}
    response = response_from_chat({"choices": [choice], "usage": usage}, token_ids=True)
    said, call = (item.dump() for item in response.output)
    assert call["routed_experts"] == experts and "routed_experts" not in said
    assert chat_from_response(response)["choices"][0]["message"] == {**message, "routed_experts": experts}
    back = response_from_messages(messages_from_response(response)).output[-1]
    assert back.dump()["routed_experts"] == experts

    result = {"type": "function_call_output", "call_id": "a", "output": "1"}
    params = ResponsesParams.model_validate({"input": [said, call, result]})
    sent = [chat_from_params(params, reasoning_field=None), request_body(params, {})]
    assert "routed_experts" not in json.dumps(sent)
