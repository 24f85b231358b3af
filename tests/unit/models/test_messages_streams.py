"""Streams of the Messages format: events converted both ways, one behaviour a test."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from gymbox.errors import Invalid
from gymbox.models.messages_streams import events_from_messages, messages_from_events

from tests.unit.models.test_messages_format import call, output, read, text


async def each(*events: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    for event in events:
        yield event


def gathered(found: AsyncIterator[dict[str, Any]]) -> list[dict[str, Any]]:
    async def gather() -> list[dict[str, Any]]:
        return [json.loads(json.dumps(event)) async for event in found]

    return asyncio.run(gather())


def begun(output_index: int, **item: Any) -> dict[str, Any]:
    return {"type": "response.output_item.added", "output_index": output_index, "item": item}


def done(output_index: int, **item: Any) -> dict[str, Any]:
    return {"type": "response.output_item.done", "output_index": output_index, "item": item}


CREATED = {"type": "response.created", "response": {"id": "resp_1", "model": "m"}}


def completed(*output: dict[str, Any]) -> dict[str, Any]:
    whole = {"id": "resp_1", "model": "m", "status": "completed", "output": list(output)}
    return {"type": "response.completed", "response": whole}


def test_parallel_calls_stream_under_indexes_of_their_own() -> None:
    one, two = call("a", '{"x": 1}'), call("b", '{"y": 2}')
    pieces = [(0, '{"x"'), (1, '{"y": '), (0, ": 1}"), (1, "2}")]
    deltas = [
        {"type": "response.function_call_arguments.delta", "output_index": index, "delta": piece}
        for index, piece in pieces
    ]
    events = gathered(
        messages_from_events(
            each(
                CREATED, begun(0, **one), begun(1, **two), *deltas, done(0, **one), done(1, **two), completed(one, two)
            )
        )
    )

    told: dict[int, str] = {}
    for event in events:
        if event["type"] == "content_block_delta":
            told[event["index"]] = told.get(event["index"], "") + event["delta"]["partial_json"]
    assert told == {0: '{"x": 1}', 1: '{"y": 2}'}
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    assert [event["type"] for event in events].count("message_stop") == 1


def test_arguments_that_are_no_object_are_wrapped_in_a_stream_too() -> None:
    wrong = call("a", "[1")
    delta = {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": "[1"}
    events = gathered(
        messages_from_events(each(CREATED, begun(0, **wrong), delta, done(0, **wrong), completed(wrong)))
    )

    [piece] = [event["delta"]["partial_json"] for event in events if event["type"] == "content_block_delta"]
    assert json.loads(piece) == {"invalid_arguments": "[1"}


def test_items_that_are_told_of_only_at_the_end_are_streamed_then() -> None:
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "x"}
    ran = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    hidden = {"type": "reasoning", "summary": [], "encrypted_content": "redacted_thinking:zz"}
    nothing = {"type": "reasoning", "summary": []}
    whole = [thought, hidden, nothing, ran, text("yes", citations=[{"type": "char_location"}]), call("a", '{"x": 1}')]
    events = gathered(messages_from_events(each(completed(*whole))))

    kinds = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
    assert kinds == ["thinking", "redacted_thinking", "server_tool_use", "text", "tool_use"]
    deltas = [event["delta"]["type"] for event in events if event["type"] == "content_block_delta"]
    assert deltas == ["thinking_delta", "signature_delta", "text_delta", "citations_delta", "input_json_delta"]


def test_thoughts_are_told_once_their_parts_apart() -> None:
    def thought(kind: str, part: int, delta: str) -> dict[str, Any]:
        place = "summary_index" if "summary" in kind else "content_index"
        return {"type": f"response.{kind}.delta", "output_index": 0, place: part, "delta": delta}

    item = {"type": "reasoning", "summary": [{"type": "summary_text", "text": each} for each in ("a", "bc")]}
    events = gathered(
        messages_from_events(
            each(
                CREATED,
                begun(0, type="reasoning", summary=[]),
                thought("reasoning_summary_text", 0, "a"),
                thought("reasoning_text", 0, "other"),
                thought("reasoning_summary_text", 1, "b"),
                done(0, **item),
                completed(item),
            )
        )
    )

    told = [event["delta"]["thinking"] for event in events if event["type"] == "content_block_delta"]
    assert told == ["a", "\nb", "c"]


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (
            {"type": "response.failed", "response": {"error": {"code": "model_rate_limited", "message": "slow"}}},
            "rate_limit_error",
        ),
        ({"type": "error", "code": "x", "message": "slow"}, "api_error"),
    ],
)
def test_a_failure_in_mid_stream_is_one_error_event(event: dict[str, Any], kind: str) -> None:
    events = gathered(messages_from_events(each(CREATED, event, completed())))

    assert [each["type"] for each in events] == ["message_start", "error"]
    told = events[-1]["error"]
    assert (told["type"], told["message"]) == (kind, "slow")
    assert told.get("rollout_kind") == (None if kind == "api_error" else "model_rate_limited")


def test_text_and_thoughts_end_where_the_next_block_begins_and_a_late_seal_is_a_block_of_its_own() -> None:
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "reasoning_details": [1]}
    events = gathered(
        messages_from_events(
            each(
                CREATED,
                begun(0, type="reasoning", summary=[]),
                {
                    "type": "response.reasoning_summary_text.delta",
                    "output_index": 0,
                    "summary_index": 0,
                    "delta": "hm",
                },
                {"type": "response.output_text.delta", "output_index": 1, "content_index": 0, "delta": "yes"},
                done(0, **thought),
                done(1, **text("yes")),
                completed(thought, text("yes")),
            )
        )
    )

    order = [(event["type"].rpartition("_")[2], event["index"]) for event in events if "index" in event]
    assert order[:5] == [("start", 0), ("delta", 0), ("stop", 0), ("start", 1), ("delta", 1)]
    [seal] = [event["delta"]["signature"] for event in events if "signature" in event.get("delta", {})]
    block = {"type": "thinking", "thinking": "", "signature": seal}
    back = read({"role": "assistant", "content": [block, {"type": "text", "text": "yes"}]}).items[0].dump()
    assert back["reasoning_details"] == [1] and back["summary"] == []


def test_an_item_without_a_place_is_refused_in_a_stream() -> None:
    with pytest.raises(Invalid, match=r"output\[0\]: a function_call_output"):
        gathered(messages_from_events(each(CREATED, done(0, **output("a")))))
    with pytest.raises(Invalid, match=r"output\[0\]: .*name"):
        gathered(messages_from_events(each(CREATED, done(0, type="function_call", call_id="a"))))


START = {"type": "message_start", "message": {"id": "msg_1", "model": "m", "usage": {"input_tokens": 5}}}


def test_an_error_event_is_a_failed_response_of_its_kind() -> None:
    error = {"type": "error", "error": {"type": "rate_limit_error", "message": "slow"}}
    *_, last = gathered(events_from_messages(each(START, error, {"type": "message_stop"})))

    assert last["type"] == "response.failed"
    assert last["response"]["error"] == {"code": "model_rate_limited", "message": "slow"}
    [only] = gathered(events_from_messages(each({"type": "error", "error": "broken"})))
    assert only["response"]["error"] == {"code": "model_unavailable", "message": "broken"}


def test_a_stream_that_breaks_off_has_no_terminal_event_unless_the_model_had_ended() -> None:
    start = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "whole"}}
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}}

    broken = gathered(events_from_messages(each(START, start)))
    assert broken[-1]["type"] == "response.output_text.delta"
    *_, last = gathered(events_from_messages(each(START, start, end)))
    assert last["type"] == "response.completed"
    assert last["response"]["output"][0]["content"][0]["text"] == "whole"
    assert last["response"]["usage"]["total_tokens"] == 6


def test_a_whole_input_and_whole_thoughts_at_a_blocks_start_count() -> None:
    use = {"type": "tool_use", "id": "a", "name": "add", "input": {"x": 1}}
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    starts = [
        {"type": "content_block_start", "index": index, "content_block": block}
        for index, block in enumerate([thought, use])
    ]
    end = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}}
    *_, last = gathered(events_from_messages(each(*starts, end, {"type": "message_stop"})))

    reasoning, called = last["response"]["output"]
    assert reasoning["summary"] == [{"type": "summary_text", "text": "hm"}]
    assert reasoning["encrypted_content"] == "thinking:s"
    assert json.loads(called["arguments"]) == {"x": 1}


@pytest.mark.parametrize(
    ("event", "fault"),
    [
        ({"type": "message_start"}, "message_start has no message"),
        ({"type": "content_block_start", "index": 0}, "has no block"),
        ({"type": "content_block_start", "content_block": {}}, "needs its index"),
        ({"type": "content_block_delta", "index": 3, "delta": {}}, "that has not begun"),
        ({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta"}}, "without its text"),
        (
            {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta"}},
            "without its partial_json",
        ),
        ({"type": "content_block_delta", "index": 0, "delta": {"type": "odd"}}, "a 'odd' in a content block"),
        ({"type": "content_block_start", "index": 0, "content_block": {"type": "text"}}, "two content blocks"),
        ([], "an event must be an object"),
    ],
)
def test_an_event_that_makes_no_sense_is_refused(event: Any, fault: str) -> None:
    start = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    with pytest.raises(Invalid, match=fault):
        gathered(events_from_messages(each(START, start, event)))
