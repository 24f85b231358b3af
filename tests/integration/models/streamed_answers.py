"""One answer in each dialect, streamed and whole: a thought, a text, two calls at once, the usage."""

from __future__ import annotations

import json
from typing import Any

from tests.misbehaving import block, piece

THOUGHT, TEXT = ("They want ", "sümß."), ("I shall ", "add 🌍.")
CALLS = {"a": ('{"by":', " 1}"), "b": ('{"by":', " 2}")}
WHOLE = {"thought": "".join(THOUGHT), "text": "".join(TEXT), "a": '{"by": 1}', "b": '{"by": 2}'}


def of_chat() -> tuple[list[bytes], dict[str, Any]]:
    usage = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}

    def call_piece(index: int, arguments: str, **more: Any) -> dict[str, Any]:
        name = {"name": "add"} if more else {}
        return piece({"tool_calls": [{"index": index, **more, "function": {**name, "arguments": arguments}}]})

    found = [
        piece({"role": "assistant", "content": ""}),
        *(piece({"reasoning_content": each}) for each in THOUGHT),
        *(piece({"content": each}) for each in TEXT),
        *(call_piece(index, "", id=id, type="function") for index, id in enumerate(CALLS)),
        *(call_piece(index, parts[0]) for index, parts in enumerate(CALLS.values())),
        *(call_piece(index, parts[1]) for index, parts in enumerate(CALLS.values())),
        piece({}, "tool_calls"),
        {**piece({}), "choices": [], "usage": usage},
    ]
    calls = [
        {"id": id, "type": "function", "function": {"name": "add", "arguments": "".join(parts)}}
        for id, parts in CALLS.items()
    ]
    message = {
        "role": "assistant",
        "reasoning_content": WHOLE["thought"],
        "content": WHOLE["text"],
        "tool_calls": calls,
    }
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    answer = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
    return [*map(block, found), block("[DONE]")], answer


def of_responses() -> tuple[list[bytes], dict[str, Any]]:
    begun = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "status": "in_progress",
        "output": [],
    }
    part = {"type": "summary_text", "text": WHOLE["thought"]}
    said = {"type": "output_text", "text": WHOLE["text"], "annotations": []}
    items: list[dict[str, Any]] = [
        {"type": "reasoning", "id": "rs_1", "summary": [part]},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [said]},
        *(
            {"type": "function_call", "id": f"fc_{id}", "call_id": id, "name": "add", "arguments": "".join(parts)}
            for id, parts in CALLS.items()
        ),
    ]

    def at(index: int, kind: str, **more: Any) -> dict[str, Any]:
        return {"type": f"response.{kind}", "output_index": index, "item_id": items[index]["id"], **more}

    def item(index: int, kind: str, **more: Any) -> dict[str, Any]:
        return {"type": f"response.output_item.{kind}", "output_index": index, "item": {**items[index], **more}}

    usage = {"input_tokens": 5, "output_tokens": 7, "total_tokens": 12}
    answer = {**begun, "status": "completed", "output": items, "usage": usage}
    summary, content = {"summary_index": 0}, {"content_index": 0}
    found = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
        item(0, "added", summary=[]),
        at(0, "reasoning_summary_part.added", **summary, part={**part, "text": ""}),
        *(at(0, "reasoning_summary_text.delta", **summary, delta=each) for each in THOUGHT),
        at(0, "reasoning_summary_text.done", **summary, text=WHOLE["thought"]),
        at(0, "reasoning_summary_part.done", **summary, part=part),
        item(0, "done"),
        item(1, "added", content=[], status="in_progress"),
        at(1, "content_part.added", **content, part={**said, "text": ""}),
        *(at(1, "output_text.delta", **content, delta=each) for each in TEXT),
        at(1, "output_text.done", **content, text=WHOLE["text"]),
        at(1, "content_part.done", **content, part=said),
        item(1, "done"),
        *(item(index, "added", arguments="") for index in (2, 3)),
        *(
            at(index, "function_call_arguments.delta", delta=CALLS[id][number])
            for number in (0, 1)
            for index, id in ((2, "a"), (3, "b"))
        ),
        *(
            at(index, "function_call_arguments.done", name="add", arguments=items[index]["arguments"])
            for index in (2, 3)
        ),
        *(item(index, "done") for index in (2, 3)),
        {"type": "response.completed", "response": answer},
    ]
    return [block({**event, "sequence_number": number}) for number, event in enumerate(found)], answer


def of_messages() -> tuple[list[bytes], dict[str, Any]]:
    blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
        (
            {"type": "thinking", "thinking": "", "signature": ""},
            [
                *({"type": "thinking_delta", "thinking": each} for each in THOUGHT),
                {"type": "signature_delta", "signature": "c2ln"},
            ],
        ),
        ({"type": "text", "text": ""}, [{"type": "text_delta", "text": each} for each in TEXT]),
        *(
            (
                {"type": "tool_use", "id": id, "name": "add", "input": {}},
                [{"type": "input_json_delta", "partial_json": each} for each in parts],
            )
            for id, parts in CALLS.items()
        ),
    ]
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": []}
    usage = {"input_tokens": 5, "output_tokens": 1}
    begun = {**message, "stop_reason": None, "stop_sequence": None, "usage": usage}
    found: list[dict[str, Any]] = [{"type": "message_start", "message": begun}, {"type": "ping"}]
    for index, (start, deltas) in enumerate(blocks):
        found.append({"type": "content_block_start", "index": index, "content_block": start})
        found += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        found.append({"type": "content_block_stop", "index": index})
    stop = {"stop_reason": "tool_use", "stop_sequence": None}
    found += [{"type": "message_delta", "delta": stop, "usage": {"output_tokens": 7}}, {"type": "message_stop"}]
    content = [
        {"type": "thinking", "thinking": WHOLE["thought"], "signature": "c2ln"},
        {"type": "text", "text": WHOLE["text"]},
        *({"type": "tool_use", "id": id, "name": "add", "input": json.loads("".join(CALLS[id]))} for id in CALLS),
    ]
    return [*map(block, found)], {**message, **stop, "content": content, "usage": {**usage, "output_tokens": 7}}


ANSWERS = {"responses": of_responses(), "chat": of_chat(), "messages": of_messages()}
LAST_NEEDED = {
    "responses": b'"response.completed"',
    "chat": b'"finish_reason": "tool_calls"',
    "messages": b'"stop_reason": "tool_use"',
}
"""What stands in the event with which an answer is whole, though more may follow."""
