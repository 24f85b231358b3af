"""Models that LiteLLM calls: over our connections, with our retries, in its providers' dialects."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from importlib.util import find_spec
from typing import Any

import pytest
from gymbox.errors import ConfigError, ErrorKind, ModelFailure
from gymbox.http import HttpClient
from gymbox.models import Call
from gymbox.models.endpoint import TRIES
from gymbox.models.litellm import LiteLLMModel, LiteLLMResponsesModel
from gymbox_sandbox.responses import ResponsesParams

from tests.misbehaving import TEXT, MisbehavingServer, misbehaving_server

httpx = pytest.importorskip("httpx")
if find_spec("litellm") is None:
    pytest.skip("needs the gymbox[litellm] extra", allow_module_level=True)

PARAMS = ResponsesParams(input="hello")


@pytest.fixture
async def server() -> AsyncIterator[MisbehavingServer]:
    async with misbehaving_server() as server:
        yield server


@pytest.fixture(autouse=True)
def no_httpx(monkeypatch: pytest.MonkeyPatch) -> None:
    """No request may take httpx's own connections."""

    def refuse(*_: Any) -> Any:
        raise AssertionError("a request went through httpx's pool")

    monkeypatch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", refuse)
    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", refuse)


def model(kind: Any, provider: str, url: str, **options: Any) -> Any:
    settings = {"name": f"{provider}/gpt-4.1-mini", "base_url": url, "api_key": "sk-secret-1234", "pause": 0.001}
    return kind.model_validate({**settings, **options})


KINDS = [(LiteLLMModel, "openai"), (LiteLLMModel, "hosted_vllm"), (LiteLLMResponsesModel, "openai")]


@pytest.mark.parametrize(("kind", "provider"), [*KINDS, (LiteLLMModel, "anthropic")])
async def test_an_answer_comes_over_the_shared_connections(
    kind: Any, provider: str, server: MisbehavingServer, http: HttpClient
) -> None:
    url = server.base_url("as octets")
    asked = model(kind, provider, url.removesuffix("/v1") if provider == "anthropic" else url, headers={"X-Mine": "1"})
    response = await asked.responses(PARAMS, Call(http))
    assert response.output_text == TEXT and len(server.requests) == 1
    assert response.usage is not None and response.usage.output_tokens == 2


@pytest.mark.parametrize(("kind", "provider"), KINDS)
async def test_a_stream_comes_as_it_is_made(
    kind: Any, provider: str, server: MisbehavingServer, http: HttpClient
) -> None:
    asked = model(kind, provider, server.base_url("drips"))
    events = [event async for event in asked.stream(PARAMS, Call(http))]
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert text == TEXT and events[-1]["type"] == "response.completed"
    assert server.requests[0]["stream"] is True


@pytest.mark.parametrize(("kind", "provider"), KINDS)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("400", ErrorKind.MODEL_REFUSED_REQUEST),
        ("401", ErrorKind.MODEL_UNAUTHORIZED),
        ("429", ErrorKind.MODEL_RATE_LIMITED),
        ("500", ErrorKind.MODEL_UNAVAILABLE),
        ("reset", ErrorKind.MODEL_UNAVAILABLE),
        ("hangs", ErrorKind.MODEL_TIMED_OUT),
    ],
)
async def test_failures_have_our_kinds_and_bounded_tries(
    name: str, expected: ErrorKind, kind: Any, provider: str, server: MisbehavingServer, http: HttpClient
) -> None:
    asked = model(kind, provider, server.base_url(name), timeout=0.5 if name == "hangs" else 30)
    call = Call(http, tries=[])
    async with asyncio.timeout(60):
        with pytest.raises(ModelFailure) as raised:
            await asked.responses(PARAMS, call)
    assert raised.value.rollout_kind is expected, raised.value.detail
    assert [tried.kind for tried in call.tries or []] == [expected.value] * TRIES[expected]
    assert len(server.requests) == TRIES[expected], "LiteLLM repeats nothing itself"
    assert "sk-secret-1234" not in raised.value.detail


async def test_a_stream_that_cannot_begin_is_told_as_a_plain_answer_is(
    server: MisbehavingServer, http: HttpClient
) -> None:
    asked = model(LiteLLMModel, "hosted_vllm", server.base_url("500"))
    with pytest.raises(ModelFailure) as raised:
        await anext(asked.stream(PARAMS, Call(http)))
    assert raised.value.rollout_kind is ErrorKind.MODEL_UNAVAILABLE
    assert len(server.requests) == TRIES[ErrorKind.MODEL_UNAVAILABLE]


async def test_a_stream_that_breaks_off_ends_as_failed(server: MisbehavingServer, http: HttpClient) -> None:
    asked = model(LiteLLMModel, "hosted_vllm", server.base_url("reset in the midst"))
    events = [event async for event in asked.stream(PARAMS, Call(http))]
    assert events[-1]["type"] == "response.failed" and len(server.requests) == 1


async def test_a_caller_that_gives_up_hangs_up_at_the_provider(server: MisbehavingServer, http: HttpClient) -> None:
    asked = model(LiteLLMModel, "openai", server.base_url("silent at the end"))
    stream = asked.stream(PARAMS, Call(http))
    await anext(stream)
    await stream.aclose()
    async with asyncio.timeout(30):
        await server.idle.wait()


async def test_a_provider_that_it_does_not_know_is_a_refused_request(http: HttpClient) -> None:
    asked = LiteLLMModel(name="nobody/m", pause=0.001)
    with pytest.raises(ModelFailure, match="LLM Provider NOT provided") as raised:
        await asked.responses(PARAMS, Call(http))
    assert raised.value.rollout_kind is ErrorKind.MODEL_REFUSED_REQUEST


async def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "litellm", None)
    with pytest.raises(ConfigError, match=r"gymbox\[litellm\]"):
        await LiteLLMModel(name="openai/m").open()
