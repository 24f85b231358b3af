"""Conversion between the Responses and the Messages format, for anything that either can say."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest
from gymbox.errors import Invalid
from gymbox.models.messages_answers import messages_from_response, response_from_messages
from gymbox.models.messages_requests import messages_from_params, params_from_messages
from gymbox.models.messages_streams import events_from_messages, messages_from_events
from gymbox_sandbox.responses import FunctionCall, Message, Reasoning, Response, ResponsesParams
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.unit.models import strategies

lenient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])

texts = strategies.spoken
Block = dict[str, Any]


# --- what Messages can say


def blocks() -> st.SearchStrategy[Block]:
    """Text, images and documents, of a user or a tool."""
    source = st.sampled_from(
        [
            {"type": "base64", "media_type": "image/png", "data": strategies.PNG},
            {"type": "url", "url": "https://images.example/a.png"},
            {"type": "file", "file_id": "file_1"},
        ]
    )
    paper = st.one_of(
        st.just({"type": "base64", "media_type": "application/pdf", "data": strategies.PDF}),
        st.just({"type": "url", "url": "https://papers.example/a.pdf"}),
        st.just({"type": "file", "file_id": "file_2"}),
        texts.map(lambda text: {"type": "text", "media_type": "text/plain", "data": text}),
    )
    mark = st.sampled_from([{}, {"cache_control": {"type": "ephemeral"}}])
    return st.one_of(
        st.builds(lambda text, more: {"type": "text", "text": text, **more}, texts, mark),
        st.builds(lambda found, more: {"type": "image", "source": found, **more}, source, mark),
        st.builds(
            lambda found, title, more: {"type": "document", "source": found, **title, **more},
            paper,
            st.sampled_from([{}, {"title": "A paper"}]),
            mark,
        ),
    )


thoughts = st.one_of(
    st.builds(lambda text: {"type": "thinking", "thinking": text, "signature": "c2ln"}, texts),
    st.just({"type": "thinking", "thinking": "", "signature": "c2ln"}),
    st.just({"type": "redacted_thinking", "data": "ZGF0YQ=="}),
)


def uses(number: int) -> st.SearchStrategy[Block]:
    return st.builds(
        lambda name, given: {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": given},
        strategies.names,
        strategies.objects,
    )


def results(identity: str) -> st.SearchStrategy[Block]:
    content = st.one_of(
        texts.map(lambda text: {"content": text}),
        st.just({}),
        st.lists(blocks(), min_size=1, max_size=2).map(lambda found: {"content": found}),
    )
    failed = st.sampled_from([{}, {"is_error": True}])
    return st.builds(
        lambda more, bad: {"type": "tool_result", "tool_use_id": identity, **more, **bad}, content, failed
    )


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    opening: list[Block] = []
    for turn in range(draw(st.integers(0, 3))):
        said = draw(st.lists(blocks(), min_size=0 if opening else 1, max_size=2))
        messages.append({"role": "user", "content": opening + said})
        answer = draw(st.lists(thoughts, max_size=2))
        answer += draw(st.lists(texts.map(lambda text: {"type": "text", "text": text}), max_size=2))
        made = [draw(uses(10 * turn + number)) for number in range(draw(st.integers(0, 3)))]
        answer += made or [{"type": "text", "text": "end"}]
        messages.append({"role": "assistant", "content": answer})
        opening = [draw(results(use["id"])) for use in made]
    said = draw(st.lists(blocks(), min_size=0 if opening else 1, max_size=2))
    messages.append({"role": "user", "content": opening + said})
    return messages


@st.composite
def asked(draw: st.DrawFn) -> dict[str, Any]:
    body: dict[str, Any] = {"model": "m", "max_tokens": draw(st.integers(1, 9999)), "messages": draw(conversations())}
    options: dict[str, st.SearchStrategy[Any]] = {
        "system": st.one_of(texts, st.lists(texts.map(lambda text: {"type": "text", "text": text}), min_size=1)),
        "temperature": st.floats(0, 1, width=16),
        "top_k": st.integers(1, 99),
        "stop_sequences": st.lists(texts, min_size=1, max_size=2),
        "metadata": st.builds(lambda name: {"user_id": name}, strategies.names),
        "service_tier": st.sampled_from(["auto", "standard_only"]),
        "output_config": st.sampled_from(["low", "medium", "high", "xhigh", "max"]).map(lambda each: {"effort": each}),
    }
    for name, strategy in options.items():
        if draw(st.booleans()):
            body[name] = draw(strategy)
    if "output_config" in body:
        body["thinking"] = draw(st.sampled_from([{"type": "adaptive"}, {"type": "adaptive", "display": "summarized"}]))
    if draw(st.booleans()):
        body["output_config"] = {
            **body.get("output_config", {}),
            "format": {"type": "json_schema", "schema": {"type": "object", "additionalProperties": False}},
        }
    if draw(st.booleans()):
        body["tools"] = [
            {"name": "add", "input_schema": {"type": "object"}, "description": "adds", "strict": True},
            {
                "name": "sub",
                "input_schema": {"type": "object", "properties": {}},
                "cache_control": {"type": "ephemeral"},
            },
            {"name": "web_search", "type": "web_search_20250305", "max_uses": 2},
        ]
        one = st.sampled_from([{"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "add"}])
        single = st.sampled_from([{}, {"disable_parallel_tool_use": True}, {"disable_parallel_tool_use": False}])
        both = st.builds(lambda choice, more: {**choice, **more}, one, single)
        if draw(st.booleans()):
            body["tool_choice"] = draw(st.one_of(st.just({"type": "none"}), both))
    return body


@lenient
@given(asked())
def test_a_messages_request_survives_the_way_there_and_back(body: dict[str, Any]) -> None:
    params = params_from_messages(body, cache_control=True)

    assert messages_from_params(params) == body


@lenient
@given(strategies.requests(refusals=False, reasoning=False, allowed=False))
def test_params_survive_the_way_there_and_back(drawn: dict[str, Any]) -> None:
    drawn.pop("metadata", None)
    if drawn.get("text", {}).get("format", {}).get("type") == "json_object":
        with pytest.raises(Invalid, match="text.format"):
            messages_from_params(ResponsesParams.model_validate(drawn))
        return
    params = ResponsesParams.model_validate(drawn)

    back = params_from_messages(messages_from_params(params, max_tokens=7))

    assert _said(back) == _said(params)
    for name in ("instructions", "temperature", "top_p"):
        assert getattr(back, name) == getattr(params, name)
    assert back.max_output_tokens == (params.max_output_tokens or 7)
    assert _schema(back) == _schema(params)
    efforts = {"minimal": "low"}
    effort = (drawn.get("reasoning") or {}).get("effort")
    assert ((back.model_extra or {}).get("reasoning") or {}).get("effort") == efforts.get(effort, effort)
    assert [_tool(tool) for tool in back.tools] == [_tool(tool) for tool in params.tools]
    if params.tools:
        wanted = params.tool_choice or ("auto" if params.parallel_tool_calls is False else None)
        assert back.tool_choice == wanted
        if wanted not in (None, "none"):
            assert back.parallel_tool_calls == params.parallel_tool_calls


def _tool(tool: dict[str, Any]) -> tuple[Any, ...]:
    return tool["name"], tool.get("description"), tool["parameters"], bool(tool.get("strict"))


def _schema(params: ResponsesParams) -> Any:
    return (((params.model_extra or {}).get("text") or {}).get("format") or {}).get("schema")


def _said(params: ResponsesParams) -> list[Any]:
    """What a history says: neighbours of one speaker joined, results right behind their calls."""
    calls: list[Any] = []
    found: list[Any] = []
    for item in params.items:
        dumped = item.dump()
        if dumped["type"] == "message":
            parts = dumped["content"]
            if isinstance(parts, str):
                parts = [{"type": "text", "text": parts}]
            told = [{**part, "type": part["type"].rpartition("_")[2]} for part in parts]
            found += [(dumped["role"], json.dumps(part, sort_keys=True)) for part in told]
        elif dumped["type"] == "function_call":
            call = (dumped["call_id"], dumped["name"], json.loads(dumped["arguments"]))
            calls.append(call)
            found.append(call)
        else:
            found.append(("output", dumped["call_id"], dumped["output"]))
    order = [call[0] for call in calls]
    last = [entry for entry in found if entry[0] == "output"]
    return [entry for entry in found if entry[0] != "output"] + sorted(last, key=lambda entry: order.index(entry[1]))


# --- answers


def told(response: Response) -> dict[str, Any]:
    """What a response says, without ids and the spelling of arguments."""
    items: list[Any] = []
    for item in response.output:
        if isinstance(item, FunctionCall):
            items.append(("call", item.call_id, item.name, json.loads(item.arguments), item.status))
        elif isinstance(item, Reasoning):
            items.append(("reasoning", item.summary, (item.model_extra or {}).get("encrypted_content")))
        elif isinstance(item, Message):
            items.append(("message", item.content, item.status))
    usage = response.usage.dump() if response.usage else None
    if usage is not None:
        usage["input_tokens_details"].pop("cache_write_tokens", None)
    return {
        "items": items,
        "usage": usage,
        "status": response.status,
        "details": response.incomplete_details,
        "model": response.model,
        "id": response.id,
    }


@lenient
@given(strategies.responses(signed=True))
def test_a_response_survives_the_way_there_and_back(drawn: dict[str, Any]) -> None:
    response = Response.model_validate(drawn)

    assert told(response_from_messages(messages_from_response(response))) == told(response)


@st.composite
def answers(draw: st.DrawFn) -> dict[str, Any]:
    content = draw(st.lists(thoughts, max_size=2))
    content += draw(st.lists(texts.map(lambda text: {"type": "text", "text": text, "citations": None}), max_size=2))
    content += [draw(uses(number)) for number in range(draw(st.integers(0, 2)))]
    stop = draw(
        st.sampled_from(
            ["end_turn", "max_tokens", "refusal", "pause_turn", "stop_sequence", "model_context_window_exceeded"]
        )
    )
    if stop in ("end_turn", "stop_sequence") and content and content[-1]["type"] == "tool_use":
        stop = "tool_use"
    details = {"type": "refusal", "category": "bio", "explanation": "no"} if stop == "refusal" else None
    read, written = draw(st.integers(0, 99)), draw(st.integers(0, 99))
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": content,
        "stop_reason": stop,
        "stop_sequence": "###" if stop == "stop_sequence" else None,
        "stop_details": details,
        "usage": {
            "input_tokens": draw(st.integers(0, 99)),
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": written,
            "output_tokens": draw(st.integers(0, 99)),
            "output_tokens_details": {"thinking_tokens": 0},
            "service_tier": "standard",
        },
    }


@lenient
@given(answers())
def test_a_messages_answer_survives_the_way_there_and_back(answer: dict[str, Any]) -> None:
    assert messages_from_response(response_from_messages(answer)) == answer


# --- streams


def streamed(answer: dict[str, Any], cut: int) -> list[dict[str, Any]]:
    """Anthropic's events that tell of an answer, texts in pieces of `cut` characters."""
    usage = {**answer["usage"], "output_tokens": 1}
    begun = {**answer, "content": [], "stop_reason": None, "stop_sequence": None, "stop_details": None, "usage": usage}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": begun}, {"type": "ping"}]
    for index, block in enumerate(answer["content"]):
        start, deltas = dict(block), []
        if block["type"] == "text":
            start["text"] = ""
            deltas = [{"type": "text_delta", "text": piece} for piece in pieces(block["text"], cut)]
        elif block["type"] == "thinking":
            start |= {"thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"], cut)]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        elif block["type"] == "tool_use":
            start["input"] = {}
            deltas = [
                {"type": "input_json_delta", "partial_json": piece}
                for piece in pieces(json.dumps(block["input"]), cut)
            ]
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    delta = {name: answer[name] for name in ("stop_reason", "stop_sequence", "stop_details")}
    return [*events, {"type": "message_delta", "delta": delta, "usage": answer["usage"]}, {"type": "message_stop"}]


