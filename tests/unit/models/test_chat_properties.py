"""Conversion between the Responses and the Chat format, for anything that either can say."""

import json
from typing import Any

import pytest
from gymbox.errors import Invalid
from gymbox.models.chat_answers import chat_from_response, response_from_chat
from gymbox.models.chat_requests import chat_from_params, params_from_chat
from gymbox_sandbox.responses import (
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Reasoning,
    Response,
    ResponsesParams,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.unit.models import strategies

lenient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])

Said = list[tuple[Any, ...]]


def said(items: list[Item]) -> Said:
    """What a history says, however it is written: texts joined, a string like a part, defaults left out."""
    return [_said(item) for item in items]


def _said(item: Item) -> tuple[Any, ...]:
    if isinstance(item, Message):
        role = "system" if item.role == "developer" else item.role
        return ("message", role, _content(item.content, item.role == "assistant"))
    if isinstance(item, FunctionCall):
        return ("call", item.call_id, item.name, item.arguments)
    if isinstance(item, FunctionCallOutput):
        return ("output", item.call_id, _content(item.output, True))
    assert isinstance(item, Reasoning)
    return ("reasoning", "\n".join(part["text"] for part in item.summary))


def _content(content: str | list[dict[str, Any]], joined: bool) -> Said:
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    found: Said = []
    for part in parts:
        if part["type"].endswith("text"):
            text = part["text"]
            if joined and found and found[-1][0] == "text":
                text = found.pop()[1] + text
            found.append(("text", text))
        else:
            kept = {name: value for name, value in part.items() if (name, value) != ("detail", "auto")}
            found.append((part["type"], json.dumps(kept, sort_keys=True)))
    return found or [("text", "")]


def in_call_order(items: list[Item]) -> list[Item]:
    """The results of a turn, in the order of its calls: as a Chat request has them."""
    order = {item.call_id: index for index, item in enumerate(items) if isinstance(item, FunctionCall)}
    found: list[Item] = []
    waiting: list[FunctionCallOutput] = []
    for item in items:
        if isinstance(item, FunctionCallOutput):
            waiting.append(item)
            continue
        found += sorted(waiting, key=lambda output: order[output.call_id])
        waiting = []
        found.append(item)
    return found + sorted(waiting, key=lambda output: order[output.call_id])


def with_defaults(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"strict": False, **tool} for tool in tools]


@lenient
@given(strategies.requests(images=False, files=False))
def test_a_request_says_the_same_after_going_to_chat_and_back(drawn: dict[str, Any]) -> None:
    asked = ResponsesParams.model_validate(drawn)
    again = params_from_chat(chat_from_params(asked))
    instructions: Said = [("message", "system", [("text", asked.instructions)])] if asked.instructions else []
    assert said(again.items) == instructions + said(in_call_order(asked.items))
    before, after = asked.dump_without_input(), again.dump_without_input()
    before.pop("instructions", None)
    if before.get("tools"):
        before["tools"], after["tools"] = with_defaults(before["tools"]), with_defaults(after["tools"])
    assert after == before


@lenient
@given(strategies.requests(audio=True))
def test_every_image_file_and_sound_of_a_history_is_shown_once_and_in_order(drawn: dict[str, Any]) -> None:
    asked = ResponsesParams.model_validate(drawn)
    again = params_from_chat(chat_from_params(asked))

    def shown(items: list[Item]) -> list[Any]:
        contents = [item.content if isinstance(item, Message) else getattr(item, "output", "") for item in items]
        parts = [part for content in contents if isinstance(content, list) for part in _content(content, False)]
        return [part for part in parts if part[0] not in ("text", "refusal")]

    assert shown(again.items) == shown(in_call_order(asked.items))


extras = st.dictionaries(
    st.sampled_from(["x_one", "x_two", "cache_control", "extra_content"]),
    st.one_of(st.integers(), st.text(max_size=3), st.just({"type": "ephemeral"})),
    max_size=2,
)


