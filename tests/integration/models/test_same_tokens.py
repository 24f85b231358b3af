"""Same tokens: a real model answers the same at temperature 0, asked directly or through gymbox, in every dialect and
through every conversion."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anthropic
import openai
import pytest
from gymbox.errors import ConfigError
from gymbox.guard import Guard
from gymbox.http import HttpClient
from gymbox.models import Model
from gymbox.models.anthropic import AnthropicModel
from gymbox.models.chat import ChatModel
from gymbox.models.local import LOOPS, LocalModel, bundled_model
from gymbox.models.local_tools import held_to_choice
from gymbox.models.openai import OpenAIModel
from gymbox.models.server import ModelServer
from gymbox.serving import Listener

from tests.integration.models.llama_server import TEMPLATE, THINKING, llama_server
from tests.integration.models.same_requests import CASES, LIMITS, LOCAL_CASES, THOUGHTS, TURNS, Dialect
from tests.integration.models.told_answers import TOLD_OF, Told, of_response

pytestmark = pytest.mark.local_model
TOKEN = "gbx_same_tokens_tests_only"
PATHS: dict[Dialect, str] = {
    "responses": "/v1/responses",
    "chat": "/v1/chat/completions",
    "messages": "/v1/messages",
}
BACK_ENDS: dict[str, tuple[type[Any], Dialect]] = {
    "openai": (OpenAIModel, "responses"),
    "chat": (ChatModel, "chat"),
    "anthropic": (AnthropicModel, "messages"),
}


# --- direct


@pytest.fixture(scope="module")
def llama() -> Iterator[str]:
    pytest.importorskip("xllamacpp")
    try:
        bundled_model()
    except ConfigError as error:
        pytest.skip(str(error))
    with llama_server(TEMPLATE) as url:
        yield url


@pytest.fixture(scope="module")
def llama_of_local(llama: str) -> Iterator[str]:
    """The same, with the template that the local model has."""
    with llama_server() as url:
        yield url


@pytest.fixture(scope="module")
def llama_that_thinks(llama: str) -> Iterator[str]:
    with llama_server(THINKING) as url:
        yield url


async def direct(http: HttpClient, url: str, dialect: Dialect, body: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = await http.json("POST", f"{url}{PATHS[dialect]}", json=body)
    return answer


async def told_directly(http: HttpClient, url: str, dialect: Dialect, body: dict[str, Any]) -> Told:
    """What llama.cpp answers. Its Responses API calls each answer completed: what took all the tokens is not."""
    asked = (url, dialect, json.dumps(body))
    if asked not in KNOWN:
        told = TOLD_OF[dialect](await direct(http, url, dialect, body))
        cut = not told.calls and told.tokens[1] == body[LIMITS[dialect]]
        KNOWN[asked] = replace(told, ending="limit") if cut else told
    return KNOWN[asked]


KNOWN: dict[tuple[str, Dialect, str], Told] = {}
"""Direct answers, by what was asked: each is asked for once, since a real model is slow."""


# --- through gymbox


class Failed(Exception):
    """A stream whose terminal event tells of a failure: OpenAI's client raises nothing then."""


class Clients:
    """Official clients of one served model."""

    def __init__(self, of_openai: openai.AsyncOpenAI, of_anthropic: anthropic.AsyncAnthropic) -> None:
        self.openai = of_openai
        self.anthropic = of_anthropic

    async def told(self, dialect: Dialect, body: dict[str, Any], *, streamed: bool) -> dict[str, Any]:
        ask = getattr(self, f"_{dialect}_{'streamed' if streamed else 'plain'}")
        found: Any = await ask(body)
        dumped: dict[str, Any] = found.model_dump(mode="json", warnings=False)
        return dumped

    async def _responses_plain(self, body: Any) -> Any:
        return await self.openai.responses.create(**body)

    async def _responses_streamed(self, body: Any) -> Any:
        deltas: list[str] = []
        final: Any = None
        async with self.openai.responses.stream(**body) as stream:
            async for event in stream:
                if event.type == "response.output_text.delta":
                    deltas.append(event.delta)
                if event.type in ("response.completed", "response.incomplete"):
                    final = event.response
                if event.type == "response.failed":
                    assert event.response.error is not None
                    raise Failed(event.response.error.message)
        assert "".join(deltas) == final.output_text
        return final

    async def _chat_plain(self, body: Any) -> Any:
        return await self.openai.chat.completions.create(**body)

    async def _chat_streamed(self, body: Any) -> Any:
        asked = {name: value for name, value in body.items() if name != "response_format"}
        if "response_format" in body:  # the helper would hold a cut answer for an exception
            asked["extra_body"] = {"response_format": body["response_format"]}
        options: Any = {"include_usage": True}
        try:
            async with self.openai.chat.completions.stream(**asked, stream_options=options) as stream:
                return await stream.get_final_completion()
        except openai.LengthFinishReasonError as error:
            return error.completion

    async def _messages_plain(self, body: Any) -> Any:
        return await self.anthropic.messages.create(**_with_extra(body))

    async def _messages_streamed(self, body: Any) -> Any:
        async with self.anthropic.messages.stream(**_with_extra(body)) as stream:
            return await stream.get_final_message()


