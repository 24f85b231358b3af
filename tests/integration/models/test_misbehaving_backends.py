"""Back ends that misbehave, whatever they speak: each way has its kind, takes bounded tries, and hangs nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from gymbox.errors import ErrorKind, ModelFailure
from gymbox.http import HttpClient
from gymbox.models import Call, exchange
from gymbox.models.anthropic import AnthropicModel
from gymbox.models.chat import ChatModel
from gymbox.models.endpoint import CHECK, TRIES, Endpoint
from gymbox.models.openai import OpenAIModel
from gymbox_sandbox.responses import ResponsesParams

from tests.misbehaving import MISBEHAVIOURS, TEXT, Dialect, Expected, MisbehavingServer, misbehaving_server

PARAMS = ResponsesParams(input="hello")
SECRET = "sk-very-secret-1234"
DIALECTS: dict[Dialect, type[Endpoint]] = {"responses": OpenAIModel, "chat": ChatModel, "messages": AnthropicModel}
ANSWERS = (TEXT, "h?", "")
PLAIN = [name for name, expected in MISBEHAVIOURS.items() if expected.only != "streamed"]
STREAMED = [name for name, expected in MISBEHAVIOURS.items() if expected.only != "plain"]


@pytest.fixture
async def server() -> AsyncIterator[MisbehavingServer]:
    async with misbehaving_server() as server:
        yield server


def model(dialect: Dialect, url: str, expected: Expected) -> Any:
    settings = {"name": "m", "base_url": url, "api_key": SECRET, "pause": 0.001, "timeout": 60}
    return DIALECTS[dialect].model_validate({**settings, **expected.options})


@pytest.fixture
def expected(name: str, monkeypatch: pytest.MonkeyPatch) -> Expected:
    found = MISBEHAVIOURS[name]
    if found.largest is not None:
        monkeypatch.setattr(exchange, "LARGEST_ANSWER", found.largest)
    return found


def test_there_are_enough_ways() -> None:
    assert len(MISBEHAVIOURS) >= 80


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", PLAIN)
async def test_a_plain_answer_is_told_by_its_kind(
    name: str,
    dialect: Dialect,
    expected: Expected,
    server: MisbehavingServer,
    http: HttpClient,
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked = model(dialect, server.base_url(name), expected)
    kind = expected.kind(dialect, stream=False)
    call = Call(http, tries=[])
    async with asyncio.timeout(120):
        if kind is None:
            response = await asked.responses(PARAMS, call)
            assert response.output_text in ANSWERS or len(response.output_text) == 30_000_000
        else:
            with pytest.raises(ModelFailure) as raised:
                await asked.responses(PARAMS, call)
            assert_told(raised.value, kind, server)
    told = [record for record in caplog.records if record.name.startswith("gymbox")]
    assert len(told) == (kind is not None), "each kind is logged once"
    assert SECRET not in caplog.text
    assert [tried.kind for tried in call.tries or []] == [kind and kind.value] * len(server.requests)
    if expected.largest is not None:
        assert server.sent < expected.largest + (32 << 20)


def assert_told(failure: ModelFailure, kind: ErrorKind, server: MisbehavingServer) -> None:
    assert failure.rollout_kind is kind, failure.detail
    assert len(server.requests) == TRIES[kind]
    assert server.url in failure.detail and CHECK[kind] in failure.detail
    assert SECRET not in failure.detail


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", STREAMED)
async def test_a_streamed_answer_is_told_by_its_kind(
    name: str, dialect: Dialect, expected: Expected, server: MisbehavingServer, http: HttpClient
) -> None:
    asked = model(dialect, server.base_url(name), expected)
    kind = expected.kind(dialect, stream=True)
    call = Call(http, tries=[])
    events: list[dict[str, Any]] = []
    async with asyncio.timeout(120):
        try:
            async for event in asked.stream(PARAMS, call):
                events.append(event)
        except ModelFailure as failure:
            assert not events, "what fails later is an event"
            assert kind is not None, failure.detail
            assert_told(failure, kind, server)
            return
    last = events[-1]
    assert len(server.requests) == 1
    assert sum(event["type"] in TERMINAL for event in events) == 1
    if kind is None:
        assert last["type"] == "response.completed"
        text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
        assert text in ANSWERS or set(text) == {"x"}
    else:
        assert (last["type"], last["response"]["error"]["code"]) == ("response.failed", kind.value), last
        assert SECRET not in last["response"]["error"]["message"]
    if expected.largest is not None:
        assert server.sent < expected.largest + (32 << 20)
    async with asyncio.timeout(30):
        # who still sends is hung up on
        await server.idle.wait()


TERMINAL = {"response.completed", "response.incomplete", "response.failed"}