@st.composite
def chat_requests(draw: st.DrawFn) -> dict[str, Any]:
    """A Chat request with fields of its endpoint's own, everywhere."""
    body = chat_from_params(ResponsesParams.model_validate(draw(strategies.requests(audio=True))))
    for message in body["messages"]:
        message.update(draw(extras))
        if isinstance(message["content"], list):
            for part in message["content"]:
                part.update(draw(extras))
        for call in message.get("tool_calls", []):
            call.update(draw(extras))
    for tool in body.get("tools", []):
        tool.update(draw(extras))
    more = st.fixed_dictionaries(
        {},
        optional={
            "seed": st.integers(0, 9),
            "stop": st.lists(strategies.texts, min_size=1, max_size=2),
            "logit_bias": st.just({"50256": -100}),
            "top_k": st.integers(1, 9),
            "user": strategies.names,
            "service_tier": st.sampled_from(["auto", "flex"]),
            "store": st.booleans(),
            "verbosity": st.sampled_from(["low", "high"]),
            "chat_template_kwargs": st.just({"enable_thinking": False}),
        },
    )
    if draw(st.booleans()):
        body |= {"logprobs": True, "top_logprobs": 3}
    return body | draw(more) | draw(extras)


@lenient
@given(chat_requests())
def test_a_chat_request_is_the_same_after_going_to_params_and_back(body: dict[str, Any]) -> None:
    assert chat_from_params(params_from_chat(body)) == body


@lenient
@given(strategies.responses())
def test_an_answer_says_the_same_after_going_to_chat_and_back(drawn: dict[str, Any]) -> None:
    response = Response.model_validate(drawn)
    again = response_from_chat(chat_from_response(response))
    assert said(again.output) == said(response.output)
    for name in ("status", "incomplete_details", "usage", "model", "created_at"):
        assert getattr(again, name) == getattr(response, name)
    if response.status == "incomplete" and isinstance(again.output[-1], Message | FunctionCall):
        assert again.output[-1].status == "incomplete"


@lenient
@given(strategies.responses(signed=True))
def test_reasoning_that_only_its_provider_reads_comes_back_as_it_was(drawn: dict[str, Any]) -> None:
    response = Response.model_validate(drawn)
    message = chat_from_response(response)["choices"][0]["message"]
    items = params_from_chat({"messages": [{"role": "user", "content": "x"}, message]}).items[1:]
    thoughts = [item.dump() for item in items if isinstance(item, Reasoning)]
    assert thoughts == [item.dump() for item in response.output if isinstance(item, Reasoning)]
    if thoughts:
        assert isinstance(items[0], Reasoning) and len(items) > 1 or len(response.output) == 1


@st.composite
def chat_answers(draw: st.DrawFn) -> dict[str, Any]:
    """A Chat answer with fields of its endpoint's own, everywhere."""
    answer = chat_from_response(Response.model_validate(draw(strategies.responses())))
    choice = answer["choices"][0]
    for place in (answer, choice, choice["message"], answer["usage"], *choice["message"].get("tool_calls", [])):
        place.update(draw(extras))
    if draw(st.booleans()):
        answer["usage"]["cost"] = 0.25
    return answer


@lenient
@given(chat_answers())
def test_a_chat_answer_is_the_same_after_going_to_responses_and_back(answer: dict[str, Any]) -> None:
    assert chat_from_response(response_from_chat(answer)) == answer


# --- what cannot be said

