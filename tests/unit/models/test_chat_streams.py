"""Chat streams: what chunks and events tell, both ways, is what the whole answers tell."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from gymbox.errors import ErrorKind, Invalid, ModelFailure
from gymbox.models import chat_streams
from gymbox.models.chat_answers import chat_from_response, response_from_chat
from gymbox.models.chat_streams import chat_from_events, chunk_of_answer, events_from_chat, whole_chunks
from gymbox.models.events import TERMINAL, Event, Gathered, one_terminal, replayed, whole
from gymbox.models.whole_streams import answer_of_chunks
from gymbox_sandbox.responses import Response
from hypothesis import example, given, settings
from hypothesis import strategies as st

USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}


async def each(values: list[Any]) -> AsyncIterator[Any]:
    for value in values:
        yield value


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {
        "id": "c",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish, **more}],
    }


async def events(chunks: list[dict[str, Any]]) -> list[Event]:
    return [event async for event in events_from_chat(each(chunks))]


def gathered(told: list[Event]) -> Response:
    found = Gathered()
    for event in told:
        found.add(event)
    return found.response()


def said(response: Response) -> list[Any]:
    return [{name: value for name, value in item.dump().items() if name != "id"} for item in response.output]


text = st.text(st.sampled_from("ab <>/think\n"), max_size=30) | st.sampled_from(
    ["<think>a</think>b", "<think>\n a \n</think>\n\nb"]
)
CALL = {"type": "function", "function": {"name": "f", "arguments": ""}}
message = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": text},
    optional={
        "reasoning_content": text,
        "refusal": text,
        "tool_calls": st.lists(
            st.builds(
                lambda name, arguments: {"type": "function", "function": {"name": name, "arguments": arguments}},
                st.sampled_from(["f", "g"]),
                text,
            ),
            max_size=3,
        ),
    },
)


@settings(max_examples=200, deadline=None)
@given(message, st.integers(1, 5))
@example({"role": "assistant", "content": "</think>", "tool_calls": [CALL]}, 1)
def test_a_streamed_answer_is_the_plain_one_however_it_is_cut(given_message: dict[str, Any], size: int) -> None:
    calls = [{**call, "id": f"call_{index}"} for index, call in enumerate(given_message.get("tool_calls", []))]
    told = (
        {**given_message, "tool_calls": calls}
        if calls
        else {n: v for n, v in given_message.items() if n != "tool_calls"}
    )
    chunks = []
    for name in ("reasoning_content", "content", "refusal"):
        value = told.get(name) or ""
        chunks += [chunk({name: value[place : place + size]}) for place in range(0, len(value), size)]
    for index, call in enumerate(calls):
        chunks.append(
            chunk({"tool_calls": [{**call, "index": index, "function": {"name": call["function"]["name"]}}]})
        )
        arguments = call["function"]["arguments"]
        for place in range(0, len(arguments), size):
            piece = {"index": index, "function": {"arguments": arguments[place : place + size]}}
            chunks.append(chunk({"tool_calls": [piece]}))
    chunks.append(chunk({}, "stop"))
    plain = response_from_chat({"choices": [{"index": 0, "message": told, "finish_reason": "stop"}], "id": "c"})
    found = asyncio.run(events(chunks))
    key = lambda item: (item["type"], str(item))  # noqa: E731
    assert sorted(said(gathered(found)), key=key) == sorted(said(plain), key=key)
    places = [event["output_index"] for event in found if event["type"] == "response.output_item.added"]
    assert sorted(event["output_index"] for event in found if event["type"] == "response.output_item.done") == places
    # a text that turns out to be no more than the end of a thought was told of before that was known
    assert places == list(range(len(plain.output) + (len(places) > len(plain.output))))
    assert [event["type"] in TERMINAL for event in found].index(True) == len(found) - 1


@settings(max_examples=100, deadline=None)
@given(message)
def test_chunks_of_an_answer_make_the_answer_again(given_message: dict[str, Any]) -> None:
    calls = [{**call, "id": f"call_{index}"} for index, call in enumerate(given_message.pop("tool_calls", []))]
    told = {**given_message, **({"tool_calls": calls} if calls else {})}
    choice = {"index": 0, "message": told, "finish_reason": "tool_calls" if calls else "stop"}
    response = response_from_chat({"choices": [choice], "usage": USAGE, "id": "c", "model": "m", "created": 1})

    async def back() -> list[dict[str, Any]]:
        return [made async for made in chat_from_events(each(list(replayed(response.dump()))))]

    made = answer_of_chunks(asyncio.run(back()))
    plain = chat_from_response(response)
    assert made is not None
    assert made["choices"][0]["message"] == plain["choices"][0]["message"]
    assert made["choices"][0]["finish_reason"] == plain["choices"][0]["finish_reason"]
    assert made["usage"] == plain["usage"]


async def test_log_probs_go_with_the_text_both_ways() -> None:
    entry = {"token": "a", "logprob": -0.1, "bytes": [97], "top_logprobs": []}
    found = await events([chunk({"content": "a"}, logprobs={"content": [entry]}), chunk({}, "stop")])
    assert [event["logprobs"] for event in found if event["type"] == "response.output_text.delta"] == [[entry]]
    back = answer_of_chunks([made async for made in chat_from_events(each(found))])
    assert back is not None and back["choices"][0]["logprobs"] == {"content": [entry]}


async def test_what_comes_out_of_order_is_told_in_the_order_it_came() -> None:
    call = {"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}
    found = await events([chunk({"tool_calls": [call]}), chunk({"content": "late"}), chunk({}, "stop")])
    assert [item.type for item in gathered(found).output] == ["function_call", "message"]


async def test_a_thought_whose_beginning_the_template_opened_is_known_at_the_end() -> None:
    found = await events([chunk({"content": "hm</thi"}), chunk({"content": "nk>so"}), chunk({}, "stop")])
    response = gathered(found)
    assert response.output_text == "so" and {item.type for item in response.output} == {"message", "reasoning"}


async def test_an_endpoint_that_tells_no_usage_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_streams, "USAGE_GRACE", 0.01)

    async def held() -> AsyncIterator[dict[str, Any]]:
        yield chunk({"content": "a"})
        yield chunk({}, "stop")
        await asyncio.Event().wait()

    async with asyncio.timeout(30):
        assert len([made async for made in whole_chunks(held(), "m")]) == 2


async def test_usage_told_before_the_end_does_not_end_it() -> None:
    early = {**chunk({"content": "a"}), "usage": USAGE}
    assert (
        len([made async for made in whole_chunks(each([early, chunk({"content": "b"}), chunk({}, "stop")]), "m")]) == 3
    )


async def test_a_whole_answer_is_one_chunk() -> None:
    calls = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    given = {
        "id": "c",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": None, "tool_calls": calls},
                "finish_reason": "stop",
            }
        ],
    }
    again = answer_of_chunks([chunk_of_answer(given)])
    assert again is not None and again["choices"] == given["choices"]


async def test_a_stream_that_only_fails_is_a_chunk_with_its_kind() -> None:
    error = {"code": "model_timed_out", "message": "late", "retry_after": 2}
    failed = {"type": "response.failed", "response": whole({"status": "failed", "error": error})}
    *_, last = [made async for made in chat_from_events(each([failed]))]
    assert (last["error"]["code"], last["error"]["message"]) == ("model_timed_out", "late")


async def test_a_terminal_event_alone_tells_the_whole_answer() -> None:
    items = [
        {"type": "message", "role": "assistant", "content": "hi"},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
    ]
    *_, last = replayed({"output": items})
    made = answer_of_chunks([made async for made in chat_from_events(each([last]))])
    assert made is not None and made["choices"][0]["message"]["content"] == "hi"
    assert made["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == "{}"


# --- one terminal event


async def test_what_fails_before_the_first_event_is_raised_and_later_told() -> None:
    async def failing(*first: Event) -> AsyncIterator[Event]:
        for event in first:
            yield event
        raise Invalid("nonsense")

    with pytest.raises(ModelFailure, match="nonsense"):
        assert [event async for event in one_terminal(failing(), "m")]
    begun = {"type": "response.created", "response": {"id": "r1", "output": []}}
    *_, last = [event async for event in one_terminal(failing(begun), "m")]
    assert last["response"]["id"] == "r1" and last["response"]["status"] == "failed"
    assert last["response"]["error"]["code"] == ErrorKind.MODEL_BAD_RESPONSE
    with pytest.raises(ModelFailure, match="ended its stream"):
        assert [event async for event in one_terminal(each([]), "m")]


async def test_events_after_the_terminal_one_are_not_told() -> None:
    told = [*replayed({"output": []}), *replayed({"output": []})]
    found = [event async for event in one_terminal(each(told), "m")]
    assert len(found) == 3


def test_events_that_do_not_end_make_no_answer() -> None:
    found = Gathered()
    with pytest.raises(Invalid, match="ended before"):
        found.response()
    found.add({"type": "response.completed", "response": {"output": [{"type": "message", "role": "nobody"}]}})
    with pytest.raises(Invalid, match="no Response"):
        found.response()