def pieces(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


async def each(events: Iterable[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
    for event in events:
        yield json.loads(json.dumps(event))


def gathered(found: AsyncIterator[dict[str, Any]]) -> list[dict[str, Any]]:
    async def gather() -> list[dict[str, Any]]:
        # what an event tells is what it held when it came
        return [json.loads(json.dumps(event)) async for event in found]

    return asyncio.run(gather())


def added_up(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The answer that Anthropic's events make, as a strict reader takes them."""
    assert events[0]["type"] == "message_start" and events[-1]["type"] == "message_stop"
    answer = events[0]["message"]
    assert answer["content"] == [] and answer["stop_reason"] is None
    raw: dict[int, str] = {}
    going: set[int] = set()
    for event in events[1:-1]:
        if event["type"] == "content_block_start":
            assert event["index"] == len(answer["content"])
            going.add(event["index"])
            answer["content"].append(event["content_block"])
        elif event["type"] == "content_block_delta":
            assert event["index"] in going
            block, delta = answer["content"][event["index"]], event["delta"]
            kind = delta.pop("type")
            if kind == "input_json_delta":
                raw[event["index"]] = raw.get(event["index"], "") + delta["partial_json"]
            elif kind == "citations_delta":
                block["citations"] = [*(block["citations"] or []), delta["citation"]]
            else:
                for name, text in delta.items():
                    block[name] += text
        elif event["type"] == "content_block_stop":
            going.remove(event["index"])
        else:
            assert event["type"] == "message_delta" and not going
            answer |= event["delta"]
            answer["usage"] |= event["usage"]
    for index, text in raw.items():
        answer["content"][index]["input"] = json.loads(text)
    return answer


@lenient
@given(answers(), st.integers(1, 8))
def test_streamed_messages_make_the_response_that_the_whole_answer_makes(answer: dict[str, Any], cut: int) -> None:
    events = gathered(events_from_messages(each(streamed(answer, cut))))

    last = events[-1]
    assert last["type"] == f"response.{last['response']['status']}"
    assert [event["type"] for event in events].count(last["type"]) == 1
    assert told(Response.model_validate(last["response"])) == told(response_from_messages(answer))
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    begun = [event["item"]["id"] for event in events if event["type"] == "response.output_item.added"]
    assert [item["id"] for item in last["response"]["output"]] == begun
    assert sorted(item["id"] for item in done) == sorted(begun)


@lenient
@given(answers(), st.integers(1, 8))
def test_a_stream_survives_the_way_there_and_back(answer: dict[str, Any], cut: int) -> None:
    events = gathered(messages_from_events(events_from_messages(each(streamed(answer, cut)))))

    assert added_up(events) == answer


# --- nonsense


@lenient
@given(strategies.mutated(asked()))
def test_a_wrong_request_is_refused_and_no_more(body: Any) -> None:
    try:
        params = params_from_messages(body)
        messages_from_params(params)
    except Invalid as error:
        assert error.detail


@lenient
@given(strategies.mutated(strategies.requests()))
def test_wrong_params_are_refused_and_no_more(drawn: Any) -> None:
    try:
        messages_from_params(ResponsesParams.model_validate(drawn))
    except ValidationError:
        pass
    except Invalid as error:
        assert error.detail


@lenient
@given(strategies.mutated(answers()))
def test_a_wrong_answer_is_refused_and_no_more(answer: Any) -> None:
    try:
        messages_from_response(response_from_messages(answer))
    except Invalid as error:
        assert error.detail


@lenient
@given(strategies.mutated(answers().map(lambda answer: streamed(answer, 3)), times=3))
def test_a_wrong_stream_is_refused_and_no_more(events: Any) -> None:
    try:
        gathered(messages_from_events(events_from_messages(each(events if isinstance(events, list) else []))))
    except Invalid as error:
        assert error.detail
