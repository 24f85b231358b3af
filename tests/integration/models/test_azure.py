"""Azure OpenAI's addresses and keys, as its two APIs want them."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web
from gymbox.errors import ModelFailure
from gymbox.http import HttpClient
from gymbox.models import Call
from gymbox.models.azure import AzureChatModel, AzureModel
from gymbox_sandbox.responses import ResponsesParams
from pydantic import ValidationError

from tests.misbehaving import good

PARAMS = ResponsesParams(input="hello")
V1 = {"name": "my dep", "api_key": "key-1"}
DATED = {**V1, "api_version": "2024-10-21"}


@pytest.fixture
async def azure(stub: Any) -> Any:
    """A resource that keeps the addresses that it was asked at."""
    stub.paths = []

    async def answers(request: web.Request) -> web.StreamResponse:
        stub.paths.append(request.raw_path)
        return web.json_response(good("responses" if "responses" in request.path else "chat"))

    stub.plays(answers)
    stub.resource = stub.url.removesuffix("/v1")
    return stub


@pytest.mark.parametrize(
    ("kind", "settings", "path"),
    [
        (AzureModel, V1, "/openai/v1/responses"),
        (AzureChatModel, V1, "/openai/v1/chat/completions"),
        (AzureModel, DATED, "/openai/responses?api-version=2024-10-21"),
        (AzureChatModel, DATED, "/openai/deployments/my%20dep/chat/completions?api-version=2024-10-21"),
    ],
)
@pytest.mark.parametrize("whole", [False, True])
async def test_each_api_is_asked_where_it_is_and_with_the_key(
    whole: bool, kind: Any, settings: dict[str, Any], path: str, azure: Any, http: HttpClient
) -> None:
    base = azure.resource + (path.partition("?")[0].rpartition("/responses")[0].partition("/chat")[0] if whole else "")
    response = await kind.model_validate({**settings, "base_url": base}).responses(PARAMS, Call(http))
    assert response.output_text and azure.paths == [path]
    assert azure.bodies[0]["model"] == "my dep"
    assert azure.headers[0]["api-key"] == "key-1" and "Authorization" not in azure.headers[0]


async def test_a_token_of_entra_takes_the_place_of_the_key(azure: Any, http: HttpClient) -> None:
    asked = AzureModel.model_validate({**V1, "base_url": azure.resource, "token": "eyJ-token\n"})
    await asked.responses(PARAMS, Call(http))
    assert azure.headers[0]["Authorization"] == "Bearer eyJ-token" and "api-key" not in azure.headers[0]


async def test_a_token_that_the_resource_repeats_is_masked(azure: Any, http: HttpClient) -> None:
    async def refuses(_: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"code": "401", "message": "eyJ-token has expired"}}, status=401)

    azure.plays(refuses)
    asked = AzureModel.model_validate({**V1, "base_url": azure.resource, "token": "eyJ-token"})
    with pytest.raises(ModelFailure, match=r"\*\*\* has expired"):
        await asked.responses(PARAMS, Call(http))


async def test_what_its_content_filter_refuses_is_a_refused_request(azure: Any, http: HttpClient) -> None:
    error = {"code": "content_filter", "message": "filtered", "innererror": {"code": "ResponsibleAIPolicyViolation"}}

    async def refuses(_: web.Request) -> web.StreamResponse:
        return web.json_response({"error": error}, status=400)

    azure.plays(refuses)
    asked = AzureChatModel.model_validate({**V1, "base_url": azure.resource})
    with pytest.raises(ModelFailure, match="answered 400: filtered"):
        await asked.responses(PARAMS, Call(http))


@pytest.mark.parametrize(
    "settings", [V1, {**V1, "base_url": "http://a", "api_version": "a&b"}, {**V1, "base_url": "a.openai.azure.com"}]
)
def test_what_cannot_be_an_address_is_refused_at_start(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        AzureModel.model_validate(settings)