UNSAYABLE: list[tuple[str, Any]] = [
    ("previous_response_id", "resp_1"),
    ("conversation", "conv_1"),
    ("background", True),
    ("prompt", {"id": "p"}),
    ("context_management", [{"type": "compaction"}]),
    ("truncation", "auto"),
    ("include", ["file_search_call.results"]),
    ("reasoning", {"mode": "pro"}),
    ("text", {"format": {"type": "grammar"}}),
    ("text", {"x_new": 1}),
]
UNSAYABLE_ITEMS: list[tuple[str, dict[str, Any]]] = [
    ("web_search_call", {"type": "web_search_call", "id": "w"}),
    ("custom_tool_call", {"type": "custom_tool_call", "call_id": "c", "name": "n", "input": "x"}),
    ("item_reference", {"type": "item_reference", "id": "w"}),
    ("compaction", {"type": "compaction", "encrypted_content": "x"}),
    ("has no output", {"type": "function_call", "call_id": "lonely", "name": "n", "arguments": "{}"}),
    ("no earlier call", {"type": "function_call_output", "call_id": "orphan", "output": "x"}),
    ("file_url", {"role": "user", "content": [{"type": "input_file", "file_url": "https://files.example/a.pdf"}]}),
    ("by file_id", {"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}),
    ("input_video", {"role": "user", "content": [{"type": "input_video"}]}),
]
UNSAYABLE_TOOLS: list[tuple[str, Any, Any]] = [
    ("custom", {"type": "custom", "name": "n"}, None),
    ("web_search", {"type": "web_search"}, None),
    ("mcp", {"type": "mcp", "server_label": "x"}, None),
    ("custom", {"type": "function", "name": "n"}, {"type": "custom", "name": "n"}),
    ("hosted_mcp", {"type": "function", "name": "n"}, {"type": "hosted_mcp"}),
]


@lenient
@given(strategies.requests(), st.sampled_from(UNSAYABLE))
def test_a_field_that_chat_cannot_say_is_refused_by_name(drawn: dict[str, Any], what: tuple[str, Any]) -> None:
    name, value = what
    with pytest.raises(Invalid, match=name):
        chat_from_params(ResponsesParams.model_validate({**drawn, name: value}))


@lenient
@given(strategies.requests(), st.sampled_from(UNSAYABLE_ITEMS), st.data())
def test_an_item_that_chat_cannot_say_is_refused_by_name(
    drawn: dict[str, Any], what: tuple[str, dict[str, Any]], data: st.DataObject
) -> None:
    named, item = what
    place = data.draw(st.integers(0, len(drawn["input"])))
    history = [*drawn["input"][:place], item, *drawn["input"][place:]]
    with pytest.raises(Invalid, match=named):
        chat_from_params(ResponsesParams.model_validate({**drawn, "input": history}))


@lenient
@given(strategies.requests(), st.sampled_from(UNSAYABLE_TOOLS))
def test_a_tool_that_chat_cannot_say_is_refused_by_name(drawn: dict[str, Any], what: tuple[str, Any, Any]) -> None:
    named, tool, choice = what
    with pytest.raises(Invalid, match=named):
        chat_from_params(ResponsesParams.model_validate({**drawn, "tools": [tool], "tool_choice": choice}))


# --- what is wrong


def json_ready(value: Any) -> None:
    json.dumps(value, allow_nan=False)


@lenient
@given(strategies.mutated(strategies.requests(audio=True)))
def test_params_that_are_wrong_are_refused_and_nothing_else(body: Any) -> None:
    try:
        params = ResponsesParams.model_validate(body)
    except ValidationError:
        return
    json_ready(params.dump())
    try:
        json_ready(chat_from_params(params))
    except Invalid as error:
        assert error.detail


@lenient
@given(strategies.mutated(chat_requests(), times=3))
def test_chat_requests_that_are_wrong_are_refused_and_nothing_else(body: Any) -> None:
    if not isinstance(body, dict):
        return
    try:
        json_ready(params_from_chat(body).dump())
    except Invalid as error:
        assert error.detail


@lenient
@given(strategies.mutated(chat_answers(), times=3), st.booleans())
def test_chat_answers_that_are_wrong_are_refused_and_nothing_else(body: Any, token_ids: bool) -> None:
    try:
        json_ready(response_from_chat(body, max_output_tokens=5, token_ids=token_ids).dump())
    except Invalid as error:
        assert error.detail


@lenient
@given(strategies.mutated(strategies.responses(signed=True), times=3))
def test_responses_that_are_wrong_are_refused_and_nothing_else(body: Any) -> None:
    try:
        response = Response.model_validate(body)
    except ValidationError:
        return
    try:
        json_ready(chat_from_response(response))
    except Invalid as error:
        assert error.detail
