"""The served routes under anything: what the document allows, and requests of each dialect with faults in them.

Whatever comes is answered in time, with the shape of its dialect; 500 never.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
import schemathesis
from gymbox.guard import Guard
from gymbox.http import HttpClient
from gymbox.models import Model
from gymbox.models.chat import ChatModel
from gymbox.models.chat_requests import chat_from_params
from gymbox.models.messages_requests import messages_from_params
from gymbox.models.openai import OpenAIModel
from gymbox.models.server import ModelServer
from gymbox.serving import Listener
from gymbox_sandbox.responses import ResponsesParams
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.unit.models import strategies

SECONDS = 20
"""Within which each request must be answered, on a machine that does much else."""
bounded = settings(
    max_examples=40,
    deadline=None,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
TEXT = '{"a": "four"}'
CHAT = {
    "id": "x",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "status": "completed",
    "output": [
        {
            "type": "message",
            "id": "m",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": TEXT, "annotations": []}],
        }
    ],
}
BACK_ENDS: dict[str, tuple[dict[str, Any], Callable[[str], Model]]] = {
    "chat": (CHAT, lambda url: ChatModel(name="m", base_url=url, pause=0.001)),
    "openai": (RESPONSE, lambda url: OpenAIModel(name="m", base_url=url, pause=0.001)),
}


@pytest.fixture(params=list(BACK_ENDS))
async def served(request: pytest.FixtureRequest, stub: Any) -> AsyncIterator[str]:
    answer, made = BACK_ENDS[request.param]
    stub.plays(answer)
    async with HttpClient() as http:
        app = ModelServer(made(stub.url), http).setup_webserver()
        async with Listener(app, Guard(), drain=1) as listener:
            yield listener.url


def check(path: str, status: int, kind: str, content: bytes, asked: Any) -> None:
    """That an answer is one: no fault of ours, whole, in its dialect's shape."""
    assert status != 500 and status < 505, (status, content, asked)
    if status == 200 and kind.startswith("text/event-stream"):
        assert content.endswith(b"\n\n")
        return
    if not path.startswith("/v1/"):
        return
    found = json.loads(content)
    if status >= 400:
        assert isinstance(found["error"]["message"], str) and found["error"]["message"], (found, asked)
        # our back end does nothing wrong, but it never answers but with its one text
        assert status < 500 or found["error"].get("rollout_kind") == "model_bad_response", (found, asked)


def post(url: str, raw: bytes) -> None:
    """Post this body and check what comes back."""
    answer = requests.post(url, data=raw, headers={"Content-Type": "application/json"}, timeout=SECONDS)
    check(urlsplit(url).path, answer.status_code, answer.headers.get("Content-Type", ""), answer.content, raw)


async def test_what_the_document_allows_is_answered(served: str) -> None:
    def fuzz() -> int:
        schema = schemathesis.openapi.from_url(f"{served}/openapi.json")
        tried = 0
        for found in schema.get_all_operations():
            operation = found.ok()

            @bounded
            @given(case=operation.as_strategy())
            def each(case: Any) -> None:
                answer = case.call(timeout=SECONDS)
                kind = (answer.headers.get("content-type") or [""])[0]
                check(case.operation.path, answer.status_code, kind, answer.content, case.body)

            each()
            tried += 1
        return tried

    assert await asyncio.to_thread(fuzz) >= 8


def chat_requests() -> st.SearchStrategy[Any]:
    return strategies.requests(audio=True).map(lambda drawn: chat_from_params(ResponsesParams.model_validate(drawn)))


def messages_requests() -> st.SearchStrategy[Any]:
    drawn = strategies.requests(formats=False, metadata=False, allowed=False, refusals=False)
    return drawn.map(lambda each: messages_from_params(ResponsesParams.model_validate(each)) | {"max_tokens": 9})


@pytest.mark.parametrize(
    ("path", "drawn"),
    [
        ("/v1/responses", strategies.requests(audio=True, signed=True)),
        ("/v1/chat/completions", chat_requests()),
        ("/v1/messages", messages_requests()),
        ("/v1/messages/count_tokens", messages_requests()),
    ],
)
async def test_requests_with_faults_in_them_are_answered(served: str, path: str, drawn: Any) -> None:
    def fuzz() -> None:
        @bounded
        @given(strategies.mutated(drawn, times=3), st.booleans())
        def each(body: Any, stream: bool) -> None:
            if isinstance(body, dict):
                body = {**body, "stream": stream} | ({"model": "m"} if "model" in body else {})
            post(f"{served}{path}", json.dumps(body).encode())

        each()

    await asyncio.to_thread(fuzz)


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions", "/v1/messages"])
async def test_bodies_that_are_no_requests_are_answered(served: str, path: str) -> None:
    odd = [b"", b"[]", b"{", b"null", b"\xff\xfe", b'{"a": NaN}', b'{"input": "\\ud800", "messages": "\\ud800"}']
    deep = b'{"input": ' + b"[" * 5000 + b"]" * 5000 + b', "messages": 1}'
    lone = {"role": "user", "content": "\ud800"}
    half = json.dumps({"input": [lone], "messages": [lone], "max_tokens": 5}).encode()

    for raw in [*odd, deep, half]:
        await asyncio.to_thread(post, f"{served}{path}", raw)