def _with_extra(body: dict[str, Any]) -> dict[str, Any]:
    """Newer clients of Anthropic's name no temperature."""
    rest = {name: value for name, value in body.items() if name != "temperature"}
    return {**rest, "extra_body": {"temperature": body["temperature"]}}


@asynccontextmanager
async def served(model: Model, http: HttpClient) -> AsyncIterator[Clients]:
    app = ModelServer(model, http).setup_webserver()
    async with Listener(app, Guard(token=TOKEN, takes_api_key=True), drain=1) as listener:
        more: Any = {"api_key": TOKEN, "max_retries": 0}
        async with (
            openai.AsyncOpenAI(base_url=f"{listener.url}/v1", **more) as of_openai,
            anthropic.AsyncAnthropic(base_url=listener.url, **more) as of_anthropic,
        ):
            yield Clients(of_openai, of_anthropic)


Way = tuple[Dialect, bool]
"""A served dialect, and whether the answer is streamed."""
WAYS: list[Way] = [(dialect, streamed) for dialect in PATHS for streamed in (False, True)]
FAILURES = (openai.APIError, anthropic.APIError, Failed)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", BACK_ENDS)
async def test_each_way_through_gymbox_gives_the_tokens_of_a_direct_call(
    kind: str, case: str, llama: str, http: HttpClient
) -> None:
    made, own = BACK_ENDS[kind]
    expected = await told_directly(http, llama, own, CASES[case][own])
    if case == "parallel tool calls":
        assert [json.loads(found) for _, found in expected.calls] == [{"city": "Cairo"}, {"city": "Oslo"}]
    assert case != "cut by the limit" or expected.ending == "limit"
    async with served(made(name="m", base_url=f"{llama}/v1", pause=0.001), http) as clients:
        if case == "structured" and not expected.text.strip().startswith("{"):
            # a server that does not hold its answer to the schema: whoever asked is not handed prose
            for face, streamed in WAYS:
                with pytest.raises(FAILURES, match="JSON was asked for, and the server did not enforce it"):
                    await clients.told(face, CASES[case][face], streamed=streamed)
            return
        assert await told_in_each_way(clients, CASES[case]) == dict.fromkeys(WAYS, expected)


async def told_in_each_way(clients: Clients, bodies: dict[Dialect, dict[str, Any]]) -> dict[Way, Told]:
    found: dict[Way, Told] = {}
    for face, streamed in WAYS:
        found[face, streamed] = TOLD_OF[face](await clients.told(face, bodies[face], streamed=streamed))
    return found


@pytest.mark.parametrize("case", [*(case for case in CASES if case != "parallel tool calls"), "one tool call"])
async def test_the_local_model_gives_the_tokens_of_a_direct_call_with_its_settings(
    case: str, llama_of_local: str, http: HttpClient
) -> None:
    bodies = LOCAL_CASES[case]
    asked = bodies["chat"] | LOOPS
    if case == "one tool call":
        # its template knows no tools: a grammar holds it to a call
        tools = bodies["responses"]["tools"]
        asked = held_to_choice({**asked, "tools": None}, tools, may_answer=False)
        decided = await told_directly(http, llama_of_local, "chat", asked)
        decision = json.loads(decided.text)
        expected = replace(
            decided, text="", calls=((decision["tool"], json.dumps(decision["arguments"])),), ending="calls"
        )
    else:
        expected = await told_directly(http, llama_of_local, "chat", asked)
    async with served(LocalModel(name="m", context=1024, max_concurrency=1, threads=1), http) as clients:
        assert await told_in_each_way(clients, bodies) == dict.fromkeys(WAYS, expected)


@pytest.mark.parametrize("case", CASES)
async def test_llama_cpp_itself_takes_the_same_request_in_each_dialect(
    case: str, llama: str, http: HttpClient
) -> None:
    """Else the comparison above would compare different prompts."""
    if case == "structured":
        pytest.skip("it holds only Chat answers to a schema")
    found = [await told_directly(http, llama, dialect, body) for dialect, body in CASES[case].items()]
    assert found[1:] == found[:-1]


TAKES_THOUGHTS: dict[str, dict[str, Any]] = {
    "anthropic": {"unsigned_thinking": True},
    "openai": {"reasoning_field": "content"},
}


@pytest.mark.parametrize("case", THOUGHTS)
async def test_thoughts_come_and_go_back_as_in_a_direct_call(
    case: str, llama_that_thinks: str, http: HttpClient
) -> None:
    bodies = THOUGHTS[case]
    expected = await told_directly(http, llama_that_thinks, "chat", bodies["chat"])
    assert (expected.text, expected.ending) == ("", "limit") and expected.thought
    for kind, (made, own) in BACK_ENDS.items():
        assert await told_directly(http, llama_that_thinks, own, bodies[own]) == expected, kind
        more = TAKES_THOUGHTS.get(kind, {})
        async with served(made(name="m", base_url=f"{llama_that_thinks}/v1", pause=0.001, **more), http) as clients:
            assert await told_in_each_way(clients, bodies) == dict.fromkeys(WAYS, expected), kind


