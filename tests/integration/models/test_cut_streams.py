"""Streams that break off: after each event and inside each, whatever the back end speaks and whatever is served. The
caller always sees one end, which tells what happened."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

import anthropic
import openai
import pytest
from gymbox.errors import ErrorKind
from gymbox.guard import Guard
from gymbox.http import HttpClient
from gymbox.models.anthropic import AnthropicModel
from gymbox.models.chat import ChatModel
from gymbox.models.openai import OpenAIModel
from gymbox.models.server import ModelServer
from gymbox.serving import Listener

from tests.integration.models.streamed_answers import ANSWERS, LAST_NEEDED, WHOLE
from tests.misbehaving import Dialect, Way, Wire, misbehaving_server

TOKEN = "gbx_cut_streams_tests_only"
MODELS: dict[Dialect, type[Any]] = {"responses": OpenAIModel, "chat": ChatModel, "messages": AnthropicModel}
PATHS: dict[Dialect, str] = {"responses": "/v1/responses", "chat": "/v1/chat/completions", "messages": "/v1/messages"}
HELLO: Any = [{"role": "user", "content": "hello"}]
ASKED: dict[Dialect, dict[str, Any]] = {
    "responses": {"input": HELLO},
    "chat": {"messages": HELLO},
    "messages": {"messages": HELLO, "max_tokens": 99},
}


# --- where it is cut, and how

Ending = Literal["ends", "closes", "resets"]


@dataclass(frozen=True)
class Cut:
    """Bytes of the stream that come, and what the line does then: it ends well, closes in mid-answer, or is reset."""

    sent: bytes
    events: int
    whole: bool
    ending: Ending

    @property
    def name(self) -> str:
        return f"{len(self.sent)} bytes, {self.ending}"

    def way(self) -> Way:
        async def way(wire: Wire) -> None:
            await wire.begin_stream()
            if self.sent:
                await wire.chunk(self.sent)
            if self.ending == "ends":
                await wire.write(b"0\r\n\r\n")
            if self.ending == "resets":
                wire.reset()

        return way


def cuts_of(blocks: list[bytes], last_needed: bytes) -> list[Cut]:
    needed = next(number for number, each in enumerate(blocks, 1) if last_needed in each)
    endings: tuple[Ending, ...] = ("ends", "closes", "resets")
    found: list[Cut] = []
    for number in range(len(blocks)):
        before = b"".join(blocks[:number])
        for sent in (before, before + blocks[number][: len(blocks[number]) // 2]):
            for ending in endings:
                whole = number >= needed
                # a reset may overtake what was sent before it
                if not (whole and ending == "resets"):
                    found.append(Cut(sent, number, whole, ending))
    return found


@asynccontextmanager
async def served(dialect: Dialect, ways: dict[str, Way], http: HttpClient) -> AsyncIterator[str]:
    """A model server on whose models the back end's answers are cut, each model in the way of its name."""
    async with misbehaving_server(ways) as back_end:
        made = MODELS[dialect]
        models = {name: made(name=name, base_url=back_end.base_url(name), pause=0.001) for name in ways}
        app = ModelServer(models, http).setup_webserver()
        async with Listener(app, Guard(token=TOKEN, takes_api_key=True), drain=1) as listener:
            yield listener.url


# --- what a caller sees


async def raw(http: HttpClient, url: str, face: Dialect, model: str) -> tuple[int, str]:
    body = {**ASKED[face], "model": model, "stream": True}
    headers = {"Authorization": f"Bearer {TOKEN}"}
    answer = await http.request("POST", f"{url}{PATHS[face]}", json=body, headers=headers, retry=False)
    return answer.status, answer.body.decode()


def data_of(text: str) -> list[Any]:
    blocks = [each.split("data: ", 1)[1] for each in text.strip().split("\n\n")]
    return [each if each == "[DONE]" else json.loads(each) for each in blocks]


@dataclass
class Seen:
    """What a stream told: pieces added up, and its one end."""

    told: dict[str, str]
    failure: dict[str, Any] | None