async def test_an_earlier_answer_may_be_told_in_short_where_the_back_end_wants_it_whole(
    llama: str, http: HttpClient
) -> None:
    case = CASES["several turns"]
    expected = await told_directly(http, llama, "responses", case["responses"])
    async with served(OpenAIModel(name="m", base_url=f"{llama}/v1"), http) as clients:
        for earlier in (TURNS[1], {"role": "assistant", "content": [{"type": "output_text", "text": "Hi Ann!"}]}):
            short = {**case["responses"], "input": [TURNS[0], earlier, TURNS[2]]}
            assert of_response(await clients.told("responses", short, streamed=False)) == expected


# --- token ids and log-probs


Sampled = list[tuple[int, float]]


def sampled(entries: Any) -> Sampled:
    return [(entry["id"], entry["logprob"]) for entry in entries]


async def sampled_directly(http: HttpClient, url: str, **more: Any) -> Sampled:
    body = await direct(http, url, "chat", {**CASES["text"]["chat"], "logprobs": True, "top_logprobs": 1, **more})
    found = sampled(body["choices"][0]["logprobs"]["content"])
    assert len(found) == body["usage"]["completion_tokens"] > 5
    return found


LOG_PROBS: dict[Dialect, dict[str, Any]] = {
    "responses": {"include": ["message.output_text.logprobs"], "top_logprobs": 1},
    "chat": {"logprobs": True, "top_logprobs": 1},
}


async def sampled_in_each_way(clients: Clients) -> dict[Way, Sampled]:
    found: dict[Way, Sampled] = {}
    for face, more in LOG_PROBS.items():
        for streamed in (False, True):
            body = await clients.told(face, {**CASES["text"][face], **more}, streamed=streamed)
            if face == "responses":
                found[face, streamed] = sampled(body["output"][0]["content"][0]["logprobs"])
            else:
                found[face, streamed] = sampled(body["choices"][0]["logprobs"]["content"])
    return found


def in_each_way(expected: Sampled) -> dict[Way, Sampled]:
    """llama.cpp does not stream the token that ends a turn, since it has no text."""
    return {
        (face, streamed): expected[:-1] if streamed else expected for face in LOG_PROBS for streamed in (False, True)
    }


async def test_token_ids_and_log_probs_are_those_of_a_direct_call(
    llama: str, llama_of_local: str, http: HttpClient
) -> None:
    expected = await sampled_directly(http, llama)
    async with served(ChatModel(name="m", base_url=f"{llama}/v1"), http) as clients:
        assert await sampled_in_each_way(clients) == in_each_way(expected)
    expected = await sampled_directly(http, llama_of_local, **LOOPS)
    async with served(LocalModel(name="m", context=1024, max_concurrency=1, threads=1), http) as clients:
        assert await sampled_in_each_way(clients) == in_each_way(expected)


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
async def test_a_back_end_that_gives_no_log_probs_refuses_by_name(kind: str, llama: str, http: HttpClient) -> None:
    made, _ = BACK_ENDS[kind]
    async with served(made(name="m", base_url=f"{llama}/v1"), http) as clients:
        for face, more in LOG_PROBS.items():
            for streamed in (False, True):
                with pytest.raises(openai.UnprocessableEntityError, match="logprobs"):
                    await clients.told(face, {**CASES["text"][face], **more}, streamed=streamed)


async def test_the_local_model_keeps_the_ids_of_a_direct_call_for_training(
    llama_of_local: str, http: HttpClient
) -> None:
    expected = await sampled_directly(http, llama_of_local, **LOOPS)
    prompt = await http.json("POST", f"{llama_of_local}/apply-template", json=CASES["text"]["chat"])
    tokens = {"content": prompt["prompt"], "add_special": True, "parse_special": True}
    ids = (await http.json("POST", f"{llama_of_local}/tokenize", json=tokens))["tokens"]
    model = LocalModel(name="m", context=1024, max_concurrency=1, threads=1, token_ids=True)
    async with served(model, http) as clients:
        for streamed in (False, True):
            [item] = (await clients.told("responses", CASES["text"]["responses"], streamed=streamed))["output"]
            kept = list(zip(item["generation_token_ids"], item["generation_log_probs"], strict=True))
            assert (item["prompt_token_ids"], kept) == (ids, expected)
            [choice] = (await clients.told("chat", CASES["text"]["chat"], streamed=streamed))["choices"]
            message = choice["message"]
            kept = list(zip(message["generation_token_ids"], message["generation_log_probs"], strict=True))
            assert (message["prompt_token_ids"], kept) == (ids, expected)


async def test_ids_that_a_server_gives_only_in_part_are_no_usable_answer(llama: str, http: HttpClient) -> None:
    """llama.cpp's own server does not tell of the prompt's ids."""
    async with served(ChatModel(name="m", base_url=f"{llama}/v1", token_ids=True, pause=0.001), http) as clients:
        for face, streamed in WAYS:
            with pytest.raises(FAILURES, match="token ids were asked for, and the answer has no prompt_token_ids"):
                await clients.told(face, CASES["cut by the limit"][face], streamed=streamed)