def seen(face: Dialect, text: str) -> Seen:
    return {"responses": seen_responses, "chat": seen_chat, "messages": seen_messages}[face](data_of(text))


def seen_responses(events: list[Any]) -> Seen:
    ends = {"response.completed", "response.incomplete", "response.failed"}
    assert [event["type"] for event in events if event["type"] in ends] == [events[-1]["type"]]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    told = dict.fromkeys(WHOLE, "")
    calls: dict[int, str] = {}
    for event in events:
        if event["type"] == "response.output_item.added" and event["item"]["type"] == "function_call":
            calls[event["output_index"]] = event["item"]["call_id"]
        if event["type"].endswith(".delta"):
            name = {"response.output_text.delta": "text", "response.reasoning_summary_text.delta": "thought"}
            told[name.get(event["type"]) or calls[event["output_index"]]] += event["delta"]
    last = events[-1]["response"]
    return Seen(told, last["error"] if last["status"] == "failed" else None)


def seen_chat(events: list[Any]) -> Seen:
    assert events.count("[DONE]") == 1 and events[-1] == "[DONE]"
    chunks = events[:-1]
    failures = [chunk["error"] for chunk in chunks if chunk.get("error")]
    finished = [choice for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    assert len(failures) + len(finished) == 1
    assert not failures or chunks[-1]["error"] == failures[0]
    told = dict.fromkeys(WHOLE, "")
    calls: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            told["text"] += choice["delta"].get("content") or ""
            told["thought"] += choice["delta"].get("reasoning_content") or ""
            for call in choice["delta"].get("tool_calls") or []:
                id = calls.setdefault(call["index"], call.get("id"))
                told[id] += call["function"].get("arguments") or ""
    return Seen(told, failures[0] if failures else None)


def seen_messages(events: list[Any]) -> Seen:
    names = [event["type"] for event in events]
    assert names.count("message_stop") + names.count("error") == 1 and names[-1] in ("message_stop", "error")
    assert names.count("message_delta") == (names[-1] == "message_stop")
    told = dict.fromkeys(WHOLE, "")
    calls: dict[int, str] = {}
    for event in events:
        if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use":
            calls[event["index"]] = event["content_block"]["id"]
        delta = event.get("delta") or {}
        told["text"] += delta.get("text") or ""
        told["thought"] += delta.get("thinking") or ""
        if "partial_json" in delta:
            told[calls[event["index"]]] += delta["partial_json"]
    return Seen(told, events[-1]["error"] if names[-1] == "error" else None)


KIND = {"responses": "code", "chat": "code", "messages": "rollout_kind"}


@pytest.mark.parametrize("face", PATHS)
@pytest.mark.parametrize("dialect", MODELS)
async def test_a_stream_cut_anywhere_has_one_end_that_tells_of_it(
    dialect: Dialect, face: Dialect, http: HttpClient
) -> None:
    blocks, _ = ANSWERS[dialect]
    cuts = cuts_of(blocks, LAST_NEEDED[dialect])
    wrong = []
    async with served(dialect, {cut.name: cut.way() for cut in cuts}, http) as url:
        for cut in cuts:
            status, text = await raw(http, url, face, cut.name)
            try:
                check(cut, face, status, text)
            except (AssertionError, KeyError, ValueError) as error:
                wrong.append((cut.name, cut.events, blocks[cut.events][:80], f"{error!r:.300}"))
    assert not wrong


def check(cut: Cut, face: Dialect, status: int, text: str) -> None:
    if status != 200:
        # nothing was told before: the status says it
        assert not cut.whole
        assert status in (502, 503), text
        return
    found = seen(face, text)
    assert all(WHOLE[name].startswith(told) for name, told in found.told.items()), found
    if cut.whole:
        assert found.failure is None and found.told == WHOLE, found
    else:
        assert found.failure is not None and found.failure[KIND[face]] == ErrorKind.MODEL_UNAVAILABLE, found


# --- whole answers that are cut


def plain_ways(answer: dict[str, Any]) -> dict[str, tuple[Way, int]]:
    """Ways in which a whole answer is cut, at some fifteen places, each with the status that tells of it."""
    data = json.dumps(answer).encode()

    def cut(sent: bytes, *, ends: bool) -> Way:
        async def way(wire: Wire) -> None:
            await wire.head(Content_Length=len(sent) if ends else len(data))
            await wire.write(sent)

        return way

    places = range(0, len(data), max(1, len(data) // 15))
    # half an answer on a sound line is nonsense; where the line breaks off, asking again may help
    return {
        f"{place} bytes, {'ends' if ends else 'closes'}": (cut(data[:place], ends=ends), 502 if ends else 503)
        for place in places
        for ends in (True, False)
    }


@pytest.mark.parametrize("face", PATHS)
@pytest.mark.parametrize("dialect", MODELS)
async def test_a_plain_answer_cut_anywhere_is_a_typed_exception_of_the_official_client(
    dialect: Dialect, face: Dialect, http: HttpClient
) -> None:
    ways = plain_ways(ANSWERS[dialect][1])
    async with served(dialect, {name: way for name, (way, _) in ways.items()}, http) as url, clients(url) as apis:
        for name, (_, status) in ways.items():
            with pytest.raises((openai.InternalServerError, anthropic.InternalServerError)) as raised:
                await asked(apis, face, name)
            told: Any = raised.value
            kind = {502: ErrorKind.MODEL_BAD_RESPONSE, 503: ErrorKind.MODEL_UNAVAILABLE}[status]
            assert told.status_code == status and kind.value in str(told.body), name


# --- official clients


@asynccontextmanager
async def clients(url: str) -> AsyncIterator[tuple[openai.AsyncOpenAI, anthropic.AsyncAnthropic]]:
    more: Any = {"api_key": TOKEN, "max_retries": 0}
    async with (
        openai.AsyncOpenAI(base_url=f"{url}/v1", **more) as of_openai,
        anthropic.AsyncAnthropic(base_url=url, **more) as of_anthropic,
    ):
        yield of_openai, of_anthropic


async def asked(apis: tuple[openai.AsyncOpenAI, anthropic.AsyncAnthropic], face: Dialect, model: str) -> Any:
    of_openai, of_anthropic = apis
    create: Any = {
        "responses": of_openai.responses.create,
        "chat": of_openai.chat.completions.create,
        "messages": of_anthropic.messages.create,
    }[face]
    return await create(model=model, **ASKED[face])


async def streamed(apis: tuple[openai.AsyncOpenAI, anthropic.AsyncAnthropic], face: Dialect, model: str) -> bool:
    """Whether the official client's own stream gives an answer; else it raises, or tells of the failure."""
    of_openai, of_anthropic = apis
    if face == "messages":
        async with of_anthropic.messages.stream(model=model, **ASKED[face]) as messages:
            return (await messages.get_final_message()).stop_reason == "tool_use"
    if face == "chat":
        async with of_openai.chat.completions.stream(model=model, **ASKED[face]) as chunks:
            return (await chunks.get_final_completion()).choices[0].finish_reason == "tool_calls"
    async with of_openai.responses.stream(model=model, **ASKED[face]) as events:
        [last] = [event async for event in events if event.type in ("response.completed", "response.failed")]
    assert last.response.status == last.type.removeprefix("response.")
    return last.type == "response.completed"


@pytest.mark.parametrize("face", PATHS)
@pytest.mark.parametrize("dialect", MODELS)
async def test_official_clients_raise_or_are_told_where_a_stream_is_cut(
    dialect: Dialect, face: Dialect, http: HttpClient
) -> None:
    blocks, _ = ANSWERS[dialect]
    cuts = [cut for cut in cuts_of(blocks, LAST_NEEDED[dialect]) if cut.ending == "closes"]
    async with served(dialect, {cut.name: cut.way() for cut in cuts}, http) as url, clients(url) as apis:
        for cut in cuts:
            # what has begun tells of its failure as an event, at which OpenAI's client does not raise
            if cut.whole or (face == "responses" and cut.events > 0):
                assert await streamed(apis, face, cut.name) is cut.whole, cut.name
                continue
            with pytest.raises((openai.APIError, anthropic.APIError)):
                await streamed(apis, face, cut.name)
